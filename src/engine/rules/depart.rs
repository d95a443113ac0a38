//! How a request leaves the queues that it waits in, and what becomes of its places.

use crate::engine::keyspace::{Entry, Keyspace};
use crate::engine::ledger::{Due, Outcome, Recipient, Wake};
use crate::engine::lock::change::Change;
use crate::engine::queue::place::{Occupant, Place};
use crate::engine::queue::requests::WaitsAt;
use crate::engine::queue::LockId;
use crate::engine::state::{Engine, Next};
use crate::engine::types::{
    Arrival, ClientId, Millis, NameRef, Now, OwnerHash, RequestId, SteadyMs,
};
use crate::error::Error;
use std::rc::Rc;

/// A request that has left.
pub(super) struct Withdrawn {
    id: RequestId,
    owner: Rc<[u8]>,
    channel: Option<Rc<[u8]>>,
    /// Where its places are, with nobody there any more.
    pub places: Vec<(LockId, Arrival)>,
}

impl Engine {
    /// Registers a request that waits.
    pub(super) fn enlist(
        &mut self,
        id: RequestId,
        owner: &[u8],
        client: ClientId,
        channel: Option<&Rc<[u8]>>,
        at: WaitsAt,
    ) {
        let owner = self.requests.hash(owner);
        if self.requests.waits(owner) {
            self.count_entangled(self.requests.only_of_owner(owner), 1);
            if let WaitsAt::One(lock, _) = at {
                self.entangle(lock, 1);
            }
        }
        self.requests.add(id, owner, client, channel, at);
    }

    /// The reverse. Gives where it waited.
    pub(super) fn delist(
        &mut self,
        id: RequestId,
        owner: OwnerHash,
        client: ClientId,
    ) -> Option<WaitsAt> {
        let at = self.requests.remove(id, owner, client)?;
        if self.requests.waits(owner) {
            self.count_entangled(self.requests.only_of_owner(owner), -1);
            if let WaitsAt::One(lock, _) = at {
                self.entangle(lock, -1);
            }
        }
        Some(at)
    }

    /// The owner of this request, its only one so far, begins or ceases to wait for something else too.
    fn count_entangled(&mut self, only: Option<RequestId>, by: isize) {
        if let Some(WaitsAt::One(lock, _)) = only.and_then(|id| self.requests.get(id)) {
            self.entangle(*lock, by);
        }
    }

