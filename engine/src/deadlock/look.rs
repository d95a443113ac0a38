//! One look at a wait: what it depends on, played through, and the circle that is left. It goes on in steps, so that a long
//! one can be spread over many events.

use super::text::Step;
use crate::collections::index::ByNumber;
use crate::keyspace::Keyspace;
use crate::lock::Lock;
use crate::queue::{BlockingHolder, LockId, Place, Requests, WaitQueue, WaitQueues};
use crate::types::{Arrival, Limit, Name, NameRef, OwnerHash, RequestId};
use std::rc::Rc;

/// The number that the request goes by that is asked for, and is in no queue yet.
pub const ASKED: RequestId = RequestId(0);

/// Holders, places or requests that are worked off between two looks at the steps that are left.
const A_CHUNK: usize = 64;

/// Steps of a circle that are followed to name it.
const LONGEST_NAMED: usize = 2_000;

/// What a look reads.
pub struct World<'w> {
    queues: &'w WaitQueues,
    requests: &'w Requests,
}

impl<'w> World<'w> {
    /// The queues, and the requests that wait in them.
    pub fn new(queues: &'w WaitQueues, requests: &'w Requests) -> World<'w> {
        World { queues, requests }
    }

    fn queue(&self, lock: &LockNode) -> &'w WaitQueue {
        self.queues.at(lock.id)
    }
}

/// A lock that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its name.
    pub name: NameRef<'a>,
    /// Its number, if it has a queue.
    pub lock: Option<LockId>,
    /// The place that the request would take; none for one behind all others.
    pub place: Option<Arrival>,
    /// The limit that is asked for.
    pub limit: Limit,
}

/// How far a look is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The steps were used up.
    Unfinished,
    /// The wait will end.
    Ends,
    /// The wait can never end.
    Stuck,
}

/// A look at one wait. Owners go by the hash of their names.
#[derive(Debug, Default)]
pub struct Look {
    locks: Vec<LockNode>,
    lock_at: ByNumber<LockId, usize>,
    owners: Vec<OwnerNode>,
    owner_at: ByNumber<OwnerHash, usize>,
    waits: Vec<WaitNode>,
    wait_at: ByNumber<RequestId, usize>,
    /// Requests that the one that is asked for replaces.
    replaced: Vec<RequestId>,
    todo: Vec<Task>,
    playing: bool,
    // Waits that may have become grantable.
    candidates: Vec<usize>,
    steps_left: usize,
    search: Option<Search>,
}

#[derive(Debug)]
struct LockNode {
    // None where nobody is queued but the request that is asked for.
    id: Option<LockId>,
    name: Name,
    revision: u64,
    // Only those that wait for something themselves; the others give it back.
    holders: Vec<(usize, Limit)>,
    // Up to where its places have been looked at; none: its holders have not been, either.
    explored: Option<Arrival>,
    // The waits that are known here, in order once all are known, and how many of them are granted in a row.
    waits: Vec<(Arrival, usize)>,
    granted: usize,
}

#[derive(Debug, Default)]
struct OwnerNode {
    waits: Vec<usize>,
    // How many of these are not granted: it gives nothing back before all are.
    ungranted: usize,
    // Locks that it holds, as far as they are known here.
    holds: Vec<usize>,
}

#[derive(Debug)]
struct WaitNode {
    id: RequestId,
    owner: usize,
    targets: Vec<Target>,
    granted: bool,
}

/// A place that a wait needs.
#[derive(Debug, Clone, Copy)]
struct Target {
    lock: usize,
    number: Arrival,
    limit: Limit,
}

/// Something that is still to be found out.
#[derive(Debug)]
enum Task {
    /// An owner's waits, from this one on.
    Owner(usize, OwnerHash, RequestId),
    /// What a wait depends on, from its nth place on.
    Wait(usize, usize),
    /// The holders of a lock, from the nth on.
    Holders(usize, usize),
    /// The places of a lock, from the first number up to the second.
    Places(usize, Arrival, Arrival),
}

