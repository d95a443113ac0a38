//! What the engine must do, written from the promises and as plainly as can be: vectors, linear scans, and every
//! millisecond looked at.

use crate::engine::Millis;
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet};

mod many;

/// No bound.
pub const SHARED: usize = usize::MAX;

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub now: Millis,
    pub grants: bool,
    pub quarantine_until: Millis,
    pub claim_window: Millis,
    pub max_hold: Millis,
    pub max_queue: usize,
    pub max_places: usize,
    pub max_waiters: usize,
    pub locks: BTreeMap<String, Lock>,
    /// The requests for many locks that wait.
    pub manys: Vec<Many>,
    /// Connections that nothing reaches any more.
    pub cut: BTreeSet<u64>,
    /// Connections that have ended.
    pub ended: BTreeSet<u64>,
    /// What was told to whom since it was last read.
    pub told: Vec<Told>,
    pub taken_back: Vec<(String, String, u64, u32)>,
    pub grants_made: u64,
    pub arrivals: i64,
    pub waits_made: u64,
    /// Whether waits that could never end are refused.
    pub detection: bool,
    /// What to do where the definition of a deadlock leaves it open.
    pub refuses: bool,
    /// How many waits were looked at for that, and how many of them it leaves open.
    pub verdicts: [usize; 2],
    /// Counts whatever happens in a settlement.
    pub moves: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Lock {
    pub foreign: bool,
    pub holds: Vec<Hold>,
    pub upgrade: Option<Place>,
    pub queue: Vec<Place>,
}

#[derive(Debug, Clone)]
pub struct Hold {
    pub owner: String,
    /// Stands for the token: the first grant of all is 1.
    pub grant: u64,
    pub since: Millis,
    pub holds: u32,
    pub deadline: Millis,
    pub limit: usize,
    /// The connection that last took or entered it.
    pub client: u64,
    /// The connection that it ends with.
    pub session: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Place {
    pub owner: String,
    pub limit: usize,
    pub since: Millis,
    pub arrival: i64,
    /// It is a ticket, kept so long while nobody is there for it.
    pub claim: Option<Millis>,
    /// Nobody is there for it; it is kept until then.
    pub kept_until: Option<Millis>,
    pub waits: Vec<Wait>,
}

#[derive(Debug, Clone)]
pub struct Wait {
    pub id: u64,
    pub client: u64,
    pub lease: Millis,
    pub holds: Option<u32>,
    pub until: Option<Millis>,
    pub session: bool,
    /// It waits by this channel, and blocks nobody.
    pub channel: Option<String>,
    /// It is the part of a request for many locks, which is granted by itself nowhere.
    pub many: bool,
}

/// A request for many locks that waits. It has a part at a place of each lock that the owner does not hold as it asks for.
#[derive(Debug, Clone)]
pub struct Many {
    pub wait: Wait,
    pub owner: String,
    pub keys: Vec<String>,
    pub limit: usize,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub client: u64,
    pub key: String,
    pub owner: String,
    pub lease: Millis,
    /// None: not at all; some of none: without bound.
    pub wait: Option<Option<Millis>>,
    pub holds: Option<u32>,
    pub limit: usize,
    pub ticket: Option<Millis>,
    pub session: bool,
    pub channel: Option<String>,
}

/// What a request is answered, at once or later.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Granted {
        grant: u64,
        holds: u32,
    },
    /// One of many locks after the other, in the order of the request.
    GrantedAll(Vec<u64>),
    Null,
    Cancelled,
    Refused(Error),
    Waits(u64),
    /// It waits by its channel, with so many places before it.
    Noted(usize),
}

/// An answer to a request that waited.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub at: Millis,
    pub wait: u64,
    pub channel: Option<String>,
    pub answer: Answer,
}

