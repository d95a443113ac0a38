//! Deadlines, in the order of a clock.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// The handle of an entry, for taking it out again. The sequence number keeps entries of one moment apart, in order
/// of arrival; that it is never zero makes an optional handle as small as a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueKey<At> {
    /// When the entry is due.
    pub at: At,
    sequence: NonZeroU64,
}

/// Entries in the order of the points in time at which they are due.
#[derive(Debug, Clone)]
pub struct Deadlines<At, Due> {
    index: BTreeMap<DueKey<At>, Due>,
    sequence: u64,
}

impl<At, Due> Default for Deadlines<At, Due> {
    fn default() -> Self {
        Deadlines {
            index: BTreeMap::new(),
            sequence: 0,
        }
    }
}

impl<At: Copy + Ord, Due> Deadlines<At, Due> {
    /// Adds an entry that is due at `at`; returns its handle.
    pub fn add(&mut self, at: At, due: Due) -> DueKey<At> {
        let sequence = NonZeroU64::MIN.saturating_add(self.sequence);
        self.sequence += 1;
        let key = DueKey { at, sequence };
        self.index.insert(key, due);
        key
    }

    /// Takes the handle out of `key`, and removes its entry if it is still there.
    pub fn clear(&mut self, key: &mut Option<DueKey<At>>) {
        if let Some(key) = key.take() {
            self.remove(&key);
        }
    }

    /// Removes an entry if it is still there.
    pub fn remove(&mut self, key: &DueKey<At>) {
        self.index.remove(key);
    }

    /// Returns the time of the earliest entry.
    pub fn next(&self) -> Option<At> {
        self.index.first_key_value().map(|(key, _)| key.at)
    }

    /// Takes out the earliest entry if it is due at `now`.
    pub fn pop(&mut self, now: At) -> Option<Due> {
        let first = self.index.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }
}
