//! Serving: what brings a lock up to date after anything that frees capacity or a place.
//!
//! [`Engine::settle`] is the only place where a queue moves. A request settles the locks it has to do with; an event
//! outside of a request marks them, and [`Engine::settle_dirty`] settles them when changes are possible.

use super::acquire::{take, Claim};
use super::change::{Change, End};
use super::counters::Counters;
use super::deadline::Due;
use super::keep::{end, tell, Departed, Recipient};
use super::line::{arrived, Line, Place, Request, RequestId, UPGRADE};
use super::lock::{Hold, Lock};
use super::many::Next;
use super::requests::Stand;
use super::sessions::Sessions;
use super::stakes::Stake;
use super::{Engine, Entry, Event, Keyspace, Millis, Name, NameRef, Now, Outcome, Token};
use crate::error::Error;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::rc::Rc;

/// Grants that one settlement makes at most. A larger mass (readers by the ten thousand) is worked off in steps, so
/// that the server answers others in between; who is left over still comes before every newcomer.
const GRANTS_A_STEP: usize = 256;

/// Outcomes after which a settlement of marked locks leaves the others to the next step.
const TOLD_A_STEP: usize = 1024;

/// Holds and places of connections that have ended which one settlement clears away at most.
pub(super) const CLEARED_A_STEP: usize = 1024;

/// Due entries that one tick works off at most.
const DUES_A_STEP: usize = 1024;

impl Engine {
    /// Brings a lock up to date: ends leases that have run out, drops lapsed tickets, grants the head of the queue while
    /// that is compatible, and keeps the watch over the lock's deadlines.
    pub(super) fn settle(&mut self, keys: &mut impl Keyspace, now: Now, name: NameRef) {
        if self.abuts(name) {
            self.reconcile_beside(keys, now, name);
        }
        self.settle_entry(keys.entry(name), now, name);
    }

    /// Whether what is served here may change the line of another lock whose value came or went behind its back. Mostly no line
    /// is like that, and this one is not looked up.
    #[inline]
    fn abuts(&self, name: NameRef) -> bool {
        let shared = |line: &Line| {
            let wanted = line.many > 0 || !line.entering.is_empty();
            self.stale > usize::from(line.stale) && wanted
        };
        self.stale > 0 && self.lines.get(name).is_some_and(shared)
    }

    /// Reconciles the lines of all locks that are wanted together with this one. Whoever leaves this queue leaves theirs: had
    /// they not been looked at before, it would depend on which lock is settled first who was there when the value changed.
    #[cold]
    fn reconcile_beside(&mut self, keys: &mut impl Keyspace, now: Now, name: NameRef) {
        let Some(line) = self.lines.get(name) else {
            return;
        };
        let requests = line.in_order().flat_map(|(_, place)| &place.requests);
        let parts = requests.filter(|request| request.many);
        let ids = parts
            .map(|request| request.id)
            .chain(line.entering.iter().copied());
        let mut beside = BTreeSet::new();
        for id in ids {
            if let Some(Stand::Many(many)) = self.requests.get(id) {
                let names = many.locks.iter().map(|(name, _)| name);
                let stale = names.filter(|name| self.is_stale(name.lend()));
                beside.extend(stale.cloned());
            }
        }
        for name in beside {
            let entry = keys.entry(name.lend());
            // Who waits under a key of another type is told so when that lock is settled.
            if !entry.foreign {
                self.reconcile(entry, now, name.lend());
            }
        }
    }

    fn is_stale(&self, name: NameRef) -> bool {
        self.lines.get(name).is_some_and(|line| line.stale)
    }

    /// Notes that the value at this key may have been replaced behind the line's back.
    fn distrust(&mut self, name: &Name) {
        let line = self.lines.make(name);
        self.stale += usize::from(!line.stale);
        line.stale = true;
    }

