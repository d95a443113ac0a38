//! Who holds something that others wait for.
//!
//! A request can only close a circle of waiting owners if its owner has a stake: a hold of a lock that somebody is queued
//! for, or a place in another queue. Most that wait have none, and this index tells so in a look-up or two, however
//! many hold and wait. A lock with a queue also keeps here what a search for circles must know of its holders, so that it
//! opens no keys. Uncontended locks know nothing of it.

use super::index::ByNumber;
use super::lock::Hold;
use super::{Limit, Name};
use std::collections::hash_map::Entry as Slot;
use std::collections::BTreeSet;

/// Holders whose stakes are kept one by one. A lock with more is listed as a whole, and asked itself: to keep account of
/// tens of thousands at each change would cost more than that.
const FEW: usize = 16;

/// A holder as far as circles are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stake {
    /// The holder, by the hash of its name (see `Requests::hash`).
    pub owner: u64,
    /// The limit it holds with.
    pub limit: Limit,
    /// The connection that last took or entered the lock.
    pub client: u64,
}

impl Stake {
    /// What a hold is to circles.
    pub fn of(hold: &Hold, hash: impl FnOnce(&[u8]) -> u64) -> Stake {
        Stake {
            owner: hash(hold.owner),
            limit: hold.limit,
            client: hold.client,
        }
    }
}

/// What one lock has put down.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Stakes {
    /// Nothing: nobody is queued, or nobody holds.
    #[default]
    None,
    /// Its only holder.
    One(Stake),
    /// Its few holders.
    Few(Vec<Stake>),
    /// That it has many.
    Many,
}

impl Stakes {
    /// The holders, where they were put down one by one.
    pub fn each(&self) -> Option<&[Stake]> {
        match self {
            Stakes::None | Stakes::Many => None,
            Stakes::One(stake) => Some(std::slice::from_ref(stake)),
            Stakes::Few(stakes) => Some(stakes),
        }
    }
}

/// All stakes.
#[derive(Debug, Default)]
pub struct StakeIndex {
    holders: ByNumber<u32>,
    crowded: BTreeSet<Name>,
}

impl StakeIndex {
    /// Brings what a lock has put down up to date with its holders; none are given when nobody is queued.
    pub fn put(
        &mut self,
        name: impl FnOnce() -> Name,
        count: usize,
        mut holders: impl Iterator<Item = Stake>,
        put: &mut Stakes,
    ) {
        let now = match count {
            0 => Stakes::None,
            1 => holders.next().map_or(Stakes::None, Stakes::One),
            2..=FEW => Stakes::Few(holders.collect()),
            _ => Stakes::Many,
        };
        if now == *put {
            return;
        }
        let before = std::mem::replace(put, now);
        let crowds = (before == Stakes::Many, *put == Stakes::Many);
        match crowds {
            (false, true) => drop(self.crowded.insert(name())),
            (true, false) => drop(self.crowded.remove(&name())),
            _ => {}
        }
        for stake in put.each().unwrap_or_default() {
            *self.holders.entry(stake.owner).or_default() += 1;
        }
        for stake in before.each().unwrap_or_default() {
            if let Slot::Occupied(mut count) = self.holders.entry(stake.owner) {
                match count.get() {
                    0 | 1 => drop(count.remove()),
                    _ => *count.get_mut() -= 1,
                }
            }
        }
    }

    /// Takes back all that a lock has put down.
    pub fn take_back(&mut self, name: impl FnOnce() -> Name, put: &mut Stakes) {
        self.put(name, 0, std::iter::empty(), put);
    }

    /// Whether this owner is known to hold a lock with a queue.
    pub fn has(&self, owner: u64) -> bool {
        self.holders.contains_key(&owner)
    }

    /// The locks that have a queue and many holders.
    pub fn crowded(&self) -> impl Iterator<Item = &Name> {
        self.crowded.iter()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = StakeIndex::default();
    }
}
