//! Many locks at once: all of them or none, in one step.
//!
//! A request for many locks that cannot be granted enters the queues of all of them in the same event, with a place in each
//! and one name for all. It is granted when each of its places is one that could be granted by itself: compatible,
//! with nobody before it. Until then a place that heads its queue keeps that lock reserved. Two such requests stand in
//! the same order in all queues they share, so neither can wait for the other in one queue and be waited for in another.
//!
//! A lock that the owner holds already is entered once more, not queued for. If that hold ends while the request waits, the
//! lock is queued for from then on, like the others: its line knows who counts on the hold.

use super::acquire::{overflow, take, Ask, Claim, Wait};
use super::change::{Change, End};
use super::deadline::Due;
use super::keep::{held, lower, tell, Recipient};
use super::line::{Line, Request, RequestId, UPGRADE};
use super::lock::Hold;
use super::requests::{Many, Stand};
use super::waits::two_upgrades;
use super::{Engine, Entry, Grant, Keyspace, Millis, Name, NameRef, Now, Outcome};
use crate::error::Error;
use std::num::NonZeroU32;
use std::rc::Rc;

/// What a settlement has made possible elsewhere, in the order in which it is looked at.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Next {
    /// A place in this lock's queue has gone with one elsewhere.
    Lock(Name),
    /// A request for many locks may be grantable: it heads a queue. Those of one owner are granted as they came.
    Many(RequestId),
}

/// What a request for many locks is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManyAnswer {
    /// They are the owner's: a grant for each, in the order of the request.
    Granted(Vec<Grant>),
    /// They cannot be granted now.
    Null,
    /// It waits under this name.
    Waiting(RequestId),
}

/// How one lock stands towards a request for it among others.
#[derive(Debug, Clone, Copy)]
struct Access {
    way: Way,
    /// Whether it can be had now.
    open: bool,
}

/// How a request comes to one lock among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The owner holds it with that limit or a stricter one: to be entered once more.
    Enter,
    /// The owner holds it with a weaker limit: to be waited for ahead of the queue.
    Upgrade,
    /// To be queued for.
    Queue,
}

