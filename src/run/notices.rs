//! The inbox, passed to the engine: notices of callbacks, and slots that have left the node.

use super::state::State;
use crate::inbox::{self, Gone, Notice, Unlinked};
use crate::node::gate;
use crate::tell::confirm;
use dlock_engine::{End, Event, Loss, Now};
use std::collections::BTreeSet;

/// The most marked locks that one event settles, so that a mass of them does not stall the server.
pub(super) const SETTLED_A_STEP: usize = 256;

impl State {
    /// Passes the notices of callbacks to the engine.
    #[cold]
    pub(super) fn read_inbox(&mut self, now: Now) {
        self.engine
            .observe_number(inbox::take_highest_number(), now);
        let notices = inbox::take();
        let reloaded = notices
            .iter()
            .any(|notice| matches!(notice, Notice::Loaded));
        // Marks stay until the next settlement, so one flush of a database stands for all.
        let mut emptied = BTreeSet::new();
        for notice in notices {
            match notice {
                Notice::Gone(id) => self.engine.leave(id, now),
                Notice::Ended(client) => self.engine.on_disconnect(client, now),
                Notice::Undelivered(promises) => self.engine.on_undelivered(promises),
                Notice::Unlinked(lost) => {
                    if lost.moved {
                        self.engine.on_key_moved(lost.name.as_ref());
                    } else {
                        self.engine.on_key_removed(lost.name.as_ref());
                    }
                    self.lost(&lost, now);
                    if lost.moved && lost.watched {
                        self.search.begin();
                    }
                }
                Notice::Brought(name) => {
                    self.awaited.note(&name.key);
                    self.engine.on_key_changed(name.as_ref());
                }
                Notice::Flushed(db) => {
                    if emptied.insert(db) {
                        self.engine.on_values_changed(db);
                    }
                    // A server that loads its data again empties itself first: nothing is gone for good.
                    if !reloaded {
                        self.engine.on_flush(db, now);
                        let all = 0..self.settings.databases;
                        for each in all.filter(|each| db.is_none_or(|db| db == *each)) {
                            self.notifications.add_flush(each);
                        }
                    }
                }
                Notice::Swapped(one, other) => {
                    self.engine.on_swap(one, other, now);
                    self.search.on_swap();
                }
                Notice::Role { primary: true } => {
                    self.decide_from(now);
                    self.engine.promote();
                }
                Notice::Role { primary: false } => {
                    self.engine.demote();
                    confirm::drop_unblocked();
                }
                Notice::Loaded => {
                    self.decide_from(now);
                    if gate::primary() {
                        self.engine.promote();
                    }
                }
                Notice::Evicted => self.engine.count_eviction(),
            }
        }
    }

    /// Ends the holds of a lock that has left its name, unless they continue elsewhere.
    fn lost(&mut self, lost: &Unlinked, now: Now) {
        let Unlinked { name, holds, .. } = lost;
        // A hold whose lease has run out has ended, wherever the lock is.
        let lives = holds.iter().any(|hold| hold.deadline > now.wall());
        // A replica gets only a DEL, and cannot tell whether a lock has left with its slot; in a cluster it notifies nobody.
        let left = lost.moved
            || lives && gate::primary() && self.keys.left_with_slot(name.as_ref(), lost.carried);
        if left {
            let why = if lost.moved {
                Loss::Renamed
            } else {
                Loss::Moved
            };
            for hold in holds {
                self.engine
                    .on_hold_left(hold.whose(name), hold.lost, why, now);
            }
            return;
        }
        let end = |hold: &Gone| {
            if hold.deadline <= now.wall() {
                End::Expired
            } else {
                End::Removed
            }
        };
        for hold in holds {
            self.engine
                .on_hold_removed(hold.whose(name), end(hold), hold.lost, now);
        }
        let events = holds
            .iter()
            .map(|hold| Event::Ended(end(hold), hold.lost.token));
        self.notifications.add_named(name, events);
    }

    /// Reads which slots are this node's. Marks the queues in slots that have left, and ends their ties. If a slot may have left
    /// and come back, it marks all queues: no callback reports what has happened to its keys.
    pub(super) fn refresh_slots(&mut self, now: Now) {
        if !gate::primary() {
            return;
        }
        if self.engine.is_idle() {
            return self.awaited.clear();
        }
        let left = self.awaited.take_left(self.keys.own_slots());
        if left.returned {
            self.engine.on_values_changed(None);
        }
        if !left.is_empty() {
            self.engine.on_slots_changed(|key| !left.has(key));
            self.engine
                .on_locks_left(|name| left.has(name.key), Loss::Moved, now);
        }
    }

    /// Clears away marked locks on a replica, in steps; a primary settles them. Returns true if there is more.
    pub(super) fn follow_dirty(&mut self, now: Now) -> bool {
        let keys = &mut self.keys;
        !gate::primary() && self.engine.follow_dirty(keys, now, SETTLED_A_STEP)
    }

    /// Begins a quarantine: this server is a primary from now on.
    fn decide_from(&mut self, now: Now) {
        self.awaited.note_all();
        self.since = now.steady();
        self.settings.begin();
        self.refresh_settings();
    }
}
