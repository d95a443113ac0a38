//! Taking a lock: at once, by re-entry, by upgrade, or by waiting for it.

use super::change::Change;
use super::counters::Counters;
use super::deadline::Due;
use super::line::{Line, Place, Request, RequestId, UPGRADE};
use super::lock::Hold;
use super::requests::Stand;
use super::sessions::{Session, Sessions};
use super::token::TokenClock;
use super::{Engine, Entry, Event, Grant, Keyspace, Limit, Millis, NameRef, Now, Outcome, Policy};
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
    /// The connection's client id.
    pub client: u64,
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
    /// It waits under this name; a [`super::Wake`] will tell how the wait ended, or a [`super::Message`] if it waits by a
    /// channel.
    Waiting(RequestId),
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
        let (entry, watched) = self.freshen(keys, now, name);
        if entry.foreign {
            return Err(Error::WrongType);
        }
        // The usual lock, which nobody has and nobody stands for: the rule below could only say yes.
        if entry.lock.is_none() && !watched && self.policy.granting(now) {
            let grant = first(
                &mut self.clock,
                &self.policy,
                &mut self.counters,
                entry,
                now,
                &Claim::of(ask),
            );
            self.counters.grants_immediate += 1;
            if ask.session {
                self.tie(name, ask.owner, ask.client, grant.token);
            }
            return Ok(Answer::Granted(grant));
        }
        let answer = self.contend(keys, now, name, ask);
        self.follow_up(keys, now);
        answer
    }

    /// The rest of it, for a lock that somebody has or stands for, or while nothing is granted. It has been brought up to
    /// date.
    #[inline(never)]
    fn contend(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Answer, Error> {
        let entry = keys.entry(name);
        let quarantined = self.policy.quarantined(now);
        let held = entry.hold(ask.owner).map(|hold| hold.limit);
        match held {
            Some(limit) if limit > ask.limit => return self.upgrade(keys, now, name, ask),
            // A drained server still lets holders re-enter: they could not finish otherwise.
            Some(_) if !quarantined => return self.grant_now(entry, now, name, ask),
            _ => {}
        }
        if !self.policy.grants {
            return Err(Error::Draining);
        }
        let line = self.lines.get(name);
        let place = line.and_then(|line| line.number_of(ask.owner));
        let clear = line.map_or(true, Line::is_empty) && entry.admits(ask.owner, ask.limit);
        if clear && !quarantined {
            if entry.holders() >= self.policy.max_holders {
                return Err(Error::Full("dlock.max-holders"));
            }
            return self.grant_now(entry, now, name, ask);
        }
        if ask.wait == Wait::No {
            if quarantined {
                return Err(Error::Quarantine);
            }
            if place.is_none() && ask.ticket.is_none() {
                self.counters.refused += 1;
                return Ok(Answer::Null);
            }
        }
        self.room(name, ask, place.is_some())?;
        if ask.wait != Wait::No {
            self.escape(keys, &[(name, place)], ask)?;
        }
        let entry = keys.entry(name);
        let number = self.stand(entry, now, name, ask, place, held.is_some());
        if ask.wait == Wait::No && place.is_some() && self.stays(name, number, now) {
            self.counters.refused += 1;
            return Ok(Answer::Null);
        }
        self.wait_at(keys, now, name, ask, number)
    }

    /// A polled ticket that is not at the head only begins its window anew. Gives whether it was one: another place has to
    /// be looked at as a waiting request's.
    #[cold]
    fn stays(&mut self, name: NameRef, number: u64, now: Now) -> bool {
        let Some(kept) = self.lines.name(name) else {
            return false;
        };
        let Some(line) = self.lines.get_mut(name) else {
            return false;
        };
        let first = line.places.front().is_some_and(|(at, _)| at == number);
        let Some(place) = line.places.get_mut(number).filter(|_| !first) else {
            return false;
        };
        match place.claim() {
            Some(claim) if claim > 0 && place.requests.is_empty() => {
                let until = now.ms().saturating_add(claim);
                place.keep_until(until, &kept, number, &mut self.deadlines);
                true
            }
            _ => false,
        }
    }

    /// A grant or re-entry that needs no place in the queue.
    fn grant_now(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Answer, Error> {
        let grant = take(
            &mut self.clock,
            &self.policy,
            &mut self.counters,
            &mut self.sessions,
            entry,
            now,
            Claim::of(ask),
        )?;
        if grant.holds == grant.added {
            self.counters.grants_immediate += 1;
        }
        if ask.session {
            self.tie(name, ask.owner, ask.client, grant.token);
        }
        self.rewatch(entry, now, name);
        Ok(Answer::Granted(grant))
    }

    /// Ties a hold to a connection.
    #[cold]
    pub(super) fn tie(&mut self, name: NameRef, owner: &[u8], client: u64, token: super::Token) {
        let session = Session {
            client,
            name: name.keep(),
            owner: Rc::from(owner),
        };
        self.sessions.tie(token, session);
    }

    /// A holder asks for a stricter limit: it waits only for the other holders, ahead of the queue.
    #[cold]
    fn upgrade(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) -> Result<Answer, Error> {
        let entry = keys.entry(name);
        if self.policy.granting(now) && entry.admits(ask.owner, ask.limit) {
            return self.grant_now(entry, now, name, ask);
        }
        if !self.policy.grants {
            return Err(Error::Draining);
        }
        if ask.wait == Wait::No {
            if self.policy.quarantined(now) {
                return Err(Error::Quarantine);
            }
            self.counters.refused += 1;
            return Ok(Answer::Null);
        }
        self.upgrade_is_free(name, ask)?;
        let waits = self.lines.get(name).and_then(|line| line.upgrade.as_ref());
        self.room(name, ask, waits.is_some())?;
        self.escape(keys, &[(name, Some(UPGRADE))], ask)?;
        self.stand_to_upgrade(keys.entry(name), now, name, ask);
        self.wait_at(keys, now, name, ask, UPGRADE)
    }

    /// Finds or makes the place of the waiting upgrade. The caller has seen that it is nobody else's.
    pub(super) fn stand_to_upgrade(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
    ) {
        let kept = self.lines.name(name).unwrap_or_else(|| name.keep());
        let line = self.lines.make(&kept);
        match &mut line.upgrade {
            Some(place) => place.limit = place.limit.min(ask.limit),
            None => {
                let ask = Ask {
                    ticket: None,
                    ..*ask
                };
                line.upgrade = Some(Box::new(Place::new(&ask, now.ms())));
                self.places += 1;
                self.counters.top.queued(name);
                entry.events.push(Event::Queued);
            }
        }
    }

    /// Whether the caps allow one more place (unless the owner has it already) and one more waiting request.
    #[cold]
    pub(super) fn room(&self, name: NameRef, ask: &Ask, known: bool) -> Result<(), Error> {
        if !known {
            if self.lines.get(name).map_or(0, Line::len) >= self.policy.max_queue {
                return Err(Error::Full("dlock.max-queue"));
            }
            if self.places >= self.policy.max_places {
                return Err(Error::Full("dlock.max-places"));
            }
        }
        // Requests that share a place are bounded too: those that wait by a channel as the places are.
        if ask.channel.is_some() {
            if self.requests.notifies() >= self.policy.max_places {
                return Err(Error::Full("dlock.max-places"));
            }
        } else if ask.wait != Wait::No && self.requests.blocked() >= self.policy.max_waiters {
            return Err(Error::Full("dlock.max-waiters"));
        }
        Ok(())
    }

    /// Finds or makes the owner's place; gives its number. A holder whose re-entry has to wait (in quarantine) stands
    /// before all others: behind one that waits for this very holder it could never be served.
    #[cold]
    pub(super) fn stand(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
        place: Option<u64>,
        holder: bool,
    ) -> u64 {
        let Some(number) = place else {
            return self.stand_anew(entry, now, name, ask, holder);
        };
        let line = self.lines.get_mut(name);
        if let Some(place) = line.and_then(|line| line.places.get_mut(number)) {
            let before = (place.limit, place.claim());
            place.limit = place.limit.min(ask.limit);
            if let Some(claim) = ask.ticket.filter(|_| !holder) {
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
        number
    }

    /// Makes the owner's place; gives its number.
    fn stand_anew(
        &mut self,
        entry: &mut Entry,
        now: Now,
        name: NameRef,
        ask: &Ask,
        holder: bool,
    ) -> u64 {
        let kept = self.lines.name(name).unwrap_or_else(|| name.keep());
        let line = self.lines.make(&kept);
        let ahead = line.ahead().filter(|_| holder);
        let number = ahead.unwrap_or_else(|| self.clock.next(now));
        let ticket = ask.ticket.filter(|_| !holder);
        let place = Place::new(&Ask { ticket, ..*ask }, now.ms());
        if line.insert(number, place) {
            self.places += 1;
        }
        if let Some(claim) = ticket {
            entry.commit(&Change::Ticket {
                number,
                owner: ask.owner,
                limit: ask.limit,
                claim,
            });
        }
        entry.events.push(Event::Queued);
        self.counters.top.queued(name);
        number
    }

    /// Adds the request to its place, lets the queue be served, and answers if that has answered it.
    #[cold]
    fn wait_at(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        ask: &Ask,
        number: u64,
    ) -> Result<Answer, Error> {
        let id = self.requests.fresh();
        let kept = self.lines.name(name).unwrap_or_else(|| name.keep());
        let until = match ask.wait {
            Wait::For(Some(ms)) => {
                let at = now.ms().saturating_add(ms);
                Some(self.deadlines.add(at, Due::Wait(id)))
            }
            _ => None,
        };
        let channel = ask
            .channel
            .map(|channel| self.requests.channel(ask.client, channel));
        let line = self.lines.get_mut(name);
        if let Some(place) = line.and_then(|line| line.place_mut(number)) {
            place.join(Request {
                id,
                client: ask.client,
                lease: ask.lease,
                holds: ask.holds.and_then(NonZeroU32::new),
                until,
                session: ask.session,
                many: false,
                channel: channel.clone(),
            });
        }
        let stand = Stand::One(kept, number);
        self.requests
            .add(id, ask.owner, ask.client, channel.as_ref(), stand);
        self.settle(keys, now, name);
        self.follow_up(keys, now);
        // The settlement may have answered this very request: then it has not waited.
        if let Some(outcome) = self.answered(id) {
            return match outcome {
                Outcome::Granted(grant) => Ok(Answer::Granted(grant)),
                Outcome::Refused(error) => Err(error),
                _ => Ok(Answer::Null),
            };
        }
        if ask.wait == Wait::No {
            self.depart(id, now);
            self.counters.refused += 1;
            return Ok(Answer::Null);
        }
        Ok(Answer::Waiting(id))
    }

    /// Takes back what a request was told in the event in which it began to wait.
    pub(super) fn answered(&mut self, id: RequestId) -> Option<Outcome> {
        if let Some(at) = self.wakes.iter().rposition(|wake| wake.id == id) {
            return Some(self.wakes.swap_remove(at).outcome);
        }
        let at = self.messages.iter().rposition(|message| message.id == id)?;
        Some(self.messages.swap_remove(at).outcome)
    }
}

impl Place {
    pub(super) fn new(ask: &Ask, since: Millis) -> Place {
        let mut place = Place {
            owner: Rc::from(ask.owner),
            limit: ask.limit,
            since,
            ticket: None,
            requests: Vec::new(),
        };
        if let Some(claim) = ask.ticket {
            place.set_claim(claim);
        }
        place
    }
}

/// What one request claims of a lock that is to be its owner's.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub owner: &'a [u8],
    pub limit: Limit,
    pub lease: Millis,
    pub holds: Option<u32>,
    pub client: u64,
}

impl<'a> Claim<'a> {
    fn of(ask: &Ask<'a>) -> Claim<'a> {
        Claim {
            owner: ask.owner,
            limit: ask.limit,
            lease: ask.lease,
            holds: ask.holds,
            client: ask.client,
        }
    }
}

/// Makes an owner a holder that is none yet. The caller has seen that the granting rule allows it.
#[inline(always)]
fn first(
    clock: &mut TokenClock,
    policy: &Policy,
    counters: &mut Counters,
    entry: &mut Entry,
    now: Now,
    claim: &Claim,
) -> Grant {
    let token = clock.next(now);
    let holds = claim.holds.unwrap_or(1);
    counters.held += 1;
    entry.events.push(Event::Acquired(token));
    entry.commit(&Change::Hold(Hold {
        owner: claim.owner,
        token,
        deadline: policy.bounded(token, now.ms().saturating_add(claim.lease)),
        holds,
        limit: claim.limit,
        client: claim.client,
    }));
    Grant {
        token,
        holds,
        added: holds,
    }
}

/// Makes the owner a holder, or enters it once more. The caller has seen that the granting rule allows it.
///
/// Errors with nothing changed when the hold count would overflow.
pub(super) fn take(
    clock: &mut TokenClock,
    policy: &Policy,
    counters: &mut Counters,
    sessions: &mut Sessions,
    entry: &mut Entry,
    now: Now,
    claim: Claim,
) -> Result<Grant, Error> {
    let held = entry
        .hold(claim.owner)
        .map(|hold| (hold.token, hold.holds, hold.deadline, hold.limit));
    let Some(held) = held else {
        return Ok(first(clock, policy, counters, entry, now, &claim));
    };
    let (before, holds_before, deadline, limit) = held;
    let holds = match claim.holds {
        Some(least) => holds_before.max(least),
        None => holds_before.checked_add(1).ok_or_else(overflow)?,
    };
    let deadline = deadline.max(now.ms().saturating_add(claim.lease));
    let (token, limit) = if limit <= claim.limit {
        counters.reentries += 1;
        (before, limit)
    } else {
        counters.upgrades += 1;
        let token = clock.next(now);
        sessions.succeed(before, token);
        entry.events.push(Event::Acquired(token));
        (token, claim.limit)
    };
    let deadline = policy.bounded(token, deadline);
    if held != (token, holds, deadline, limit) {
        entry.commit(&Change::Hold(Hold {
            owner: claim.owner,
            token,
            deadline,
            holds,
            limit,
            client: claim.client,
        }));
    }
    Ok(Grant {
        token,
        holds,
        added: holds - holds_before,
    })
}

/// The error for a hold count that cannot be raised.
#[cold]
pub(super) fn overflow() -> Error {
    Error::Argument(
        "the hold count",
        format!("at most {}: it would overflow", u32::MAX),
    )
}

impl Policy {
    /// The deadline, no later than `max-hold-ms` after the grant. The token tells when that was.
    pub(super) fn bounded(&self, token: super::Token, deadline: Millis) -> Millis {
        match self.max_hold_ms {
            0 => deadline,
            age => bound(token, deadline, age),
        }
    }
}

#[cold]
fn bound(token: super::Token, deadline: Millis, age: Millis) -> Millis {
    deadline.min((token / 1000).saturating_add(age))
}
