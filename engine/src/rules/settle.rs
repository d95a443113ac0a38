//! Settlement: bringing a lock up to date after anything that may free capacity or a place.
//!
//! A request settles the locks that it has to do with; an event outside of a request marks them, and
//! [`Engine::settle_dirty`] settles them when changes are possible.
//!
//! | form | of what |
//! |---|---|
//! | `settled` | the lock that a request names, on the way in |
//! | `settle`, `settle_name` | one lock, by its number or its name; `settle_queue` where its entry is at hand |
//! | `settle_dirty` | the locks that events have marked |
//! | `follow_up` | what settlements have made possible elsewhere, before the event ends |
//! | `bring_up_to_date` | what events have noted, before a read-only command runs |

use crate::invariants::broken;
use crate::keyspace::{exists, Entry, Event, Keyspace, Value};
use crate::lock::{Change, End, Lock};
use crate::outbox::Outcome;
use crate::queue::{LockId, Request};
use crate::refusal::Refusal;
use crate::rules::outside::keys::MOVED_A_STEP;
use crate::state::{Engine, FollowUp, Garbage};
use crate::types::{NameRef, Now, RequestId};

/// The outputs after which a settlement of marked locks leaves the others to the next step.
const OUTPUTS_A_STEP: usize = 1024;

/// The places after whose grants to requests for many locks an event leaves the other such requests to the next step.
const GRANTED_A_STEP: usize = 1024;

/// How many places of requests that have left take as long to remove as a lock takes to settle.
const GONE_AS_A_LOCK: usize = 16;

/// The most ended holders that are freed at once, in the event in which they end.
const FREED_AT_ONCE: usize = 1024;

impl Engine {
    /// Brings a lock up to date: ends leases that have run out, drops lapsed tickets, grants the head of the queue while
    /// that is compatible, and keeps the watch over the lock's deadlines.
    pub(super) fn settle(&mut self, keys: &mut impl Keyspace, now: Now, lock: LockId) {
        let Some(queue) = self.queues.get(lock) else {
            return;
        };
        let name = queue.name.clone();
        self.close_if_leaving(keys, name.as_ref());
        self.settle_queue(keys.entry(name.as_ref()), now, lock);
    }

    /// Settles a lock, by its name.
    pub(super) fn settle_name(&mut self, keys: &mut impl Keyspace, now: Now, name: NameRef) {
        match self.queues.id(name) {
            Some(lock) => self.settle(keys, now, lock),
            None => drop(self.expire_unwatched(keys.entry(name), now, name)),
        }
    }

    /// Ends the leases of a lock without a queue that have run out. If the lock turns out to need a queue, settles it and returns its
    /// number.
    #[inline(always)]
    fn expire_unwatched(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        name: NameRef,
    ) -> Option<LockId> {
        if !entry.value().needs_watch() {
            self.expire(entry, now, name);
            return None;
        }
        let lock = self.queues.id_or_new(name);
        self.mark_stale(lock);
        self.settle_queue(entry, now, lock);
        Some(lock)
    }

    /// Settles a lock with a queue or a watch, whose entry is at hand. Whether its slot is leaving must be up to date: `settle` looks, and
    /// so does a command before it ([`Engine::close_if_leaving`]).
    #[cold]
    pub(super) fn settle_queue(&mut self, entry: &mut Entry<impl Value>, now: Now, lock: LockId) {
        if self.has_appeared(entry, lock) {
            self.mark_stale_value(lock);
        }
        entry.unseen = false;
        if entry.foreign {
            return self.refuse_all(now, lock);
        }
        let name = self.queues.at(lock).name.clone();
        self.expire(entry, now, name.as_ref());
        self.reconcile(entry, now, lock);
        self.reconcile_next(entry, now, lock);
        self.drop_lapsed(entry, now, lock);
        let left_over = self.serve(entry, now, lock);
        self.update_watch(entry, lock, left_over);
    }

