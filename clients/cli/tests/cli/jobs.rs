//! `dlock run` as a job: in a terminal, in pipes, under `nohup`, with whoever ends or stops its processes.

use super::*;
use dlock_harness::Grant;
use nix::pty::openpty;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A shell in a terminal, as a person uses it.
struct Person {
    keys: File,
    seen: Arc<Mutex<String>>,
    shell: Child,
}

impl Person {
    /// With bash, or another program, as what the terminal belongs to.
    fn sits_at(program: &mut Command) -> Person {
        super::reset_signals();
        let pty = openpty(None, None).expect("a terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a spare descriptor"));
        let shell = program
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid is there");
        let keys = File::from(pty.master);
        let mut screen = keys.try_clone().expect("a spare descriptor");
        let seen = Arc::new(Mutex::new(String::new()));
        let shown = seen.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                let text =
                    String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()).into_owned();
                shown
                    .lock()
                    .expect("no reader has panicked")
                    .push_str(&text);
            }
        });
        Person { keys, seen, shell }
    }

    fn with_a_shell(server: &Server) -> Person {
        let mut person = Person::sits_at(
            Command::new("setsid")
                .args(["--ctty", "bash", "--norc", "--noprofile", "-i"])
                .env("DLOCK_URL", format!("redis://127.0.0.1:{}", server.port()))
                .env("PS1", "prompt> ")
                .env("dlock", env!("CARGO_BIN_EXE_dlock")),
        );
        person.sees("prompt> ");
        person
    }

    fn types(&mut self, keys: &str) {
        self.keys
            .write_all(keys.as_bytes())
            .expect("the terminal is there");
    }

    /// Presses a key that concerns the job. What was shown before has been seen.
    fn presses(&mut self, key: &str) {
        self.seen.lock().expect("no reader has panicked").clear();
        self.types(key);
    }

    /// Waits until this was shown, after what was seen before.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let mut rest = None;
        let what = format!("{text:?} is shown");
        let seen = self.seen.clone();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            await_until(&what, PATIENCE, || {
                let seen = seen.lock().expect("no reader has panicked");
                rest = seen.split_once(text).map(|(_, rest)| rest.to_owned());
                rest.is_some()
            });
        }));
        let mut seen = self.seen.lock().expect("no reader has panicked");
        if failed.is_err() {
            panic!("{text:?} is not shown, but: {seen}");
        }
        let kept = rest.expect("it was shown").len();
        let from = seen.len() - kept;
        seen.drain(..from);
    }

    fn has_seen(&self, text: &str) -> bool {
        self.seen
            .lock()
            .expect("no reader has panicked")
            .contains(text)
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A file that a command writes to, which is gone with the test.
struct Notes(PathBuf);

impl Notes {
    fn new(server: &Server, name: &str) -> Notes {
        Notes(server.dir().join(name))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    /// The processes that have written their numbers there.
    fn pids(&self) -> Vec<Pid> {
        let text = self.text();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .map(|line| Pid::from_raw(line.trim().parse().expect("a number")))
            .collect()
    }

    #[track_caller]
    fn await_pid(&self) -> Pid {
        self.await_pids(1).remove(0)
    }

    #[track_caller]
    fn await_pids(&self, count: usize) -> Vec<Pid> {
        await_until("the processes run", PATIENCE, || self.pids().len() == count);
        self.pids()
    }
}

/// The letter of a process's state, if it is there.
fn state(pid: Pid) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// A process that is there and works, or could.
fn is_alive(pid: &Pid) -> bool {
    state(*pid).is_some_and(|state| state != 'Z')
}

#[track_caller]
fn await_gone(pids: &[Pid]) {
    await_until("they have ended", PATIENCE, || !pids.iter().any(is_alive));
}

#[track_caller]
fn await_free(server: &Server, lock: &str) {
    let mut connection = server.connection();
    await_until("the lock is free", PATIENCE, || {
        holder(&mut connection, lock).is_none()
    });
}

/// A pipeline of three processes, one of them in a session of its own, that write their numbers to a file.
fn pipeline(notes: &Notes) -> String {
    let file = notes.path();
    format!("setsid sh -c 'echo $$ >> {file}; exec sleep 300' & sh -c 'echo $$ >> {file}; exec sleep 300' | sh -c 'echo $$ >> {file}; exec sleep 300'")
}

/// A command that writes a line every 50 ms, and starts no process: a shell that stops while it does so is not told of (its child has not
/// become the other program yet, and it waits for that).
fn ticker(server: &Server, notes: &Notes) -> [String; 2] {
    let script = format!(
        "while (1) {{ open my $file, '>>', '{}'; print $file \"tick\\n\"; close $file; select undef, undef, undef, 0.05 }}",
        notes.path()
    );
    let file = server.dir().join("tick.pl");
    fs::write(&file, script).expect("a file");
    ["perl".to_owned(), file.display().to_string()]
}

/// The parent of a process.
fn parent(pid: Pid) -> Pid {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let fields = text.rsplit_once(") ").expect("its state").1;
    Pid::from_raw(
        fields
            .split(' ')
            .nth(1)
            .expect("a parent")
            .parse()
            .expect("a number"),
    )
}

#[test]
fn nobody_of_a_command_outlives_its_runner() {
    let server = Server::start();
    let notes = Notes::new(&server, "pids");
    let run = Running::start(
        &server,
        &["run", "job", "--", "sh", "-c", &pipeline(&notes)],
    );
    let pids = notes.await_pids(3);
    kill(run.pid(), Signal::SIGKILL).expect("it runs");
    await_gone(&pids);
    await_free(&server, "job");
}

#[test]
fn nobody_of_a_command_outlives_its_lock() {
    let server = Server::start();
    let notes = Notes::new(&server, "pids");
    // The first process handles the signal; the others ignore it.
    let script = format!(
        "trap '' TERM; {} & trap 'exit 0' TERM; wait",
        pipeline(&notes)
    );
    let words = [
        "run",
        "--kill-after",
        "300ms",
        "job",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let run = Running::start(&server, &words);
    let pids = notes.await_pids(3);
    assert_eq!(output(&server, &["release", "job"]).0, 0);
    let (code, _, said) = run.end();
    assert_eq!(code, 75, "{said}");
    assert!(!pids.iter().any(is_alive));
}

/// The process above the command is killed, and the runner does what it would have done.
#[test]
fn nobody_of_a_command_outlives_its_guardian() {
    let server = Server::start();
    let (run, command) = running(&server, &["run", "job"], "sleep 300 & sleep 300");
    kill(parent(command), Signal::SIGKILL).expect("it is there");
    let (code, _, said) = run.end();
    assert_eq!(code, 137, "{said}");
    await_gone(&[command]);
    await_free(&server, "job");
}

/// A runner that is stopped, and cannot say so: its command is ended when the lease is over. One that is asked to stop stops its command
/// first.
#[test]
fn a_command_does_not_work_past_its_lease() {
    let server = Server::start();
    let (run, command) = running(
        &server,
        &["run", "-l", "1s", "--kill-after", "0", "job"],
        "exec sleep 300",
    );
    kill(run.pid(), Signal::SIGSTOP).expect("it runs");
    await_gone(&[command]);
    assert_eq!(state(run.pid()), Some('T'));
    kill(run.pid(), Signal::SIGCONT).expect("it is there");
    let (code, _, said) = run.end();
    assert!(
        code == 75 && said.contains("its lease is over"),
        "{code} {said}"
    );

    let (run, command) = running(&server, &["run", "-l", "1s", "job"], "exec sleep 300");
    kill(run.pid(), Signal::SIGTSTP).expect("it runs");
    await_until("the runner stops", PATIENCE, || {
        state(run.pid()) == Some('T')
    });
    assert_eq!(state(command), Some('T'));
    await_free(&server, "job");
    assert_eq!(state(command), Some('T'));
    kill(run.pid(), Signal::SIGCONT).expect("it is there");
    let (code, _, said) = run.end();
    assert_eq!(code, 75, "{said}");

    let notes = Notes::new(&server, "pid");
    let script = "$SIG{USR1} = sub { exit 5 }; open my $file, '>', shift; print $file \"$$\\n\"; close $file; sleep 1 while 1";
    let words = ["run", "job", "--", "perl", "-e", script, &notes.path()];
    let run = Running::start(&server, &words);
    let command = notes.await_pid();
    kill(run.pid(), Signal::SIGTSTP).expect("it runs");
    await_until("the runner stops", PATIENCE, || {
        state(run.pid()) == Some('T')
    });
    kill(command, Signal::SIGUSR1).expect("it is there");
    kill(run.pid(), Signal::SIGCONT).expect("it is there");
    // It still holds the lock, and continues.
    assert_eq!(run.end(), (5, String::new(), String::new()));
}

#[test]
fn a_command_has_the_terminal() {
    let server = Server::start();
    let mut person = Person::with_a_shell(&server);
    person.types("$dlock run job -- sh -c 'read x; echo got-$x; exit 3'; echo code-$?\n");
    await_held(&server, "job");
    person.types("hello\n");
    person.sees("got-hello");
    person.sees("code-3");
    // In a pipeline the command gets the terminal when it asks for it.
    person.types(
        "$dlock run job -- sh -c 'read x </dev/tty; echo got-$x' | tr a-z A-Z; echo code-$?\n",
    );
    await_held(&server, "job");
    person.types("again\n");
    person.sees("GOT-AGAIN");
    person.sees("code-0");
    // In the background it waits for the foreground.
    person.types("$dlock run job -- sh -c 'read x; echo got-$x' &\n");
    await_held(&server, "job");
    await_until("it is stopped", PATIENCE, || {
        person.types("jobs\n");
        person.has_seen("Stopped")
    });
    person.types("fg\n");
    person.types("third\n");
    person.sees("got-third");
    await_free(&server, "job");
}

#[test]
fn a_key_ends_the_whole_job() {
    let server = Server::start();
    let notes = Notes::new(&server, "pids");
    let mut person = Person::with_a_shell(&server);
    person.types(&format!(
        "$dlock run job -- sh -c \"{}\"\n",
        pipeline(&notes).replace('$', "\\$")
    ));
    // A process with a session of its own receives no signal from the terminal.
    let pids = notes.await_pids(3);
    person.presses("\x03");
    person.sees("prompt> ");
    person.types("echo code-$?\n");
    person.sees("code-130");
    await_free(&server, "job");
    await_until("the pipeline has ended", PATIENCE, || {
        pids.iter().filter(|pid| is_alive(pid)).count() <= 1
    });
    for pid in pids.iter().filter(|pid| is_alive(pid)) {
        kill(*pid, Signal::SIGKILL).expect("it is there");
    }
    // The script around it ends as well.
    person.types("bash -c '$dlock run job -- sleep 300; echo went\"\"-on'\n");
    await_held(&server, "job");
    person.sees("-on'");
    person.presses("\x03");
    person.sees("prompt> ");
    person.types("echo code-$?\n");
    person.sees("code-130");
    assert!(!person.has_seen("went-on"));
    await_free(&server, "job");
}

/// A key that meets the process above the command before that has a group of its own, and so before there is a command: the runner
/// ends by that signal, even if it has not received it yet.
#[test]
fn a_key_that_meets_the_guardian_first() {
    let server = Server::start();
    let ends_by_it = || {
        let run = Running::start(&server, &["run", "job", "--", "sleep", "300"]);
        let children = format!("/proc/{0}/task/{0}/children", run.pid());
        let guardian = || {
            let text = fs::read_to_string(&children).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        await_until("the guardian is there", PATIENCE, || guardian().is_some());
        let guardian = Pid::from_raw(guardian().expect("a number"));
        kill(guardian, Signal::SIGINT).expect("it is there");
        let status = run.into_child().wait().expect("an end");
        await_free(&server, "job");
        status.signal() == Some(Signal::SIGINT as i32)
    };
    // There may be a command by then: that is another case.
    await_until("the key comes in time", PATIENCE, ends_by_it);
}

#[test]
fn a_job_can_be_stopped_and_goes_on() {
    let server = Server::start();
    let notes = Notes::new(&server, "ticks");
    let tick = ticker(&server, &notes).join(" ");
    let ticks = || notes.text().lines().count();
    let mut person = Person::with_a_shell(&server);
    let work = |more: usize| {
        let before = ticks();
        await_until("it works", PATIENCE, || ticks() >= before + more);
    };
    let rests = || {
        let before = ticks();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(ticks(), before);
    };
    person.types(&format!("$dlock run -l 2s job -- {tick}; echo code-$?\n"));
    work(2);
    person.presses("\x1a");
    person.sees("Stopped");
    rests();
    person.types("bg\n");
    work(2);
    person.types("fg\n");
    person.sees("fg");
    work(2);
    // A script around it stops and continues with it.
    person.presses("\x03");
    person.sees("prompt> ");
    await_free(&server, "job");
    person.types(&format!(
        "bash -c \"\\$dlock run -l 2s job -- {tick}; exit 4\"; echo code-$?\n"
    ));
    work(2);
    person.presses("\x1a");
    person.sees("Stopped");
    rests();
    // It was stopped for longer than its lease: it does no more work.
    await_free(&server, "job");
    let _: Grant = server.connection().ask("DLOCK.ACQUIRE job bob 600000");
    let before = ticks();
    person.types("fg\n");
    person.sees("job is lost");
    person.sees("prompt> ");
    assert!(ticks() <= before + 1, "a tick that was under way ends");
    person.types("echo still-\"\"here\n");
    person.sees("still-here");
}

/// No shell is there to let a stopped job continue: as in a container, or by ssh with a command.
#[test]
fn a_job_without_a_shell_does_not_stop() {
    let server = Server::start();
    let notes = Notes::new(&server, "ticks");
    let tick = ticker(&server, &notes);
    let mut person = Person::sits_at(
        Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_dlock")])
            .args(["--url", &format!("redis://127.0.0.1:{}", server.port())])
            .args(["run", "job", "--"])
            .args(tick),
    );
    let ticks = || notes.text().lines().count();
    await_until("it works", PATIENCE, || ticks() > 2);
    person.presses("\x1a");
    let before = ticks();
    await_until("it works on", PATIENCE, || ticks() > before + 10);
    person.presses("\x03");
    await_free(&server, "job");
}

#[test]
fn a_lost_lock_ends_a_pipeline_in_a_terminal() {
    let server = Server::start();
    let notes = Notes::new(&server, "ticks");
    let script = format!(
        "while :; do echo tick; sleep 0.05; done | cat >> {}",
        notes.path()
    );
    let mut person = Person::with_a_shell(&server);
    person.types(&format!(
        "$dlock run -l 6s job -- sh -c '{script}'; echo code-$?\n"
    ));
    await_until("it works", PATIENCE, || notes.text().lines().count() > 2);
    assert_eq!(output(&server, &["release", "job"]).0, 0);
    person.sees("job is lost (NOTHELD");
    person.sees("code-75");
    let before = notes.text();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(notes.text(), before);
}

/// The terminal is closed: SIGHUP reaches the command, unless `nohup` has had it ignored from the start.
#[test]
fn hanging_up() {
    let server = Server::start();
    for (program, code) in [("nohup", 0), ("env", 129)] {
        let file = Notes::new(&server, program);
        let script = format!(
            "echo $$ > {0}; until test -e {0}.go; do sleep 0.05; done",
            file.path()
        );
        let mut command = Command::new(program);
        command.arg(env!("CARGO_BIN_EXE_dlock"));
        command.args(["--url", &format!("redis://127.0.0.1:{}", server.port())]);
        command
            .args(["run", "job", "--", "sh", "-c", &script])
            .stdin(Stdio::null());
        let run = Running::spawn(command);
        let command = file.await_pid();
        kill(run.pid(), Signal::SIGHUP).expect("it runs");
        if program == "nohup" {
            kill(command, Signal::SIGHUP).expect("it runs");
            fs::write(format!("{}.go", file.path()), "").expect("a file");
        }
        let (ended, _, said) = run.end();
        assert_eq!(ended, code, "{program}: {said}");
        await_free(&server, "job");
    }
}

#[test]
fn an_empty_environment() {
    let server = Server::start();
    let mut command = dlock(
        &server,
        &["run", "job", "--", "sh", "-c", "echo $DLOCK_LOCK"],
    );
    let (code, out, said) = said(
        command
            .env_clear()
            .current_dir("/")
            .output()
            .expect("an end"),
    );
    assert_eq!((code, out.as_str(), said.as_str()), (0, "job\n", ""));
}

/// Variables that are there, and empty: a file of settings leaves them open.
#[test]
fn empty_variables() {
    let server = Server::start();
    let mut command = dlock(&server, &["who", "job"]);
    command.env("DLOCK_SENTINEL", "").env("REDISCLI_AUTH", "");
    let ended = said(command.output().expect("an end"));
    assert_eq!(ended, (1, "job is free\n".to_owned(), String::new()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.args(["who", "job"]).env("DLOCK_URL", "");
    let (code, _, said) = said(command.output().expect("an end"));
    assert!(code != 64, "{said}");
}

/// The first process of a container, which no signal of its own ends.
#[test]
fn the_first_process_of_a_container() {
    let server = Server::start();
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ]);
    command.arg(env!("CARGO_BIN_EXE_dlock"));
    command.args(["--url", &format!("redis://127.0.0.1:{}", server.port())]);
    command.args(["run", "job", "--", "sleep", "300"]);
    command.stdin(Stdio::null());
    let run = Running::spawn(command);
    await_held(&server, "job");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid()));
    let first: i32 = children.expect("it runs").trim().parse().expect("one");
    kill(Pid::from_raw(first), Signal::SIGTERM).expect("it runs");
    assert_eq!(run.end(), (143, String::new(), String::new()));
    await_free(&server, "job");
}

/// Input, output and errors are the command's, also where a reader has had enough.
#[test]
fn pipes() {
    let server = Server::start();
    let mut connection = server.connection();
    for lock in 0..2_000 {
        let _: Grant = connection.ask(&format!("DLOCK.ACQUIRE lock-{lock} alice 600000"));
    }
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).stdin(Stdio::null());
        shell.env("DLOCK_URL", format!("redis://127.0.0.1:{}", server.port()));
        shell.env("dlock", env!("CARGO_BIN_EXE_dlock"));
        said(shell.output().expect("bash is there"))
    };
    let (code, out, said) = shell("$dlock ls | head -n 1; echo ${PIPESTATUS[0]}");
    assert_eq!((code, said.as_str()), (0, ""), "{out}");
    assert_eq!(out.lines().nth(1), Some("141"), "{out}");
    let (_, out, said) = shell("seq 100000 | $dlock run job -- cat | tail -n 1");
    assert_eq!((out.as_str(), said.as_str()), ("100000\n", ""));
    let (_, out, said) = shell("$dlock run job -- yes | head -n 1; echo ${PIPESTATUS[0]}");
    assert_eq!((out.as_str(), said.as_str()), ("y\n141\n", ""));
    // Nobody can read its messages: it keeps working without them.
    let (_, out, _) =
        shell("{ $dlock run lock-0 -n -- true 2>&1; echo $? >&3; } 3>&1 >/dev/full | cat");
    assert_eq!(out, "1\n");
}

