//! Who waits for whom: whether a wait could ever end.
//!
//! A wait is refused if it would still stand after every owner who can still act had given back all that it holds, and the
//! queues had been served. So the check plays that through, on the part of the world that the wait depends on: the
//! holders of the lock and the places before it, what those wait for, and so on. For mutexes what is left over is the circle in
//! the wait-for graph; a semaphore or a shared lock that will be free enough is no alarm.
//!
//! An owner *can act* if it waits for nothing, or if one of its known connections (one that took a hold, or that a hold is
//! tied to) is there and waits neither blocked nor, for this owner, by a channel. A polled ticket waits for nothing.

use super::acquire::Ask;
use super::line::{Line, Place, RequestId, UPGRADE};
use super::requests::{ById, Stand};
use super::{Engine, Keyspace, Limit, Name, NameRef, Now, Outcome};
use crate::error::{escaped, Error};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Steps of a circle that an error names.
const STEPS_NAMED: usize = 8;

/// Bytes of an owner or key that an error shows.
const BYTES_NAMED: usize = 64;

/// Locks that the periodic check looks at in one go.
const SUSPECTS_A_STEP: usize = 64;

/// Holders of a lock that are asked at once whether they wait. Where there are more the look itself does, which counts.
const HOLDERS_AT_ONCE: usize = 16;

/// The name that the request goes by that is not queued yet.
const ASKED: RequestId = 0;

/// The part of the world that a wait depends on.
struct Graph {
    locks: Vec<LockNode>,
    lock_at: HashMap<Name, usize>,
    owners: Vec<OwnerNode>,
    owner_at: HashMap<Rc<[u8]>, usize>,
    waits: Vec<WaitNode>,
    wait_at: ById<usize>,
    // The connection that would be blocked by the request that is asked for.
    asker: Option<u64>,
    steps_left: usize,
    // Whether an owner that waits is taken to be able to act, by a connection that may end.
    relied: bool,
}

struct LockNode {
    name: Name,
    // Only those who cannot act as far as is known.
    holders: Vec<(usize, Limit)>,
    // Up to which number of its queue requests for many locks have been looked at.
    explored: u64,
    // Whether there are any of these: else a place depends on the holders alone.
    entangled: bool,
}

struct OwnerNode {
    owner: Rc<[u8]>,
    // The connections that it waits by.
    by: Vec<u64>,
    // Where its waits are, in the order in which they were found.
    waits: Vec<usize>,
    acts: bool,
}

/// A waiting request, with the places it needs.
struct WaitNode {
    id: RequestId,
    owner: usize,
    targets: Vec<Target>,
    granted: bool,
}

#[derive(Clone, Copy)]
struct Target {
    lock: usize,
    number: u64,
    limit: Limit,
}

/// A wait as it stands in the queues.
struct Waiting {
    id: RequestId,
    client: u64,
    targets: Vec<(Name, u64, Limit)>,
}

/// What keeps a place from being granted.
enum Blocker {
    /// A holder that cannot act.
    Holder(usize),
    /// A place before it.
    Place(u64),
}

/// One step of a circle.
struct Step {
    id: RequestId,
    waiter: Rc<[u8]>,
    name: Name,
    blocker: Rc<[u8]>,
    queued: bool,
}

/// The look was given up: too much depends on this wait.
struct TooFar;

/// The error for a second holder that wants to upgrade: each would wait for the other to leave.
pub(super) fn two_upgrades(owner: &[u8], other: &[u8]) -> Error {
    Error::Deadlock(format!(
        "'{}' and '{}' hold the lock, and each waits for the other to leave it",
        escaped(owner, BYTES_NAMED),
        escaped(other, BYTES_NAMED)
    ))
}

impl Engine {
    /// Sees to it that a request that would wait at these places (none: at the end of the queue) can be granted some time.
    ///
    /// Errors: `Deadlock`, which names the circle.
    #[inline]
    pub(super) fn escape(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[(NameRef, Option<u64>)],
        ask: &Ask,
    ) -> Result<(), Error> {
        if !self.policy.deadlock_detection
            || !self.has_stake(keys, ask.owner)
            || self.depends_on_nobody(keys, wanted, ask.owner)
        {
            return Ok(());
        }
        self.look_for_circle(keys, wanted, ask)
    }

