//! Keeping a lock and giving it back.

use super::change::{Change, End};
use super::line::{Place, Request, RequestId};
use super::lock::Hold;
use super::many::Next;
use super::requests::Stand;
use super::serve::{shorten, stands, CLEARED_A_STEP};
use super::sessions::{Session, Sessions};
use super::{
    Engine, Entry, Event, Grant, Keyspace, Limit, Message, Millis, Name, NameRef, Now, Outcome,
    Token, Undelivered, Wake,
};
use crate::error::Error;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Engine {
    /// Weakens the limit of the owner's hold; token, count and deadline stay. Others may come in then. Gives the token and
    /// the count.
    ///
    /// Errors: `NotHeld` if the owner does not hold the lock; `Argument` if the limit would not be weaker or equal;
    /// `WrongType`.
    pub fn downgrade(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
        limit: Limit,
    ) -> Result<Grant, Error> {
        let entry = self.settled(keys, now, name)?;
        let hold = held(entry, owner, None)?;
        if limit < hold.limit {
            let least = match hold.limit {
                Limit::SHARED => "SHARED, as the hold is".to_string(),
                limit => format!(
                    "{} or more, or SHARED: it can only be weakened here",
                    limit.to_wire()
                ),
            };
            return Err(Error::Argument("LIMIT", least));
        }
        if limit != hold.limit {
            entry.commit(&Change::Hold(Hold {
                owner,
                limit,
                ..hold
            }));
        }
        self.rewatch(entry, now, name);
        self.follow_up(keys, now);
        Ok(Grant {
            token: hold.token,
            holds: hold.holds,
            added: 0,
        })
    }

    /// Sets the deadline of the owner's hold to now + lease; gives the milliseconds that are left.
    ///
    /// Errors: `NotHeld` if the owner does not hold the lock, or not under this token; `WrongType`.
    pub fn renew(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
        token: Option<Token>,
        lease: Millis,
    ) -> Result<Millis, Error> {
        let entry = self.settled(keys, now, name)?;
        let hold = held(entry, owner, token)?;
        let deadline = self
            .policy
            .bounded(hold.token, now.ms().saturating_add(lease));
        if deadline != hold.deadline {
            entry.commit(&Change::Hold(Hold {
                owner,
                deadline,
                ..hold
            }));
        }
        self.counters.renewals += 1;
        self.rewatch(entry, now, name);
        self.follow_up(keys, now);
        Ok(deadline.saturating_sub(now.ms()))
    }

    /// Gives back one hold, or all but `leave`; gives the holds that remain. The last one hands the lock over.
    ///
    /// Errors: `NotHeld` as for `renew`; `Argument` if `leave` is above the count; `WrongType`.
    pub fn release(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
        token: Option<Token>,
        leave: Option<u32>,
    ) -> Result<u32, Error> {
        let entry = self.settled(keys, now, name)?;
        let hold = held(entry, owner, token)?;
        let left = match leave {
            None => hold.holds - 1,
            Some(left) if left <= hold.holds => left,
            Some(_) => return Err(beyond(hold.holds)),
        };
        lower(entry, &mut self.sessions, owner, hold, left);
        if left == 0 {
            self.counters.ended(End::Released, hold.token, now);
            self.rewatch(entry, now, name);
            self.follow_up(keys, now);
        }
        Ok(left)
    }

    /// Ends all holds, or one owner's; gives how many ended.
    ///
    /// Errors: `WrongType`.
    pub fn force(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: Option<&[u8]>,
    ) -> Result<usize, Error> {
        let entry = self.settled(keys, now, name)?;
        let Some(lock) = &entry.lock else {
            return Ok(0);
        };
        let chosen = |hold: &Hold| owner.map_or(true, |owner| owner == hold.owner);
        let ended: Vec<(Vec<u8>, Token)> = lock
            .holds()
            .filter(chosen)
            .map(|hold| (hold.owner.to_vec(), hold.token))
            .collect();
        for (owner, token) in &ended {
            end(entry, &mut self.sessions, owner, *token, End::Forced);
            self.counters.ended(End::Forced, *token, now);
        }
        self.rewatch(entry, now, name);
        self.follow_up(keys, now);
        Ok(ended.len())
    }

    /// Removes the owner's place from the queue; whoever waits on it is answered null. Gives whether there was one.
    ///
    /// Errors: `WrongType`.
    pub fn cancel(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
    ) -> Result<bool, Error> {
        let entry = self.settled(keys, now, name)?;
        let mut removed = false;
        // A holder may have two, if its re-entry had to wait (in quarantine) or the hold came later (by RENAME).
        while let Some((number, place)) = self.lines.get_mut(name).and_then(|line| {
            let number = line.stand_of(owner)?;
            Some((number, line.take(number)?))
        }) {
            if place.ticket.is_some() {
                entry.commit(&Change::Unticket { number });
            }
            self.dissolve(now, name, *place, &Outcome::Cancelled);
            removed = true;
        }
        self.rewatch(entry, now, name);
        self.follow_up(keys, now);
        Ok(removed)
    }

    /// A grant did not reach its connection: what it added is to be taken back as soon as changes are possible.
    pub fn undelivered(&mut self, name: Name, owner: Box<[u8]>, grant: Grant) {
        self.undelivered.push(Undelivered { name, owner, grant });
    }

    /// The server does not let this request wait after all: as if it had not asked to. A ticket stays as a polled one
    /// does.
    pub fn unblocked(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        let names: Vec<Name> = match self.requests.get(id) {
            None => return,
            Some(Stand::Many(many)) => many.locks.iter().map(|(name, _)| name.clone()).collect(),
            Some(Stand::One(name, number)) => {
                let (name, number, window) = (name.clone(), *number, self.policy.claim_window_ms);
                let line = self.lines.get_mut(name.lend());
                if let Some(place) = line.and_then(|line| line.place_mut(number)) {
                    if place.claim() == Some(0) {
                        place.set_claim(window);
                        keys.entry(name.lend()).commit(&Change::Ticket {
                            number,
                            owner: &place.owner,
                            limit: place.limit,
                            claim: window,
                        });
                    }
                }
                vec![name]
            }
        };
        self.depart(id, now);
        for name in names {
            self.settle(keys, now, name.lend());
        }
        self.follow_up(keys, now);
    }

    /// Takes back what undelivered grants added, and no more: other connections of the owner keep theirs.
    pub(super) fn take_back(&mut self, keys: &mut impl Keyspace, now: Now) {
        for Undelivered { name, owner, grant } in std::mem::take(&mut self.undelivered) {
            if !keys.accepts(name.lend()) {
                // What has left with its slot is no longer to be had back from here.
                if stands(keys, name.lend()) {
                    self.undelivered.push(Undelivered { name, owner, grant });
                }
                continue;
            }
            let Ok(entry) = self.settled(keys, now, name.lend()) else {
                continue;
            };
            let Ok(hold) = held(entry, &owner, Some(grant.token)) else {
                continue;
            };
            let left = hold.holds.saturating_sub(grant.added);
            lower(entry, &mut self.sessions, &owner, hold, left);
            if left == 0 {
                self.counters.ended(End::Released, hold.token, now);
            }
            self.rewatch(entry, now, name.lend());
            self.follow_up(keys, now);
        }
    }

    /// A connection has ended: its sessions and what waits by a channel for it are cleared away as soon as changes are
    /// possible. What blocked it ends by [`Engine::leave`].
    pub fn ended(&mut self, client: u64) {
        let ties = self.sessions.next_of(client, 0).is_some();
        if ties || self.requests.notified(client).is_some() {
            self.leaving.insert(client, 0);
        }
    }

    /// Clears away what belonged to connections that have ended, one step of it. Gives whether something is left that could
    /// go on at once.
    pub(super) fn clear_away(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let mut refused = BTreeMap::new();
        let mut room = CLEARED_A_STEP;
        while let Some((&client, &after)) = self.leaving.first_key_value().filter(|_| room > 0) {
            room -= 1;
            if let Some(id) = self.requests.notified(client) {
                self.depart(id, now);
                continue;
            }
            let Some((token, session)) = self.sessions.next_of(client, after) else {
                self.leaving.remove(&client);
                if self.sessions.next_of(client, 0).is_some() {
                    refused.insert(client, 0);
                }
                continue;
            };
            if keys.accepts(session.name.lend()) {
                // The end of a hold opens a key and hands a lock over; a place only goes.
                room = room.saturating_sub(3);
                self.end_session(keys, now, token, &session);
            } else if !stands(keys, session.name.lend()) {
                // The lock has left with its slot.
                self.sessions.untie(token);
            } else {
                // Its slot is migrating away, and the hold with it; it is asked again, after all others.
                self.leaving.insert(client, token);
            }
        }
        let left = !self.leaving.is_empty();
        self.leaving.append(&mut refused);
        left
    }

    fn end_session(&mut self, keys: &mut impl Keyspace, now: Now, token: Token, session: &Session) {
        let name = session.name.lend();
        if !self.watches(name) {
            drop(self.settled(keys, now, name));
        }
        let entry = keys.entry(name);
        if let Some(end) = entry.ends.take() {
            shorten(entry, end);
        }
        let lives = |hold: Hold| hold.deadline > now.ms();
        if held(entry, &session.owner, Some(token)).is_ok_and(lives) {
            let owner = &session.owner;
            end(entry, &mut self.sessions, owner, token, End::Session);
            self.counters.ended(End::Session, token, now);
            // Served when all has gone that the connection held: what else it holds is not to be counted on.
            self.mark(&session.name);
        }
        self.sessions.untie(token);
        // An owner that could act through this connection may have become part of a circle.
        let owner = self.requests.hash(&session.owner);
        let waits: Vec<RequestId> = self.requests.of_owner(owner).collect();
        for id in waits {
            self.suspect_stand(id);
        }
    }

    /// Answers everyone at a place that is gone, and forgets their times. A request for many locks leaves the others.
    pub(super) fn dissolve(
        &mut self,
        now: Now,
        name: NameRef,
        mut place: Place,
        outcome: &Outcome,
    ) {
        self.places -= 1;
        if let Some(due) = place.take_window() {
            self.deadlines.remove(due);
        }
        for request in place.requests {
            let stand = self
                .requests
                .remove(request.id, &place.owner, request.client);
            let mut until = request.until;
            if let Some(Stand::Many(many)) = stand {
                until = many.until;
                if let Some(line) = self.lines.get_mut(name) {
                    line.many -= 1;
                }
                for (lock, number) in &many.locks {
                    if lock.lend() != name {
                        self.part_of_many(request.id, lock, *number, now);
                        self.next.insert(Next::Lock(lock.clone()));
                    }
                }
            }
            if let Some(due) = until {
                self.deadlines.remove(due);
            }
            let kept = || name.keep();
            let told = Recipient {
                id: request.id,
                channel: request.channel,
                owner: &place.owner,
            };
            tell(
                &mut self.wakes,
                &mut self.messages,
                told,
                kept,
                outcome.clone(),
            );
        }
    }

    /// The request with this name leaves its place, or all of its places: its time is up or its connection has ended. A
    /// place stays while others wait on it, or as an absent ticket for its claim window. Gives who waited for what, and
    /// by which channel.
    pub(super) fn depart(&mut self, id: RequestId, now: Now) -> Option<Departed> {
        let (name, owner, request, until) = match self.requests.get(id)? {
            Stand::One(name, number) => {
                let (name, number) = (name.clone(), *number);
                let (owner, request) = self.part(id, &name, number, now)?;
                let until = request.until;
                (name, owner, request, until)
            }
            Stand::Many(many) => {
                let (until, owner) = (many.until, many.owner.clone());
                let locks = many.locks.clone();
                let first = many.locks.first().map(|(name, _)| name.clone())?;
                let client = many.client;
                for (name, number) in locks {
                    self.part_of_many(id, &name, number, now);
                    self.mark(&name);
                }
                if let Some(due) = until {
                    self.deadlines.remove(due);
                }
                self.requests.remove(id, &owner, client);
                return Some(Departed {
                    name: first,
                    owner,
                    channel: None,
                });
            }
        };
        if let Some(due) = until {
            self.deadlines.remove(due);
        }
        self.requests.remove(id, &owner, request.client);
        Some(Departed {
            name,
            owner,
            channel: request.channel,
        })
    }

    /// A request for many locks no longer waits for this one, where it stands at this place or at none.
    fn part_of_many(&mut self, id: RequestId, name: &Name, number: Option<u64>, now: Now) {
        if let Some(number) = number {
            self.part(id, name, number, now);
        } else if let Some(line) = self.lines.get_mut(name.lend()) {
            line.entering.remove(&id);
        }
    }

    /// Takes a request out of one place. With nobody left there the place goes too, unless it is a ticket that is kept for
    /// its window (which begins `now`).
    fn part(
        &mut self,
        id: RequestId,
        name: &Name,
        number: u64,
        now: Now,
    ) -> Option<(Rc<[u8]>, Request)> {
        let line = self.lines.get_mut(name.lend())?;
        let place = line.place_mut(number)?;
        let at = place.requests.iter().position(|other| other.id == id)?;
        let request = place.requests.remove(at);
        let owner = place.owner.clone();
        let alone = place.requests.is_empty();
        let claim = place.claim();
        line.many -= usize::from(request.many);
        if !alone {
            if request.many {
                // Who shares the place may be grantable by itself now.
                self.mark(name);
            }
            return Some((owner, request));
        }
        if claim.unwrap_or(0) == 0 {
            if let Some(place) = line.place(number) {
                let since = place.since_us(number);
                self.counters.waited_in_vain(name.lend(), since, now);
            }
        }
        match claim {
            Some(0) => line.lapsed.push(number),
            Some(claim) => {
                let place = line.place_mut(number)?;
                let until = now.ms().saturating_add(claim);
                place.keep_until(until, name, number, &mut self.deadlines);
                return Some((owner, request));
            }
            None => self.places -= usize::from(line.take(number).is_some()),
        }
        self.mark(name);
        Some((owner, request))
    }

    /// The lock brought up to date, unless something else is at the key.
    #[inline(always)]
    pub(super) fn settled<'k>(
        &mut self,
        keys: &'k mut impl Keyspace,
        now: Now,
        name: NameRef,
    ) -> Result<&'k mut Entry, Error> {
        let (entry, _) = self.freshen(keys, now, name);
        if entry.foreign {
            return Err(Error::WrongType);
        }
        Ok(entry)
    }
}