/// The program and the job are replaced while it waits, as by an update.
#[test]
fn an_update_while_it_waits() {
    let server = Server::start();
    let mut connection = server.connection();
    let directory = server.dir().join("bin");
    fs::create_dir(&directory).expect("a directory");
    let (program, job) = (directory.join("dlock"), directory.join("job"));
    // By another process: one that is started here meanwhile would have the copy open for writing, and it could not be run.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_dlock"))
        .arg(&program)
        .status();
    assert!(copied.expect("there is a cp").success());
    let write = |file: &Path, text: &str| {
        let new = file.with_extension("new");
        fs::write(&new, text).expect("a file");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::rename(&new, file).expect("it is ours");
    };
    write(&job, "#!/bin/sh\necho old\n");
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    let mut command = Command::new(&program);
    command.args([
        "--url",
        &format!("redis://127.0.0.1:{}", server.port()),
        "run",
        "job",
        "--",
    ]);
    command.arg(&job).stdin(Stdio::null());
    let run = Running::spawn(command);
    server.await_blocked_clients(1);
    write(&program, "#!/bin/sh\nexit 99\n");
    write(&job, "#!/bin/sh\necho new\n");
    connection.run("DLOCK.RELEASE job alice");
    assert_eq!(run.end(), (0, "new\n".to_owned(), String::new()));
}