    /// Whether those who hold these locks wait for nothing themselves, which is mostly so: then there is no circle, however
    /// much else the owner waits for.
    fn depends_on_nobody(
        &self,
        keys: &mut impl Keyspace,
        wanted: &[(NameRef, Option<u64>)],
        owner: &[u8],
    ) -> bool {
        wanted.iter().all(|(name, _)| {
            // A place before this one that stands in other queues too depends on their locks.
            if self.lines.get(*name).is_some_and(|line| line.many > 0) {
                return false;
            }
            let mut free = true;
            keys.look(*name, &mut |lock| {
                let mut holds = lock.holds();
                let mut few = holds.by_ref().take(HOLDERS_AT_ONCE);
                free = few.all(|hold| hold.owner == owner || !self.requests.waits(hold.owner))
                    && holds.next().is_none();
            });
            free
        })
    }

    /// Whether anybody may wait for this owner, so that its wait could close a circle.
    fn has_stake(&self, keys: &mut impl Keyspace, owner: &[u8]) -> bool {
        let mut holds = |name: &Name| {
            let mut found = false;
            keys.look(name.lend(), &mut |lock| found = lock.hold(owner).is_some());
            found
        };
        self.stakes.has(owner)
            || self.requests.waits(owner)
            || self.stakes.crowded().any(&mut holds)
    }

    #[inline(never)]
    fn look_for_circle(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[(NameRef, Option<u64>)],
        ask: &Ask,
    ) -> Result<(), Error> {
        let targets = wanted
            .iter()
            .map(|(name, number)| {
                let line = self.lines.get(*name);
                let place = line.and_then(|line| line.place((*number)?));
                let limit = place.map_or(ask.limit, |place| place.limit.min(ask.limit));
                let kept = self.lines.name(*name).unwrap_or_else(|| name.keep());
                (kept, number.unwrap_or(u64::MAX), limit)
            })
            .collect();
        let waiting = Waiting {
            id: ASKED,
            client: ask.client,
            targets,
        };
        let asker = Some(ask.client).filter(|_| ask.channel.is_none());
        match self.circle(keys, Rc::from(ask.owner), waiting, asker) {
            Ok(None) => Ok(()),
            Ok(Some(circle)) => {
                self.counters.deadlocks += 1;
                let mut readable = |name: &Name| keys.readable(name.lend());
                Err(Error::Deadlock(text(&circle, &mut readable)))
            }
            Err(TooFar) => {
                self.counters.deadlocks_unknown += 1;
                Ok(())
            }
        }
    }

    /// Looks for circles that have closed other than by a request: a lock that came by RENAME or RESTORE, a setting, the end of
    /// a connection by which an owner could have acted. The youngest request of a circle is told `Deadlock`. To be called
    /// now and then, when changes are possible.
    pub fn break_circles(&mut self, keys: &mut impl Keyspace, now: Now) {
        if !self.policy.deadlock_detection {
            self.suspects.clear();
            return;
        }
        for _ in 0..SUSPECTS_A_STEP {
            let Some(name) = self.suspects.pop_first() else {
                break;
            };
            while let Some((victim, mut circle)) = self.standing_circle(keys, &name) {
                let first = circle.iter().position(|step| step.id == victim);
                circle.rotate_left(first.unwrap_or(0));
                self.counters.deadlocks += 1;
                // Whose keys these are is not known here: only its own is named to the one that is told.
                let own: BTreeSet<Name> = match self.requests.get(victim) {
                    Some(Stand::One(name, _)) => BTreeSet::from([name.clone()]),
                    Some(Stand::Many(many)) => {
                        many.locks.iter().map(|(name, _)| name.clone()).collect()
                    }
                    None => BTreeSet::new(),
                };
                let error = Error::Deadlock(text(&circle, &mut |name| own.contains(name)));
                self.dismiss(victim, now, Outcome::Refused(error));
                for name in own {
                    self.settle(keys, now, name.lend());
                }
                self.follow_up(keys, now);
            }
        }
        let relying = std::mem::take(&mut self.relying);
        let lines = &self.lines;
        self.suspects.extend(
            relying
                .into_iter()
                .filter(|name| lines.get(name.lend()).is_some()),
        );
    }

