//! Cases that are played several at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

/// Plays cases in their order, `lanes` at a time. Returns the outcomes in that order.
pub fn in_lanes<Case: Sync, Outcome: Send>(
    lanes: usize,
    cases: &[Case],
    play: impl Fn(&Case) -> Outcome + Sync,
) -> Vec<Outcome> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(at) else { break };
                let outcome = play(case);
                let mut done = done.lock().expect("no lane panics with it");
                done.push((at, outcome));
            });
        }
    });
    let mut done = done.into_inner().expect("no lane has panicked");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

#[test]
fn outcomes_have_the_order_of_their_cases() {
    let doubled = in_lanes(3, &[4, 1, 3], |case| case * 2);
    assert_eq!(doubled, [8, 2, 6]);
}
