//! The contract in the plainest code: vectors, linear scans, and every millisecond one by one.
//!
//! Nothing here is fast and nothing comes from the engine. This file has the state and the answer to a request for locks;
//! `settle` has the consequences of any event, `events` all other events, `ties` the ties of connections, `words` the commands, and
//! [`deadlock`](crate::deadlock) defines which waits can never end.

mod events;
mod settle;
pub mod ties;
pub mod words;

pub use ties::Tie;

use crate::deadlock::{self, Scene};
use crate::world::BEGIN_MS;
use dlock_commands::error::Error;
use dlock_engine::Refusal;
use dlock_engine::{Millis, Policy};
use std::collections::{BTreeMap, BTreeSet};

/// A limit without bound.
pub const SHARED: usize = usize::MAX;

#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The wall clock, which leases follow, and a clock that never steps, for durations.
    pub now: Millis,
    pub steady: Millis,
    /// The latest time of a token or a place: if the wall clock steps back, tokens and places do not.
    latest: Millis,
    pub policy: Policy,
    pub locks: BTreeMap<String, Lock>,
    /// The waiting requests, in order of arrival.
    pub waits: Vec<Wait>,
    /// The outcomes of requests that waited, until a test takes them.
    pub told: Vec<Told>,
    /// Connections that broke without the server noticing: no answer reaches them.
    pub cut: BTreeSet<u64>,
    /// The value of the last dump, for RESTORE.
    pub dumped: Option<Value>,
    pub unheard: Vec<Unheard>,
    /// The number of undelivered holds that stand because a later command touched them.
    pub spared: usize,
    /// When a request last blocked a connection.
    waited: BTreeMap<u64, Millis>,
    pub grants_made: u64,
    arrivals: u64,
    waits_made: u64,
    /// Whether anything has changed in this round of settlement.
    moved: bool,
}

/// The value at a key, and the waiters.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    /// Whether the key holds a value of another type.
    pub foreign: bool,
    pub holds: Vec<Hold>,
    /// The holder that waits for a stricter limit, ahead of the queue.
    pub upgrade: Option<Place>,
    pub queue: Vec<Place>,
    /// When the server removes the key, if a user has set a TTL and the module has not written to the lock since.
    pub ttl: Option<Millis>,
    /// The last value that the module wrote.
    written: Written,
}

/// The durable part of a lock: holds (but neither their ties nor whether they were touched), tickets, and whether a request is
/// queued.
#[derive(Debug, Clone, Default, PartialEq)]
struct Written {
    holds: Vec<Hold>,
    tickets: Vec<(u64, String, usize, usize, Option<Millis>)>,
    queued: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    pub owner: String,
    /// Stands for the token: the first grant is 1.
    pub grant: u64,
    pub since: Millis,
    pub holds: u32,
    pub deadline: Millis,
    pub limit: usize,
    /// The permits that it holds, of `limit`.
    pub permits: usize,
    pub tie: Option<Tie>,
    /// The connection that last took or entered it.
    pub client: u64,
    /// Whether a later command of its owner has touched it.
    pub touched: bool,
}

/// A new hold whose owner's connection was gone when it was granted.
#[derive(Debug, Clone)]
pub struct Unheard {
    pub key: String,
    pub owner: String,
    grant: u64,
    /// The owner's ticket, if it waited by one.
    ticket: Option<Place>,
}

/// An owner's place at a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub owner: String,
    pub limit: usize,
    pub permits: usize,
    pub since: Millis,
    pub arrival: u64,
    /// How long the place is kept as a ticket without a waiting request; none if it is no ticket.
    pub claim: Option<Millis>,
    /// Until when the ticket is kept, if no request waits on it.
    pub kept_until: Option<Millis>,
    /// The request that waits here.
    pub wait: Option<u64>,
}

/// A request that waits: at a place of each of its locks. A MACQUIRE waits only for locks that its owner does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    pub id: u64,
    pub asked: Request,
    pub until: Option<Millis>,
}