impl Place {
    fn new(owner: &str, limit: usize, since: Millis, arrival: i64) -> Place {
        Place {
            owner: owner.to_string(),
            limit,
            since,
            arrival,
            claim: None,
            kept_until: None,
            waits: Vec::new(),
        }
    }

    /// Whether all who wait here want other locks as well.
    fn only_many(&self) -> bool {
        self.waits.iter().all(|wait| wait.many)
    }
}

impl Lock {
    pub fn hold(&self, owner: &str) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.owner == owner)
    }

    fn hold_mut(&mut self, owner: &str) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner)
    }

    /// All places as they are served: the waiting upgrade first.
    pub fn in_order(&self) -> impl Iterator<Item = &Place> {
        self.upgrade.iter().chain(&self.queue)
    }

    fn in_order_mut(&mut self) -> impl Iterator<Item = &mut Place> {
        self.upgrade.iter_mut().chain(&mut self.queue)
    }

    /// The rule of granting.
    pub fn compatible(&self, owner: &str, limit: usize) -> bool {
        let others: Vec<&Hold> = self
            .holds
            .iter()
            .filter(|hold| hold.owner != owner)
            .collect();
        let count = others.len() + 1;
        others.is_empty() || (count <= limit && others.iter().all(|hold| count <= hold.limit))
    }

    pub fn places(&self) -> usize {
        self.queue.len() + usize::from(self.upgrade.is_some())
    }

    /// Whether a key is there.
    fn stands(&self) -> bool {
        self.foreign
            || !self.holds.is_empty()
            || self.queue.iter().any(|place| place.claim.is_some())
    }
}

impl Model {
    pub fn quarantined(&self) -> bool {
        self.now < self.quarantine_until
    }

