//! Requests about a hold: renewal, downgrade, release, and its end by force.

use crate::holds::{TieRequest, SHORTEST_AUTO_LEASE_MS};
use crate::keyspace::{Entry, Keyspace, Value};
use crate::lock::{End, Hold};
use crate::log::How;
use crate::queue::LockId;
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{Grant, HoldRef, Limit, Millis, NameRef, Now, Token, WallMs};

impl Engine {
    /// Weakens the limit of the owner's hold, so that others may also hold the lock; token, count and deadline stay. Returns the
    /// token and the count.
    ///
    /// Errors: `NotHeld` if the owner does not hold the lock, or not under this token; `TokenNeeded` if the hold is in a session and
    /// no token is named; `NotWeaker` if the limit would not be weaker or equal; `WrongType`.
    pub fn downgrade(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: &[u8],
        token: Option<Token>,
        limit: Limit,
    ) -> Result<Grant, Refusal> {
        let (entry, lock) = self.settled(keys, now, name)?;
        let hold = held(entry, owner, token)?;
        let session = self.holds.session_of(HoldRef { name, owner }, hold.token);
        if token.is_none() && session.is_some() {
            return Err(Refusal::TokenNeeded);
        }
        if limit < hold.limit {
            return Err(Refusal::NotWeaker(hold.limit));
        }
        let hold = Hold { owner, ..hold };
        let weakened = Hold {
            limit,
            fresh: false,
            ..hold
        };
        entry.revise(hold, weakened);
        self.hand_over(keys, now, lock);
        Ok(Grant {
            token: hold.token,
            holds: hold.holds,
        })
    }

    /// Sets the deadline of the owner's hold to now + lease, and ties it as asked; returns the milliseconds that are left.
    ///
    /// Errors: `NotHeld` if the owner does not hold the lock, or not under this token; `NoAck` if replicas must confirm it and
    /// cannot; `WrongType`.
    pub fn renew(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        whose: HoldRef,
        token: Option<Token>,
        lease: Millis,
        tie: &TieRequest,
    ) -> Result<Millis, Refusal> {
        let HoldRef { name, owner } = whose;
        self.policy.check_confirmable(now)?;
        let (entry, lock) = self.settled(keys, now, name)?;
        let hold = held(entry, owner, token)?;
        let lease = if tie.auto.is_some() || tie.session.is_some() {
            lease.max(SHORTEST_AUTO_LEASE_MS)
        } else {
            lease
        };
        let mut wanted = now.wall().after(lease);
        if tie.session.is_some() {
            // A late copy shortens nothing.
            wanted = wanted.max(hold.deadline);
        }
        let deadline = self.policy.renewed(hold.token, hold.deadline, wanted);
        // Also where the deadline stays, within the millisecond of the grant or at `max-hold-ms`: `WAIT` counts the replicas
        // that have what its connection wrote last, and a client that waits for them after a renewal relies on that.
        entry.set_hold(Hold {
            owner,
            deadline,
            fresh: false,
            ..hold
        });
        self.holds.counters.renewals += 1;
        if tie.ties() || !self.holds.ties.is_empty() {
            self.naming(token, |engine| {
                engine.replying(|engine| {
                    engine
                        .holds
                        .tie_renewed(whose, hold.token, deadline, lease, tie, now);
                });
            });
        }
        self.hand_over(keys, now, lock);
        Ok(deadline.since(now.wall()))
    }