    /// Settles the locks that have been marked, in order, `most` locks at most. To be called only when this server would accept a
    /// write now. Returns true if something is left that could continue at once; what the keyspace does not accept now stays marked
    /// (see [`Engine::unsettled`]).
    pub fn settle_dirty(&mut self, keys: &mut impl Keyspace, now: Now, most: usize) -> bool {
        self.free_garbage();
        self.watch_arrived(most);
        self.revoke_undelivered(keys, now);
        let renewing = self.renew_due(keys, now);
        let clearing = self.clear_away(keys, now);
        self.follow_up(keys, now);
        // Not before all has come free that does so in this event.
        let waiting = if renewing || clearing {
            !self.overdue.is_empty()
        } else {
            self.time_out_in_turn(keys, now)
        };
        // What these leave is served in this event.
        self.leave_next(now);
        let mut refused = Vec::new();
        let (mut settled, mut room) = (0, MOVED_A_STEP);
        // A lock that is marked again meanwhile is left for the next step: a lock with many to grant comes up once in each.
        let mut to_visit = self.dirty.len();
        while settled < most && to_visit > 0 && self.outbox.len() < OUTPUTS_A_STEP {
            to_visit -= 1;
            let Some(lock) = self.dirty.pop_front() else {
                break;
            };
            let Some(queue) = self.queues.get(lock).filter(|queue| queue.dirty) else {
                continue;
            };
            let empty = queue.is_empty();
            let may_have_left = if self.left.is_empty() {
                0
            } else {
                queue.multi_places
            };
            let name = &queue.name.clone();
            let name = name.as_ref();
            if keys.can_grant(name) {
                // Each of them may stand at its head.
                settled += 1 + may_have_left / GONE_AS_A_LOCK;
                self.settle(keys, now, lock);
            } else if self.queues.at(lock).is_unattended() && !exists(keys, name) {
                // Nobody waits here, and the lock has left with its slot and its tickets.
                settled += 1;
                self.forget(lock);
            } else {
                let moves = !empty && self.requests.apart() > 0 && keys.moved(name);
                if moves && self.move_away(lock, now, &mut room) {
                    self.dirty.push_back(lock);
                    break;
                }
                refused.push(lock);
            }
        }
        // Only then those are looked at that wait for several of them.
        self.follow_up(keys, now);
        let more = self.has_marked() || clearing || renewing || waiting;
        self.dirty.extend(refused);
        more
    }

    /// Returns true if a settlement would change what a read-only command sees: an event has noted something about this lock, a lease
    /// of it that is watched has ended, or, whatever the lock, requests or parties that have left are still to be cleared away.
    pub fn is_behind(&self, name: Option<NameRef>, now: impl FnOnce() -> Now) -> bool {
        let queue = name.map(|name| self.queues.at(self.queues.id(name)));
        let marked = queue.is_some_and(|queue| queue.is_behind(|| now().wall()));
        marked || !self.left.is_empty() || !self.undelivered.is_empty() || !self.ended.is_empty()
    }

    /// Settles what a read-only command would otherwise miss (see [`Engine::is_behind`]). To be called only when this server would
    /// accept a write now.
    pub fn bring_up_to_date(&mut self, keys: &mut impl Keyspace, now: Now, name: Option<NameRef>) {
        self.revoke_undelivered(keys, now);
        self.clear_away(keys, now);
        self.leave_next(now);
        let lock = name.and_then(|name| self.queues.id(name));
        if let Some((lock, name)) = lock.zip(name) {
            if keys.can_grant(name) {
                self.settle(keys, now, lock);
            }
        }
        self.follow_up(keys, now);
    }

    /// Does what settlements have made possible elsewhere, to a fixed point. Of very many requests for many locks that have become
    /// grantable together, some are left to the next step.
    #[inline(never)]
    pub(super) fn follow_up(&mut self, keys: &mut impl Keyspace, now: Now) {
        if self.follow_ups.is_empty() {
            return;
        }
        let granted = self.outbox.iter().map(|output| match &output.outcome {
            Outcome::GrantedAll(grants) => grants.len(),
            _ => 0,
        });
        let mut granted: usize = granted.sum();
        while let Some(next) = self.follow_ups.pop_first() {
            match next {
                FollowUp::Lock(lock) => self.settle(keys, now, lock),
                FollowUp::Many(id) if granted < GRANTED_A_STEP => {
                    granted += self.serve_many(keys, now, id, false);
                }
                FollowUp::Many(id) => self.leave_to_next_step(id),
            }
        }
    }

    /// Marks the locks of a request for many that may be grantable.
    fn leave_to_next_step(&mut self, id: RequestId) {
        let parts = self.requests.get(id).map(Request::parts);
        let locks = parts.unwrap_or_default().iter().map(|part| part.lock);
        for lock in locks.collect::<Vec<_>>() {
            self.mark(lock);
        }
    }

