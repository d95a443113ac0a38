//! The end of a panic, at the callback of the server in which it happens.

use super::log;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a panic has left the state in doubt.
static POISONED: AtomicBool = AtomicBool::new(false);

/// Whether the process ends then: `dlock.on-panic` is `abort`.
static ABORTS: AtomicBool = AtomicBool::new(false);

/// Sets whether the process ends with the first panic.
pub(crate) fn set_aborts(aborts: bool) {
    ABORTS.store(aborts, Ordering::Relaxed);
}

/// Does the work of a callback of the server. A panic ends here. Its half-done work may have been replicated, so the module
/// decides nothing from then on; the log and every command say so.
///
/// Returns what the work returns, or the default after a panic.
pub(crate) fn catch_panic<T: Default>(work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(_) => poison(),
    }
}

#[cold]
fn poison<T: Default>() -> T {
    if !POISONED.swap(true, Ordering::Relaxed) {
        if ABORTS.load(Ordering::Relaxed) {
            log::warning("dlock ends the server, so that a replica can take over (dlock.on-panic)");
            std::process::abort();
        }
        log::warning("dlock grants and releases nothing until the server restarts");
    }
    T::default()
}

/// Returns true once a panic has happened.
pub(crate) fn poisoned() -> bool {
    POISONED.load(Ordering::Relaxed)
}
