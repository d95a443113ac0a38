//! All wait queues, by number, by name, and in the order of a scan.

// Positions are those of the list's own, which the map of names gives.
#![allow(clippy::indexing_slicing)]

use super::crowd::{self, exchanged, Crowd};
use super::place::Place;
use super::wait_queue::WaitQueue;
use super::LockId;
use crate::collections::scan_order::ScanOrder;
use crate::collections::shrink_if_empty;
use crate::types::{Arrival, Name, NameRef};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;

/// All wait queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitQueues {
    slots: Vec<Slot>,
    free: Vec<u32>,
    dbs: Vec<Db>,
    review: Review,
    // Those that are to be looked at, too.
    crowds: VecDeque<Crowd>,
    len: usize,
    // What a lock without a queue has.
    empty: WaitQueue,
}

/// What has happened to many locks at once, and the review that looks at each of them. A lock that is used before its turn has
/// it then: what has happened to its database is found by comparing numbers.
#[derive(Debug, Clone, Default)]
struct Review {
    /// Rises with each time that values of whole databases came or went.
    epoch: u64,
    /// Exchanges of databases since the last review ended, with the epochs that they began.
    swaps: Vec<(u64, u32, u32)>,
    /// The slot that is next.
    next: usize,
    /// How many slots it has before it.
    left: usize,
    /// How many of those are to be marked for settlement, whatever has happened to their values.
    marked: usize,
}

impl Review {
    /// There is one slot more: else the review would end before one that it has not come to.
    fn lengthen(&mut self) {
        for left in [&mut self.left, &mut self.marked] {
            *left += usize::from(*left > 0);
        }
    }
}

/// A lock that has its turn in a review.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Which.
    pub lock: LockId,
    /// Whether it is to be marked for settlement.
    pub marked: bool,
}

/// Exchanges that a review keeps in mind. More of them end it at once: only they could make it remember without bound.
const MOST_SWAPS: usize = 64;

/// Names up to which a crowd joins the one before it, so that there are never many crowds.
const SMALL_CROWD: usize = 4096;

#[derive(Debug, Clone, Default)]
struct Slot {
    generation: u32,
    queue: Option<Box<WaitQueue>>,
}

#[derive(Debug, Clone, Default)]
struct Db {
    by_key: HashMap<Rc<[u8]>, LockId>,
    // The keys once more, for scans.
    order: ScanOrder,
    // When its values last came or went all at once.
    epoch: u64,
}

