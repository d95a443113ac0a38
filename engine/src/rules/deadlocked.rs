//! Refusing waits that could never end, and ending those that have become so.

use crate::deadlock::{deadlock, Circle, Look, OutOfSteps, Wanted, ASKED};
use crate::keyspace::Keyspace;
use crate::outbox::Outcome;
use crate::queue::{LockId, Place, Request, MOST_RECORDED};
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{Name, Now, OwnerHash, RequestId};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

impl Engine {
    /// Errors with `Deadlock`, which names the circle, if a request that would wait at these places could never be granted,
    /// ignoring the requests that it replaces.
    #[inline]
    pub(super) fn refuse_if_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[Wanted],
        owner: &[u8],
        replaced: impl IntoIterator<Item = RequestId>,
    ) -> Result<(), Refusal> {
        if !self.policy.deadlock_detection {
            return Ok(());
        }
        // A place that is there already may be before those that the request waits for.
        let returns = wanted.iter().any(|wanted| {
            let queue = self.queues.at(wanted.lock);
            wanted.place.is_some_and(|at| queue.place(at).is_some())
        });
        let hash = self.requests.hash(owner);
        let suspicious = self.is_suspicious() || self.queues.in_review();
        let may_close = returns || suspicious || self.blocks_somebody(keys, owner, hash);
        if !may_close || self.ends_plainly(keys, wanted, hash) {
            return Ok(());
        }
        let replaced = replaced.into_iter().collect();
        self.look_for_circle(keys, wanted, (owner, hash), replaced)
    }

    /// Returns true if anybody may wait for this owner, so that its wait could close a circle.
    fn blocks_somebody(&self, keys: &mut impl Keyspace, owner: &[u8], hash: OwnerHash) -> bool {
        let mut holds = |lock: LockId| {
            let mut found = false;
            let name = self.queues.at(lock).name.as_ref();
            keys.inspect(name, &mut |lock| found = lock.hold(owner).is_some());
            found
        };
        self.blocking.has(hash)
            || self.requests.waits(hash)
            || self.blocking.crowded().any(&mut holds)
    }

    /// Returns true if those who hold what is waited for wait for nothing, and nobody who is queued for it waits for anything else.
    /// Then it does not matter what else the owner waits for, which may be a lot: by a channel it can wait for thousands.
    fn ends_plainly(&self, keys: &mut impl Keyspace, wanted: &[Wanted], owner: OwnerHash) -> bool {
        let waits = |holder: OwnerHash| holder != owner && self.requests.waits(holder);
        wanted.iter().all(|wanted| {
            let queue = self.queues.at(wanted.lock);
            if queue.is_entangled() {
                return false;
            }
            if let Some(holders) = queue.blocking_holders() {
                return !holders.iter().any(|holder| waits(holder.owner));
            }
            let mut plain = true;
            keys.inspect(wanted.name, &mut |lock| {
                let mut owners = lock.holds().map(|hold| self.requests.hash(hold.owner));
                // A crowd of holders is looked through once, in counted steps.
                plain = lock.holders() <= MOST_RECORDED && !owners.any(waits);
            });
            plain
        })
    }

    #[inline(never)]
    fn look_for_circle(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[Wanted],
        (owner, hash): (&[u8], OwnerHash),
        replaced: BTreeSet<RequestId>,
    ) -> Result<(), Refusal> {
        let mut look = self.new_look();
        match look.is_asked_stuck(keys, hash, wanted, replaced) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let circle = look.circle(ASKED, owner);
                Err(deadlock(&circle, |name| keys.readable(name.as_ref())))
            }
            // Too much depends on this wait: it waits, and is looked at again by the check.
            Err(OutOfSteps) => {
                self.ledger.counters.deadlocks_deferred += 1;
                for wanted in wanted {
                    let lock = self.queues.id_or_new(wanted.name);
                    self.suspects.insert(lock);
                }
                Ok(())
            }
        }
    }

    fn new_look(&self) -> Look<'_> {
        Look::new(&self.queues, &self.requests, self.policy.deadlock_max_steps)
    }

    /// Begins a check for circles (see [`Engine::break_circles`]), if none is under way and anything is suspected. To be called
    /// once a second.
    pub fn begin_check(&mut self) {
        if self.check.is_none() && !self.suspects.is_empty() {
            self.check = Some(Unbounded);
        }
    }

    /// Goes on with a check for circles that have closed other than by a request: a lock that came by RENAME or RESTORE, a
    /// setting, a grant to an owner that waits for something else; or that were too long to be found at the request. The
    /// youngest request of a knot is told `Deadlock`. To be called when changes are possible: one call takes about as many
    /// steps as the look of one request. What is too long for that again is left to the next check.
    ///
    /// Returns true if the check is not at its end.
    pub fn break_circles(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        if !self.policy.deadlock_detection {
            self.suspects.clear();
            self.check = None;
        }
        let mut steps_left = self.policy.deadlock_max_steps;
        while let Some(from) = self.check.filter(|_| steps_left > 0) {
            let next = self.suspects.range((from, Unbounded)).next().copied();
            self.check = next.map(Excluded);
            if let Some(lock) = next {
                let steps = self.check_queue(keys, now, lock);
                steps_left = steps_left.saturating_sub(steps.max(1));
            }
        }
        self.check.is_some()
    }

    /// Looks at the last request in a queue: if that can be granted some time then all before it can. Returns the steps that it
    /// took.
    fn check_queue(&mut self, keys: &mut impl Keyspace, now: Now, lock: LockId) -> usize {
        let present = |place: &&Place| !place.is_absent();
        let places = self.queues.at(lock).in_order();
        let last = places.map(|(_, place)| place).filter(present).last();
        let Some((request, place)) = last.and_then(|place| Some((place.request()?, place))) else {
            self.suspects.remove(&lock);
            return 0;
        };
        let owner = self.requests.hash(&place.owner);
        let mut look = self.new_look();
        let stuck = look.is_waiter_stuck(keys, owner, request);
        let mut steps = look.steps();
        match stuck {
            Ok(false) => {
                let ending: Vec<LockId> = look.ending().collect();
                self.suspects.remove(&lock);
                for lock in ending {
                    self.suspects.remove(&lock);
                }
            }
            Ok(true) => {
                let knot = look.knot(request);
                steps += look.steps();
                if let Some(victim) = knot.ok().and_then(|knot| knot.into_iter().max()) {
                    let circle = look.circle(victim, &[]);
                    steps += look.steps();
                    self.untie(keys, now, victim, &circle);
                    // There may be another knot behind it.
                    self.check = Some(Included(lock));
                }
            }
            Err(OutOfSteps) => {}
        }
        steps
    }

    /// Ends the youngest request of a knot.
    fn untie(&mut self, keys: &mut impl Keyspace, now: Now, victim: RequestId, circle: &Circle) {
        // Whose keys these are is not known here: only its own are named to the one that is told.
        let parts = self.requests.get(victim).into_iter();
        let locks = parts.flat_map(Request::parts).map(|part| part.lock);
        let own: BTreeSet<&Name> = locks.map(|lock| &self.queues.at(lock).name).collect();
        let error = deadlock(circle, |name| own.contains(name));
        self.end_wait(victim, now, Outcome::Refused(error), |_| false);
        self.settle_next(keys, now);
    }

    /// Returns true if circles are to be looked for (see [`Engine::break_circles`]).
    pub fn is_suspicious(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Has every queue looked at for circles: the rules have changed.
    pub fn suspect_all(&mut self) {
        self.queues.suspect_all();
    }

    /// Has a queue looked at whose holders, or first places, have changed in favour of an owner that waits for something
    /// else: those behind it depend on that from now on.
    pub(super) fn suspect_if_waiting(&mut self, lock: LockId, owner: OwnerHash) {
        if !self.queues.at(lock).is_empty() && self.requests.waits(owner) {
            self.suspects.insert(lock);
        }
    }

    /// The same where one of its requests waits here.
    pub(super) fn suspect_if_waiting_beside(&mut self, lock: LockId, owner: &[u8], id: RequestId) {
        let owner = self.requests.hash(owner);
        if self.requests.only_of_owner(owner) != Some(id) {
            self.suspects.insert(lock);
        }
    }
}
