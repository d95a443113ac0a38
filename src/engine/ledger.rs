//! What decisions are written to: the token clock, the counters, the ties, the timers, and what is to be told.

use super::counters::Counters;
use super::keyspace::{Entry, Event};
use super::lock::change::{Change, End};
use super::lock::token::TokenClock;
use super::lock::Hold;
use super::policy::Policy;
use super::queue::deadlines::{Deadlines, DueKey};
use super::queue::ties::{Auto, Tie, Ties};
use super::queue::LockId;
use super::types::{
    Arrival, ClientId, Grant, Limit, Millis, Name, NameRef, Now, RequestId, SteadyMs, Token,
};
use crate::error::Error;
use std::rc::Rc;

/// Something that happens by itself after a while.
#[derive(Debug, Clone, Copy)]
pub enum Due {
    /// A request has waited as long as it wanted to.
    Wait(RequestId),
    /// The claim window of an absent ticket ends.
    Window(LockId, Arrival),
    /// The server is to renew a hold.
    Renewal(Token),
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is the owner's.
    Granted(Grant),
    /// All of the locks are, in the order of the request.
    GrantedAll(Vec<Grant>),
    /// Time is up.
    Null,
    /// The place was cancelled.
    Cancelled,
    /// A newer request of the same owner has taken the place.
    Replaced,
    /// The connection that asked has ended.
    Gone,
    /// The lock's slot is served elsewhere now, or all locks are: this server decides no longer.
    Moved,
    /// It cannot be granted any more.
    Refused(Error),
}

/// The answer to a request whose connection is blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// Which request.
    pub id: RequestId,
    /// What it is told.
    pub outcome: Outcome,
}

/// What a request that waits by a channel is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which request.
    pub id: RequestId,
    /// The channel.
    pub channel: Rc<[u8]>,
    /// The lock.
    pub name: Name,
    /// Who asked for it.
    pub owner: Rc<[u8]>,
    /// What it is told.
    pub outcome: Outcome,
}

/// What one request claims of a lock that is to be its owner's.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The lock.
    pub name: NameRef<'a>,
    /// Who is to hold it.
    pub owner: &'a [u8],
    /// The most owners that may hold at once.
    pub limit: Limit,
    /// The lease, from now on.
    pub lease: Millis,
    /// The least hold count; none for one more.
    pub holds: Option<u32>,
    /// The connection that asks.
    pub client: ClientId,
    /// Whether the hold is to end with the connection.
    pub session: bool,
}

/// How a RENEW ties a hold to its connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct TieRequest {
    /// The connection.
    pub client: ClientId,
    /// Whether the hold is to end with the connection.
    pub session: bool,
    /// Whether the server is to renew the hold, and for how long at most (0: without bound).
    pub auto: Option<Millis>,
}

/// The shortest lease that the server renews by itself.
pub const SHORTEST_AUTO_LEASE_MS: Millis = 1_000;

/// What decisions are written to. See the module's documentation.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The token clock.
    pub clock: TokenClock,
    /// What has been done so far.
    pub counters: Counters,
    /// Holds that are tied to connections.
    pub ties: Ties,
    /// What happens by itself after a while.
    pub timers: Deadlines<SteadyMs, Due>,
    /// Answers to blocked connections, for the caller to deliver.
    pub wakes: Vec<Wake>,
    /// What is to be published to those who wait by a channel.
    pub messages: Vec<Message>,
}

impl Ledger {
    /// Makes an owner a holder that is none yet. The caller has seen that the granting rule allows it.
    #[inline(always)]
    pub fn grant_first(
        &mut self,
        policy: &Policy,
        entry: &mut Entry,
        now: Now,
        claim: &Claim,
    ) -> Grant {
        let token = self.clock.token(now);
        let holds = claim.holds.unwrap_or(1);
        self.counters.held += 1;
        entry.events.push(Event::Acquired(token));
        entry.commit(&Change::Hold(Hold {
            owner: claim.owner,
            token,
            deadline: policy.bounded(token, now.wall().after(claim.lease)),
            holds,
            limit: claim.limit,
            client: claim.client,
        }));
        if claim.session {
            self.tie_session(claim, token);
        }
        Grant {
            token,
            holds,
            added: holds,
        }
    }

