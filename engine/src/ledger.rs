//! What decisions are written to: the token clock, the counters, the ties, the timers, and what is to be told.

use super::counters::Counters;
use super::keyspace::{Entry, Event, Value};
use super::lock::token::TokenClock;
use super::lock::{Change, End, Hold};
use super::policy::Policy;
use super::queue::{Auto, Deadlines, LockId, Place, Renewal, Request, Tie, Ties};
use super::types::{
    Arrival, ClientId, Grant, Millis, Name, NameRef, Now, RequestId, SteadyMs, Terms, Token,
};
use super::undo::{Held, Undo};
use crate::broken;
use crate::refusal::Refusal;
use std::num::NonZeroU32;
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
    Refused(Refusal),
}

/// The answer to a request whose connection is blocked.
#[derive(Debug)]
pub struct Wake {
    /// Which request.
    pub id: RequestId,
    /// What it is told.
    pub outcome: Outcome,
    /// How it is to be undone if the connection does not get it: lock by lock, where it is a grant.
    pub undo: Vec<Undo>,
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

/// What there was of a lock and its owner before a grant.
#[derive(Debug)]
pub struct Before {
    hold: Option<Held>,
    tie: Option<Tie>,
    ticket: Option<(Arrival, Box<Place>)>,
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
        entry: &mut Entry<impl Value>,
        now: Now,
        (name, owner): (NameRef, &[u8]),
        terms: &Terms,
    ) -> Grant {
        debug_assert!(entry.hold(owner).is_none(), "a holder is granted anew");
        let token = self.clock.token(now);
        let holds = terms.holds.map_or(1, NonZeroU32::get);
        self.counters.held += 1;
        entry.events.push(Event::Acquired(token));
        entry.set_hold(Hold {
            owner,
            token,
            deadline: policy.bounded(token, now.wall().after(terms.lease)),
            holds,
            limit: terms.limit,
            client: terms.client,
        });
        if terms.session {
            self.tie_session(name, owner, terms.client, token);
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
        entry: &mut Entry<impl Value>,
        now: Now,
        (name, owner): (NameRef, &[u8]),
        terms: &Terms,
    ) -> Result<Grant, Refusal> {
        let Some(hold) = entry.hold(owner) else {
            return Ok(self.grant_first(policy, entry, now, (name, owner), terms));
        };
        // It would borrow the entry.
        let hold = Hold { owner, ..hold };
        let holds = match terms.holds {
            Some(least) => hold.holds.max(least.get()),
            None => hold.holds.checked_add(1).ok_or_else(overflow)?,
        };
        let (token, limit) = if hold.limit <= terms.limit {
            self.counters.reentries += 1;
            (hold.token, hold.limit)
        } else {
            self.counters.upgrades += 1;
            let token = self.clock.token(now);
            self.retie(name, hold.token, token);
            entry.events.push(Event::Acquired(token));
            (token, terms.limit)
        };
        let deadline = hold.deadline.max(now.wall().after(terms.lease));
        let entered = Hold {
            token,
            holds,
            limit,
            deadline: policy.carried(token, hold.deadline, deadline),
            client: terms.client,
            ..hold
        };
        let same_connection = Hold {
            client: hold.client,
            ..entered
        };
        if same_connection != hold {
            entry.set_hold(entered);
        } else if let Some(lock) = entry.lock.as_mut().filter(|_| entered != hold) {
            lock.mark(owner, terms.client);
        }
        if !self.ties.is_empty() {
            self.ties.lengthen(name, token, terms.lease);
        }
        if terms.session {
            self.tie_session(name, owner, terms.client, token);
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
        entry: &mut Entry<impl Value>,
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
        entry: &mut Entry<impl Value>,
        (name, owner): (NameRef, &[u8]),
        hold: Hold,
        holds: u32,
        now: Now,
    ) {
        if holds == 0 {
            self.end(entry, (name, owner), hold.token, End::Released, now);
        } else if holds != hold.holds {
            entry.set_hold(Hold {
                owner,
                holds,
                ..hold
            });
        }
    }

    /// Tells a request how its wait ended: its connection, or the channel that it waits by.
    pub fn tell(&mut self, id: RequestId, request: Request, name: &Name, outcome: Outcome) {
        if let Outcome::Refused(error) = &outcome {
            self.counters.refusals.count(error);
        }
        self.tell_granted(id, request, name, outcome, Vec::new());
    }

    /// The same, and how that is undone. What was published to a channel stands.
    pub fn tell_granted(
        &mut self,
        id: RequestId,
        request: Request,
        name: &Name,
        outcome: Outcome,
        undo: Vec<Undo>,
    ) {
        match request.channel {
            None => self.wakes.push(Wake { id, outcome, undo }),
            Some(channel) => self.messages.push(Message {
                id,
                channel,
                name: name.clone(),
                owner: request.owner,
                outcome,
            }),
        }
    }

    /// Takes back what a request was told in the event in which it began to wait.
    pub fn take_answer(&mut self, id: RequestId) -> Option<Outcome> {
        let outcome = match self.wakes.iter().rposition(|wake| wake.id == id) {
            Some(at) => self.wakes.swap_remove(at).outcome,
            None => {
                let at = self.messages.iter().rposition(|message| message.id == id)?;
                self.messages.swap_remove(at).outcome
            }
        };
        if let Outcome::Refused(error) = &outcome {
            // It is counted as the command's own error.
            if let Some(count) = self.counters.refusals.of(error) {
                *count -= 1;
            }
        }
        Some(outcome)
    }

    /// How many are to be told of an outcome in this event so far.
    pub fn told(&self) -> usize {
        self.wakes.len() + self.messages.len()
    }

    /// What a grant is about to change.
    pub fn before(
        &self,
        entry: &Entry<impl Value>,
        name: &Name,
        owner: &Rc<[u8]>,
        place: Option<(Arrival, Box<Place>)>,
    ) -> Before {
        let hold = entry.hold(owner);
        let tie = hold.and_then(|hold| self.ties.at(name.as_ref(), hold.token));
        Before {
            hold: hold.map(|hold| Held::of(&hold)),
            tie: tie.cloned(),
            ticket: place.filter(|(_, place)| place.claim() > Some(0)),
        }
    }

    /// How a grant that has been made is undone.
    pub fn undo(
        &self,
        entry: &Entry<impl Value>,
        name: &Name,
        owner: &Rc<[u8]>,
        grant: Grant,
        before: Before,
    ) -> Option<Undo> {
        let Some(hold) = entry.hold(owner) else {
            broken!("a lock that was granted is held");
            return None;
        };
        let after = Held::of(&hold);
        let tie = self.ties.at(name.as_ref(), grant.token).cloned();
        Some(Undo {
            name: name.clone(),
            owner: owner.clone(),
            grant,
            before: before.hold,
            after,
            ties: [before.tie, tie],
            ticket: before.ticket,
        })
    }

    /// Ties a hold as it was tied before a grant that is undone, unless a later command has tied it since. Its token may be
    /// another one now.
    pub fn tie_back(&mut self, undo: &Undo, token: Token) {
        let [before, after] = &undo.ties;
        let name = undo.name.as_ref();
        let same = match (self.ties.at(name, undo.grant.token), after) {
            (None, None) => true,
            (Some(now), Some(after)) => now.says_as(after),
            _ => false,
        };
        if !same {
            return self.retie(name, undo.grant.token, token);
        }
        self.untie_at(name, undo.grant.token);
        if let Some(before) = before {
            self.ties.tie(token, before.clone());
            self.renew_as(token, before.auto.map(|auto| auto.next));
        }
    }

    /// The hold is to end with the connection that claims it: the last one that asks has it. What else ties the hold to that
    /// connection stays; to another it is tied no more.
    #[cold]
    fn tie_session(&mut self, name: NameRef, owner: &[u8], client: ClientId, token: Token) {
        let before = self.ties.at(name, token);
        let auto = before
            .filter(|tie| tie.client == client)
            .and_then(|tie| tie.auto);
        if auto.is_some() {
            self.ties.untie(token);
        } else {
            self.untie(token);
        }
        let tie = Tie {
            client,
            name: name.to_owned(),
            owner: Rc::from(owner),
            session: true,
            auto,
        };
        self.ties.tie(token, tie);
    }

    /// Ties a hold as its renewal says: the last command that ties it decides, and only what ties it to the same connection
    /// stays. A renewal that ties nothing ends the server's own.
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
        let stays = before.filter(|tie| tie.session && (!asked || tie.client == how.client));
        let session = how.session || stays.is_some();
        if !session && how.auto.is_none() {
            return;
        }
        let auto = how.auto.map(|ms| Auto {
            lease,
            bound: (ms > 0).then(|| (now.steady(), ms)),
            next: Renewal::Due,
        });
        let tie = Tie {
            client: stays.map_or(how.client, |tie| tie.client),
            name: name.to_owned(),
            owner: Rc::from(owner),
            session,
            auto,
        };
        self.ties.tie(token, tie);
        if auto.is_some() {
            self.renew_at(token, next_renewal(token, lease, now));
        }
    }

    /// Has the server renew a hold then, which it renews by itself.
    pub fn renew_at(&mut self, token: Token, at: SteadyMs) {
        self.forget_renewal(token);
        let due = self.timers.add(at, Due::Renewal(token));
        self.ties.renew(token, Renewal::At(due));
    }

    /// The server renews a hold no more, for now. It is tied as before.
    pub fn renew_no_more(&mut self, token: Token) {
        self.forget_renewal(token);
        self.ties.renew(token, Renewal::Stopped);
    }

    fn forget_renewal(&mut self, token: Token) {
        let auto = self.ties.get(token).and_then(|tie| tie.auto);
        if let Some(Renewal::At(due)) = auto.map(|auto| auto.next) {
            self.timers.clear(&mut Some(due));
        }
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
        self.forget_renewal(token);
        self.ties.untie(token)
    }

    /// The hold goes on under another token.
    fn retie(&mut self, name: NameRef, old: Token, new: Token) {
        if old == new || self.ties.is_empty() || self.ties.at(name, old).is_none() {
            return;
        }
        let Some(tie) = self.untie(old) else {
            return broken!("what was just found tied is tied");
        };
        let next = tie.auto.map(|auto| auto.next);
        self.ties.tie(new, tie);
        self.renew_as(new, next);
    }

    /// A hold that has just been tied is renewed when another tie of it would have been.
    fn renew_as(&mut self, token: Token, next: Option<Renewal>) {
        match next {
            Some(Renewal::At(due)) => self.renew_at(token, due.at),
            // One that is due already is due at once.
            Some(Renewal::Due) => self.renew_at(token, SteadyMs(0)),
            Some(Renewal::Stopped) | None => {}
        }
    }
}

/// When a hold is renewed next: when a quarter to a third of its lease has passed, so that holds which were taken together are
/// not renewed together for ever.
pub fn next_renewal(token: Token, lease: Millis, now: Now) -> SteadyMs {
    // Tokens of one moment follow each other: the low bits spread best.
    let early = token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let third = lease / 3 - early % (lease / 12 + 1);
    now.steady().after(third.max(1))
}

/// The error for a hold count that cannot be raised.
#[cold]
pub fn overflow() -> Refusal {
    Refusal::Overflow
}
