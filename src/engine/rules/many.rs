//! Many locks at once: all of them or none, in one step.
//!
//! A request for many locks that cannot be granted enters the queues of all of them in the same event, with a place in each
//! and one number for all. It is granted when each of its places is one that could be granted by itself: compatible,
//! with nobody before it. Until then a place that heads its queue keeps that lock reserved. Two such requests stand in
//! the same order in all queues they share, so neither can wait for the other in one queue and be waited for in another.
//!
//! A lock that the owner holds already is not queued for: the request counts on that hold, and is refused when it ends.

use super::acquire::{refuse_overflow, Ask, Wait};
use super::grantable::{Grantable, Way};
use crate::engine::deadlock::look::Wanted;
use crate::engine::keyspace::{Entry, Keyspace};
use crate::engine::ledger::{Outcome, Recipient};
use crate::engine::queue::place::{Occupant, Place};
use crate::engine::queue::requests::{Many, Part, WaitsAt};
use crate::engine::queue::LockId;
use crate::engine::state::{Engine, Next};
use crate::engine::types::{Arrival, Grant, Name, NameRef, Now, RequestId};
use crate::error::Error;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::rc::Rc;

/// What a request for many locks is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManyAnswer {
    /// They are the owner's: a grant for each, in the order of the request.
    Granted(Vec<Grant>),
    /// They cannot be granted now.
    Null,
    /// It waits under this number.
    Waiting(RequestId),
}

/// How a request comes to one of its locks.
#[derive(Debug, Clone, Copy)]
struct Access<'a> {
    name: NameRef<'a>,
    lock: Option<LockId>,
    way: Way,
    /// The owner's place there, the waiting upgrade's included.
    place: Option<Arrival>,
    grantable: Grantable,
}

