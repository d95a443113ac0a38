//! Reconciling a queue with a value that has arrived or left without a command of the module's: RENAME, MOVE, RESTORE, SWAPDB,
//! FLUSHALL, a promotion, a load.
//!
//! The value keeps its holders and tickets, and every place stands by its number. A waiting owner that holds
//! nothing, and for whom the value has a hold or a ticket of another number, is answered: it would not get what it asked for.

use crate::holds::Due;
use crate::invariants::broken;
use crate::keyspace::{Entry, Value};
use crate::lock::{Change, Lock, Ticket};
use crate::outbox::Outcome;
use crate::queue::{LockId, Place, Request};
use crate::refusal::Refusal;
use crate::rules::grantable::upgrades;
use crate::state::Engine;
use crate::types::{Arrival, Now};
use std::rc::Rc;

/// The most places, and tickets, that one settlement reconciles or refuses.
const RECONCILED_A_STEP: usize = 1024;

impl Engine {
    /// Begins to reconcile the queue with its value; [`Engine::reconcile_next`] continues.
    ///
    /// An owner that waits and now holds the lock is answered. An owner that is present keeps its place, and its ticket is
    /// written again; an absent ticket lives and dies with the value. Tickets that came with the value begin as absent: with the
    /// rest of their window if the value has only moved, or else with a fresh one. The leases that a user has brought are bounded.
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
        let upgrade = self.queues.at(lock).upgrade();
        let strengthens = |place: &Place| {
            let hold = entry.hold(&place.owner);
            hold.is_some_and(|hold| upgrades(&hold, place.share.limit))
        };
        if upgrade.is_some_and(|place| !strengthens(place)) {
            self.dismiss(entry, now, lock, Arrival::UPGRADE_SLOT);
        }
        let value = entry.value();
        self.discard(lock, |number, place| differs(value, number, place));
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.reconciled = Some(Arrival::UPGRADE_SLOT);
        }
    }

    /// Reconciles the next places and tickets, in order. The value may have as many tickets as the queue has places, and both may be
    /// very many.
    pub(in crate::rules) fn reconcile_next(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
    ) {
        let queue = self.queues.at(lock);
        let Some(from) = queue.reconciled else {
            return;
        };
        let last = RECONCILED_A_STEP - 1;
        let place = queue.behind(from).nth(last).map(|(number, _)| number);
        let ticket = entry.value().tickets_behind(from).nth(last);
        let ticket = ticket.map(|(number, _)| number);
        let until = place.into_iter().chain(ticket).min();
        let part = |(number, _): &(Arrival, &Place)| until.is_none_or(|until| *number <= until);
        if entry.holders() > 0 {
            let places = queue.behind(from).take_while(part);
            let held = places.filter(|(_, place)| entry.hold(&place.owner).is_some());
            for number in held.map(|(number, _)| number).collect::<Vec<_>>() {
                self.dismiss(entry, now, lock, number);
            }
        }
        let places = self.queues.at(lock).behind(from).take_while(part);
        let lacking = places.filter(|(number, place)| differs(entry.value(), *number, place));
        for number in lacking.map(|(number, _)| number).collect::<Vec<_>>() {
            let place = self.queues.at(lock).place(number);
            entry.commit_any(place.and_then(|place| place.as_change(number)));
        }
        self.import_tickets(entry, now, lock, from, until);
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.reconciled = until;
        }
    }

    /// Removes a place whose owner has a hold or a ticket by the value. A request that waits there leaves all of its queues: its
    /// client has to ask again.
    fn dismiss(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId, number: Arrival) {
        let outcome = self.refusal_at(lock, number, Refusal::TryAgain);
        self.remove_place(entry, now, lock, number, outcome);
    }

    /// Returns the outcome of a request that is refused at this place: one for many locks learns at which key.
    fn refusal_at(&self, lock: LockId, number: Arrival, refusal: Refusal) -> Outcome {
        let queue = self.queues.at(lock);
        let id = queue.place(number).and_then(Place::request);
        let request = id.and_then(|id| self.requests.get(id));
        Outcome::Refused(if request.is_some_and(Request::is_many) {
            refusal.at(&queue.name.key)
        } else {
            refusal
        })
    }

    /// Gives the tickets between these numbers, which came with the value, their places. Nearly all take the short path.
    fn import_tickets(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        from: Arrival,
        until: Option<Arrival>,
    ) {
        let value = entry.value();
        if let Some((last, _)) = value.last_ticket() {
            self.holds.tokens.observe(last.0, now);
        }
        let noted = !self.windows.is_empty();
        let default = self.policy.claim_window_ms;
        let tickets = value.tickets_behind(from);
        let tickets = tickets.take_while(|(number, _)| until.is_none_or(|until| *number <= until));
        let queue = self.queues.at(lock);
        let same = |place: &Place, ticket: &Ticket| {
            place.ticket.is_some() && *place.owner == *ticket.owner
        };
        let windows = &mut self.windows;
        let new = tickets.filter(|(number, ticket)| {
            let place = queue.place(*number);
            let here = place.is_some_and(|place| same(place, ticket));
            if here && noted {
                // Its window is that of the place. A copy that comes later has another.
                windows.remove(number);
            }
            !here
        });
        let new: Vec<(Arrival, &Ticket)> = new.collect();
        let (mut arriving, mut others) = (Vec::new(), Vec::new());
        let Some(queue) = self.queues.get_mut(lock).filter(|_| !new.is_empty()) else {
            return;
        };
        queue.expect(new.len());
        for (number, ticket) in new {
            let owner: Rc<[u8]> = Rc::from(&*ticket.owner);
            let usual = ticket.claim <= self.policy.max_claim_ms
                && (value.holders() == 0 || value.hold(&ticket.owner).is_none())
                && queue.place(number).is_none();
            if !usual || !queue.enter(&owner, number) {
                others.push((number, ticket.clone()));
                continue;
            }
            let mut place = Place::brought(owner, ticket.share, number, now);
            let mut until = now.steady().after(ticket.claim.max(default));
            if let Some(before) = noted.then(|| self.windows.remove(&number)).flatten() {
                until = until.min(before);
            }
            let due = self.holds.windows.add(until, Due::Window(lock, number));
            place.keep(ticket.claim, until, Some(due));
            arriving.push((number, Box::new(place)));
        }
        self.queues.merge(lock, arriving);
        for (number, ticket) in others {
            self.import_ticket(entry, now, lock, number, ticket);
        }
    }

    pub(in crate::rules) fn import_ticket(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        brought: Arrival,
        ticket: Ticket,
    ) {
        let (claim, share) = (ticket.claim.min(self.policy.max_claim_ms), ticket.share);
        let window = self.window_left(brought, claim, now);
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
        let number = if taken {
            self.holds.tokens.arrival(now)
        } else {
            brought
        };
        let mut place = Place::brought(Rc::from(ticket.owner), share, brought, now);
        place.set_claim(claim);
        if taken || claim != ticket.claim {
            entry.commit_any(place.as_change(number));
        }
        self.queues.insert(lock, number, place);
        self.keep_ticket(lock, number, window, now);
    }

    /// Refuses the requests that wait at a key which holds another type now, in steps.
    pub(in crate::rules) fn refuse_all(&mut self, now: Now, lock: LockId) {
        self.discard(lock, |_, _| true);
        let queue = self.queues.at(lock);
        let places = queue.in_order().map(|(number, _)| number);
        let numbers: Vec<Arrival> = places.take(RECONCILED_A_STEP).collect();
        // There is no value to take a ticket from.
        let none = &mut Entry::<Box<Lock>>::default();
        for number in numbers {
            let outcome = self.refusal_at(lock, number, Refusal::WrongType);
            self.remove_place(none, now, lock, number, outcome);
        }
        match self.queues.get_mut(lock) {
            Some(queue) if !queue.is_empty() => {
                queue.dirty = false;
                self.mark(lock);
            }
            _ => self.queues.remove(lock),
        }
    }
}

/// Returns true if a place is a ticket that the value lacks, or has in another form.
fn differs(value: &Lock, number: Arrival, place: &Place) -> bool {
    let ticket = value.ticket(number);
    let known = ticket.map(|ticket| (&*ticket.owner, ticket.share, Some(ticket.claim)));
    place.ticket.is_some() && known != Some((&*place.owner, place.share, place.claim()))
}
