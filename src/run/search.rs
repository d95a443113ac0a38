//! The search for locks that have moved to another name (RENAME, MOVE).
//!
//! The server reports the name that a lock leaves, and not the one that it comes to. If a TTL ends the lock, that is enough. One
//! that the module must watch would stay for ever if nobody used it. So the module looks once through the keys of all databases,
//! in short steps, and marks each such lock that it does not know.

use super::state::State;
use crate::ffi::callbacks::scan::Scan;
use dlock_engine::{Lock, NameRef, Now, SteadyMs};
use std::time::{Duration, Instant};

/// How long one step takes, and how long after it the next one comes: about a quarter of a core, for as long as it runs.
const STEP: Duration = Duration::from_micros(500);
const PAUSE_MS: u64 = 2;

/// Calls of the server between two readings of the clock. Each passes a few keys.
const SCANNED_AT_ONCE: usize = 16;

/// The state of the search.
#[derive(Default)]
pub(super) struct Search {
    /// The database that is searched, and the place in it.
    running: Option<(u32, Scan)>,
    /// How many locks have moved and are not found.
    missing: usize,
    /// Whether a lock has moved since this search began: it may have come to where the search has been.
    again: bool,
    /// When the next step may run.
    pub(super) next_step: SteadyMs,
}

impl Search {
    /// Notes that a lock has moved, and begins to search for it.
    pub(super) fn begin(&mut self) {
        self.missing += 1;
        self.on_swap();
        self.running.get_or_insert_with(|| (0, Scan::begin()));
    }

    /// Notes that locks may have come to where the search has been.
    pub(super) fn on_swap(&mut self) {
        self.again = self.running.is_some();
    }

    /// Continues with the next database, or from the start, or ends.
    fn next(&mut self, databases: u32) {
        let next = self.running.as_ref().map_or(0, |(db, _)| db + 1);
        if next < databases {
            self.running = Some((next, Scan::begin()));
        } else if std::mem::take(&mut self.again) {
            self.running = Some((0, Scan::begin()));
        } else {
            *self = Search::default();
        }
    }
}

impl State {
    /// Runs one step of the search, if one is due. Returns true if something is left.
    pub(super) fn search_step(&mut self, now: Now) -> bool {
        if self.search.running.is_some() && now.steady() >= self.search.next_step {
            self.search.next_step = now.steady().after(PAUSE_MS);
            let begun = Instant::now();
            while self.search_some() && begun.elapsed() < STEP {}
        }
        self.search.running.is_some()
    }

    /// Searches the next keys. Returns false at the end of the search.
    fn search_some(&mut self) -> bool {
        let Search {
            running: Some((db, scan)),
            missing,
            ..
        } = &mut self.search
        else {
            return false;
        };
        let engine = &mut self.engine;
        let see = &mut |name: NameRef, lock: &Lock| {
            if lock.needs_watch() && !engine.watches(name) {
                engine.on_key_changed(name);
                *missing = missing.saturating_sub(1);
            }
        };
        let mut calls = 0..SCANNED_AT_ONCE;
        let ends = !calls.all(|_| self.keys.scan(*db, scan, see));
        if *missing == 0 {
            self.search = Search::default();
        } else if ends {
            self.search.next(self.settings.databases);
        }
        true
    }
}
