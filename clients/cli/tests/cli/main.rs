//! `dlock` as a shell starts it, against real servers.

// A document without a field fails its test, and says so.
#![allow(clippy::indexing_slicing)]

mod check;
#[cfg(target_os = "linux")]
mod jobs;
mod run;
mod show;
mod update;

use dlock_harness::{await_until, stop, Ask, Server, PATIENCE};
use nix::sys::signal::{kill, signal, SigHandler, Signal};
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::thread;

/// Resets the signals that a shell ignores in a background job, and nohup: commands inherit that.
fn reset_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            // SAFETY: this replaces no handler of Rust's.
            unsafe { signal(ignored, SigHandler::SigDfl) }.expect("a signal can be reset");
        }
    });
}

/// `dlock` with these words, at this server.
fn dlock(server: &Server, words: &[&str]) -> Command {
    dlock_at(&format!("redis://127.0.0.1:{}", server.port()), words)
}

fn dlock_at(url: &str, words: &[&str]) -> Command {
    reset_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.args(["--url", url]);
    command.args(words).stdin(Stdio::null());
    for name in ["DLOCK_URL", "DLOCK_SENTINEL", "REDISCLI_AUTH"] {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end.
fn output(server: &Server, words: &[&str]) -> (i32, String, String) {
    said(dlock(server, words).output().expect("dlock can be started"))
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    // The code that a shell would report.
    let signal = output.status.signal().map(|signal| 128 + signal);
    let code = output.status.code().or(signal).expect("an end");
    (code, text(output.stdout), text(output.stderr))
}

/// A run that has not ended yet. It does not outlive the test.
struct Running(Option<Child>);

impl Running {
    fn start(server: &Server, words: &[&str]) -> Running {
        Running::spawn(dlock(server, words))
    }

    fn spawn(mut command: Command) -> Running {
        reset_signals();
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("dlock can be started")))
    }

    fn pid(&self) -> Pid {
        let child = self.0.as_ref().expect("it was not waited for");
        Pid::from_raw(child.id() as i32)
    }

    fn stop_and_go_on(&self) {
        stop(self.pid());
        kill(self.pid(), Signal::SIGCONT).expect("it is there");
    }

    /// Its process, for a closer look. What it prints is read by nobody.
    #[cfg(target_os = "linux")]
    fn into_child(mut self) -> Child {
        self.0.take().expect("it was not waited for")
    }

    fn end(mut self) -> (i32, String, String) {
        let child = self.0.take().expect("it was not waited for");
        said(child.wait_with_output().expect("an end"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn await_held(server: &Server, lock: &str) {
    let mut connection = server.connection();
    await_until("it is held", PATIENCE, || {
        holder(&mut connection, lock).is_some()
    });
}

/// Who holds it, and for how many milliseconds more.
fn holder(connection: &mut impl Ask, lock: &str) -> Option<(String, u64)> {
    connection
        .ask::<Option<(u64, u64, u64, String)>>(&format!("DLOCK.HELD {lock}"))
        .map(|(_, _, left, owner)| (owner, left))
}

/// `dlock` with these words and this script, which runs by now; and the script's process. (The lock is held a moment before.)
fn running(server: &Server, words: &[&str], script: &str) -> (Running, Pid) {
    let file = tempfile();
    let script = format!("echo $$ > {file}; {script}");
    let run = Running::start(server, &[words, &["--", "sh", "-c", &script]].concat());
    let pid = || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
    await_until("the command runs", PATIENCE, || pid().is_some());
    let command = Pid::from_raw(pid().expect("a number"));
    let _ = std::fs::remove_file(&file);
    (run, command)
}

fn tempfile() -> String {
    let name = format!(
        "dlock-cli-{}-{:?}",
        std::process::id(),
        thread::current().id()
    );
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    std::env::temp_dir().join(name).display().to_string()
}
