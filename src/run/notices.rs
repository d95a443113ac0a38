//! What has happened behind the module's back, told to the engine: what callbacks have left in the inbox, and what the module
//! finds by inspecting keys where the server tells nothing.

use super::state::State;
use crate::inbox::{self, Notice, Unlinked};
use crate::node::gate;
use dlock_engine::{End, Event, Loss, Name, Now};
use std::collections::BTreeSet;

/// Locks that one event settles beyond those it is about, so that a mass of them does not hold the server up.
pub(super) const SETTLED_A_STEP: usize = 256;

/// Shortens each run of equal exchanges of databases to one or two. Two bring the values back, so a third and a fourth would only mark
/// the same locks again.
fn shorten_swaps(notices: Vec<Notice>) -> Vec<Notice> {
    let pair = |notice: &Notice| match notice {
        Notice::Swapped(one, other) => Some((*one, *other)),
        _ => None,
    };
    let mut kept: Vec<Notice> = Vec::with_capacity(notices.len());
    for notice in notices {
        let last = kept.iter().rev().take(2);
        let equal = last.filter(|last| pair(last) == pair(&notice)).count();
        if pair(&notice).is_some() && equal == 2 {
            kept.pop();
        } else {
            kept.push(notice);
        }
    }
    kept
}

impl State {
    /// Tells the engine what callbacks have left.
    #[cold]
    pub(super) fn read_inbox(&mut self, now: Now) {
        self.engine
            .observe_number(inbox::take_highest_number(), now);
        let notices = shorten_swaps(inbox::take());
        let reloaded = notices
            .iter()
            .any(|notice| matches!(notice, Notice::Loaded));
        // Marks stay until locks are settled, which nothing here does: a thousand flushes mark them once.
        let mut emptied = BTreeSet::new();
        for notice in notices {
            match notice {
                Notice::Gone(id) => self.engine.leave(id, now),
                Notice::Ended(client) => self.engine.on_disconnect(client),
                Notice::Unheard(promises) => self.engine.unheard(promises),
                Notice::Unlinked(lost) => {
                    self.engine.on_key_removed(lost.name.as_ref());
                    self.lost(&lost, now);
                }
                Notice::Brought(name) => {
                    self.awaited.note(&name.key);
                    self.engine.on_key_changed(name.as_ref());
                }
                Notice::Flushed(db) => {
                    if emptied.insert(db) {
                        self.engine.on_values_changed(db);
                    }
                    // A server that loads its data anew empties itself first: nothing is gone for good.
                    if !reloaded {
                        self.engine.on_flush(db, now);
                        let all = 0..self.settings.databases;
                        all.filter(|at| db.is_none_or(|db| db == *at))
                            .for_each(|at| self.notifications.add_flush(at));
                    }
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
                Notice::Evicted => self.engine.count_eviction(),
            }
        }
    }

    /// Ends the holds of a lock that has left its name, unless they go on elsewhere.
    fn lost(&mut self, lost: &Unlinked, now: Now) {
        let Unlinked { name, holds, .. } = lost;
        // A lease that has run out has ended the hold anywhere.
        let lives = holds.iter().any(|(_, deadline)| *deadline > now.wall());
        let left = lost.moved || lives && self.left_with_slot(name, lost.carried);
        if left {
            let why = match lost.moved {
                true => Loss::Renamed,
                false => Loss::Moved,
            };
            for (token, _) in holds {
                self.engine.on_hold_left(name.as_ref(), *token, why, now);
            }
            return;
        }
        let ends = holds.iter().map(|(token, deadline)| {
            let end = match *deadline <= now.wall() {
                true => End::Expired,
                false => End::Removed,
            };
            (end, *token)
        });
        for (end, token) in ends.clone() {
            self.engine.on_hold_removed(name.as_ref(), end, token, now);
        }
        let events = ends.map(|(end, token)| Event::Ended(end, token));
        self.notifications.add_named(name, events);
    }

    /// Returns true if a lock that was removed has left with its slot. A replica cannot tell, as a DEL is all that it hears of; in
    /// a cluster it tells nobody either.
    fn left_with_slot(&mut self, name: &Name, carried: bool) -> bool {
        gate::primary() && self.keys.left_with_slot(name.as_ref(), carried)
    }

    /// Asks which slots are this node's. Queues in one that has left are revisited, and nothing is tied to a connection there
    /// any more. Where a slot may have left and come back, all queues are: no callback tells what has become of its keys.
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

    /// Clears away, on a server that only follows, what has been marked, in steps; one that decides settles it. Returns true if
    /// there is more.
    pub(super) fn follow_dirty(&mut self, now: Now) -> bool {
        let keys = &mut self.keys;
        !gate::primary() && self.engine.follow_dirty(keys, now, SETTLED_A_STEP)
    }

    /// This server decides from now on: a quarantine begins.
    fn decide_from(&mut self, now: Now) {
        self.awaited.note_all();
        self.since = now.steady();
        self.settings.begin();
        self.refresh_settings();
    }
}
