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
use super::index::ByNumber;
use super::line::{Line, Place, RequestId, UPGRADE};
use super::requests::Stand;
use super::stakes::Stake;
use super::{Engine, Keyspace, Limit, Name, NameRef, Now, Outcome};
use crate::error::{escaped, Error};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// Steps of a circle that an error names.
const STEPS_NAMED: usize = 8;

/// Bytes of an owner or key that an error shows.
const BYTES_NAMED: usize = 64;

/// Locks that the periodic check looks at in one go.
const SUSPECTS_A_STEP: usize = 64;

/// The name that the request goes by that is not queued yet.
const ASKED: RequestId = 0;

/// The place of the request that is not queued yet.
const LAST: u64 = u64::MAX;

/// Holders of a lock that are looked at without counting.
const FEW_HOLDERS: usize = 16;

/// The part of the world that a wait depends on. Owners go by the hash of their names.
struct Graph<'e> {
    locks: Vec<LockNode<'e>>,
    // By database and address of the name: a lock with a queue has its name in one place.
    lock_at: HashMap<(u32, *const u8), usize>,
    owners: Vec<OwnerNode>,
    owner_at: ByNumber<usize>,
    waits: Vec<WaitNode>,
    wait_at: ByNumber<usize>,
    // The connection that would be blocked by the request that is asked for.
    asker: Option<u64>,
    steps_left: usize,
    // Whether an owner that waits is taken to be able to act, by a connection that may end.
    relied: bool,
}

struct LockNode<'e> {
    name: Name,
    // Looked up once: a look-up by name is a good part of what a lock costs here.
    line: Option<&'e Line>,
    // Only those who wait for something themselves.
    holders: Vec<(usize, Limit)>,
    // Up to which number of its queue requests for many locks have been looked at; none: its holders have not been, either.
    explored: Option<u64>,
}

struct OwnerNode {
    // Its waits stand together.
    waits: Range<usize>,
    acts: bool,
}

/// A waiting request, with the places it needs.
struct WaitNode {
    id: RequestId,
    client: u64,
    owner: usize,
    // Mostly one, which needs no room of its own then.
    target: Option<Target>,
    others: Vec<Target>,
    // It waits no longer.
    granted: bool,
    // It was not granted, but left: an upgrade whose hold was given back.
    left: bool,
    // Its owner could act before it was granted.
    late: bool,
}

impl WaitNode {
    fn targets(&self) -> impl Iterator<Item = &Target> {
        self.target.iter().chain(&self.others)
    }

    fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        self.target.iter_mut().chain(&mut self.others)
    }

    fn nth(&self, at: usize) -> Option<Target> {
        match at {
            0 => self.target,
            at => self.others.get(at - 1).copied(),
        }
    }
}

#[derive(Clone, Copy)]
struct Target {
    lock: usize,
    number: u64,
    limit: Limit,
}

/// The request that is asked for, or looked at.
struct Asked<'a> {
    id: RequestId,
    owner: u64,
    // The owner's name, if the request does not stand in any queue yet.
    fresh: Option<&'a [u8]>,
    client: u64,
    // The places it would take: the lock, the number, the limit.
    places: &'a [(Name, u64, Limit)],
}

/// What keeps a place from being granted.
enum Blocker {
    /// A holder that cannot act.
    Holder(usize),
    /// A place before it.
    Place(u64),
}

