//! Signals: those that this process was started with, and those that it gets.

use crate::processes;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getpid;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::thread;

/// Undoes what a parent may have left behind: signals that are blocked would not end this process, and where SIGCHLD is ignored
/// it would not learn how a child has ended. To be called before there is another thread.
///
/// # Errors
/// The system refuses.
pub(crate) fn as_by_default() -> io::Result<()> {
    SigSet::all().thread_unblock()?;
    // Any handler does: it ends with exec, and leaves the default.
    signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// Ends this process by a signal, as if it had no handler.
pub(crate) fn end_by(signal: Signal) -> ! {
    // The first process of a container is not ended by a signal that it sends to itself.
    if getpid().as_raw() != 1 {
        let _ = signal_hook::low_level::emulate_default_handler(signal as i32);
    }
    std::process::exit(128 + signal as i32);
}

/// Calls `tell` with each signal that ends a program. A signal that this process was started to ignore (by `nohup`) stays ignored, here
/// and in the command.
///
/// # Errors
/// The system refuses.
pub(crate) fn heed(tell: impl Fn(Signal) + Send + 'static) -> io::Result<Heeded> {
    let heeded = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let heeded = heeded
        .into_iter()
        .filter(|signal| !processes::ignores(*signal));
    let mut signals = Signals::new(heeded)?;
    let handle = signals.handle();
    thread::spawn(move || {
        for signal in signals.forever() {
            if let Ok(signal) = Signal::try_from(signal) {
                tell(signal);
            }
        }
    });
    Ok(Heeded(handle))
}

/// The signals that are handled.
pub(crate) struct Heeded(Handle);

impl Heeded {
    /// Also handles the signals that stop a job and let it continue.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn also_stops(&self) -> io::Result<()> {
        for signal in [SIGTSTP, SIGCONT] {
            if !processes::ignores(signal) {
                self.0.add_signal(signal)?;
            }
        }
        Ok(())
    }
}