    fn entangle(&mut self, lock: LockId, by: isize) {
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.entangled = queue.entangled.saturating_add_signed(by);
        }
    }

    /// Takes a request out of all places where it waits; these stay, with nobody there.
    pub(super) fn withdraw(&mut self, id: RequestId) -> Option<Withdrawn> {
        let mut withdrawn = Withdrawn {
            id,
            owner: Rc::from([]),
            channel: None,
            places: Vec::new(),
        };
        let mut counted = Vec::new();
        let (client, mut until) = match self.requests.get(id)? {
            WaitsAt::One(lock, number) => {
                let place = self.queues.place_mut(*lock, *number)?;
                let occupant = std::mem::replace(&mut place.occupant, Occupant::Absent);
                let Occupant::One(request) = occupant else {
                    return None;
                };
                withdrawn.owner = place.owner.clone();
                withdrawn.channel = request.channel;
                withdrawn.places.push((*lock, *number));
                (request.client, request.until)
            }
            WaitsAt::Many(many) => {
                withdrawn.owner = many.owner.clone();
                for part in &many.parts {
                    let Some(queue) = self.queues.get_mut(part.lock) else {
                        continue;
                    };
                    let Some(number) = part.place else {
                        queue.counting.remove(&id);
                        counted.push(part.lock);
                        continue;
                    };
                    if let Some(place) = queue.place_mut(number) {
                        place.occupant = Occupant::Absent;
                        queue.parts -= 1;
                    }
                    withdrawn.places.push((part.lock, number));
                }
                (many.client, many.until)
            }
        };
        self.ledger.timers.clear(&mut until);
        let owner = self.requests.hash(&withdrawn.owner);
        self.delist(id, owner, client);
        // Their queues may have nothing left to be there for.
        counted.into_iter().for_each(|lock| self.mark(lock));
        Some(withdrawn)
    }

    /// Tells a request that has left how its wait ended. `lock` is the one that it is told of.
    pub(super) fn tell(&mut self, left: Withdrawn, lock: LockId, outcome: Outcome) {
        let to = Recipient {
            id: left.id,
            channel: left.channel,
            owner: &left.owner,
        };
        self.ledger.tell(to, &self.queues.at(lock).name, outcome);
    }

    /// A request leaves its queues and is told why. The locks are settled before the event ends.
    pub(super) fn dismiss(&mut self, id: RequestId, now: Now, outcome: Outcome) {
        let Some(left) = self.withdraw(id) else {
            return;
        };
        let first = left.places.first().copied();
        for (lock, number) in left.places.clone() {
            self.vacate(lock, number, now);
            self.next.insert(Next::Lock(lock));
        }
        if let Some((lock, _)) = first {
            self.tell(left, lock, outcome);
        } else {
            // It has no place: all of its locks were its owner's by then.
            self.ledger.wakes.push(Wake { id, outcome });
        }
    }

    /// The same, but its places in some queues stay, for the newer request that replaces it.
    pub(super) fn replace(&mut self, id: RequestId, now: Now, stays: impl Fn(LockId) -> bool) {
        let Some(left) = self.withdraw(id) else {
            return;
        };
        let first = left.places.first().copied();
        for (lock, number) in left.places.clone() {
            if !stays(lock) {
                self.vacate(lock, number, now);
                self.next.insert(Next::Lock(lock));
            }
        }
        if let Some((lock, _)) = first {
            self.tell(left, lock, Outcome::Replaced);
        }
    }

    /// A request leaves its queues: its time is up, or its connection waits no longer. The locks are settled as soon as
    /// changes are possible. Gives what has left, and the first of its locks.
    pub(super) fn depart(&mut self, id: RequestId, now: Now) -> Option<(Withdrawn, LockId)> {
        let left = self.withdraw(id)?;
        let first = left.places.first().copied();
        for (lock, number) in left.places.clone() {
            self.vacate(lock, number, now);
            self.mark(lock);
        }
        first.map(|(lock, _)| (left, lock))
    }

    /// Nobody waits at this place any more: it goes, unless it is a ticket that is kept for its window.
    pub(super) fn vacate(&mut self, lock: LockId, number: Arrival, now: Now) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        let Some(place) = queue.place_mut(number) else {
            return;
        };
        if let Some(window) = place.ticket.as_deref_mut() {
            window.until = SteadyMs(0);
        }
        let (claim, waited) = (place.claim(), place.waited_us(now));
        match claim {
            Some(claim) if claim > 0 => return self.begin_window(lock, number, now),
            // Its half in the value goes with the next settlement.
            Some(_) => queue.lapsed.push(number),
            None => {
                queue.remove(number);
                self.places -= 1;
            }
        }
        let name = self.queues.at(lock).name.as_ref();
        self.ledger.counters.waited_in_vain(name, waited);
    }

    /// The claim window of an absent ticket begins: its own, or the default where it has none.
    pub(super) fn begin_window(&mut self, lock: LockId, number: Arrival, now: Now) {
        let place = self.queues.at(lock).place(number);
        let window = match place.and_then(Place::claim) {
            Some(claim) if claim > 0 => claim,
            _ => self.policy.claim_window_ms,
        };
        self.keep_ticket(lock, number, window, now);
    }

    /// Keeps an absent ticket so long from now on. A place that is none has nothing to keep.
    pub(super) fn keep_ticket(
        &mut self,
        lock: LockId,
        number: Arrival,
        window_ms: Millis,
        now: Now,
    ) {
        let place = self.queues.place_mut(lock, number);
        let Some(window) = place.and_then(|place| place.ticket.as_deref_mut()) else {
            return;
        };
        window.until = now.steady().after(window_ms);
        match window.due {
            Some(due) if due.at <= window.until => {}
            _ => {
                self.ledger.timers.clear(&mut window.due);
                let due = Due::Window(lock, number);
                window.due = Some(self.ledger.timers.add(window.until, due));
            }
        }
    }

    /// Drops the tickets whose claim window has ended with nobody there.
    pub(super) fn drop_lapsed(&mut self, entry: &mut Entry, now: Now, lock: LockId) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        for number in std::mem::take(&mut queue.lapsed) {
            let Some(place) = self.queues.place_mut(lock, number) else {
                continue;
            };
            let absent = place.is_absent();
            let Some(window) = place.ticket.as_deref_mut() else {
                continue;
            };
            self.ledger.timers.clear(&mut window.due);
            if !absent {
                continue;
            }
            if window.until > now.steady() {
                // The owner has asked since.
                let due = Due::Window(lock, number);
                window.due = Some(self.ledger.timers.add(window.until, due));
            } else {
                drop(self.uproot(entry, lock, number));
            }
        }
    }

    /// Takes a place out of its queue, its ticket out of the value, and its window out of the timers.
    pub(super) fn uproot(
        &mut self,
        entry: &mut Entry,
        lock: LockId,
        number: Arrival,
    ) -> Option<Box<Place>> {
        let mut place = self.queues.get_mut(lock)?.remove(number)?;
        self.places -= 1;
        if let Some(window) = place.ticket.as_deref_mut() {
            self.ledger.timers.clear(&mut window.due);
            if entry.has_ticket(number) {
                entry.commit(&Change::Unticket { number });
            }
        }
        Some(place)
    }

    /// Removes the owner's place from the queue; a request that waits at it is answered null. Gives whether there was one.
    ///
    /// Errors: `WrongType`.
    pub fn cancel(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
    ) -> Result<bool, Error> {
        let entry = self.settled(keys, now, name)?;
        let lock = self.queues.id(name);
        let place = self.queues.at(lock).number_of(owner);
        let Some((lock, number)) = lock.zip(place) else {
            return Ok(false);
        };
        self.remove_place(entry, now, lock, number, Outcome::Cancelled);
        self.settle_entry(entry, now, name, Some(lock));
        self.follow_up(keys, now);
        Ok(true)
    }

    /// Removes a place, ticket or not. A request that waits at it is told, and leaves the other queues that it stands in.
    pub(super) fn remove_place(
        &mut self,
        entry: &mut Entry,
        now: Now,
        lock: LockId,
        number: Arrival,
        outcome: Outcome,
    ) {
        let place = self.queues.at(lock).place(number);
        let request = place.and_then(Place::request);
        let left = request.and_then(|id| self.withdraw(id));
        let others: Vec<_> = left.iter().flat_map(|left| left.places.clone()).collect();
        for (other, at) in others {
            if other != lock {
                self.vacate(other, at, now);
                self.next.insert(Next::Lock(other));
            }
        }
        if let Some(left) = left {
            self.tell(left, lock, outcome);
        }
        if let Some(place) = self.uproot(entry, lock, number) {
            let (name, waited) = (&self.queues.at(lock).name, place.waited_us(now));
            self.ledger.counters.waited_in_vain(name.as_ref(), waited);
        }
    }
}