/// ACQUIRE, FAIRACQUIRE or MACQUIRE.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub client: u64,
    /// Whether it is a MACQUIRE. Any other has one key.
    pub many: bool,
    pub keys: Vec<String>,
    pub owner: String,
    pub lease: Millis,
    pub wait: Patience,
    pub holds: Option<u32>,
    pub limit: usize,
    pub permits: usize,
    /// FAIRACQUIRE: how long its place is kept without a waiting request.
    pub ticket: Option<Millis>,
    pub ephemeral: bool,
    /// AUTO: how long the server renews it.
    pub auto: Option<Millis>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Patience {
    None,
    For(Millis),
    Endless,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Granted {
        grant: u64,
        holds: u32,
    },
    /// All of them, in the order of the request.
    GrantedAll(Vec<u64>),
    Null,
    Refused(Error),
    Cancelled,
    Replaced,
    /// The request waits, and its connection is blocked.
    Waits(u64),
    Number(u64),
    Remaining(Vec<Option<u32>>),
    /// Grant, count, the milliseconds left, and the owner if the request named none.
    Held(u64, u32, Millis, Option<String>),
    Ok,
}

/// The answer to a request that waited.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub at: Millis,
    pub wait: Wait,
    pub answer: Answer,
}

/// The value at a key: what RENAME moves, and DUMP shows.
#[derive(Debug, Clone, Default)]
pub struct Value {
    foreign: bool,
    holds: Vec<Hold>,
    tickets: Vec<Place>,
}

/// How a request obtains a lock.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// Its owner holds it with an equal or stricter limit.
    Reenters,
    /// Its owner holds it with a weaker limit.
    Upgrades,
    Queues,
}

impl Request {
    fn waits(&self) -> bool {
        self.wait != Patience::None
    }
}

impl Hold {
    /// Returns the connection with which the hold ends.
    pub fn ephemeral(&self) -> Option<u64> {
        let tie = self.tie.filter(|tie| tie.ephemeral);
        tie.map(|tie| tie.client)
    }

    /// Returns true if the server renews the hold.
    pub fn auto(&self) -> bool {
        let auto = self.tie.and_then(|tie| tie.auto);
        auto.is_some_and(|auto| auto.renews())
    }

    /// Returns true if the request would raise the hold count beyond its maximum.
    fn overflows(&self, request: &Request) -> bool {
        request.holds.is_none() && self.holds == u32::MAX
    }
}