    /// Whether circles are to be looked for (see [`Engine::break_circles`]).
    pub fn suspicious(&self) -> bool {
        !self.suspects.is_empty() || !self.relying.is_empty()
    }

    /// Has every queue looked at for circles: the rules have changed.
    pub fn suspect_all(&mut self) {
        self.suspects.extend(self.lines.names(None));
    }

    /// Has the queues looked at that this request stands in.
    pub(super) fn suspect_stand(&mut self, id: RequestId) {
        match self.requests.get(id) {
            None => {}
            Some(Stand::One(name, _)) => drop(self.suspects.insert(name.clone())),
            Some(Stand::Many(many)) => {
                let names = many.locks.iter().map(|(name, _)| name.clone());
                self.suspects.extend(names);
            }
        }
    }

    /// A circle that the queue of this lock is caught in, and its youngest request. If the last place can be granted some
    /// time then all before it can.
    fn standing_circle(
        &mut self,
        keys: &mut impl Keyspace,
        name: &Name,
    ) -> Option<(RequestId, Vec<Step>)> {
        let line = self.lines.get(name.lend())?;
        let (_, last) = line
            .in_order()
            .filter(|(_, place)| !place.requests.is_empty())
            .last()?;
        let (owner, id) = (last.owner.clone(), last.requests.first()?.id);
        let waiting = self
            .waits_of(&owner)
            .into_iter()
            .find(|wait| wait.id == id)?;
        match self.circle(keys, owner, waiting, None) {
            Ok(circle) => {
                let circle = circle?;
                let youngest = circle.iter().map(|step| step.id).max()?;
                Some((youngest, circle))
            }
            Err(TooFar) => {
                self.counters.deadlocks_unknown += 1;
                None
            }
        }
    }

    /// The circle that keeps this wait from ever ending, if one does.
    fn circle(
        &mut self,
        keys: &mut impl Keyspace,
        owner: Rc<[u8]>,
        waiting: Waiting,
        asker: Option<u64>,
    ) -> Result<Option<Vec<Step>>, TooFar> {
        let mut graph = Graph {
            locks: Vec::new(),
            lock_at: HashMap::new(),
            owners: Vec::new(),
            owner_at: HashMap::new(),
            waits: Vec::new(),
            wait_at: ById::default(),
            asker,
            steps_left: self.policy.deadlock_max_steps,
            relied: false,
        };
        let id = waiting.id;
        let at = graph.owner(self, keys, &owner, Some(waiting.client));
        graph.wait(waiting, at);
        // What is found on the way is looked at in its turn.
        let mut next = 0;
        while next < graph.waits.len() {
            graph.explore(self, keys, next)?;
            next += 1;
        }
        graph.reduce(self)?;
        let asked = graph.wait_at.get(&id).copied().unwrap_or(0);
        if graph.waits.get(asked).map_or(true, |wait| wait.granted) {
            if graph.relied {
                // Looked at again as long as that is so: the server does not tell of every connection that ends.
                let names = graph
                    .waits
                    .get(asked)
                    .into_iter()
                    .flat_map(|wait| &wait.targets);
                let names = names.filter_map(|target| graph.locks.get(target.lock));
                self.relying.extend(names.map(|lock| lock.name.clone()));
            }
            return Ok(None);
        }
        graph.trace(self, asked).map(Some)
    }

    /// The waiting requests of an owner.
    fn waits_of(&self, owner: &[u8]) -> Vec<Waiting> {
        let of = |id: RequestId| {
            let (client, targets) = match self.requests.get(id)? {
                Stand::One(name, number) => {
                    let place = self.lines.get(name.lend())?.place(*number)?;
                    let own = *place.owner == *owner;
                    let request = place.requests.iter().find(|request| request.id == id);
                    let client = request.filter(|_| own)?.client;
                    (client, vec![(name.clone(), *number, place.limit)])
                }
                Stand::Many(many) => {
                    if *many.owner != *owner {
                        return None;
                    }
                    let target = |(name, number): &(Name, Option<u64>)| {
                        Some((name.clone(), (*number)?, many.limit))
                    };
                    (many.client, many.locks.iter().filter_map(target).collect())
                }
            };
            Some(Waiting {
                id,
                client,
                targets,
            })
        };
        self.requests.of_owner(owner).filter_map(of).collect()
    }
}

