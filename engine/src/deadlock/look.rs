//! One look at a wait: what it depends on. Owners go by the hash of their names.

use crate::collections::index::ByNumber;
use crate::keyspace::Keyspace;
use crate::lock::Lock;
use crate::queue::{BlockingHolder, LockId, Requests, WaitQueue, WaitQueues};
use crate::types::{Arrival, Limit, NameRef, OwnerHash, RequestId};
use std::collections::BTreeSet;

/// The number that the request goes by that is asked for, and is in no queue yet.
pub(crate) const ASKED: RequestId = RequestId(0);

/// The steps of a look are used up, and it has no answer.
#[derive(Debug)]
pub(crate) struct OutOfSteps;

/// What a look has to say, if its steps suffice.
pub(super) type Bounded<T> = Result<T, OutOfSteps>;

/// A lock that is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Its name.
    pub name: NameRef<'a>,
    /// Its number, if it has a queue.
    pub lock: Option<LockId>,
    /// The place that the request would take; none for one behind all others.
    pub place: Option<Arrival>,
    /// The limit that is asked for.
    pub limit: Limit,
}

/// A look at one wait. A step is an owner, a request, a lock, a holder or a place that it visits.
pub(crate) struct Look<'w> {
    pub(super) queues: &'w WaitQueues,
    pub(super) requests: &'w Requests,
    max_steps: usize,
    steps_left: usize,
    /// Requests that the one that is asked for replaces.
    pub(super) replaced: BTreeSet<RequestId>,
    pub(super) locks: Vec<LockNode<'w>>,
    lock_at: ByNumber<LockId, usize>,
    pub(super) owners: Vec<OwnerNode>,
    owner_at: ByNumber<OwnerHash, usize>,
    pub(super) waits: Vec<WaitNode>,
    pub(super) wait_at: ByNumber<RequestId, usize>,
}

pub(super) struct LockNode<'w> {
    /// None where nobody is queued but the request that is asked for.
    pub id: Option<LockId>,
    pub name: NameRef<'w>,
    pub queue: &'w WaitQueue,
    /// Only those that wait for something themselves: the others give it back.
    pub holders: Vec<(usize, Limit)>,
    /// Up to where its places have been visited; none: its holders have not been, either.
    visited: Option<Arrival>,
    /// The waits that are known here, and how many of them are granted in a row; in order once all are known.
    pub waits: Vec<(Arrival, usize)>,
    pub granted: usize,
}

pub(super) struct OwnerNode {
    hash: OwnerHash,
    pub waits: Vec<usize>,
    /// How many of these are not granted: it gives nothing back before all are.
    pub ungranted: usize,
    /// Locks that it holds, as far as they are known here.
    pub holds: Vec<usize>,
}

pub(super) struct WaitNode {
    pub id: RequestId,
    pub owner: usize,
    pub targets: Vec<Target>,
    pub granted: bool,
}

/// A place that a wait needs.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub lock: usize,
    pub number: Arrival,
    pub limit: Limit,
}

