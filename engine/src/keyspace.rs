//! The caller's keyspace, and one lock in it as an event finds and leaves it.

use super::lock::change::{self, Change, End};
use super::lock::token::TokenClock;
use super::lock::{Hold, Lock};
use super::types::{ClientId, NameRef, Token, WallMs};
use crate::refusal::Refusal;
use std::ops::DerefMut;

/// A handle to a lock while an event changes it: a box, or a pointer to where the keyspace stores it. `Default` makes the lock of
/// a key that does not exist yet.
pub trait Value: DerefMut<Target = Lock> + Default {}

impl<V: DerefMut<Target = Lock> + Default> Value for V {}

/// The place where locks are kept. The engine opens each lock that it needs there.
pub trait Keyspace {
    /// Its handle to a lock.
    type Value: Value;

    /// Returns the entry of this lock. It is opened on first use, and stays the same until the event ends.
    fn entry(&mut self, name: NameRef) -> &mut Entry<Self::Value>;

    /// Returns true if this lock may be granted outside of a request now. The caller has checked what does not depend on
    /// the key; a node of a cluster checks whether the key's slot is its own and stays.
    fn can_grant(&mut self, _name: NameRef) -> bool {
        true
    }

    /// Returns true if the lock may be changed outside of a request now, as a client's command might: also in a slot that migrates,
    /// as long as the key is here. Its holders may keep it and release it, but nobody is granted it.
    fn can_write(&mut self, name: NameRef) -> bool {
        self.can_grant(name)
    }

    /// Returns true if the key's slot is served elsewhere now, so that nothing will ever be granted here.
    fn moved(&mut self, _name: NameRef) -> bool {
        false
    }

    /// Shows the lock as it stands, without opening it for a change. Returns true if there is a value, of whatever type.
    fn inspect(&mut self, name: NameRef, see: &mut dyn FnMut(&Lock)) -> bool {
        let entry = self.entry(name);
        if let Some(lock) = &entry.lock {
            see(lock);
        }
        entry.foreign || !entry.value().is_empty()
    }

    /// Returns true if the caller may read this key, so that an error may name it. Outside of a command there is no caller.
    fn readable(&mut self, _name: NameRef) -> bool {
        true
    }
}

/// Returns true if there is a lock at this key, be it one that this event has emptied. It leaves no key open where
/// [`Keyspace::inspect`] opens none: a caller may ask for many.
pub(crate) fn exists(keys: &mut impl Keyspace, name: NameRef) -> bool {
    let mut exists = false;
    keys.inspect(name, &mut |_| exists = true);
    exists
}

/// One lock as an event finds and leaves it.
#[derive(Debug, Clone)]
pub struct Entry<V> {
    /// The value at the key. The engine puts a lock here when there was none, but never takes one away: what has
    /// become empty is for the caller to delete.
    pub lock: Option<V>,
    /// Whether the key holds something that is not a lock.
    pub foreign: bool,
    /// Whether the event found a lock here that no settlement has handled yet.
    pub unseen: bool,
    /// Whether anything has changed, or the key's TTL must be set.
    pub changed: bool,
    /// Whether an effect is written. False where nobody would read it.
    pub replicate: bool,
    /// The effect for replicas and the AOF (see [`change`]).
    pub effect: Vec<u8>,
    /// The events for observers, in order.
    pub events: Vec<Event>,
}

impl<V> Default for Entry<V> {
    /// Makes the entry of a key that does not exist.
    fn default() -> Entry<V> {
        Entry {
            lock: None,
            foreign: false,
            unseen: false,
            changed: false,
            replicate: true,
            effect: Vec::new(),
            events: Vec::new(),
        }
    }
}

/// An event that observers can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A grant.
    Acquired(Token),
    /// A hold has ended.
    Ended(End, Token),
    /// A new place in the queue.
    Queued,
    /// A wait ended by time-out.
    Timeout,
}

impl<V: Value> Entry<V> {
    /// Returns the lock; a free one if there is none.
    pub fn value(&self) -> &Lock {
        self.lock.as_deref().unwrap_or(&Lock::FREE)
    }