    /// Makes the owner a holder, enters it once more, or gives it a stricter limit. The caller has seen that the granting
    /// rule allows it.
    ///
    /// Errors with nothing changed when the hold count would overflow.
    pub fn grant(
        &mut self,
        policy: &Policy,
        entry: &mut Entry,
        now: Now,
        claim: &Claim,
    ) -> Result<Grant, Error> {
        let hold = entry.hold(claim.owner).map(|hold| Hold {
            owner: claim.owner,
            ..hold
        });
        let Some(hold) = hold else {
            return Ok(self.grant_first(policy, entry, now, claim));
        };
        let holds = match claim.holds {
            Some(least) => hold.holds.max(least),
            None => hold.holds.checked_add(1).ok_or_else(overflow)?,
        };
        let (token, limit) = if hold.limit <= claim.limit {
            self.counters.reentries += 1;
            (hold.token, hold.limit)
        } else {
            self.counters.upgrades += 1;
            let token = self.clock.token(now);
            self.retie(claim.name, hold.token, token);
            entry.events.push(Event::Acquired(token));
            (token, claim.limit)
        };
        let deadline = hold.deadline.max(now.wall().after(claim.lease));
        let entered = Hold {
            token,
            holds,
            limit,
            deadline: policy.bounded(token, deadline),
            client: claim.client,
            ..hold
        };
        let same_connection = Hold {
            client: hold.client,
            ..entered
        };
        if same_connection != hold {
            entry.commit(&Change::Hold(entered));
        }
        if !self.ties.is_empty() && self.ties.at(claim.name, token).is_some() {
            if let Some(auto) = self.ties.auto_mut(token) {
                auto.lease = auto.lease.max(claim.lease);
            }
        }
        if claim.session {
            self.tie_session(claim, token);
        }
        Ok(Grant {
            token,
            holds,
            added: holds - hold.holds,
        })
    }

    /// Ends a hold, counts it, and tells observers.
    #[inline(always)]
    pub fn end(
        &mut self,
        entry: &mut Entry,
        (name, owner): (NameRef, &[u8]),
        token: Token,
        end: End,
        now: Now,
    ) {
        if !self.ties.is_empty() {
            self.untie_at(name, token);
        }
        let owner = if entry.holders() > 1 { owner } else { &[] };
        entry.amend(&Change::Unhold { owner, token, end });
        entry.events.push(Event::Ended(end, token));
        self.counters.ended(end, token, now);
    }

    /// Brings the owner's hold count down to `holds`; at 0 the hold is given up. The deadline stays.
    #[inline(always)]
    pub fn lower(
        &mut self,
        entry: &mut Entry,
        (name, owner): (NameRef, &[u8]),
        hold: Hold,
        holds: u32,
        now: Now,
    ) {
        if holds == 0 {
            self.end(entry, (name, owner), hold.token, End::Released, now);
        } else if holds != hold.holds {
            set_holds(entry, owner, hold, holds);
        }
    }

    /// Tells a request how its wait ended: its connection, or the channel that it waits by.
    pub fn tell(&mut self, to: Recipient, name: &Name, outcome: Outcome) {
        let Recipient { id, channel, owner } = to;
        match channel {
            None => self.wakes.push(Wake { id, outcome }),
            Some(channel) => self.messages.push(Message {
                id,
                channel,
                name: name.clone(),
                owner: owner.clone(),
                outcome,
            }),
        }
    }

    /// Takes back what a request was told in the event in which it began to wait.
    pub fn take_answer(&mut self, id: RequestId) -> Option<Outcome> {
        if let Some(at) = self.wakes.iter().rposition(|wake| wake.id == id) {
            return Some(self.wakes.swap_remove(at).outcome);
        }
        let at = self.messages.iter().rposition(|message| message.id == id)?;
        Some(self.messages.swap_remove(at).outcome)
    }

    /// How many are to be told of an outcome in this event so far.
    pub fn told(&self) -> usize {
        self.wakes.len() + self.messages.len()
    }