/// That one wait left standing is in the way of another.
#[derive(Debug, Clone, Copy)]
pub struct Arrow {
    /// The one that is in the way.
    to: usize,
    /// At which lock.
    lock: usize,
    /// Whether by its place in the queue; else by a hold of its owner.
    queued: bool,
}

/// A search for a knot.
#[derive(Debug, Default)]
struct Search {
    enter: Option<usize>,
    // Where a wait is on the stack: nothing leaves that before the first component is complete.
    index: ByNumber<RequestId, usize>,
    low: Vec<usize>,
    stack: Vec<RequestId>,
    path: Vec<(usize, Vec<Arrow>)>,
}

impl Search {
    fn enter(&mut self, id: RequestId, wait: usize, arrows: Vec<Arrow>) {
        self.index.insert(id, self.stack.len());
        self.low.push(self.stack.len());
        self.stack.push(id);
        self.path.push((wait, arrows));
    }

    /// Follows one arrow, or goes back from a wait that has no other. Gives the first component that is complete; of no
    /// request, if there is none.
    fn step(&mut self, id: impl Fn(usize) -> RequestId) -> Option<Vec<RequestId>> {
        let Some((wait, arrows)) = self.path.last_mut() else {
            return Some(Vec::new());
        };
        let own = self.index[&id(*wait)];
        if let Some(arrow) = arrows.pop() {
            match self.index.get(&id(arrow.to)) {
                None => self.enter = Some(arrow.to),
                Some(known) => self.low[own] = self.low[own].min(self.low[*known]),
            }
            return None;
        }
        if self.low[own] == own {
            return Some(self.stack.split_off(own));
        }
        self.path.pop();
        if let Some((before, _)) = self.path.last() {
            let before = self.index[&id(*before)];
            self.low[before] = self.low[before].min(self.low[own]);
        }
        None
    }
}

impl Look {
    /// A look at a request that is asked for, as if it stood at these places, and those that it replaces did not wait.
    pub fn at_request(
        world: &World,
        owner: OwnerHash,
        wanted: &[Wanted],
        replaced: &[RequestId],
    ) -> Look {
        let mut look = Look {
            replaced: replaced.to_vec(),
            ..Look::default()
        };
        let at = look.owner(owner);
        let target = |wanted: &Wanted| Target {
            lock: look.lock(world, wanted.lock, wanted.name),
            number: wanted.place.unwrap_or(Arrival::LAST),
            limit: wanted.limit,
        };
        let targets = wanted.iter().map(target).collect();
        look.wait(ASKED, at, targets);
        look
    }

    /// A look at a request that waits.
    pub fn at_wait(owner: OwnerHash) -> Look {
        let mut look = Look::default();
        look.owner(owner);
        look
    }

    /// Goes on for so many steps at most, which are counted down. `target` is the request that is looked at.
    pub fn advance(
        &mut self,
        world: &World,
        keys: &mut impl Keyspace,
        target: RequestId,
        steps: &mut usize,
    ) -> Progress {
        self.steps_left = *steps;
        while self.steps_left > 0 && !self.playing {
            match self.todo.pop() {
                Some(task) => self.explore(world, keys, task),
                None => self.begin_to_play(),
            }
        }
        while self.steps_left > 0 && self.playing {
            let Some(wait) = self.candidates.pop() else {
                break;
            };
            self.spend(1);
            if !self.waits[wait].granted && !self.is_blocked(world, wait) {
                self.grant(wait);
            }
        }
        *steps = self.steps_left;
        if !self.playing || !self.candidates.is_empty() {
            return Progress::Unfinished;
        }
        let at = self.wait_at.get(&target);
        match at.map_or(true, |at| self.waits[*at].granted) {
            true => Progress::Ends,
            false => Progress::Stuck,
        }
    }

