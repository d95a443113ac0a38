//! What has happened behind the module's back, told to the engine: what callbacks have left in the inbox, and what the module
//! finds by inspecting keys where the server tells nothing.

use super::api::{self, Ctx};
use super::inbox::{self, Notice};
use super::keyspace::Retimed;
use super::{gate, stored, vacant, State, SEEN};
use crate::engine::{End, Event, Keyspace, Name, NameRef, Now, Token, WallMs};
use std::sync::atomic::Ordering;

/// Locks of a sweep that are open together: those that are open at once are told apart by looking through all of them.
const SWEPT_A_TIME: usize = 16;

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
                Notice::Undelivered { name, owner, grant } => {
                    self.engine.undelivered(name, owner, grant)
                }
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
                Notice::Retimed(name) => {
                    if gate::primary() {
                        match self.keys.retimed(name.as_ref(), now) {
                            Retimed::Right => {}
                            Retimed::Wrong => self.engine.on_key_changed(name.as_ref()),
                            Retimed::Earlier(end) => {
                                self.engine.on_external_ttl(name.as_ref(), end)
                            }
                        }
                    }
                }
                Notice::Touched(key) => self.inspect_everywhere(&key, now),
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
        self.revisit(name, false);
        if moved {
            return;
        }
        // A lease that has run out has ended the hold anywhere.
        let lives = holds.iter().any(|(_, deadline)| *deadline > now.wall());
        let left = lives && self.took_along(name, carried);
        for &(token, deadline) in holds {
            let end = match deadline <= now.wall() {
                true => End::Expired,
                false => End::Removed,
            };
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
            self.engine.on_key_brought(&mut self.keys, name.as_ref());
        } else {
            self.engine.on_key_removed(name.as_ref());
        }
    }

    /// Goes one step further through the keyspace, on a server that cannot tell what happens to keys.
    pub(super) fn sweep(&mut self, ctx: *mut Ctx, now: Now) {
        let found = self.sweep.step(ctx, self.settings.databases);
        api::select(ctx, self.keys.home());
        for names in found.chunks(SWEPT_A_TIME) {
            names.iter().for_each(|name| self.inspect(name, now));
            self.keys.write(&mut self.notifications);
        }
    }

    /// Inspects the locks at this key in all databases: a command that may have changed something of them was seen.
    fn inspect_everywhere(&mut self, key: &[u8], now: Now) {
        for db in stored::databases() {
            let name = NameRef { db, key };
            let mut found = false;
            self.keys.inspect(name, &mut |_| found = true);
            if found && gate::primary() {
                self.inspect(&name.to_owned(), now);
            } else if found {
                self.revisit(&name.to_owned(), true);
            }
        }
    }

    /// Finds out whether a lock has been renamed, moved or given another TTL, where the server does not tell.
    fn inspect(&mut self, name: &Name, now: Now) {
        self.engine.bring_ties(&mut self.keys, name.as_ref());
        let appeared = vacant::any() && self.vacant.remove(name);
        let lock = self.keys.entry(name.as_ref()).lock.as_ref();
        let needs_watch = lock.is_some_and(|lock| lock.needs_watch());
        let unwatched = needs_watch && !self.engine.watches(name.as_ref());
        match self.keys.retimed(name.as_ref(), now) {
            _ if appeared => self.engine.on_key_changed(name.as_ref()),
            Retimed::Earlier(end) => self.engine.on_external_ttl(name.as_ref(), end),
            Retimed::Right if !unwatched => {}
            Retimed::Right | Retimed::Wrong => self.engine.on_key_changed(name.as_ref()),
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
        self.engine.on_locks_left(|name| !own.serves(&name.key));
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

    /// Notes which names are waited for and have no key, now that it is decided what becomes of the keys of this event.
    #[cold]
    pub(super) fn note_vacant(&mut self) {
        for (name, had_key, has_key) in self.keys.opened() {
            if !has_key && self.engine.watches(name) {
                self.vacant.add(name.to_owned());
            } else if vacant::any() && self.vacant.remove(&name.to_owned()) {
                // The event has come upon a key that has appeared since the last check.
                if had_key && self.engine.watches(name) {
                    inbox::post(Notice::Brought(name.to_owned()));
                }
            }
        }
    }
}