    /// The same for an entry that is at hand.
    pub(super) fn settle_entry(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        if self.watches(name) {
            self.settle_line(entry, now, name);
        } else {
            self.settle_unwatched(entry, now, name);
        }
    }

    /// The part of a settlement that every lock needs.
    #[inline(always)]
    fn settle_unwatched(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        if let Some(end) = entry.ends.take() {
            shorten(entry, end);
        }
        match &entry.lock {
            None => {}
            Some(lock) if lock.needs_watch() => {
                self.note(&name.keep());
                self.settle_line(entry, now, name);
            }
            Some(_) => expire(entry, now.ms(), &mut self.counters, &mut self.sessions),
        }
    }

    /// The part of a settlement that only a lock with a queue or a watch needs: kept apart from the way of all others.
    #[cold]
    fn settle_line(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        if let Some(end) = entry.ends.take() {
            shorten(entry, end);
        }
        if entry.foreign {
            self.refuse_all(now, name);
            return;
        }
        if let Some(end) = self.lines.get_mut(name).and_then(|line| line.ends.take()) {
            shorten(entry, end);
        }
        expire(entry, now.ms(), &mut self.counters, &mut self.sessions);
        self.reconcile(entry, now, name);
        self.drop_lapsed(entry, now, name);
        self.queue_late(entry, now, name);
        let left_over = self.serve(entry, now, name);
        self.watch(entry, name, left_over);
    }

    /// Settles what has been marked, in order, `most` locks at most. To be called only when this server would accept a
    /// write now. Gives whether something is left that could go on at once; what the keyspace does not accept now
    /// stays marked (see [`Engine::unsettled`]).
    pub fn settle_dirty(&mut self, keys: &mut impl Keyspace, now: Now, most: usize) -> bool {
        self.take_back(keys, now);
        let clearing = self.clear_away(keys, now);
        self.follow_up(keys, now);
        let mut refused = Vec::new();
        let mut settled = 0;
        // What is marked anew meanwhile is the next step's: a lock with many to grant comes up once in each.
        let mut left = self.dirty.len();
        while settled < most && left > 0 && self.told() < TOLD_A_STEP {
            left -= 1;
            let Some(name) = self.dirty.pop_front() else {
                break;
            };
            let Some(line) = self.lines.get(name.lend()).filter(|line| line.dirty) else {
                continue;
            };
            let unattended = line.is_unattended() && line.entering.is_empty();
            if keys.accepts(name.lend()) {
                settled += 1;
                self.close(name.lend(), false);
                self.settle(keys, now, name.lend());
            } else if unattended && !stands(keys, name.lend()) {
                // Nobody waits here, and the lock has left with its slot and its tickets.
                self.forget(name.lend());
            } else {
                if !line.is_empty() && self.requests.notifies() > 0 && keys.moved(name.lend()) {
                    self.move_away(&name, now);
                }
                refused.push(name);
            }
        }
        // Only then are those looked at who wait for several of them.
        self.follow_up(keys, now);
        let more = !self.dirty.is_empty() || clearing;
        self.dirty.extend(refused);
        more
    }

    /// How many are to be told of an outcome in this event so far.
    fn told(&self) -> usize {
        self.wakes.len() + self.messages.len()
    }

    /// Takes a line out, and what other indexes know of it.
    fn drop_line(&mut self, name: NameRef) -> Option<Line> {
        let mut line = self.lines.remove(name)?;
        self.stale -= usize::from(line.stale);
        if let Some(due) = line.lease.take() {
            self.deadlines.remove(due);
        }
        self.stakes.take_back(|| name.keep(), &mut line.stakes);
        if self.suspicious() {
            let name = name.keep();
            self.suspects.remove(&name);
            self.relying.remove(&name);
        }
        Some(line)
    }

