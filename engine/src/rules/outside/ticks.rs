//! Time passes: leases, waits and claim windows end, renewals come due.

use super::renewals::RENEWED_A_STEP;
use crate::holds::Due;
use crate::invariants::broken;
use crate::keyspace::Keyspace;
use crate::outbox::Outcome;
use crate::queue::Request;
use crate::state::Engine;
use crate::types::{Now, RequestId};

/// The most due entries that one tick handles.
const DUES_A_STEP: usize = 1024;

impl Engine {
    /// Handles what is due: marks the locks whose leases or claim windows have ended, and answers the waits whose time is up.
    /// Changes no lock. Returns true if more is due already.
    pub fn tick(&mut self, now: Now) -> bool {
        if self.held_back && self.policy.granting(now) {
            self.held_back = false;
            self.mark_all();
        }
        for _ in 0..DUES_A_STEP {
            match self.holds.timers.pop(now.steady()) {
                None => break,
                Some(Due::Wait(id)) => self.time_out(id, now),
                Some(Due::Window(lock, number)) => {
                    if let Some(queue) = self.queues.get_mut(lock) {
                        queue.lapsed.push(number);
                    }
                    self.mark(lock);
                }
            }
        }
        self.holds.ties.come_due(now.steady(), RENEWED_A_STEP);
        for _ in 0..DUES_A_STEP {
            let Some(lock) = self.queues.pop_lease(now.wall()) else {
                break;
            };
            self.mark(lock);
        }
        let due = self.holds.next_due();
        due.is_some_and(|at| at <= now.steady())
            || self.queues.next_lease().is_some_and(|at| at <= now.wall())
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
        self.holds.counters.timeouts += 1;
        self.end_wait_later(id, now, Outcome::TimedOut);
    }

    /// Removes a request whose connection has ended, or no longer waits.
    pub fn leave(&mut self, id: RequestId, now: Now) {
        self.leave_queues(id, now);
    }

    /// Removes a request whose connection the server does not block after all, and serves the queues that it leaves.
    pub fn abandon(&mut self, keys: &mut impl Keyspace, now: Now, id: RequestId) {
        let left = self.leave_queues(id, now);
        for part in left.iter().flat_map(Request::parts) {
            self.settle(keys, now, part.lock);
        }
        self.settle_next(keys, now);
    }
}
