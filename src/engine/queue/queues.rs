//! All wait queues, by number, by name, and in the order of a scan.

use super::place::Place;
use super::wait_queue::WaitQueue;
use super::LockId;
use crate::engine::collections::index::Index;
use crate::engine::collections::scan_order::ScanOrder;
use crate::engine::types::{Arrival, Name, NameRef};
use std::rc::Rc;

/// All wait queues.
#[derive(Debug, Default)]
pub struct WaitQueues {
    slots: Vec<Slot>,
    free: Vec<u32>,
    dbs: Vec<Db>,
    len: usize,
    // What a lock without a queue has.
    empty: WaitQueue,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    queue: Option<Box<WaitQueue>>,
}

#[derive(Debug, Default)]
struct Db {
    by_key: Index<Rc<[u8]>, LockId>,
    // The keys once more, for scans.
    order: ScanOrder,
}

impl WaitQueues {
    /// Whether no lock has a queue.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of the lock with this name, if it has a queue. In a server without a contended lock none has.
    #[inline(always)]
    pub fn id(&self, name: NameRef) -> Option<LockId> {
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
    pub fn id_or_new(&mut self, name: NameRef) -> LockId {
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
    pub fn get(&self, id: LockId) -> Option<&WaitQueue> {
        let slot = self.slots.get(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref().filter(|_| current)
    }

    /// The queue with this number.
    pub fn get_mut(&mut self, id: LockId) -> Option<&mut WaitQueue> {
        let slot = self.slots.get_mut(id.index as usize)?;
        let current = slot.generation == id.generation;
        slot.queue.as_deref_mut().filter(|_| current)
    }

    /// The queue of a lock that may have none: then an empty one.
    pub fn at(&self, id: impl Into<Option<LockId>>) -> &WaitQueue {
        let queue = id.into().and_then(|id| self.get(id));
        queue.unwrap_or(&self.empty)
    }

    /// A place in a queue.
    pub fn place_mut(&mut self, id: LockId, number: Arrival) -> Option<&mut Place> {
        self.get_mut(id)?.place_mut(number)
    }

    /// Takes a queue out. Its number is never given again.
    pub fn remove(&mut self, id: LockId) -> Option<WaitQueue> {
        let name = self.get(id)?.name.clone();
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        let queue = *slot.queue.take()?;
        self.free.push(id.index);
        self.len -= 1;
        if let Some(db) = self.dbs.get_mut(name.db as usize) {
            db.by_key.remove(&name.key);
            db.order.remove(&name.key);
        }
        Some(queue)
    }

    /// The numbers of all locks of a database, or of all databases, in the order of their names: the same inputs give the
    /// same outputs, though numbers are given anew in the order in which queues have gone.
    pub fn ids(&self, db: Option<u32>) -> Vec<LockId> {
        let dbs = self.dbs.iter().enumerate();
        let chosen = dbs.filter(|(at, _)| db.map_or(true, |db| db as usize == *at));
        let mut ids = Vec::new();
        for (_, db) in chosen {
            let mut keys: Vec<_> = db.by_key.iter().collect();
            keys.sort_unstable();
            ids.extend(keys.into_iter().map(|(_, id)| *id));
        }
        ids
    }

    /// About `most` keys of a database from this point of their order on, and the point to go on from.
    pub fn scan(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let db = self.dbs.get(db as usize);
        db.map_or((Vec::new(), None), |db| db.order.from(from, most))
    }
}
