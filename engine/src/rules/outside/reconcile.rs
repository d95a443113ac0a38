//! Bringing a queue and a value that came or went behind its back together again: RENAME, MOVE, RESTORE, SWAPDB, FLUSHALL, a
//! promotion, a load.

use crate::deadlock::two_upgrades;
use crate::invariants::broken;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::ledger::Due;
use crate::lock::{Change, Lock, Ticket};
use crate::outbox::Outcome;
use crate::queue::{LockId, Place};
use crate::refusal::Refusal;
use crate::rules::requests::acquire::refuse_overflow;
use crate::state::Engine;
use crate::types::{Arrival, Name, Now};
use std::collections::BTreeSet;
use std::rc::Rc;

impl Engine {
    /// Returns true if what is served here may change the queue of another lock whose value came or went behind its back. Mostly no
    /// queue is like that, and this one is not looked up.
    #[inline]
    pub(in crate::rules) fn abuts_stale(&self, lock: LockId) -> bool {
        if self.stale == 0 {
            return false;
        }
        let queue = self.queues.at(lock);
        self.stale > usize::from(queue.stale) && queue.is_shared()
    }

    /// Reconciles the queues of all locks that are wanted together with this one. A request that leaves this queue leaves
    /// theirs: had they not been looked at before, it would depend on which lock is settled first who was there when the
    /// value changed.
    ///
    /// A request whose hold has left any of them is refused before it meets the holds that have come to another: it has no
    /// ground any more, whatever else is in its way.
    #[cold]
    pub(in crate::rules) fn reconcile_beside(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        lock: LockId,
    ) {
        let mut found = BTreeSet::from([lock]);
        let mut stale = vec![lock];
        let mut seen = 0;
        while let Some(&next) = stale.get(seen) {
            seen += 1;
            let beside = self.stale_beside(next).into_iter();
            stale.extend(beside.filter(|other| found.insert(*other)));
        }
        let named = |lock: LockId| (lock, self.queues.at(lock).name.clone());
        let stale: Vec<(LockId, Name)> = stale.into_iter().map(named).collect();
        for (other, name) in &stale {
            let entry = keys.entry(name.as_ref());
            // Who waits under a key of another type is told so when that lock is settled.
            if !entry.foreign {
                self.refuse_groundless(entry, now, *other);
            }
        }
        for (other, name) in stale {
            let entry = keys.entry(name.as_ref());
            if !entry.foreign && other != lock && !self.reconcile(entry, now, other) {
                broken!("the tickets of locks that are wanted together are taken in at once");
            }
        }
    }

    /// The locks that are wanted together with this one, and whose value came or went behind their queue's back.
    fn stale_beside(&self, lock: LockId) -> BTreeSet<LockId> {
        let queue = self.queues.at(lock);
        let parts = queue.in_order().filter(|(_, place)| place.is_part());
        let ids = parts.filter_map(|(_, place)| place.request());
        let ids = ids.chain(queue.counts_on.iter().copied());
        let many = ids.filter_map(|id| self.requests.get(id));
        let locks = many.flat_map(|many| many.parts().iter().map(|part| part.lock));
        let stale = |lock: &LockId| self.queues.at(*lock).stale;
        locks.filter(stale).collect()
    }

    /// Refuses the upgrade, and the requests for many locks, whose hold of this lock has left it.
    fn refuse_groundless(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) {
        let upgrade = self.queues.at(lock).upgrade();
        if upgrade.is_some_and(|place| entry.hold(&place.owner).is_none()) {
            // It is in nobody's way any more.
            let not_held = Outcome::Refused(Refusal::NotHeld);
            self.remove_place(entry, now, lock, Arrival::AHEAD, not_held);
        }
        self.refuse_unfounded(entry, now, lock);
    }

    /// Brings the queue and its value together again.
    ///
    /// An owner that waits and now holds is answered. An owner that is present keeps its place, its ticket made anew; an
    /// absent ticket lives and dies with the value. Tickets that came with the value begin as absent, with a fresh window. What
    /// a user has brought is bounded. Returns false if tickets are left to the next step: then it is to be gone on with before
    /// anything else.
    pub(in crate::rules) fn reconcile(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(lock).filter(|queue| queue.stale) else {
            return true;
        };
        queue.stale = false;
        self.stale -= 1;
        if let Some(from) = queue.taken_in.take() {
            return self.take_in_tickets(entry, now, lock, from);
        }
        if entry.lock.is_some() {
            entry.touch_ttl();
        }
        entry.bound_restored(now.wall().after(self.policy.max_restored_ms));
        self.refuse_groundless(entry, now, lock);
        for number in self.places_of_holders(entry, lock) {
            self.meet_hold(entry, now, lock, number);
        }
        self.renew_lost_tickets(entry, lock);
        self.take_in_tickets(entry, now, lock, Arrival(0))
    }

