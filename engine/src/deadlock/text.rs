//! A circle as an error names it.

use crate::refusal::{escaped, Refusal, BYTES_NAMED};

/// Steps of a circle that an error names.
const STEPS_NAMED: usize = 8;

/// Returns the error for a second holder that wants to upgrade: each would wait for the other to leave.
pub(crate) fn two_upgrades(owner: &[u8], other: &[u8]) -> Refusal {
    Refusal::Deadlock(format!(
        "'{}' and '{}' hold the lock, and each waits for the other to release it",
        escaped(owner, BYTES_NAMED),
        escaped(other, BYTES_NAMED)
    ))
}

/// Returns the text for one step of a circle: an owner waits for a lock that another owner holds, or is queued for before it. A
/// key or an owner that the caller may not know is none.
pub(super) fn step(
    waiter: Option<&[u8]>,
    key: Option<&[u8]>,
    queued: bool,
    blocker: Option<&[u8]>,
) -> String {
    let named = |name: Option<&[u8]>, unnamed: &str| {
        name.map_or(unnamed.to_string(), |name| {
            format!("'{}'", escaped(name, BYTES_NAMED))
        })
    };
    format!(
        "{} waits for {} {} {}",
        named(waiter, "an owner"),
        named(key, "a key"),
        if queued { "behind" } else { "held by" },
        named(blocker, "an owner")
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