impl Many {
    /// What it asks for of each lock.
    fn ask<'a>(&self, owner: &'a [u8]) -> Ask<'a> {
        Ask {
            owner,
            lease: self.lease,
            wait: Wait::For(None),
            holds: self.holds.map(NonZeroU32::get),
            limit: self.limit,
            ticket: None,
            session: self.session,
            channel: None,
            client: self.client,
        }
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
    ) -> Result<ManyAnswer, Error> {
        for name in names {
            if self.freshen(keys, now, *name).0.foreign {
                return Err(Error::WrongType);
            }
        }
        let answer = self.contend_for_many(keys, now, names, ask);
        self.follow_up(keys, now);
        answer
    }

    fn contend_for_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        ask: &Ask,
    ) -> Result<ManyAnswer, Error> {
        let mut ways = Vec::with_capacity(names.len());
        for name in names {
            ways.push(self.access(keys.entry(*name), now, *name, ask));
        }
        let older = self.older(&ways);
        if !older.is_empty() && !ask.waits() {
            return Ok(self.null_for_many());
        }
        let reenters = ways.iter().all(|access| access.way == Way::Reenter);
        if reenters && self.policy.quarantined(now) {
            return Err(self.withheld(now));
        }
        for access in &ways {
            if access.grantable == Grantable::Now {
                refuse_overflow(keys.entry(access.name), ask)?;
            }
            if access.grantable == Grantable::Full && self.policy.granting(now) {
                return Err(Error::Full("dlock.max-holders"));
            }
        }
        let open = |access: &Access| access.grantable == Grantable::Now;
        if ways.iter().all(open) {
            return self.grant_many(keys, now, &ways, &older, ask);
        }
        if !ask.waits() {
            return match self.policy.granting(now) {
                true => Ok(self.null_for_many()),
                false => Err(self.withheld(now)),
            };
        }
        let inherited = self.inherited(&older, &ways);
        self.admit_many(&ways, &older, inherited, ask)?;
        self.look_for_circle_of_many(keys, &ways, &older, inherited, ask)?;
        self.wait_for_many(keys, now, &ways, &older, inherited, ask)
    }

    fn null_for_many(&mut self) -> ManyAnswer {
        self.ledger.counters.refused += 1;
        ManyAnswer::Null
    }

    /// How the request comes to one of its locks.
    fn access<'a>(&self, entry: &Entry, now: Now, name: NameRef<'a>, ask: &Ask) -> Access<'a> {
        let lock = self.queues.id(name);
        let queue = self.queues.at(lock);
        let place = queue.number_of(ask.owner);
        let way = Way::of(entry, place, ask.owner, ask.limit);
        Access {
            name,
            lock,
            way,
            place,
            grantable: self.grantable(entry, queue, now, (ask.owner, ask.limit), way),
        }
    }

    /// The owner's older requests that wait at a place of these locks.
    fn older(&self, ways: &[Access]) -> BTreeSet<RequestId> {
        let request = |access: &Access| {
            let queue = self.queues.at(access.lock);
            queue.place(access.place?)?.request()
        };
        ways.iter().filter_map(request).collect()
    }

    /// The older request that is one for the very same locks: its places are inherited.
    fn inherited(&self, older: &BTreeSet<RequestId>, ways: &[Access]) -> Option<RequestId> {
        let own: BTreeSet<LockId> = ways.iter().filter_map(|access| access.lock).collect();
        let same = |id: &RequestId| {
            let parts = self.requests.many(*id).map(|many| &many.parts);
            let theirs = parts.into_iter().flatten().map(|part| part.lock);
            own.len() == ways.len() && theirs.collect::<BTreeSet<_>>() == own
        };
        older.iter().copied().find(same)
    }

    /// The place at this lock that the request inherits and needs.
    fn inherited_place(&self, access: &Access, inherited: Option<RequestId>) -> Option<Arrival> {
        let queue = self.queues.at(access.lock);
        let place = access.place.filter(|_| access.way != Way::Reenter)?;
        let request = queue.place(place)?.request();
        (inherited.is_some() && request == inherited).then_some(place)
    }

    /// Errors if the request may not wait: for want of room, or of a place while none are given. A cap refuses only what
    /// makes its own number grow.
    fn admit_many(
        &mut self,
        ways: &[Access],
        older: &BTreeSet<RequestId>,
        inherited: Option<RequestId>,
        ask: &Ask,
    ) -> Result<(), Error> {
        let mut fresh = Vec::new();
        let mut gone: BTreeSet<(LockId, Arrival)> = BTreeSet::new();
        for access in ways {
            let stays = self.inherited_place(access, inherited);
            gone.extend(access.lock.zip(access.place.filter(|_| stays.is_none())));
            if access.way == Way::Reenter || stays.is_some() {
                continue;
            }
            if !self.policy.grants {
                return Err(Error::Draining);
            }
            if access.way == Way::Upgrade {
                self.refuse_second_upgrade(access.lock, ask.owner)?;
            }
            fresh.push(access);
        }
        for access in fresh.iter().filter(|access| access.place.is_none()) {
            self.room_in_queue(access.lock)?;
        }
        let fresh = fresh.len();
        // Other older requests leave all their queues.
        let others = older.iter().filter(|id| Some(**id) != inherited);
        let others = others.filter_map(|id| self.requests.many(*id));
        gone.extend(others.flat_map(|many| many.places()));
        if fresh > gone.len() && self.places + fresh - gone.len() > self.policy.max_places {
            return Err(Error::Full("dlock.max-places"));
        }
        let replaces = older.iter().any(|id| !self.waits_by_channel(*id));
        if !replaces && self.requests.blocked() >= self.policy.max_waiters {
            return Err(Error::Full("dlock.max-waiters"));
        }
        Ok(())
    }

    fn look_for_circle_of_many(
        &mut self,
        keys: &mut impl Keyspace,
        ways: &[Access],
        older: &BTreeSet<RequestId>,
        inherited: Option<RequestId>,
        ask: &Ask,
    ) -> Result<(), Error> {
        let wanted = |access: &Access<'_>| match access.way {
            Way::Reenter => None,
            Way::Upgrade => Some(Some(Arrival::AHEAD)),
            Way::Queue(_) => Some(self.inherited_place(access, inherited)),
        };
        let wanted: Vec<Wanted> = ways
            .iter()
            .filter_map(|access| {
                Some(Wanted {
                    name: access.name,
                    lock: access.lock,
                    place: wanted(access)?,
                    limit: ask.limit,
                })
            })
            .collect();
        let older: Vec<RequestId> = older.iter().copied().collect();
        self.refuse_if_deadlocked(keys, &wanted, ask, &older)
    }

    /// Takes all of the locks. The caller has seen that nothing is against it.
    fn grant_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        ways: &[Access],
        older: &BTreeSet<RequestId>,
        ask: &Ask,
    ) -> Result<ManyAnswer, Error> {
        self.replace_older(older, ways, now);
        let mut grants = Vec::with_capacity(ways.len());
        for access in ways {
            let entry = keys.entry(access.name);
            let used = access.lock.zip(access.place);
            if let Some((lock, number)) = used {
                drop(self.take_out(entry, now, lock, number));
            }
            let claim = ask.claim(access.name);
            let grant = self.ledger.grant(&self.policy, entry, now, &claim)?;
            if grant.holds == grant.added {
                let counters = &mut self.ledger.counters;
                counters.grants_immediate += u64::from(used.is_none());
                counters.grants_waited += u64::from(used.is_some());
            }
            grants.push(grant);
        }
        for access in ways {
            if let Some(lock) = access.lock {
                self.suspect_if_waiting(lock, self.requests.hash(ask.owner));
            }
            let lock = self.queues.id(access.name);
            self.rewatch(keys.entry(access.name), now, access.name, lock);
        }
        Ok(ManyAnswer::Granted(grants))
    }

    /// The older requests are told that they are replaced. Their places at these locks stay, with nobody there.
    fn replace_older(&mut self, older: &BTreeSet<RequestId>, ways: &[Access], now: Now) {
        let here: BTreeSet<LockId> = ways.iter().filter_map(|access| access.lock).collect();
        for id in older {
            self.ledger.counters.replaced += 1;
            self.replace(*id, now, |lock| here.contains(&lock));
        }
    }

    /// Enters the queues of the locks, all in this event.
    fn wait_for_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        ways: &[Access],
        older: &BTreeSet<RequestId>,
        inherited: Option<RequestId>,
        ask: &Ask,
    ) -> Result<ManyAnswer, Error> {
        let stays: Vec<Option<Arrival>> = ways
            .iter()
            .map(|access| self.inherited_place(access, inherited))
            .collect();
        self.replace_older(older, ways, now);
        let id = self.requests.fresh(now);
        let until = self.begin_to_wait(ask, id, now);
        let mut parts = Vec::with_capacity(ways.len());
        for (access, stays) in ways.iter().zip(stays) {
            let entry = keys.entry(access.name);
            let lock = self.queues.id_or_new(access.name);
            if let Some(number) = access.place.filter(|_| stays.is_none()) {
                // With a place elsewhere that is older it could be before others in one queue and behind them in another.
                self.remove_place(entry, now, lock, number, Outcome::Replaced);
                self.next.insert(Next::Lock(lock));
            }
            let place = match access.way {
                Way::Reenter => None,
                Way::Upgrade => Some(Arrival::AHEAD),
                Way::Queue(_) => Some(stays.unwrap_or_else(|| self.ledger.clock.arrival(now))),
            };
            if let Some(number) = place {
                self.enter(entry, now, lock, ask, number, id);
            } else if let Some(queue) = self.queues.get_mut(lock) {
                queue.counting.insert(id);
            }
            parts.push(Part { lock, place });
        }
        let many = Many {
            owner: Rc::from(ask.owner),
            client: ask.client,
            lease: ask.lease,
            holds: ask.holds.and_then(NonZeroU32::new),
            limit: ask.limit,
            session: ask.session,
            until,
            parts,
        };
        let locks: Vec<LockId> = many.parts.iter().map(|part| part.lock).collect();
        let at = WaitsAt::Many(Box::new(many));
        self.enlist(id, ask.owner, ask.client, None, at);
        for lock in locks {
            self.suspect_if_waiting_beside(lock, ask.owner, id);
            self.settle(keys, now, lock);
        }
        self.follow_up(keys, now);
        match self.ledger.take_answer(id) {
            None => Ok(ManyAnswer::Waiting(id)),
            Some(Outcome::GrantedAll(grants)) => Ok(ManyAnswer::Granted(grants)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(ManyAnswer::Null),
        }
    }

    /// Has a part of the request wait at this place, which is made if it is not there.
    fn enter(
        &mut self,
        entry: &mut Entry,
        now: Now,
        lock: LockId,
        ask: &Ask,
        number: Arrival,
        id: RequestId,
    ) {
        if self.queues.at(lock).place(number).is_none() {
            let ask = Ask {
                ticket: None,
                ..*ask
            };
            self.add_place(entry, now, lock, &ask, number);
        }
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        queue.parts += 1;
        if let Some(place) = queue.place_mut(number) {
            place.limit = ask.limit;
            place.occupant = Occupant::Part(id);
        }
    }

    /// Grants a waiting request for many locks if each of them could be granted by itself now.
    pub(super) fn serve_many(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        if self.freshen_many(keys, now, id) {
            // Others may have their turn by that, and have asked before.
            self.next.insert(Next::Many(id));
            return;
        }
        let Some(many) = self.requests.many(id) else {
            return;
        };
        let owner = many.owner.clone();
        let ask = many.ask(&owner);
        let named = |part: &Part| (*part, self.queues.at(part.lock).name.clone());
        let parts: Vec<(Part, Name)> = many.parts.iter().map(named).collect();
        if parts.iter().all(|(part, _)| part.place.is_none()) && self.policy.quarantined(now) {
            // It has become one of re-entries only.
            let error = self.withheld(now);
            return self.dismiss(id, now, Outcome::Refused(error));
        }
        let mut overflows = Ok(());
        for (part, name) in &parts {
            let entry = keys.entry(name.as_ref());
            if entry.foreign {
                return self.dismiss(id, now, Outcome::Refused(Error::WrongType));
            }
            overflows = overflows.and(refuse_overflow(entry, &ask));
            let queue = self.queues.at(part.lock);
            let closed = queue.closed;
            let way = part.place.map_or(Way::Reenter, Way::to);
            match self.grantable(entry, queue, now, (&owner, ask.limit), way) {
                Grantable::Now if !closed => {}
                Grantable::Withheld => {
                    self.held_back = true;
                    return;
                }
                _ => return,
            }
        }
        if let Err(error) = overflows {
            return self.dismiss(id, now, Outcome::Refused(error));
        }
        self.grant_waiting_many(keys, now, id, &parts, &ask);
    }

    /// Brings those locks of a request up to date that are not: what it is told must not depend on which of them was settled
    /// first. Gives whether any was brought up to date by that.
    fn freshen_many(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) -> bool {
        let (mut nth, mut moved) = (0, false);
        while let Some(part) = self.requests.many(id).and_then(|many| many.parts.get(nth)) {
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

    /// Grants all locks to a request that heads all of their queues, and has the queues served on.
    fn grant_waiting_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: RequestId,
        parts: &[(Part, Name)],
        ask: &Ask,
    ) {
        let hash = self.requests.hash(ask.owner);
        let Some(WaitsAt::Many(many)) = self.delist(id, hash, ask.client) else {
            return;
        };
        let mut until = many.until;
        self.ledger.timers.clear(&mut until);
        let mut grants = Vec::with_capacity(parts.len());
        for (part, name) in parts {
            let entry = keys.entry(name.as_ref());
            match part.place {
                Some(number) => {
                    drop(self.take_out(entry, now, part.lock, number));
                    if let Some(queue) = self.queues.get_mut(part.lock) {
                        queue.parts -= 1;
                    }
                }
                None => {
                    if let Some(queue) = self.queues.get_mut(part.lock) {
                        queue.counting.remove(&id);
                    }
                }
            }
            let claim = ask.claim(name.as_ref());
            if let Ok(grant) = self.ledger.grant(&self.policy, entry, now, &claim) {
                self.ledger.counters.grants_waited += u64::from(grant.holds == grant.added);
                grants.push(grant);
            }
            self.suspect_if_waiting(part.lock, hash);
        }
        let to = Recipient {
            id,
            channel: None,
            owner: &many.owner,
        };
        if let Some((_, name)) = parts.first() {
            self.ledger.tell(to, name, Outcome::GrantedAll(grants));
        }
        for (part, _) in parts {
            self.settle(keys, now, part.lock);
        }
    }

    /// The request for many locks that waits at a place in this queue counts on its owner's hold from now on.
    pub(super) fn count_on_hold(&mut self, lock: LockId, number: Arrival, id: RequestId) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        if queue.place(number).is_some_and(Place::is_part) {
            queue.remove(number);
            queue.parts -= 1;
            self.places -= 1;
        }
        queue.counting.insert(id);
        if let Some(part) = self
            .requests
            .many_mut(id)
            .and_then(|many| many.part_mut(lock))
        {
            part.place = None;
        }
        self.next.insert(Next::Many(id));
    }
}
