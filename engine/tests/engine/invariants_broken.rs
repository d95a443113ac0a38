//! A broken invariant stops a test; a release build counts and reports it.

use dlock_engine::{broken, invariants};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

static TOLD: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_broken_invariant_is_heard() {
    invariants::set_hook(|text| {
        assert!(text.contains("a planted fault (engine/tests/"), "{text}");
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    let before = invariants::count();
    let stopped = catch_unwind(|| broken!("a planted fault")).is_err();
    let again = catch_unwind(|| broken!("a planted fault")).is_err();
    let counted = invariants::count() - before;
    let told = TOLD.load(Ordering::Relaxed);
    match cfg!(debug_assertions) {
        true => assert_eq!((stopped, again, counted, told), (true, true, 0, 0)),
        false => assert_eq!((stopped, again, counted, told), (false, false, 2, 2)),
    }
}
