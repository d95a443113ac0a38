//! What has happened behind the module's back, told to the engine: what callbacks have left in the inbox, and what the module
//! finds by inspecting keys where the server tells nothing.

use super::state::{Late, State};
use crate::node::gate;
use crate::node::inbox::{self, Notice, Unlinked};
use dlock_engine::{End, Event, Keyspace, Loss, Name, Now, Token, WallMs};

/// Locks that one event settles beyond those it is about, so that a mass of them does not hold the server up.
pub(super) const SETTLED_A_STEP: usize = 256;

/// What an event tells observers of at most, beyond what it has done itself: the others come after it, in their order.
pub(super) const TOLD_A_STEP: usize = 1024;

impl State {
    /// Tells the engine what callbacks have left.
    #[cold]
    pub(super) fn read_inbox(&mut self, now: Now) {
        self.engine
            .ledger
            .tokens
            .observe(inbox::highest_number(), now);
        let (notices, crowd) = inbox::take();
        // It does not matter when they have come and gone among the rest.
        if let Some(crowd) = crowd {
            self.awaited.note_all();
            self.engine.on_crowd(crowd);
        }
        let reloaded = notices
            .iter()
            .any(|notice| matches!(notice, Notice::Loaded));
        let demoted = notices
            .iter()
            .rposition(|notice| matches!(notice, Notice::Role { primary: false }));
        for (at, notice) in notices.into_iter().enumerate() {
            match notice {
                // The server ends all waits before it tells that it decides no longer.
                Notice::Gone(_) if demoted.is_some_and(|demoted| at < demoted) => {}
                Notice::Gone(id) => self.engine.leave(id, now),
                Notice::Ended(client) => self.engine.on_disconnect(client),
                Notice::Unheard(promises) => self.engine.unheard(promises),
                Notice::Unlinked(lost) => {
                    if !lost.crowded {
                        self.revisit(&lost.name, false);
                    }
                    self.in_turn(Late::Lost(lost), now);
                }
                Notice::Brought(name) => self.revisit(&name, true),
                Notice::Flushed(db) => {
                    self.engine.on_values_changed(db);
                    if !reloaded {
                        self.engine.on_flush(db, now);
                    }
                    // A server that loads its data anew empties itself first: nothing is gone for good.
                    let all = 0..if reloaded { 0 } else { self.settings.databases };
                    all.filter(|at| db.is_none_or(|db| db == *at))
                        .for_each(|at| self.in_turn(Late::Flush(at), now));
                }
                Notice::Swapped(one, other) => self.engine.on_swap(one, other, now),
                Notice::Role { primary: true } => {
                    self.decide_from(now);
                    self.engine.promote();
                }
                Notice::Role { primary: false } => {
                    self.engine.demote(now);
                    self.abandon_unconfirmed();
                }
                Notice::Loaded => {
                    self.decide_from(now);
                    if gate::primary() {
                        self.engine.promote();
                    }
                }
                Notice::Evicted => self.engine.ledger.counters.evicted += 1,
            }
        }
    }

    /// Works something off now, or after what is late already.
    fn in_turn(&mut self, late: Late, now: Now) {
        if self.late.is_empty() && self.told < TOLD_A_STEP {
            self.work_off(late, now);
        } else {
            self.late.push_back(late);
        }
    }

    /// Works off what is late, one step of it. Returns true if there is more.
    pub(super) fn catch_up(&mut self, now: Now) -> bool {
        while self.told < TOLD_A_STEP {
            let Some(late) = self.late.pop_front() else {
                return false;
            };
            self.work_off(late, now);
        }
        !self.late.is_empty()
    }

    fn work_off(&mut self, late: Late, now: Now) {
        self.told += 1;
        match late {
            Late::Lost(mut lost) => {
                let left = lost.holds.len().saturating_sub(TOLD_A_STEP);
                let ended = lost.holds.split_off(left);
                self.told += ended.len();
                self.lost(&lost, &ended, now);
                if left > 0 {
                    self.late.push_front(Late::Lost(lost));
                }
            }
            Late::Said(name, event) => self.notifications.add_named(&name, event),
            Late::Flush(db) => self.notifications.add_flush(db),
        }
    }

    /// A lock has left its name: these of its holds have ended, unless they go on elsewhere.
    fn lost(&mut self, lost: &Unlinked, holds: &[(Token, WallMs)], now: Now) {
        let name = &lost.name;
        // A lease that has run out has ended the hold anywhere.
        let lives = holds.iter().any(|(_, deadline)| *deadline > now.wall());
        let left = lost.moved || lives && self.took_along(name, lost.carried);
        for &(token, deadline) in holds {
            let end = match deadline <= now.wall() {
                true => End::Expired,
                false => End::Removed,
            };
            if left {
                let why = match lost.moved {
                    true => Loss::Renamed,
                    false => Loss::Moved,
                };
                self.engine.on_hold_left(name.as_ref(), token, why, now);
            } else {
                self.engine.on_hold_removed(name.as_ref(), end, token, now);
                self.notifications.add_named(name, Event::Ended(end, token));
            }
        }
    }

    /// Returns true if a lock that was removed has left with its slot. A replica cannot tell, as a DEL is all that it hears of; in a
    /// cluster it tells nobody either.
    fn took_along(&mut self, name: &Name, carried: bool) -> bool {
        gate::primary() && self.keys.took_along(name.as_ref(), carried)
    }

    /// The value at this name has gone or come (`brought`). A primary has the queue served; a replica only notes whether the lock
    /// will have to be watched.
    fn revisit(&mut self, name: &Name, brought: bool) {
        if !gate::primary() {
            self.engine
                .follow(name.as_ref(), self.keys.entry(name.as_ref()));
        } else if brought {
            self.awaited.note(&name.key);
            self.engine.on_key_changed(name.as_ref());
        } else {
            self.engine.on_key_removed(name.as_ref());
        }
    }

    /// Asks which slots are this node's. Queues in one that has left are revisited, and nothing is tied to a connection there
    /// any more. Where a slot may have left and come back, all queues are: no callback tells what has become of its keys.
    #[cold]
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

    /// Goes one step further through what concerns all locks, on a server that only follows; one that decides does so as it
    /// settles. Returns true if there is more.
    pub(super) fn review(&mut self) -> bool {
        if gate::primary() {
            return false;
        }
        for name in self.engine.review(SETTLED_A_STEP, false) {
            self.revisit(&name, true);
        }
        self.engine.in_review()
    }

    /// This server decides from now on: a quarantine begins.
    fn decide_from(&mut self, now: Now) {
        self.awaited.note_all();
        self.since = now.steady();
        self.settings.begin();
        self.settings.refresh(&mut self.engine.policy, self.since);
    }
}