impl WaitQueues {
    /// Returns true if no lock has a queue, or may need one.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.crowds.is_empty()
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
            self.review.lengthen();
        }
        let slot = &mut self.slots[index as usize];
        let id = LockId {
            index,
            generation: slot.generation,
        };
        let db = name.db as usize;
        if self.dbs.len() <= db {
            // What has happened to a database before there was a queue is nothing to those that come.
            let epoch = self.review.epoch;
            self.dbs.resize_with(db + 1, || Db {
                epoch,
                ..Db::default()
            });
        }
        self.dbs[db].by_key.insert(name.key.clone(), id);
        self.dbs[db].order.insert(&name.key);
        let mut queue = Box::new(WaitQueue::new(name));
        queue.epoch = self.dbs[db].epoch;
        slot.queue = Some(queue);
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
        slot.generation = slot.generation.wrapping_add(1);
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

    /// The values of these databases may be others from now on.
    pub(crate) fn outdate(&mut self, is_meant: impl Fn(u32) -> bool) {
        self.review.epoch += 1;
        for (db, at) in self.dbs.iter_mut().zip(0..) {
            if is_meant(at) {
                db.epoch = self.review.epoch;
            }
        }
        self.review.left = self.slots.len();
    }

    /// Two databases were exchanged. Returns true if the review is to be ended at once.
    pub(crate) fn swap(&mut self, one: u32, other: u32) -> bool {
        self.outdate(|db| db == one || db == other);
        self.crowds
            .iter_mut()
            .for_each(|crowd| crowd.swap(one, other));
        self.review.swaps.push((self.review.epoch, one, other));
        self.review.swaps.len() >= MOST_SWAPS
    }

    /// Has the review mark each lock for settlement.
    pub(crate) fn mark_all(&mut self) {
        (self.review.left, self.review.marked) = (self.slots.len(), self.slots.len());
    }

    /// These are to be looked at in the review. A lock that is used before its turn has it then.
    pub(crate) fn review_crowd(&mut self, crowd: Crowd) {
        let last = self.crowds.back_mut();
        let left = match last.filter(|_| crowd.len() <= SMALL_CROWD) {
            Some(last) => last.join(crowd),
            None => Some(crowd),
        };
        self.crowds.extend(left);
    }

    /// The next lock of a crowd.
    pub(crate) fn next_of_crowd(&mut self) -> Option<crowd::Turn> {
        let crowd = self.crowds.front_mut()?;
        let next = crowd.pop();
        if crowd.is_empty() {
            self.crowds.pop_front();
        }
        next
    }

    /// What is left of the crowds, without any queue.
    pub(crate) fn take_crowds(&mut self) -> WaitQueues {
        WaitQueues {
            crowds: std::mem::take(&mut self.crowds),
            ..WaitQueues::default()
        }
    }

    fn is_in_crowd(&self, name: &Name) -> bool {
        self.crowds.iter().any(|crowd| crowd.has(name))
    }

    /// Returns true if a review is under way.
    #[inline]
    pub(crate) fn in_review(&self) -> bool {
        self.review.left > 0 || !self.crowds.is_empty()
    }

    /// The next lock of the review; none at its end.
    pub(crate) fn next_turn(&mut self) -> Option<Turn> {
        let review = &mut self.review;
        while review.left > 0 {
            let index = match review.next < self.slots.len() {
                true => review.next,
                false => 0,
            };
            let marked = review.marked > 0;
            review.next = index + 1;
            review.left -= 1;
            review.marked = review.marked.saturating_sub(1);
            if let Some(slot) = self.slots.get(index).filter(|slot| slot.queue.is_some()) {
                let lock = LockId {
                    index: index as u32,
                    generation: slot.generation,
                };
                return Some(Turn { lock, marked });
            }
        }
        // Every lock has been looked at since the last of them.
        review.swaps.clear();
        None
    }

    /// Returns true if its value may have come or gone, with many others, since this lock was last looked at.
    pub(crate) fn is_outdated(&self, id: LockId) -> bool {
        self.get(id).is_some_and(|queue| {
            queue.epoch != self.epoch_of(queue.name.db) || self.is_in_crowd(&queue.name)
        })
    }

    /// Takes note that a lock is looked at. Returns nothing if it is not outdated; else the name under which its value is now, if
    /// that is another.
    pub(crate) fn bring_up_to_date(&mut self, id: LockId) -> Option<Option<Name>> {
        let queue = self.get(id)?;
        let (before, now) = (queue.epoch, self.epoch_of(queue.name.db));
        let crowded = self.is_in_crowd(&queue.name);
        if before == now && !crowded {
            return None;
        }
        let since = self
            .review
            .swaps
            .iter()
            .filter(|(epoch, ..)| *epoch > before);
        let since = since.map(|(_, one, other)| (*one, *other));
        let db = exchanged(queue.name.db, since);
        let elsewhere = (db != queue.name.db).then(|| Name {
            db,
            ..queue.name.clone()
        });
        if crowded {
            let name = queue.name.clone();
            self.crowds.iter_mut().for_each(|crowd| crowd.see(&name));
        }
        if let Some(queue) = self.get_mut(id) {
            queue.epoch = now;
        }
        Some(elsewhere)
    }

    /// A lock that is left, while all of them are taken out and none comes any more.
    pub(crate) fn last(&mut self) -> Option<LockId> {
        while let Some(slot) = self.slots.last() {
            if slot.queue.is_some() {
                return Some(LockId {
                    index: self.slots.len() as u32 - 1,
                    generation: slot.generation,
                });
            }
            self.slots.pop();
        }
        None
    }

    fn epoch_of(&self, db: u32) -> u64 {
        self.dbs.get(db as usize).map_or(0, |db| db.epoch)
    }

    /// About `most` keys of a database from this point of their order on, and the point to go on from.
    pub(crate) fn scan(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let db = self.dbs.get(db as usize);
        db.map_or((Vec::new(), None), |db| db.order.from(from, most))
    }
}
