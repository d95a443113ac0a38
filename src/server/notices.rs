//! What has happened behind the module's back, told to the engine: what callbacks have left in the inbox, and what the module
//! finds by inspecting keys where the server tells nothing.

use super::inbox::{self, Notice};
use super::keyspace::Retimed;
use super::{gate, State, SEEN};
use crate::engine::{End, Event, Keyspace, Name, Now, Token, WallMs};
use std::sync::atomic::Ordering;

impl State {
    /// Tells the engine what callbacks have left.
    #[cold]
    pub(super) fn read_inbox(&mut self, now: Now) {
        let seen = SEEN.swap(0, Ordering::Relaxed);
        self.engine.ledger.clock.observe(seen, now);
        let notices = inbox::take();
        let reloaded = notices
            .iter()
            .any(|notice| matches!(notice, Notice::Loaded));
        for notice in notices {
            match notice {
                Notice::Gone(id) => self.engine.leave(id, now),
                Notice::Ended(client) => self.engine.on_disconnect(client),
                Notice::Undelivered(undo) => self.engine.undelivered(undo),
                Notice::Unlinked {
                    name,
                    holds,
                    moved,
                    carried,
                } => self.lost(&name, &holds, moved, carried, now),
                Notice::Brought(name) => self.revisit(&name, true),
                Notice::Flushed(db) => {
                    self.revisit_all(db);
                    if !reloaded {
                        self.engine.on_flush(db);
                    }
                    // A server that loads its data anew empties itself first: nothing is gone for good.
                    let all = 0..if reloaded { 0 } else { self.settings.databases };
                    all.filter(|at| db.map_or(true, |db| db == *at))
                        .for_each(|at| self.notifications.add_flush(at));
                }
                Notice::Swapped(one, other) => {
                    self.engine.on_swap(one, other);
                    // Waiters stay at the name; the locks have gone over to the other database.
                    for (from, to) in [(one, other), (other, one)] {
                        for name in self.engine.watched(Some(from)) {
                            self.revisit(&name, true);
                            self.revisit(&Name { db: to, ..name }, true);
                        }
                    }
                }
                Notice::Retimed(name) => match self.keys.retimed(name.as_ref()) {
                    Retimed::Earlier(end) => self.engine.on_external_ttl(name.as_ref(), end),
                    Retimed::Wrong if gate::primary() => self.engine.on_key_changed(name.as_ref()),
                    Retimed::Wrong | Retimed::Right => {}
                },
                Notice::Role { primary: true } => {
                    self.decide_from(now);
                    self.engine.promote();
                }
                Notice::Role { primary: false } => self.engine.demote(now),
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

    /// A lock has left this name: its holds have ended, unless they go on elsewhere.
    fn lost(
        &mut self,
        name: &Name,
        holds: &[(Token, WallMs)],
        moved: bool,
        carried: bool,
        now: Now,
    ) {
        let end = |deadline: WallMs| {
            let cut = self.engine.ended_from_outside(name.as_ref(), deadline);
            match deadline <= now.wall() && !cut {
                true => End::Expired,
                false => End::Removed,
            }
        };
        let ends: Vec<End> = holds.iter().map(|(_, deadline)| end(*deadline)).collect();
        self.revisit(name, false);
        // A lease that has run out has ended the hold anywhere.
        let lives = holds.iter().any(|(_, deadline)| *deadline > now.wall());
        let left = moved || lives && self.took_along(name, carried);
        for (&(token, _), end) in holds.iter().zip(ends) {
            if left {
                self.engine.on_hold_left(name.as_ref(), token);
            } else {
                self.engine.on_hold_removed(name.as_ref(), end, token, now);
                self.notifications.add_named(name, Event::Ended(end, token));
            }
        }
    }

    /// Whether a lock that was removed has left with its slot. A replica cannot tell, as a DEL is all that it hears of; in a
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
            self.engine.on_key_changed(name.as_ref());
        } else {
            self.engine.on_key_removed(name.as_ref());
        }
    }

    /// Asks which slots are this node's. Queues in one that has left are revisited, and nothing is tied to a connection there
    /// any more.
    #[cold]
    pub(super) fn refresh_slots(&mut self) {
        if self.engine.is_idle() || !gate::primary() {
            return;
        }
        let own = self.keys.own_slots();
        if *own == self.own_slots {
            return;
        }
        for name in self.engine.watched(None) {
            if !own.serves(&name.key) {
                self.engine.on_key_changed(name.as_ref());
            }
        }
        self.engine
            .on_locks_left(|name| own.knows_nothing_of(&name.key));
        self.own_slots = own.clone();
    }

    /// The values of a database (or of all) have gone, or are others: each queue there is revisited.
    fn revisit_all(&mut self, db: Option<u32>) {
        for name in self.engine.watched(db) {
            self.revisit(&name, true);
        }
    }

    /// This server decides from now on: a quarantine begins.
    fn decide_from(&mut self, now: Now) {
        self.since = now.steady();
        self.settings.begin();
        self.settings.refresh(&mut self.engine.policy, self.since);
    }
}
