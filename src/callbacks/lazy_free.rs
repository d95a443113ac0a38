//! Values that are gone, with more holders and tickets than can be freed in passing: a million take the main thread 0.2 s,
//! whoever says DEL or UNLINK. They are freed in steps.

use crate::ffi::cell::MainThread;
use crate::node::census;
use crate::node::time::timer;
use dlock_engine::Lock;

/// Holders and tickets up to which a value is freed at once, and that one step frees of a larger one: less than a millisecond.
const A_STEP: usize = 4096;

static REMAINS: MainThread<Vec<Lock>> = MainThread::new(Vec::new());

/// Frees a value, or keeps it to be freed in steps. On another thread, which nobody waits for, at once.
pub(crate) fn free_later(lock: Lock) {
    if lock.holders() + lock.queued() <= A_STEP || !census::in_main_thread() {
        return;
    }
    if let Some(mut remains) = REMAINS.borrow() {
        remains.push(lock);
        drop(remains);
        timer::soon();
    }
}

/// Frees one step of it. Returns true if there is more.
pub(crate) fn step() -> bool {
    let Some(mut remains) = REMAINS.borrow() else {
        return false;
    };
    let Some(lock) = remains.last_mut() else {
        return false;
    };
    if lock.shed(A_STEP) {
        remains.pop();
    }
    !remains.is_empty()
}
