//! Refusing waits that could never end, and ending those that have become so.

use crate::deadlock::{deadlock, Look, Progress, Wanted, World, ASKED};
use crate::keyspace::Keyspace;
use crate::ledger::Outcome;
use crate::queue::{LockId, Place, Request, MOST_RECORDED};
use crate::refusal::Refusal;
use crate::state::{Engine, Suspicion};
use crate::types::{Name, Now, OwnerHash, RequestId};
use std::collections::BTreeSet;

impl Engine {
    /// Sees to it that a request that would wait at these places can be granted some time, with those out of the way that it
    /// replaces.
    ///
    /// Errors: `Deadlock`, which names the circle.
    #[inline]
    pub(super) fn refuse_if_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[Wanted],
        owner: &[u8],
        replaced: &[RequestId],
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
        self.look_for_circle(keys, wanted, (owner, hash), replaced)
    }

    /// Whether anybody may wait for this owner, so that its wait could close a circle.
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

    /// Whether those who hold what is waited for wait for nothing, and nobody who is queued for it waits for anything else.
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
                // A crowd of holders is looked through once, in steps.
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
        replaced: &[RequestId],
    ) -> Result<(), Refusal> {
        let world = World::new(&self.queues, &self.requests);
        let mut look = Look::at_request(&world, hash, wanted, replaced);
        let mut steps = self.policy.deadlock_max_steps;
        match look.advance(&world, keys, ASKED, &mut steps) {
            Progress::Ends => Ok(()),
            Progress::Stuck => {
                let (circle, whole) = look.circle(&world, ASKED, owner);
                let readable = |name: &Name| keys.readable(name.as_ref());
                Err(deadlock(&circle, whole, readable))
            }
            // Too much depends on this wait to be looked at in its way: it waits, and is looked at later.
            Progress::Unfinished => {
                self.ledger.counters.deadlocks_deferred += 1;
                let locks: Vec<LockId> = wanted
                    .iter()
                    .map(|wanted| self.queues.id_or_new(wanted.name))
                    .collect();
                self.suspects.extend(locks);
                Ok(())
            }
        }
    }

    /// Looks for circles that have closed other than by a request: a lock that came by RENAME or RESTORE, a setting, a grant
    /// to an owner that waits for something else; or that were too long to be found at the request. The youngest request of
    /// a knot is told `Deadlock`. To be called now and then, when changes are possible: one call takes as many steps as the
    /// look of one request. Gives whether there is more to look at.
    pub fn break_circles(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        if !self.policy.deadlock_detection {
            self.suspects.clear();
            self.look = None;
            return false;
        }
        let mut steps = self.policy.deadlock_max_steps;
        while steps > 0 {
            let Some(mut suspicion) = self.look.take().or_else(|| self.next_suspicion()) else {
                return false;
            };
            let world = World::new(&self.queues, &self.requests);
            let target = suspicion.request;
            match suspicion.look.advance(&world, keys, target, &mut steps) {
                Progress::Ends if suspicion.interrupted => {}
                Progress::Ends => {
                    for lock in suspicion.look.ending(&world) {
                        self.suspects.remove(&lock);
                    }
                }
                Progress::Unfinished => {
                    suspicion.interrupted = true;
                    self.look = Some(suspicion);
                }
                Progress::Stuck => {
                    let Some(knot) = suspicion.look.knot(&world, target, &mut steps) else {
                        suspicion.interrupted = true;
                        self.look = Some(suspicion);
                        continue;
                    };
                    if !suspicion.interrupted || suspicion.look.still_holds(&world, &knot) {
                        self.untie(keys, now, &mut suspicion.look, &knot);
                    }
                    // There may be another knot behind it; or somebody has left since.
                    self.suspects.insert(suspicion.lock);
                    steps = steps.saturating_sub(1);
                }
            }
        }
        self.is_suspicious()
    }

    /// A look at the next queue that is suspected. If its last request can be granted some time then all before it can.
    fn next_suspicion(&mut self) -> Option<Box<Suspicion>> {
        loop {
            let lock = self.suspects.pop_first()?;
            let present = |place: &&Place| !place.is_absent();
            let places = self.queues.at(lock).in_order();
            let last = places.map(|(_, place)| place).filter(present).last();
            if let Some((request, place)) = last.and_then(|place| Some((place.request()?, place))) {
                return Some(Box::new(Suspicion {
                    lock,
                    request,
                    look: Look::at_wait(self.requests.hash(&place.owner)),
                    interrupted: false,
                }));
            }
        }
    }

    /// Ends the youngest request of a knot.
    fn untie(&mut self, keys: &mut impl Keyspace, now: Now, look: &mut Look, knot: &[RequestId]) {
        let Some(victim) = knot.iter().max().copied() else {
            return;
        };
        let world = World::new(&self.queues, &self.requests);
        let (circle, whole) = look.circle(&world, victim, &[]);
        // Whose keys these are is not known here: only its own are named to the one that is told.
        let parts = self.requests.get(victim).into_iter();
        let locks = parts.flat_map(Request::parts).map(|part| part.lock);
        let own: BTreeSet<&Name> = locks.map(|lock| &self.queues.at(lock).name).collect();
        let error = deadlock(&circle, whole, |name| own.contains(name));
        self.dismiss(victim, now, Outcome::Refused(error), |_| false);
        self.follow_up(keys, now);
    }

    /// Whether circles are to be looked for (see [`Engine::break_circles`]).
    pub fn is_suspicious(&self) -> bool {
        !self.suspects.is_empty() || self.look.is_some()
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
