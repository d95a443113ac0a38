//! Events that concern all locks at once: databases that were emptied, filled or exchanged, a change of role or of the rules.
//!
//! Such an event marks every lock that it concerns, at once: a mark costs tens of nanoseconds, and no decision is made on an old
//! state. The marked locks are worked off in steps: a primary settles them ([`Engine::settle_dirty`]), a replica clears them away
//! ([`Engine::follow_dirty`]).

use crate::counters::ClockLead;
use crate::holds::Loss;
use crate::keyspace::Keyspace;
use crate::policy::Policy;
use crate::state::{Engine, Garbage, ScanCursor};
use crate::types::{Name, NameRef, Now, RequestId};

/// The most places, or holders, that one step frees.
const FREED_A_STEP: usize = 4096;

impl Engine {
    /// Marks the locks of a database (or of all) whose values may have come or gone.
    pub fn on_values_changed(&mut self, db: Option<u32>) {
        let changed = |name: NameRef| db.is_none_or(|db| db == name.db);
        for lock in self.queues.chosen(changed) {
            self.mark_stale(lock);
        }
    }

    /// Ends the ties of a database (or of all) whose values have gone for good.
    pub fn on_flush(&mut self, db: Option<u32>, now: Now) {
        let flushed = |name: NameRef| db.is_none_or(|db| name.db == db);
        self.on_locks_left(flushed, Loss::Removed, now);
    }

    /// Marks the queues whose slots have moved to another node.
    pub fn on_slots_changed(&mut self, own: impl Fn(&[u8]) -> bool) {
        // Their owners may ask where the slots are now.
        self.windows.clear();
        for lock in self.queues.chosen(|name| !own(name.key)) {
            self.mark_stale(lock);
        }
    }

    /// Marks the locks of two databases that were exchanged, under their old names, where their waiters stay. Their new names are
    /// watched in steps: nobody waits there, and a request that uses one first settles it.
    pub fn on_swap(&mut self, one: u32, other: u32, now: Now) {
        let swapped = |name: NameRef| name.db == one || name.db == other;
        self.on_locks_left(swapped, Loss::Renamed, now);
        let new_db = |db| match db {
            db if db == one => other,
            db if db == other => one,
            db => db,
        };
        for name in &mut self.arrived {
            name.db = new_db(name.db);
        }
        for lock in self.queues.chosen(swapped) {
            let mut name = self.queues.at(lock).name.clone();
            name.db = new_db(name.db);
            self.arrived.push_back(name);
            self.note_windows(lock);
            self.mark_stale(lock);
        }
    }

    /// Watches the next names at which values have arrived.
    pub(in crate::rules) fn watch_arrived(&mut self, most: usize) {
        let most = most.min(self.arrived.len());
        let names: Vec<Name> = self.arrived.drain(..most).collect();
        if self.arrived.is_empty() {
            // Frees the memory of a mass of them.
            self.arrived.shrink_to_fit();
        }
        for name in names {
            let lock = self.queues.id_or_new(name.as_ref());
            self.mark_stale(lock);
        }
    }

    /// Marks every watched lock: this server is a primary from now on. Every ticket starts as absent.
    pub fn promote(&mut self) {
        // A primary's clock is the one that counts.
        self.holds.counters.clock_lead = ClockLead::default();
        self.on_values_changed(None);
    }

    /// Takes the settings, and marks every watched lock: more may be granted now than before.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        let longer_than = self.policy.log_slower_than_ms;
        self.holds
            .log
            .configure(self.policy.log_max_len, longer_than);
        let confirms = self.policy.confirms();
        if confirms && !self.holds.sessions.confirms {
            self.holds.ties.begin_to_confirm();
        }
        self.holds.sessions.confirms = confirms;
        self.mark_all();
    }

    /// Marks every watched lock: the rules have changed.
    pub(in crate::rules) fn mark_all(&mut self) {
        for lock in self.queues.chosen(|_| true) {
            self.mark(lock);
        }
    }

    /// Makes this server a replica: places and deadlines are the new primary's. The server itself answers blocked connections. The
    /// sessions are forgotten.
    pub fn demote(&mut self) {
        self.holds.forget_all();
        self.ended.clear();
        self.outbox.clear();
        self.undelivered.clear();
        self.follow_ups.clear();
        self.overdue.clear();
        self.windows.clear();
        self.scan = ScanCursor::Over;
        self.held_back = false;
        self.mark_all();
    }

    /// Clears away the queues of marked locks on a replica, about `most` of them and of their places. Locks that must be watched
    /// after a promotion stay. Returns true if something is left.
    pub fn follow_dirty(&mut self, keys: &mut impl Keyspace, now: Now, most: usize) -> bool {
        self.free_garbage();
        self.watch_arrived(most);
        self.leave_next(now);
        let mut room = most;
        while room > 0 {
            let Some(lock) = self.dirty.pop_front() else {
                break;
            };
            let queue = self.queues.at(lock);
            let name = queue.name.clone();
            let waiting = queue.in_order().filter_map(|(_, place)| place.request());
            let waiting: Vec<RequestId> = waiting.take(room).collect();
            room -= waiting.len();
            for id in waiting {
                self.leave(id, now);
            }
            if room == 0 {
                self.dirty.push_front(lock);
                break;
            }
            room -= 1;
            self.discard(lock, |_, _| true);
            if let Some(queue) = self.queues.get_mut(lock) {
                queue.dirty = false;
                self.watch_if_needed(name.as_ref(), keys.entry(name.as_ref()));
            }
        }
        self.has_marked()
    }

    /// Returns true if locks are marked, or something is left to be freed.
    pub(in crate::rules) fn has_marked(&self) -> bool {
        !(self.dirty.is_empty()
            && self.arrived.is_empty()
            && self.left.is_empty()
            && self.garbage.is_empty())
    }

    /// Frees one step of the places and holders that have gone.
    pub(in crate::rules) fn free_garbage(&mut self) {
        let mut room = FREED_A_STEP;
        while let Some(remains) = self.garbage.front_mut().filter(|_| room > 0) {
            let next = match remains {
                Garbage::Places(places) => places.pop(),
                Garbage::Holders(lock) => {
                    if lock.shed(FREED_A_STEP) {
                        self.garbage.pop_front();
                    }
                    return;
                }
            };
            room -= 1;
            match next {
                None => drop(self.garbage.pop_front()),
                Some(mut place) => {
                    if let Some(window) = place.ticket.as_deref_mut() {
                        self.holds.windows.clear(&mut window.due);
                    }
                }
            }
        }
    }
}
