//! Waiting with a bound.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything immediate may take before a test gives up on it. Long, because a loaded machine is no fault of the module.
/// No test sets a narrower bound: the benchmark checks speed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two looks at a condition: well below what a test could notice, well above a round trip.
const INTERVAL: Duration = Duration::from_millis(1);

/// The same for a condition that may fail to hold.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within `timeout`; the message names `what`.
#[track_caller]
pub fn await_until(what: &str, timeout: Duration, condition: impl FnMut() -> bool) {
    await_every(INTERVAL, what, timeout, condition);
}

/// Waits until `condition` holds, with pauses for conditions that cost the servers much to look at. Returns false if it does not
/// hold within `bound`.
pub fn until(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Waits until `condition` holds, with a pause between two looks: for a condition that costs the servers much to look at.
///
/// # Panics
/// If it does not hold within `timeout`; the message names `what`.
#[track_caller]
pub fn await_every(
    pause: Duration,
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> bool,
) {
    let end = Instant::now() + timeout;
    while !condition() {
        assert!(
            Instant::now() < end,
            "gave up after {timeout:?} waiting until {what}"
        );
        thread::sleep(pause);
    }
}