    /// Takes a line out with all its places, at which nobody waits.
    fn forget(&mut self, name: NameRef) {
        let Some(line) = self.drop_line(name) else {
            return;
        };
        self.places -= line.len();
        let tickets = line
            .places
            .iter()
            .filter_map(|(_, place)| place.ticket.as_deref());
        for due in tickets.filter_map(|ticket| ticket.window) {
            self.deadlines.remove(due);
        }
    }

    /// The lock's slot is served elsewhere now. The server itself tells blocked connections; who waits by a channel is told
    /// here.
    fn move_away(&mut self, name: &Name, now: Now) {
        let Some(line) = self.lines.get(name.lend()) else {
            return;
        };
        let waits = |(_, place): (u64, &Place)| {
            let by_channel = |request: &&Request| request.channel.is_some();
            let ids = place.requests.iter().filter(by_channel);
            ids.map(|request| request.id).collect::<Vec<_>>()
        };
        let ids: Vec<RequestId> = line.in_order().flat_map(waits).collect();
        for id in ids {
            self.dismiss(id, now, Outcome::Moved);
        }
    }

    /// A request leaves its place, and is told why.
    pub(super) fn dismiss(&mut self, id: RequestId, now: Now, outcome: Outcome) {
        if let Some(Departed {
            name,
            owner,
            channel,
        }) = self.depart(id, now)
        {
            let owner = &owner;
            tell(
                &mut self.wakes,
                &mut self.messages,
                Recipient { id, channel, owner },
                || name,
                outcome,
            );
        }
    }

    /// Works off what is due: marks the locks concerned and answers the waits whose time is up. Changes no lock.
    /// Gives whether more is due already.
    pub fn tick(&mut self, now: Now) -> bool {
        if self.held_back && self.policy.granting(now) {
            self.held_back = false;
            self.mark_all();
        }
        for _ in 0..DUES_A_STEP {
            match self.deadlines.pop(now.ms()) {
                None => return false,
                Some(Due::Lease(name)) => {
                    if let Some(line) = self.lines.get_mut(name.lend()) {
                        line.lease = None;
                    }
                    self.mark(&name);
                }
                Some(Due::Window(name, number)) => {
                    if let Some(line) = self.lines.get_mut(name.lend()) {
                        line.lapsed.push(number);
                    }
                    self.mark(&name);
                }
                Some(Due::Wait(id)) => self.time_out(id, now),
            }
        }
        true
    }

    fn time_out(&mut self, id: RequestId, now: Now) {
        let names: Vec<Name> = match self.requests.get(id) {
            None => return,
            Some(Stand::One(name, _)) => vec![name.clone()],
            Some(Stand::Many(many)) => {
                let queued = many.locks.iter().filter(|(_, number)| number.is_some());
                queued.map(|(name, _)| name.clone()).collect()
            }
        };
        for name in &names {
            if let Some(line) = self.lines.get_mut(name.lend()) {
                line.timeouts += 1;
            }
        }
        self.counters.timeouts += 1;
        self.dismiss(id, now, Outcome::Null);
        names.iter().for_each(|name| self.mark(name));
    }

    /// The connection of a waiting request has ended, or no longer waits.
    pub fn leave(&mut self, id: RequestId, now: Now) {
        self.depart(id, now);
    }

    /// The value at this key may have been removed, replaced or brought: it is looked at again. With nobody queued
    /// here and nothing to watch this costs one look.
    pub fn note(&mut self, name: &Name) {
        self.distrust(name);
        // What was said of the value that was here does not hold for the next.
        self.lines.make(name).ends = None;
        self.mark(name);
    }

    /// A lock has come to this key: it is looked at again, and the sessions of its holds come along.
    pub fn brought(&mut self, keys: &mut impl Keyspace, name: &Name) {
        self.bring_sessions(keys, name);
        self.note(name);
    }

