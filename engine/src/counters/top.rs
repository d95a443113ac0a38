//! The locks that were waited for most, of however many there are.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi 2005): at most `KEPT` locks have a count. A lock without one takes over the lowest
//! count and adds to it: its count may be too high by that much, which is kept as its error.
//! So no count is too low, none is off by more than its error, and a lock with more than one in `KEPT` of all waits is
//! always here.

use crate::types::{Name, NameRef};
use std::collections::{BTreeSet, HashMap};
use std::mem;

/// How many locks have a count.
pub(super) const KEPT: usize = 1000;

/// Locks with longer names are not counted: names stay here while their locks are long gone.
const LONGEST_NAME: usize = 1024;

/// One lock that was waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The lock's name.
    pub name: Name,
    /// Places that were taken in its queue.
    pub waits: u64,
    /// By how much `waits` may be too high.
    pub error: u64,
    /// The time of all waits that ended while it was counted.
    pub total_us: u64,
    /// The longest of them.
    pub longest_us: u64,
}

/// The locks that were waited for most.
#[derive(Debug, Clone, Default)]
pub struct Top {
    kept: Vec<Hot>,
    at: HashMap<Name, usize>,
    // The lowest count first.
    by_waits: BTreeSet<(u64, usize)>,
    // What a lock that has no count may have had when another took its place, and others were forgotten since.
    floor: u64,
}

impl Top {
    /// Counts a new place in this lock's queue.
    pub fn queued(&mut self, name: NameRef) {
        if name.key.len() > LONGEST_NAME {
            return;
        }
        let name = name.to_owned();
        let at = match self.at.get(&name) {
            Some(at) => *at,
            None => self.make_room(&name),
        };
        let Some(hot) = self.kept.get_mut(at) else {
            return;
        };
        self.by_waits.remove(&(hot.waits, at));
        hot.waits += 1;
        self.by_waits.insert((hot.waits, at));
    }

    /// Adds the time of a wait for this lock that has ended.
    pub fn waited(&mut self, name: NameRef, us: u64) {
        // Looked up by a name of its own: only contended locks come here.
        let at = self.at.get(&name.to_owned());
        if let Some(hot) = at.and_then(|at| self.kept.get_mut(*at)) {
            hot.total_us = hot.total_us.saturating_add(us);
            hot.longest_us = hot.longest_us.max(us);
        }
    }

    /// Returns the locks that have a count, the highest first.
    pub fn ranked(&self) -> impl Iterator<Item = &Hot> {
        let highest_first = self.by_waits.iter().rev();
        highest_first.filter_map(|(_, at)| self.kept.get(*at))
    }

    /// Forgets the locks that are gone from this server.
    pub fn forget(&mut self, mut gone: impl FnMut(NameRef) -> bool) {
        let gone: Vec<bool> = (self.kept.iter())
            .map(|hot| gone(hot.name.as_ref()))
            .collect();
        if !gone.contains(&true) {
            return;
        }
        let lowest = self.by_waits.first().map(|(waits, _)| *waits);
        if let Some(lowest) = lowest.filter(|_| self.kept.len() >= KEPT) {
            self.floor = lowest;
        }
        let kept = mem::take(&mut self.kept).into_iter().zip(gone);
        self.at.clear();
        self.by_waits.clear();
        for (hot, _) in kept.filter(|(_, gone)| !gone) {
            self.by_waits.insert((hot.waits, self.kept.len()));
            self.at.insert(hot.name.clone(), self.kept.len());
            self.kept.push(hot);
        }
    }

    /// Gives this lock a count, a fresh one or the lowest of another lock; returns its position.
    fn make_room(&mut self, name: &Name) -> usize {
        let mut hot = Hot {
            name: name.clone(),
            waits: self.floor,
            error: self.floor,
            total_us: 0,
            longest_us: 0,
        };
        let lowest = self.by_waits.first().copied();
        let at = match lowest.filter(|_| self.kept.len() >= KEPT) {
            None => {
                self.kept.push(hot);
                self.kept.len() - 1
            }
            Some((waits, at)) => {
                (hot.waits, hot.error) = (waits, waits);
                if let Some(kept) = self.kept.get_mut(at) {
                    self.at.remove(&kept.name);
                    *kept = hot;
                }
                at
            }
        };
        self.at.insert(name.clone(), at);
        at
    }
}
