//! Taking a lock: at once, by re-entry, by upgrade, or by waiting for it.

use crate::deadlock::{two_upgrades, Asked, Wanted};
use crate::holds::{Due, HoldId};
use crate::invariants::broken;
use crate::keyspace::{Entry, Event, Keyspace, Value};
use crate::log::{How, Subject};
use crate::outbox::{Outcome, Promise};
use crate::queue::{LockId, Part, Place, Request, WaitsAt};
use crate::refusal::Refusal;
use crate::rules::grantable::{refuse_permits, Grantable, RequestKind};
use crate::state::Engine;
use crate::types::{
    Arrival, Grant, HoldRef, Millis, NameRef, Now, RequestId, Terms, Token, WallMs,
};
use std::rc::Rc;

/// A request for a lock.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The owner that asks.
    pub owner: &'a [u8],
    /// What is asked for.
    pub terms: Terms,
    /// Whether and how long it waits.
    pub wait: Wait,
    /// The claim window if its place in the queue is a ticket: how long it is kept while no connection waits on it.
    pub ticket: Option<Millis>,
}

/// Whether a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It does not: it is answered at once.
    No,
    /// It waits this long, or without bound.
    For(Option<Millis>),
}

/// The answer to a request. A request for many locks gets a grant of each, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<G = Grant> {
    /// It was granted.
    Granted(G),
    /// It cannot be granted now.
    Null,
    /// It waits under this number; an [`crate::Output`] has the outcome.
    Waiting(RequestId),
}

impl Ask<'_> {
    /// Returns true if the request waits when it cannot be granted at once.
    pub(in crate::rules) fn waits(&self) -> bool {
        self.wait != Wait::No
    }
}