impl Lock {
    pub fn hold(&self, owner: &str) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.owner == owner)
    }

    /// Returns all places in the order in which they are served.
    pub fn in_order(&self) -> impl Iterator<Item = &Place> {
        self.upgrade.iter().chain(&self.queue)
    }

    pub fn place(&self, owner: &str) -> Option<&Place> {
        self.in_order().find(|place| place.owner == owner)
    }

    fn place_of(&self, wait: u64) -> Option<&Place> {
        self.in_order().find(|place| place.wait == Some(wait))
    }

    /// Removes the places that `keep` rejects.
    fn keep_places(&mut self, keep: impl Fn(&Place) -> bool) {
        self.upgrade = self.upgrade.take().filter(&keep);
        self.queue.retain(keep);
    }

    fn way(&self, owner: &str, limit: usize) -> Way {
        match self.hold(owner) {
            None => Way::Queues,
            Some(hold) if hold.limit <= limit => Way::Reenters,
            Some(_) => Way::Upgrades,
        }
    }

    /// Returns true if the granting rule allows it: the permits of the other holders and its own exceed neither this limit nor
    /// any of theirs.
    pub fn compatible(&self, owner: &str, limit: usize, permits: usize) -> bool {
        let others = || self.holds.iter().filter(|hold| hold.owner != owner);
        let all = others().map(|hold| hold.permits).sum::<usize>() + permits;
        others().next().is_none() || all <= limit && others().all(|other| all <= other.limit)
    }

    /// Returns true if a holder asks for the impossible: for more permits, or for a stricter limit with several.
    fn refuses(&self, request: &Request) -> bool {
        let way = self.way(&request.owner, request.limit);
        self.hold(&request.owner).is_some_and(|hold| match way {
            Way::Upgrades => hold.permits > 1,
            _ => request.permits > hold.permits,
        })
    }

    /// Returns true if a newcomer could have the lock now: no place is before it, and it is compatible.
    fn open(&self, request: &Request) -> bool {
        let Request { owner, limit, .. } = request;
        let first = self.in_order().next();
        let compatible = || self.compatible(owner, *limit, request.permits);
        match self.way(owner, *limit) {
            Way::Reenters => true,
            Way::Upgrades => compatible(),
            Way::Queues => first.is_none_or(|place| place.owner == *owner) && compatible(),
        }
    }

    /// Returns true if another owner waits for the upgrade that this one would need.
    fn upgrade_of_another(&self, owner: &str, limit: usize) -> bool {
        let other = self
            .upgrade
            .as_ref()
            .is_some_and(|place| place.owner != owner);
        other && self.way(owner, limit) == Way::Upgrades
    }

    pub fn places(&self) -> usize {
        self.in_order().count()
    }

    fn value_written(&self) -> Written {
        let untied = |hold: &Hold| Hold {
            tie: None,
            client: 0,
            touched: false,
            ..hold.clone()
        };
        let mut holds: Vec<Hold> = self.holds.iter().map(untied).collect();
        holds.sort_by(|one, other| one.owner.cmp(&other.owner));
        let tickets = self.queue.iter().filter(|place| place.claim.is_some());
        let ticket = |place: &Place| {
            let Place {
                arrival,
                owner,
                limit,
                permits,
                claim,
                ..
            } = place.clone();
            (arrival, owner, limit, permits, claim)
        };
        Written {
            holds,
            tickets: tickets.map(ticket).collect(),
            queued: self.in_order().next().is_some(),
        }
    }

    /// Returns true if the key exists.
    fn exists(&self) -> bool {
        let tickets = self.queue.iter().any(|place| place.claim.is_some());
        self.foreign || !self.holds.is_empty() || tickets
    }
}

impl Model {
    pub fn new(policy: Policy) -> Model {
        Model {
            now: BEGIN_MS,
            policy,
            ..Model::default()
        }
    }

    pub fn quarantined(&self) -> bool {
        self.steady < self.policy.quarantine_until.0
    }

    pub fn granting(&self) -> bool {
        self.policy.grants && !self.quarantined()
    }

