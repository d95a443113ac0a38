//! The flight recorder: what was not ordinary, in memory that does not grow.
//!
//! It has no rule of its own about locks. The code that ends a hold or a wait, or refuses a request, reports to it:
//! `holds::HoldTable::log_hold`, and in `Engine` `log_wait`, `log_long_wait`, `log_lapse` and `log_refusal`. It keeps what an operator
//! would ask about afterwards.

mod entry;

pub use crate::queue::Waiting;
pub use entry::{Entry, How, Origin, Subject};

use crate::types::{ClientId, Millis, Now, Token};
use std::collections::VecDeque;

/// The most bytes that all entries take together.
const MOST_BYTES: usize = 4 << 20;

/// Locks with longer names have no entries: names stay here while their locks are long gone.
const LONGEST_NAME: usize = 1024;

/// The last entries, the oldest first.
#[derive(Debug, Clone)]
pub struct Log {
    entries: VecDeque<Entry>,
    bytes: usize,
    // How many entries there have been.
    count: u64,
    // For how many of the newest entries `note_origins` has not yet asked where their connections come from.
    unseen: usize,
    // How many entries are kept at most.
    most: usize,
    // From how many microseconds on a hold or a wait is long.
    long_us: u64,
}

impl Default for Log {
    /// Makes an empty log with the defaults of the configuration table.
    fn default() -> Log {
        Log {
            entries: VecDeque::new(),
            bytes: 0,
            count: 0,
            unseen: 0,
            most: 1024,
            long_us: 10_000_000,
        }
    }
}

impl Log {
    /// Takes the settings: how many entries are kept, and from how many milliseconds on a hold or a wait is long; none: never.
    pub(crate) fn configure(&mut self, most: usize, longer_than_ms: Option<Millis>) {
        self.most = most;
        self.long_us = longer_than_ms.map_or(u64::MAX, |ms| ms.saturating_mul(1000));
        self.shorten();
    }

    /// Returns true if a hold with this token that ends now was long. Each release of a lock calls it, so it is inlined.
    #[inline(always)]
    pub(crate) fn is_long_hold(&self, token: Token, now: Now) -> bool {
        self.is_long(now.us.saturating_sub(token.0))
    }

    /// Returns true if this number of microseconds is long.
    #[inline(always)]
    pub(crate) fn is_long(&self, us: u64) -> bool {
        us >= self.long_us
    }

    /// Returns how many entries are kept at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Gives numbers to this many entries of one event and keeps none: they would only push each other out.
    pub(crate) fn skip(&mut self, entries: usize) {
        self.count += entries as u64;
    }

    /// Adds an entry.
    #[cold]
    pub(crate) fn add(&mut self, now: Now, subject: Subject, how: How, waiting: Waiting) {
        if self.most == 0 || subject.name.key.len() > LONGEST_NAME {
            return;
        }
        self.count += 1;
        let entry = Entry::new(self.count, now, subject, how, waiting);
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        self.unseen += 1;
        self.shorten();
    }

    fn shorten(&mut self) {
        while self.entries.len() > self.most || self.bytes > MOST_BYTES {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        self.unseen = self.unseen.min(self.entries.len());
    }

    /// Returns the entries, the newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// Forgets all entries. Their numbers are not used again.
    pub(crate) fn clear(&mut self) {
        self.entries = VecDeque::new();
        (self.bytes, self.unseen) = (0, 0);
    }

    /// Returns true if there are entries that [`Log::note_origins`] has not seen.
    #[inline(always)]
    pub(crate) fn has_unseen(&self) -> bool {
        self.unseen > 0
    }

    /// Asks where the connections of the new entries come from, and notes it.
    pub(crate) fn note_origins(&mut self, mut origin: impl FnMut(ClientId) -> Option<Origin>) {
        let first = self.entries.len() - self.unseen;
        self.unseen = 0;
        for entry in self.entries.range_mut(first..) {
            let client = entry.subject.client;
            if client != ClientId::NONE {
                self.bytes -= entry.bytes();
                entry.origin = origin(client);
                self.bytes += entry.bytes();
            }
        }
        self.shorten();
    }
}
