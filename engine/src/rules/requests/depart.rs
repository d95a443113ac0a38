//! Requests that leave their queues, and their places.

use crate::holds::Due;
use crate::invariants::broken;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::lock::{Change, Ticket};
use crate::log::{How, Subject};
use crate::outbox::{Outcome, Output, Pending, Receiver};
use crate::queue::{LockId, Part, Place, Request, WaitsAt};
use crate::refusal::Refusal;
use crate::rules::requests::acquire::{Ask, Wait};
use crate::state::{Engine, FollowUp, Left};
use crate::types::{Arrival, ClientId, HoldRef, Millis, Name, NameRef, Now, RequestId, SteadyMs};

/// The most tickets that one settlement drops. After a pause of the server very many may have lapsed.
const DROPPED_A_STEP: usize = 1024;

/// The most places of requests for many locks that one step removes: hundreds of these may leave together, with a thousand places
/// each.
const LEFT_A_STEP: usize = 4096;

impl Engine {
    /// Registers a request that waits.
    pub(in crate::rules) fn register(&mut self, id: RequestId, request: Box<Request>, now: Now) {
        self.note_waiting(id, &request, true, now);
        self.requests.add(id, request);
    }

    /// Removes a request from those that wait.
    pub(in crate::rules) fn unregister(&mut self, id: RequestId, now: Now) -> Option<Box<Request>> {
        let request = self.requests.remove(id)?;
        self.note_waiting(id, &request, false, now);
        Some(request)
    }

    /// Notes whether a request's connection is blocked, or whether its session waits.
    fn note_waiting(&mut self, id: RequestId, request: &Request, waits: bool, now: Now) {
        if let Some(session) = request.terms.session {
            self.holds.sessions.set_waiting(session, id, waits);
            if waits {
                self.begin_session_window(session, now);
            }
        } else if request.blocks() {
            let client = request.terms.client;
            self.holds.ties.set_waiting(client, waits, now.steady());
        }
    }