impl Engine {
    /// Takes the lock, or a place in its queue, or answers null.
    ///
    /// Errors: `WrongType`, `Full` for each cap, `Quarantine` and `Draining` while nothing is granted, `Deadlock` for a wait
    /// that could never end and for a second waiting upgrade, `Overflow` when the hold count would overflow. Nothing has
    /// changed then.
    #[inline(always)]
    pub fn acquire(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Answer, Refusal> {
        let (entry, lock) = self.settled(keys, now, name)?;
        // The usual lock, free and without a queue: the rule in `contend` could only say yes, and would be 400 of the 14,900
        // instructions that the server takes for an uncontended pair.
        if entry.lock.is_none()
            && lock.is_none()
            && self.policy.granting(now)
            && !self.policy.confirms()
        {
            let owner = ask.owner;
            let whose = HoldRef { name, owner };
            let grant =
                self.replying(|engine| engine.holds.grant_first(entry, now, whose, &ask.terms));
            self.holds.counters.grants_immediate += 1;
            return Ok(Answer::Granted(grant));
        }
        let answer = self.contend(keys, now, name, lock, ask);
        self.follow_up(keys, now);
        answer
    }

    /// Handles a request for a lock that is held or queued for, or while nothing is granted. The lock has been settled.
    #[inline(never)]
    fn contend(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        lock: Option<LockId>,
        ask: &Ask,
    ) -> Result<Answer, Refusal> {
        let entry = keys.entry(name);
        // The settlement may have removed the queue.
        let lock = lock.filter(|lock| self.queues.get(*lock).is_some());
        let place = lock.and_then(|lock| self.place_of(entry, now, lock, ask.owner));
        let queue = self.queues.at(lock);
        let older = place.and_then(|number| queue.place(number)?.request());
        if older.is_some() && !ask.waits() {
            return Ok(self.null());
        }
        refuse_permits(entry, ask.owner, ask.terms.share)?;
        let kind = RequestKind::of(entry, place, ask.owner, ask.terms.share.limit);
        if ask.terms.session.is_some() {
            let waiting = place.and_then(|number| queue.place(number));
            let again = older.is_some_and(|id| self.asks_again(id, ask));
            self.refuse_change(entry, ask, kind, waiting.filter(|_| again))?;
        }
        match self.grantable(entry, queue, now, ask.owner, ask.terms.share, kind) {
            Grantable::Now => {
                refuse_overflow(entry, ask.owner, &ask.terms)?;
                let at = Part::at(lock, place);
                if let Some(at) = at {
                    self.take_over(at, now, ask);
                }
                let owner = ask.owner;
                let whose = HoldRef { name, owner };
                let (grant, promise) =
                    self.replying(|engine| engine.award(entry, now, whose, &ask.terms, at))?;
                let answer = match promise.filter(|_| self.policy.confirms()) {
                    None => Answer::Granted(grant),
                    Some(promise) => {
                        let (outcome, promises) = (Outcome::Granted(grant), vec![promise]);
                        Answer::Waiting(self.answer_confirmed(now, ask, outcome, promises))
                    }
                };
                self.settle_name(keys, now, name);
                return Ok(answer);
            }
            Grantable::Withheld if kind == RequestKind::Reenter => {
                return Err(self.policy.withheld(now))
            }
            Grantable::Full if self.policy.granting(now) => {
                return Err(Refusal::Full("dlock.max-holders"))
            }
            _ => {}
        }
        if !ask.waits() {
            return self.poll(entry, now, name, lock, ask, kind);
        }
        if !self.policy.grants && place.is_none() {
            return Err(Refusal::Draining);
        }
        if kind == RequestKind::Upgrade {
            self.refuse_second_upgrade(lock, ask.owner)?;
        }
        self.room(lock, ask, place.is_some(), older)?;
        let wanted = [Wanted {
            name,
            lock,
            place: kind.place(),
            limit: ask.terms.share.limit,
        }];
        let asked = Asked {
            owner: ask.owner,
            session: ask.terms.session,
            wanted: &wanted,
            replaced: &older.into_iter().collect(),
        };
        self.refuse_if_deadlocked(keys, now, asked)?;
        let lock = lock.unwrap_or_else(|| self.queues.id_or_new(name));
        if let Some(place) = place {
            self.take_over(Part { lock, place }, now, ask);
        }
        let number = self.enqueue(keys.entry(name), now, lock, ask, kind);
        self.wait(keys, now, lock, ask, number)
    }

    /// Grants a lock to a request and removes the place that it stands at or takes over. The caller has checked that nothing is in
    /// its way. Returns the grant; and the promise of the answer if the answer may come later, and so may not be delivered.
    ///
    /// Errors when the hold count would overflow.
    pub(in crate::rules) fn award(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        whose: HoldRef,
        terms: &Terms,
        at: Option<Part>,
    ) -> Result<(Grant, Option<Promise>), Refusal> {
        let used = at.and_then(|at| {
            let place = self.remove_from_queue(entry, at.lock, at.place)?;
            let waited_us = place.waited_us(now);
            self.holds.counters.waited(whose.name, waited_us);
            Some((at.place, place))
        });
        let is_new = entry.hold(whose.owner).is_none();
        let grant = self.holds.grant(&self.policy, entry, now, whose, terms)?;
        if let Some((_, place)) = &used {
            self.log_long_wait(whose, grant.token, terms, place, now);
        }
        if is_new {
            let waited = used.is_some();
            self.holds.counters.grants_immediate += u64::from(!waited);
            self.holds.counters.grants_waited += u64::from(waited);
        }
        let confirms = self.policy.confirms();
        if confirms {
            let hold = HoldId::new(whose, grant.token);
            self.holds.unconfirmed.entry(hold).or_insert(is_new);
            if let Some(id) = self
                .holds
                .ties
                .find_hold(whose, grant.token)
                .filter(|_| is_new)
            {
                self.holds.ties.set_confirmed(id, None);
            }
        }
        let end = || {
            entry
                .hold(whose.owner)
                .map_or(WallMs(0), |hold| hold.deadline)
        };
        let promise = (confirms || used.is_some()).then(|| Promise {
            name: whose.name.to_owned(),
            owner: Rc::from(whose.owner),
            token: grant.token,
            end: end(),
            is_new,
            session: terms.session.filter(|_| confirms),
            ticket: used.filter(|(_, place)| place.claim() > Some(0)),
        });
        Ok((grant, promise))
    }

    /// Logs a wait that has ended with a grant, if it was long.
    fn log_long_wait(
        &mut self,
        whose: HoldRef,
        token: Token,
        terms: &Terms,
        place: &Place,
        now: Now,
    ) {
        let waited_us = place.waited_us(now);
        if !self.holds.log.is_long(waited_us) {
            return;
        }
        let session = terms.session.and_then(|no| self.holds.sessions.get(no));
        let subject = Subject {
            name: whose.name.to_owned(),
            owner: place.owner.clone(),
            token: Some(token),
            held_ms: None,
            waited_ms: Some(waited_us / 1000),
            client: terms.client,
            session: session.map(|session| session.name.clone()),
        };
        let waiting = self
            .queues
            .at(self.queues.id(whose.name))
            .others(whose.owner);
        self.holds.log.add(now, subject, How::Granted, waiting);
    }

    /// Answers a request that does not wait and cannot be granted. A ticket keeps its place as long as its owner asks again in
    /// time.
    fn poll(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        name: NameRef,
        lock: Option<LockId>,
        ask: &Ask,
        kind: RequestKind,
    ) -> Result<Answer, Refusal> {
        let RequestKind::Queue(place) = kind else {
            return if self.policy.granting(now) {
                Ok(self.null())
            } else {
                Err(self.policy.withheld(now))
            };
        };
        if place.is_none() && !self.policy.granting(now) {
            return Err(self.policy.withheld(now));
        }
        if place.is_none() && ask.ticket.is_none() {
            return Ok(self.null());
        }
        self.room(lock, ask, place.is_some(), None)?;
        let lock = lock.unwrap_or_else(|| self.queues.id_or_new(name));
        let number = self.enqueue(entry, now, lock, ask, kind);
        self.begin_window(lock, number, now);
        if place.is_none() {
            self.settle_queue(entry, now, lock);
        }
        Ok(self.null())
    }

    /// Counts and returns the answer to a request that is not granted and does not wait.
    pub(in crate::rules) fn null<G>(&mut self) -> Answer<G> {
        self.holds.counters.refused += 1;
        Answer::Null
    }

    /// Errors if another owner waits to upgrade this lock: each would wait for the other to leave.
    fn refuse_second_upgrade(&mut self, lock: Option<LockId>, owner: &[u8]) -> Result<(), Refusal> {
        match self.queues.at(lock).upgrade() {
            Some(place) if *place.owner != *owner => Err(two_upgrades(owner, &place.owner)),
            _ => Ok(()),
        }
    }

    /// Checks that the caps allow one more place (unless the owner already has one) and one more waiting request (unless it
    /// takes the place of an older one of its kind). A cap refuses only what makes its own number grow.
    fn room(
        &self,
        lock: Option<LockId>,
        ask: &Ask,
        has_place: bool,
        older: Option<RequestId>,
    ) -> Result<(), Refusal> {
        if !has_place {
            self.room_in_queue(lock)?;
            if self.queues.places() >= self.policy.max_places {
                return Err(Refusal::Full("dlock.max-places"));
            }
        }
        let apart = ask.terms.session.is_some();
        let same_kind = older.is_some_and(|id| self.waits_apart(id) == apart);
        match ask.waits() && !same_kind {
            true if apart && self.requests.apart() >= self.policy.max_places => {
                Err(Refusal::Full("dlock.max-places"))
            }
            true if !apart && self.requests.blocked() >= self.policy.max_waiters => {
                Err(Refusal::Full("dlock.max-waiters"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the caps allow one more place in this lock's queue.
    pub(in crate::rules) fn room_in_queue(&self, lock: Option<LockId>) -> Result<(), Refusal> {
        if self.queues.at(lock).len() < self.policy.max_queue {
            Ok(())
        } else {
            Err(Refusal::Full("dlock.max-queue"))
        }
    }

    /// Returns true if a request waits in a session; else by a blocked connection.
    pub(in crate::rules) fn waits_apart(&self, id: RequestId) -> bool {
        let request = self.requests.get(id);
        request.is_some_and(|request| !request.blocks())
    }

    /// Returns true if a request for one lock asks in its session for what it waits for already.
    fn asks_again(&self, older: RequestId, ask: &Ask) -> bool {
        let request = self.requests.get(older);
        ask.terms.session.is_some()
            && request.is_some_and(|its| its.terms.session == ask.terms.session && !its.is_many())
    }

    /// Errors if a request in a session asks for a stricter limit than the hold has, or for something else than what it waits for
    /// already at this place.
    fn refuse_change(
        &self,
        entry: &Entry<impl Value>,
        ask: &Ask,
        kind: RequestKind,
        waiting: Option<&Place>,
    ) -> Result<(), Refusal> {
        if kind == RequestKind::Upgrade {
            let limit = entry
                .hold(ask.owner)
                .map_or(ask.terms.share.limit, |hold| hold.limit);
            return Err(Refusal::Stricter(limit));
        }
        if waiting.is_some_and(|place| place.share != ask.terms.share) {
            Err(Refusal::OtherShare)
        } else {
            Ok(())
        }
    }

    /// Lets a request take over a place, with nobody there from now on. The request that waits there is answered `REPLACED`; one that
    /// asks again in its session continues without an answer.
    pub(in crate::rules) fn take_over(&mut self, at: Part, now: Now, ask: &Ask) {
        let place = self.queues.at(at.lock).place(at.place);
        match place.and_then(Place::request) {
            Some(id) if self.asks_again(id, ask) => drop(self.unregister_everywhere(id, now)),
            _ => self.replace(at, now),
        }
    }

    /// Answers the request that waits at this place with `REPLACED`, and removes it from the other queues that it stands in. The
    /// place stays, with nobody there.
    pub(in crate::rules) fn replace(&mut self, at: Part, now: Now) {
        let place = self.queues.at(at.lock).place(at.place);
        if let Some(id) = place.and_then(Place::request) {
            self.holds.counters.replaced += 1;
            self.end_wait(id, now, Outcome::Replaced, at.lock);
        }
    }

    /// Finds or makes the owner's place for this request, where nobody waits; returns its number.
    fn enqueue(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        lock: LockId,
        ask: &Ask,
        kind: RequestKind,
    ) -> Arrival {
        let claim = ask.ticket.filter(|_| kind != RequestKind::Upgrade);
        let number = kind.place();
        let number = number.unwrap_or_else(|| self.holds.tokens.arrival(now));
        let is_new = self.queues.at(lock).place(number).is_none();
        if is_new {
            let mut place = Place::new(Rc::from(ask.owner), ask.terms.share, now);
            if let Some(claim) = claim {
                place.set_claim(claim);
            }
            self.add_place(entry, lock, number, place);
        } else if let Some(queue) = self.queues.get_mut(lock) {
            let share = queue.set_share(number, ask.terms.share);
            let Some(place) = queue.place_mut(number) else {
                broken!("a place that was found is in its queue");
                return number;
            };
            let before = (share.unwrap_or(place.share), place.claim());
            if let Some(claim) = claim {
                place.set_claim(claim);
            }
            if before != (place.share, place.claim()) {
                entry.commit_any(place.as_change(number));
            }
        }
        number
    }

    /// Adds a place at this number.
    pub(in crate::rules) fn add_place(
        &mut self,
        entry: &mut Entry<impl Value>,
        lock: LockId,
        number: Arrival,
        place: Place,
    ) {
        entry.commit_any(place.as_change(number));
        entry.events.push(Event::Queued);
        if !self.queues.insert(lock, number, place) {
            broken!("an owner has one place, and a number is given once");
        }
        let name = self.queues.at(lock).name.as_ref();
        self.holds.counters.top.queued(name);
    }

    /// Registers a request that waits at these places.
    pub(in crate::rules) fn begin_to_wait(
        &mut self,
        ask: &Ask,
        owner: Rc<[u8]>,
        at: WaitsAt,
        id: RequestId,
        now: Now,
    ) {
        let request = Request {
            owner,
            hash: self.requests.actor_hash(ask.owner, ask.terms.session),
            terms: ask.terms,
            until: match ask.wait {
                Wait::For(Some(ms)) => {
                    let at = now.steady().after(ms);
                    Some(self.holds.timers.add(at, Due::Wait(id)))
                }
                _ => None,
            },
            at,
        };
        self.register(id, Box::new(request), now);
    }

    /// Puts the request at its place and serves the queue. Returns the answer if that has granted or refused it.
    fn wait(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        lock: LockId,
        ask: &Ask,
        number: Arrival,
    ) -> Result<Answer, Refusal> {
        let id = self.requests.next_id();
        if let Some(place) = self.queues.place_mut(lock, number) {
            place.occupy(id);
            let (owner, place) = (place.owner.clone(), number);
            self.begin_to_wait(ask, owner, WaitsAt::One(Part { lock, place }), id, now);
        } else {
            broken!("the place that was found or made for a request is there");
        }
        self.settle(keys, now, lock);
        self.follow_up(keys, now);
        // The settlement may have answered this very request: then it does not wait, except for replicas.
        match self.take_answer(id) {
            None => Ok(Answer::Waiting(id)),
            Some(Outcome::Granted(grant)) => Ok(Answer::Granted(grant)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(Answer::Null),
        }
    }
}

/// Errors if the request would raise the owner's hold count beyond what it can be.
pub(in crate::rules) fn refuse_overflow(
    entry: &Entry<impl Value>,
    owner: &[u8],
    terms: &Terms,
) -> Result<(), Refusal> {
    let full = || entry.hold(owner).is_some_and(|hold| hold.holds == u32::MAX);
    if terms.holds.is_none() && full() {
        Err(Refusal::Overflow)
    } else {
        Ok(())
    }
}