impl<'w> Look<'w> {
    /// A look among these queues and requests. Each of its three parts (whether a wait can end, which knot keeps it, what that
    /// is called) has so many steps.
    pub(crate) fn new(
        queues: &'w WaitQueues,
        requests: &'w Requests,
        max_steps: usize,
    ) -> Look<'w> {
        Look {
            queues,
            requests,
            max_steps,
            steps_left: max_steps,
            replaced: BTreeSet::new(),
            locks: Vec::new(),
            lock_at: ByNumber::default(),
            owners: Vec::new(),
            owner_at: ByNumber::default(),
            waits: Vec::new(),
            wait_at: ByNumber::default(),
        }
    }

    /// Returns true if this owner's request could never be granted at these places, with those out of the way that it replaces.
    pub(crate) fn is_asked_stuck(
        &mut self,
        keys: &mut impl Keyspace,
        owner: OwnerHash,
        wanted: &[Wanted<'w>],
        replaced: BTreeSet<RequestId>,
    ) -> Bounded<bool> {
        self.replaced = replaced;
        let owner = self.owner(owner);
        let target = |wanted: &Wanted<'w>| Target {
            lock: self.lock(wanted.lock, wanted.name),
            number: wanted.place.unwrap_or(Arrival::LAST),
            limit: wanted.limit,
        };
        let targets = wanted.iter().map(target).collect();
        self.add_wait(ASKED, owner, targets)?;
        self.is_stuck(keys, ASKED)
    }

    /// Returns true if a request of this owner that waits can never be granted.
    pub(crate) fn is_waiter_stuck(
        &mut self,
        keys: &mut impl Keyspace,
        owner: OwnerHash,
        request: RequestId,
    ) -> Bounded<bool> {
        self.owner(owner);
        self.is_stuck(keys, request)
    }

    fn is_stuck(&mut self, keys: &mut impl Keyspace, request: RequestId) -> Bounded<bool> {
        // What is found is visited in its turn: the list of the owners is the list of what is to be done.
        let mut next = 0;
        while next < self.owners.len() {
            self.visit_owner(keys, next)?;
            next += 1;
        }
        self.play()?;
        let wait = self.wait_at.get(&request);
        Ok(wait.is_some_and(|wait| !self.waits[*wait].granted))
    }

    /// Returns the locks of which all waits can be granted: those need no look of their own.
    pub(crate) fn ending(&self) -> impl Iterator<Item = LockId> + '_ {
        let ends = |lock: &&LockNode| {
            let all = lock.queue.len() == lock.waits.len();
            all && lock.waits.iter().all(|(_, wait)| self.waits[*wait].granted)
        };
        self.locks.iter().filter(ends).filter_map(|lock| lock.id)
    }

    pub(super) fn spend(&mut self, steps: usize) -> Bounded<()> {
        self.steps_left = self.steps_left.saturating_sub(steps);
        match self.steps_left {
            0 => Err(OutOfSteps),
            _ => Ok(()),
        }
    }

    /// Returns how many steps its last part took.
    pub(crate) fn steps(&self) -> usize {
        self.max_steps - self.steps_left
    }

    /// Begins the next part of the look.
    pub(super) fn renew_steps(&mut self) {
        self.steps_left = self.max_steps;
    }

    /// Returns the node of an owner.
    pub(super) fn owner(&mut self, hash: OwnerHash) -> usize {
        let fresh = self.owners.len();
        let at = *self.owner_at.entry(hash).or_insert(fresh);
        if at == fresh {
            self.owners.push(OwnerNode {
                hash,
                waits: Vec::new(),
                ungranted: 0,
                holds: Vec::new(),
            });
        }
        at
    }

    /// Adds all that an owner waits for, and what that depends on.
    fn visit_owner(&mut self, keys: &mut impl Keyspace, owner: usize) -> Bounded<()> {
        let requests = self.requests;
        self.spend(1)?;
        for id in requests.of_owner(self.owners[owner].hash) {
            self.spend(1)?;
            if !self.replaced.contains(&id) {
                self.add_request(owner, id)?;
            }
        }
        for nth in 0..self.owners[owner].waits.len() {
            self.visit_wait(keys, self.owners[owner].waits[nth])?;
        }
        Ok(())
    }

    /// Adds a request that waits. Returns its node.
    pub(super) fn add_request(&mut self, owner: usize, id: RequestId) -> Bounded<Option<usize>> {
        let Some(request) = self.requests.get(id) else {
            return Ok(None);
        };
        let queues = self.queues;
        let targets = request.places().map(|(lock, number)| Target {
            lock: self.lock(Some(lock), queues.at(lock).name.as_ref()),
            number,
            limit: request.terms.limit,
        });
        let targets = targets.collect();
        self.add_wait(id, owner, targets).map(Some)
    }

    fn add_wait(&mut self, id: RequestId, owner: usize, targets: Vec<Target>) -> Bounded<usize> {
        let at = self.waits.len();
        for target in &targets {
            self.locks[target.lock].waits.push((target.number, at));
        }
        let steps = 2 * targets.len();
        self.wait_at.insert(id, at);
        self.owners[owner].waits.push(at);
        self.owners[owner].ungranted += 1;
        self.waits.push(WaitNode {
            id,
            owner,
            targets,
            granted: false,
        });
        self.spend(steps)?;
        Ok(at)
    }

    fn lock(&mut self, id: Option<LockId>, name: NameRef<'w>) -> usize {
        let fresh = self.locks.len();
        let at = id.map(|id| *self.lock_at.entry(id).or_insert(fresh));
        if let Some(known) = at.filter(|at| *at < fresh) {
            return known;
        }
        self.locks.push(LockNode {
            id,
            name,
            queue: self.queues.at(id),
            holders: Vec::new(),
            visited: None,
            waits: Vec::new(),
            granted: 0,
        });
        fresh
    }

    /// Adds those that are in the way of a wait, if they wait for something themselves.
    fn visit_wait(&mut self, keys: &mut impl Keyspace, wait: usize) -> Bounded<()> {
        for nth in 0..self.waits[wait].targets.len() {
            let Target { lock, number, .. } = self.waits[wait].targets[nth];
            let visited = self.locks[lock].visited;
            if visited.is_none() {
                self.visit_holders(keys, lock)?;
            }
            let from = visited.unwrap_or(Arrival::AHEAD);
            self.locks[lock].visited = Some(from.max(number));
            // An owner that waits for nothing else acts when it is granted: it is in the way only while it is not compatible.
            if from < number && self.locks[lock].queue.is_entangled() {
                self.visit_places(lock, from, number)?;
            }
        }
        Ok(())
    }

    fn visit_holders(&mut self, keys: &mut impl Keyspace, lock: usize) -> Bounded<()> {
        let LockNode { name, queue, .. } = self.locks[lock];
        let (requests, most) = (self.requests, self.steps_left / 2);
        let mut found = Vec::new();
        let holders = match queue.blocking_holders() {
            Some(holders) => holders,
            None => {
                // Each is looked up in the lock, and hashed: it counts twice.
                keys.inspect(name, &mut |value: &Lock| {
                    let holds = value.holds().take(most);
                    let hash = |owner: &[u8]| requests.hash(owner);
                    found.extend(holds.map(|hold| BlockingHolder::of(&hold, hash)));
                });
                self.spend(found.len())?;
                found.as_slice()
            }
        };
        for holder in holders {
            self.spend(1)?;
            if self.owner_at.contains_key(&holder.owner) || requests.waits(holder.owner) {
                let owner = self.owner(holder.owner);
                self.locks[lock].holders.push((owner, holder.limit));
                self.owners[owner].holds.push(lock);
            }
        }
        Ok(())
    }

    /// Adds those in the queue that wait for something else too: granted here, they still give nothing back.
    fn visit_places(&mut self, lock: usize, from: Arrival, to: Arrival) -> Bounded<()> {
        let (queue, requests) = (self.locks[lock].queue, self.requests);
        let places = queue.from(from).take_while(|(number, _)| *number < to);
        for (number, place) in places {
            self.spend(1)?;
            let hash = requests.hash(&place.owner);
            // The waiting upgrade's owner holds the lock as well.
            let alone = number != Arrival::AHEAD && !place.is_part();
            let alone = alone && requests.only_of_owner(hash).is_some();
            if !place.is_absent() && !alone {
                self.owner(hash);
            }
        }
        Ok(())
    }
}
