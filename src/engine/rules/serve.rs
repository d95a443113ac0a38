//! Serving: the only place where a queue moves.

use super::grantable::{Grantable, Way};
use crate::engine::keyspace::Entry;
use crate::engine::ledger::{Claim, Outcome, Recipient};
use crate::engine::queue::place::{Occupant, Place};
use crate::engine::queue::LockId;
use crate::engine::state::{Engine, Next};
use crate::engine::types::{Arrival, NameRef, Now, RequestId};
use crate::error::Error;
use std::num::NonZeroU32;

/// Grants that one settlement makes at most. A larger mass (readers by the ten thousand) is worked off in steps, so
/// that the server answers others in between; those left over still come before every newcomer.
const GRANTS_A_STEP: usize = 256;

/// What one step of serving a queue led to.
enum Served {
    /// The head was granted, or has gone: the next is to be looked at.
    Moved,
    /// The head has to wait, or there is none.
    Waits,
    /// The head could be granted, but not now.
    Later,
}

impl Engine {
    /// Grants the head while it is compatible: first the waiting upgrade, then the queue. Gives whether a compatible
    /// head may be left because the step is full.
    pub(super) fn serve(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        lock: LockId,
    ) -> bool {
        for _ in 0..GRANTS_A_STEP {
            if !self.disconnected.is_empty() && self.drop_disconnected_head(entry, now, lock) {
                continue;
            }
            match self.serve_head(entry, now, name, lock) {
                Served::Moved => {}
                Served::Waits => return false,
                Served::Later => return true,
            }
        }
        true
    }

    /// Drops a head whose client has disconnected. Gives whether there was one.
    fn drop_disconnected_head(&mut self, entry: &mut Entry, now: Now, lock: LockId) -> bool {
        let head = self.queues.at(lock).head().map(|(_, place)| place);
        let ended = head.filter(|place| self.is_disconnected(place));
        let Some(id) = ended.and_then(Place::request) else {
            return false;
        };
        if let Some((left, _)) = self.depart(id, now) {
            self.tell(left, lock, Outcome::Gone);
        }
        self.drop_lapsed(entry, now, lock);
        true
    }

    fn is_disconnected(&self, place: &Place) -> bool {
        let client = match &place.occupant {
            Occupant::Absent => return false,
            Occupant::One(request) => request.client,
            Occupant::Part(id) => match self.requests.many(*id) {
                Some(many) => many.client,
                None => return false,
            },
        };
        self.disconnected.contains_key(&client)
    }

    /// One step of serving a queue.
    fn serve_head(&mut self, entry: &mut Entry, now: Now, name: NameRef, lock: LockId) -> Served {
        let queue = self.queues.at(lock);
        let Some((number, head)) = queue.head() else {
            return Served::Waits;
        };
        if number == Arrival::AHEAD && entry.hold(&head.owner).is_none() {
            let not_held = Outcome::Refused(Error::NotHeld);
            self.remove_place(entry, now, lock, number, not_held);
            return Served::Moved;
        }
        let want = (&*head.owner, head.limit);
        let way = Way::to(number);
        match self.grantable(entry, queue, now, want, way) {
            _ if head.is_absent() => return Served::Waits,
            Grantable::Now => {}
            Grantable::Closed => return Served::Later,
            Grantable::Withheld => {
                self.held_back = true;
                return Served::Waits;
            }
            Grantable::Blocked | Grantable::Full => return Served::Waits,
        }
        if let Occupant::Part(id) = head.occupant {
            // Granted together with its other locks, or not at all.
            self.next.insert(Next::Many(id));
            return Served::Waits;
        }
        let Some(place) = self.take_out(entry, now, lock, number) else {
            return Served::Waits;
        };
        self.grant(entry, now, (name, lock), *place);
        Served::Moved
    }

    /// Takes a place that is granted out of its queue, its ticket with it.
    pub(super) fn take_out(
        &mut self,
        entry: &mut Entry,
        now: Now,
        lock: LockId,
        number: Arrival,
    ) -> Option<Box<Place>> {
        let place = self.uproot(entry, lock, number)?;
        let name = self.queues.at(lock).name.as_ref();
        self.ledger.counters.waited(name, place.waited_us(now));
        Some(place)
    }

    /// Grants the lock to a place that has been taken out, and answers the request that waited there.
    pub(super) fn grant(
        &mut self,
        entry: &mut Entry,
        now: Now,
        (name, lock): (NameRef, LockId),
        place: Place,
    ) {
        let Occupant::One(request) = place.occupant else {
            return;
        };
        let claim = Claim {
            name,
            owner: &place.owner,
            limit: place.limit,
            lease: request.lease,
            holds: request.holds.map(NonZeroU32::get),
            client: request.client,
            session: request.session,
        };
        let outcome = match self.ledger.grant(&self.policy, entry, now, &claim) {
            Ok(grant) => {
                self.ledger.counters.grants_waited += u64::from(grant.holds == grant.added);
                Outcome::Granted(grant)
            }
            Err(error) => Outcome::Refused(error),
        };
        let mut until = request.until;
        self.ledger.timers.clear(&mut until);
        let owner = self.requests.hash(&place.owner);
        self.delist(request.id, owner, request.client);
        let to = Recipient {
            id: request.id,
            channel: request.channel,
            owner: &place.owner,
        };
        self.ledger.tell(to, &self.queues.at(lock).name, outcome);
        self.suspect_if_waiting(lock, owner);
    }

    /// Refuses the requests for many locks that counted on a hold here which has ended, or no longer is what they ask for.
    pub(super) fn refuse_unfounded(&mut self, entry: &mut Entry, now: Now, lock: LockId) {
        let queue = self.queues.at(lock);
        if queue.counting.is_empty() {
            return;
        }
        let unfounded = |id: &RequestId| {
            let many = self.requests.many(*id);
            !many.is_some_and(|many| {
                let hold = entry.hold(&many.owner);
                hold.is_some_and(|hold| hold.limit <= many.limit)
            })
        };
        let ids: Vec<RequestId> = queue.counting.iter().copied().filter(unfounded).collect();
        for id in ids {
            self.dismiss(id, now, Outcome::Refused(Error::NotHeld));
        }
    }
}
