//! The terminal of a job, and the process groups that share it, as a shell that runs jobs sees them.

use crate::processes;
use nix::errno::Errno;
use nix::sys::signal::{kill, SigSet, Signal};
use nix::unistd::{getpgid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp, Pid};
use std::fs::File;
use std::io::{self, IsTerminal};

/// The terminal that controls this session.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// Returns it, if there is one.
    pub(crate) fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty");
        file.ok().map(Terminal)
    }

    /// Returns the process group that reads from it.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.0).ok()
    }

    /// Returns whether that is this process's group.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(getpgrp())
    }

    /// Makes this process group the one that reads from it.
    pub(crate) fn give(&self, group: Pid) {
        // A process that is not in the foreground would be stopped for that.
        let mut stops = SigSet::empty();
        stops.add(Signal::SIGTTOU);
        let _ = stops.thread_block();
        let given = tcsetpgrp(&self.0, group);
        let _ = stops.thread_unblock();
        // The group may have ended.
        debug_assert!(given.is_ok() || given != Err(Errno::ENOTTY));
    }
}

/// Returns whether everything that a command reads and writes is a terminal: it is no part of a pipeline, which may have another
/// reader of the terminal.
pub(crate) fn is_all() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Returns whether a shell would continue this job if it stopped: a process outside of the group, in the same session, has started
/// it.
pub(crate) fn has_shell() -> bool {
    let (group, session) = (getpgrp(), getsid(None));
    let mut parent = getppid();
    while getpgid(Some(parent)) == Ok(group) {
        match processes::parent(parent) {
            Some(next) => parent = next,
            None => return false,
        }
    }
    parent.as_raw() > 1 && getsid(Some(parent)) == session
}

/// Sends a signal to the other processes of this group: the script that has started this one, the rest of the pipeline.
pub(crate) fn signal_others(signal: Signal) {
    let (own, group) = (getpid(), getpgrp());
    for process in processes::all().filter(|process| process.group == group && process.pid != own) {
        let _ = kill(process.pid, signal);
    }
}
