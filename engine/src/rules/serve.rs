//! Serving: the only place where a queue moves. A place of a request for many locks is granted with its others, in
//! `requests::many`.

use super::grantable::{Grantable, RequestKind};
use crate::invariants::broken;
use crate::keyspace::{Entry, Value};
use crate::outbox::{Outcome, Pending};
use crate::queue::{LockId, Part, Place, Request};
use crate::refusal::Refusal;
use crate::state::{Engine, FollowUp};
use crate::types::{Arrival, HoldRef, Now};

/// The most grants of one settlement. A larger mass (readers by the ten thousand) is granted in steps, so that the server answers
/// others in between; those left over still come before every newcomer.
const GRANTS_A_STEP: usize = 256;

/// The result of one step of serving a queue.
enum Served {
    /// The head was granted, or has gone: the next one is served.
    Moved,
    /// The head has to wait, or there is none.
    Waits,
    /// The head could be granted, but not now.
    Later,
}

impl Engine {
    /// Grants the head while it is compatible: first the waiting upgrade, then the queue. Returns true if a compatible
    /// head may be left: the step is full, the slot is leaving, or the queue is not reconciled up to it.
    pub(super) fn serve(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) -> bool {
        for _ in 0..GRANTS_A_STEP {
            while self.drop_left_head(entry, now, lock) {}
            if !self.ended.is_empty() && self.drop_ended_head(entry, now, lock) {
                continue;
            }
            match self.serve_head(entry, now, lock) {
                Served::Moved => {}
                Served::Waits => return false,
                Served::Later => return true,
            }
        }
        true
    }

    /// Drops a head whose request has left. Returns true if there was one.
    fn drop_left_head(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) -> bool {
        let head = self.queues.at(lock).head();
        let left = head.filter(|(_, place)| self.has_left(place));
        let Some((number, _)) = left else {
            return false;
        };
        self.remove_place(entry, now, lock, number, Outcome::Gone);
        true
    }

    /// Drops a head whose session has ended. Returns true if there was one.
    fn drop_ended_head(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) -> bool {
        let head = self.queues.at(lock).head().map(|(_, place)| place);
        let ended = head.filter(|place| self.has_ended(place));
        let Some(id) = ended.and_then(Place::request) else {
            return false;
        };
        self.end_wait_later(id, now, Outcome::Gone);
        self.drop_lapsed(entry, now, lock);
        true
    }

    fn has_ended(&self, place: &Place) -> bool {
        let session = self.session_of_place(place);
        session.is_some_and(|no| self.holds.sessions.is_closed(no))
    }

    /// Serves the head of a queue.
    fn serve_head(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) -> Served {
        let queue = self.queues.at(lock);
        let Some((number, head)) = queue.head() else {
            return Served::Waits;
        };
        if number == Arrival::UPGRADE_SLOT && entry.hold(&head.owner).is_none() {
            let not_held = Outcome::Refused(Refusal::NotHeld);
            self.remove_place(entry, now, lock, number, not_held);
            return Served::Moved;
        }
        if head.is_absent() {
            return Served::Waits;
        }
        let kind = RequestKind::to(number);
        let grantable = self.grantable(entry, queue, now, &head.owner, head.share, kind);
        let waiting = head.request().and_then(|id| self.requests.get(id));
        let kept_back = waiting.is_some_and(|request| !self.may_be_granted(request));
        match grantable {
            Grantable::Now | Grantable::Withheld if kept_back => {
                let request = head.request();
                // A demotion forgets the sessions at once, and their requests in steps.
                if self.drop_ended_head(entry, now, lock) {
                    return Served::Moved;
                }
                if let Some(id) = request {
                    self.withhold(id);
                }
                return Served::Waits;
            }
            Grantable::Now => {}
            Grantable::Closed => return Served::Later,
            Grantable::Withheld => {
                self.held_back = true;
                return Served::Waits;
            }
            Grantable::Blocked | Grantable::Full => return Served::Waits,
        }
        let request = head.request();
        if waiting.is_some_and(Request::is_many) {
            // Granted together with its other locks, or not at all.
            self.follow_ups.extend(request.map(FollowUp::Many));
            return Served::Waits;
        }
        self.grant_place(entry, now, lock, number);
        Served::Moved
    }

    /// Grants the lock to a place, and answers the request that waits there, which is for this lock only.
    pub(super) fn grant_place(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        number: Arrival,
    ) {
        let place = self.queues.at(lock).place(number);
        let Some(id) = place.and_then(Place::request) else {
            return broken!("a request waits at a place that is granted");
        };
        let Some(mut request) = self.unregister(id, now) else {
            return broken!("a request that waits is registered");
        };
        let until = request.until.map(|due| due.at);
        self.holds.timers.clear(&mut request.until);
        let name = self.queues.at(lock).name.clone();
        let whose = HoldRef {
            name: name.as_ref(),
            owner: &request.owner,
        };
        let at = Part::at(Some(lock), Some(number));
        let (outcome, promise) = match self.award(entry, now, whose, &request.terms, at) {
            Ok((grant, promise)) => (Outcome::Granted(grant), promise),
            Err(error) => (Outcome::Refused(error), None),
        };
        let pending = Pending::new(promise.into_iter().collect(), until);
        self.put_out(id, &request, &name, outcome, pending);
    }
}
