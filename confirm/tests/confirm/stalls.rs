//! Stalls of the process: what is noticed as one, and until when the count of replicas is old.

use dlock_confirm::Stalls;

/// Returns whether a stall is noticed if the last beat was at 10,000 and an event comes so much later.
fn is_noticed(later: u64) -> bool {
    let mut stalls = Stalls::new();
    stalls.on_beat(10_000);
    stalls.on_event(10_000 + later)
}

#[test]
fn a_second_without_a_beat_is_a_stall() {
    assert!(!is_noticed(999));
    assert!(is_noticed(1_000));
}

#[test]
fn a_server_that_has_just_started_has_not_stalled() {
    assert!(!Stalls::new().on_event(50_000));
}

/// The server's timer may fire before the module's event.
#[test]
fn the_first_beat_after_a_stall_does_not_hide_it() {
    let mut stalls = Stalls::new();
    stalls.on_beat(10_000);
    stalls.on_beat(15_000);
    assert!(stalls.on_event(15_001));
    assert!(!stalls.on_event(15_500), "it has not stalled since");
}

#[test]
fn replicas_are_counted_again_once_a_second() {
    let mut stalls = Stalls::new();
    assert_eq!(stalls.recounted_at(), None);
    stalls.await_recount(15_000);
    assert_eq!(stalls.recounted_at(), Some(16_100));
}