/// What cannot be run is said before the lock is waited for.
#[test]
fn a_job_that_is_not_there_does_not_wait() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    for (job, code) in [
        ("/nobody/knows/this", 127),
        ("nobody-knows-this", 127),
        ("/dev/null", 126),
        ("/tmp", 126),
    ] {
        let (ended, _, said) = output(&server, &["run", "job", "--", job]);
        assert_eq!(ended, code, "{job}: {said}");
        assert!(said.contains(job), "{said}");
    }
}

/// The signals of the runner reach the command. One that ends it ends the runner in the same way, as whoever has sent it expects.
#[test]
fn signals_reach_the_command() {
    let server = Server::start();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
        let script = "trap 'exit 7' TERM INT QUIT; while :; do sleep 0.05; done";
        let mut command = dlock(&server, &["run", "job", "--", "sh", "-c"]);
        let notes = Notes::new(&server, signal.as_str());
        command
            .arg(script.replacen("; ", &format!("; echo $$ > {}; ", notes.path()), 1))
            .process_group(0);
        let run = Running::spawn(command);
        notes.await_pids(1);
        kill(run.pid(), signal).expect("it runs");
        let (code, _, said) = run.end();
        assert_eq!(code, 7, "{signal}: {said}");
    }
    let (run, _) = running(&server, &["run", "job"], "exec sleep 300");
    kill(run.pid(), Signal::SIGTERM).expect("it runs");
    let mut child = run.into_child();
    let status = child.wait().expect("an end");
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    await_free(&server, "job");
}

