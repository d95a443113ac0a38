//! What ends when: one ordered index over all watched locks.

use super::line::RequestId;
use super::{Millis, Name};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// Something that happens by itself at a time.
#[derive(Debug, Clone)]
pub enum Due {
    /// The earliest lease of a watched lock ends.
    Lease(Name),
    /// A request has waited as long as it wanted to.
    Wait(RequestId),
    /// The claim window of an absent ticket ends: the lock and the place's number.
    Window(Name, u64),
}

/// The handle of an entry, for taking it out again. The sequence number keeps entries of one millisecond apart, in order
/// of arrival; that it is never zero makes an optional handle as small as a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueKey {
    /// When the entry is due.
    pub at: Millis,
    sequence: NonZeroU64,
}

/// Entries in order of time.
#[derive(Debug, Default)]
pub struct Deadlines {
    index: BTreeMap<DueKey, Due>,
    sequence: u64,
}

impl Deadlines {
    /// Adds an entry that is due at `at`.
    pub fn add(&mut self, at: Millis, due: Due) -> DueKey {
        let sequence = NonZeroU64::MIN.saturating_add(self.sequence);
        self.sequence += 1;
        let key = DueKey { at, sequence };
        self.index.insert(key, due);
        key
    }

    /// Takes an entry out; one that has been taken already is no fault.
    pub fn remove(&mut self, key: DueKey) {
        self.index.remove(&key);
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The time of the earliest entry.
    pub fn next(&self) -> Option<Millis> {
        self.index.first_key_value().map(|(key, _)| key.at)
    }

    /// Takes out the earliest entry if it is due at `now`.
    pub fn pop(&mut self, now: Millis) -> Option<Due> {
        let first = self.index.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.index.clear();
    }
}