    /// A session follows its hold to this key, unless the hold is still where it was: RESTORE can make a second one of it.
    pub fn bring_sessions(&mut self, keys: &mut impl Keyspace, name: &Name) {
        if self.sessions.is_empty() {
            return;
        }
        let here = keys.entry(name.lend()).lock.as_ref();
        let strayed = |hold: Hold| Some((hold.token, self.sessions.strayed(hold.token, name)?));
        let strayed: Vec<_> = here
            .into_iter()
            .flat_map(|lock| lock.holds())
            .filter_map(strayed)
            .collect();
        for (token, old) in strayed {
            let there = keys.entry(old.lend()).lock.as_ref();
            if !there.is_some_and(|lock| lock.holds().any(|hold| hold.token == token)) {
                self.sessions.rename(token, name);
            }
        }
    }

    /// Whether this lock's queue has to stand still: its slot is migrating away.
    pub fn close(&mut self, name: NameRef, closed: bool) {
        if let Some(line) = self.lines.get_mut(name) {
            line.closed = closed;
        }
    }

    /// The key was given an end from outside that is earlier than its leases.
    pub fn ends(&mut self, name: &Name, end: Millis) {
        self.lines.make(name).ends = Some(end);
    }

    /// Brings the lock that a request is about up to date. Gives its entry, and whether it had a line, so that one may be
    /// there still.
    #[inline(always)]
    pub(super) fn freshen<'k>(
        &mut self,
        keys: &'k mut impl Keyspace,
        now: Now,
        name: NameRef,
    ) -> (&'k mut Entry, bool) {
        if self.watches(name) {
            return (self.freshen_watched(keys, now, name), true);
        }
        let entry = keys.entry(name);
        self.settle_unwatched(entry, now, name);
        (entry, false)
    }

    /// The same where there is a line: only then can something be to follow up elsewhere.
    #[inline(never)]
    fn freshen_watched<'k>(
        &mut self,
        keys: &'k mut impl Keyspace,
        now: Now,
        name: NameRef,
    ) -> &'k mut Entry {
        if !self.rests(keys.entry(name), now, name) {
            self.settle(keys, now, name);
            self.follow_up(keys, now);
        }
        keys.entry(name)
    }

    /// Whether a settlement of this lock would change nothing, here or elsewhere.
    fn rests(&self, entry: &Entry, now: Now, name: NameRef) -> bool {
        self.leaving.is_empty()
            && !self.held_back
            && self.is_settled(entry, now, name)
            && !self.abuts(name)
    }

    /// Whether this lock has been settled since anything has happened to it, and no lease has run out.
    pub(super) fn is_settled(&self, entry: &Entry, now: Now, name: NameRef) -> bool {
        let settled = |line: &Line| {
            let pending = line.dirty || line.stale || line.closed || line.ends.is_some();
            !pending && line.lapsed.is_empty()
        };
        let lapsed = |lock: &Lock| lock.ended(now.ms()).is_some();
        self.lines.get(name).is_some_and(settled)
            && !entry.foreign
            && entry.ends.is_none()
            && !entry.lock.as_deref().is_some_and(lapsed)
    }

    /// The value at this key is gone or another: whoever is queued here is to be served.
    pub fn stale(&mut self, name: NameRef) {
        if let Some(name) = self.lines.name(name) {
            self.note(&name);
        }
    }

    /// Whether somebody is queued for this lock, or it is watched.
    pub fn watches(&self, name: NameRef) -> bool {
        self.lines.get(name).is_some()
    }

    /// The locks of a database (or of all) that somebody is queued for or that are watched.
    pub fn watched(&self, db: Option<u32>) -> Vec<Name> {
        self.lines.names(db)
    }

    /// Keeps in mind, on a server that only follows, which locks it has to watch once it decides.
    pub fn follow(&mut self, name: NameRef, entry: &Entry) {
        let lock = entry.lock.as_ref();
        let watch = lock.is_some_and(|lock| lock.needs_watch() && !lock.is_empty());
        let known = self.lines.get(name).is_some();
        if watch && !known {
            self.distrust(&name.keep());
        } else if known && !watch && self.lines.get(name).is_some_and(Line::is_empty) {
            self.drop_line(name);
        }
    }

    /// This server decides from now on: every lock it knows to watch is looked at, every ticket starts as absent.
    pub fn promote(&mut self) {
        for name in self.watched(None) {
            self.note(&name);
        }
    }

    /// This server only follows from now on: places and deadlines are the new primary's affair. The server itself tells
    /// blocked connections; who waits by a channel is told that the lock has moved.
    pub fn demote(&mut self, now: Now) {
        let names = self.lines.names(None);
        for name in &names {
            if self.requests.notifies() > 0 {
                self.move_away(name, now);
            }
        }
        self.lines = Default::default();
        self.deadlines.clear();
        self.requests.clear();
        self.sessions.clear();
        self.stakes.clear();
        self.dirty.clear();
        self.next.clear();
        self.undelivered.clear();
        self.leaving.clear();
        self.suspects.clear();
        self.relying.clear();
        self.wakes.clear();
        self.places = 0;
        self.held_back = false;
        self.stale = 0;
        for name in names {
            self.distrust(&name);
        }
    }

    /// Marks a lock for settlement.
    pub(super) fn mark(&mut self, name: &Name) {
        let Some(line) = self.lines.get_mut(name.lend()) else {
            return;
        };
        if !line.dirty {
            line.dirty = true;
            self.dirty.push_back(name.clone());
        }
    }

    /// Marks every watched lock for settlement: the rules have changed.
    pub fn mark_all(&mut self) {
        for name in self.watched(None) {
            self.mark(&name);
        }
    }

    /// After a change to holders: serves the queue and renews the watch, where there is one or must be one.
    #[inline]
    pub(super) fn rewatch(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        let needed = entry.lock.as_ref().is_some_and(|lock| lock.needs_watch());
        if needed || self.lines.get(name).is_some() {
            self.settle_entry(entry, now, name);
        }
    }

    /// The key became something else under those who wait for a lock.
    fn refuse_all(&mut self, now: Now, name: NameRef) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        let numbers: Vec<u64> = line.in_order().map(|(number, _)| number).collect();
        for number in numbers {
            let line = self.lines.get_mut(name);
            if let Some(place) = line.and_then(|line| line.take(number)) {
                self.dissolve(now, name, *place, &Outcome::Refused(Error::WrongType));
            }
        }
        let line = self.lines.get_mut(name);
        let entering = line.map(|line| std::mem::take(&mut line.entering));
        for id in entering.into_iter().flatten() {
            self.dismiss(id, now, Outcome::Refused(Error::WrongType));
        }
        self.drop_line(name);
    }

    /// Brings the line and a value that came or went behind its back together again. Who is present keeps the place,
    /// its ticket made anew; who is absent lives and dies with the value; tickets that came with the value begin as
    /// absent, with a fresh window. A value from outside is bounded: no lease beyond what can be asked for here.
    fn reconcile(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        let Some(line) = self.lines.get_mut(name).filter(|line| line.stale) else {
            return;
        };
        line.stale = false;
        self.stale -= 1;
        if !line.is_empty() {
            // The holders may be others than those that a wait was found to end with.
            self.suspects.insert(name.keep());
        }
        if entry.lock.is_some() {
            entry.retime();
        }
        shorten(entry, now.ms().saturating_add(self.policy.max_lease_ms));
        let durable = |number: u64, owner: &[u8]| {
            entry
                .lock
                .as_ref()
                .and_then(|lock| lock.ticket(number))
                .is_some_and(|ticket| *ticket.owner == *owner)
        };
        let lost: Vec<(u64, bool)> = line
            .places
            .iter()
            .filter(|(number, place)| place.ticket.is_some() && !durable(*number, &place.owner))
            .map(|(number, place)| (number, place.requests.is_empty()))
            .collect();
        for (number, absent) in lost {
            if !absent {
                recreate(entry, line, number);
            } else if let Some(mut place) = line.remove(number) {
                self.places -= 1;
                if let Some(due) = place.take_window() {
                    self.deadlines.remove(due);
                }
            }
        }
        let brought: Vec<(u64, super::lock::Ticket)> = match &entry.lock {
            Some(lock) => lock
                .tickets()
                .map(|(number, ticket)| (number, ticket.clone()))
                .collect(),
            None => Vec::new(),
        };
        for (brought, ticket) in brought {
            let stands = line.number_of(&ticket.owner);
            if stands == Some(brought) {
                continue;
            }
            self.clock.observe(brought, now);
            let taken = line.place(brought).is_some();
            if stands.is_some() || taken {
                entry.commit(&Change::Unticket { number: brought });
            }
            if stands.is_some() {
                // One place an owner.
                continue;
            }
            let number = if taken { self.clock.next(now) } else { brought };
            let claim = ticket.claim.min(self.policy.max_claim_ms);
            let window = claim.max(self.policy.claim_window_ms);
            let until = now.ms().saturating_add(window);
            let mut place = Place {
                owner: Rc::from(ticket.owner),
                limit: ticket.limit,
                since: arrived(brought, now),
                ticket: None,
                requests: Vec::new(),
            };
            place.set_claim(claim);
            place.keep_until(until, &name.keep(), number, &mut self.deadlines);
            if line.insert(number, place) {
                self.places += 1;
            }
            if taken || claim != ticket.claim {
                recreate(entry, line, number);
            }
        }
    }

    /// Drops the tickets whose claim window has ended with nobody there. While nothing is granted, polls are refused and
    /// could not keep a place: windows then run from the end of that.
    fn drop_lapsed(&mut self, entry: &mut Entry, now: Now, name: NameRef) {
        let granting = self.policy.granting(now);
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        for number in std::mem::take(&mut line.lapsed) {
            let Some(place) = line.places.get_mut(number) else {
                continue;
            };
            if let Some(due) = place.take_window() {
                self.deadlines.remove(due);
            }
            if !place.requests.is_empty() {
                continue;
            }
            let claim = place.claim().unwrap_or(0);
            let mut until = place.absent().unwrap_or(now.ms());
            if until <= now.ms() && claim > 0 && !granting {
                let window = claim.max(self.policy.claim_window_ms);
                until = now.ms().max(self.policy.quarantine_until) + window;
            }
            if until > now.ms() {
                // The owner has asked since, or the clock has stepped back.
                place.keep_until(until, &name.keep(), number, &mut self.deadlines);
                continue;
            }
            line.remove(number);
            self.places -= 1;
            if entry.has_ticket(number) {
                entry.commit(&Change::Unticket { number });
            }
        }
    }

    /// Grants the head while it is compatible: first the waiting upgrade, then the queue. Gives whether a compatible
    /// head may be left because the step is full.
    fn serve(&mut self, entry: &mut Entry, now: Now, name: NameRef) -> bool {
        for _ in 0..GRANTS_A_STEP {
            if !self.leaving.is_empty() && self.forsake(entry, now, name) {
                continue;
            }
            match self.serve_head(entry, now, name) {
                Served::Granted => {}
                Served::Refused(place, error) => {
                    self.dissolve(now, name, *place, &Outcome::Refused(error));
                }
                Served::Stands => return false,
                Served::Later => return true,
            }
        }
        true
    }

    /// Whoever stands at the head by a connection that has ended is not served any more. Gives whether there was one.
    fn forsake(&mut self, entry: &mut Entry, now: Now, name: NameRef) -> bool {
        let Some((_, head)) = self.lines.get(name).and_then(Line::head) else {
            return false;
        };
        let ended = |request: &&Request| self.leaving.contains_key(&request.client);
        let Some(id) = head.requests.iter().find(ended).map(|request| request.id) else {
            return false;
        };
        self.depart(id, now);
        self.drop_lapsed(entry, now, name);
        true
    }

    /// One step of serving a queue.
    fn serve_head(&mut self, entry: &mut Entry, now: Now, name: NameRef) -> Served {
        let Some(line) = self.lines.get_mut(name) else {
            return Served::Stands;
        };
        let Some((number, head)) = line.head() else {
            return Served::Stands;
        };
        let held = entry.hold(&head.owner).is_some();
        if number == UPGRADE && !held {
            return match line.upgrade.take() {
                Some(place) => Served::Refused(place, Error::NotHeld),
                None => Served::Stands,
            };
        }
        let full = !held && entry.holders() >= self.policy.max_holders;
        if head.requests.is_empty() || full || !entry.admits(&head.owner, head.limit) {
            return Served::Stands;
        }
        if line.closed {
            return Served::Later;
        }
        if !self.policy.granting(now) {
            self.held_back = true;
            return Served::Stands;
        }
        if head.only_many() {
            // Granted together with their other locks, or not at all.
            let ids = head.requests.iter().map(|request| request.id);
            self.next.extend(ids.map(Next::Many));
            return Served::Stands;
        }
        let Some(place) = line.take(number) else {
            return Served::Stands;
        };
        self.places -= 1;
        if place.ticket.is_some() {
            entry.commit(&Change::Unticket { number });
        }
        let since = place.since_us(number);
        self.counters.waited(name, since, now);
        self.grant(entry, now, name, *place);
        Served::Granted
    }

    /// Grants the lock to a place: the first of its requests takes it, the others enter it once more. A request for many
    /// locks that shares the place finds the lock held by its owner from now on.
    pub(super) fn grant(&mut self, entry: &mut Entry, now: Now, name: NameRef, mut place: Place) {
        if let Some(due) = place.take_window() {
            self.deadlines.remove(due);
        }
        for request in place.requests {
            if request.many {
                if let Some(line) = self.lines.get_mut(name) {
                    line.many -= 1;
                    line.entering.insert(request.id);
                }
                let many = self.requests.many_mut(request.id);
                if let Some(number) = many.and_then(|many| many.number(name)) {
                    *number = None;
                }
                self.next.insert(Next::Many(request.id));
                continue;
            }
            let claim = Claim {
                owner: &place.owner,
                limit: place.limit,
                lease: request.lease,
                holds: request.holds.map(NonZeroU32::get),
                client: request.client,
            };
            let taken = take(
                &mut self.clock,
                &self.policy,
                &mut self.counters,
                &mut self.sessions,
                entry,
                now,
                claim,
            );
            let outcome = match taken {
                Ok(grant) => {
                    self.counters.grants_waited += u64::from(grant.holds == grant.added);
                    if request.session {
                        self.tie(name, &place.owner, request.client, grant.token);
                    }
                    Outcome::Granted(grant)
                }
                Err(error) => Outcome::Refused(error),
            };
            if let Some(due) = request.until {
                self.deadlines.remove(due);
            }
            self.requests
                .remove(request.id, &place.owner, request.client);
            let told = Recipient {
                id: request.id,
                channel: request.channel,
                owner: &place.owner,
            };
            tell(
                &mut self.wakes,
                &mut self.messages,
                told,
                || name.keep(),
                outcome,
            );
        }
        self.suspect_holder(name, &place.owner);
    }

    /// Keeps the lock's watch: the mark that somebody is queued, the due entry of the earliest lease, the line itself.
    fn watch(&mut self, entry: &mut Entry, name: NameRef, left_over: bool) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        line.dirty = false;
        for _ in 0..std::mem::take(&mut line.timeouts) {
            entry.events.push(Event::Timeout);
        }
        let queued = !line.is_empty();
        let empty = entry.lock.as_ref().map_or(true, |lock| lock.is_empty());
        if !empty
            && entry
                .lock
                .as_ref()
                .is_some_and(|lock| lock.watched() != queued)
        {
            entry.commit(&Change::Watch(queued));
        }
        let lock = entry.lock.as_ref().filter(|lock| !lock.is_empty());
        let counted_on = !line.entering.is_empty();
        let watched = queued || counted_on || lock.is_some_and(|lock| lock.needs_watch());
        let earliest = lock.and_then(|lock| lock.earliest()).filter(|_| watched);
        if line.lease.map(|due| due.at) != earliest {
            if let Some(due) = line.lease.take() {
                self.deadlines.remove(due);
            }
            if let Some(at) = earliest {
                line.lease = Some(self.deadlines.add(at, Due::Lease(name.keep())));
            }
        }
        let staked = lock.filter(|_| queued && self.policy.deadlock_detection);
        let requests = &self.requests;
        let stake = |hold: Hold| Stake::of(&hold, |owner| requests.hash(owner));
        self.stakes.put(
            || name.keep(),
            staked.map_or(0, |lock| lock.holders()),
            staked.into_iter().flat_map(|lock| lock.holds()).map(stake),
            &mut line.stakes,
        );
        let ends = line.ends.is_some() && lock.is_some();
        if !watched && !ends {
            self.drop_line(name);
        } else if left_over {
            self.mark(&name.keep());
        }
    }
}

