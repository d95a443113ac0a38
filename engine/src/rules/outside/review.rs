//! What concerns all locks at once: databases that were emptied, filled or exchanged, a change of role or of the rules.
//!
//! There may be hundreds of thousands of locks, and the server does nothing else meanwhile. So such an event only takes a note,
//! and a review looks at the locks step by step. A lock that is used before its turn has its turn then ([`Engine::catch_up`]):
//! nothing is ever decided on what was before.

use crate::ledger::Ledger;
use crate::outbox::{Outcome, Pending};
use crate::queue::crowd::{self, Crowd};
use crate::queue::{Deadlines, LockId, Loss, Turn};
use crate::state::{Engine, Former, Remains};
use crate::types::{Name, NameRef, Now};

/// Places, or holders, of those that nobody needs any more which one step clears away.
const CLEARED_A_STEP: usize = 4096;

impl Engine {
    /// The values of a database (or of all) have come or gone: each lock there is looked at.
    pub fn on_values_changed(&mut self, db: Option<u32>) {
        self.queues.outdate(|at| db.is_none_or(|db| db == at));
    }

    /// The values at these keys have come or gone.
    pub fn on_crowd(&mut self, crowd: Crowd) {
        self.queues.review_crowd(crowd);
    }

    /// All values of a database (or of all) have gone, and are not to come back.
    pub fn on_flush(&mut self, db: Option<u32>, now: Now) {
        let flushed = |name: NameRef| db.is_none_or(|db| name.db == db);
        self.on_locks_left(flushed, Loss::Removed, now);
    }

    /// Other slots are this node's from now on: queues in those that are not are looked at.
    pub fn on_slots_changed(&mut self, own: impl Fn(&[u8]) -> bool) {
        let gone = |lock: &LockId| !own(&self.queues.at(*lock).name.key);
        let gone: Vec<LockId> = self.queues.ids().filter(gone).collect();
        gone.into_iter().for_each(|lock| self.mark_stale(lock));
    }

    /// Two databases were exchanged: their locks have other names now. Waiters stay at theirs.
    pub fn on_swap(&mut self, one: u32, other: u32, now: Now) {
        let swapped = |name: NameRef| name.db == one || name.db == other;
        self.on_locks_left(swapped, Loss::Renamed, now);
        if self.queues.swap(one, other) {
            while let Some(turn) = self.queues.next_turn() {
                self.take_turn(turn);
            }
        }
    }

    /// This server decides from now on: every lock it knows to watch is looked at, every ticket starts as absent.
    pub fn promote(&mut self) {
        self.queues.outdate(|_| true);
    }

    /// Marks every watched lock for settlement: the rules have changed.
    pub fn mark_all(&mut self) {
        self.queues.mark_all();
    }

    /// This server only follows from now on: places and deadlines are the new primary's affair. The server itself tells
    /// blocked connections; who waits by a channel is told that the lock has moved.
    pub fn demote(&mut self, now: Now) {
        // What was counted stays, and no number is given twice.
        let fresh = self.requests.emptied();
        let crowds = self.queues.take_crowds();
        let former = Former {
            queues: std::mem::replace(&mut self.queues, crowds),
            requests: std::mem::replace(&mut self.requests, fresh),
        };
        let mut formers = std::mem::take(&mut self.former);
        formers.push_back(former);
        let policy = self.policy.clone();
        let queues = std::mem::take(&mut self.queues);
        let requests = std::mem::take(&mut self.requests);
        let remains = std::mem::take(&mut self.remains);
        let mut ledger = std::mem::take(&mut self.ledger);
        ledger.lose_all(now.wall());
        for client in self.disconnected.keys() {
            ledger.ties.forget(*client);
        }
        let ledger = Ledger {
            timers: Deadlines::default(),
            ..ledger
        };
        let mut outbox = std::mem::take(&mut self.outbox);
        // The server ends the waits of blocked connections by itself.
        outbox.forget_wakes();
        *self = Engine {
            policy,
            ledger,
            outbox,
            queues,
            requests,
            remains,
            former: formers,
            ..Engine::default()
        };
    }