    /// Brings the lock that a request is about up to date. Returns its entry, and its number if it has had a queue.
    ///
    /// Errors: `WrongType`.
    #[inline(always)]
    pub(super) fn settled<'k, K: Keyspace>(
        &mut self,
        keys: &'k mut K,
        now: Now,
        name: NameRef,
    ) -> Result<(&'k mut Entry<K::Value>, Option<LockId>), Refusal> {
        let mut lock = self.queues.id(name);
        match lock {
            None => lock = self.expire_unwatched(keys.entry(name), now, name),
            Some(lock) => self.catch_up(keys, now, name, lock),
        }
        let entry = keys.entry(name);
        if entry.foreign {
            return Err(Refusal::WrongType);
        }
        Ok((entry, lock))
    }

    /// Brings a lock with a queue up to date, if anything has happened to it. Only such a lock can make something possible elsewhere.
    #[inline(never)]
    fn catch_up(&mut self, keys: &mut impl Keyspace, now: Now, name: NameRef, lock: LockId) {
        let at_rest = self.ended.is_empty()
            && !self.held_back
            && self.is_settled(keys.entry(name), now, lock);
        if !at_rest {
            self.settle(keys, now, lock);
            self.follow_up(keys, now);
        }
    }

    /// Returns true if nothing has happened to this lock since its last settlement, and no lease has run out.
    pub(super) fn is_settled(&self, entry: &Entry<impl Value>, now: Now, lock: LockId) -> bool {
        let Some(queue) = self.queues.get(lock) else {
            return false;
        };
        let marked = queue.dirty
            || queue.stale
            || queue.closed
            || !queue.lapsed.is_empty()
            || queue.reconciled.is_some()
            || queue.head().is_some_and(|(_, head)| self.has_left(head))
            || self.has_appeared(entry, lock);
        !(marked || entry.foreign || entry.value().first_ended(now.wall()).is_some())
    }

    /// Returns true if a value has arrived at this lock since its last settlement left it without one.
    fn has_appeared(&self, entry: &Entry<impl Value>, lock: LockId) -> bool {
        entry.unseen && self.queues.is_awaited(lock)
    }

    /// Ends the holds whose lease has run out.
    fn expire(&mut self, entry: &mut Entry<impl Value>, now: Now, name: NameRef) {
        if entry.value().first_ended(now.wall()).is_some() {
            self.expire_all(entry, now, name);
        }
    }

    #[cold]
    fn expire_all(&mut self, entry: &mut Entry<impl Value>, now: Now, name: NameRef) {
        if !self.holds.ties.is_empty() {
            let ended = entry.value().leases();
            let ended = ended.filter(|(_, deadline)| *deadline <= now.wall());
            let tied = ended.filter_map(|(token, _)| self.holds.ties.find(name, token));
            for id in tied.collect::<Vec<_>>() {
                self.renew_in_time(entry, now, id);
            }
        }
        if entry.value().first_ended(now.wall()).is_none() {
            return;
        }
        let ended = self
            .holds
            .end_until(&self.queues, entry, name, now.wall(), End::Expired, now);
        self.free_later(ended);
    }

    /// Frees ended holders, in steps if they are many.
    pub(super) fn free_later(&mut self, ended: Lock) {
        if ended.holders() > FREED_AT_ONCE {
            self.garbage.push_back(Garbage::Holders(ended));
        }
    }

    /// Marks a lock for settlement.
    pub(super) fn mark(&mut self, lock: LockId) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return;
        };
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push_back(lock);
        }
    }

    /// Marks a queue whose value may have been replaced behind its back.
    pub(super) fn mark_stale_value(&mut self, lock: LockId) {
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.stale = true;
        }
    }

    /// Updates the lock's watch: the mark that it has a queue, the due entry of the earliest lease, the queue itself.
    fn update_watch(&mut self, entry: &mut Entry<impl Value>, lock: LockId, left_over: bool) {
        let Some(queue) = self.queues.get_mut(lock) else {
            return broken!("a lock that is settled has a queue");
        };
        queue.dirty = false;
        for _ in 0..std::mem::take(&mut queue.timeouts) {
            entry.events.push(Event::Timeout);
        }
        let lapsed = !queue.lapsed.is_empty() && !queue.is_empty();
        let more = queue.reconciled.is_some() || lapsed;
        let queued = !queue.is_empty() || more;
        if !entry.value().is_empty() && entry.value().watched() != queued {
            entry.commit(&Change::Watch(queued));
        }
        let value = entry.value();
        let needed = !value.is_empty() && value.needs_watch();
        // The places of those that have left are still to be counted.
        let watched = queued || needed || queue.multi_places > 0;
        if !watched {
            return self.queues.remove(lock);
        }
        let awaited = value.is_empty();
        self.queues.watch(lock, value.earliest(), awaited);
        if left_over || more {
            self.mark(lock);
        }
    }
}
