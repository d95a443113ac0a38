//! Where a panic stops: at the callback of the server in which it happens.

use super::log;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// An unexpected panic left the state in doubt.
static POISONED: AtomicBool = AtomicBool::new(false);

/// Does the work of a callback of the server. A panic ends here: what it has left half done may have been replicated, so
/// nothing is decided any more; the log says so, and every command.
///
/// Returns what the work returns, or the default after a panic.
pub fn catch_panic<T: Default>(work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(_) => poison(),
    }
}

#[cold]
fn poison<T: Default>() -> T {
    if !POISONED.swap(true, Ordering::Relaxed) {
        log::warning("dlock grants and releases nothing until the server restarts");
    }
    T::default()
}

/// Returns true once a panic has happened.
pub fn poisoned() -> bool {
    POISONED.load(Ordering::Relaxed)
}