/// A request that has left.
pub(super) struct Departed {
    /// What it waited for.
    pub name: Name,
    /// Who waited.
    pub owner: Rc<[u8]>,
    /// The channel that it waited by.
    pub channel: Option<Rc<[u8]>>,
}

/// Who is told of an outcome.
pub(super) struct Recipient<'o> {
    /// The request.
    pub id: RequestId,
    /// The channel that it waits by; none if it blocks its connection.
    pub channel: Option<Rc<[u8]>>,
    /// Who asked.
    pub owner: &'o Rc<[u8]>,
}

/// Tells a request how its wait ended: its connection, or the channel that it waits by.
pub(super) fn tell(
    wakes: &mut Vec<Wake>,
    messages: &mut Vec<Message>,
    to: Recipient,
    name: impl FnOnce() -> Name,
    outcome: Outcome,
) {
    let Recipient { id, channel, owner } = to;
    match channel {
        None => wakes.push(Wake { id, outcome }),
        Some(channel) => messages.push(Message {
            id,
            channel,
            name: name(),
            owner: owner.clone(),
            outcome,
        }),
    }
}

/// The error for more holds than there are.
#[cold]
fn beyond(holds: u32) -> Error {
    let most = format!("an integer from 0 to the hold count, which is {holds}");
    Error::Argument("HOLDS", most)
}