    /// The hold is to end with the connection that claims it: the last one that asks has it, and what else ties it.
    #[cold]
    fn tie_session(&mut self, claim: &Claim, token: Token) {
        let before = self.ties.at(claim.name, token);
        let auto = before.and_then(|tie| tie.auto);
        if auto.is_some() {
            self.ties.untie(token);
        } else {
            self.untie(token);
        }
        let tie = Tie {
            client: claim.client,
            name: claim.name.to_owned(),
            owner: Rc::from(claim.owner),
            session: true,
            auto,
        };
        self.ties.tie(token, tie);
    }

    /// Ties a hold as its renewal says. The last one decides: without `AUTO` the server renews no more, while a session
    /// stays; a hold is tied to one connection at most.
    #[cold]
    pub fn keep(
        &mut self,
        name: NameRef,
        owner: &[u8],
        token: Token,
        lease: Millis,
        how: &TieRequest,
        now: Now,
    ) {
        let asked = how.session || how.auto.is_some();
        let its = self.ties.at(name, token).is_some();
        if !its && !asked {
            return;
        }
        let before = self.untie(token).filter(|_| its);
        let session = how.session || before.as_ref().is_some_and(|tie| tie.session);
        if !session && how.auto.is_none() {
            return;
        }
        let client = match before {
            Some(tie) if !asked => tie.client,
            _ => how.client,
        };
        let auto = how.auto.map(|ms| Auto {
            lease,
            until: (ms > 0).then(|| now.steady().after(ms)),
            due: Some(self.next_renewal(token, lease, now)),
        });
        self.ties.tie(
            token,
            Tie {
                client,
                name: name.to_owned(),
                owner: Rc::from(owner),
                session,
                auto,
            },
        );
    }

    /// The due entry of a hold's next renewal: when a quarter to a third of its lease has passed, so that holds which were
    /// taken together are not renewed together for ever.
    pub fn next_renewal(&mut self, token: Token, lease: Millis, now: Now) -> DueKey<SteadyMs> {
        // Tokens of one moment follow each other: the low bits spread best.
        let early = token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let wait = lease / 3 - early % (lease / 12 + 1);
        self.timers
            .add(now.steady().after(wait), Due::Renewal(token))
    }

    /// Unties the hold of this lock from its connection.
    #[cold]
    pub fn untie_at(&mut self, name: NameRef, token: Token) {
        if self.ties.at(name, token).is_some() {
            self.untie(token);
        }
    }

    /// Unties what is tied under this token.
    #[cold]
    pub fn untie(&mut self, token: Token) -> Option<Tie> {
        let mut tie = self.ties.untie(token)?;
        if let Some(auto) = &mut tie.auto {
            self.timers.clear(&mut auto.due);
        }
        Some(tie)
    }

    /// The hold goes on under another token.
    fn retie(&mut self, name: NameRef, old: Token, new: Token) {
        if self.ties.is_empty() || self.ties.at(name, old).is_none() {
            return;
        }
        let Some(mut tie) = self.ties.untie(old) else {
            return;
        };
        if let Some(auto) = &mut tie.auto {
            // One that is due already, under the old token, is due at once under the new one.
            let at = auto.due.map_or(SteadyMs(0), |due| due.at);
            self.timers.clear(&mut auto.due);
            auto.due = Some(self.timers.add(at, Due::Renewal(new)));
        }
        self.ties.tie(new, tie);
    }
}

/// Who is told of an outcome.
#[derive(Debug)]
pub struct Recipient<'o> {
    /// The request.
    pub id: RequestId,
    /// The channel that it waits by; none if it blocks its connection.
    pub channel: Option<Rc<[u8]>>,
    /// Who asked.
    pub owner: &'o Rc<[u8]>,
}

#[cold]
fn set_holds(entry: &mut Entry, owner: &[u8], hold: Hold, holds: u32) {
    entry.commit(&Change::Hold(Hold {
        owner,
        holds,
        ..hold
    }));
}

/// The error for a hold count that cannot be raised.
#[cold]
pub fn overflow() -> Error {
    Error::Argument(
        "the hold count",
        format!("at most {}: it would overflow", u32::MAX),
    )
}
