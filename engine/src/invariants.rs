//! Reporting of broken invariants, so that a bug is logged rather than showing up as a waiter that never wakes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

static BROKEN: AtomicU64 = AtomicU64::new(0);
static HOOK: OnceLock<fn(&str)> = OnceLock::new();

/// Reports a broken invariant. A build with debug assertions panics, which stops a test. In production it is counted and passed to
/// the hook, and the code continues as if there were nothing to do.
///
/// The text states the invariant.
#[macro_export]
macro_rules! broken {
    ($expected:literal) => {
        $crate::invariants::report(concat!($expected, " (", file!(), ":", line!(), ")"))
    };
}

// `macro_export` puts the macro at the root of the crate. With this, files import it from here, where it is defined.
pub use broken;

/// Returns how often an invariant was found broken.
pub fn count() -> u64 {
    BROKEN.load(Ordering::Relaxed)
}

/// Sets the function that receives broken invariants. Of all reports, it gets the first, second, fourth, eighth and so on. A second
/// call changes nothing.
pub fn set_hook(hook: fn(&str)) {
    // A module that is loaded a second time comes with the same one.
    let _ = HOOK.set(hook);
}

/// Reports a broken invariant, for [`broken!`].
#[cold]
#[inline(never)]
pub fn report(expected: &'static str) {
    if cfg!(debug_assertions) {
        panic!("broken invariant: {expected}");
    }
    let count = BROKEN.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(hook) = HOOK.get().filter(|_| count.is_power_of_two()) {
        hook(expected);
    }
}
