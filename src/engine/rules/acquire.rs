//! Taking a lock: at once, by re-entry, by upgrade, or by waiting for it.

use super::grantable::{Grantable, Way};
use crate::engine::deadlock::look::Wanted;
use crate::engine::deadlock::text::two_upgrades;
use crate::engine::keyspace::{Entry, Event, Keyspace};
use crate::engine::ledger::{overflow, Claim, Due, Outcome};
use crate::engine::lock::change::Change;
use crate::engine::queue::deadlines::DueKey;
use crate::engine::queue::place::{Occupant, Place, Request};
use crate::engine::queue::requests::WaitsAt;
use crate::engine::queue::LockId;
use crate::engine::state::Engine;
use crate::engine::types::{
    Arrival, ClientId, Grant, Limit, Millis, NameRef, Now, RequestId, SteadyMs,
};
use crate::error::Error;
use std::num::NonZeroU32;
use std::rc::Rc;

/// A request for a lock.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Who asks.
    pub owner: &'a [u8],
    /// The lease, from the grant on.
    pub lease: Millis,
    /// Whether and how long it waits.
    pub wait: Wait,
    /// `HOLDS n`: make the hold count at least n rather than one more.
    pub holds: Option<u32>,
    /// The most owners that may hold at once.
    pub limit: Limit,
    /// Whether its place in the queue is a ticket, and how long that is kept while nobody is there for it.
    pub ticket: Option<Millis>,
    /// Whether the hold is to end with the connection.
    pub session: bool,
    /// The channel that is to be told of the outcome, rather than a blocked connection.
    pub channel: Option<&'a [u8]>,
    /// The connection.
    pub client: ClientId,
}

/// Whether a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is answered at once.
    No,
    /// It waits so long, or without bound.
    For(Option<Millis>),
}

/// What a request for a lock is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is the owner's.
    Granted(Grant),
    /// It cannot be granted now.
    Null,
    /// It waits under this number; a [`super::super::Wake`] will tell how the wait ended, or a
    /// [`super::super::Message`] if it waits by a channel.
    Waiting(RequestId),
}

