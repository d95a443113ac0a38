//! All wait queues, by number, by name, and in the order of a scan; and the watch over their locks.

use super::ages::Ages;
use super::deadlines::Deadlines;
use super::place::Place;
use super::wait_queue::{Departed, WaitQueue};
use super::LockId;
use crate::collections::scan_order::ScanOrder;
use crate::collections::{shrink_if_empty, ByNumber};
use crate::types::{Arrival, Name, NameRef, WallMs};
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::Bound::{self, Unbounded};
use std::rc::Rc;

/// All wait queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitQueues {
    by_id: ByNumber<LockId, Box<WaitQueue>>,
    // How many places there are in all of them, and since when.
    places: usize,
    ages: Ages,
    // The earliest lease of each watched lock.
    leases: Deadlines<WallMs, LockId>,
    // Locks that are waited for and have no value.
    awaited: BTreeSet<LockId>,
    // Stands in for the queue of a lock without one.
    empty: WaitQueue,
    dbs: Vec<Db>,
    // How many locks have had a queue so far.
    last: u64,
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
        self.by_id.is_empty()
    }

    /// Returns the number of the lock with this name, if it has a queue. In a server without a contended lock none has.
    #[inline(always)]
    pub(crate) fn id(&self, name: NameRef) -> Option<LockId> {
        if self.by_id.is_empty() {
            None
        } else {
            self.look_up(name)
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
        let id = LockId(NonZeroU64::MIN.saturating_add(self.last));
        self.last += 1;
        let db = name.db as usize;
        if self.dbs.len() <= db {
            self.dbs.resize_with(db + 1, Db::default);
        }
        if let Some(db) = self.dbs.get_mut(db) {
            db.by_key.insert(name.key.clone(), id);
            db.order.insert(&name.key);
        }
        self.by_id.insert(id, Box::new(WaitQueue::new(name)));
        id
    }

    /// Returns the queue with this number.
    pub(crate) fn get(&self, id: LockId) -> Option<&WaitQueue> {
        self.by_id.get(&id).map(|queue| &**queue)
    }

    /// Returns the queue with this number.
    pub(crate) fn get_mut(&mut self, id: LockId) -> Option<&mut WaitQueue> {
        self.by_id.get_mut(&id).map(|queue| &mut **queue)
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

    /// Returns since when the oldest of all places has existed, in microseconds of the steady clock, or up to a second more; none if
    /// there is no place.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        self.ages.oldest()
    }

    /// Puts a place into a queue, as [`WaitQueue::insert`] does.
    pub(crate) fn insert(&mut self, id: LockId, number: Arrival, place: Place) -> bool {
        let since_us = place.since_us;
        let queue = self.get_mut(id);
        let inserted = queue.is_some_and(|queue| queue.insert(number, place));
        if inserted {
            self.places += 1;
            self.ages.add(since_us);
        }
        inserted
    }

    /// Puts places into a queue, as [`WaitQueue::merge`] does.
    pub(crate) fn merge(&mut self, id: LockId, arriving: Vec<(Arrival, Box<Place>)>) {
        if let Some(queue) = self.by_id.get_mut(&id) {
            self.places += arriving.len();
            for (_, place) in &arriving {
                self.ages.add(place.since_us);
            }
            queue.merge(arriving);
        }
    }

    /// Takes a place out of its queue.
    pub(crate) fn remove_place(&mut self, id: LockId, number: Arrival) -> Option<Box<Place>> {
        let place = self.get_mut(id)?.remove(number)?;
        self.places -= 1;
        self.ages.remove(place.since_us);
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
        for place in places.iter() {
            self.ages.remove(place.since_us);
        }
        (places.len() > 0).then_some(places)
    }

    /// Sets the watch over a lock: when its earliest lease ends, and whether it has waiters and no value.
    pub(crate) fn watch(&mut self, id: LockId, earliest: Option<WallMs>, awaited: bool) {
        let Some(queue) = self.by_id.get_mut(&id) else {
            return;
        };
        if queue.lease.map(|due| due.at) != earliest {
            self.leases.clear(&mut queue.lease);
            queue.lease = earliest.map(|at| self.leases.add(at, id));
        }
        if awaited {
            self.awaited.insert(id);
        } else {
            self.awaited.remove(&id);
        }
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
        self.watch(id, None, false);
        let Some(queue) = self.by_id.remove(&id) else {
            return;
        };
        shrink_if_empty(&mut self.by_id);
        if let Some(db) = self.dbs.get_mut(queue.name.db as usize) {
            db.by_key.remove(&queue.name.key);
            shrink_if_empty(&mut db.by_key);
            db.order.remove(&queue.name.key);
        }
    }

    /// Returns the numbers of the locks whose names are chosen, in order: the same inputs give the same outputs.
    pub(crate) fn chosen(&self, chosen: impl Fn(NameRef) -> bool) -> Vec<LockId> {
        let queues = self.by_id.iter();
        let queues = queues.filter(|(_, queue)| chosen(queue.name.as_ref()));
        let mut ids: Vec<LockId> = queues.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns about `most` keys of a database from this hash on, and the hash to continue from.
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
