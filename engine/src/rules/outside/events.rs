//! What happens outside of requests. Events may come at a moment when nothing may be changed: they note what is to be done,
//! and settlements do it.

use crate::invariants::broken;
use crate::keyspace::{exists, Entry, Keyspace, Value};
use crate::ledger::Due;
use crate::lock::{End, Hold};
use crate::outbox::Outcome;
use crate::queue::{Auto, Kept, LockId, Loss, Place, Renewal, Request, Tie};
use crate::refusal::Refusal;
use crate::rules::requests::hold::held;
use crate::state::{Engine, Remains};
use crate::tying::next_renewal;
use crate::types::{Arrival, ClientId, Millis, NameRef, Now, RequestId, Token};
use std::collections::BTreeMap;

/// Due entries that one tick works off at most.
const DUES_A_STEP: usize = 1024;

/// Holds and places of connections that have ended which one settlement clears away at most.
const CLEARED_A_STEP: usize = 1024;

/// Holds that one settlement renews at most.
const RENEWED_A_STEP: usize = 256;

impl Engine {
    /// Works off what is due: marks the locks concerned and answers the waits whose time is up. Changes no lock.
    /// Returns true if more is due already.
    pub fn tick(&mut self, now: Now) -> bool {
        if self.held_back && self.policy.granting(now) {
            self.held_back = false;
            self.mark_all();
        }
        for _ in 0..DUES_A_STEP {
            match self.ledger.timers.pop(now.steady()) {
                None => break,
                Some(Due::Wait(id)) => self.time_out(id, now),
                Some(Due::Window(lock, number)) => {
                    if let Some(queue) = self.queues.get_mut(lock) {
                        queue.lapsed.push(number);
                    }
                    self.mark(lock);
                }
                Some(Due::Renewals(client)) => {
                    let due = self.ledger.due(client, now.steady(), RENEWED_A_STEP);
                    self.renewals.extend(due);
                }
            }
        }
        for _ in 0..DUES_A_STEP {
            let Some(lock) = self.leases.pop(now.wall()) else {
                break;
            };
            if let Some(queue) = self.queues.get_mut(lock) {
                queue.lease = None;
            }
            self.mark(lock);
        }
        let timers = self.ledger.timers.next();
        timers.is_some_and(|at| at <= now.steady())
            || self.leases.next().is_some_and(|at| at <= now.wall())
    }

    fn time_out(&mut self, id: RequestId, now: Now) {
        let Some(request) = self.requests.get(id) else {
            return broken!("a request whose time is up waits");
        };
        for part in request.parts() {
            if let Some(queue) = self.queues.get_mut(part.lock) {
                queue.timeouts += 1;
            }
        }
        self.ledger.counters.timeouts += 1;
        self.end_wait_later(id, now, Outcome::TimedOut);
    }

    /// The connection of a blocked request has ended, or no longer waits.
    pub fn leave(&mut self, id: RequestId, now: Now) {
        self.leave_queues(id, now);
    }

    /// The server does not let this request wait after all: it leaves, and the queue goes on without it.
    pub fn abandon(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        let left = self.leave_queues(id, now);
        for part in left.iter().flat_map(Request::parts) {
            self.settle(keys, now, part.lock);
        }
        self.settle_next(keys, now);
    }

    /// The value at this key may have been removed, replaced or brought: it is looked at again. Costs one look where nobody
    /// is queued and nothing is to be watched.
    pub fn on_key_changed(&mut self, name: NameRef) {
        let lock = self.queues.id_or_new(name);
        self.mark_stale(lock);
    }

    /// The same if somebody is queued for this lock, or it is watched; else nothing is to be done.
    pub fn on_key_removed(&mut self, name: NameRef) {
        if let Some(lock) = self.queues.id(name) {
            self.mark_stale(lock);
        }
    }

    pub(in crate::rules) fn mark_stale(&mut self, lock: LockId) {
        self.distrust(lock);
        self.mark(lock);
    }

    /// Notes whether this lock's queue must not move: its slot is migrating away.
    pub fn close(&mut self, name: NameRef, closed: bool) {
        let queue = self.queues.id(name);
        if let Some(queue) = queue.and_then(|lock| self.queues.get_mut(lock)) {
            queue.closed = closed;
        }
    }

    /// Returns true if somebody is queued for this lock, or it is watched.
    pub fn watches(&self, name: NameRef) -> bool {
        self.queues.id(name).is_some()
    }

    /// Keeps in mind, on a server that only follows, which locks it has to watch once it decides.
    pub fn follow(&mut self, name: NameRef, entry: &Entry<impl Value>) {
        let watch = entry.value().needs_watch() && !entry.value().is_empty();
        match self.queues.id(name) {
            None if watch => {
                let lock = self.queues.id_or_new(name);
                self.distrust(lock);
            }
            Some(lock) if !watch && self.queues.at(lock).is_empty() => {
                self.drop_queue(lock);
            }
            _ => {}
        }
    }

    /// Takes a queue out with all its places, at which nobody waits.
    pub(in crate::rules) fn forget(&mut self, lock: LockId) {
        self.discard(lock, |_, _| true);
        self.drop_queue(lock);
    }

