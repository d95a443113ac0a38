//! Keeping a lock and giving it back.

use super::change::{Change, End};
use super::line::{RequestId, UPGRADE};
use super::lock::Hold;
use super::{
    Engine, Entry, Event, Grant, Keyspace, Limit, Millis, Name, NameRef, Now, Outcome, Token,
    Undelivered, Wake,
};
use crate::error::Error;

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
            Some(_) => {
                let most = format!(
                    "an integer from 0 to the hold count, which is {}",
                    hold.holds
                );
                return Err(Error::Argument("HOLDS", most));
            }
        };
        lower(entry, owner, hold, left);
        if left == 0 {
            self.counters.ended(End::Released, hold.token, now);
            self.rewatch(entry, now, name);
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
            end(entry, owner, *token, End::Forced);
            self.counters.ended(End::Forced, *token, now);
        }
        self.rewatch(entry, now, name);
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
        let Some(line) = self.lines.get_mut(name) else {
            return Ok(false);
        };
        let place = match line.number_of(owner) {
            Some(number) => {
                if entry.has_ticket(number) {
                    entry.commit(&Change::Unticket { number });
                }
                line.remove(number)
            }
            None if line
                .upgrade
                .as_ref()
                .is_some_and(|place| *place.owner == *owner) =>
            {
                line.upgrade.take()
            }
            None => None,
        };
        let Some(place) = place else { return Ok(false) };
        self.dissolve(*place, &Outcome::Null);
        self.rewatch(entry, now, name);
        Ok(true)
    }

    /// A grant did not reach its connection: what it added is to be taken back as soon as changes are possible.
    pub fn undelivered(&mut self, name: Name, owner: Box<[u8]>, grant: Grant) {
        self.undelivered.push(Undelivered { name, owner, grant });
    }

    /// The server does not let this request wait after all: as if it had not asked to. A ticket stays as a polled one
    /// does.
    pub fn unblocked(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        let Some((name, number)) = self.requests.get(&id).cloned() else {
            return;
        };
        let window = self.policy.claim_window_ms;
        let line = self.lines.get_mut(name.lend());
        if let Some(place) = line.and_then(|line| line.place_mut(number)) {
            if place.claim == Some(0) {
                place.claim = Some(window);
                keys.entry(name.lend()).commit(&Change::Ticket {
                    number,
                    owner: &place.owner,
                    limit: place.limit,
                    claim: window,
                });
            }
        }
        self.depart(id, now);
        self.settle(keys, now, name.lend());
    }

    /// Takes back what undelivered grants added, and no more: other connections of the owner keep theirs.
    pub(super) fn take_back(&mut self, keys: &mut impl Keyspace, now: Now) {
        for Undelivered { name, owner, grant } in std::mem::take(&mut self.undelivered) {
            if !keys.accepts(name.lend()) {
                self.undelivered.push(Undelivered { name, owner, grant });
                continue;
            }
            let Ok(entry) = self.settled(keys, now, name.lend()) else {
                continue;
            };
            let Ok(hold) = held(entry, &owner, Some(grant.token)) else {
                continue;
            };
            let left = hold.holds.saturating_sub(grant.added);
            lower(entry, &owner, hold, left);
            if left == 0 {
                self.counters.ended(End::Released, hold.token, now);
            }
            self.rewatch(entry, now, name.lend());
        }
    }

    /// Answers everyone at a place that is gone, and forgets their times.
    pub(super) fn dissolve(&mut self, place: super::line::Place, outcome: &Outcome) {
        self.places -= 1;
        if let Some((_, due)) = place.window {
            self.deadlines.remove(due);
        }
        for request in place.requests {
            if let Some((_, due)) = request.until {
                self.deadlines.remove(due);
            }
            self.requests.remove(&request.id);
            self.wakes.push(Wake {
                id: request.id,
                outcome: outcome.clone(),
            });
        }
    }

    /// The request with this name leaves its place: its time is up or its connection has ended. The place stays while
    /// others wait on it, or as an absent ticket for its claim window.
    pub(super) fn depart(&mut self, id: RequestId, now: Now) {
        let Some((name, number)) = self.requests.remove(&id) else {
            return;
        };
        let Some(line) = self.lines.get_mut(name.lend()) else {
            return;
        };
        let Some(place) = line.place_mut(number) else {
            return;
        };
        if let Some(at) = place.requests.iter().position(|request| request.id == id) {
            if let Some((_, due)) = place.requests.remove(at).until {
                self.deadlines.remove(due);
            }
        }
        if !place.requests.is_empty() {
            return;
        }
        if place.claim.unwrap_or(0) == 0 {
            let since = place.since_us(number);
            self.counters.waited_in_vain(name.lend(), since, now);
        }
        match place.claim {
            Some(0) => line.lapsed.push(number),
            Some(claim) => {
                let until = now.ms().saturating_add(claim);
                place.keep_until(until, &name, number, &mut self.deadlines);
                return;
            }
            None => {
                let gone = if number == UPGRADE {
                    line.upgrade.take()
                } else {
                    line.remove(number)
                };
                self.places -= usize::from(gone.is_some());
            }
        }
        self.mark(&name);
    }

    /// The lock brought up to date, unless something else is at the key.
    fn settled<'k>(
        &mut self,
        keys: &'k mut impl Keyspace,
        now: Now,
        name: NameRef,
    ) -> Result<&'k mut Entry, Error> {
        let entry = self.freshen(keys, now, name);
        if entry.foreign {
            return Err(Error::WrongType);
        }
        Ok(entry)
    }
}

/// The owner's hold, if it is held under this token. The owner is left out: it would borrow the entry.
fn held(entry: &Entry, owner: &[u8], token: Option<Token>) -> Result<Hold<'static>, Error> {
    let hold = entry.hold(owner).ok_or(Error::NotHeld)?;
    if token.is_some_and(|token| token != hold.token) {
        return Err(Error::NotHeld);
    }
    Ok(Hold { owner: &[], ..hold })
}

/// Brings the owner's hold count down from what it is; at 0 the hold is given up. The deadline stays.
fn lower(entry: &mut Entry, owner: &[u8], hold: Hold, holds: u32) {
    if holds == 0 {
        end(entry, owner, hold.token, End::Released);
    } else if holds != hold.holds {
        entry.commit(&Change::Hold(Hold {
            owner,
            holds,
            ..hold
        }));
    }
}

/// Ends a hold, and tells.
pub(super) fn end(entry: &mut Entry, owner: &[u8], token: Token, end: End) {
    let owner = if entry.holders() > 1 { owner } else { &[] };
    entry.commit(&Change::Unhold { owner, token, end });
    entry.events.push(Event::Ended(end, token));
}
