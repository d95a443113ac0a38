//! All wait queues, by number, by name, and in the order of a scan.

// Positions are those of the list's own, which the map of names gives.
#![allow(clippy::indexing_slicing)]

use super::place::Place;
use super::wait_queue::WaitQueue;
use super::LockId;
use crate::collections::scan_order::ScanOrder;
use crate::collections::shrink_if_empty;
use crate::types::{Arrival, Name, NameRef};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::rc::Rc;

/// All wait queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitQueues {
    slots: Vec<Slot>,
    free: Vec<u32>,
    dbs: Vec<Db>,
    len: usize,
    // What a lock without a queue has.
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
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of the lock with this name, if it has a queue. In a server without a contended lock none has.
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

    /// The number of the lock with this name; its queue is made if there is none.
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

    /// The queue with this number.
    pub(crate) fn get(&self, id: LockId) -> Option<&WaitQueue> {
        let slot = self.slots.get(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref().filter(|_| current)
    }

    /// The queue with this number.
    pub(crate) fn get_mut(&mut self, id: LockId) -> Option<&mut WaitQueue> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref_mut().filter(|_| current)
    }

    /// The queue of a lock that may have none: then an empty one.
    pub(crate) fn at(&self, id: impl Into<Option<LockId>>) -> &WaitQueue {
        let queue = id.into().and_then(|id| self.get(id));
        queue.unwrap_or(&self.empty)
    }

    /// A place in a queue.
    pub(crate) fn place_mut(&mut self, id: LockId, number: Arrival) -> Option<&mut Place> {
        self.get_mut(id)?.place_mut(number)
    }

    /// Takes a queue out. Its number is never given again.
    pub(crate) fn remove(&mut self, id: LockId) -> Option<WaitQueue> {
        let name = self.get(id)?.name.clone();
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.generation = slot.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let queue = *slot.queue.take()?;
        self.free.push(id.index);
        self.len -= 1;
        if let Some(db) = self.dbs.get_mut(name.db as usize) {
            db.by_key.remove(&name.key);
            shrink_if_empty(&mut db.by_key);
            db.order.remove(&name.key);
        }
        Some(queue)
    }

    /// The numbers of all locks, in the order of their slots: the same inputs give the same outputs.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LockId> + '_ {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            slot.queue.as_ref().map(|_| LockId {
                index,
                generation: slot.generation,
            })
        })
    }

    /// About `most` keys of a database from this point of their order on, and the point to go on from.
    pub(crate) fn scan(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let db = self.dbs.get(db as usize);
        db.map_or((Vec::new(), None), |db| db.order.from(from, most))
    }
}