    /// Updates a waiting request's time-out and lease. If its session is not alive, the window of its places begins again.
    pub(in crate::rules) fn prolong_wait(&mut self, id: RequestId, now: Now, ask: &Ask) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let mut until = request.until.take();
        request.terms.lease = ask.terms.lease;
        request.terms.client = ask.terms.client;
        let session = request.terms.session;
        self.holds.timers.clear(&mut until);
        if let Wait::For(Some(ms)) = ask.wait {
            let at = now.steady().after(ms);
            request.until = Some(self.holds.timers.add(at, Due::Wait(id)));
        }
        if let Some(session) = session {
            self.begin_session_window(session, now);
        }
    }

    /// Removes a request from all places where it waits. The places stay, with nobody there.
    pub(in crate::rules) fn unregister_everywhere(
        &mut self,
        id: RequestId,
        now: Now,
    ) -> Option<Request> {
        let mut request = self.unregister(id, now)?;
        self.holds.timers.clear(&mut request.until);
        for part in request.parts() {
            let Some(queue) = self.queues.get_mut(part.lock) else {
                broken!("a lock that somebody waits for has a queue");
                continue;
            };
            let Some(place) = queue.place_mut(part.place) else {
                broken!("a request that waits has its place");
                continue;
            };
            place.vacate();
            queue.multi_places -= usize::from(request.is_many());
        }
        Some(*request)
    }

    /// Puts out the outcome of a request that has left.
    pub(in crate::rules) fn tell(&mut self, id: RequestId, left: Request, outcome: Outcome) {
        if let Some(session) = left.terms.session {
            for part in left.parts() {
                let name = self.queues.at(part.lock).name.as_ref();
                let owner = &left.owner;
                let whose = HoldRef { name, owner };
                self.holds.sessions.wait_ended(session, &outcome, whose);
            }
            return;
        }
        let lock = left.parts().first().map(|part| part.lock);
        let name = self.queues.at(lock).name.clone();
        self.put_out(id, &left, &name, outcome, Pending::default());
    }

    /// Puts out the outcome of a request. The rows of a session have its holds already, unless replicas must confirm them first.
    pub(in crate::rules) fn put_out(
        &mut self,
        id: RequestId,
        request: &Request,
        name: &Name,
        outcome: Outcome,
        pending: Pending,
    ) {
        let to = match request.terms.session {
            None => Receiver::Connection,
            Some(session) if self.policy.confirms() && outcome.promises() => {
                Receiver::Session(session)
            }
            Some(session) => {
                let (name, owner) = (name.as_ref(), &request.owner);
                let whose = HoldRef { name, owner };
                return self.holds.sessions.wait_ended(session, &outcome, whose);
            }
        };
        self.outbox.push(Output {
            to,
            ..Output::new(id, outcome, pending)
        });
    }

    /// Takes back the outcome of a request in the event in which it began to wait, so that it is answered at once. A grant that
    /// replicas must confirm stays where it is.
    pub(in crate::rules) fn take_answer(&mut self, id: RequestId) -> Option<Outcome> {
        let at = self.outbox.iter().rposition(|output| output.id == id)?;
        let promises = |output: &Output| output.outcome.promises();
        let waits = self.policy.confirms() && self.outbox.get(at).is_some_and(promises);
        (!waits).then(|| self.outbox.remove(at).outcome)
    }

    /// Ends a wait with an outcome. The request's places go, except in the queue of the lock `stays`: there the caller decides what
    /// becomes of it. The locks are settled before the event ends.
    pub(in crate::rules) fn end_wait(
        &mut self,
        id: RequestId,
        now: Now,
        outcome: Outcome,
        stays: LockId,
    ) {
        let Some(left) = self.unregister_everywhere(id, now) else {
            return;
        };
        self.log_wait(&left, How::of_wait(&outcome), now);
        for part in left.parts().iter().filter(|part| part.lock != stays) {
            self.free_place(part, now);
            self.follow_ups.insert(FollowUp::Lock(part.lock));
        }
        self.tell(id, left, outcome);
    }

    /// Removes a request from its queues in an event, and logs how its wait ended: its time is up, or its connection waits no longer.
    /// The locks are settled as soon as changes are possible. The places of a request for many locks go in steps: until then they count as gone.
    pub(in crate::rules) fn leave_queues(
        &mut self,
        id: RequestId,
        now: Now,
        how: Option<How>,
    ) -> Option<Request> {
        let mut request = self.unregister(id, now)?;
        self.holds.timers.clear(&mut request.until);
        if !self.keeps_place(&request) {
            self.log_wait(&request, how, now);
        }
        let timed_out = how == Some(How::TimedOut);
        let parts = match &request.at {
            WaitsAt::Many(parts) => parts.to_vec(),
            WaitsAt::One(part) => {
                self.leave_queue(*part, id, timed_out, now);
                return Some(*request);
            }
        };
        self.left.push_back(Left {
            id,
            timed_out,
            parts: parts.into_iter(),
        });
        Some(*request)
    }

    /// Returns true if the request's place is kept for its owner, who may ask again: then the wait has not ended.
    pub(in crate::rules) fn keeps_place(&self, request: &Request) -> bool {
        let WaitsAt::One(part) = &request.at else {
            return false;
        };
        let place = self.queues.at(part.lock).place(part.place);
        place.and_then(Place::claim).is_some_and(|claim| claim > 0)
    }

    /// Logs the end of a wait without a grant, if it is not ordinary. Its places are still there. A wait for many locks has one entry:
    /// of the first lock where another place was before it, or else of its first.
    fn log_wait(&mut self, request: &Request, how: Option<How>, now: Now) {
        let Some(how) = how else {
            return;
        };
        let before = |part: &&Part| self.queues.at(part.lock).rank(part.place) > Some(0);
        let parts = request.parts();
        let Some(part) = parts.iter().find(before).or(parts.first()) else {
            return;
        };
        let queue = self.queues.at(part.lock);
        let waited_us = queue.place(part.place).map(|place| place.waited_us(now));
        let session = request.terms.session;
        let session = session.and_then(|no| self.holds.sessions.get(no));
        let subject = Subject {
            name: queue.name.clone(),
            owner: request.owner.clone(),
            token: None,
            held_ms: None,
            waited_ms: waited_us.map(|us| us / 1000),
            client: request.terms.client,
            session: session.map(|session| session.name.clone()),
        };
        let waiting = queue.others(&request.owner);
        self.holds.log.add(now, subject, how, waiting);
    }

    /// Removes the places of the next requests for many locks that have left. Returns true if something is left.
    pub(in crate::rules) fn leave_next(&mut self, now: Now) -> bool {
        for _ in 0..LEFT_A_STEP {
            let Some(left) = self.left.front_mut() else {
                return false;
            };
            let (id, timed_out) = (left.id, left.timed_out);
            let Some(part) = left.parts.next() else {
                self.left.pop_front();
                continue;
            };
            if let Some(queue) = self.queues.get_mut(part.lock) {
                queue.multi_places -= 1;
                self.leave_queue(part, id, timed_out, now);
            }
        }
        !self.left.is_empty()
    }

    /// Removes the place of a request that has left, if the place is still that request's, and marks the lock.
    fn leave_queue(&mut self, part: Part, id: RequestId, timed_out: bool, now: Now) {
        let Some(queue) = self.queues.get_mut(part.lock) else {
            return broken!("a lock that somebody waits for has a queue");
        };
        queue.timeouts += u32::from(timed_out);
        let place = queue.place_mut(part.place);
        if let Some(place) = place.filter(|place| place.request() == Some(id)) {
            place.vacate();
            self.free_place(&part, now);
        }
        self.mark(part.lock);
    }

    /// Returns true if the request that waited at this place has left.
    pub(in crate::rules) fn has_left(&self, place: &Place) -> bool {
        let left = |id| self.requests.get(id).is_none();
        !self.left.is_empty() && place.request().is_some_and(left)
    }

    /// Returns the number of the owner's place. If its request has left, it goes first. If the owner's ticket has come with the
    /// value and is not reconciled yet, it gets its place.
    pub(in crate::rules) fn place_of(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        owner: &[u8],
    ) -> Option<Arrival> {
        let queue = self.queues.at(lock);
        if let Some(number) = queue.number_of(owner) {
            if !queue
                .place(number)
                .is_some_and(|place| self.has_left(place))
            {
                return Some(number);
            }
            self.remove_place(entry, now, lock, number, Outcome::Gone);
        }
        let from = self.queues.at(lock).reconciled?;
        let its = |(_, ticket): &(Arrival, &Ticket)| *ticket.owner == *owner;
        let found = entry.value().tickets_behind(from).find(its);
        let (number, ticket) = found.map(|(number, ticket)| (number, ticket.clone()))?;
        self.import_ticket(entry, now, lock, number, ticket);
        self.queues.at(lock).number_of(owner)
    }

    /// Ends a wait in an event, with an outcome.
    pub(in crate::rules) fn end_wait_later(&mut self, id: RequestId, now: Now, outcome: Outcome) {
        if let Some(left) = self.leave_queues(id, now, How::of_wait(&outcome)) {
            self.tell(id, left, outcome);
        }
    }

    /// Removes the place of a request that has left, unless it is a ticket that is kept for its window.
    fn free_place(&mut self, part: &Part, now: Now) {
        let (lock, number) = (part.lock, part.place);
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that somebody waits for has a queue");
        };
        let Some(place) = queue.place_mut(number) else {
            return broken!("a request that waits has its place");
        };
        if let Some(window) = place.ticket.as_deref_mut() {
            window.until = SteadyMs(0);
        }
        let (claim, waited) = (place.claim(), place.waited_us(now));
        match claim {
            Some(claim) if claim > 0 => return self.begin_window(lock, number, now),
            // The next settlement removes the ticket from the value.
            Some(_) => queue.lapsed.push(number),
            None => drop(self.queues.remove_place(lock, number)),
        }
        let name = self.queues.at(lock).name.as_ref();
        self.holds.counters.top.waited(name, waited);
    }

    /// Begins the claim window of an absent ticket: its own, or the default if it has none.
    pub(in crate::rules) fn begin_window(&mut self, lock: LockId, number: Arrival, now: Now) {
        let place = self.queues.at(lock).place(number);
        let window = match place.and_then(Place::claim) {
            Some(claim) if claim > 0 => claim,
            _ => self.policy.claim_window_ms,
        };
        self.keep_ticket(lock, number, window, now);
    }

    /// Keeps an absent ticket for this long from now on.
    pub(in crate::rules) fn keep_ticket(
        &mut self,
        lock: LockId,
        number: Arrival,
        window_ms: Millis,
        now: Now,
    ) {
        let place = self.queues.place_mut(lock, number);
        let Some(window) = place.and_then(|place| place.ticket.as_deref_mut()) else {
            return broken!("a place that is kept is a ticket");
        };
        window.until = now.steady().after(window_ms);
        match window.due {
            Some(due) if due.at <= window.until => {}
            _ => {
                self.holds.windows.clear(&mut window.due);
                let due = Due::Window(lock, number);
                window.due = Some(self.holds.windows.add(window.until, due));
            }
        }
    }

    /// Drops the tickets whose claim window has ended with nobody there.
    pub(in crate::rules) fn drop_lapsed(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
    ) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that is settled has a queue");
        };
        let most = queue.lapsed.len().min(DROPPED_A_STEP);
        for number in queue.lapsed.drain(..most).collect::<Vec<_>>() {
            let Some(place) = self.queues.place_mut(lock, number) else {
                continue;
            };
            let absent = place.is_absent();
            let Some(window) = place.ticket.as_deref_mut() else {
                continue;
            };
            self.holds.windows.clear(&mut window.due);
            if !absent {
                continue;
            }
            if window.until > now.steady() {
                // The owner has asked since.
                let due = Due::Window(lock, number);
                window.due = Some(self.holds.windows.add(window.until, due));
            } else {
                // The end of a wait on a ticket without a window is logged already.
                let lapsed = window.until > SteadyMs(0);
                let place = self.remove_from_queue(entry, lock, number);
                if let Some(place) = place.filter(|_| lapsed) {
                    self.end_absent(lock, &place, How::Lapsed, now);
                }
            }
        }
    }

    /// Counts and logs the end of a wait whose ticket was absent.
    fn end_absent(&mut self, lock: LockId, place: &Place, how: How, now: Now) {
        self.holds.counters.timeouts += 1;
        let queue = self.queues.at(lock);
        let subject = Subject {
            name: queue.name.clone(),
            owner: place.owner.clone(),
            token: None,
            held_ms: None,
            waited_ms: Some(place.waited_us(now) / 1000),
            client: ClientId::NONE,
            session: None,
        };
        let waiting = queue.others(&place.owner);
        self.holds.log.add(now, subject, how, waiting);
    }

    /// Takes a place out of its queue, its ticket out of the value, and its window out of the windows.
    pub(in crate::rules) fn remove_from_queue(
        &mut self,
        entry: &mut Entry<impl Value>,
        lock: LockId,
        number: Arrival,
    ) -> Option<Box<Place>> {
        let mut place = self.queues.remove_place(lock, number)?;
        if let Some(window) = place.ticket.as_deref_mut() {
            self.holds.windows.clear(&mut window.due);
            if entry.value().ticket(number).is_some() {
                entry.commit(&Change::Unticket { number });
            }
        }
        Some(place)
    }

    /// Removes the owner's place from the queue. A request that waits there leaves all of its queues and is answered null.
    /// Returns true if there was a place.
    ///
    /// Errors: `WrongType`.
    pub fn cancel(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
    ) -> Result<bool, Refusal> {
        let (entry, lock) = self.settled(keys, now, name)?;
        let place = lock.and_then(|lock| self.place_of(entry, now, lock, owner));
        let Some((lock, number)) = lock.zip(place) else {
            return Ok(false);
        };
        self.remove_place(entry, now, lock, number, Outcome::Cancelled);
        self.settle_queue(entry, now, lock);
        self.follow_up(keys, now);
        Ok(true)
    }

    /// Removes a place, ticket or not. A request that waits at it gets the outcome, and leaves the other queues that it stands in.
    pub(in crate::rules) fn remove_place(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        number: Arrival,
        outcome: Outcome,
    ) {
        let place = self.queues.at(lock).place(number);
        let (id, how) = (place.and_then(Place::request), How::of_wait(&outcome));
        if let Some(id) = id {
            self.end_wait(id, now, outcome, lock);
        }
        if let Some(place) = self.remove_from_queue(entry, lock, number) {
            if let Some(how) = how.filter(|how| id.is_none() && *how == How::Cancelled) {
                self.end_absent(lock, &place, how, now);
            }
            let (name, waited) = (&self.queues.at(lock).name, place.waited_us(now));
            self.holds.counters.top.waited(name.as_ref(), waited);
        }
    }
}