    fn spend(&mut self, steps: usize) {
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    // -- Finding out what the wait depends on.

    fn explore(&mut self, world: &World, keys: &mut impl Keyspace, task: Task) {
        self.spend(1);
        match task {
            Task::Owner(owner, hash, from) => self.explore_owner(world, owner, hash, from),
            Task::Wait(wait, nth) => self.explore_wait(world, wait, nth),
            Task::Holders(lock, from) => self.explore_holders(world, keys, lock, from),
            Task::Places(lock, from, to) => self.explore_places(world, lock, from, to),
        }
    }

    /// The node of an owner; one that is new is to bring all its waits with it.
    fn owner(&mut self, hash: OwnerHash) -> usize {
        let fresh = self.owners.len();
        let at = self.lone_owner(hash);
        if at == fresh {
            self.todo.push(Task::Owner(at, hash, RequestId(0)));
        }
        at
    }

    /// The node of an owner, whatever it waits for.
    fn lone_owner(&mut self, hash: OwnerHash) -> usize {
        let fresh = self.owners.len();
        let at = *self.owner_at.entry(hash).or_insert(fresh);
        if at == fresh {
            self.owners.push(OwnerNode::default());
        }
        at
    }

    fn explore_owner(&mut self, world: &World, owner: usize, hash: OwnerHash, from: RequestId) {
        let ids = world.requests.of_owner_from(hash, from);
        let ids: Vec<RequestId> = ids.take(A_CHUNK).collect();
        self.spend(ids.len());
        if let (A_CHUNK, Some(last)) = (ids.len(), ids.last()) {
            let next = RequestId(last.0 + 1);
            self.todo.push(Task::Owner(owner, hash, next));
        }
        for id in ids {
            if !self.replaced.contains(&id) {
                self.wait_of(world, owner, id);
            }
        }
    }

    /// Adds a request that waits.
    fn wait_of(&mut self, world: &World, owner: usize, id: RequestId) -> Option<usize> {
        let request = world.requests.get(id)?;
        let targets = request.places().map(|(lock, number)| Target {
            lock: self.lock(world, Some(lock), world.queues.at(lock).name.as_ref()),
            number,
            limit: request.terms.limit,
        });
        let targets = targets.collect();
        Some(self.wait(id, owner, targets))
    }

    fn wait(&mut self, id: RequestId, owner: usize, targets: Vec<Target>) -> usize {
        let at = self.waits.len();
        for target in &targets {
            let lock = &mut self.locks[target.lock];
            let place = (target.number, at);
            // Also a wait that is found late, when circles are followed, has its place in the order.
            let before = lock.waits.partition_point(|other| *other < place);
            lock.waits.insert(before, place);
            lock.granted = lock.granted.min(before);
        }
        self.spend(targets.len());
        self.wait_at.insert(id, at);
        self.owners[owner].waits.push(at);
        self.owners[owner].ungranted += 1;
        self.waits.push(WaitNode {
            id,
            owner,
            targets,
            granted: false,
        });
        self.todo.push(Task::Wait(at, 0));
        at
    }

    fn lock(&mut self, world: &World, id: Option<LockId>, name: NameRef) -> usize {
        let fresh = self.locks.len();
        if let Some(id) = id {
            let at = *self.lock_at.entry(id).or_insert(fresh);
            if at < fresh {
                return at;
            }
        }
        let queue = id.and_then(|id| world.queues.get(id));
        self.locks.push(LockNode {
            id,
            name: queue.map_or_else(|| name.to_owned(), |queue| queue.name.clone()),
            revision: queue.map_or(0, |queue| queue.revision),
            holders: Vec::new(),
            explored: None,
            waits: Vec::new(),
            granted: 0,
        });
        fresh
    }

    fn explore_wait(&mut self, world: &World, wait: usize, nth: usize) {
        let Some(target) = self.waits[wait].targets.get(nth).copied() else {
            return;
        };
        self.todo.push(Task::Wait(wait, nth + 1));
        let lock = &mut self.locks[target.lock];
        let from = lock.explored;
        if from.is_none() {
            self.todo.push(Task::Holders(target.lock, 0));
        }
        let from = from.unwrap_or(Arrival::AHEAD);
        lock.explored = Some(from.max(target.number));
        // An owner that waits for nothing else acts when it is granted: it is in the way only while it is not compatible.
        if from < target.number && world.queue(lock).is_entangled() {
            let places = Task::Places(target.lock, from, target.number);
            self.todo.push(places);
        }
    }

    /// Notes the holders of a lock that wait for something themselves.
    fn explore_holders(
        &mut self,
        world: &World,
        keys: &mut impl Keyspace,
        lock: usize,
        from: usize,
    ) {
        let node = &self.locks[lock];
        let mut found = Vec::new();
        let holders = match world.queue(node).blocking_holders() {
            Some(holders) => holders,
            None => {
                keys.inspect(node.name.as_ref(), &mut |value: &Lock| {
                    let holds = value.holds_from(from).take(A_CHUNK);
                    let hash = |owner: &[u8]| world.requests.hash(owner);
                    found.extend(holds.map(|hold| BlockingHolder::of(&hold, hash)));
                });
                if found.len() == A_CHUNK {
                    self.todo.push(Task::Holders(lock, from + A_CHUNK));
                }
                found.as_slice()
            }
        };
        self.spend(holders.len());
        for holder in holders {
            let known = self.owner_at.contains_key(&holder.owner);
            if !known && !world.requests.waits(holder.owner) {
                continue;
            }
            let owner = self.owner(holder.owner);
            self.locks[lock].holders.push((owner, holder.limit));
            self.owners[owner].holds.push(lock);
        }
    }

    /// Notes those in the queue that wait for something else too: granted here, they still give nothing back.
    fn explore_places(&mut self, world: &World, lock: usize, from: Arrival, to: Arrival) {
        let queue = world.queue(&self.locks[lock]);
        let before = |(number, _): &(Arrival, &Place)| *number < to;
        let mut places = queue.from(from).take_while(before);
        let mut looked = 0;
        for (number, place) in places.by_ref().take(A_CHUNK) {
            looked += 1;
            let hash = world.requests.hash(&place.owner);
            // The waiting upgrade's owner holds the lock as well.
            let alone = number != Arrival::AHEAD && !place.is_part();
            let alone = alone && world.requests.only_of_owner(hash).is_some();
            if !place.is_absent() && !alone {
                self.owner(hash);
            }
        }
        self.spend(looked);
        if let Some((next, _)) = places.next() {
            self.todo.push(Task::Places(lock, next, to));
        }
    }

    // -- Playing it through: all that wait for nothing give back what they hold, and the queues are served.

    fn begin_to_play(&mut self) {
        self.playing = true;
        // What was found last is what the others depend on: it is looked at first.
        self.candidates = (0..self.waits.len()).collect();
    }

    /// A wait is granted: its owner holds the lock, and gives all back once it waits for nothing any more.
    fn grant(&mut self, wait: usize) {
        self.waits[wait].granted = true;
        let owner = self.waits[wait].owner;
        self.owners[owner].ungranted -= 1;
        let acts = self.owners[owner].ungranted == 0;
        for nth in 0..self.waits[wait].targets.len() {
            let target = self.waits[wait].targets[nth];
            let holders = &mut self.locks[target.lock].holders;
            match holders.iter_mut().find(|(holder, _)| *holder == owner) {
                Some((_, limit)) => *limit = target.limit,
                None => {
                    holders.push((owner, target.limit));
                    self.owners[owner].holds.push(target.lock);
                }
            }
            self.offer(target.lock);
        }
        if acts {
            for nth in 0..self.owners[owner].holds.len() {
                self.offer(self.owners[owner].holds[nth]);
            }
        }
    }

    /// The next in a queue may be grantable now.
    fn offer(&mut self, lock: usize) {
        self.spend(1);
        if let Some((_, wait)) = self.head(lock) {
            self.candidates.push(wait);
        }
    }

    /// The first of the known waits of a lock that is not granted.
    fn head(&mut self, lock: usize) -> Option<(Arrival, usize)> {
        let node = &mut self.locks[lock];
        while let Some((number, wait)) = node.waits.get(node.granted) {
            if !self.waits[*wait].granted {
                return Some((*number, *wait));
            }
            node.granted += 1;
        }
        None
    }

    fn is_blocked(&mut self, world: &World, wait: usize) -> bool {
        let mut nth = 0;
        while let Some(target) = self.waits[wait].targets.get(nth).copied() {
            nth += 1;
            self.spend(1);
            let first = self.head(target.lock).map(|(_, head)| head) == Some(wait);
            if !first
                || self.is_incompatible(target.lock, self.waits[wait].owner, target.limit)
                || self.bystander(world, target.lock, target.number).is_some()
            {
                return true;
            }
        }
        false
    }

    /// The holders that give nothing back, other than this owner.
    fn standing<'l>(
        &'l self,
        lock: usize,
        owner: usize,
    ) -> impl Iterator<Item = (usize, Limit)> + Clone + 'l {
        let holders = self.locks[lock].holders.iter().copied();
        holders.filter(move |(holder, _)| *holder != owner && self.owners[*holder].ungranted > 0)
    }

    /// Whether holders that give nothing back keep this owner from holding beside them, by the granting rule.
    fn is_incompatible(&self, lock: usize, owner: usize, limit: Limit) -> bool {
        let others = self.standing(lock, owner);
        let count = others.clone().count();
        let strictest = others.map(|(_, limit)| limit).chain([limit]).min();
        count > 0 && strictest.is_some_and(|limit| !limit.allows(count + 1))
    }

    /// The first place before this number whose owner waits for nothing else, and that is not compatible with the holders
    /// that give nothing back.
    fn bystander(&mut self, world: &World, lock: usize, number: Arrival) -> Option<Arrival> {
        let nobody = usize::MAX;
        self.standing(lock, nobody).next()?;
        self.head(lock);
        let node = &self.locks[lock];
        // Those before a place that was granted have had their turn.
        let served = node.waits[..node.granted].last().map(|(at, _)| *at);
        let queue = world.queue(node);
        let mut looked = 0;
        let mut found = None;
        for (at, place) in queue.in_order().skip_while(|(at, _)| Some(*at) <= served) {
            if at >= number {
                break;
            }
            looked += 1;
            let request = place.request().filter(|id| !self.replaced.contains(id));
            let Some(request) = request else { continue };
            let known = self.wait_at.contains_key(&request);
            if !known && self.is_incompatible(lock, nobody, place.limit) {
                found = Some(at);
                break;
            }
        }
        self.spend(looked);
        found
    }

    // -- What is left standing.

    /// What is in the way of a wait that is left standing: at each lock the holders with which it is not compatible, else
    /// the head of the queue.
    fn arrows(&mut self, world: &World, wait: usize) -> Vec<Arrow> {
        let mut arrows = Vec::new();
        let owner = self.waits[wait].owner;
        for nth in 0..self.waits[wait].targets.len() {
            self.spend(1);
            let Target {
                lock,
                number,
                limit,
            } = self.waits[wait].targets[nth];
            if self.is_incompatible(lock, owner, limit) {
                let holders: Vec<usize> = self.standing(lock, owner).map(|(at, _)| at).collect();
                let waits = holders
                    .iter()
                    .flat_map(|holder| &self.owners[*holder].waits);
                let stuck = waits.filter(|wait| !self.waits[**wait].granted);
                arrows.extend(stuck.map(|to| Arrow {
                    to: *to,
                    lock,
                    queued: false,
                }));
                continue;
            }
            let head = self.head(lock).filter(|(at, _)| *at < number);
            let end = head.map_or(number, |(at, _)| at);
            let to = match self.bystander(world, lock, end) {
                Some(at) => self.bystanding_wait(world, lock, at),
                None => head.map(|(_, wait)| wait),
            };
            arrows.extend(to.map(|to| Arrow {
                to,
                lock,
                queued: true,
            }));
        }
        self.spend(arrows.len());
        arrows
    }

    /// The node of a wait that has come up only now.
    fn bystanding_wait(&mut self, world: &World, lock: usize, number: Arrival) -> Option<usize> {
        let place = world.queue(&self.locks[lock]).place(number)?;
        let id = place.request()?;
        let owner = self.lone_owner(world.requests.hash(&place.owner));
        self.wait_of(world, owner, id)
    }

    /// Goes on for so many steps at most, which are counted down, to find a knot that one comes to from a request that is
    /// left standing: requests of which each is in the way of each other, directly or not, and nobody else is in the way of
    /// any. Every knot has a circle, and which knot is untied first makes no difference to the others. Gives its requests
    /// once they are found.
    ///
    /// Tarjan's algorithm (1972), up to the first component that is complete.
    pub fn knot(
        &mut self,
        world: &World,
        from: RequestId,
        steps: &mut usize,
    ) -> Option<Vec<RequestId>> {
        let mut search = self.search.take().unwrap_or_else(|| Search {
            enter: self.wait_at.get(&from).copied(),
            ..Search::default()
        });
        self.steps_left = *steps;
        while self.steps_left > 0 {
            self.spend(1);
            if let Some(wait) = search.enter.take() {
                let arrows = self.arrows(world, wait);
                search.enter(self.waits[wait].id, wait, arrows);
            }
            let Some(knot) = search.step(|wait| self.waits[wait].id) else {
                continue;
            };
            *steps = self.steps_left;
            return Some(knot);
        }
        *steps = 0;
        self.search = Some(search);
        None
    }

    /// The circle that one comes to from a request that is left standing, by what is first in the way of each; only the
    /// beginning of the way if that is long. Gives whether it is a circle. `asks` is the owner of the request that is in no
    /// queue yet.
    pub fn circle(&mut self, world: &World, from: RequestId, asks: &[u8]) -> (Vec<Step>, bool) {
        let mut links: Vec<Step> = Vec::new();
        let mut seen: ByNumber<RequestId, usize> = ByNumber::default();
        let mut at = self.wait_at.get(&from).copied();
        while let Some(wait) = at.filter(|_| links.len() < LONGEST_NAMED) {
            let id = self.waits[wait].id;
            if let Some(first) = seen.insert(id, links.len()) {
                return (links.split_off(first), true);
            }
            let arrow = self.arrows(world, wait).first().copied();
            links.extend(arrow.map(|arrow| self.step(world, wait, arrow, asks)));
            at = arrow.map(|arrow| arrow.to);
        }
        (links, false)
    }

    fn step(&self, world: &World, wait: usize, arrow: Arrow, asks: &[u8]) -> Step {
        let owner = |wait: usize| match world.requests.get(self.waits[wait].id) {
            Some(request) => request.owner.clone(),
            None => Rc::from(asks),
        };
        Step {
            waiter: owner(wait),
            name: self.locks[arrow.lock].name.clone(),
            blocker: owner(arrow.to),
            queued: arrow.queued,
        }
    }

    /// The locks of which all waits were granted in the play: those need no look of their own.
    pub fn ending<'l>(&'l self, world: &'l World) -> impl Iterator<Item = LockId> + 'l {
        let ends = |lock: &&LockNode| {
            let all = world.queue(lock).len() == lock.waits.len();
            all && lock.waits.iter().all(|(_, wait)| self.waits[*wait].granted)
        };
        self.locks.iter().filter(ends).filter_map(|lock| lock.id)
    }

    /// Whether nothing has changed since at the locks that these requests wait for.
    pub fn still_holds(&self, world: &World, knot: &[RequestId]) -> bool {
        let waits = knot.iter().filter_map(|id| self.wait_at.get(id));
        let mut targets = waits.flat_map(|wait| &self.waits[*wait].targets);
        targets.all(|target| {
            let lock = &self.locks[target.lock];
            let queue = lock.id.and_then(|id| world.queues.get(id));
            queue.is_some_and(|queue| queue.revision == lock.revision)
        })
    }
}
