//! What clients believed of locks, and the one judge of it: when did more owners believe in a lock than it allows?

use std::collections::{BTreeMap, HashMap, HashSet};

use nix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};

/// An instant or a length, in microseconds.
pub type Micros = u64;

/// A millisecond.
pub const MILLISECOND: Micros = 1_000;

/// A second.
pub const SECOND: Micros = 1_000_000;

/// Returns the time of the one monotonic clock of this machine, which programs in other languages also read.
///
/// # Panics
/// If the machine has none.
pub fn now() -> Micros {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux and macOS has it");
    time.tv_sec() as Micros * SECOND + time.tv_nsec() as Micros / 1_000
}

/// A time in which an owner believed that it held a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Belief {
    /// The lock.
    pub lock: String,
    /// The owner.
    pub owner: String,
    /// The token, if it matters.
    pub token: u64,
    /// The most owners that this one allows; 0 means no bound.
    pub limit: u64,
    /// When the request was sent.
    pub asked: Micros,
    /// When it began to work.
    pub from: Micros,
    /// When it stopped: it released the lock, its lease was over, or it learned that it had lost it.
    pub until: Micros,
    /// Why it stopped.
    pub end: End,
    /// The door of the server that granted it, if it matters.
    pub server: u16,
    /// Whether it was believed only after a renewal. Otherwise it counts from the granted request.
    pub renewed: bool,
}

/// Why an owner stopped believing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It released the lock.
    Released,
    /// Its lease was over, by its last answer.
    RanOut,
    /// A server answered that it did not hold the lock, before its lease was over.
    Lost,
    /// It was granted the lock, but could not confirm that, and never believed.
    Unconfirmed,
    /// Its release was not answered, or too late to tell.
    Unknown,
}

impl Belief {
    /// Returns the belief of an owner that allows no other, and released the lock.
    pub fn new(
        lock: impl Into<String>,
        owner: impl Into<String>,
        from: Micros,
        until: Micros,
    ) -> Belief {
        Belief {
            lock: lock.into(),
            owner: owner.into(),
            token: 0,
            limit: 1,
            asked: from,
            from,
            until,
            end: End::Released,
            server: 0,
            renewed: false,
        }
    }
}

/// Times in which more owners believed in a lock than one of them allows, over all locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// How often that began.
    pub times: usize,
    /// Beliefs that began while the owners that believed already left no room.
    pub beside: usize,
    /// How long it lasted in all.
    pub total: Micros,
    /// The longest of these times.
    pub longest: Micros,
}

/// Judges beliefs. One that ends when it begins is none.
pub fn overlap(beliefs: &[Belief]) -> Overlap {
    let mut locks: HashMap<&str, Vec<&Belief>> = HashMap::new();
    for belief in beliefs.iter().filter(|belief| belief.from < belief.until) {
        locks.entry(&belief.lock).or_default().push(belief);
    }
    let mut found = Overlap::default();
    for of_one in locks.values() {
        found.add(of_one);
    }
    found
}

impl Overlap {
    fn add(&mut self, beliefs: &[&Belief]) {
        // At each instant of a change: the ends first, since an owner that takes over does not overlap with the one before.
        let mut changes: BTreeMap<(Micros, bool), Vec<usize>> = BTreeMap::new();
        for (index, belief) in beliefs.iter().enumerate() {
            for change in [(belief.from, true), (belief.until, false)] {
                changes.entry(change).or_default().push(index);
            }
        }
        let mut holders: Vec<usize> = Vec::new();
        let mut broken_since = None;
        for ((at, begins), indexes) in changes {
            if !begins {
                holders.retain(|index| !indexes.contains(index));
            }
            for index in indexes.into_iter().filter(|_| begins) {
                holders.push(index);
                self.beside += usize::from(too_many(beliefs, &holders));
            }
            match (too_many(beliefs, &holders), broken_since) {
                (true, None) => broken_since = Some(at),
                (false, Some(since)) => {
                    self.times += 1;
                    self.total += at - since;
                    self.longest = self.longest.max(at - since);
                    broken_since = None;
                }
                _ => {}
            }
        }
    }
}

fn too_many(beliefs: &[&Belief], holders: &[usize]) -> bool {
    let holders = holders.iter().map(|index| beliefs[*index]);
    let limits = holders.clone().map(|holder| holder.limit);
    let strictest = limits.filter(|limit| *limit > 0).min();
    let owners: HashSet<&str> = holders.map(|holder| &*holder.owner).collect();
    strictest.is_some_and(|strictest| owners.len() as u64 > strictest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(beliefs: &[Belief], times: usize, beside: usize, total: Micros, longest: Micros) {
        let expected = Overlap {
            times,
            beside,
            total,
            longest,
        };
        assert_eq!(overlap(beliefs), expected);
    }

    fn belief(owner: &str, from: Micros, until: Micros) -> Belief {
        Belief::new("k", owner, from, until)
    }

    #[test]
    fn two_owners_at_once_are_found_and_measured() {
        check(&[belief("a", 0, 10), belief("b", 7, 12)], 1, 1, 3, 3);
    }

    #[test]
    fn one_inside_the_other_again_and_again() {
        let beliefs = [
            belief("a", 0, 10),
            belief("b", 2, 3),
            belief("c", 5, 9),
            belief("d", 9, 20),
        ];
        check(&beliefs, 3, 3, 6, 4);
    }

    #[test]
    fn three_at_once_are_one_time_and_two_that_came_beside() {
        let beliefs = [belief("a", 0, 10), belief("b", 2, 8), belief("c", 3, 9)];
        check(&beliefs, 1, 2, 7, 7);
    }

    #[test]
    fn one_after_the_other_is_right() {
        let beliefs = [belief("a", 0, 10), belief("b", 10, 12), belief("a", 12, 13)];
        check(&beliefs, 0, 0, 0, 0);
    }

    #[test]
    fn an_owner_is_not_beside_itself() {
        check(&[belief("a", 1, 4), belief("a", 2, 5)], 0, 0, 0, 0);
    }

    #[test]
    fn a_grant_that_came_after_its_lease_is_no_belief() {
        check(&[belief("a", 0, 10), belief("b", 5, 5)], 0, 0, 0, 0);
    }

    #[test]
    fn locks_are_looked_at_one_by_one() {
        let other = Belief::new("l", "b", 7, 12);
        check(&[belief("a", 0, 10), other], 0, 0, 0, 0);
    }

    #[test]
    fn a_semaphore_takes_as_many_as_its_limit() {
        let mut beliefs = [belief("a", 0, 10), belief("b", 0, 10), belief("c", 4, 6)];
        for belief in &mut beliefs {
            belief.limit = 3;
        }
        check(&beliefs, 0, 0, 0, 0);
        beliefs[1].limit = 2;
        check(&beliefs, 1, 1, 2, 2);
    }

    #[test]
    fn readers_share_but_not_with_a_writer() {
        let mut beliefs = vec![belief("a", 0, 10), belief("b", 0, 10)];
        for belief in &mut beliefs {
            belief.limit = 0;
        }
        check(&beliefs, 0, 0, 0, 0);
        beliefs.push(belief("writer", 9, 11));
        check(&beliefs, 1, 1, 1, 1);
    }
}
