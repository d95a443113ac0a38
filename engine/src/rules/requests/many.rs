//! Many locks at once: all of them or none, in one step.
//!
//! A request for many locks that cannot be granted enters the queues of all of them in the same event, with a place in each
//! and one number for all. It is granted when each of its places is one that could be granted by itself: compatible,
//! with nobody before it. Until then a place that heads its queue keeps that lock reserved. Two such requests stand in
//! the same order in all queues they share, so neither can wait for the other in one queue and be waited for in another.
//!
//! It waits only for locks that its owner does not hold, and inherits no place: whatever else its owner waits for at these locks
//! ends, and it enters all of their queues at the end.

use super::acquire::{refuse_overflow, Answer, Ask};
use crate::deadlock::{Asked, Wanted};
use crate::invariants::broken;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::outbox::{Outcome, Pending, Promise};
use crate::queue::{LockId, Part, Place, Request, WaitsAt};
use crate::refusal::Refusal;
use crate::rules::grantable::{refuse_permits, Grantable, RequestKind};
use crate::state::{Engine, FollowUp};
use crate::types::{Arrival, Grant, HoldRef, Name, NameRef, Now, RequestId, Terms};
use std::collections::BTreeSet;
use std::rc::Rc;

/// One of the locks that a request names, and its owner's place there.
#[derive(Debug, Clone, Copy)]
struct NamedLock<'a> {
    name: NameRef<'a>,
    /// Its number, if it has a queue.
    lock: Option<LockId>,
    /// The waiting upgrade's included.
    place: Option<Arrival>,
}

/// A lock that a request names, and whether it could be granted by itself.
#[derive(Debug, Clone, Copy)]
struct WantedLock<'a> {
    at: NamedLock<'a>,
    kind: RequestKind,
    grantable: Grantable,
}

/// A request for many locks, and the state of each.
struct Plan<'a> {
    ask: &'a Ask<'a>,
    wanted: Vec<WantedLock<'a>>,
    /// The owner's older requests that wait at a place of these locks.
    older: BTreeSet<RequestId>,
}

impl<'a> Plan<'a> {
    /// Returns true if all of the locks can be granted now.
    fn is_grantable(&self) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.all(|wanted| wanted.grantable == Grantable::Now)
    }

    /// Returns the first of the locks that the owner holds.
    fn held(&self) -> Option<NameRef<'a>> {
        let mut wanted = self.wanted.iter();
        let held = wanted.find(|wanted| !matches!(wanted.kind, RequestKind::Queue(_)));
        held.map(|wanted| wanted.at.name)
    }

    /// Errors if any of the locks would be upgraded.
    fn refuse_upgrades(&self, keys: &mut impl Keyspace) -> Result<(), Refusal> {
        let upgrade = self
            .wanted
            .iter()
            .find(|wanted| wanted.kind == RequestKind::Upgrade);
        let Some(name) = upgrade.map(|wanted| wanted.at.name) else {
            return Ok(());
        };
        let hold = keys.entry(name).hold(self.ask.owner);
        let limit = hold.map_or(self.ask.terms.share.limit, |hold| hold.limit);
        Err(Refusal::Stricter(limit).at(name.key))
    }

    /// Returns the locks, and the owner's places there.
    fn locks(&self) -> impl Iterator<Item = NamedLock<'a>> + '_ {
        self.wanted.iter().map(|wanted| wanted.at)
    }
}