impl<'a> Ask<'a> {
    /// What it claims of a lock.
    #[inline(always)]
    pub(super) fn claim(&self, name: NameRef<'a>) -> Claim<'a> {
        Claim {
            name,
            owner: self.owner,
            limit: self.limit,
            lease: self.lease,
            holds: self.holds,
            client: self.client,
            session: self.session,
        }
    }

    /// Whether it waits if it cannot be granted at once.
    pub(super) fn waits(&self) -> bool {
        self.wait != Wait::No
    }
}

// What only a contended lock needs is marked as cold: it would stand between the few lines that every grant runs through.
impl Engine {
    /// Takes the lock, or a place in its queue, or answers null.
    ///
    /// Errors: `WrongType`, `Full` for each cap, `Quarantine` and `Draining` while nothing is granted, `Deadlock` for a wait
    /// that could never end and for a second waiting upgrade, `Argument` when the hold count would overflow. Nothing has
    /// changed then.
    #[inline(always)]
    pub fn acquire(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Answer, Error> {
        let (entry, lock) = self.freshen(keys, now, name);
        if entry.foreign {
            return Err(Error::WrongType);
        }
        // The usual lock, which nobody has and nobody is queued for: the rule below could only say yes.
        if entry.lock.is_none() && lock.is_none() && self.policy.granting(now) {
            let claim = ask.claim(name);
            let grant = self.ledger.grant_first(&self.policy, entry, now, &claim);
            self.ledger.counters.grants_immediate += 1;
            return Ok(Answer::Granted(grant));
        }
        let answer = self.contend(keys, now, (name, lock), ask);
        self.follow_up(keys, now);
        answer
    }

    /// The rest of it, for a lock that somebody has or is queued for, or while nothing is granted. It has been brought up to
    /// date.
    #[inline(never)]
    fn contend(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        (name, lock): (NameRef, Option<LockId>),
        ask: &Ask,
    ) -> Result<Answer, Error> {
        let entry = keys.entry(name);
        // It may have gone as the lock was brought up to date.
        let lock = lock.filter(|lock| self.queues.get(*lock).is_some());
        let queue = self.queues.at(lock);
        let place = queue.number_of(ask.owner);
        let older = place.and_then(|number| queue.place(number)?.request());
        if older.is_some() && !ask.waits() {
            return Ok(self.null());
        }
        let way = Way::of(entry, place, ask.owner, ask.limit);
        match self.grantable(entry, queue, now, (ask.owner, ask.limit), way) {
            Grantable::Now => {
                refuse_overflow(entry, ask)?;
                let entered = lock.filter(|_| place.is_some());
                if let Some((lock, number)) = entered.zip(place) {
                    self.take_over(lock, number, now);
                    drop(self.take_out(entry, now, lock, number));
                }
                return self.grant_at_once(entry, now, (name, lock), ask, place.is_some());
            }
            Grantable::Withheld if way == Way::Reenter => return Err(self.withheld(now)),
            Grantable::Full if self.policy.granting(now) => {
                return Err(Error::Full("dlock.max-holders"))
            }
            _ => {}
        }
        if !ask.waits() {
            return self.poll(entry, now, (name, lock), ask, way);
        }
        if !self.policy.grants && place.is_none() {
            return Err(Error::Draining);
        }
        if way == Way::Upgrade {
            self.refuse_second_upgrade(lock, ask.owner)?;
        }
        self.room(lock, ask, place.is_some(), older)?;
        let wanted = [Wanted {
            name,
            lock,
            place: if way == Way::Upgrade {
                Some(Arrival::AHEAD)
            } else {
                place
            },
            limit: ask.limit,
        }];
        self.refuse_if_deadlocked(keys, &wanted, ask, older.as_slice())?;
        let lock = lock.unwrap_or_else(|| self.queues.id_or_new(name));
        if let Some(number) = place {
            self.take_over(lock, number, now);
        }
        let number = self.enqueue(keys.entry(name), now, lock, ask, way);
        self.wait(keys, now, lock, ask, number)
    }

    /// A grant or re-entry that needs no place in the queue any more. `waited` says that it has had one.
    fn grant_at_once(
        &mut self,
        entry: &mut Entry,
        now: Now,
        (name, lock): (NameRef, Option<LockId>),
        ask: &Ask,
        waited: bool,
    ) -> Result<Answer, Error> {
        let claim = ask.claim(name);
        let grant = self.ledger.grant(&self.policy, entry, now, &claim)?;
        if grant.holds == grant.added {
            let counters = &mut self.ledger.counters;
            counters.grants_immediate += u64::from(!waited);
            counters.grants_waited += u64::from(waited);
        }
        if let Some(lock) = lock {
            self.suspect_if_waiting(lock, self.requests.hash(ask.owner));
        }
        self.rewatch(entry, now, name, lock);
        Ok(Answer::Granted(grant))
    }

    /// A request that does not wait and cannot be granted. A ticket keeps its place as long as it asks again in time.
    #[cold]
    fn poll(
        &mut self,
        entry: &mut Entry,
        now: Now,
        (name, lock): (NameRef, Option<LockId>),
        ask: &Ask,
        way: Way,
    ) -> Result<Answer, Error> {
        let Way::Queue(place) = way else {
            return match self.policy.granting(now) {
                true => Ok(self.null()),
                false => Err(self.withheld(now)),
            };
        };
        if place.is_none() && !self.policy.granting(now) {
            return Err(self.withheld(now));
        }
        if place.is_none() && ask.ticket.is_none() {
            return Ok(self.null());
        }
        self.room(lock, ask, place.is_some(), None)?;
        let lock = lock.unwrap_or_else(|| self.queues.id_or_new(name));
        let number = self.enqueue(entry, now, lock, ask, way);
        self.begin_window(lock, number, now);
        if place.is_none() {
            self.settle_entry(entry, now, name, Some(lock));
        }
        Ok(self.null())
    }

    /// The answer to a request that is not granted and does not wait.
    fn null(&mut self) -> Answer {
        self.ledger.counters.refused += 1;
        Answer::Null
    }

    /// Why nothing is granted now.
    #[cold]
    pub(super) fn withheld(&self, now: Now) -> Error {
        match self.policy.grants {
            false => Error::Draining,
            true => Error::Quarantine(self.policy.quarantine_until.since(now.wall())),
        }
    }

    /// Errors if another owner waits to upgrade this lock: each would wait for the other to leave.
    #[cold]
    pub(super) fn refuse_second_upgrade(
        &mut self,
        lock: Option<LockId>,
        owner: &[u8],
    ) -> Result<(), Error> {
        match self.queues.at(lock).upgrade() {
            Some(place) if *place.owner != *owner => {
                self.ledger.counters.deadlocks += 1;
                Err(two_upgrades(owner, &place.owner))
            }
            _ => Ok(()),
        }
    }

    /// Whether the caps allow one more place (unless the owner has it already) and one more waiting request (unless it takes
    /// the place of an older one of its kind). A cap refuses only what makes its own number grow.
    #[cold]
    fn room(
        &self,
        lock: Option<LockId>,
        ask: &Ask,
        has_place: bool,
        older: Option<RequestId>,
    ) -> Result<(), Error> {
        if !has_place {
            self.room_in_queue(lock)?;
            if self.places >= self.policy.max_places {
                return Err(Error::Full("dlock.max-places"));
            }
        }
        let by_channel = ask.channel.is_some();
        let same_kind = older.is_some_and(|id| self.waits_by_channel(id) == by_channel);
        match ask.waits() && !same_kind {
            true if by_channel && self.requests.notifies() >= self.policy.max_places => {
                Err(Error::Full("dlock.max-places"))
            }
            true if !by_channel && self.requests.blocked() >= self.policy.max_waiters => {
                Err(Error::Full("dlock.max-waiters"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the caps allow one more place in this lock's queue.
    pub(super) fn room_in_queue(&self, lock: Option<LockId>) -> Result<(), Error> {
        match self.queues.at(lock).len() < self.policy.max_queue {
            true => Ok(()),
            false => Err(Error::Full("dlock.max-queue")),
        }
    }

    /// Whether a request waits by a channel; else by a blocked connection.
    pub(super) fn waits_by_channel(&self, id: RequestId) -> bool {
        match self.requests.get(id) {
            Some(WaitsAt::One(lock, number)) => {
                let place = self.queues.at(*lock).place(*number);
                let request = place.and_then(Place::one);
                request.is_some_and(|request| request.channel.is_some())
            }
            _ => false,
        }
    }

    /// The request that waits at this place is replaced: it is told so, and leaves the other queues that it stands in. The
    /// place stays, with nobody there.
    #[cold]
    pub(super) fn take_over(&mut self, lock: LockId, number: Arrival, now: Now) {
        let place = self.queues.at(lock).place(number);
        let Some(id) = place.and_then(Place::request) else {
            return;
        };
        self.ledger.counters.replaced += 1;
        self.replace(id, now, |at| at == lock);
    }

    /// Finds or makes the owner's place for this request; gives its number. Nobody waits at it.
    #[cold]
    fn enqueue(
        &mut self,
        entry: &mut Entry,
        now: Now,
        lock: LockId,
        ask: &Ask,
        way: Way,
    ) -> Arrival {
        let upgrades = way == Way::Upgrade;
        let known = match way {
            Way::Upgrade => self.queues.at(lock).upgrade().map(|_| Arrival::AHEAD),
            Way::Queue(place) => place,
            Way::Reenter => None,
        };
        let Some(number) = known else {
            let number = match upgrades {
                true => Arrival::AHEAD,
                false => self.ledger.clock.arrival(now),
            };
            let ticket = ask.ticket.filter(|_| !upgrades);
            let ask = Ask { ticket, ..*ask };
            self.add_place(entry, now, lock, &ask, number);
            if upgrades {
                // It is before others, who did not know of what else its owner waits for.
                self.suspect_if_waiting(lock, self.requests.hash(ask.owner));
            }
            return number;
        };
        if let Some(place) = self.queues.place_mut(lock, number) {
            let before = (place.limit, place.claim());
            place.limit = ask.limit;
            if let Some(claim) = ask.ticket.filter(|_| !upgrades) {
                place.set_claim(claim);
            }
            if let Some(claim) = place.claim() {
                if before != (place.limit, Some(claim)) {
                    entry.commit(&Change::Ticket {
                        number,
                        owner: ask.owner,
                        limit: place.limit,
                        claim,
                    });
                }
            }
        }
        // It may be before others, who did not know of what else its owner waits for.
        self.suspect_if_waiting(lock, self.requests.hash(ask.owner));
        number
    }

    /// Makes the owner's place at this number.
    pub(super) fn add_place(
        &mut self,
        entry: &mut Entry,
        now: Now,
        lock: LockId,
        ask: &Ask,
        number: Arrival,
    ) {
        let mut place = Place::new(Rc::from(ask.owner), ask.limit, now);
        if let Some(claim) = ask.ticket {
            place.set_claim(claim);
            entry.commit(&Change::Ticket {
                number,
                owner: ask.owner,
                limit: ask.limit,
                claim,
            });
        }
        let queue = self.queues.get_mut(lock);
        if queue.is_some_and(|queue| queue.insert(number, place)) {
            self.places += 1;
        }
        entry.events.push(Event::Queued);
        let name = &self.queues.at(lock).name;
        self.ledger.counters.top.queued(name.as_ref());
    }

    /// The due entry of the end of the request's time, if it has one.
    pub(super) fn begin_to_wait(
        &mut self,
        ask: &Ask,
        id: RequestId,
        now: Now,
    ) -> Option<DueKey<SteadyMs>> {
        match ask.wait {
            Wait::For(Some(ms)) => {
                let at = now.steady().after(ms);
                Some(self.ledger.timers.add(at, Due::Wait(id)))
            }
            _ => None,
        }
    }

    /// Has the request wait at its place, lets the queue be served, and answers if that has answered it.
    #[cold]
    fn wait(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        lock: LockId,
        ask: &Ask,
        number: Arrival,
    ) -> Result<Answer, Error> {
        let id = self.requests.fresh(now);
        let until = self.begin_to_wait(ask, id, now);
        let channel = ask.channel;
        let channel = channel.map(|channel| self.requests.channel(ask.client, channel));
        let request = Request {
            id,
            client: ask.client,
            lease: ask.lease,
            holds: ask.holds.and_then(NonZeroU32::new),
            until,
            session: ask.session,
            channel: channel.clone(),
        };
        if let Some(place) = self.queues.place_mut(lock, number) {
            place.occupant = Occupant::One(Box::new(request));
        }
        let at = WaitsAt::One(lock, number);
        self.enlist(id, ask.owner, ask.client, channel.as_ref(), at);
        self.settle(keys, now, lock);
        self.follow_up(keys, now);
        // The settlement may have answered this very request: then it has not waited.
        match self.ledger.take_answer(id) {
            None => Ok(Answer::Waiting(id)),
            Some(Outcome::Granted(grant)) => Ok(Answer::Granted(grant)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(Answer::Null),
        }
    }
}

/// Errors if the request would raise the owner's hold count beyond what it can be.
#[inline]
pub(super) fn refuse_overflow(entry: &Entry, ask: &Ask) -> Result<(), Error> {
    let full = |entry: &Entry| {
        let hold = entry.hold(ask.owner);
        hold.is_some_and(|hold| hold.holds == u32::MAX)
    };
    match ask.holds.is_none() && full(entry) {
        true => Err(overflow()),
        false => Ok(()),
    }
}
