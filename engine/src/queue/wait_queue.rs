//! The wait queue of one lock, on the server that decides.

// Most queues are short and need no index of owners: a pointer to one that is not there takes 40 bytes less than the map.
#![allow(clippy::box_collection)]

use super::deadlines::DueKey;
use super::place::Place;
use crate::types::{Arrival, Limit, Name, Share, WallMs};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// The longest queue that is searched for an owner's place. A longer one has an index, which takes as much memory as the whole
/// queue of a lock with one waiter.
const LONGEST_SEARCH: usize = 8;

/// The wait queue of one lock. It exists for a lock with places in its queue, or that has to be watched (see
/// `Lock::needs_watch`). It holds every place, tickets and waiters alike; of a ticket the lock's value holds the durable
/// half.
///
/// A holder has a place only while it waits for a stricter limit: the one at [`Arrival::UPGRADE_SLOT`], ahead of all others.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitQueue {
    /// The lock.
    pub name: Name,
    // First comes the holder that waits for a stricter limit: it needs only the other holders to leave.
    places: Places,
    // The owners' places, in a queue that is too long to be searched.
    by_owner: Option<Box<HashMap<Rc<[u8]>, Arrival>>>,
    /// The due entry of the earliest lease.
    pub lease: Option<DueKey<WallMs>>,
    /// How many parts of requests for many locks wait at a place here, or have left and are still to be removed.
    pub multi_places: usize,
    // How many places ask for the lock with limit 1.
    exclusive: usize,
    /// Absent tickets whose window has ended.
    pub lapsed: Vec<Arrival>,
    /// Waits that ended by time-out since the last settlement, for their events.
    pub timeouts: u32,
    /// Whether no place here may be granted: the slot is migrating to another node, or is already there.
    pub closed: bool,
    /// Whether the value at the key may have been replaced behind the queue's back.
    pub stale: bool,
    /// While the queue is being reconciled with a value that has arrived: the number up to which that is done. No place behind it is
    /// served.
    pub reconciled: Option<Arrival>,
    /// Whether a settlement is pending.
    pub dirty: bool,
}

/// Who else had a place in the lock's queue at some moment, absent tickets included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The owner of the first of these places.
    pub next: Option<Rc<[u8]>>,
    /// How many places there were.
    pub count: usize,
}

/// Places in the order of their numbers. Most leave at the front and come at the end, so a sorted list that is open at both ends
/// moves nothing for them, gives the rank, and takes 16 bytes a place. A place that leaves from the middle moves the shorter side:
/// at most 0.8 MB of a queue of 100,000.
pub(crate) type Places = VecDeque<(Arrival, Box<Place>)>;

/// Places that have left their queue together, and are freed in steps.
#[derive(Debug, Clone)]
pub(crate) struct Departed {
    places: Places,
    by_owner: Option<Box<HashMap<Rc<[u8]>, Arrival>>>,
}

impl Departed {
    /// Returns how many places are not freed yet.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the places that are not freed yet, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map(|(_, place)| &**place)
    }

    /// Takes out the first place, to free it; none if all are freed.
    pub(crate) fn pop(&mut self) -> Option<Box<Place>> {
        let (_, place) = self.places.pop_front()?;
        if let Some(index) = &mut self.by_owner {
            index.remove(&place.owner);
        }
        Some(place)
    }
}

impl WaitQueue {
    /// Makes an empty queue.
    pub(crate) fn new(name: Name) -> WaitQueue {
        WaitQueue {
            name,
            ..WaitQueue::default()
        }
    }

    /// Returns true if an event has noted something about the lock, or one of its leases has ended.
    pub(crate) fn is_behind(&self, now: impl FnOnce() -> WallMs) -> bool {
        let ended = || self.lease.is_some_and(|due| due.at <= now());
        self.dirty || !self.lapsed.is_empty() || ended()
    }

    /// Returns true if nobody is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns how many places there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if nobody waits at any place.
    pub(crate) fn is_unattended(&self) -> bool {
        self.in_order().all(|(_, place)| place.is_absent())
    }

    /// Returns the number of this owner's place, which may be the waiting upgrade's.
    pub(crate) fn number_of(&self, owner: &[u8]) -> Option<Arrival> {
        match &self.by_owner {
            Some(index) => index.get(owner).copied(),
            None => {
                let mut places = self.in_order();
                let its = places.find(|(_, place)| *place.owner == *owner);
                its.map(|(number, _)| number)
            }
        }
    }

