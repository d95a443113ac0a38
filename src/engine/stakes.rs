//! Who holds something that others wait for.
//!
//! A request can only close a circle of waiting owners if its owner has a stake: a hold of a lock that somebody is queued
//! for, or a place in another queue. Most that wait have none, and this index tells so in a look-up or two, however
//! many hold and wait. Locks with a queue keep it; uncontended locks know nothing of it.

use super::Name;
use std::collections::hash_map::{Entry as Slot, RandomState};
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;

/// Holders whose stakes are kept one by one. A lock with more is listed as a whole, and asked itself: to keep account of
/// tens of thousands at each change would cost more than that.
const FEW: usize = 16;

/// What one lock has put down.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Stakes {
    /// Nothing: nobody is queued, or nobody holds.
    #[default]
    None,
    /// Its only holder, by the hash of the name.
    One(u64),
    /// Its few holders.
    Few(Vec<u64>),
    /// That it has many.
    Many,
}

/// All stakes.
#[derive(Debug, Default)]
pub struct StakeIndex {
    hash: RandomState,
    holders: HashMap<u64, u32>,
    crowded: BTreeSet<Name>,
}

impl StakeIndex {
    /// Brings what a lock has put down up to date with its holders; none are given when nobody is queued.
    pub fn put<'h>(
        &mut self,
        name: impl FnOnce() -> Name,
        count: usize,
        owners: impl Iterator<Item = &'h [u8]>,
        put: &mut Stakes,
    ) {
        let hash = |owner: &[u8]| self.hash.hash_one(owner);
        let now = match count {
            0 => Stakes::None,
            1 => owners.map(hash).next().map_or(Stakes::None, Stakes::One),
            2..=FEW => Stakes::Few(owners.map(hash).collect()),
            _ => Stakes::Many,
        };
        if now == *put {
            return;
        }
        let before = std::mem::replace(put, now);
        let name = match (&before, &*put) {
            (Stakes::Many, _) | (_, Stakes::Many) => Some(name()),
            _ => None,
        };
        self.change(&before, name.as_ref(), false);
        self.change(put, name.as_ref(), true);
    }

    /// Takes back all that a lock has put down.
    pub fn take_back(&mut self, name: impl FnOnce() -> Name, put: &mut Stakes) {
        self.put(name, 0, std::iter::empty(), put);
    }

    /// Whether this owner is known to hold a lock with a queue.
    pub fn has(&self, owner: &[u8]) -> bool {
        !self.holders.is_empty() && self.holders.contains_key(&self.hash.hash_one(owner))
    }

    /// The locks that have a queue and many holders.
    pub fn crowded(&self) -> impl Iterator<Item = &Name> {
        self.crowded.iter()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = StakeIndex::default();
    }

    fn change(&mut self, stakes: &Stakes, name: Option<&Name>, add: bool) {
        let hashes = match stakes {
            Stakes::None => &[],
            Stakes::One(hash) => std::slice::from_ref(hash),
            Stakes::Few(hashes) => hashes.as_slice(),
            Stakes::Many => {
                match name {
                    Some(name) if add => drop(self.crowded.insert(name.clone())),
                    Some(name) => drop(self.crowded.remove(name)),
                    None => {}
                }
                return;
            }
        };
        for hash in hashes {
            match self.holders.entry(*hash) {
                Slot::Vacant(slot) if add => drop(slot.insert(1)),
                Slot::Vacant(_) => {}
                Slot::Occupied(mut slot) if add => *slot.get_mut() += 1,
                Slot::Occupied(mut slot) if *slot.get() > 1 => *slot.get_mut() -= 1,
                Slot::Occupied(slot) => drop(slot.remove()),
            }
        }
    }
}