impl Engine {
    /// Takes all of the locks, or waits for all of them, or answers null. No lock is named twice.
    ///
    /// Errors as for [`Engine::acquire`], for any of the locks, whose key `At` names; and `Holding` if it would wait and its owner
    /// holds any of them.
    /// Nothing has changed then.
    pub fn acquire_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        ask: &Ask,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        for name in names {
            let settled = self.settled(keys, now, *name);
            settled.map_err(|refusal| refusal.at(name.key))?;
        }
        let answer = self.contend_for_many(keys, now, names, ask);
        self.follow_up(keys, now);
        answer
    }

    /// Continues the wait of a request that asks again in its session for the same locks. Returns the answer; none if it does not
    /// wait for them.
    ///
    /// Errors: `OtherShare`.
    fn ask_many_again(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        ask: &Ask,
    ) -> Result<Option<Answer<Vec<Grant>>>, Refusal> {
        let Some(session) = ask.terms.session.filter(|_| ask.waits()) else {
            return Ok(None);
        };
        let first = names.first().and_then(|name| self.queues.id(*name));
        let queue = self.queues.at(first);
        let place = queue
            .number_of(ask.owner)
            .and_then(|number| queue.place(number));
        let Some(id) = place.and_then(Place::request) else {
            return Ok(None);
        };
        let Some(request) = self.requests.get(id) else {
            return Ok(None);
        };
        let asked: BTreeSet<Option<LockId>> =
            names.iter().map(|name| self.queues.id(*name)).collect();
        let waits: BTreeSet<Option<LockId>> =
            request.parts().iter().map(|part| Some(part.lock)).collect();
        if request.terms.session != Some(session) || !request.is_many() || asked != waits {
            return Ok(None);
        }
        if request.terms.share != ask.terms.share {
            return Err(Refusal::OtherShare);
        }
        self.prolong_wait(id, now, ask);
        self.serve_many(keys, now, id, true);
        Ok(Some(match self.requests.get(id) {
            Some(_) => Answer::Waiting(id),
            None => {
                let token = |name: &NameRef| {
                    let hold = keys.entry(*name).hold(ask.owner)?;
                    let (token, holds) = (hold.token, hold.holds);
                    Some(Grant { token, holds })
                };
                if self.policy.confirms() {
                    Answer::Waiting(id)
                } else {
                    Answer::Granted(names.iter().filter_map(token).collect())
                }
            }
        }))
    }

    fn contend_for_many<'a>(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef<'a>],
        ask: &'a Ask<'a>,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        for name in names {
            if let Some(lock) = self.queues.id(*name) {
                self.place_of(keys.entry(*name), now, lock, ask.owner);
            }
        }
        if let Some(answer) = self.ask_many_again(keys, now, names, ask)? {
            return Ok(answer);
        }
        let plan = self.plan(keys, now, names, ask);
        if !plan.older.is_empty() && !ask.waits() {
            return Ok(self.null());
        }
        for name in names {
            let refused = refuse_permits(keys.entry(*name), ask.owner, ask.terms.share);
            refused.map_err(|refusal| refusal.at(name.key))?;
        }
        if ask.terms.session.is_some() {
            plan.refuse_upgrades(keys)?;
        }
        if plan.held().is_some() && self.policy.quarantined(now) {
            return Err(self.policy.withheld(now));
        }
        for wanted in &plan.wanted {
            let name = wanted.at.name;
            if wanted.grantable == Grantable::Now {
                let refused = refuse_overflow(keys.entry(name), ask.owner, &ask.terms);
                refused.map_err(|refusal| refusal.at(name.key))?;
            }
            if wanted.grantable == Grantable::Full && self.policy.granting(now) {
                return Err(Refusal::Full("dlock.max-holders").at(name.key));
            }
        }
        if plan.is_grantable() {
            return Ok(self.grant_now(keys, now, &plan));
        }
        if !self.policy.granting(now) && (plan.held().is_some() || !ask.waits()) {
            return Err(self.policy.withheld(now));
        }
        if !ask.waits() {
            return Ok(self.null());
        }
        if let Some(held) = plan.held() {
            return Err(Refusal::Holding.at(held.key));
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
        let wanted = |name: &NameRef<'a>| self.wanted_lock(keys.entry(*name), now, *name, ask);
        let wanted: Vec<WantedLock> = names.iter().map(wanted).collect();
        let request = |wanted: &WantedLock| {
            let NamedLock { lock, place, .. } = wanted.at;
            self.queues.at(lock).place(place?)?.request()
        };
        let older = wanted.iter().filter_map(request).collect();
        Plan { ask, wanted, older }
    }

    /// Returns the state of one of the locks for the request. Its owner's place there counts as gone.
    fn wanted_lock<'a>(
        &self,
        entry: &Entry<impl Value>,
        now: Now,
        name: NameRef<'a>,
        ask: &Ask,
    ) -> WantedLock<'a> {
        let lock = self.queues.id(name);
        let queue = self.queues.at(lock);
        let place = queue.number_of(ask.owner);
        let alone = place.filter(|_| queue.len() == 1);
        let kind = RequestKind::of(entry, alone, ask.owner, ask.terms.share.limit);
        WantedLock {
            at: NamedLock { name, lock, place },
            kind,
            grantable: self.grantable(entry, queue, now, ask.owner, ask.terms.share, kind),
        }
    }

    /// Errors if the request may not wait: for want of room, or while no places are given. A cap refuses only what makes its own
    /// number grow.
    fn admit_many(&self, plan: &Plan) -> Result<(), Refusal> {
        if !self.policy.grants {
            return Err(Refusal::Draining);
        }
        for at in plan.locks().filter(|at| at.place.is_none()) {
            let room = self.room_in_queue(at.lock);
            room.map_err(|refusal| refusal.at(at.name.key))?;
        }
        // The owner's places here go, and those of its older requests elsewhere.
        let here = plan.locks().filter_map(|at| Part::at(at.lock, at.place));
        let mut gone: BTreeSet<Part> = here.collect();
        let older = plan.older.iter().filter_map(|id| self.requests.get(*id));
        gone.extend(older.flat_map(Request::parts));
        let fresh = plan.wanted.len();
        if fresh > gone.len() && self.queues.places() + fresh - gone.len() > self.policy.max_places
        {
            return Err(Refusal::Full("dlock.max-places"));
        }
        if plan.ask.terms.session.is_some() {
            return Ok(());
        }
        let replaces = plan.older.iter().any(|id| !self.waits_apart(*id));
        if !replaces && self.requests.blocked() >= self.policy.max_waiters {
            Err(Refusal::Full("dlock.max-waiters"))
        } else {
            Ok(())
        }
    }

    fn refuse_if_many_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        plan: &Plan,
    ) -> Result<(), Refusal> {
        let wanted = plan.locks().map(|at| Wanted {
            name: at.name,
            lock: at.lock,
            place: None,
            limit: plan.ask.terms.share.limit,
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let asked = Asked {
            owner: plan.ask.owner,
            session: plan.ask.terms.session,
            wanted: &wanted,
            replaced: &plan.older,
        };
        self.refuse_if_deadlocked(keys, now, asked)
    }

    /// Grants all of the locks to a request that has just come.
    fn grant_now(&mut self, keys: &mut impl Keyspace, now: Now, plan: &Plan) -> Answer<Vec<Grant>> {
        let ask = plan.ask;
        let at: Vec<NamedLock> = plan.locks().collect();
        for at in &at {
            if let Some(at) = Part::at(at.lock, at.place) {
                self.replace(at, now);
            }
        }
        let (grants, promises) =
            self.replying(|engine| engine.grant_all(keys, now, ask.owner, &ask.terms, &at));
        let answer = match self.policy.confirms() {
            false => Answer::Granted(grants),
            true => {
                let outcome = Outcome::GrantedAll(grants);
                Answer::Waiting(self.answer_confirmed(now, ask, outcome, promises))
            }
        };
        for at in &at {
            self.settle_name(keys, now, at.name);
        }
        answer
    }

    /// Grants all of the locks and removes the owner's places. The caller has checked that nothing is in the way. Returns the
    /// grants, and the promises of the answer if the answer may not be delivered.
    fn grant_all(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        owner: &[u8],
        terms: &Terms,
        locks: &[NamedLock],
    ) -> (Vec<Grant>, Vec<Promise>) {
        let (mut grants, mut promises) = (Vec::with_capacity(locks.len()), Vec::new());
        for NamedLock { name, lock, place } in locks.iter().copied() {
            let (whose, at) = (HoldRef { name, owner }, Part::at(lock, place));
            let Ok((grant, promise)) = self.award(keys.entry(name), now, whose, terms, at) else {
                broken!("no count overflows that was looked at before");
                continue;
            };
            grants.push(grant);
            promises.extend(promise);
        }
        (grants, promises)
    }

    /// Enters the queues of the locks, all in this event. The owner's places there go first.
    fn wait_for_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        plan: &Plan,
    ) -> Result<Answer<Vec<Grant>>, Refusal> {
        let ask = plan.ask;
        let (id, owner) = (self.requests.next_id(), Rc::<[u8]>::from(ask.owner));
        let mut parts = Vec::with_capacity(plan.wanted.len());
        for at in plan.locks() {
            let entry = keys.entry(at.name);
            if let Some(at) = Part::at(at.lock, at.place) {
                self.replace(at, now);
                self.remove_place(entry, now, at.lock, at.place, Outcome::Replaced);
            }
            let lock = self.queues.id_or_new(at.name);
            let number = self.holds.tokens.arrival(now);
            let mut place = Place::new(owner.clone(), ask.terms.share, now);
            place.occupy(id);
            self.add_place(entry, lock, number, place);
            if let Some(queue) = self.queues.get_mut(lock) {
                queue.multi_places += 1;
            }
            parts.push(Part {
                lock,
                place: number,
            });
        }
        let at = WaitsAt::Many(Box::new(parts.clone().into()));
        self.begin_to_wait(ask, owner, at, id, now);
        for Part { lock, .. } in parts {
            self.settle(keys, now, lock);
        }
        self.follow_up(keys, now);
        match self.take_answer(id) {
            None => Ok(Answer::Waiting(id)),
            Some(Outcome::GrantedAll(grants)) => Ok(Answer::Granted(grants)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(Answer::Null),
        }
    }

    /// Grants a waiting request for many locks if each of them could be granted by itself now, and its session is alive or has asked
    /// just now. Returns how many locks it has granted.
    pub(in crate::rules) fn serve_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: RequestId,
        asked: bool,
    ) -> usize {
        if self.catch_up_all(keys, now, id) {
            // The settlement may have made others grantable that have asked before.
            self.follow_ups.insert(FollowUp::Many(id));
            return 0;
        }
        let Some(request) = self.requests.get(id) else {
            return 0;
        };
        if !asked && !self.may_be_granted(request) {
            self.withhold(id);
            return 0;
        }
        let Some(request) = self.requests.get(id) else {
            return 0;
        };
        let (owner, terms) = (request.owner.clone(), request.terms);
        let until = request.until.map(|due| due.at);
        let named = |part: &Part| (*part, self.queues.at(part.lock).name.clone());
        let parts: Vec<(Part, Name)> = request.parts().iter().map(named).collect();
        for (part, name) in &parts {
            self.close_if_leaving(keys, name.as_ref());
            let queue = self.queues.at(part.lock);
            if queue.closed {
                self.mark(part.lock);
                return 0;
            }
            let entry = keys.entry(name.as_ref());
            if entry.foreign {
                // A settlement refuses this request, too, when its turn comes.
                self.mark(part.lock);
                return 0;
            }
            let kind = RequestKind::to(part.place);
            match self.grantable(entry, queue, now, &owner, terms.share, kind) {
                Grantable::Now => {}
                Grantable::Withheld => {
                    self.held_back = true;
                    return 0;
                }
                _ => return 0,
            }
        }
        let Some(request) = self.unregister_everywhere(id, now) else {
            broken!("a request that waits is registered");
            return 0;
        };
        let at = parts.iter().map(|(part, name)| NamedLock {
            name: name.as_ref(),
            lock: Some(part.lock),
            place: Some(part.place),
        });
        let at: Vec<NamedLock> = at.collect();
        let mut grant = |engine: &mut Engine| engine.grant_all(keys, now, &owner, &terms, &at);
        // Only what is granted to the command that asks has a reply that tells of it.
        let (grants, promises) = if asked {
            self.replying(grant)
        } else {
            grant(self)
        };
        let (first, outcome) = (Name::default(), Outcome::GrantedAll(grants));
        let pending = Pending::new(promises, until);
        self.put_out(id, &request, &first, outcome, pending);
        for (part, _) in &parts {
            self.settle(keys, now, part.lock);
        }
        parts.len()
    }

    /// Settles those locks of a request that are not settled: its outcome must not depend on which of them was settled first.
    /// Returns true if that has changed any.
    fn catch_up_all(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) -> bool {
        let (mut nth, mut moved) = (0, false);
        while let Some(part) = self.requests.get(id).and_then(|many| many.parts().get(nth)) {
            nth += 1;
            let lock = part.lock;
            let name = self.queues.at(lock).name.clone();
            if !self.is_settled(keys.entry(name.as_ref()), now, lock) {
                self.settle(keys, now, lock);
                // One that must not move, or has too many to grant for one step, is no further than before.
                moved |= self.is_settled(keys.entry(name.as_ref()), now, lock);
            }
        }
        moved
    }
}