/// The owner's hold, if it is held under this token. The owner is left out: it would borrow the entry.
#[inline]
pub(super) fn held(
    entry: &Entry,
    owner: &[u8],
    token: Option<Token>,
) -> Result<Hold<'static>, Error> {
    // Not by `ok_or`: an error would be made, and dropped, for every hold that is there.
    match entry.hold(owner) {
        Some(hold) if token.map_or(true, |token| token == hold.token) => {
            Ok(Hold { owner: &[], ..hold })
        }
        _ => Err(Error::NotHeld),
    }
}

/// Brings the owner's hold count down from what it is; at 0 the hold is given up. The deadline stays.
#[inline(always)]
pub(super) fn lower(
    entry: &mut Entry,
    sessions: &mut Sessions,
    owner: &[u8],
    hold: Hold,
    holds: u32,
) {
    if holds == 0 {
        end(entry, sessions, owner, hold.token, End::Released);
    } else if holds != hold.holds {
        set_holds(entry, owner, hold, holds);
    }
}

#[cold]
fn set_holds(entry: &mut Entry, owner: &[u8], hold: Hold, holds: u32) {
    entry.commit(&Change::Hold(Hold {
        owner,
        holds,
        ..hold
    }));
}

/// Ends a hold, and tells.
#[inline(always)]
pub(super) fn end(
    entry: &mut Entry,
    sessions: &mut Sessions,
    owner: &[u8],
    token: Token,
    end: End,
) {
    sessions.untie(token);
    let owner = if entry.holders() > 1 { owner } else { &[] };
    entry.amend(&Change::Unhold { owner, token, end });
    entry.events.push(Event::Ended(end, token));
}
