//! A circle as an error names it.

use crate::refusal::{escaped, Refusal};

/// Steps of a circle that an error names.
const STEPS_NAMED: usize = 8;

/// Bytes of an owner or key that an error shows.
const BYTES_NAMED: usize = 64;

/// Returns the error for a second holder that wants to upgrade: each would wait for the other to leave.
pub(crate) fn two_upgrades(owner: &[u8], other: &[u8]) -> Refusal {
    Refusal::Deadlock(format!(
        "'{}' and '{}' hold the lock, and each waits for the other to release it",
        escaped(owner, BYTES_NAMED),
        escaped(other, BYTES_NAMED)
    ))
}

/// Returns the text for one step of a circle: somebody waits for a lock that somebody holds, or is queued for before it. A key
/// that the caller may not read is none.
pub(super) fn step(waiter: &[u8], key: Option<&[u8]>, queued: bool, blocker: &[u8]) -> String {
    let key = key.map_or("a key".to_string(), |key| {
        format!("'{}'", escaped(key, BYTES_NAMED))
    });
    format!(
        "'{}' waits for {key} {} '{}'",
        escaped(waiter, BYTES_NAMED),
        if queued { "behind" } else { "held by" },
        escaped(blocker, BYTES_NAMED)
    )
}

/// Returns the error for a circle of these steps.
pub(super) fn circle(steps: impl ExactSizeIterator<Item = String>) -> Refusal {
    let more = steps.len().saturating_sub(STEPS_NAMED);
    let named: Vec<String> = steps.take(STEPS_NAMED).collect();
    let named = named.join(", ");
    Refusal::Deadlock(match more {
        0 => named,
        more => format!("{named}, and {more} more"),
    })
}