/// Whether a lock stands at this key. There may be many to ask for: none is left open.
pub(super) fn stands(keys: &mut impl Keyspace, name: NameRef) -> bool {
    let mut stands = false;
    keys.look(name, &mut |_| stands = true);
    stands
}

/// What one step of serving a queue came to.
enum Served {
    /// The head was granted: the next is to be looked at.
    Granted,
    /// The head can never be granted: it has been taken out, and is to be told.
    Refused(Box<Place>, Error),
    /// The head has to wait, or there is none.
    Stands,
    /// The head could be granted, but not now.
    Later,
}

/// Ends the holds whose lease has run out.
#[inline]
fn expire(entry: &mut Entry, now: Millis, counters: &mut Counters, sessions: &mut Sessions) {
    if entry
        .lock
        .as_ref()
        .is_some_and(|lock| lock.ended(now).is_some())
    {
        expire_all(entry, now, counters, sessions);
    }
}

#[cold]
fn expire_all(entry: &mut Entry, now: Millis, counters: &mut Counters, sessions: &mut Sessions) {
    while let Some((owner, token)) = ended(entry, now) {
        end(entry, sessions, &owner, token, End::Expired);
        counters.ended(End::Expired, token, Now { us: now * 1000 });
    }
}

fn ended(entry: &Entry, now: Millis) -> Option<(Box<[u8]>, Token)> {
    entry
        .lock
        .as_ref()?
        .ended(now)
        .map(|hold| (Box::from(hold.owner), hold.token))
}

/// Bounds the leases of a value by something from outside.
#[cold]
pub(super) fn shorten(entry: &mut Entry, latest: Millis) {
    let Some(lock) = &entry.lock else { return };
    let beyond: Vec<Box<[u8]>> = lock
        .holds()
        .filter(|hold| hold.deadline > latest)
        .map(|hold| Box::from(hold.owner))
        .collect();
    for owner in beyond {
        if let Some(hold) = entry.hold(&owner) {
            let clamped = Hold {
                owner: &owner,
                deadline: latest,
                ..hold
            };
            entry.commit(&Change::Hold(clamped));
        }
    }
}

/// Makes the ticket of a place anew in the value that stands at the key now.
fn recreate(entry: &mut Entry, line: &Line, number: u64) {
    let Some(place) = line.places.get(number) else {
        return;
    };
    let claim = place.claim().unwrap_or(0);
    entry.commit(&Change::Ticket {
        number,
        owner: &place.owner,
        limit: place.limit,
        claim,
    });
}
