//! Reconciling a queue with a value that has arrived or left without a command of the module's: RENAME, MOVE, RESTORE, SWAPDB,
//! FLUSHALL, a promotion, a load.
//!
//! The value keeps its holders and tickets, and every place stands by its number. A waiting owner that holds
//! nothing, and for whom the value has a hold or a ticket of another number, is answered: it would not get what it asked for.

use crate::holds::Due;
use crate::invariants::broken;
use crate::keyspace::{Entry, Value};
use crate::lock::{Change, Hold, Lock, Ticket};
use crate::outbox::Outcome;
use crate::queue::{LockId, Place, Request};
use crate::refusal::Refusal;
use crate::rules::grantable::upgrades;
use crate::state::Engine;
use crate::types::{Arrival, Now};
use std::rc::Rc;

impl Engine {
    /// Reconciles the queue with its value.
    ///
    /// An owner that waits and now holds the lock is answered. An owner that is present keeps its place, and its ticket is
    /// written again; an absent ticket lives and dies with the value. Tickets that came with the value begin as absent, with a
    /// fresh window. The leases that a user has brought are bounded.
    pub(in crate::rules) fn reconcile(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
    ) {
        let Some(queue) = self.queues.get_mut(lock).filter(|queue| queue.stale) else {
            return;
        };
        queue.stale = false;
        if entry.lock.is_some() {
            entry.touch_ttl();
        }
        entry.bound_restored(now.wall().after(self.policy.max_restored_ms));
        let upgrade = self.queues.at(lock).upgrade();
        if upgrade.is_some_and(|place| entry.hold(&place.owner).is_none()) {
            // Before its owner is looked at as one that may have a ticket.
            let not_held = Outcome::Refused(Refusal::NotHeld);
            self.remove_place(entry, now, lock, Arrival::UPGRADE_SLOT, not_held);
        }
        for number in self.places_of_holders(entry, lock) {
            self.dismiss(entry, now, lock, number);
        }
        self.renew_tickets(entry, lock);
        self.import_tickets(entry, now, lock);
    }

    /// Returns the places of owners that hold the lock, in order. An upgrade is none of them as long as there is something for it
    /// to strengthen.
    fn places_of_holders(&self, entry: &Entry<impl Value>, lock: LockId) -> Vec<Arrival> {
        let queue = self.queues.at(lock);
        if queue.is_empty() {
            return Vec::new();
        }
        let upgrade = queue.upgrade();
        let upgraded = |hold: &Hold| {
            upgrade.is_some_and(|place| {
                *place.owner == *hold.owner && upgrades(hold, place.share.limit)
            })
        };
        let holds = entry.value().holds();
        let holds = holds.filter(|hold| !upgraded(hold));
        let places = holds.filter_map(|hold| queue.number_of(hold.owner));
        let mut places: Vec<Arrival> = places.collect();
        places.sort_unstable();
        places
    }

    /// Removes a place whose owner has a hold or a ticket by the value. A request that waits there leaves all of its queues: its
    /// client has to ask again.
    fn dismiss(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId, number: Arrival) {
        let place = self.queues.at(lock).place(number);
        let request = place.and_then(Place::request);
        let outcome = match request.is_some_and(|id| self.waits_by_channel(id)) {
            true => Outcome::Moved,
            false => self.refusal_at(lock, number, Refusal::TryAgain),
        };
        self.remove_place(entry, now, lock, number, outcome);
    }

    /// Returns the outcome of a request that is refused at this place: one for many locks learns at which key.
    fn refusal_at(&self, lock: LockId, number: Arrival, refusal: Refusal) -> Outcome {
        let queue = self.queues.at(lock);
        let id = queue.place(number).and_then(Place::request);
        let request = id.and_then(|id| self.requests.get(id));
        Outcome::Refused(match request.is_some_and(Request::is_many) {
            true => refusal.at(&queue.name.key),
            false => refusal,
        })
    }

