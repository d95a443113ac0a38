//! Time passes: leases, waits and claim windows end, renewals come due.
//!
//! A server may be late, so that much is due in one tick. Then the order is: renewals; the ends of leases and windows, with the
//! grants that follow; the time-outs of those who still wait. So whoever waits when a lock comes free gets it. In another order one
//! late tick could end a wait and the lease that it waited for, and grant both locks of a request to others, in an order in which
//! single events never would.

use super::renewals::RENEWED_A_STEP;
use crate::holds::Due;
use crate::invariants::broken;
use crate::keyspace::Keyspace;
use crate::log::How;
use crate::outbox::Outcome;
use crate::queue::{LockId, Request};
use crate::state::Engine;
use crate::types::{Now, RequestId};
use std::collections::BTreeSet;

/// The most due entries that one tick handles.
const DUES_A_STEP: usize = 1024;

/// The places of requests whose time is up that one settlement leaves, about.
const PLACES_A_STEP: usize = 4096;

/// How many locks are followed from one waiting request to those that it depends on. Of a longer chain, what comes free at its far end
/// is granted a step later: a wait whose time is up does not get it.
const FOLLOWED: usize = 256;

impl Engine {
    /// Handles what is due: marks the locks whose leases or claim windows have ended, and notes the waits whose time is up. The next
    /// settlement answers those, or [`Engine::time_out`]. Changes no lock. Returns true if more is due already.
    pub fn tick(&mut self, now: Now) -> bool {
        if self.held_back && self.policy.granting(now) {
            self.held_back = false;
            self.mark_all();
        }
        for _ in 0..DUES_A_STEP {
            match self.holds.timers.pop(now.steady()) {
                None => break,
                Some(Due::News(no)) => self.holds.sessions.wake(no),
                Some(Due::Wait(id)) => self.overdue.push_back(id),
                Some(Due::Window(..) | Due::Session(_)) => {
                    broken!("windows have deadlines of their own")
                }
            }
        }
        let read = self.read_until(now);
        for _ in 0..DUES_A_STEP {
            match self.holds.windows.pop(read) {
                None => break,
                Some(Due::Session(no)) => self.on_session_due(no, now),
                Some(Due::Window(lock, number)) => {
                    if let Some(queue) = self.queues.get_mut(lock) {
                        queue.lapsed.push(number);
                    }
                    self.mark(lock);
                }
                Some(Due::Wait(_) | Due::News(_)) => broken!("waits have deadlines of their own"),
            }
        }
        self.holds.ties.come_due(now.steady(), RENEWED_A_STEP);
        for _ in 0..DUES_A_STEP {
            let Some(lock) = self.queues.pop_lease(now.wall()) else {
                break;
            };
            self.mark(lock);
        }
        let due = self.holds.next_due(now.steady(), read);
        due.is_some_and(|at| at <= now.steady())
            || self.queues.next_lease().is_some_and(|at| at <= now.wall())
    }

    /// Answers one step of the waits whose time is up. To be called where this server would accept no write now: nothing can come free.
    /// Returns true if more are left.
    pub fn time_out(&mut self, now: Now) -> bool {
        let mut room = DUES_A_STEP;
        while let Some(id) = self.overdue.front().copied().filter(|_| room > 0) {
            self.overdue.pop_front();
            let places = self.requests.get(id).map_or(1, |its| its.parts().len());
            room = room.saturating_sub(places);
            self.time_out_one(id, now);
        }
        !self.overdue.is_empty()
    }

    /// Answers one step of the waits whose time is up, in order, unless what they wait for has come free. Returns true if something
    /// is left that could continue at once.
    pub(in crate::rules) fn time_out_in_turn(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
    ) -> bool {
        let mut room = PLACES_A_STEP;
        while let Some(id) = self.overdue.front().copied().filter(|_| room > 0) {
            if !self.grant_wanted(keys, now, id, &mut room) {
                break;
            }
            self.overdue.pop_front();
            self.time_out_one(id, now);
        }
        !self.overdue.is_empty()
    }

    /// Settles the locks that may have come free for a waiting request. Returns true if that is done; else there are too many to be
    /// granted for one step, and the request may be among them.
    fn grant_wanted(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: RequestId,
        room: &mut usize,
    ) -> bool {
        let mut settled = BTreeSet::new();
        loop {
            let wanted = self.wanted_before(id);
            *room = room.saturating_sub(wanted.len().max(1));
            let behind = |lock: &LockId| {
                let queue = self.queues.at(*lock);
                // The head's time may have been up before this one's.
                let left = queue.head().is_some_and(|(_, head)| self.has_left(head));
                let behind = left || queue.is_behind(|| now.wall());
                behind && keys.can_grant(queue.name.as_ref())
            };
            let behind: Vec<LockId> = wanted.into_iter().filter(behind).collect();
            if behind.is_empty() {
                return true;
            }
            for lock in behind {
                if !settled.insert(lock) {
                    return false;
                }
                self.settle(keys, now, lock);
            }
            self.follow_up(keys, now);
        }
    }

    /// Returns the locks that a waiting request depends on: its own; those that a request for many locks which heads one of these
    /// queues also waits for; and so on, up to some [`FOLLOWED`].
    fn wanted_before(&self, id: RequestId) -> BTreeSet<LockId> {
        let (mut wanted, mut requests) = (BTreeSet::new(), vec![id]);
        while let Some(request) = requests.pop().and_then(|id| self.requests.get(id)) {
            for part in request.parts() {
                if wanted.insert(part.lock) && wanted.len() < FOLLOWED {
                    let head = self.queues.at(part.lock).head();
                    requests.extend(head.and_then(|(_, head)| head.request()));
                }
            }
        }
        wanted
    }

    fn time_out_one(&mut self, id: RequestId, now: Now) {
        // It may have been answered meanwhile, or asked again.
        let Some(request) = self.requests.get(id).filter(|its| self.is_over(its, now)) else {
            return;
        };
        if !self.keeps_place(request) {
            self.holds.counters.timeouts += 1;
        }
        self.end_wait_later(id, now, Outcome::TimedOut);
    }

    /// Returns true if a request's time is up, or the window of its session's places.
    fn is_over(&self, request: &Request, now: Now) -> bool {
        let session = request.terms.session;
        let session = session.and_then(|no| self.holds.sessions.get(no));
        let absent = session.is_some_and(|its| !its.alive && its.due.is_none());
        absent || request.until.is_some_and(|until| until.at <= now.steady())
    }

    /// Removes a request, or a SESSION command, whose connection has ended or no longer waits.
    pub fn leave(&mut self, id: RequestId, now: Now) {
        if !self.leave_session(id, now) {
            self.leave_queues(id, now, Some(How::Gone));
        }
    }

    /// Removes a request whose connection the server does not block after all, and serves the queues that it leaves.
    pub fn abandon(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        if self.leave_session(id, now) {
            return;
        }
        let left = self.leave_queues(id, now, None);
        for part in left.iter().flat_map(Request::parts) {
            self.settle(keys, now, part.lock);
        }
        self.follow_up(keys, now);
    }
}