    fn granting(&self) -> bool {
        self.grants && !self.quarantined()
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_string()).or_default()
    }

    /// All that wait for one lock, and the parts of those that wait for many.
    fn parts(&self) -> impl Iterator<Item = &Wait> {
        let places = self.locks.values().flat_map(Lock::in_order);
        places.flat_map(|place| &place.waits)
    }

    /// All requests that wait.
    pub fn waits(&self) -> impl Iterator<Item = &Wait> {
        let many = self.manys.iter().map(|many| &many.wait);
        self.parts().filter(|wait| !wait.many).chain(many)
    }

    /// How many requests wait by a channel, or by a blocked connection.
    fn waiting(&self, by_channel: bool) -> usize {
        self.waits()
            .filter(|wait| wait.channel.is_some() == by_channel)
            .count()
    }

    pub fn places(&self) -> usize {
        self.locks.values().map(Lock::places).sum()
    }

    pub fn acquire(&mut self, request: &Request) -> Answer {
        let (granting, quarantined, grants) = (self.granting(), self.quarantined(), self.grants);
        let (key, owner) = (request.key.clone(), request.owner.clone());
        let lock = self.lock(&key);
        if lock.foreign {
            return Answer::Refused(Error::WrongType);
        }
        let held = lock.hold(&owner).map(|hold| hold.limit);
        let compatible = lock.compatible(&owner, request.limit);
        if held.is_some_and(|limit| limit > request.limit) {
            if granting && compatible {
                return self.grant(request);
            }
            if !grants {
                return Answer::Refused(Error::Draining);
            }
            if request.wait.is_none() {
                return if quarantined {
                    Answer::Refused(Error::Quarantine)
                } else {
                    Answer::Null
                };
            }
            return self.wait_for_upgrade(request);
        }
        if held.is_some() && !quarantined {
            return self.grant(request);
        }
        if !grants {
            return Answer::Refused(Error::Draining);
        }
        if lock.places() == 0 && compatible && !quarantined {
            return self.grant(request);
        }
        let known = lock.queue.iter().any(|place| place.owner == owner);
        if request.wait.is_none() && quarantined {
            return Answer::Refused(Error::Quarantine);
        }
        if request.wait.is_none() && request.ticket.is_none() && !known {
            return Answer::Null;
        }
        if let Some(cap) = self.cap(request, known) {
            return Answer::Refused(Error::Full(cap));
        }
        if self.never_ends(request, &[]) {
            return Answer::Refused(Error::Deadlock(String::new()));
        }
        let place = self.stand(&key, &owner, request.limit);
        if held.is_none() && request.ticket.is_some() {
            place.claim = request.ticket;
        }
        self.wait_at(request, false)
    }

    /// The owner's place in the queue, made if it is not there: for a holder, whose re-entry has to wait, before all others.
    fn stand(&mut self, key: &str, owner: &str, limit: usize) -> &mut Place {
        self.arrivals += 1;
        let (arrival, now) = (self.arrivals, self.now);
        let lock = self.lock(key);
        if lock.queue.iter().all(|place| place.owner != owner) {
            // Before all others: also before tickets that are older, and come by RENAME later.
            let front = lock.queue.first().map_or(0, |place| place.arrival.min(0));
            let arrival = match lock.hold(owner) {
                Some(_) => front - 1,
                None => arrival,
            };
            let place = Place::new(owner, limit, now, arrival);
            lock.queue.push(place);
            lock.queue.sort_by_key(|place| place.arrival);
        }
        let mut queue = lock.queue.iter_mut();
        let place = queue.find(|place| place.owner == owner);
        let place = place.expect("it was put there");
        place.limit = place.limit.min(limit);
        place
    }

    /// The place of the holder that waits for a stricter limit. It is nobody else's.
    fn stand_to_upgrade(&mut self, key: &str, owner: &str, limit: usize) -> &mut Place {
        let fresh = Place::new(owner, limit, self.now, 0);
        let place = self.lock(key).upgrade.get_or_insert(fresh);
        place.limit = place.limit.min(limit);
        place
    }

    fn wait_for_upgrade(&mut self, request: &Request) -> Answer {
        let other = self.lock(&request.key).upgrade.clone();
        if other
            .as_ref()
            .is_some_and(|place| place.owner != request.owner)
        {
            return Answer::Refused(Error::Deadlock(String::new()));
        }
        if let Some(cap) = self.cap(request, other.is_some()) {
            return Answer::Refused(Error::Full(cap));
        }
        if self.never_ends(request, &[]) {
            return Answer::Refused(Error::Deadlock(String::new()));
        }
        self.stand_to_upgrade(&request.key, &request.owner, request.limit);
        self.wait_at(request, true)
    }

    /// The cap that this request would exceed.
    fn cap(&mut self, request: &Request, known: bool) -> Option<&'static str> {
        if !known && self.lock(&request.key).places() >= self.max_queue {
            return Some("dlock.max-queue");
        }
        if !known && self.places() >= self.max_places {
            return Some("dlock.max-places");
        }
        if request.channel.is_some() {
            return (self.waiting(true) >= self.max_places).then_some("dlock.max-places");
        }
        (request.wait.is_some() && self.waiting(false) >= self.max_waiters)
            .then_some("dlock.max-waiters")
    }

    fn wait(&mut self, request: &Request) -> Wait {
        self.waits_made += 1;
        Wait {
            id: self.waits_made,
            client: request.client,
            lease: request.lease,
            holds: request.holds,
            until: request.wait.flatten().map(|ms| self.now + ms),
            session: request.session,
            channel: request.channel.clone(),
            many: false,
        }
    }

    fn wait_at(&mut self, request: &Request, upgrade: bool) -> Answer {
        let wait = self.wait(request);
        let id = wait.id;
        let lock = self.lock(&request.key);
        let place = match upgrade {
            true => lock.upgrade.as_mut(),
            false => lock
                .queue
                .iter_mut()
                .find(|place| place.owner == request.owner),
        };
        let place = place.expect("the place is there");
        place.kept_until = None;
        place.waits.push(wait);
        self.settle();
        if let Some(answer) = self.answer(id) {
            return answer;
        }
        if request.channel.is_some() {
            let mut queue = self.lock(&request.key).queue.iter();
            let before = queue.position(|place| place.owner == request.owner);
            return Answer::Noted(before.filter(|_| !upgrade).unwrap_or(0));
        }
        if request.wait.is_some() {
            return Answer::Waits(id);
        }
        self.depart(|wait| wait.id == id);
        Answer::Null
    }

    /// Takes back what a request was told in the event in which it was made.
    fn answer(&mut self, id: u64) -> Option<Answer> {
        let at = self.told.iter().position(|told| told.wait == id)?;
        Some(self.told.remove(at).answer)
    }

    fn grant(&mut self, request: &Request) -> Answer {
        let Request {
            key,
            owner,
            lease,
            holds,
            limit,
            ..
        } = request;
        let answer = self.take(key, owner, *limit, *lease, *holds, request.client);
        self.tie(key, owner, request.client, request.session);
        self.settle();
        answer
    }

    /// Makes the owner a holder, or enters it once more.
    fn take(
        &mut self,
        key: &str,
        owner: &str,
        limit: usize,
        lease: Millis,
        holds: Option<u32>,
        client: u64,
    ) -> Answer {
        let (now, max_hold) = (self.now, self.max_hold);
        let bounded = |since: Millis, at: Millis| {
            if max_hold == 0 {
                at
            } else {
                at.min(since + max_hold)
            }
        };
        let fresh = self.grants_made + 1;
        let lock = self.lock(key);
        let before = lock.hold(owner).cloned();
        let count = match (holds, before.as_ref().map_or(0, |hold| hold.holds)) {
            (Some(least), before) => before.max(least),
            (None, before) => before + 1,
        };
        let deadline = before
            .as_ref()
            .map_or(0, |hold| hold.deadline)
            .max(now + lease);
        let owner = owner.to_string();
        let hold = match before.clone() {
            Some(hold) if hold.limit <= limit => {
                let deadline = bounded(hold.since, deadline);
                // A repetition that changes nothing is not remembered.
                let same = (hold.holds, hold.deadline) == (count, deadline);
                Hold {
                    holds: count,
                    deadline,
                    client: if same { hold.client } else { client },
                    ..hold
                }
            }
            _ => {
                let deadline = bounded(now, deadline);
                Hold {
                    owner: owner.clone(),
                    grant: fresh,
                    since: now,
                    holds: count,
                    deadline,
                    limit,
                    client,
                    // An upgrade ends with the same connection as what it takes the place of.
                    session: before.and_then(|hold| hold.session),
                }
            }
        };
        lock.holds.retain(|hold| hold.owner != owner);
        let grant = hold.grant;
        lock.holds.push(hold);
        self.grants_made = self.grants_made.max(grant);
        Answer::Granted {
            grant,
            holds: count,
        }
    }

    /// The owner's hold belongs to the last connection that said SESSION.
    fn tie(&mut self, key: &str, owner: &str, client: u64, session: bool) {
        if let Some(hold) = self.lock(key).hold_mut(owner).filter(|_| session) {
            hold.session = Some(client);
        }
    }

    /// Brings all locks up to date.
    pub fn settle(&mut self) {
        loop {
            let before = self.moves;
            self.serve();
            self.take_back();
            if self.moves == before {
                return;
            }
        }
    }

    /// Serves all queues until nothing moves.
    fn serve(&mut self) {
        let keys: Vec<String> = self.locks.keys().cloned().collect();
        loop {
            let before = self.moves;
            for key in &keys {
                self.settle_one(key);
            }
            self.queue_late();
            self.serve_many();
            if self.moves == before {
                return;
            }
        }
    }

    /// Takes back what was granted to connections that are gone.
    fn take_back(&mut self) {
        for (key, owner, grant, added) in std::mem::take(&mut self.taken_back) {
            self.moves += 1;
            let lock = self.lock(&key);
            if let Some(hold) = lock.hold_mut(&owner).filter(|hold| hold.grant == grant) {
                hold.holds -= added.min(hold.holds);
            }
            lock.holds.retain(|hold| hold.holds > 0);
        }
    }

    fn settle_one(&mut self, key: &str) {
        let (now, granting) = (self.now, self.granting());
        let (window, resumed) = (self.claim_window, now.max(self.quarantine_until));
        let lock = self.lock(key);
        lock.holds.retain(|hold| hold.deadline > now);
        lock.queue.retain_mut(|place| {
            let claim = place.claim.unwrap_or(0);
            let over = place.kept_until.is_some_and(|until| until <= now);
            // Polls are refused while nothing is granted: nobody could keep a place by asking.
            if over && claim > 0 && !granting {
                place.kept_until = Some(resumed + claim.max(window));
                return true;
            }
            !over
        });
        if lock.foreign {
            let gone: Vec<Place> = lock.queue.drain(..).chain(lock.upgrade.take()).collect();
            gone.iter()
                .for_each(|place| self.refuse(place, Error::WrongType));
            return;
        }
        if let Some(place) = lock.upgrade.clone() {
            if lock.hold(&place.owner).is_none() {
                lock.upgrade = None;
                self.refuse(&place, Error::NotHeld);
            } else if granting && !place.only_many() && lock.compatible(&place.owner, place.limit) {
                lock.upgrade = None;
                self.grant_place(key, &place);
            } else {
                return;
            }
        }
        loop {
            let lock = self.lock(key);
            let Some(head) = lock.queue.first().cloned() else {
                return;
            };
            let compatible = lock.compatible(&head.owner, head.limit);
            if head.waits.is_empty() || head.only_many() || !granting || !compatible {
                return;
            }
            lock.queue.remove(0);
            self.grant_place(key, &head);
        }
    }

    /// Grants the lock to a place. Who wants others as well finds it held by its owner from now on.
    fn grant_place(&mut self, key: &str, place: &Place) {
        self.moves += 1;
        for wait in place.waits.iter().filter(|wait| !wait.many) {
            let answer = self.take_for(wait, key, &place.owner, place.limit);
            self.tell(wait, answer);
        }
    }

    /// Grants a lock to who has waited for it.
    fn take_for(&mut self, wait: &Wait, key: &str, owner: &str, limit: usize) -> Answer {
        let before = self.lock(key).hold(owner).map_or(0, |hold| hold.holds);
        let answer = self.take(key, owner, limit, wait.lease, wait.holds, wait.client);
        self.tie(key, owner, wait.client, wait.session);
        let Answer::Granted { grant, holds } = answer else {
            unreachable!("take grants")
        };
        // A message that nobody hears takes nothing back.
        if wait.channel.is_none() && self.cut.contains(&wait.client) {
            let part = (key.to_string(), owner.to_string(), grant, holds - before);
            self.taken_back.push(part);
        }
        answer
    }

    fn refuse(&mut self, place: &Place, error: Error) {
        self.dissolve(place, Answer::Refused(error));
    }

    /// Answers everyone at a place that is gone. A request for many locks leaves the others.
    fn dissolve(&mut self, place: &Place, answer: Answer) {
        for wait in &place.waits {
            self.tell(wait, answer.clone());
            self.leave(|other| other.id == wait.id);
        }
    }

    fn tell(&mut self, wait: &Wait, answer: Answer) {
        self.moves += 1;
        self.told.push(Told {
            at: self.now,
            wait: wait.id,
            channel: wait.channel.clone(),
            answer,
        });
    }

    /// Those who are chosen wait no longer.
    fn depart(&mut self, chosen: impl Fn(&Wait) -> bool) {
        self.leave(chosen);
        self.settle();
    }

    /// Takes those who are chosen out of all places.
    fn leave(&mut self, chosen: impl Fn(&Wait) -> bool) {
        let now = self.now;
        self.manys.retain(|many| !chosen(&many.wait));
        for lock in self.locks.values_mut() {
            for place in lock.in_order_mut() {
                let before = place.waits.len();
                place.waits.retain(|wait| !chosen(wait));
                if place.waits.is_empty() && before > 0 {
                    place.kept_until = Some(now + place.claim.unwrap_or(0));
                }
            }
            lock.upgrade = lock.upgrade.take().filter(|place| !place.waits.is_empty());
        }
    }

    /// A request is told that its wait could never end.
    pub fn break_off(&mut self, id: u64) {
        let wait = self.waits().find(|wait| wait.id == id).cloned();
        let wait = wait.expect("it waits");
        self.tell(&wait, Answer::Refused(Error::Deadlock(String::new())));
        self.depart(|wait| wait.id == id);
    }

    /// A connection ends: it waits no longer, and all its sessions end, before anybody is served.
    pub fn dies(&mut self, client: u64) {
        self.leave(|wait| wait.client == client);
        for lock in self.locks.values_mut() {
            lock.holds.retain(|hold| hold.session != Some(client));
        }
        self.settle();
        self.cut.remove(&client);
        self.ended.insert(client);
    }

    /// Time passes, a millisecond at a time.
    pub fn pass(&mut self, ms: Millis) {
        for _ in 0..ms {
            self.now += 1;
            let now = self.now;
            let over = |wait: &&Wait| wait.until.is_some_and(|until| until <= now);
            let late: Vec<Wait> = self.waits().filter(over).cloned().collect();
            late.iter().for_each(|wait| self.tell(wait, Answer::Null));
            self.depart(|wait| late.iter().any(|late| late.id == wait.id));
        }
    }

    /// The owner's hold under this token, for commands that need one.
    fn held(&mut self, key: &str, owner: &str, grant: Option<u64>) -> Result<&mut Hold, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::WrongType);
        }
        lock.hold_mut(owner)
            .filter(|hold| grant.map_or(true, |grant| grant == hold.grant))
            .ok_or(Error::NotHeld)
    }

    pub fn renew(
        &mut self,
        key: &str,
        owner: &str,
        grant: Option<u64>,
        lease: Millis,
    ) -> Result<u64, Error> {
        let (now, max_hold) = (self.now, self.max_hold);
        let hold = self.held(key, owner, grant)?;
        hold.deadline = now + lease;
        if max_hold > 0 {
            hold.deadline = hold.deadline.min(hold.since + max_hold);
        }
        let left = hold.deadline.saturating_sub(now);
        self.settle();
        Ok(left)
    }

    pub fn release(
        &mut self,
        key: &str,
        owner: &str,
        grant: Option<u64>,
        leave: Option<u32>,
    ) -> Result<u64, Error> {
        let hold = self.held(key, owner, grant)?;
        let left = leave.unwrap_or(hold.holds - 1);
        if left > hold.holds {
            return Err(Error::Argument("HOLDS", String::new()));
        }
        hold.holds = left;
        self.lock(key).holds.retain(|hold| hold.holds > 0);
        self.settle();
        Ok(u64::from(left))
    }

    /// All of the leases or none; what is left of the shortest.
    pub fn renew_many(
        &mut self,
        keys: &[String],
        owner: &str,
        lease: Millis,
    ) -> Result<u64, Error> {
        for key in keys {
            self.held(key, owner, None)?;
        }
        let mut least = lease;
        for key in keys {
            least = least.min(self.renew(key, owner, None, lease)?);
        }
        Ok(least)
    }

    /// Gives back one hold of each that is held, and only then serves the queues.
    pub fn release_many(
        &mut self,
        keys: &[String],
        owner: &str,
    ) -> Result<Vec<Option<u32>>, Error> {
        if keys.iter().any(|key| self.lock(key).foreign) {
            return Err(Error::WrongType);
        }
        let mut left = Vec::new();
        for key in keys {
            let lock = self.lock(key);
            left.push(lock.hold_mut(owner).map(|hold| {
                hold.holds -= 1;
                hold.holds
            }));
            lock.holds.retain(|hold| hold.holds > 0);
        }
        self.settle();
        Ok(left)
    }

    pub fn force(&mut self, key: &str, owner: Option<&str>) -> Result<u64, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::WrongType);
        }
        let before = lock.holds.len();
        lock.holds
            .retain(|hold| owner.is_some_and(|owner| owner != hold.owner));
        let ended = before - lock.holds.len();
        self.settle();
        Ok(ended as u64)
    }

    pub fn cancel(&mut self, key: &str, owner: &str) -> Result<u64, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::WrongType);
        }
        // A holder may have two, if one was asked for in quarantine or the hold came later.
        let (its, rest): (Vec<Place>, Vec<Place>) = std::mem::take(&mut lock.queue)
            .into_iter()
            .partition(|place| place.owner == owner);
        lock.queue = rest;
        let upgrade = lock.upgrade.take_if(|place| place.owner == owner);
        let gone: Vec<Place> = upgrade.into_iter().chain(its).collect();
        for place in &gone {
            self.dissolve(place, Answer::Cancelled);
        }
        self.settle();
        Ok(u64::from(!gone.is_empty()))
    }

    /// These keys are removed, all at once.
    pub fn del(&mut self, keys: &[&str]) {
        for key in keys {
            let lock = self.lock(key);
            lock.foreign = false;
            lock.holds.clear();
            lock.queue.retain(|place| !place.waits.is_empty());
        }
        self.settle();
    }

    /// The key becomes something else.
    pub fn overwrite(&mut self, key: &str) {
        self.lock(key).foreign = true;
        self.lock(key).holds.clear();
        self.settle();
    }

    /// Holders and tickets go to another name; who waits stays.
    pub fn rename(&mut self, from: &str, to: &str) {
        let lock = self.lock(from);
        if !lock.stands() || from == to {
            return;
        }
        let (foreign, holds) = (lock.foreign, std::mem::take(&mut lock.holds));
        lock.foreign = false;
        let tickets: Vec<Place> = lock
            .queue
            .iter()
            .filter(|place| place.claim.is_some())
            .cloned()
            .collect();
        lock.queue.retain(|place| !place.waits.is_empty());
        let (now, window) = (self.now, self.claim_window);
        self.arrivals += 1;
        let fresh = self.arrivals;
        let lock = self.lock(to);
        lock.foreign = foreign;
        lock.holds = holds;
        // A ticket that came here once before is the one that is here already.
        let comes = |place: &Place| {
            tickets
                .iter()
                .any(|ticket| (&ticket.owner, ticket.arrival) == (&place.owner, place.arrival))
        };
        lock.queue
            .retain(|place| !place.waits.is_empty() || comes(place));
        for ticket in tickets {
            if lock.queue.iter().all(|place| place.owner != ticket.owner) {
                let kept_until = Some(now + ticket.claim.unwrap_or(0).max(window));
                // A place ahead of the queue does not tell since when it is there, and another may be at it.
                let ahead = ticket.arrival < 0;
                let taken = lock
                    .queue
                    .iter()
                    .any(|place| place.arrival == ticket.arrival);
                lock.queue.push(Place {
                    kept_until,
                    since: if ahead { now } else { ticket.since },
                    arrival: if taken { fresh } else { ticket.arrival },
                    waits: Vec::new(),
                    ..ticket
                });
            }
        }
        lock.queue.sort_by_key(|place| place.arrival);
        self.settle();
    }

    /// The operator changes something.
    pub fn configure(&mut self, grants: bool, quarantine_until: Millis) {
        self.grants = grants;
        self.quarantine_until = quarantine_until;
        self.settle();
    }
}