    /// Takes all places at which nobody waits, and that this is true of, out of a queue as one piece. Their tickets have gone with
    /// the value.
    pub(in crate::rules) fn discard(
        &mut self,
        lock: LockId,
        goes: impl Fn(Arrival, &Place) -> bool,
    ) {
        if let Some(queue) = self.queues.get_mut(lock) {
            let places = queue.split_off(goes);
            self.places -= places.len();
            if places.len() > 0 {
                self.remains.push_back(Remains::Places(places));
            }
        }
    }

    /// The lock's slot is served elsewhere now. The server itself tells blocked connections; who waits by a channel is told
    /// here.
    pub(in crate::rules) fn move_away(&mut self, lock: LockId, now: Now) {
        let queue = self.queues.at(lock);
        let ids = queue.in_order().filter_map(|(_, place)| place.request());
        let ids: Vec<RequestId> = ids.filter(|id| self.waits_by_channel(*id)).collect();
        for id in ids {
            self.end_wait_later(id, now, Outcome::Moved);
        }
    }

    /// A queue does not move in a slot that is on its way to another node.
    pub(in crate::rules) fn close_if_leaving(&mut self, keys: &mut impl Keyspace, name: NameRef) {
        if self.watches(name) {
            self.close(name, !keys.accepts(name));
        }
    }

    /// A connection has ended: what ties holds to it and what waits by a channel for it are cleared away as soon as changes
    /// are possible. What blocked it ends by [`Engine::leave`].
    pub fn on_disconnect(&mut self, client: ClientId) {
        let tied = self.ledger.ties.next_of(client, None).is_some();
        if tied || self.requests.notified(client).is_some() {
            self.disconnected.insert(client, None);
        } else {
            self.ledger.forget(client);
        }
    }

    /// Clears away what belonged to connections that have ended, one step of it. Returns true if something is left that could
    /// go on at once.
    pub(in crate::rules) fn clear_away(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let mut refused = BTreeMap::new();
        let mut room = CLEARED_A_STEP;
        while let Some((&client, &after)) = self.disconnected.first_key_value().filter(|_| room > 0)
        {
            room -= 1;
            if let Some(id) = self.requests.notified(client) {
                self.end_wait_later(id, now, Outcome::Gone);
                continue;
            }
            let Some(token) = self.ledger.ties.next_of(client, after) else {
                self.disconnected.remove(&client);
                match self.ledger.ties.next_of(client, None) {
                    Some(_) => drop(refused.insert(client, None)),
                    None => self.ledger.forget(client),
                }
                continue;
            };
            let tie = self.ledger.ties.get(token).cloned();
            let Some(tie) = tie.filter(|tie| tie.session) else {
                // Its lease runs on to its end.
                self.ledger.ties.untie(token);
                continue;
            };
            let name = tie.name();
            if keys.serves(name) {
                // The end of a hold opens a key and hands a lock over; a place only goes.
                room = room.saturating_sub(3);
                self.end_session(keys, now, token, &tie);
            } else if !exists(keys, name) {
                // The lock has left with its slot.
                self.ledger.ties.untie(token);
            } else {
                // The server accepts no change of it now; it is asked again, after all others.
                self.disconnected.insert(client, Some(token));
            }
        }
        let left = !self.disconnected.is_empty();
        self.disconnected.append(&mut refused);
        left
    }

    fn end_session(&mut self, keys: &mut impl Keyspace, now: Now, token: Token, tie: &Tie) {
        let name = tie.name();
        let lock = self.queues.id(name);
        if lock.is_none() {
            drop(self.settled(keys, now, name));
        }
        self.close_if_leaving(keys, name);
        let entry = keys.entry(name);
        let lives = |hold: Hold| hold.deadline > now.wall();
        if held(entry, tie.owner(), Some(token)).is_ok_and(lives) {
            self.ledger
                .end(entry, (name, tie.owner()), token, End::Session, now);
            // Served when all has gone that the connection held: who waits for several of its locks gets them together.
            if let Some(lock) = self.queues.id(name) {
                self.mark(lock);
            }
        }
        self.ledger.ties.untie(token);
    }

    /// Renews the holds whose renewal is due, one step of it. Returns true if something is left that could go on at once.
    pub(in crate::rules) fn renew_due(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let mut refused = Vec::new();
        for _ in 0..RENEWED_A_STEP {
            let next = self.renewals.pop_front();
            let Some(token) = next.or_else(|| self.ledger.ties.next_resumed()) else {
                break;
            };
            let Some(tie) = self.ledger.ties.get(token).cloned() else {
                continue;
            };
            let renews = |auto: Auto| auto.is_due(now.steady()) || auto.is_paused();
            if !tie.auto.is_some_and(renews) {
                continue;
            }
            if !self.may_renew(&tie, now) {
                self.ledger.ties.renew(token, Renewal::Paused);
            } else if keys.serves(tie.name()) {
                self.close_if_leaving(keys, tie.name());
                self.renew_for(keys, now, token, &tie);
            } else if exists(keys, tie.name()) {
                refused.push(token);
            } else {
                // The lock has left with its slot.
                self.ledger.lose(token, Loss::Moved, now.wall());
            }
        }
        let left = !self.renewals.is_empty() || self.ledger.ties.has_resumed();
        self.renewals.extend(refused);
        left
    }

