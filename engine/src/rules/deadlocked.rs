//! Refusing waits that could never end.

use crate::deadlock::{deadlock, Asked, Search, Stop};
use crate::keyspace::Keyspace;
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::Now;

impl Engine {
    /// Errors with `Deadlock`, which names the circle, if a request that would wait would close a circle of waiting owners. A
    /// search that is cut off finds none, and is counted.
    pub(super) fn refuse_if_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        asked: Asked,
    ) -> Result<(), Refusal> {
        // Where nobody waits nothing leads back.
        if !self.policy.deadlock_detection || self.requests.owners() == 0 {
            return Ok(());
        }
        let max_steps = self.policy.deadlock_max_steps;
        let mut search = Search::new(&self.queues, &self.requests, now, max_steps, asked);
        match search.run(keys) {
            Ok(()) => Ok(()),
            Err(Stop::Circle(circle)) => {
                Err(deadlock(&circle, |name| keys.readable(name.as_ref())))
            }
            Err(Stop::OutOfSteps) => {
                self.holds.counters.deadlocks_deferred += 1;
                Ok(())
            }
        }
    }
}