impl Many {
    /// What it asks for of each lock.
    fn ask<'a>(&self, owner: &'a [u8]) -> Ask<'a> {
        Ask {
            owner,
            lease: self.lease,
            wait: Wait::For(None),
            holds: self.holds,
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
        let quarantined = self.policy.quarantined(now);
        let mut ways = Vec::with_capacity(names.len());
        for name in names {
            ways.push(self.access(keys.entry(*name), *name, ask)?);
        }
        // An upgrade is a new grant: a drained server makes none, be it of one lock or of many.
        if !self.policy.grants && ways.iter().any(|access| access.way != Way::Enter) {
            return Err(Error::Draining);
        }
        let open = ways.iter().all(|access| access.open);
        if !quarantined && open {
            return self
                .grant_many(keys, now, names, ask)
                .map(ManyAnswer::Granted);
        }
        if ask.wait == Wait::No {
            if quarantined {
                return Err(Error::Quarantine);
            }
            self.counters.refused += 1;
            return Ok(ManyAnswer::Null);
        }
        let mut wanted = Vec::with_capacity(names.len());
        let mut fresh = 0;
        for (name, access) in names.iter().zip(&ways) {
            let line = self.lines.get(*name);
            let place = match access.way {
                Way::Enter if !quarantined => continue,
                Way::Enter | Way::Queue => line.and_then(|line| line.number_of(ask.owner)),
                Way::Upgrade => {
                    self.upgrade_is_free(*name, ask)?;
                    Some(UPGRADE)
                }
            };
            let line = self.lines.get(*name);
            let known =
                place.is_some_and(|number| line.is_some_and(|line| line.place(number).is_some()));
            self.room(*name, ask, known)?;
            fresh += usize::from(!known);
            wanted.push((*name, place));
        }
        if self.places + fresh > self.policy.max_places {
            return Err(Error::Full("dlock.max-places"));
        }
        self.escape(keys, &wanted, ask)?;
        self.wait_for_many(keys, now, names, &wanted, ask)
    }

    /// How a lock stands towards the request.
    ///
    /// Errors: `Full`, `Argument` when it could be taken but for a bound.
    fn access(&self, entry: &Entry, name: NameRef, ask: &Ask) -> Result<Access, Error> {
        let compatible = entry.admits(ask.owner, ask.limit);
        let Some(hold) = entry.hold(ask.owner) else {
            let open = match self.lines.get(name).and_then(Line::head) {
                None => compatible,
                // Its own place, by a ticket or an earlier request: nobody is before it.
                Some((_, head)) => {
                    *head.owner == *ask.owner && entry.admits(ask.owner, ask.limit.min(head.limit))
                }
            };
            if open && entry.holders() >= self.policy.max_holders {
                return Err(Error::Full("dlock.max-holders"));
            }
            let way = Way::Queue;
            return Ok(Access { way, open });
        };
        let way = match hold.limit <= ask.limit {
            true => Way::Enter,
            false => Way::Upgrade,
        };
        let open = way == Way::Enter || compatible;
        if open && ask.holds.is_none() && hold.holds == u32::MAX {
            return Err(overflow());
        }
        Ok(Access { way, open })
    }

    /// Errors if another owner waits to upgrade this lock: each would wait for the other to leave.
    pub(super) fn upgrade_is_free(&mut self, name: NameRef, ask: &Ask) -> Result<(), Error> {
        let place = self.lines.get(name).and_then(|line| line.upgrade.as_ref());
        match place {
            Some(place) if *place.owner != *ask.owner => {
                self.counters.deadlocks += 1;
                Err(two_upgrades(ask.owner, &place.owner))
            }
            _ => Ok(()),
        }
    }

    /// Takes all of the locks. The caller has seen that nothing stands against it.
    fn grant_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        ask: &Ask,
    ) -> Result<Vec<Grant>, Error> {
        let mut grants = Vec::with_capacity(names.len());
        for name in names {
            let line = self.lines.get(*name);
            let place = line.and_then(|line| line.number_of(ask.owner));
            let entry = keys.entry(*name);
            let place = place.filter(|_| entry.hold(ask.owner).is_none());
            let grant = self.take_at(entry, now, *name, ask, place, None)?;
            self.counters.grants_immediate += u64::from(grant.holds == grant.added);
            grants.push(grant);
        }
        for name in names {
            self.rewatch(keys.entry(*name), now, *name);
        }
        self.follow_up(keys, now);
        Ok(grants)
    }

    /// Takes one of many locks, and with it the owner's place there. Others who share that are granted too.
    fn take_at(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
        number: Option<u64>,
        id: Option<RequestId>,
    ) -> Result<Grant, Error> {
        let line = self.lines.get(name);
        let place = line.and_then(|line| line.place(number?));
        // With the limit of all who share the place: theirs are re-entries then.
        let limit = place.map_or(ask.limit, |place| place.limit.min(ask.limit));
        let grant = self.take_one(entry, now, name, &Ask { limit, ..*ask })?;
        if let Some(number) = number {
            self.use_up(entry, now, name, number, id);
        }
        Ok(grant)
    }

    /// The place is granted as this request for many locks takes it.
    fn use_up(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        number: u64,
        id: Option<RequestId>,
    ) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        let Some(mut place) = line.take(number) else {
            return;
        };
        let before = place.requests.len();
        place.requests.retain(|request| Some(request.id) != id);
        line.many -= before - place.requests.len();
        self.places -= 1;
        let since = place.since_us(number);
        self.counters.waited(name, since, now);
        if place.ticket.is_some() {
            entry.commit(&Change::Unticket { number });
        }
        self.grant(entry, now, name, *place);
    }

    fn take_one(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Grant, Error> {
        let claim = Claim {
            owner: ask.owner,
            limit: ask.limit,
            lease: ask.lease,
            holds: ask.holds,
            client: ask.client,
        };
        let grant = take(
            &mut self.clock,
            &self.policy,
            &mut self.counters,
            &mut self.sessions,
            entry,
            now,
            claim,
        )?;
        if ask.session {
            self.tie(name, ask.owner, ask.client, grant.token);
        }
        Ok(grant)
    }

    /// Enters the queues of the locks that are wanted, all in this event.
    fn wait_for_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        wanted: &[(NameRef, Option<u64>)],
        ask: &Ask,
    ) -> Result<ManyAnswer, Error> {
        let id = self.requests.fresh();
        let until = match ask.wait {
            Wait::For(Some(ms)) => {
                let at = now.ms().saturating_add(ms);
                Some(self.deadlines.add(at, Due::Wait(id)))
            }
            _ => None,
        };
        let mut locks: Vec<(Name, Option<u64>)> = Vec::with_capacity(names.len());
        for name in names {
            let place = wanted.iter().find(|(other, _)| other == name);
            let number = place
                .map(|(_, place)| self.queue_up(keys.entry(*name), now, *name, ask, id, *place));
            let kept = self.lines.name(*name).unwrap_or_else(|| name.keep());
            if number.is_none() {
                self.lines.make(&kept).entering.insert(id);
            }
            locks.push((kept, number));
        }
        let many = Many {
            owner: Rc::from(ask.owner),
            client: ask.client,
            lease: ask.lease,
            holds: ask.holds,
            limit: ask.limit,
            session: ask.session,
            until,
            locks,
        };
        self.requests
            .add(id, ask.owner, ask.client, None, Stand::Many(Box::new(many)));
        for name in names {
            self.settle(keys, now, *name);
        }
        self.follow_up(keys, now);
        match self.answered(id) {
            Some(Outcome::GrantedAll(grants)) => Ok(ManyAnswer::Granted(grants)),
            Some(Outcome::Refused(error)) => Err(error),
            Some(_) => Ok(ManyAnswer::Null),
            None => Ok(ManyAnswer::Waiting(id)),
        }
    }

    /// Takes a place in the queue of one of many locks; gives its number.
    fn queue_up(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
        id: RequestId,
        place: Option<u64>,
    ) -> u64 {
        let number = match place {
            Some(UPGRADE) => {
                self.stand_to_upgrade(entry, now, name, ask);
                UPGRADE
            }
            place => {
                let holder = entry.hold(ask.owner).is_some();
                self.stand(entry, now, name, ask, place, holder)
            }
        };
        if let Some(line) = self.lines.get_mut(name) {
            if let Some(place) = line.place_mut(number) {
                place.join(Request {
                    id,
                    client: ask.client,
                    lease: ask.lease,
                    holds: ask.holds.and_then(NonZeroU32::new),
                    until: None,
                    session: ask.session,
                    many: true,
                    channel: None,
                });
                line.many += 1;
            }
        }
        number
    }

    /// Works off what settlements have made possible elsewhere, to a fixed point.
    #[inline]
    pub(super) fn follow_up(&mut self, keys: &mut impl Keyspace, now: Now) {
        if !self.next.is_empty() {
            self.follow_up_all(keys, now);
        }
    }

    #[inline(never)]
    fn follow_up_all(&mut self, keys: &mut impl Keyspace, now: Now) {
        while let Some(next) = self.next.pop_first() {
            match next {
                Next::Lock(name) => self.settle(keys, now, name.lend()),
                Next::Many(id) => self.serve_many(keys, now, id),
            }
        }
    }

    /// Grants a waiting request for many locks if each of them could be granted by itself now.
    fn serve_many(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        if self.freshen_many(keys, now, id) {
            // Others may have their turn by that, and have asked before.
            self.next.insert(Next::Many(id));
            return;
        }
        let Some(Stand::Many(many)) = self.requests.get(id) else {
            return;
        };
        let locks = many.locks.clone();
        let owner = many.owner.clone();
        let ask = many.ask(&owner);
        if !self.policy.granting(now) {
            self.held_back = true;
            return;
        }
        for (name, number) in &locks {
            match self.opens(keys.entry(name.lend()), now, name.lend(), &ask, *number) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.dismiss(id, now, Outcome::Refused(error)),
            }
        }
        self.grant_waiting_many(keys, now, id, &locks, &ask);
    }

    /// Brings those locks of a request up to date that are not: what it is told must not depend on which of them was settled
    /// first. Gives whether any was brought up to date by that.
    fn freshen_many(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) -> bool {
        let (mut nth, mut moved) = (0, false);
        while let Some(name) = self.requests.many_mut(id).and_then(|many| {
            let (name, _) = many.locks.get(nth)?;
            Some(name.clone())
        }) {
            nth += 1;
            if !self.is_settled(keys.entry(name.lend()), now, name.lend()) {
                self.settle(keys, now, name.lend());
                // One that has to stand still, or has too many to grant for one step, is no further than before.
                moved |= self.is_settled(keys.entry(name.lend()), now, name.lend());
            }
        }
        moved
    }

    /// Whether one of many locks could be granted by itself: the place heads the queue, or the owner holds the lock.
    ///
    /// Errors when it never can be.
    fn opens(
        &self,
        entry: &Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
        number: Option<u64>,
    ) -> Result<bool, Error> {
        let line = self.lines.get(name);
        if line.is_some_and(|line| line.closed) {
            return Ok(false);
        }
        if entry.foreign {
            return Err(Error::WrongType);
        }
        let hold = entry.hold(ask.owner);
        if ask.holds.is_none() && hold.is_some_and(|hold| hold.holds == u32::MAX) {
            return Err(overflow());
        }
        let Some(number) = number else {
            // A lease that has run out is not entered once more, even if the lock has not been looked at since.
            let lives = |hold: Hold| hold.limit <= ask.limit && hold.deadline > now.ms();
            return Ok(hold.is_some_and(lives));
        };
        let Some((first, head)) = line.and_then(Line::head) else {
            return Ok(false);
        };
        let full = hold.is_none() && entry.holders() >= self.policy.max_holders;
        Ok(first == number && !full && entry.admits(ask.owner, head.limit))
    }

    /// Has those queue for this lock from now on who did not, as their owner held it, and no longer does as they ask for.
    /// Their waits were looked at without this lock, so a circle may have closed.
    pub(super) fn queue_late(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        let line = self.lines.get(name);
        let entering = line.map(|line| line.entering.iter().copied().collect::<Vec<_>>());
        for id in entering.into_iter().flatten() {
            let Some(many) = self.requests.many_mut(id) else {
                continue;
            };
            let hold = entry.hold(&many.owner);
            if hold.is_some_and(|hold| hold.limit <= many.limit) {
                continue;
            }
            let owner = many.owner.clone();
            let ask = many.ask(&owner);
            let upgrades = hold.is_some();
            self.enter_late(entry, now, name, id, &ask, upgrades);
        }
    }

    fn enter_late(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        id: RequestId,
        ask: &Ask,
        upgrades: bool,
    ) {
        if upgrades {
            if let Err(error) = self.upgrade_is_free(name, ask) {
                return self.dismiss(id, now, Outcome::Refused(error));
            }
        }
        let place = match upgrades {
            true => Some(UPGRADE),
            false => self
                .lines
                .get(name)
                .and_then(|line| line.number_of(ask.owner)),
        };
        let number = self.queue_up(entry, now, name, ask, id, place);
        let many = self.requests.many_mut(id);
        if let Some(slot) = many.and_then(|many| many.number(name)) {
            *slot = Some(number);
        }
        if let Some(line) = self.lines.get_mut(name) {
            line.entering.remove(&id);
        }
        self.suspects.insert(name.keep());
    }

    /// Grants all locks to a request that heads all of their queues, and has the queues served on.
    fn grant_waiting_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: RequestId,
        locks: &[(Name, Option<u64>)],
        ask: &Ask,
    ) {
        let Some(Stand::Many(many)) = self.requests.remove(id, ask.owner, ask.client) else {
            return;
        };
        if let Some(due) = many.until {
            self.deadlines.remove(due);
        }
        let mut grants = Vec::with_capacity(locks.len());
        for (name, number) in locks {
            let (name, entry) = (name.lend(), keys.entry(name.lend()));
            if let Some(line) = self.lines.get_mut(name) {
                line.entering.remove(&id);
            }
            if let Ok(grant) = self.take_at(entry, now, name, ask, *number, Some(id)) {
                self.counters.grants_waited += u64::from(grant.holds == grant.added);
                grants.push(grant);
            }
        }
        let told = Recipient {
            id,
            channel: None,
            owner: &many.owner,
        };
        let outcome = Outcome::GrantedAll(grants);
        let none = || unreachable!("a request for many locks blocks its connection");
        tell(&mut self.wakes, &mut self.messages, told, none, outcome);
        for (name, _) in locks {
            self.settle(keys, now, name.lend());
        }
    }

    /// Sets the deadlines of the owner's holds of all locks to now + lease; gives the milliseconds that are left: the
    /// least of them, where `max-hold-ms` bounds them differently.
    ///
    /// Errors: `NotHeld` if any of them is not held; `WrongType`. Nothing has changed then.
    pub fn renew_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
        lease: Millis,
    ) -> Result<Millis, Error> {
        for name in names {
            held(self.settled(keys, now, *name)?, owner, None)?;
        }
        let mut least = lease;
        for name in names {
            least = least.min(self.renew(keys, now, *name, owner, None, lease)?);
        }
        Ok(least)
    }

    /// Gives back one hold of each lock that the owner holds; gives what remains of each, none where nothing was held.
    ///
    /// Errors: `WrongType`. Nothing has changed then.
    pub fn release_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
    ) -> Result<Vec<Option<u32>>, Error> {
        for name in names {
            self.settled(keys, now, *name)?;
        }
        let mut left = Vec::with_capacity(names.len());
        // First all of them go, then the queues are served: whoever waits for several of them gets them together.
        for name in names {
            let entry = keys.entry(*name);
            let Ok(hold) = held(entry, owner, None) else {
                left.push(None);
                continue;
            };
            let (holds, token) = (hold.holds - 1, hold.token);
            lower(entry, &mut self.sessions, owner, hold, holds);
            if holds == 0 {
                self.counters.ended(End::Released, token, now);
            }
            left.push(Some(holds));
        }
        for name in names {
            self.rewatch(keys.entry(*name), now, *name);
        }
        self.follow_up(keys, now);
        Ok(left)
    }
}
