//! The command that works under a lock.

use nix::sys::signal::{kill, killpg, Signal};
use nix::unistd::Pid;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread;

/// A command that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pid: Pid,
    // It leads a process group of its own.
    leads: bool,
}

impl Child {
    /// Starts it, and has its end told by `ended`. `leads`: it gets a process group of its own, so that the children of a shell
    /// hear signals, too. In a terminal they are in the group that this sends its signals to.
    ///
    /// # Errors
    /// It cannot be run.
    pub(crate) fn start(
        command: &mut Command,
        leads: bool,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> io::Result<Child> {
        if leads {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32);
        thread::spawn(move || ended(child.wait()));
        Ok(Child { pid, leads })
    }

    /// Sends it a signal. Whoever has ended hears it no more.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = match self.leads {
            true => killpg(self.pid, signal),
            false => kill(self.pid, signal),
        };
    }
}

/// The exit code of a shell for this end: 128 + n for signal n.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// The exit code where a command cannot be run.
pub(crate) fn code_of(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// Has signals told that are meant for the command.
pub(crate) fn heed_signals<T: Send + 'static>(
    told: Sender<T>,
    news: fn(Signal) -> T,
) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals
            .forever()
            .filter_map(|signal| Signal::try_from(signal).ok())
        {
            if told.send(news(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
