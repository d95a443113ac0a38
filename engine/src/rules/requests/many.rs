//! Many locks at once: all of them or none, in one step.
//!
//! A request for many locks that cannot be granted enters the queues of all of them in the same event, with a place in each
//! and one number for all. It is granted when each of its places is one that could be granted by itself: compatible,
//! with nobody before it. Until then a place that heads its queue keeps that lock reserved. Two such requests stand in
//! the same order in all queues they share, so neither can wait for the other in one queue and be waited for in another.
//!
//! A lock that the owner holds already is not queued for: the request counts on that hold, and is refused when it ends.

use super::acquire::{refuse_overflow, Answer, Ask, Award};
use crate::deadlock::{Asked, Wanted};
use crate::invariants::broken;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::outbox::{Outcome, Pending, Promise};
use crate::queue::{LockId, Part, Place, Request, WaitsAt};
use crate::refusal::Refusal;
use crate::rules::grantable::{Grantable, RequestKind};
use crate::state::{Engine, Next};
use crate::types::{Arrival, Grant, Name, NameRef, Now, RequestId, Terms};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How a request comes to one of its locks.
#[derive(Debug, Clone, Copy)]
struct WantedLock<'a> {
    name: NameRef<'a>,
    lock: Option<LockId>,
    kind: RequestKind,
    /// The owner's place there, the waiting upgrade's included.
    place: Option<Arrival>,
    /// The same where the request inherits and needs it.
    stays: Option<Arrival>,
    grantable: Grantable,
}

/// A request for many locks, and what it finds at them.
struct Plan<'a> {
    ask: &'a Ask<'a>,
    ways: Vec<WantedLock<'a>>,
    /// The owner's older requests that wait at a place of these locks.
    older: BTreeSet<RequestId>,
    /// The one of them that is for the very same locks: its places are inherited.
    inherited: Option<RequestId>,
}

impl Plan<'_> {
    /// Returns true if of each lock this is true.
    fn all(&self, is: impl Fn(&WantedLock) -> bool) -> bool {
        self.ways.iter().all(is)
    }
}

