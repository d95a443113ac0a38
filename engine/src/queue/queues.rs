//! All wait queues, by number, by name, and in the order of a scan; and the watch over their locks.

// Positions are those of the list's own, which the map of names gives.
#![allow(clippy::indexing_slicing)]

use super::deadlines::Deadlines;
use super::place::Place;
use super::wait_queue::{Departed, WaitQueue};
use super::LockId;
use crate::collections::scan_order::ScanOrder;
use crate::collections::shrink_if_empty;
use crate::types::{Arrival, Name, NameRef, WallMs};
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::ops::Bound::{self, Unbounded};
use std::rc::Rc;

/// All wait queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitQueues {
    slots: Vec<Slot>,
    free: Vec<u32>,
    dbs: Vec<Db>,
    len: usize,
    // How many places there are in all of them.
    places: usize,
    // The earliest lease of each watched lock.
    leases: Deadlines<WallMs, LockId>,
    // Locks that are waited for and have no value.
    awaited: BTreeSet<LockId>,
    // Stands in for the queue of a lock without one.
    empty: WaitQueue,
}

#[derive(Debug, Clone)]
struct Slot {
    generation: NonZeroU32,
    queue: Option<Box<WaitQueue>>,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            generation: NonZeroU32::MIN,
            queue: None,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Db {
    by_key: HashMap<Rc<[u8]>, LockId>,
    // The keys once more, for scans.
    order: ScanOrder,
}

impl WaitQueues {
    /// Returns true if no lock has a queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of the lock with this name, if it has a queue. In a server without a contended lock none has.
    #[inline(always)]
    pub(crate) fn id(&self, name: NameRef) -> Option<LockId> {
        match self.len {
            0 => None,
            _ => self.look_up(name),
        }
    }

    #[inline(never)]
    fn look_up(&self, name: NameRef) -> Option<LockId> {
        let db = self.dbs.get(name.db as usize)?;
        db.by_key.get(name.key).copied()
    }

    /// Returns the number of the lock with this name; makes its queue if there is none.
    pub(crate) fn id_or_new(&mut self, name: NameRef) -> LockId {
        match self.id(name) {
            Some(id) => id,
            None => self.add(name.to_owned()),
        }
    }

    fn add(&mut self, name: Name) -> LockId {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        if index as usize == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index as usize];
        let id = LockId {
            index,
            generation: slot.generation,
        };
        let db = name.db as usize;
        if self.dbs.len() <= db {
            self.dbs.resize_with(db + 1, Db::default);
        }
        self.dbs[db].by_key.insert(name.key.clone(), id);
        self.dbs[db].order.insert(&name.key);
        slot.queue = Some(Box::new(WaitQueue::new(name)));
        self.len += 1;
        id
    }

    /// Returns the queue with this number.
    pub(crate) fn get(&self, id: LockId) -> Option<&WaitQueue> {
        let slot = self.slots.get(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref().filter(|_| current)
    }

    /// Returns the queue with this number.
    pub(crate) fn get_mut(&mut self, id: LockId) -> Option<&mut WaitQueue> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref_mut().filter(|_| current)
    }

    /// Returns the queue of a lock; an empty one if it has none.
    pub(crate) fn at(&self, id: impl Into<Option<LockId>>) -> &WaitQueue {
        let queue = id.into().and_then(|id| self.get(id));
        queue.unwrap_or(&self.empty)
    }

    /// Returns a place in a queue.
    pub(crate) fn place_mut(&mut self, id: LockId, number: Arrival) -> Option<&mut Place> {
        self.get_mut(id)?.place_mut(number)
    }

    /// Returns how many places there are over all locks.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Puts a place into a queue, as [`WaitQueue::insert`] does.
    pub(crate) fn insert(&mut self, id: LockId, number: Arrival, place: Place) -> bool {
        let queue = self.get_mut(id);
        let inserted = queue.is_some_and(|queue| queue.insert(number, place));
        self.places += usize::from(inserted);
        inserted
    }

    /// Takes a place out of its queue.
    pub(crate) fn remove_place(&mut self, id: LockId, number: Arrival) -> Option<Box<Place>> {
        let place = self.get_mut(id)?.remove(number)?;
        self.places -= 1;
        Some(place)
    }

    /// Takes all places for which `leaves` is true out of a queue, in one pass.
    pub(crate) fn split_off(
        &mut self,
        id: LockId,
        leaves: impl Fn(Arrival, &Place) -> bool,
    ) -> Option<Departed> {
        let places = self.get_mut(id)?.split_off(leaves);
        self.places -= places.len();
        (places.len() > 0).then_some(places)
    }

    /// Sets the watch over a lock: when its earliest lease ends, and whether it has waiters and no value.
    pub(crate) fn watch(&mut self, id: LockId, earliest: Option<WallMs>, awaited: bool) {
        let slot = self.slots.get_mut(id.index as usize);
        let Some(queue) = slot.and_then(|slot| slot.queue.as_deref_mut()) else {
            return;
        };
        if queue.lease.map(|due| due.at) != earliest {
            self.leases.clear(&mut queue.lease);
            queue.lease = earliest.map(|at| self.leases.add(at, id));
        }
        match awaited {
            true => self.awaited.insert(id),
            false => self.awaited.remove(&id),
        };
    }

    /// Returns when the next lease of a watched lock ends.
    pub(crate) fn next_lease(&self) -> Option<WallMs> {
        self.leases.next()
    }

    /// Takes out the watch of the next lease that has ended by now; returns its lock.
    pub(crate) fn pop_lease(&mut self, now: WallMs) -> Option<LockId> {
        let id = self.leases.pop(now)?;
        if let Some(queue) = self.get_mut(id) {
            queue.lease = None;
        }
        Some(id)
    }

    /// Returns true if this lock was waited for and had no value when it was last watched.
    pub(crate) fn is_awaited(&self, id: LockId) -> bool {
        self.awaited.contains(&id)
    }

    /// Returns the next lock that is waited for and has no value.
    pub(crate) fn next_awaited(&self, from: Bound<LockId>) -> Option<LockId> {
        self.awaited.range((from, Unbounded)).next().copied()
    }

    /// Removes a queue, and the watch over its lock. Its number is never used again.
    pub(crate) fn remove(&mut self, id: LockId) {
        if self.get(id).is_none() {
            return;
        }
        self.watch(id, None, false);
        let slot = &mut self.slots[id.index as usize];
        slot.generation = slot.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let queue = slot.queue.take();
        self.free.push(id.index);
        self.len -= 1;
        let name = queue.map(|queue| queue.name).unwrap_or_default();
        if let Some(db) = self.dbs.get_mut(name.db as usize) {
            db.by_key.remove(&name.key);
            shrink_if_empty(&mut db.by_key);
            db.order.remove(&name.key);
        }
    }

    /// Returns the numbers of all locks, in the order of their slots: the same inputs give the same outputs.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LockId> + '_ {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            slot.queue.as_ref().map(|_| LockId {
                index,
                generation: slot.generation,
            })
        })
    }

    /// Returns about `most` keys of a database from this hash on, and the hash to go on from.
    pub(crate) fn keys_from(
        &self,
        db: u32,
        from: u64,
        most: usize,
    ) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let db = self.dbs.get(db as usize);
        db.map_or((Vec::new(), None), |db| db.order.from(from, most))
    }
}