    /// Returns true if a hold's connection is there, and its bound has not passed.
    fn may_renew(&self, tie: &Tie, now: Now) -> bool {
        !self.ledger.ties.is_over(tie, now.steady()) && !self.disconnected.contains_key(&tie.client)
    }

    /// Renews a hold, unless it has ended: then it is too late.
    fn renew_for(&mut self, keys: &mut impl Keyspace, now: Now, token: Token, tie: &Tie) {
        let name = tie.name();
        let entry = keys.entry(name);
        match held(entry, tie.owner(), Some(token)) {
            Err(_) => self.ledger.lose(token, Loss::Removed, now.wall()),
            Ok(hold) if hold.deadline < now.wall() => {
                let lock = self.queues.id_or_new(name);
                self.mark(lock);
            }
            Ok(hold) => {
                self.prolong(entry, now, hold, tie);
                let lock = self.queues.id(name);
                self.settle_changed(entry, now, name, lock);
            }
        }
    }

    /// Renews a hold for its full lease, which may be longer than what is allowed by now.
    fn prolong(&mut self, entry: &mut Entry<impl Value>, now: Now, hold: Hold, tie: &Tie) {
        let (Some(auto), token) = (tie.auto, hold.token) else {
            return;
        };
        let lease = auto.lease.min(self.policy.max_lease_ms);
        let wanted = now.wall().after(lease);
        let bounded = self.policy.bounded(token, wanted);
        let deadline = bounded.max(hold.deadline);
        if deadline != hold.deadline {
            entry.set_hold(Hold {
                owner: tie.owner(),
                deadline,
                ..hold
            });
            self.ledger.counters.renewals += 1;
            self.ledger.counters.auto_renewals += 1;
        }
        let next = if bounded < wanted {
            // It has reached the age that it may have.
            Renewal::Stopped
        } else {
            Renewal::At(next_renewal(token, lease, now))
        };
        self.ledger.renewed(tie.client, token, deadline, next);
    }

    /// A lease ends at this very moment: a renewal that is due, too, comes first. Returns true if the hold goes on.
    #[cold]
    pub(in crate::rules) fn renew_in_time(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        name: NameRef,
        token: Token,
    ) -> bool {
        let Some(tie) = self.ledger.ties.at(name, token).cloned() else {
            return false;
        };
        let resumed = || self.ledger.ties.is_resumed(token);
        let renews = |auto: Auto| auto.is_due(now.steady()) || auto.is_paused() && resumed();
        let due = tie.auto.is_some_and(renews);
        let Ok(hold) = held(entry, tie.owner(), Some(token)) else {
            return false;
        };
        if !due || hold.deadline < now.wall() || !self.may_renew(&tie, now) {
            return false;
        }
        self.prolong(entry, now, hold, &tie);
        held(entry, tie.owner(), Some(token)).is_ok_and(|hold| hold.deadline > now.wall())
    }

    /// A hold has ended with its key.
    pub fn on_hold_removed(&mut self, name: NameRef, end: End, token: Token, now: Now) {
        self.ledger.lose_by(name, token, end);
        self.ledger.counters.gone(end, token, now);
    }

    /// A hold has left with its key, to another name or with its slot. It goes on there, without the connection that it is
    /// tied to here.
    pub fn on_hold_left(&mut self, name: NameRef, token: Token, why: Loss, now: Now) {
        self.ledger.lose_at(name, token, why, now.wall());
    }

    /// The same for all holds of the locks that have left.
    pub fn on_locks_left(&mut self, left: impl Fn(NameRef) -> bool, why: Loss, now: Now) {
        for token in self.ledger.ties.of(left) {
            self.ledger.lose(token, why, now.wall());
        }
    }

    /// A connection gives a sign of life: all that is tied to it is renewed for so long from now, never less long than before.
    /// What has ended without this server having come to it is told as ended.
    ///
    /// Errors: `NoAck` if replicas are to confirm it and cannot.
    pub fn keep(&mut self, now: Now, client: ClientId, ms: Millis) -> Result<(), Refusal> {
        self.policy.confirmable(now)?;
        self.end_ties(now, client);
        self.ledger.ties.keep(client, ms, now.steady());
        Ok(())
    }

    /// What a connection is told that has given a sign of life; what it has lost is forgotten by that.
    pub fn kept(&mut self, now: Now, client: ClientId) -> Kept {
        self.end_ties(now, client);
        self.ledger.ties.kept(client)
    }

    /// What is tied to a connection and has ended without this server having come to it is lost.
    fn end_ties(&mut self, now: Now, client: ClientId) {
        while let Some(token) = self.ledger.ties.ended(client, now.wall()) {
            let Some(tie) = self.ledger.ties.get(token) else {
                break;
            };
            let lock = self.queues.id_or_new(tie.name());
            self.ledger.lose_as(token, Loss::Expired);
            self.mark(lock);
        }
    }
}