    /// Puts a place at its number. Returns false, and changes nothing, if the owner has a place already or the number is taken.
    pub(crate) fn insert(&mut self, number: Arrival, place: Place) -> bool {
        let owner = place.owner.clone();
        let Some(index) = &mut self.by_owner else {
            let inserted = self.number_of(&owner).is_none() && self.put(number, place);
            if inserted && self.len() > LONGEST_SEARCH {
                self.by_owner = Some(self.index_all());
            }
            return inserted;
        };
        // An older place is found as the new one is entered: to look first would be to hash twice.
        if let Some(its) = index.insert(owner.clone(), number) {
            index.insert(owner, its);
            return false;
        }
        let inserted = self.put(number, place);
        if let Some(index) = self.by_owner.as_mut().filter(|_| !inserted) {
            index.remove(&owner);
        }
        inserted
    }

    /// Puts a place into the list. Returns false if another one has that number.
    fn put(&mut self, number: Arrival, place: Place) -> bool {
        let Err(at) = self.search(number) else {
            return false;
        };
        if self.places.is_empty() {
            // Nearly every queue has one place, and there may be very many queues.
            self.places.reserve_exact(1);
        }
        self.exclusive += usize::from(place.share.limit == Limit::EXCLUSIVE);
        self.places.insert(at, (number, Box::new(place)));
        true
    }

    /// Finds where a number is in the list, or would be.
    fn search(&self, number: Arrival) -> Result<usize, usize> {
        // Most come at the end.
        match self.places.back() {
            Some((last, _)) if *last < number => Err(self.places.len()),
            _ => self.places.binary_search_by_key(&number, |(at, _)| *at),
        }
    }

    /// Takes a place out.
    pub(crate) fn remove(&mut self, number: Arrival) -> Option<Box<Place>> {
        let at = self.search(number).ok()?;
        let (_, place) = self.places.remove(at)?;
        self.exclusive -= usize::from(place.share.limit == Limit::EXCLUSIVE);
        if self.len() <= LONGEST_SEARCH / 2 {
            self.by_owner = None;
        } else if let Some(index) = &mut self.by_owner {
            index.remove(&place.owner);
        }
        Some(place)
    }

    /// Prepares for places that are about to come. Until [`WaitQueue::merge`] puts them in, [`WaitQueue::enter`] enters their owners.
    pub(crate) fn expect(&mut self, more: usize) {
        let mut index = self.by_owner.take().unwrap_or_else(|| self.index_all());
        index.reserve(more);
        self.by_owner = Some(index);
    }

    /// Enters the owner of a place that is about to come. Returns false if the owner has a place, or is entered already, or if
    /// [`WaitQueue::expect`] was not called.
    pub(crate) fn enter(&mut self, owner: &Rc<[u8]>, number: Arrival) -> bool {
        let Some(index) = &mut self.by_owner else {
            return false;
        };
        match index.insert(owner.clone(), number) {
            None => true,
            Some(its) => {
                index.insert(owner.clone(), its);
                false
            }
        }
    }

    /// Puts places in, in one pass over the queue. They are in order, their numbers are free, and their owners are entered.
    pub(crate) fn merge(&mut self, arriving: Vec<(Arrival, Box<Place>)>) {
        let exclusive = |(_, place): &&(Arrival, Box<Place>)| place.share.limit == Limit::EXCLUSIVE;
        self.exclusive += arriving.iter().filter(exclusive).count();
        if let Some((first, _)) = arriving.first() {
            let (Ok(at) | Err(at)) = self.search(*first);
            let mut behind = self.places.split_off(at).into_iter().peekable();
            self.places.reserve(arriving.len() + behind.len());
            for (number, place) in arriving {
                while let Some(before) = behind.next_if(|(before, _)| *before < number) {
                    self.places.push_back(before);
                }
                self.places.push_back((number, place));
            }
            self.places.extend(behind);
        }
        if self.len() <= LONGEST_SEARCH {
            self.by_owner = None;
        }
    }