    /// Returns true if something is left of a review.
    #[inline]
    pub fn in_review(&self) -> bool {
        self.queues.in_review() || !self.former.is_empty() || !self.remains.is_empty()
    }

    /// Goes on with the review: about `most` locks and places. A server that only follows (it does not decide) is given the
    /// names at which it has to look whether a lock there will have to be watched ([`Engine::follow`]).
    pub fn review(&mut self, most: usize, decides: bool) -> Vec<Name> {
        let mut names = Vec::new();
        self.clear_remains();
        let mut room = most;
        while room > 0 && self.clear_former(decides) {
            room -= 1;
        }
        while room > 0 {
            let Some(crowd::Turn { name, brought_to }) = self.queues.next_of_crowd() else {
                break;
            };
            room -= 1;
            if !decides {
                names.extend(brought_to);
                names.push(name);
                continue;
            }
            self.on_key_removed(name.as_ref());
            if let Some(name) = brought_to {
                self.on_key_changed(name.as_ref());
            }
        }
        while room > 0 {
            let Some(turn) = self.queues.next_turn() else {
                break;
            };
            room -= 1;
            if !decides {
                if let Some(elsewhere) = self.queues.bring_up_to_date(turn.lock) {
                    names.push(self.queues.at(turn.lock).name.clone());
                    names.extend(elsewhere);
                }
                continue;
            }
            self.take_turn(turn);
        }
        names
    }

    fn take_turn(&mut self, turn: Turn) {
        self.catch_up(turn.lock);
        if turn.marked {
            self.mark(turn.lock);
        }
    }

    /// Has a lock looked at whose database has changed since it was last looked at.
    pub(in crate::rules) fn catch_up(&mut self, lock: LockId) {
        if let Some(elsewhere) = self.queues.bring_up_to_date(lock) {
            self.distrust(lock);
            self.mark(lock);
            if let Some(name) = elsewhere {
                self.on_key_changed(name.as_ref());
            }
        }
    }

    /// Clears away one step of what nobody needs any more.
    fn clear_remains(&mut self) {
        let mut room = CLEARED_A_STEP;
        while let Some(remains) = self.remains.front_mut().filter(|_| room > 0) {
            let next = match remains {
                Remains::Places(places) => places.pop(),
                Remains::Holders(lock) => {
                    if lock.shed(CLEARED_A_STEP) {
                        self.remains.pop_front();
                    }
                    return;
                }
            };
            room -= 1;
            match next {
                None => drop(self.remains.pop_front()),
                Some(mut place) => {
                    if let Some(window) = place.ticket.as_deref_mut() {
                        self.ledger.timers.clear(&mut window.due);
                    }
                }
            }
        }
    }

    /// Clears a place, or a queue without one, of a server that decided before it was demoted. Returns true if there was one.
    fn clear_former(&mut self, decides: bool) -> bool {
        let Some(former) = self.former.front_mut() else {
            return false;
        };
        let Some(lock) = former.queues.last() else {
            self.former.pop_front();
            return true;
        };
        if let Some(queue) = former.queues.get_mut(lock) {
            if let Some((number, place)) = queue.head() {
                let id = place.request();
                if let Some((id, request)) =
                    id.and_then(|id| Some((id, former.requests.remove(id)?)))
                {
                    if request.channel.is_some() {
                        let name = &queue.name;
                        let whom = (request.channel, request.owner);
                        let pending = Pending::default();
                        self.outbox.tell(id, whom, name, Outcome::Moved, pending);
                    }
                }
                queue.remove(number);
                return true;
            }
        }
        // Its holders are to be watched again if this server is promoted.
        let elsewhere = former.queues.bring_up_to_date(lock).flatten();
        let name = former.queues.remove(lock).map(|queue| queue.name);
        for name in name.into_iter().chain(elsewhere) {
            let lock = self.queues.id_or_new(name.as_ref());
            match decides {
                true => self.mark_stale(lock),
                false => self.distrust(lock),
            }
        }
        true
    }
}