/// One step of a circle. Its owners are looked up when it is named: a circle may be long, and few of its steps are.
struct Step {
    id: RequestId,
    name: Name,
    blocker: RequestId,
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
        if !self.policy.deadlock_detection {
            return Ok(());
        }
        // By a ticket that nobody was there for it may stand before those that it waits for: elsewhere, or here if their
        // hold came by RENAME.
        let absent = |(name, number): &(NameRef, Option<u64>)| {
            let place = number.and_then(|number| self.lines.get(*name)?.place(number));
            place.is_some_and(|place| place.requests.is_empty())
        };
        let joins = wanted.len() > 1 && wanted.iter().any(|(_, number)| number.is_some());
        let returns = joins || wanted.iter().any(absent);
        // It may block the connection by which another owner could have acted.
        if !(returns || self.suspicious() || self.has_stake(keys, ask.owner)) {
            return Ok(());
        }
        self.look_for_circle(keys, wanted, ask)
    }

    /// Whether anybody may wait for this owner, so that its wait could close a circle.
    fn has_stake(&self, keys: &mut impl Keyspace, owner: &[u8]) -> bool {
        let hash = self.requests.hash(owner);
        let mut holds = |name: &Name| {
            let mut found = false;
            keys.look(name.lend(), &mut |lock| found = lock.hold(owner).is_some());
            found
        };
        self.stakes.has(hash) || self.requests.waits(hash) || self.stakes.crowded().any(&mut holds)
    }

    #[inline(never)]
    fn look_for_circle(
        &mut self,
        keys: &mut impl Keyspace,
        wanted: &[(NameRef, Option<u64>)],
        ask: &Ask,
    ) -> Result<(), Error> {
        let place = |(name, number): &(NameRef, Option<u64>)| {
            let line = self.lines.get(*name);
            let place = line.and_then(|line| line.place((*number)?));
            let limit = place.map_or(ask.limit, |place| place.limit.min(ask.limit));
            let kept = self.lines.name(*name).unwrap_or_else(|| name.keep());
            let mut held = false;
            keys.look(*name, &mut |lock| held = lock.hold(ask.owner).is_some());
            // A holder whose re-entry has to wait (in quarantine) stands before all others.
            let last = if held { UPGRADE + 1 } else { LAST };
            (kept, number.unwrap_or(last), limit)
        };
        let places: Vec<_> = wanted.iter().map(place).collect();
        let asked = Asked {
            id: ASKED,
            owner: self.requests.hash(ask.owner),
            fresh: Some(ask.owner),
            client: ask.client,
            places: &places,
        };
        let asker = Some(ask.client).filter(|_| ask.channel.is_none());
        match self.circle(keys, &asked, asker, &mut 0) {
            Ok(None) => Ok(()),
            Ok(Some(circle)) => {
                self.counters.deadlocks += 1;
                let mut readable = |name: &Name| keys.readable(name.lend());
                let owner = |id| self.named(id, Some(ask.owner));
                Err(Error::Deadlock(text(&circle, owner, &mut readable)))
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
        // Those that rely on a connection are looked at again as long as they do; all of them in turn, if they are many.
        if self.suspects.len() < SUSPECTS_A_STEP {
            let relying = std::mem::take(&mut self.relying);
            let queued = |name: &Name| self.lines.get(name.lend()).is_some();
            self.suspects.extend(relying.into_iter().filter(queued));
        }
        // All of them together may take as many steps as the check of one request.
        let mut steps = 0;
        for _ in 0..SUSPECTS_A_STEP {
            if steps >= self.policy.deadlock_max_steps {
                break;
            }
            let Some(name) = self.suspects.pop_first() else {
                break;
            };
            while let Some((victim, mut circle)) = self.standing_circle(keys, &name, &mut steps) {
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
                let owner = |id| self.named(id, None);
                let error = Error::Deadlock(text(&circle, owner, &mut |name| own.contains(name)));
                self.dismiss(victim, now, Outcome::Refused(error));
                for name in own {
                    self.settle(keys, now, name.lend());
                }
                self.follow_up(keys, now);
            }
        }
    }

    /// Whether circles are to be looked for (see [`Engine::break_circles`]).
    pub fn suspicious(&self) -> bool {
        !self.suspects.is_empty() || !self.relying.is_empty()
    }

    /// Has every queue looked at for circles: the rules have changed.
    pub fn suspect_all(&mut self) {
        self.suspects.extend(self.lines.names(None));
    }

    /// Has the queue of a lock looked at that was granted to an owner who waits for others as well: those who stand in it
    /// depend on these waits from now on.
    pub(super) fn suspect_holder(&mut self, name: NameRef, owner: &[u8]) {
        let queued = self.lines.get(name).is_some_and(|line| !line.is_empty());
        if queued && self.requests.waits(self.requests.hash(owner)) {
            self.suspects.insert(name.keep());
        }
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
        steps: &mut usize,
    ) -> Option<(RequestId, Vec<Step>)> {
        let line = self.lines.get(name.lend())?;
        let present = |(_, place): &(u64, &Place)| !place.requests.is_empty();
        let (number, last) = line.in_order().filter(present).last()?;
        let request = last.requests.first()?;
        let places = [(name.clone(), number, last.limit)];
        let asked = Asked {
            id: request.id,
            owner: self.requests.hash(&last.owner),
            fresh: None,
            client: request.client,
            places: &places,
        };
        match self.circle(keys, &asked, None, steps) {
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

    /// The circle that keeps this wait from ever ending, if one does. The steps that it took to find out are added up.
    fn circle(
        &mut self,
        keys: &mut impl Keyspace,
        asked: &Asked,
        asker: Option<u64>,
        steps: &mut usize,
    ) -> Result<Option<Vec<Step>>, TooFar> {
        if self.ends_plainly(keys, asked) {
            *steps += asked.places.len();
            return Ok(None);
        }
        let mut graph = Graph {
            locks: Vec::new(),
            lock_at: HashMap::new(),
            owners: Vec::new(),
            owner_at: ByNumber::default(),
            waits: Vec::new(),
            wait_at: ByNumber::default(),
            asker,
            steps_left: self.policy.deadlock_max_steps,
            relied: false,
        };
        graph.owner(self, keys, asked.owner, Some(asked));
        let played = graph.play(self, keys);
        *steps += self.policy.deadlock_max_steps - graph.steps_left;
        played?;
        let at = graph.wait_at.get(&asked.id).copied().unwrap_or(0);
        if graph.waits.get(at).map_or(true, |wait| wait.granted) {
            if graph.relied {
                // Looked at again as long as that is so: the server does not tell of every connection that ends.
                let names = asked.places.iter().map(|(name, ..)| name.clone());
                self.relying.extend(names);
            }
            return Ok(None);
        }
        graph.trace(self, at).map(Some)
    }

    /// Whether those who hold what is waited for wait for nothing, and nobody stands there for other locks as well. Then
    /// it does not matter what else the owner waits for, which may be a lot: by a channel it can wait for thousands.
    fn ends_plainly(&self, keys: &mut impl Keyspace, asked: &Asked) -> bool {
        // Who asks for a lock that it holds stands before the others; but a hold may also have come to a place behind them.
        let first = |owner: u64| asked.fresh.is_some() && owner == asked.owner;
        let waits = |owner: u64| !first(owner) && self.requests.waits(owner);
        asked.places.iter().all(|(name, ..)| {
            let line = self.lines.get(name.lend());
            if line.is_some_and(|line| line.many > 0) {
                return false;
            }
            if let Some(stakes) = line.and_then(|line| line.stakes.each()) {
                return !stakes.iter().any(|stake| waits(stake.owner));
            }
            let mut plain = true;
            keys.look(name.lend(), &mut |lock| {
                let mut owners = lock.holds().map(|hold| self.requests.hash(hold.owner));
                // A crowd of holders is looked through once, and that is counted.
                plain = lock.holders() <= FEW_HOLDERS && !owners.any(waits);
            });
            plain
        })
    }

    /// Who asks in a request of a circle; `fresh` is the owner of one that stands in no queue yet.
    fn named(&self, id: RequestId, fresh: Option<&[u8]>) -> Rc<[u8]> {
        match fresh {
            Some(owner) if id == ASKED => Rc::from(owner),
            _ => self.owner_of(id).unwrap_or_default(),
        }
    }

    /// Who asks in a waiting request.
    fn owner_of(&self, id: RequestId) -> Option<Rc<[u8]>> {
        match self.requests.get(id)? {
            Stand::One(name, number) => {
                let place = self.lines.get(name.lend())?.place(*number)?;
                Some(place.owner.clone())
            }
            Stand::Many(many) => Some(many.owner.clone()),
        }
    }
}

impl<'e> Graph<'e> {
    /// Finds out what the waits depend on, and plays it through. What is found on the way is looked at in its turn.
    fn play(&mut self, engine: &'e Engine, keys: &mut impl Keyspace) -> Result<(), TooFar> {
        let mut next = 0;
        while next < self.waits.len() {
            self.explore(engine, keys, next)?;
            next += 1;
        }
        self.reduce(engine)
    }

    fn step(&mut self) -> Result<(), TooFar> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(TooFar)?;
        Ok(())
    }

    /// The node of an owner; one that is new brings all its waits with it, and the one that is asked for.
    fn owner(
        &mut self,
        engine: &'e Engine,
        keys: &mut impl Keyspace,
        owner: u64,
        asked: Option<&Asked>,
    ) -> usize {
        if let Some(at) = self.owner_at.get(&owner) {
            return *at;
        }
        let at = self.owners.len();
        self.owner_at.insert(owner, at);
        let first = self.waits.len();
        let fresh = asked.and_then(|asked| asked.fresh);
        if let Some(asked) = asked.filter(|_| fresh.is_some()) {
            let places = asked.places.iter();
            let targets: Vec<Target> = places
                .map(|(name, number, limit)| Target {
                    lock: self.lock(engine, name),
                    number: *number,
                    limit: *limit,
                })
                .collect();
            self.wait(at, asked.id, asked.client, targets);
        }
        for id in engine.requests.of_owner(owner) {
            self.wait_of(engine, at, id);
        }
        self.join(first);
        let waits = first..self.waits.len();
        // Of several waits one may end, and the owner could act by its connection; or time runs out for that one.
        self.relied |= waits.len() > 1;
        self.owners.push(OwnerNode {
            acts: waits.is_empty(),
            waits,
        });
        if !engine.sessions.is_empty() {
            let id = engine.requests.of_owner(owner).next();
            let name = fresh.map(Rc::from);
            let name = name.or_else(|| engine.owner_of(id?));
            let clients = name
                .iter()
                .flat_map(|name| engine.sessions.clients_of(name));
            for client in clients {
                self.can_act_by(engine, keys, at, client);
            }
        }
        at
    }

    /// The request that is asked for is the first of its owner's: those whose place it joins need that with its limit.
    fn join(&mut self, first: usize) {
        let Some((asked, others)) = self.waits.get_mut(first..).and_then(<[_]>::split_first_mut)
        else {
            return;
        };
        for own in asked.targets().filter(|_| asked.id == ASKED) {
            for wait in others.iter_mut() {
                let here =
                    |target: &&mut Target| (target.lock, target.number) == (own.lock, own.number);
                if let Some(target) = wait.targets_mut().find(here) {
                    target.limit = target.limit.min(own.limit);
                }
            }
        }
    }

    /// Adds a request that waits.
    fn wait_of(&mut self, engine: &'e Engine, owner: usize, id: RequestId) {
        match engine.requests.get(id) {
            None => {}
            Some(Stand::One(name, number)) => {
                let lock = self.lock(engine, name);
                let line = self.line(lock);
                let Some(place) = line.and_then(|line| line.place(*number)) else {
                    return;
                };
                let request = place.requests.iter().find(|request| request.id == id);
                let client = request.map_or(0, |request| request.client);
                let target = Target {
                    lock,
                    number: *number,
                    limit: place.limit,
                };
                self.wait(owner, id, client, [target]);
            }
            Some(Stand::Many(many)) => {
                let target = |(name, number): &(Name, Option<u64>)| {
                    let number = (*number)?;
                    let lock = self.lock(engine, name);
                    let line = self.line(lock);
                    let place = line.and_then(|line| line.place(number));
                    let limit = place.map_or(many.limit, |place| place.limit.min(many.limit));
                    Some(Target {
                        lock,
                        number,
                        limit,
                    })
                };
                let targets: Vec<Target> = many.locks.iter().filter_map(target).collect();
                self.wait(owner, id, many.client, targets);
            }
        }
    }

    fn wait(
        &mut self,
        owner: usize,
        id: RequestId,
        client: u64,
        targets: impl IntoIterator<Item = Target>,
    ) {
        let mut targets = targets.into_iter();
        let target = targets.next();
        let others = targets.collect();
        self.wait_at.insert(id, self.waits.len());
        self.waits.push(WaitNode {
            id,
            client,
            owner,
            target,
            others,
            granted: false,
            left: false,
            late: false,
        });
    }

    fn lock(&mut self, engine: &'e Engine, name: &Name) -> usize {
        let fresh = self.locks.len();
        let known = self.lock_at.entry((name.db, name.key.as_ptr()));
        let at = *known.or_insert(fresh);
        if at == fresh {
            self.locks.push(LockNode {
                line: engine.lines.get(name.lend()),
                name: name.clone(),
                holders: Vec::new(),
                explored: None,
            });
        }
        at
    }

    fn line(&self, lock: usize) -> Option<&'e Line> {
        self.locks.get(lock)?.line
    }

    /// Notes that an owner can act if it can by this connection: it is there, is not blocked, and the owner does not wait
    /// by it.
    fn can_act_by(
        &mut self,
        engine: &'e Engine,
        keys: &mut impl Keyspace,
        owner: usize,
        client: u64,
    ) {
        let Some(node) = self.owners.get_mut(owner) else {
            return;
        };
        if node.acts || client == 0 || self.asker == Some(client) {
            return;
        }
        let waits = self.waits.get(node.waits.clone()).unwrap_or_default();
        let by_it = waits.iter().any(|wait| wait.client == client);
        if !by_it && !engine.requests.blocks(client) && keys.connected(client) {
            node.acts = true;
            self.relied = true;
        }
    }

    /// Finds out what a wait depends on.
    fn explore(
        &mut self,
        engine: &'e Engine,
        keys: &mut impl Keyspace,
        wait: usize,
    ) -> Result<(), TooFar> {
        let mut nth = 0;
        while let Some(target) = self.waits.get(wait).and_then(|wait| wait.nth(nth)) {
            nth += 1;
            self.step()?;
            let Some(node) = self.locks.get_mut(target.lock) else {
                continue;
            };
            let from = node.explored;
            node.explored = Some(from.unwrap_or(0).max(target.number));
            let line = node.line;
            if from.is_none() {
                self.explore_holders(engine, keys, target.lock, line)?;
            }
            let from = from.unwrap_or(0);
            let places = line.filter(|line| line.many > 0);
            for (_, place) in places
                .into_iter()
                .flat_map(Line::in_order)
                .skip_while(|(number, _)| *number < from)
                .take_while(|(number, _)| *number < target.number)
            {
                self.step()?;
                if place.only_many() {
                    let owner = engine.requests.hash(&place.owner);
                    self.owner(engine, keys, owner, None);
                }
            }
        }
        Ok(())
    }

    /// Notes the holders of a lock that wait for something themselves: the others give it back.
    fn explore_holders(
        &mut self,
        engine: &'e Engine,
        keys: &mut impl Keyspace,
        at: usize,
        line: Option<&Line>,
    ) -> Result<(), TooFar> {
        let Some(lock) = self.locks.get(at) else {
            return Ok(());
        };
        // A lock with a queue has put its holders down, unless there are many.
        let put = line.and_then(|line| line.stakes.each());
        let mut found = Vec::new();
        let stakes = match put {
            Some(stakes) => stakes,
            None => {
                let most = self.steps_left;
                let hash = |owner: &[u8]| engine.requests.hash(owner);
                keys.look(lock.name.lend(), &mut |lock| {
                    let holds = lock.holds().take(most + 1);
                    found.extend(holds.map(|hold| Stake::of(&hold, hash)));
                });
                found.as_slice()
            }
        };
        self.steps_left = self.steps_left.checked_sub(stakes.len()).ok_or(TooFar)?;
        for stake in stakes {
            let known = self.owner_at.contains_key(&stake.owner);
            if !known && !engine.requests.waits(stake.owner) {
                continue;
            }
            let owner = self.owner(engine, keys, stake.owner, None);
            self.can_act_by(engine, keys, owner, stake.client);
            if let Some(lock) = self.locks.get_mut(at) {
                lock.holders.push((owner, stake.limit));
            }
        }
        Ok(())
    }

    /// Plays through that all who can act give back what they hold, and the queues are served, until nothing moves any more.
    fn reduce(&mut self, engine: &'e Engine) -> Result<(), TooFar> {
        loop {
            let mut moved = false;
            // What was found last is what the others depend on: a chain resolves in one pass.
            for at in (0..self.waits.len()).rev() {
                if self.waits.get(at).map_or(true, |wait| wait.granted) {
                    continue;
                }
                let stands = self.obstacle(engine, at)?.is_some();
                let left = stands && self.gives_up(at);
                if stands && !left {
                    continue;
                }
                moved = true;
                if let Some(wait) = self.waits.get_mut(at) {
                    wait.granted = true;
                    wait.left = left;
                    if let Some(node) = self.owners.get_mut(wait.owner) {
                        wait.late = std::mem::replace(&mut node.acts, true);
                    }
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Whether a wait ends as its owner can act: an upgrade goes with the hold that is given back, unless another request at
    /// its place was granted, and took that with it.
    fn gives_up(&self, wait: usize) -> bool {
        let Some(wait) = self.waits.get(wait).filter(|wait| self.acts(wait.owner)) else {
            return false;
        };
        let mut own = wait.targets().filter(|target| target.number == UPGRADE);
        own.any(|own| {
            let here = |target: &Target| (target.lock, target.number) == (own.lock, UPGRADE);
            let waits = self.owners.get(wait.owner).map(|node| node.waits.clone());
            let mut waits = waits
                .and_then(|waits| self.waits.get(waits))
                .into_iter()
                .flatten();
            !waits.any(|other| other.granted && !other.left && other.targets().any(here))
        })
    }

    /// What keeps a wait from being granted as things stand, if anything does: the first place that is blocked, and by what.
    fn obstacle(
        &mut self,
        engine: &'e Engine,
        wait: usize,
    ) -> Result<Option<(Target, Blocker)>, TooFar> {
        let mut nth = 0;
        while let Some((owner, target)) = self
            .waits
            .get(wait)
            .and_then(|wait| Some((wait.owner, wait.nth(nth)?)))
        {
            nth += 1;
            if let Some(blocker) = self.blocker(engine, owner, target)? {
                return Ok(Some((target, blocker)));
            }
        }
        Ok(None)
    }

    /// What keeps this place from being granted as things stand, if anything does.
    fn blocker(
        &mut self,
        engine: &'e Engine,
        owner: usize,
        target: Target,
    ) -> Result<Option<Blocker>, TooFar> {
        self.step()?;
        if let Some(holder) = self.incompatible(target.lock, owner, target.limit) {
            return Ok(Some(Blocker::Holder(holder)));
        }
        let Some(node) = self.locks.get(target.lock) else {
            return Ok(None);
        };
        let free = node.holders.iter().all(|(holder, _)| self.acts(*holder));
        let Some(line) = node.line else {
            return Ok(None);
        };
        // The request that is asked for is in no queue yet, but may come to stand before this place.
        let asked = self.node(ASKED).and_then(|wait| {
            let here = |own: &&Target| own.lock == target.lock && own.number < target.number;
            Some((wait, *wait.targets().find(here)?))
        });
        if free && line.many == 0 && asked.is_none() {
            return Ok(None);
        }
        if let Some((_, own)) = asked.filter(|(wait, _)| !wait.granted) {
            let place = line.place(own.number);
            if place.map_or(true, |place| place.requests.is_empty()) {
                return Ok(Some(Blocker::Place(own.number)));
            }
        }
        let before = |(number, _): &(u64, &Place)| *number < target.number;
        let (mut steps, mut found) = (0, None);
        for (number, place) in line.in_order().take_while(before) {
            steps += 1;
            let joined = asked.filter(|(_, own)| own.number == number);
            let limit = joined.map_or(place.limit, |(_, own)| own.limit);
            let joins = joined.map(|(wait, _)| wait);
            let alone = joins.is_some_and(|wait| wait.others.is_empty());
            // An upgrade goes with the hold that its owner gives back.
            let ends = || {
                let owner = engine.requests.hash(&place.owner);
                number == UPGRADE && self.acts_by_hash(owner)
            };
            let stands = if place.requests.is_empty() || ends() {
                false
            } else if place.only_many() && !alone {
                // The first of them that is granted takes the place with it, and the last one that leaves.
                let waits = || {
                    let ids = place.requests.iter().map(|request| self.node(request.id));
                    ids.chain(joins.map(Some))
                };
                let over = |wait: Option<&WaitNode>| wait.map_or(true, |wait| wait.granted);
                let served =
                    |wait: Option<&WaitNode>| over(wait) && wait.map_or(true, |wait| !wait.left);
                !waits().any(served) && !waits().all(over) && !self.served_late(engine, line, place)
            } else {
                let owner = self.owner_at.get(&engine.requests.hash(&place.owner));
                let owner = owner.copied().unwrap_or(usize::MAX);
                self.incompatible(target.lock, owner, limit).is_some()
            };
            if stands {
                found = Some(Blocker::Place(number));
                break;
            }
        }
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(TooFar)?;
        Ok(found)
    }

    /// Whether a place goes with another request of its owner, which counts on the hold: as that was given back before, the
    /// request has come to share the place.
    fn served_late(&self, engine: &'e Engine, line: &Line, place: &Place) -> bool {
        if line.entering.is_empty() {
            return false;
        }
        let owner = self.owner_at.get(&engine.requests.hash(&place.owner));
        let waits = owner.and_then(|at| self.waits.get(self.owners.get(*at)?.waits.clone()));
        let shares = |wait: &WaitNode| wait.late && !wait.left && line.entering.contains(&wait.id);
        waits.into_iter().flatten().any(shares)
    }

    fn node(&self, id: RequestId) -> Option<&WaitNode> {
        self.waits.get(*self.wait_at.get(&id)?)
    }

    fn acts_by_hash(&self, owner: u64) -> bool {
        let at = self.owner_at.get(&owner);
        at.map_or(true, |at| self.acts(*at))
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

    /// Follows what blocks what until a wait comes up a second time. Not an owner: what another of its waits stands in the
    /// way of is no part of this circle.
    fn trace(&mut self, engine: &'e Engine, asked: usize) -> Result<Vec<Step>, TooFar> {
        let mut steps: Vec<Step> = Vec::new();
        let mut seen: ByNumber<usize> = ByNumber::default();
        let mut at = asked;
        loop {
            let Some(wait) = self.waits.get(at) else {
                return Ok(steps);
            };
            let id = wait.id;
            if let Some(first) = seen.insert(id, steps.len()) {
                return Ok(steps.split_off(first));
            }
            let Some((target, blocker)) = self.obstacle(engine, at)? else {
                return Ok(steps);
            };
            let Some(name) = self.locks.get(target.lock).map(|lock| lock.name.clone()) else {
                return Ok(steps);
            };
            let queued = matches!(blocker, Blocker::Place(_));
            let next = match blocker {
                Blocker::Holder(holder) => {
                    let waits = self.owners.get(holder).map(|node| node.waits.clone());
                    let stuck = |at: &usize| self.waits.get(*at).is_some_and(|wait| !wait.granted);
                    waits.into_iter().flatten().find(stuck)
                }
                Blocker::Place(number) => self.wait_at_place(engine, target.lock, number),
            };
            let Some((next, blocker)) = next.and_then(|at| Some((at, self.waits.get(at)?.id)))
            else {
                return Ok(steps);
            };
            steps.push(Step {
                id,
                name,
                blocker,
                queued,
            });
            at = next;
        }
    }

    /// The first wait of a place, which may have come up only now. With nobody there it is the place of the one that is
    /// asked for.
    fn wait_at_place(&mut self, engine: &'e Engine, lock: usize, number: u64) -> Option<usize> {
        let present = self
            .line(lock)
            .and_then(|line| line.place(number))
            .and_then(|place| Some((place, place.requests.first()?)));
        let Some((place, request)) = present else {
            return self.wait_at.get(&ASKED).copied();
        };
        let id = request.id;
        if let Some(at) = self.wait_at.get(&id) {
            return Some(*at);
        }
        let hash = engine.requests.hash(&place.owner);
        let owner = match self.owner_at.get(&hash) {
            Some(owner) => *owner,
            None => {
                self.owners.push(OwnerNode {
                    waits: 0..0,
                    acts: false,
                });
                self.owners.len() - 1
            }
        };
        self.wait_of(engine, owner, id);
        self.wait_at.get(&id).copied()
    }
}

/// A circle as an error names it.
fn text(
    circle: &[Step],
    owner: impl Fn(RequestId) -> Rc<[u8]>,
    readable: &mut dyn FnMut(&Name) -> bool,
) -> String {
    let named = circle.iter().take(STEPS_NAMED).map(|step| {
        let key = if readable(&step.name) {
            format!("'{}'", escaped(&step.name.key, BYTES_NAMED))
        } else {
            "a key".to_string()
        };
        format!(
            "'{}' waits for {key} {} '{}'",
            escaped(&owner(step.id), BYTES_NAMED),
            if step.queued { "behind" } else { "held by" },
            escaped(&owner(step.blocker), BYTES_NAMED)
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
