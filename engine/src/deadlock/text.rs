//! A circle as an error names it.

use crate::refusal::{escaped, Refusal};
use crate::types::Name;
use std::rc::Rc;

/// Steps of a circle that an error names.
pub(super) const STEPS_NAMED: usize = 8;

/// Bytes of an owner or key that an error shows.
const BYTES_NAMED: usize = 64;

/// One step of a circle: somebody waits for a lock that somebody holds, or is queued for before it.
#[derive(Debug)]
pub(crate) struct Step {
    /// The owner that waits.
    pub waiter: Rc<[u8]>,
    /// The lock that it waits for.
    pub name: Name,
    /// The owner that is in the way.
    pub blocker: Rc<[u8]>,
    /// Whether that is by a place in the queue; else by a hold.
    pub queued: bool,
}

/// A circle, as far as it is named.
#[derive(Debug)]
pub(crate) struct Circle {
    /// Its first steps.
    pub named: Vec<Step>,
    /// How many more there are.
    pub more: usize,
}

/// Returns the error for a second holder that wants to upgrade: each would wait for the other to leave.
pub(crate) fn two_upgrades(owner: &[u8], other: &[u8]) -> Refusal {
    Refusal::Deadlock(format!(
        "'{}' and '{}' hold the lock, and each waits for the other to release it",
        escaped(owner, BYTES_NAMED),
        escaped(other, BYTES_NAMED)
    ))
}

/// Returns the error for a circle. Keys that the caller may not read are masked.
pub(crate) fn deadlock(circle: &Circle, mut readable: impl FnMut(&Name) -> bool) -> Refusal {
    let named = circle.named.iter().map(|step| {
        let key = match readable(&step.name) {
            true => format!("'{}'", escaped(&step.name.key, BYTES_NAMED)),
            false => "a key".to_string(),
        };
        format!(
            "'{}' waits for {key} {} '{}'",
            escaped(&step.waiter, BYTES_NAMED),
            if step.queued { "behind" } else { "held by" },
            escaped(&step.blocker, BYTES_NAMED)
        )
    });
    let named = named.collect::<Vec<_>>().join(", ");
    Refusal::Deadlock(match circle.more {
        0 => named,
        more => format!("{named}, and {more} more"),
    })
}