    fn quarantine(&self) -> Error {
        Error::Refused(Refusal::Quarantine(
            self.policy.quarantine_until.0.saturating_sub(self.steady),
        ))
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_string()).or_default()
    }

    pub fn places(&self) -> usize {
        self.locks.values().map(Lock::places).sum()
    }

    /// Answers a request for one lock or for many.
    pub fn ask(&mut self, request: &Request) -> Answer {
        let Request { owner, limit, .. } = request;
        // The owner's places at the locks of a MACQUIRE count as removed.
        let seen = |mut lock: Lock| {
            lock.keep_places(|place| !request.many || place.owner != *owner);
            lock
        };
        let locks: Vec<Lock> = request
            .keys
            .iter()
            .map(|key| seen(self.lock(key).clone()))
            .collect();
        if locks.iter().any(|lock| lock.foreign) {
            return Answer::Refused(Error::Refused(Refusal::WrongType));
        }
        if !request.waits() && !self.older(request).is_empty() {
            return Answer::Null;
        }
        if locks.iter().any(|lock| lock.refuses(request)) {
            return Answer::Refused(Error::Argument("PERMITS", String::new()));
        }
        let reenters = |lock: &Lock| lock.way(owner, *limit) == Way::Reenters;
        let holds = locks.iter().any(|lock| lock.hold(owner).is_some());
        if self.quarantined() && (request.many && holds || locks.iter().all(reenters)) {
            return Answer::Refused(self.quarantine());
        }
        let withheld = |lock: &Lock| match lock.way(owner, *limit) {
            Way::Reenters => self.quarantined(),
            _ => !self.granting(),
        };
        let open = |lock: &&Lock| lock.open(request) && !withheld(lock);
        let bound = locks
            .iter()
            .filter(open)
            .find_map(|lock| self.bound(lock, request));
        if let Some(bound) = bound {
            return Answer::Refused(bound);
        }
        if locks.iter().all(|lock| open(&lock)) {
            return self.grant_now(request);
        }
        if !request.waits() {
            return self.not_now(request);
        }
        let has_place = !request.many && locks[0].place(owner).is_some();
        if !self.policy.grants && !has_place {
            return Answer::Refused(Error::Refused(Refusal::Draining));
        }
        if request.many && holds {
            return Answer::Refused(Error::Refused(Refusal::Holding));
        }
        if locks
            .iter()
            .any(|lock| lock.upgrade_of_another(owner, *limit))
        {
            return Answer::Refused(Error::Refused(Refusal::Deadlock(String::new())));
        }
        self.begin_to_wait(request)
    }

    /// Returns the owner's requests that wait at a place of one of these locks.
    fn older(&mut self, request: &Request) -> Vec<u64> {
        let mut older = Vec::new();
        for key in &request.keys {
            let place = self.lock(key).place(&request.owner).cloned();
            older.extend(
                place
                    .and_then(|place| place.wait)
                    .filter(|id| !older.contains(id)),
            );
        }
        older
    }

    /// Returns the limit that keeps a request from a lock that is free for it.
    fn bound(&self, lock: &Lock, request: &Request) -> Option<Error> {
        let full = lock.holds.len() >= self.policy.max_holders;
        match lock.hold(&request.owner) {
            None => full.then_some(Error::Refused(Refusal::Full("dlock.max-holders"))),
            Some(hold) => hold.overflows(request).then(overflow),
        }
    }

    /// Grants every lock at once.
    fn grant_now(&mut self, request: &Request) -> Answer {
        for id in self.older(request) {
            self.end_wait(id, Answer::Replaced);
        }
        for key in &request.keys {
            self.lock(key)
                .keep_places(|place| place.owner != request.owner);
        }
        let answer = self.take_all(request);
        self.settle();
        answer
    }

    /// Answers a request that does not wait and cannot be granted at once.
    fn not_now(&mut self, request: &Request) -> Answer {
        let (key, owner) = (&request.keys[0], &request.owner);
        if !request.many && self.poll(request) {
            return Answer::Null;
        }
        if !self.policy.grants {
            return Answer::Refused(Error::Refused(Refusal::Draining));
        }
        if self.quarantined() {
            return Answer::Refused(self.quarantine());
        }
        if request.ticket.is_none() || self.lock(key).hold(owner).is_some() {
            return Answer::Null;
        }
        let mut then = self.clone();
        let kept_until = request.ticket.map(|claim| self.steady + claim);
        let ticket = Place {
            claim: request.ticket,
            kept_until,
            ..then.last_place(request)
        };
        then.lock(key).queue.push(ticket);
        if let Some(cap) = self.exceeded(&then) {
            return Answer::Refused(Error::Refused(Refusal::Full(cap)));
        }
        *self = then;
        Answer::Null
    }

    /// Polls the owner's ticket, on which no request waits. Returns true if it has one.
    fn poll(&mut self, request: &Request) -> bool {
        let (steady, default) = (self.steady, self.policy.claim_window_ms);
        let queue = &mut self.lock(&request.keys[0]).queue;
        let Some(place) = queue.iter_mut().find(|place| place.owner == request.owner) else {
            return false;
        };
        (place.limit, place.permits) = (request.limit, request.permits);
        place.claim = request.ticket.or(place.claim);
        let window = place.claim.filter(|claim| *claim > 0).unwrap_or(default);
        place.kept_until = Some(steady + window);
        true
    }

    fn begin_to_wait(&mut self, request: &Request) -> Answer {
        let mut then = self.clone();
        let id = then.take_over(request);
        if let Some(cap) = self.exceeded(&then) {
            return Answer::Refused(Error::Refused(Refusal::Full(cap)));
        }
        if self.policy.deadlock_detection && deadlock::closes_a_circle(&then.scene(), id) {
            return Answer::Refused(Error::Refused(Refusal::Deadlock(String::new())));
        }
        *self = then;
        self.settle();
        // The request may have been answered in this event: then it did not wait.
        if let Some(at) = self.told.iter().position(|told| told.wait.id == id) {
            return self.told.remove(at).answer;
        }
        Answer::Waits(id)
    }

    /// Queues the request in place of its owner's older ones, at every lock where it must wait.
    fn take_over(&mut self, request: &Request) -> u64 {
        let place = self.locks[&request.keys[0]].place(&request.owner);
        let inherited = place.filter(|_| !request.many).cloned();
        for id in self.older(request) {
            self.end_wait(id, Answer::Replaced);
        }
        self.waits_made += 1;
        let id = self.waits_made;
        for key in &request.keys {
            let lock = self.lock(key);
            lock.keep_places(|place| place.owner != request.owner);
            let way = lock.way(&request.owner, request.limit);
            let mut place = match &inherited {
                Some(place) => place.clone(),
                None if way == Way::Upgrades => self.place_ahead(request),
                None => self.last_place(request),
            };
            (place.limit, place.permits) = (request.limit, request.permits);
            (place.wait, place.kept_until) = (Some(id), None);
            let lock = self.lock(key);
            if way == Way::Upgrades {
                lock.upgrade = Some(place);
                continue;
            }
            place.claim = request.ticket.or(place.claim);
            lock.queue.push(place);
            lock.queue.sort_by_key(|place| place.arrival);
        }
        let until = match request.wait {
            Patience::For(ms) => Some(self.steady + ms),
            _ => None,
        };
        let asked = request.clone();
        self.waits.push(Wait { id, asked, until });
        self.note_waiting(request.client);
        id
    }

    /// Returns a place behind all others.
    fn last_place(&mut self, request: &Request) -> Place {
        self.arrivals += 1;
        self.latest = self.latest.max(self.now);
        let arrival = self.arrivals;
        Place {
            arrival,
            ..self.place_ahead(request)
        }
    }

    /// Returns a place ahead of the queue: for an upgrade.
    fn place_ahead(&self, request: &Request) -> Place {
        Place {
            owner: request.owner.clone(),
            limit: request.limit,
            permits: request.permits,
            since: self.steady,
            arrival: 0,
            claim: None,
            kept_until: None,
            wait: None,
        }
    }

    /// Returns the cap that a request has exceeded by its own additions.
    fn exceeded(&self, then: &Model) -> Option<&'static str> {
        let grown = |before: usize, after: usize, most: usize| after > before && after > most;
        let queue = |model: &Model, key: &String| model.locks.get(key).map_or(0, Lock::places);
        let policy = &self.policy;
        if then
            .locks
            .keys()
            .any(|key| grown(queue(self, key), queue(then, key), policy.max_queue))
        {
            return Some("dlock.max-queue");
        }
        if grown(self.places(), then.places(), policy.max_places) {
            return Some("dlock.max-places");
        }
        let waits = (self.waits.len(), then.waits.len());
        grown(waits.0, waits.1, policy.max_waiters).then_some("dlock.max-waiters")
    }

    /// Returns the holders and the waiters: all that a deadlock depends on.
    pub fn scene(&self) -> Scene {
        let mut scene = Scene::default();
        for (key, lock) in &self.locks {
            scene
                .holds
                .extend(lock.holds.iter().map(|hold| deadlock::Hold {
                    key: key.clone(),
                    owner: hold.owner.clone(),
                    limit: hold.limit,
                    permits: hold.permits,
                }));
        }
        for wait in &self.waits {
            let mut waiting = deadlock::Wait::new(wait.id, &wait.asked.owner, wait.asked.many);
            for key in &wait.asked.keys {
                let mut places = self.locks[key].in_order();
                if let Some(rank) = places.position(|place| place.wait == Some(wait.id)) {
                    waiting.stand(key, rank, (wait.asked.limit, wait.asked.permits));
                }
            }
            scene.waits.push(waiting);
        }
        scene
    }
}

/// Returns the error for a hold count that cannot be raised.
fn overflow() -> Error {
    Error::Argument("the hold count", String::new())
}