    /// The places of owners that hold the lock, in order.
    fn places_of_holders(&self, entry: &Entry<impl Value>, lock: LockId) -> Vec<Arrival> {
        let queue = self.queues.at(lock);
        if queue.is_empty() {
            return Vec::new();
        }
        let holds = entry.value().holds();
        let places = holds.filter_map(|hold| queue.number_of(hold.owner));
        let mut places: Vec<Arrival> = places.collect();
        places.sort_unstable();
        places
    }

    /// A hold has come to this lock, and its owner has a place in the queue: the request that waits there is answered as a
    /// re-entry, or goes on as an upgrade. A ticket there is dropped.
    fn meet_hold(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        number: Arrival,
    ) {
        let queue = self.queues.at(lock);
        let Some(place) = queue.place(number) else {
            return broken!("a place that was just found is there");
        };
        let Some(hold) = entry.hold(&place.owner) else {
            return broken!("who was just found to hold the lock holds it");
        };
        let request = place
            .request()
            .and_then(|id| Some((id, self.requests.get(id)?)));
        let outcome = match (request, queue.upgrade()) {
            (None, _) => Outcome::Cancelled,
            (Some((id, _)), _) if hold.limit <= place.limit && place.is_part() => {
                return self.count_on_hold(lock, number, id);
            }
            (Some((_, request)), _) if hold.limit <= place.limit => {
                let overflow = refuse_overflow(entry, &request.owner, &request.terms);
                match self.policy.quarantined(now) {
                    true => Outcome::Refused(self.withheld(now)),
                    false => match overflow {
                        Err(error) => Outcome::Refused(error),
                        Ok(()) => return self.grant_place(entry, now, lock, number),
                    },
                }
            }
            _ if number == Arrival::AHEAD => return,
            (_, None) => return self.make_upgrade(entry, lock, number),
            (_, Some(other)) => {
                let error = two_upgrades(&place.owner, &other.owner);
                Outcome::Refused(error)
            }
        };
        self.remove_place(entry, now, lock, number, outcome);
    }

    /// A place becomes the waiting upgrade's.
    fn make_upgrade(&mut self, entry: &mut Entry<impl Value>, lock: LockId, number: Arrival) {
        let Some(mut place) = self.remove_from_queue(entry, lock, number) else {
            return broken!("a place that was just found is there");
        };
        place.ticket = None;
        let request = place.request();
        let queue = self.queues.get_mut(lock);
        match queue.is_some_and(|queue| queue.insert(Arrival::AHEAD, *place)) {
            true => self.places += 1,
            false => broken!("no upgrade waits where one begins to"),
        }
        if let Some(id) = request {
            self.requests.set_place(id, lock, Some(Arrival::AHEAD));
        }
    }

    /// Tickets that have gone with their value: of an owner that is present it is made anew, an absent one has gone.
    fn renew_lost_tickets(&mut self, entry: &mut Entry<impl Value>, lock: LockId) {
        let value = entry.value();
        let lost = |number: Arrival, place: &Place| {
            let ticket = value.ticket(number);
            place.ticket.is_some() && ticket.is_none_or(|ticket| *ticket.owner != *place.owner)
        };
        self.discard(lock, |number, place| {
            place.is_absent() && lost(number, place)
        });
        let queue = self.queues.at(lock);
        let places = queue.in_order();
        let lost: Vec<Arrival> = places
            .filter(|(number, place)| lost(*number, place))
            .map(|(number, _)| number)
            .collect();
        for number in lost {
            let place = self.queues.at(lock).place(number);
            entry.commit_any(place.and_then(|place| place.as_change(number)));
        }
    }