    /// Returns the owner's hold.
    pub fn hold(&self, owner: &[u8]) -> Option<Hold<'_>> {
        self.value().hold(owner)
    }

    /// Returns how many owners hold it.
    pub fn holders(&self) -> usize {
        self.value().holders()
    }

    /// Sets an owner's hold.
    pub fn set_hold(&mut self, hold: Hold) {
        self.commit(&Change::Hold(hold));
    }

    /// Changes a hold. If only this server's notes about it differ, which are not saved, nothing is replicated.
    pub fn revise(&mut self, before: Hold, after: Hold) {
        let unmarked = Hold {
            client: before.client,
            fresh: before.fresh,
            ..after
        };
        if unmarked != before {
            self.set_hold(after);
        } else if let Some(lock) = self.lock.as_mut().filter(|_| after != before) {
            lock.set_client(after.owner, after.client);
        }
    }

    /// Commits a change, if there is one.
    pub fn commit_any(&mut self, change: Option<Change>) {
        if let Some(change) = change {
            self.commit(&change);
        }
    }

    /// Commits a change: makes the lock if there is none, applies the change, and appends it to the effect.
    pub fn commit(&mut self, change: &Change) {
        debug_assert!(!self.foreign, "another type's value is overwritten");
        self.lock.get_or_insert_with(V::default);
        self.amend(change);
    }

    /// Commits a change to a lock that is there; does nothing if there is none.
    pub fn amend(&mut self, change: &Change) {
        let Some(lock) = &mut self.lock else { return };
        lock.apply(change);
        self.changed = true;
        if self.replicate {
            change.write(&mut self.effect);
        }
    }

    /// Ends the holds whose leases end at `until` or before, in the order of their deadlines, and hands their tokens to `each`. Ending
    /// each by itself would have the same effect, and cost more where they are very many. Returns the ended holds: the caller frees
    /// many of them in steps.
    pub fn end_until(&mut self, until: WallMs, end: End, mut each: impl FnMut(Token)) -> Lock {
        let Some(lock) = &mut self.lock else {
            return Lock::FREE;
        };
        let ended = lock.split_off(until);
        let mut after = lock.holders() + ended.holders();
        self.changed |= ended.holders() > 0;
        for (owner, token, _) in ended.owned_leases() {
            let owner = if after > 1 { owner } else { &[] };
            after -= 1;
            each(token);
            self.events.push(Event::Ended(end, token));
            if self.replicate {
                Change::Unhold { owner, token, end }.write(&mut self.effect);
            }
        }
        ended
    }

    /// Sets the key's TTL even if nothing else changes, here and on replicas.
    pub fn touch_ttl(&mut self) {
        self.changed = true;
        if self.replicate {
            change::begin(&mut self.effect);
        }
    }

    /// Bounds the leases that a user has brought by RESTORE: none ends later than this. A server has confirmed all other leases to
    /// their owners, so they stay.
    pub fn bound_restored(&mut self, latest: WallMs) {
        for owner in &self.value().restored_owners() {
            if let Some(lock) = &mut self.lock {
                lock.set_client(owner, ClientId::NONE);
            }
            if let Some(hold) = self.hold(owner).filter(|hold| hold.deadline > latest) {
                let (owner, deadline) = (&**owner, latest);
                let hold = Hold {
                    owner,
                    deadline,
                    ..hold
                };
                self.set_hold(hold);
            }
        }
    }

    /// Applies the first of these changes as one piece if they end the first of many holders, in order. The primary also ended them
    /// together; to look up each would take longer. Returns how many it has applied.
    fn end_together(
        &mut self,
        changes: &[Change],
        mut ends: impl FnMut(&[u8], Token, End),
    ) -> usize {
        let lock = self.lock.as_deref_mut();
        let Some(lock) = lock.filter(|lock| lock.is_indexed()) else {
            return 0;
        };
        let mut expected = changes.iter();
        let mut until = None;
        let mut events = Vec::new();
        for (holder, held, deadline) in lock.owned_leases() {
            let only = events.len() + 1 == lock.holders();
            match expected.next() {
                Some(Change::Unhold { owner, token, end })
                    if *token == held && (*owner == holder || (only && owner.is_empty())) =>
                {
                    events.push(Event::Ended(*end, *token));
                    until = Some(deadline);
                }
                // Its lease ends with theirs, so it would go with them.
                _ if until == Some(deadline) => return 0,
                _ => break,
            }
        }
        let ended = events.len();
        for ((owner, token, _), change) in lock.owned_leases().zip(changes).take(ended) {
            if let Change::Unhold { end, .. } = change {
                ends(owner, token, *end);
            }
        }
        if let Some(until) = until {
            drop(lock.split_off(until));
        }
        self.events.append(&mut events);
        ended
    }

    /// Applies the primary's decision on a replica, or on a server that reads its AOF. Hands each hold to `ends` before it ends: owner,
    /// token, and how. The effect is not empty: [`change::usual_release`] expands one that is.
    ///
    /// Errors with nothing changed: `Malformed`; `NewerFormat`.
    pub fn follow(
        &mut self,
        effect: &[u8],
        clock: &mut TokenClock,
        mut ends: impl FnMut(&[u8], Token, End),
    ) -> Result<(), Refusal> {
        let Some(changes) = change::read(effect) else {
            let later = change::later(effect);
            return Err(later.map_or(Refusal::Malformed, |format| {
                let known = change::FORMAT;
                Refusal::NewerFormat { format, known }
            }));
        };
        let ended = self.end_together(&changes, &mut ends);
        for change in changes.iter().skip(ended) {
            match change {
                Change::Hold(hold) => {
                    clock.follow(hold.token.0);
                    let before = self.hold(hold.owner).map(|hold| hold.token);
                    if before != Some(hold.token) {
                        self.events.push(Event::Acquired(hold.token));
                    }
                }
                Change::Unhold { owner, token, end } => {
                    let only = || self.value().last().map(|hold| hold.owner);
                    if owner.is_empty() {
                        ends(only().unwrap_or_default(), *token, *end)
                    } else {
                        ends(owner, *token, *end)
                    }
                    self.events.push(Event::Ended(*end, *token));
                }
                Change::Ticket { number, .. } => {
                    clock.follow(number.0);
                    if self.value().ticket(*number).is_none() {
                        self.events.push(Event::Queued);
                    }
                }
                Change::Unticket { .. } | Change::Watch(_) => {}
            }
            self.lock.get_or_insert_with(V::default).apply(change);
        }
        Ok(())
    }
}