impl Graph {
    fn step(&mut self) -> Result<(), TooFar> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(TooFar)?;
        Ok(())
    }

    /// The node of an owner; one that is new brings all its waits with it. `by`: a connection that it is about to wait by.
    fn owner(
        &mut self,
        engine: &Engine,
        keys: &mut impl Keyspace,
        owner: &[u8],
        by: Option<u64>,
    ) -> usize {
        if let Some(at) = self.owner_at.get(owner) {
            return *at;
        }
        let waits = engine.waits_of(owner);
        let node = OwnerNode {
            owner: Rc::from(owner),
            by: waits.iter().map(|wait| wait.client).chain(by).collect(),
            waits: Vec::with_capacity(waits.len()),
            acts: false,
        };
        let mut tied = engine.sessions.clients_of(owner);
        let by_session = tied.any(|client| self.is_free(engine, keys, &node, client));
        let waits_for_nothing = node.by.is_empty();
        self.relied |= by_session && !waits_for_nothing;
        let acts = by_session || waits_for_nothing;
        let at = self.owners.len();
        self.owner_at.insert(node.owner.clone(), at);
        self.owners.push(OwnerNode { acts, ..node });
        for wait in waits {
            self.wait(wait, at);
        }
        at
    }

    /// Whether the owner can act by this connection.
    fn is_free(
        &self,
        engine: &Engine,
        keys: &mut impl Keyspace,
        node: &OwnerNode,
        client: u64,
    ) -> bool {
        client != 0
            && self.asker != Some(client)
            && !node.by.contains(&client)
            && !engine.requests.blocks(client)
            && keys.connected(client)
    }

    fn wait(&mut self, waiting: Waiting, owner: usize) {
        let Slot::Vacant(slot) = self.wait_at.entry(waiting.id) else {
            return;
        };
        let at = *slot.insert(self.waits.len());
        if let Some(node) = self.owners.get_mut(owner) {
            node.waits.push(at);
        }
        let targets = waiting
            .targets
            .into_iter()
            .map(|(name, number, limit)| Target {
                lock: self.lock(name),
                number,
                limit,
            })
            .collect();
        self.waits.push(WaitNode {
            id: waiting.id,
            owner,
            targets,
            granted: false,
        });
    }

    fn lock(&mut self, name: Name) -> usize {
        let fresh = self.locks.len();
        let at = *self.lock_at.entry(name.clone()).or_insert(fresh);
        if at == fresh {
            self.locks.push(LockNode {
                name,
                holders: Vec::new(),
                explored: u64::MAX,
                entangled: true,
            });
        }
        at
    }

    /// Finds out what a wait depends on.
    fn explore(
        &mut self,
        engine: &Engine,
        keys: &mut impl Keyspace,
        wait: usize,
    ) -> Result<(), TooFar> {
        let targets = match self.waits.get(wait) {
            Some(wait) => wait.targets.clone(),
            None => return Ok(()),
        };
        for target in targets {
            self.step()?;
            let Some(node) = self.locks.get_mut(target.lock) else {
                continue;
            };
            let name = node.name.clone();
            let fresh = node.explored == u64::MAX;
            let from = if fresh { 0 } else { node.explored };
            node.explored = from.max(target.number);
            if fresh {
                self.explore_holders(engine, keys, target.lock, &name)?;
            }
            let line = engine.lines.get(name.lend()).filter(|line| line.many > 0);
            if let Some(node) = self.locks.get_mut(target.lock) {
                node.entangled = line.is_some();
            }
            let places = line.into_iter().flat_map(Line::in_order);
            for (_, place) in places
                .skip_while(|(number, _)| *number < from)
                .take_while(|(number, _)| *number < target.number)
            {
                self.step()?;
                if place.only_many() {
                    self.owner(engine, keys, &place.owner, None);
                }
            }
        }
        Ok(())
    }

    fn explore_holders(
        &mut self,
        engine: &Engine,
        keys: &mut impl Keyspace,
        at: usize,
        name: &Name,
    ) -> Result<(), TooFar> {
        // Most holders wait for nothing: these give the lock back, and are not even noted.
        let (mut seen, most) = (0, self.steps_left);
        let mut waiting: Vec<(Rc<[u8]>, Limit, u64)> = Vec::new();
        let asks = |owner: &[u8]| self.owner_at.contains_key(owner);
        keys.look(name.lend(), &mut |lock| {
            for hold in lock.holds().take(most + 1) {
                seen += 1;
                if asks(hold.owner) || engine.requests.waits(hold.owner) {
                    waiting.push((Rc::from(hold.owner), hold.limit, hold.client));
                }
            }
        });
        self.steps_left = most.checked_sub(seen).ok_or(TooFar)?;
        for (owner, limit, client) in waiting {
            let index = self.owner(engine, keys, &owner, None);
            let Some(node) = self.owners.get(index) else {
                continue;
            };
            let free = !node.acts && self.is_free(engine, keys, node, client);
            self.relied |= free;
            let acts = node.acts || free;
            if let Some(node) = self.owners.get_mut(index) {
                node.acts = acts;
            }
            if let Some(lock) = self.locks.get_mut(at) {
                lock.holders.push((index, limit));
            }
        }
        Ok(())
    }

    /// Plays through that all who can act give back what they hold, and the queues are served, until nothing moves any more.
    fn reduce(&mut self, engine: &Engine) -> Result<(), TooFar> {
        loop {
            let mut moved = false;
            // What was found last is what the others depend on: a chain resolves in one pass.
            for at in (0..self.waits.len()).rev() {
                let Some(wait) = self.waits.get(at).filter(|wait| !wait.granted) else {
                    continue;
                };
                let (owner, targets) = (wait.owner, wait.targets.clone());
                let mut passes = true;
                for target in &targets {
                    if self.blocker(engine, owner, target)?.is_some() {
                        passes = false;
                        break;
                    }
                }
                if passes {
                    moved = true;
                    if let Some(wait) = self.waits.get_mut(at) {
                        wait.granted = true;
                    }
                    if let Some(node) = self.owners.get_mut(owner) {
                        node.acts = true;
                    }
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// What keeps this place from being granted as things stand, if anything does.
    fn blocker(
        &mut self,
        engine: &Engine,
        owner: usize,
        target: &Target,
    ) -> Result<Option<Blocker>, TooFar> {
        self.step()?;
        if let Some(holder) = self.incompatible(target.lock, owner, target.limit) {
            return Ok(Some(Blocker::Holder(holder)));
        }
        let Some(node) = self.locks.get(target.lock) else {
            return Ok(None);
        };
        let free = node.holders.iter().all(|(holder, _)| self.acts(*holder));
        if free && !node.entangled {
            return Ok(None);
        }
        let Some(line) = engine.lines.get(node.name.lend()) else {
            return Ok(None);
        };
        let before = |(number, _): &(u64, &Place)| *number < target.number;
        for (number, place) in line.in_order().take_while(before) {
            self.step()?;
            let stands = if place.requests.is_empty() {
                false
            } else if place.only_many() {
                let waits = |id: RequestId| {
                    let wait = self.wait_at.get(&id).and_then(|at| self.waits.get(*at));
                    wait.is_some_and(|wait| !wait.granted)
                };
                place.requests.iter().any(|request| waits(request.id))
            } else {
                let owner = self.owner_at.get(&place.owner).copied();
                self.incompatible(target.lock, owner.unwrap_or(usize::MAX), place.limit)
                    .is_some()
            };
            if stands {
                return Ok(Some(Blocker::Place(number)));
            }
        }
        Ok(None)
    }

    fn acts(&self, owner: usize) -> bool {
        self.owners.get(owner).map_or(true, |node| node.acts)
    }

    /// A holder that cannot act and that the owner may not hold beside, by the granting rule.
    fn incompatible(&self, lock: usize, owner: usize, limit: Limit) -> Option<usize> {
        let node = self.locks.get(lock)?;
        let others = || {
            let stuck = |(holder, _): &&(usize, Limit)| *holder != owner && !self.acts(*holder);
            node.holders.iter().filter(stuck)
        };
        let count = others().count();
        let strictest = others().map(|(_, limit)| *limit).chain([limit]).min()?;
        let (first, _) = others().next()?;
        (!strictest.allows(count + 1)).then_some(*first)
    }

    /// Follows what blocks what until an owner comes up a second time.
    fn trace(&mut self, engine: &Engine, asked: usize) -> Result<Vec<Step>, TooFar> {
        let mut steps: Vec<Step> = Vec::new();
        let mut seen: HashMap<Rc<[u8]>, usize> = HashMap::new();
        let mut at = match self.waits.get(asked) {
            Some(wait) => (wait.id, wait.owner, wait.targets.clone()),
            None => return Ok(steps),
        };
        loop {
            let (id, owner, targets) = at;
            let waiter = match self.owners.get(owner) {
                Some(node) => node.owner.clone(),
                None => return Ok(steps),
            };
            if let Some(first) = seen.insert(waiter.clone(), steps.len()) {
                return Ok(steps.split_off(first));
            }
            let mut found = None;
            for target in &targets {
                if let Some(blocker) = self.blocker(engine, owner, target)? {
                    found = Some((*target, blocker));
                    break;
                }
            }
            let Some((target, blocker)) = found else {
                return Ok(steps);
            };
            let name = match self.locks.get(target.lock) {
                Some(node) => node.name.clone(),
                None => return Ok(steps),
            };
            let line = engine.lines.get(name.lend());
            let (blocker, queued, next) = match blocker {
                Blocker::Holder(holder) => {
                    let node = self.owners.get(holder);
                    let own = node.into_iter().flat_map(|node| &node.waits);
                    let mut own = own.filter_map(|at| self.waits.get(*at));
                    let wait = own.find(|wait| !wait.granted);
                    let next = wait.map(|wait| (wait.id, holder, wait.targets.clone()));
                    (holder, false, next)
                }
                Blocker::Place(number) => {
                    let place = line.and_then(|line| line.place(number));
                    let Some((place, request)) =
                        place.and_then(|place| Some((place, place.requests.first()?)))
                    else {
                        return Ok(steps);
                    };
                    let holder = self.owner_of(&place.owner);
                    let known = self
                        .wait_at
                        .get(&request.id)
                        .and_then(|at| self.waits.get(*at));
                    let targets = match known {
                        Some(wait) => wait.targets.clone(),
                        None => vec![Target {
                            number,
                            limit: place.limit,
                            ..target
                        }],
                    };
                    (holder, true, Some((request.id, holder, targets)))
                }
            };
            steps.push(Step {
                id,
                waiter,
                name,
                blocker: match self.owners.get(blocker) {
                    Some(node) => node.owner.clone(),
                    None => return Ok(steps),
                },
                queued,
            });
            at = match next {
                Some(next) => next,
                None => return Ok(steps),
            };
        }
    }

    /// The node of an owner that has come up in a queue only.
    fn owner_of(&mut self, owner: &Rc<[u8]>) -> usize {
        let fresh = self.owners.len();
        let at = *self.owner_at.entry(owner.clone()).or_insert(fresh);
        if at == fresh {
            self.owners.push(OwnerNode {
                owner: owner.clone(),
                by: Vec::new(),
                waits: Vec::new(),
                acts: false,
            });
        }
        at
    }
}

/// A circle as an error names it.
fn text(circle: &[Step], readable: &mut dyn FnMut(&Name) -> bool) -> String {
    let named = circle.iter().take(STEPS_NAMED).map(|step| {
        let key = if readable(&step.name) {
            format!("'{}'", escaped(&step.name.key, BYTES_NAMED))
        } else {
            "a key".to_string()
        };
        format!(
            "'{}' waits for {key} {} '{}'",
            escaped(&step.waiter, BYTES_NAMED),
            if step.queued { "behind" } else { "held by" },
            escaped(&step.blocker, BYTES_NAMED)
        )
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match circle.len().saturating_sub(STEPS_NAMED) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}

// The waiting upgrade stands before every place.
const _: () = assert!(UPGRADE == 0);