    /// Renews the owner's holds of all of these locks, as [`Engine::renew`] does; returns the fewest milliseconds that are left,
    /// since `max-hold-ms` may bound them differently.
    ///
    /// Errors: `NotHeld` if any of them is not held; `WrongType`. Nothing has changed then.
    pub fn renew_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
        lease: Millis,
        tie: &TieRequest,
    ) -> Result<Millis, Refusal> {
        self.policy.check_confirmable(now)?;
        for name in names {
            let held = self.settled(keys, now, *name);
            let held = held.and_then(|(entry, _)| self::held(entry, owner, None));
            held.map_err(|refusal| refusal.at(name.key))?;
        }
        let mut least = Millis::MAX;
        for name in names.iter().copied() {
            let left = self.renew(keys, now, HoldRef { name, owner }, None, lease, tie)?;
            least = least.min(left);
        }
        Ok(least)
    }

    /// Releases one hold, or all but `leave`; returns the holds that remain. The last one hands the lock over.
    ///
    /// Errors: `NotHeld` as for `renew`; `LeavesMore` if `leave` is above the count; `WrongType`.
    #[inline(always)]
    pub fn release(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        whose: HoldRef,
        token: Option<Token>,
        leave: Option<u32>,
    ) -> Result<u32, Refusal> {
        let HoldRef { name, owner } = whose;
        let (entry, lock) = self.settled(keys, now, name)?;
        let hold = held(entry, owner, token)?;
        let left = match leave {
            None => hold.holds - 1,
            Some(left) if left <= hold.holds => left,
            Some(_) => return Err(Refusal::LeavesMore(hold.holds)),
        };
        self.naming(token, |engine| {
            engine
                .holds
                .lower(&engine.queues, entry, whose, hold, left, now);
        });
        if left == 0 {
            self.hand_over(keys, now, lock);
        }
        Ok(left)
    }

    /// Releases one hold of each lock that the owner holds; returns the holds that remain of each, none where nothing was held.
    ///
    /// Errors: `WrongType`. Nothing has changed then.
    pub fn release_many(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
    ) -> Result<Vec<Option<u32>>, Refusal> {
        for name in names {
            let settled = self.settled(keys, now, *name);
            settled.map_err(|refusal| refusal.at(name.key))?;
        }
        let mut left = Vec::with_capacity(names.len());
        // All of them end before the queues are served: a request that waits for several of them gets them together.
        for name in names {
            let entry = keys.entry(*name);
            left.push(held(entry, owner, None).ok().map(|hold| {
                let holds = hold.holds - 1;
                let name = *name;
                let whose = HoldRef { name, owner };
                self.holds
                    .lower(&self.queues, entry, whose, hold, holds, now);
                holds
            }));
        }
        for name in names {
            self.settle_name(keys, now, *name);
        }
        self.follow_up(keys, now);
        Ok(left)
    }

    /// Ends all holds, or one owner's; returns how many ended.
    ///
    /// Errors: `WrongType`.
    pub fn force(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        owner: Option<&[u8]>,
    ) -> Result<usize, Refusal> {
        let (entry, lock) = self.settled(keys, now, name)?;
        let ended = match owner {
            None => {
                let all = WallMs(Millis::MAX);
                let ended = self
                    .holds
                    .end_until(&self.queues, entry, name, all, End::Forced, now);
                let count = ended.holders();
                self.free_later(ended);
                count
            }
            Some(owner) => match held(entry, owner, None) {
                Ok(hold) => {
                    let whose = HoldRef { name, owner };
                    let how = How::Ended(End::Forced);
                    self.holds
                        .end(&self.queues, entry, whose, hold.token, how, now);
                    1
                }
                Err(_) => 0,
            },
        };
        self.hand_over(keys, now, lock);
        Ok(ended)
    }

    /// Serves those who wait for a lock whose holds a request has changed. A lock without a queue has nobody to serve.
    fn hand_over(&mut self, keys: &mut impl Keyspace, now: Now, lock: Option<LockId>) {
        if let Some(lock) = lock {
            self.settle(keys, now, lock);
        }
        self.follow_up(keys, now);
    }
}

/// Returns the owner's hold, if it is held under this token. Its `owner` is empty, which would borrow the entry.
pub(in crate::rules) fn held(
    entry: &Entry<impl Value>,
    owner: &[u8],
    token: Option<Token>,
) -> Result<Hold<'static>, Refusal> {
    // Not by `ok_or`: an error would be made, and dropped, for every hold that is there.
    match entry.hold(owner) {
        Some(hold) if token.is_none_or(|token| token == hold.token) => {
            Ok(Hold { owner: &[], ..hold })
        }
        _ => Err(Refusal::NotHeld),
    }
}