    /// Handles the tickets that the value lacks, or has in another form: one that somebody waits on is written into it, and an
    /// absent one goes (it may come again with the value).
    fn renew_tickets(&mut self, entry: &mut Entry<impl Value>, lock: LockId) {
        let value = entry.value();
        let differs = |number: Arrival, place: &Place| {
            let ticket = value.ticket(number);
            let known = ticket.map(|ticket| (&*ticket.owner, ticket.share, Some(ticket.claim)));
            let is_ticket = place.ticket.is_some();
            is_ticket && known != Some((&*place.owner, place.share, place.claim()))
        };
        self.discard(lock, |number, place| {
            place.is_absent() && differs(number, place)
        });
        let places = self.queues.at(lock).in_order();
        let present = places.filter(|(number, place)| differs(*number, place));
        let present: Vec<Arrival> = present.map(|(number, _)| number).collect();
        for number in present {
            let place = self.queues.at(lock).place(number);
            entry.commit_any(place.and_then(|place| place.as_change(number)));
        }
    }

    /// Gives the tickets that came with the value their places. There may be very many; nearly all take the short path.
    fn import_tickets(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) {
        let mut others = Vec::new();
        let value = entry.value();
        if let Some(queue) = self.queues.get_mut(lock) {
            if let Some((last, _)) = value.last_ticket() {
                self.holds.tokens.observe(last.0, now);
            }
            queue.expect(value.queued().saturating_sub(queue.len()));
            for (number, ticket) in value.tickets() {
                let same = |place: &Place| place.ticket.is_some() && *place.owner == *ticket.owner;
                let free = match self.queues.at(lock).place(number) {
                    Some(place) if same(place) => continue,
                    place => place.is_none(),
                };
                let usual = ticket.claim <= self.policy.max_claim_ms
                    && (value.holders() == 0 || value.hold(&ticket.owner).is_none());
                let mut due = None;
                let entered = free && usual && {
                    let owner = Rc::from(&*ticket.owner);
                    let mut place = Place::brought(owner, ticket.share, number, now);
                    let window = ticket.claim.max(self.policy.claim_window_ms);
                    let until = now.steady().after(window);
                    due = Some(self.holds.timers.add(until, Due::Window(lock, number)));
                    place.keep(ticket.claim, until, due);
                    self.queues.insert(lock, number, place)
                };
                if !entered {
                    self.holds.timers.clear(&mut due);
                    others.push((number, ticket.clone()));
                }
            }
        }
        for (number, ticket) in others {
            self.import_ticket(entry, now, lock, number, ticket);
        }
    }

    fn import_ticket(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        brought: Arrival,
        ticket: Ticket,
    ) {
        if entry.hold(&ticket.owner).is_some() {
            // A holder has no place.
            return entry.commit(&Change::Unticket { number: brought });
        }
        if let Some(number) = self.queues.at(lock).number_of(&ticket.owner) {
            self.dismiss(entry, now, lock, number);
        }
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that is settled has a queue");
        };
        let taken = queue.place(brought).is_some();
        if taken {
            entry.commit(&Change::Unticket { number: brought });
        }
        let number = match taken {
            true => self.holds.tokens.arrival(now),
            false => brought,
        };
        let (claim, share) = (ticket.claim.min(self.policy.max_claim_ms), ticket.share);
        let mut place = Place::brought(Rc::from(ticket.owner), share, brought, now);
        place.set_claim(claim);
        if taken || claim != ticket.claim {
            entry.commit_any(place.as_change(number));
        }
        self.queues.insert(lock, number, place);
        let window = claim.max(self.policy.claim_window_ms);
        self.keep_ticket(lock, number, window, now);
    }

    /// Refuses all requests that wait at a key which holds another type now.
    pub(in crate::rules) fn refuse_all(&mut self, now: Now, lock: LockId) {
        self.discard(lock, |_, place| place.is_absent());
        let queue = self.queues.at(lock);
        let places = queue.in_order().map(|(number, _)| number);
        let numbers: Vec<Arrival> = places.collect();
        // There is no value to take a ticket from.
        let none = &mut Entry::<Box<Lock>>::default();
        for number in numbers {
            let outcome = self.refusal_at(lock, number, Refusal::WrongType);
            self.remove_place(none, now, lock, number, outcome);
        }
        self.queues.remove(lock);
    }
}
