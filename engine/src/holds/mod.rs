//! Holds: how they begin, are tied to parties, and end; and what decisions change along with them: the token clock, the
//! counters, the timers.

mod identity;
pub(crate) mod sessions;
mod ties;
mod tying;

use super::counters::Counters;
use super::keyspace::{Entry, Event, Value};
use super::lock::token::TokenClock;
use super::lock::{Change, End, Hold, Lock};
use super::log::{How, Log, Subject};
use super::policy::Policy;
use super::queue::{Deadlines, LockId, WaitQueues};
use super::types::{
    Arrival, ClientId, Grant, HoldRef, NameRef, Now, Party, RequestId, SessionNo, SteadyMs, Terms,
    Token, WallMs,
};
use crate::invariants::broken;
use crate::refusal::Refusal;
use sessions::Sessions;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

pub(crate) use identity::{HoldId, HoldKey};
pub(crate) use ties::{Auto, Renewal, Tie, Ties};
pub use ties::{Loss, TieId};
pub(crate) use tying::next_renewal;
pub use tying::{TieRequest, SHORTEST_AUTO_LEASE_MS};

/// A deadline of the engine's own.
#[derive(Debug, Clone, Copy)]
pub enum Due {
    /// The `BLOCK` time of a request ends.
    Wait(RequestId),
    /// The time of a blocked SESSION command ends.
    News(SessionNo),
    /// The claim window of an absent ticket ends.
    Window(LockId, Arrival),
    /// The time ends for which a session is kept; or, if it is not alive, its places.
    Session(SessionNo),
}

/// The state that decisions change: the token clock, the counters, the ties, the timers. See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct HoldTable {
    /// Makes fencing tokens, and the numbers of places.
    pub tokens: TokenClock,
    /// Counts and times.
    pub counters: Counters,
    /// What was not ordinary.
    pub log: Log,
    /// Holds that are tied to connections and sessions.
    pub ties: Ties,
    /// The sessions.
    pub(crate) sessions: Sessions,
    /// The ends of waits.
    pub timers: Deadlines<SteadyMs, Due>,
    /// The ends of claim windows and of sessions: none passes before the server has read what had arrived by then.
    pub windows: Deadlines<SteadyMs, Due>,
    /// Holds whose grant or entry replicas have not confirmed yet, and whether each is new: then no client knows of it.
    pub unconfirmed: BTreeMap<HoldId, bool>,
}

impl HoldTable {
    /// Returns when the first deadline or renewal by the server is due. A window that has ended waits until the server has read what
    /// had arrived by then; it has read what came until `read`.
    pub fn next_due(&self, now: SteadyMs, read: SteadyMs) -> Option<SteadyMs> {
        let window = self.windows.next();
        let window = window.map(|at| {
            if at > read && at <= now {
                now.after(1)
            } else {
                at
            }
        });
        let firsts = [self.timers.next(), window, self.ties.next_renewal()];
        firsts.into_iter().flatten().min()
    }

    /// Grants the lock to an owner that does not hold it. The caller has checked that the granting rule allows it.
    #[inline(always)]
    pub fn grant_first(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        whose: HoldRef,
        terms: &Terms,
    ) -> Grant {
        let owner = whose.owner;
        debug_assert!(entry.hold(owner).is_none(), "a holder is granted anew");
        let token = self.tokens.token(now);
        let holds = terms.holds.map_or(1, NonZeroU32::get);
        let deadline = now.wall().after(terms.lease);
        self.counters.held += 1;
        entry.events.push(Event::Acquired(token));
        entry.set_hold(Hold {
            owner,
            token,
            deadline,
            holds,
            limit: terms.share.limit,
            permits: terms.share.permits,
            client: terms.client,
            fresh: true,
        });
        if terms.ties() {
            self.tie_granted(whose, token, deadline, terms, now);
        }
        Grant { token, holds }
    }

    /// Grants the lock to an owner, re-enters it, or upgrades its hold. The caller has checked that the granting rule allows it.
    ///
    /// Errors with nothing changed when the hold count would overflow.
    pub fn grant(
        &mut self,
        policy: &Policy,
        entry: &mut Entry<impl Value>,
        now: Now,
        whose: HoldRef,
        terms: &Terms,
    ) -> Result<Grant, Refusal> {
        let owner = whose.owner;
        let Some(hold) = entry.hold(owner) else {
            return Ok(self.grant_first(entry, now, whose, terms));
        };
        // It would borrow the entry.
        let hold = Hold { owner, ..hold };
        let holds = match terms.holds {
            Some(least) => hold.holds.max(least.get()),
            None => hold.holds.checked_add(1).ok_or(Refusal::Overflow)?,
        };
        let wanted = hold.deadline.max(now.wall().after(terms.lease));
        let (token, limit, permits, deadline) = if hold.limit <= terms.share.limit {
            self.counters.reentries += 1;
            let deadline = policy.renewed(hold.token, hold.deadline, wanted);
            (hold.token, hold.limit, hold.permits, deadline)
        } else {
            self.counters.upgrades += 1;
            let token = self.tokens.token(now);
            if !self.ties.is_empty() {
                self.lose_upgraded(whose, hold.token, terms);
            }
            self.retie(whose, hold.token, token, now);
            entry.events.push(Event::Acquired(token));
            (token, terms.share.limit, terms.share.permits, wanted)
        };
        let entered = Hold {
            token,
            holds,
            limit,
            permits,
            deadline,
            client: terms.client,
            fresh: false,
            ..hold
        };
        entry.revise(hold, entered);
        if !self.ties.is_empty() {
            let (lease, end) = (terms.lease, entered.deadline);
            self.ties.reentered(whose, token, lease, end);
        }
        if terms.ties() {
            self.tie_granted(whose, token, entered.deadline, terms, now);
        }
        Ok(Grant { token, holds })
    }