/// A script without `#!` is the shell's, as everywhere.
#[test]
fn a_script_without_a_program() {
    let server = Server::start();
    let file = server.dir().join("job");
    fs::write(&file, "echo \"$0 $1\"; exit 4\n").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = file.display().to_string();
    let said = output(&server, &["run", "job", "--", &path, "now"]);
    assert_eq!(said, (4, format!("{path} now\n"), String::new()));
}

/// `dlock` as a child of a program that has done this to its signals.
fn below(server: &Server, perl: &str, words: &[&str]) -> Command {
    reset_signals();
    let mut command = Command::new("perl");
    command.args(["-MPOSIX", "-e", &format!("{perl}; exec @ARGV")]);
    command.arg(env!("CARGO_BIN_EXE_dlock"));
    command.env("DLOCK_URL", format!("redis://127.0.0.1:{}", server.port()));
    command.args(words).stdin(Stdio::null());
    command
}

/// What a parent has ignored or blocked for itself: exit codes are heard, and signals arrive.
#[test]
fn a_parent_with_signals_of_its_own() {
    let server = Server::start();
    let ignores = "$SIG{CHLD} = 'IGNORE'";
    let words = [
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "sh -c 'exit 3'; exit $(($? + 4))",
    ];
    let mut command = below(&server, ignores, &words);
    let ended = said(command.output().expect("an end"));
    assert_eq!(ended, (7, String::new(), String::new()));

    let blocks = "sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM, SIGCHLD, SIGINT, SIGCONT))";
    let run = Running::spawn(below(
        &server,
        blocks,
        &["run", "job", "--", "sleep", "300"],
    ));
    await_held(&server, "job");
    kill(run.pid(), Signal::SIGTERM).expect("it runs");
    assert_eq!(run.end(), (143, String::new(), String::new()));
    await_free(&server, "job");
}