    /// Takes out all places for which `leaves` is true, in one pass, and returns them to be freed.
    pub(crate) fn split_off(&mut self, leaves: impl Fn(Arrival, &Place) -> bool) -> Departed {
        let (places, staying) = std::mem::take(&mut self.places)
            .into_iter()
            .partition(|(number, place)| leaves(*number, place));
        self.places = staying;
        let exclusive = |(_, place): &&(Arrival, Box<Place>)| place.share.limit == Limit::EXCLUSIVE;
        self.exclusive -= places.iter().filter(exclusive).count();
        let mut by_owner = None;
        if self.len() <= LONGEST_SEARCH || places.len() > self.len() {
            by_owner = self.by_owner.take();
            if self.len() > LONGEST_SEARCH {
                self.by_owner = Some(self.index_all());
            }
        } else if let Some(index) = &mut self.by_owner {
            for (_, place) in places.iter() {
                index.remove(&place.owner);
            }
        }
        Departed { places, by_owner }
    }

    fn index_all(&self) -> Box<HashMap<Rc<[u8]>, Arrival>> {
        let mut index = Box::<HashMap<Rc<[u8]>, Arrival>>::default();
        for (number, place) in self.in_order() {
            index.insert(place.owner.clone(), number);
        }
        index
    }

    /// Returns the place with this number.
    pub(crate) fn place(&self, number: Arrival) -> Option<&Place> {
        let at = self.search(number).ok()?;
        self.places.get(at).map(|(_, place)| &**place)
    }

    /// Returns the place with this number.
    pub(crate) fn place_mut(&mut self, number: Arrival) -> Option<&mut Place> {
        let at = self.search(number).ok()?;
        self.places.get_mut(at).map(|(_, place)| &mut **place)
    }

    /// Returns the place of the holder that waits for a stricter limit.
    pub(crate) fn upgrade(&self) -> Option<&Place> {
        let (number, place) = self.head()?;
        (number == Arrival::UPGRADE_SLOT).then_some(place)
    }

    /// Returns the place that is served next: the waiting upgrade, or the first in order.
    pub(crate) fn head(&self) -> Option<(Arrival, &Place)> {
        let (number, place) = self.places.front()?;
        Some((*number, place))
    }

    /// Returns all places as they are served: the waiting upgrade first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (Arrival, &Place)> {
        self.places
            .iter()
            .map(|(number, place)| (*number, &**place))
    }

    /// Returns who else has a place here, besides this owner. Absent tickets count.
    pub(crate) fn others(&self, owner: &[u8]) -> Waiting {
        let its = self.number_of(owner);
        let mut places = self.in_order();
        let next = places.find(|(number, _)| Some(*number) != its);
        Waiting {
            next: next.map(|(_, place)| place.owner.clone()),
            count: self.len() - usize::from(its.is_some()),
        }
    }

    /// Returns the places behind this number, in order.
    pub(crate) fn behind(&self, number: Arrival) -> impl Iterator<Item = (Arrival, &Place)> {
        let start = match self.search(number) {
            Ok(at) => at + 1,
            Err(at) => at,
        };
        let behind = self.places.range(start..);
        behind.map(|(number, place)| (*number, &**place))
    }

    /// Returns the places before this number, the nearest first.
    pub(crate) fn before(&self, number: Arrival) -> impl Iterator<Item = (Arrival, &Place)> {
        let (Ok(end) | Err(end)) = self.search(number);
        let before = self.places.range(..end).rev();
        before.map(|(number, place)| (*number, &**place))
    }

    /// Returns how many places ask for the lock with limit 1.
    pub(crate) fn exclusive_places(&self) -> usize {
        self.exclusive
    }

    /// Sets what a place asks for. Returns what it asked for before; none if there is no place with this number.
    pub(crate) fn set_share(&mut self, number: Arrival, share: Share) -> Option<Share> {
        let place = self.place_mut(number)?;
        let before = std::mem::replace(&mut place.share, share);
        self.exclusive += usize::from(share.limit == Limit::EXCLUSIVE);
        self.exclusive -= usize::from(before.limit == Limit::EXCLUSIVE);
        Some(before)
    }

    /// Returns how many places of the queue are before this one, without the waiting upgrade's.
    pub(crate) fn rank(&self, number: Arrival) -> Option<usize> {
        let rank = self.search(number).ok()?;
        Some(rank.saturating_sub(usize::from(self.upgrade().is_some())))
    }
}
