//! Where in its loop the server is.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set from the event before the event loop sleeps until the one after.
static ASLEEP: AtomicBool = AtomicBool::new(false);

/// Returns true if the event loop sleeps, or is about to: it works off the last of an iteration.
pub(crate) fn asleep() -> bool {
    ASLEEP.load(Ordering::Relaxed)
}

/// Notes whether it does.
pub(crate) fn set_asleep(asleep: bool) {
    ASLEEP.store(asleep, Ordering::Relaxed);
}
