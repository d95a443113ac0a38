//! Undelivered answers: their connection has ended before it got them, or replicas have not confirmed them. The engine revokes
//! their new holds.
//!
//! One rule for both. A *new* hold that no later command of its owner has touched (re-entered, renewed, downgraded, partly
//! released) ends, and the ticket that its owner had by `CLAIM` stands again. In a request for many locks this holds for each lock
//! by itself. A hold that was touched stays as that command answered it, since its client got that answer. Nothing else is undone:
//! an undelivered re-entry or upgrade stands. No program learns the token of a new hold in a session before it is confirmed, so
//! such a hold ends whatever came after it.

use crate::keyspace::{exists, Entry, Keyspace, Value};
use crate::lock::Hold;
use crate::log::How;
use crate::outbox::{Outcome, Promise};
use crate::queue::Place;
use crate::rules::requests::hold::held;
use crate::state::Engine;
use crate::types::{Arrival, HoldRef, Name, NameRef, Now};

impl Engine {
    /// Notes that the answer which promises these holds was not delivered. The engine revokes the new ones as soon as changes are
    /// possible. Where a session was to learn of a hold, it gets the row `again` now.
    pub fn on_undelivered(&mut self, promises: impl IntoIterator<Item = Promise>) {
        for promise in promises {
            // A grant that still waits for its own confirmation outlasts the answers after it.
            let hold = promise.hold();
            if self.holds.unconfirmed.get(&hold) == Some(&promise.is_new) {
                self.holds.unconfirmed.remove(&hold);
            }
            if let Some(session) = promise.session {
                let (name, owner) = (promise.name.as_ref(), &*promise.owner);
                let whose = HoldRef { name, owner };
                self.holds
                    .sessions
                    .wait_ended(session, &Outcome::Moved, whose);
            }
            if promise.is_new {
                self.undelivered.insert(promise.token, promise);
            }
        }
    }

    /// Returns true if a hold is to be revoked, as soon as changes are possible.
    pub(in crate::rules) fn is_to_be_revoked(&self, promise: &Promise) -> bool {
        let noted = self.undelivered.get(&promise.token);
        let noted = noted.filter(|noted| noted.name == promise.name);
        noted.is_some_and(|noted| noted.session.is_some())
    }

    /// Returns true if there may be holds to revoke.
    pub fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Revokes the new holds of undelivered answers, and serves the queues as if they had not been granted. Call it before
    /// anything else is decided, and only when this server would accept a write.
    pub fn revoke_undelivered(&mut self, keys: &mut impl Keyspace, now: Now) {
        if self.undelivered.is_empty() {
            return;
        }
        let mut free = Vec::new();
        for promise in std::mem::take(&mut self.undelivered).into_values() {
            if keys.can_write(promise.name.as_ref()) {
                free.extend(self.revoke_one(keys, now, promise));
            } else if exists(keys, promise.name.as_ref()) {
                self.undelivered.insert(promise.token, promise);
            }
            // A lock that has left with its slot cannot be changed from here.
        }
        // All of them end first: a request that waits for several gets them together.
        for name in free {
            self.settle_name(keys, now, name.as_ref());
        }
        self.follow_up(keys, now);
    }

    /// Ends a hold, if it is still there and as its grant made it. Returns the lock, for settlement.
    fn revoke_one(&mut self, keys: &mut impl Keyspace, now: Now, promise: Promise) -> Option<Name> {
        let (name, owner) = (promise.name.as_ref(), &*promise.owner);
        let entry = keys.entry(name);
        let untouched = |hold: &Hold| promise.session.is_some() || hold.fresh;
        held(entry, owner, Some(promise.token))
            .ok()
            .filter(untouched)?;
        // No client knows of it, so nobody loses it.
        let (whose, how) = (HoldRef { name, owner }, How::Undelivered);
        if let Some(id) = self.holds.ties.find_hold(whose, promise.token) {
            self.holds.untie_silently(id);
        }
        self.holds
            .end(&self.queues, entry, whose, promise.token, how, now);
        if let Some((number, place)) = promise.ticket {
            self.put_back(entry, now, name, number, *place);
        }
        Some(promise.name)
    }

    /// Puts a ticket back at its number, as absent, and begins its window. Nothing happens if the number is taken, if its owner has
    /// another place by now, or if the key holds something else.
    fn put_back(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        name: NameRef,
        number: Arrival,
        mut place: Place,
    ) {
        let lock = self.queues.id_or_new(name);
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        let taken = entry.value().ticket(number).is_some();
        if taken || entry.foreign || queue.number_of(&place.owner).is_some() {
            return;
        }
        place.vacate();
        let ticket = place
            .as_change(number)
            .filter(|_| queue.place(number).is_none());
        if let Some(ticket) = ticket {
            entry.commit(&ticket);
            self.queues.insert(lock, number, place);
            self.begin_window(lock, number, now);
        }
    }
}