    /// Tickets that came with the value take their places. There may be very many, and of nearly all of them nothing more is to be
    /// said. Those before `from` have theirs. Returns true if all have.
    fn take_in_tickets(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        from: Arrival,
    ) -> bool {
        // Of locks that are wanted together none is served before all are as they are to be.
        let shared = self.queues.at(lock).is_shared();
        let steps = self.room_for_tickets.filter(|_| !shared);
        let mut room = steps.unwrap_or(usize::MAX);
        let mut left = None;
        let mut others = Vec::new();
        let value = entry.value();
        if let Some(queue) = self.queues.get_mut(lock) {
            if let Some((last, _)) = value.last_ticket() {
                self.ledger.tokens.observe(last.0, now);
            }
            queue.expect(value.queued().saturating_sub(queue.len()));
            for (number, ticket) in value.tickets_from(from) {
                let same = |place: &Place| {
                    (&*place.owner, place.limit, place.claim())
                        == (&*ticket.owner, ticket.limit, Some(ticket.claim))
                };
                let free = match queue.place(number) {
                    Some(place) if same(place) => continue,
                    place => place.is_none(),
                };
                if room == 0 {
                    left = Some(number);
                    break;
                }
                room -= 1;
                let usual = ticket.claim <= self.policy.max_claim_ms
                    && (value.holders() == 0 || value.hold(&ticket.owner).is_none());
                let entered = free
                    && usual
                    && queue.insert_brought(number, &ticket.owner, |owner| {
                        let mut place = Place::brought(owner, ticket.limit, number, now);
                        let window = ticket.claim.max(self.policy.claim_window_ms);
                        let until = now.steady().after(window);
                        let due = self.ledger.timers.add(until, Due::Window(lock, number));
                        place.keep(ticket.claim, until, due);
                        place
                    });
                match entered {
                    true => self.places += 1,
                    false => others.push((number, ticket.clone())),
                }
            }
        }
        for (number, ticket) in others {
            self.take_in_ticket(entry, now, lock, number, ticket);
        }
        self.room_for_tickets = steps.map(|_| room).or(self.room_for_tickets);
        if left.is_some() {
            self.distrust(lock);
            if let Some(queue) = self.queues.get_mut(lock) {
                queue.taken_in = left;
            }
        }
        left.is_none()
    }

    fn take_in_ticket(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        brought: Arrival,
        ticket: Ticket,
    ) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that is settled has a queue");
        };
        let place = queue.number_of(&ticket.owner);
        if place == Some(brought) {
            return self.meet_ticket(entry, now, lock, brought, &ticket);
        }
        self.ledger.tokens.observe(brought.0, now);
        let taken = queue.place(brought).is_some();
        // One place an owner, and none for a holder.
        let superfluous = place.is_some() || entry.hold(&ticket.owner).is_some();
        if superfluous || taken {
            entry.commit(&Change::Unticket { number: brought });
        }
        if superfluous {
            return;
        }
        let number = match taken {
            true => self.ledger.tokens.arrival(now),
            false => brought,
        };
        let claim = ticket.claim.min(self.policy.max_claim_ms);
        let mut place = Place::brought(Rc::from(ticket.owner), ticket.limit, brought, now);
        place.set_claim(claim);
        if taken || claim != ticket.claim {
            entry.commit_any(place.as_change(number));
        }
        self.places += usize::from(queue.insert(number, place));
        let window = claim.max(self.policy.claim_window_ms);
        self.keep_ticket(lock, number, window, now);
    }

    /// A ticket came to its own place. Either may have been asked for anew since they were parted.
    fn meet_ticket(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        number: Arrival,
        ticket: &Ticket,
    ) {
        let Some(place) = self.queues.place_mut(lock, number) else {
            return broken!("a place that was just found is there");
        };
        if (place.limit, place.claim()) == (ticket.limit, Some(ticket.claim)) {
            return;
        }
        if !place.is_absent() {
            return entry.commit_any(place.as_change(number));
        }
        place.set_claim(ticket.claim);
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.set_limit(number, ticket.limit);
        }
        let window = ticket.claim.max(self.policy.claim_window_ms);
        self.keep_ticket(lock, number, window, now);
    }

    /// The key became something else under those who wait for a lock.
    pub(in crate::rules) fn refuse_all(&mut self, now: Now, lock: LockId) {
        self.discard(lock, |_, place| place.is_absent());
        let queue = self.queues.at(lock);
        let places = queue.in_order().map(|(number, _)| number);
        let numbers: Vec<Arrival> = places.collect();
        let counting: Vec<_> = queue.counts_on.iter().copied().collect();
        // There is no value to take a ticket from.
        let none = &mut Entry::<Box<Lock>>::default();
        for number in numbers {
            let outcome = Outcome::Refused(Refusal::WrongType);
            self.remove_place(none, now, lock, number, outcome);
        }
        for id in counting {
            self.end_wait(id, now, Outcome::Refused(Refusal::WrongType), |_| false);
        }
        self.drop_queue(lock);
    }
}