impl Engine {
    /// Takes all of the locks, or waits for all of them, or answers null. No lock is named twice.
    ///
    /// Errors as for [`Engine::acquire`], for any of the locks. Nothing has changed then.
    pub fn acquire_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        ask: &Ask,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        for name in names {
            if self.settle_named(keys, now, *name).0.foreign {
                return Err(Refusal::WrongType);
            }
        }
        let answer = self.contend_for_many(keys, now, names, ask);
        self.settle_next(keys, now);
        answer
    }

    fn contend_for_many<'a>(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef<'a>],
        ask: &'a Ask<'a>,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        let plan = self.plan(keys, now, names, ask);
        if !plan.older.is_empty() && !ask.waits() {
            return Ok(self.null());
        }
        if plan.all(|lock_wanted| lock_wanted.kind == RequestKind::Reenter)
            && self.policy.quarantined(now)
        {
            return Err(self.withheld(now));
        }
        for lock_wanted in &plan.ways {
            if lock_wanted.grantable == Grantable::Now {
                refuse_overflow(keys.entry(lock_wanted.name), ask.owner, &ask.terms)?;
            }
            if lock_wanted.grantable == Grantable::Full && self.policy.granting(now) {
                return Err(Refusal::Full("dlock.max-holders"));
            }
        }
        if plan.all(|lock_wanted| lock_wanted.grantable == Grantable::Now) {
            self.replace_older(&plan, now);
            let at = |lock_wanted: &WantedLock<'a>| {
                (lock_wanted.name, lock_wanted.lock, lock_wanted.place)
            };
            let at: Vec<_> = plan.ways.iter().map(at).collect();
            let whose = (ask.owner, &ask.terms);
            let (grants, promises) = self.grant_all(keys, now, whose, &at, true);
            let answer = match self.policy.confirms() {
                false => Answer::Granted(grants),
                true => {
                    let (first, outcome) = (Name::default(), Outcome::GrantedAll(grants));
                    Answer::Waiting(self.answer_confirmed(now, ask, &first, outcome, promises))
                }
            };
            self.settle_all(keys, now, &at);
            return Ok(answer);
        }
        if !ask.waits() {
            return match self.policy.granting(now) {
                true => Ok(self.null()),
                false => Err(self.withheld(now)),
            };
        }
        self.admit_many(&plan)?;
        self.refuse_if_many_deadlocked(keys, now, &plan)?;
        self.wait_for_many(keys, now, &plan)
    }

    fn plan<'a>(
        &self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef<'a>],
        ask: &'a Ask<'a>,
    ) -> Plan<'a> {
        let lock_wanted = |name: &NameRef<'a>| self.lock_wanted(keys.entry(*name), now, *name, ask);
        let mut ways: Vec<WantedLock> = names.iter().map(lock_wanted).collect();
        let request = |lock_wanted: &WantedLock| {
            self.queues
                .at(lock_wanted.lock)
                .place(lock_wanted.place?)?
                .request()
        };
        let older: BTreeSet<RequestId> = ways.iter().filter_map(request).collect();
        let own: BTreeSet<LockId> = ways
            .iter()
            .filter_map(|lock_wanted| lock_wanted.lock)
            .collect();
        let same = |id: &RequestId| {
            let many = self.requests.get(*id).filter(|request| request.is_many());
            let theirs = many.into_iter().flat_map(Request::parts);
            let theirs: BTreeSet<LockId> = theirs.map(|part| part.lock).collect();
            own.len() == ways.len() && theirs == own
        };
        let inherited = older.iter().copied().find(same);
        for lock_wanted in ways
            .iter_mut()
            .filter(|lock_wanted| lock_wanted.kind != RequestKind::Reenter)
        {
            let stays = inherited.is_some() && request(lock_wanted) == inherited;
            lock_wanted.stays = lock_wanted.place.filter(|_| stays);
        }
        Plan {
            ask,
            ways,
            older,
            inherited,
        }
    }

    /// How the request comes to one of its locks.
    fn lock_wanted<'a>(
        &self,
        entry: &Entry<impl Value>,
        now: Now,
        name: NameRef<'a>,
        ask: &Ask,
    ) -> WantedLock<'a> {
        let lock = self.queues.id(name);
        let queue = self.queues.at(lock);
        let place = queue.number_of(ask.owner);
        let kind = RequestKind::of(entry, place, ask.owner, ask.terms.limit);
        WantedLock {
            name,
            lock,
            kind,
            place,
            stays: None,
            grantable: self.grantable(entry, queue, now, (ask.owner, ask.terms.limit), kind),
        }
    }

    /// Errors if the request may not wait: for want of room, or of a place while none are given. A cap refuses only what
    /// makes its own number grow.
    fn admit_many(&mut self, plan: &Plan) -> Result<(), Refusal> {
        let mut fresh = Vec::new();
        let mut gone: BTreeSet<(LockId, Arrival)> = BTreeSet::new();
        for lock_wanted in &plan.ways {
            let goes = lock_wanted.place.filter(|_| lock_wanted.stays.is_none());
            gone.extend(lock_wanted.lock.zip(goes));
            if lock_wanted.kind == RequestKind::Reenter || lock_wanted.stays.is_some() {
                continue;
            }
            if !self.policy.grants {
                return Err(Refusal::Draining);
            }
            if lock_wanted.kind == RequestKind::Upgrade {
                self.refuse_second_upgrade(lock_wanted.lock, plan.ask.owner)?;
            }
            fresh.push(lock_wanted);
        }
        for lock_wanted in fresh
            .iter()
            .filter(|lock_wanted| lock_wanted.place.is_none())
        {
            self.room_in_queue(lock_wanted.lock)?;
        }
        let fresh = fresh.len();
        // Other older requests leave all their queues.
        let others = plan.older.iter().filter(|id| Some(**id) != plan.inherited);
        let others = others.filter_map(|id| self.requests.get(*id));
        gone.extend(others.flat_map(Request::places));
        if fresh > gone.len() && self.places + fresh - gone.len() > self.policy.max_places {
            return Err(Refusal::Full("dlock.max-places"));
        }
        let replaces = plan.older.iter().any(|id| !self.waits_by_channel(*id));
        if !replaces && self.requests.blocked() >= self.policy.max_waiters {
            return Err(Refusal::Full("dlock.max-waiters"));
        }
        Ok(())
    }

    fn refuse_if_many_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        plan: &Plan,
    ) -> Result<(), Refusal> {
        let queued = plan
            .ways
            .iter()
            .filter(|lock_wanted| lock_wanted.kind != RequestKind::Reenter);
        let wanted = queued.map(|lock_wanted| Wanted {
            name: lock_wanted.name,
            lock: lock_wanted.lock,
            place: match lock_wanted.kind {
                RequestKind::Upgrade => Some(Arrival::AHEAD),
                _ => lock_wanted.stays,
            },
            limit: plan.ask.terms.limit,
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let asked = Asked {
            owner: plan.ask.owner,
            wanted: &wanted,
            many: true,
            replaced: &plan.older,
        };
        self.refuse_if_deadlocked(keys, now, asked)
    }

    /// Takes all of the locks, and the owner's places there out. The caller has seen that nothing is against it. Returns the
    /// grants, and the holds as the answer promises them, if that may not be heard.
    fn grant_all(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        (owner, terms): (&[u8], &Terms),
        at: &[(NameRef, Option<LockId>, Option<Arrival>)],
        at_once: bool,
    ) -> (Vec<Grant>, Vec<Promise>) {
        let (mut grants, mut promises) = (Vec::with_capacity(at.len()), Vec::new());
        for (name, lock, place) in at.iter().copied() {
            let award = Award {
                name,
                owner,
                terms,
                lock,
                place,
                at_once,
            };
            let Ok((grant, promise)) = self.award(keys.entry(name), now, &award) else {
                broken!("no count overflows that was looked at before");
                continue;
            };
            grants.push(grant);
            promises.extend(promise);
        }
        (grants, promises)
    }

    /// Has all queues served on after that.
    fn settle_all(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        at: &[(NameRef, Option<LockId>, Option<Arrival>)],
    ) {
        for (name, ..) in at {
            match self.queues.id(*name) {
                Some(lock) => self.settle(keys, now, lock),
                None => self.settle_changed(keys.entry(*name), now, *name, None),
            }
        }
    }

    /// The older requests are told that they are replaced. Their places at these locks stay, with nobody there.
    fn replace_older(&mut self, plan: &Plan, now: Now) {
        let here: BTreeSet<LockId> = plan
            .ways
            .iter()
            .filter_map(|lock_wanted| lock_wanted.lock)
            .collect();
        for id in &plan.older {
            self.ledger.counters.replaced += 1;
            self.end_wait(*id, now, Outcome::Replaced, |lock| here.contains(&lock));
        }
    }

    /// Enters the queues of the locks, all in this event.
    fn wait_for_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        plan: &Plan,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        let Plan { ask, ways, .. } = plan;
        self.replace_older(plan, now);
        let (id, owner) = (self.requests.fresh(now), Rc::<[u8]>::from(ask.owner));
        let mut parts = Vec::with_capacity(ways.len());
        for lock_wanted in ways {
            let stays = lock_wanted.stays;
            let entry = keys.entry(lock_wanted.name);
            let lock = self.queues.id_or_new(lock_wanted.name);
            if let Some(number) = lock_wanted.place.filter(|_| stays.is_none()) {
                // With a place elsewhere that is older it could be before others in one queue and behind them in another.
                self.remove_place(entry, now, lock, number, Outcome::Replaced);
                self.next.insert(Next::Lock(lock));
            }
            let place = match lock_wanted.kind {
                RequestKind::Reenter => None,
                RequestKind::Upgrade => Some(Arrival::AHEAD),
                RequestKind::Queue(_) => {
                    Some(stays.unwrap_or_else(|| self.ledger.tokens.arrival(now)))
                }
            };
            if let Some(number) = place.filter(|_| stays.is_none()) {
                let place = Place::new(owner.clone(), ask.terms.limit, now);
                self.add_place(entry, lock, number, place);
            }
            let Some(queue) = self.queues.get_mut(lock) else {
                broken!("a lock that a request is to wait for has a queue");
                continue;
            };
            if let Some(number) = place {
                queue.set_limit(number, ask.terms.limit);
            }
            match place.and_then(|number| queue.place_mut(number)) {
                Some(place) => {
                    place.occupy(id, true);
                    queue.multi_places += 1;
                }
                None => drop(queue.counts_on.insert(id)),
            }
            parts.push(Part { lock, place });
        }
        let at = WaitsAt::Many(parts.clone().into());
        self.begin_to_wait(ask, owner, at, id, now);
        for Part { lock, .. } in parts {
            self.settle(keys, now, lock);
        }
        self.settle_next(keys, now);
        match self.take_answer(id) {
            None => Ok(Answer::Waiting(id)),
            Some(Outcome::GrantedAll(grants)) => Ok(Answer::Granted(grants)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(Answer::Null),
        }
    }

    /// Grants a waiting request for many locks if each of them could be granted by itself now.
    pub(in crate::rules) fn serve_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: RequestId,
    ) {
        if self.settle_many(keys, now, id) {
            // Others may have their turn by that, and have asked before.
            self.next.insert(Next::Many(id));
            return;
        }
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let (owner, terms) = (request.owner.clone(), request.terms);
        let until = request.until.map(|due| due.at);
        let named = |part: &Part| (*part, self.queues.at(part.lock).name.clone());
        let parts: Vec<(Part, Name)> = request.parts().iter().map(named).collect();
        if parts.iter().all(|(part, _)| part.place.is_none()) && self.policy.quarantined(now) {
            // It has become one of re-entries only.
            let error = self.withheld(now);
            return self.end_wait(id, now, Outcome::Refused(error), |_| false);
        }
        let mut overflows = Ok(());
        for (part, name) in &parts {
            let entry = keys.entry(name.as_ref());
            if entry.foreign {
                return self.end_wait(id, now, Outcome::Refused(Refusal::WrongType), |_| false);
            }
            overflows = overflows.and(refuse_overflow(entry, &owner, &terms));
            self.close_if_leaving(keys, name.as_ref());
            let queue = self.queues.at(part.lock);
            if queue.closed {
                return self.mark(part.lock);
            }
            let entry = keys.entry(name.as_ref());
            let kind = part.place.map_or(RequestKind::Reenter, RequestKind::to);
            match self.grantable(entry, queue, now, (&owner, terms.limit), kind) {
                Grantable::Now => {}
                Grantable::Withheld => {
                    self.held_back = true;
                    return;
                }
                _ => return,
            }
        }
        if let Err(error) = overflows {
            return self.end_wait(id, now, Outcome::Refused(error), |_| false);
        }
        let Some(request) = self.unregister_everywhere(id, now) else {
            return broken!("a request that waits is registered");
        };
        let named = parts.iter();
        let at = named.map(|(part, name)| (name.as_ref(), Some(part.lock), part.place));
        let at: Vec<_> = at.collect();
        let (grants, promises) = self.grant_all(keys, now, (&owner, &terms), &at, false);
        let (first, outcome) = (Name::default(), Outcome::GrantedAll(grants));
        let pending = Pending {
            promises,
            until,
            ..Pending::default()
        };
        let whom = (request.channel, request.owner);
        self.outbox.tell(id, whom, &first, outcome, pending);
        self.settle_all(keys, now, &at);
    }

    /// Brings those locks of a request up to date that are not: what it is told must not depend on which of them was settled
    /// first. Returns true if any was brought up to date by that.
    fn settle_many(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) -> bool {
        let (mut nth, mut moved) = (0, false);
        while let Some(part) = self.requests.get(id).and_then(|many| many.parts().get(nth)) {
            nth += 1;
            let lock = part.lock;
            let name = self.queues.at(lock).name.clone();
            if !self.is_settled(keys.entry(name.as_ref()), now, lock) {
                self.settle(keys, now, lock);
                // One that must not move, or has too many to grant for one step, is no further than before.
                moved |= self.is_settled(keys.entry(name.as_ref()), now, lock);
            } else if part.place.is_none() && self.upgrades_now(keys, now, lock, id) {
                self.settle(keys, now, lock);
                moved = true;
            }
        }
        moved
    }

    /// Returns true if this request counts on a hold that another request of its owner may upgrade now: it will have another token.
    fn upgrades_now(
        &self,
        keys: &mut impl Keyspace,
        now: Now,
        lock: LockId,
        id: RequestId,
    ) -> bool {
        let queue = self.queues.at(lock);
        let (Some(place), Some(request)) = (queue.upgrade(), self.requests.get(id)) else {
            return false;
        };
        let want = (&*place.owner, place.limit);
        let entry = keys.entry(queue.name.as_ref());
        place.owner == request.owner
            && !place.is_part()
            && self.grantable(entry, queue, now, want, RequestKind::Upgrade) == Grantable::Now
    }

    /// The request for many locks that waits at a place in this queue counts on its owner's hold from now on.
    pub(in crate::rules) fn count_on_hold(&mut self, lock: LockId, number: Arrival, id: RequestId) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that somebody waits for has a queue");
        };
        if queue.place(number).is_some_and(Place::is_part) {
            queue.remove(number);
            queue.multi_places -= 1;
            self.places -= 1;
        }
        queue.counts_on.insert(id);
        self.requests.set_place(id, lock, None);
        self.next.insert(Next::Many(id));
    }
}