    /// Ends a hold, counts it, logs it if that is not ordinary, and tells observers. The queues say who waits for the lock.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        queues: &WaitQueues,
        entry: &mut Entry<impl Value>,
        whose: HoldRef,
        token: Token,
        how: How,
        now: Now,
    ) {
        let HoldRef { name, owner } = whose;
        let Some(end) = how.end() else {
            return broken!("a hold ends by something that ends it");
        };
        if how != How::Ended(End::Released) || self.log.is_long_hold(token, now) {
            let client = entry.hold(owner).map_or(ClientId::NONE, |hold| hold.client);
            self.log_hold(queues, whose, token, client, how, now);
        }
        if !self.ties.is_empty() {
            self.lose_at_end(name, token, end);
        }
        let owner = if entry.holders() > 1 { owner } else { &[] };
        entry.amend(&Change::Unhold { owner, token, end });
        entry.events.push(Event::Ended(end, token));
        self.counters.ended(end, token, now);
    }

    /// Ends the holds whose leases end until then, which may be very many. Returns what is left of them, to be freed.
    pub(crate) fn end_until(
        &mut self,
        queues: &WaitQueues,
        entry: &mut Entry<impl Value>,
        name: NameRef,
        until: WallMs,
        end: End,
        now: Now,
    ) -> Lock {
        let lock = entry.value();
        // Many stand in the order of their deadlines: those that stay are not looked at.
        let in_order = lock.is_indexed();
        let ends = |deadline: WallMs| deadline <= until;
        let ending = || {
            let first = lock
                .owned_leases()
                .take_while(|its| !in_order || ends(its.2));
            first.filter(|its| ends(its.2))
        };
        // Of a mass, those that would push each other out are only counted.
        let beyond = ending().count().saturating_sub(self.log.most());
        self.log.skip(beyond);
        for (owner, token, _) in ending().skip(beyond) {
            let client = lock.hold(owner).map_or(ClientId::NONE, |hold| hold.client);
            let whose = HoldRef { name, owner };
            self.log_hold(queues, whose, token, client, How::Ended(end), now);
        }
        entry.end_until(until, end, |token| {
            if !self.ties.is_empty() {
                self.lose_at_end(name, token, end);
            }
            self.counters.ended(end, token, now);
        })
    }

    /// Logs the end of a hold that is not ordinary.
    #[cold]
    pub(crate) fn log_hold(
        &mut self,
        queues: &WaitQueues,
        whose: HoldRef,
        token: Token,
        client: ClientId,
        how: How,
        now: Now,
    ) {
        let mut subject = Subject::of_hold(whose, token, client, now);
        let tie = self.ties.of_hold(whose, token);
        if let Some(Party::Connection(client)) = tie.map(|tie| tie.party) {
            subject.client = client;
        }
        if subject.client == ClientId::RESTORED {
            subject.client = ClientId::NONE;
        }
        let session = self.session_of(whose, token);
        let session = session.and_then(|no| self.sessions.get(no));
        subject.session = session.map(|session| session.name.clone());
        let waiting = queues.at(queues.id(whose.name)).others(whose.owner);
        self.log.add(now, subject, how, waiting);
    }

    /// Brings the owner's hold count down to `holds`; at 0 the hold is given up. The deadline stays.
    #[inline(always)]
    pub(crate) fn lower(
        &mut self,
        queues: &WaitQueues,
        entry: &mut Entry<impl Value>,
        whose: HoldRef,
        hold: Hold,
        holds: u32,
        now: Now,
    ) {
        let owner = whose.owner;
        if holds == 0 {
            return self.end(
                queues,
                entry,
                whose,
                hold.token,
                How::Ended(End::Released),
                now,
            );
        }
        let hold = Hold { owner, ..hold };
        let lowered = Hold {
            holds,
            fresh: false,
            ..hold
        };
        entry.revise(hold, lowered);
    }
}
