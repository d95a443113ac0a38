//! Who holds something that others wait for.
//!
//! A request can only close a circle of waiting owners if somebody may wait for its owner: if that holds a lock that others
//! are queued for, or has a place in another queue. Most that wait have neither, and this index tells so in a look-up or two,
//! however many hold and wait. A lock with a queue also records here what a search for circles must know of its holders, so
//! that the search opens no keys. Uncontended locks know nothing of it.

use super::LockId;
use crate::collections::index::ByNumber;
use crate::lock::Hold;
use crate::types::{Limit, OwnerHash};
use std::collections::hash_map::Entry as Slot;
use std::collections::BTreeSet;

/// Holders of one lock that are recorded one by one. A lock with more is listed as a whole, and asked itself: to keep account
/// of tens of thousands at each change would cost more than that.
pub(crate) const MOST_RECORDED: usize = 16;

/// A holder as far as circles are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockingHolder {
    /// Who.
    pub owner: OwnerHash,
    /// The limit it holds with.
    pub limit: Limit,
}

impl BlockingHolder {
    /// What a hold is to circles.
    pub(crate) fn of(hold: &Hold, hash: impl FnOnce(&[u8]) -> OwnerHash) -> BlockingHolder {
        BlockingHolder {
            owner: hash(hold.owner),
            limit: hold.limit,
        }
    }
}

/// What is recorded of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum BlockingHolders {
    /// Nothing: nobody is queued, or nobody holds.
    #[default]
    None,
    /// Its only holder.
    One(BlockingHolder),
    /// Its holders, in the order of the lock.
    Some(Vec<BlockingHolder>),
    /// That there are too many to record.
    Crowd,
}

impl BlockingHolders {
    /// The holders, where they are recorded one by one.
    pub(crate) fn each(&self) -> Option<&[BlockingHolder]> {
        match self {
            BlockingHolders::Crowd => None,
            BlockingHolders::None => Some(&[]),
            BlockingHolders::One(holder) => Some(std::slice::from_ref(holder)),
            BlockingHolders::Some(holders) => Some(holders),
        }
    }
}

/// All blocking holders.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockingIndex {
    // How many recorded locks an owner holds.
    owners: ByNumber<OwnerHash, u32>,
    crowded: BTreeSet<LockId>,
}

impl BlockingIndex {
    /// Brings what is recorded of a lock up to date with its holders; none are given when nobody is queued.
    pub(crate) fn record(
        &mut self,
        lock: LockId,
        count: usize,
        mut holders: impl Iterator<Item = BlockingHolder>,
        recorded: &mut BlockingHolders,
    ) {
        let now = match count {
            0 => BlockingHolders::None,
            1 => holders
                .next()
                .map_or(BlockingHolders::None, BlockingHolders::One),
            2..=MOST_RECORDED => BlockingHolders::Some(holders.collect()),
            _ => BlockingHolders::Crowd,
        };
        if now == *recorded {
            return;
        }
        match now {
            BlockingHolders::Crowd => self.crowded.insert(lock),
            _ => self.crowded.remove(&lock),
        };
        for holder in now.each().unwrap_or_default() {
            *self.owners.entry(holder.owner).or_default() += 1;
        }
        for holder in recorded.each().unwrap_or_default() {
            if let Slot::Occupied(mut count) = self.owners.entry(holder.owner) {
                match count.get() {
                    0 | 1 => drop(count.remove()),
                    _ => *count.get_mut() -= 1,
                }
            }
        }
        *recorded = now;
    }

    /// Clears what is recorded of a lock.
    pub(crate) fn clear(&mut self, lock: LockId, recorded: &mut BlockingHolders) {
        self.record(lock, 0, std::iter::empty(), recorded);
    }

    /// Returns true if this owner is known to hold a lock that others are queued for.
    pub(crate) fn has(&self, owner: OwnerHash) -> bool {
        self.owners.contains_key(&owner)
    }

    /// The locks that have a queue and more holders than are recorded.
    pub(crate) fn crowded(&self) -> impl Iterator<Item = LockId> + '_ {
        self.crowded.iter().copied()
    }
}
