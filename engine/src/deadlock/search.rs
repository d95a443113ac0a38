//! One search forward from a request that would wait.

use super::text;
use crate::holds::HoldTable;
use crate::keyspace::Keyspace;
use crate::lock::{Hold, Lock};
use crate::queue::{actor, LockId, Place, Request, Requests, WaitQueues};
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{Arrival, HoldRef, Limit, NameRef, Now, OwnerHash, RequestId, SessionNo};
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeSet, HashSet};

/// Why a search ends before it has followed everything.
#[derive(Debug)]
enum Stop {
    /// It has used up its steps, and has no answer.
    OutOfSteps,
    /// The request would close a circle, which this names.
    Circle(Refusal),
}

/// What a search finds unless it stops.
type Bounded<T> = Result<T, Stop>;

/// A place in a queue that a request waits at, or would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The name of the lock.
    pub name: NameRef<'a>,
    /// The number of the lock, if it has a queue.
    pub lock: Option<LockId>,
    /// The number of the place; none for one behind all others.
    pub place: Option<Arrival>,
    /// The limit that the request asks for.
    pub limit: Limit,
}

/// A request that would wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The owner that asks.
    pub owner: &'a [u8],
    /// The session that it asks in.
    pub session: Option<SessionNo>,
    /// The places that the request would wait at.
    pub wanted: &'a [Wanted<'a>],
    /// The older requests of the same owner that it takes over from: they count as gone.
    pub replaced: &'a BTreeSet<RequestId>,
}

impl Asked<'_> {
    /// Returns true if it is an actor's of a session.
    fn is_actor(&self) -> bool {
        self.session.is_some() && actor(self.owner).is_some()
    }
}

/// A search for the circle that a request would close. A step is a lock that it opens, or a holder, an owner or a place that
/// it looks at.
struct Search<'w> {
    queues: &'w WaitQueues,
    requests: &'w Requests,
    holds: &'w HoldTable,
    now: Now,
    steps_left: usize,
    asked: Asked<'w>,
    asker: OwnerHash,
    // The place that the request has before others: the one that it takes over, or ahead of the queue.
    standing: Option<&'w Wanted<'w>>,
    // The blockers, in the order in which the search found them.
    found: Vec<Found<'w>>,
    seen: HashSet<Blocker, FxBuildHasher>,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Blocker {
    /// The request that is asked for.
    Asked,
    /// Another request, before it in a queue.
    Request(RequestId),
    /// All requests of an owner that holds the lock.
    Owner(OwnerHash),
}

/// A blocker, and the wait by which the search has reached it.
struct Found<'w> {
    blocker: Blocker,
    /// The position of the waiter among what was found; none for the request that is asked for.
    waiter: Option<usize>,
    /// The lock that it waits for.
    name: NameRef<'w>,
    /// Whether a place in the queue is in the way; else a hold is.
    queued: bool,
}

impl Engine {
    /// Errors with `Deadlock`, which names the circle, if a request that would wait would close a circle of waiting owners. A
    /// search that is cut off finds none, and is counted.
    pub(crate) fn refuse_if_deadlocked(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        asked: Asked,
    ) -> Result<(), Refusal> {
        // Where nobody waits nothing leads back, except from an actor to what it holds itself.
        let possible = self.requests.owners() > 0 || asked.is_actor();
        if !self.policy.deadlock_detection || !possible {
            return Ok(());
        }
        let mut search = Search {
            queues: &self.queues,
            requests: &self.requests,
            holds: &self.holds,
            now,
            steps_left: self.policy.deadlock_max_steps,
            asked,
            asker: self.requests.actor_hash(asked.owner, asked.session),
            // A request for many locks has its places behind all others.
            standing: asked.wanted.iter().find(|wanted| wanted.place.is_some()),
            found: Vec::new(),
            seen: HashSet::default(),
        };
        match search.run(keys) {
            Ok(()) => Ok(()),
            Err(Stop::Circle(deadlock)) => Err(deadlock),
            Err(Stop::OutOfSteps) => {
                self.holds.counters.deadlocks_deferred += 1;
                Ok(())
            }
        }
    }
}

impl<'w> Search<'w> {
    /// Follows the request that is asked for, and what is found by that, in the order in which it is found.
    ///
    /// Errors with a shortest circle that the request would close, or if the steps do not suffice to say that it closes none.
    fn run(&mut self, keys: &mut impl Keyspace) -> Bounded<()> {
        for wanted in self.asked.wanted {
            self.follow(keys, None, self.asked.owner, wanted)?;
        }
        let (requests, mut next) = (self.requests, 0);
        while let Some(found) = self.found.get(next) {
            match found.blocker {
                Blocker::Asked => {}
                Blocker::Request(id) => self.follow_request(keys, next, id)?,
                Blocker::Owner(owner) => {
                    for id in requests.of_owner(owner) {
                        self.follow_request(keys, next, id)?;
                    }
                }
            }
            next += 1;
        }
        Ok(())
    }

    fn spend(&mut self, steps: usize) -> Bounded<()> {
        let left = self.steps_left.checked_sub(steps);
        self.steps_left = left.ok_or(Stop::OutOfSteps)?;
        Ok(())
    }

    /// Follows a request at all its places.
    fn follow_request(
        &mut self,
        keys: &mut impl Keyspace,
        at: usize,
        id: RequestId,
    ) -> Bounded<()> {
        let (queues, requests) = (self.queues, self.requests);
        let Some(request) = requests.get(id) else {
            return Ok(());
        };
        for part in request.parts() {
            let wanted = Wanted {
                name: queues.at(part.lock).name.as_ref(),
                lock: Some(part.lock),
                place: Some(part.place),
                limit: request.terms.share.limit,
            };
            self.follow(keys, Some(at), &request.owner, &wanted)?;
        }
        Ok(())
    }

    /// Follows a request of this owner at one place: notes what is in its way there. `waiter` is the request's position among what
    /// was found; none for the request that is asked for.
    fn follow(
        &mut self,
        keys: &mut impl Keyspace,
        waiter: Option<usize>,
        owner: &[u8],
        wanted: &Wanted<'w>,
    ) -> Bounded<()> {
        let found = |blocker, queued| Found {
            blocker,
            waiter,
            name: wanted.name,
            queued,
        };
        for holder in self.holders_in_the_way(keys, owner, wanted)? {
            let blocker = if holder == self.asker {
                Blocker::Asked
            } else {
                Blocker::Owner(holder)
            };
            self.find(keys, found(blocker, false))?;
        }
        if wanted.place == Some(Arrival::UPGRADE_SLOT) {
            return Ok(());
        }
        let places = [self.nearest_part(wanted)?, self.first_exclusive(wanted)?];
        for blocker in places.into_iter().flatten() {
            self.find(keys, found(blocker, true))?;
        }
        Ok(())
    }

    /// Notes a blocker, and how the search has reached it.
    fn find(&mut self, keys: &mut impl Keyspace, found: Found<'w>) -> Bounded<()> {
        if found.blocker == Blocker::Asked {
            return Err(Stop::Circle(self.deadlock(keys, &found)));
        }
        if self.seen.insert(found.blocker) {
            self.found.push(found);
        }
        Ok(())
    }

    /// Returns the holders that exclude a request by themselves, as far as they wait for something or are the one that asks:
    /// the others give the lock back. The shorter of two lists is looked through, the holders or the owners that wait.
    fn holders_in_the_way(
        &mut self,
        keys: &mut impl Keyspace,
        waiter: &[u8],
        wanted: &Wanted,
    ) -> Bounded<Vec<OwnerHash>> {
        self.spend(1)?;
        let (requests, holds, steps_left) = (self.requests, self.holds, self.steps_left);
        let (asks, asker) = (self.asked.owner, self.asker);
        // The holds of an actor have other owners than the one that waits.
        let by_name = !requests.actors_wait() && !self.asked.is_actor();
        let exclusive = wanted.limit == Limit::EXCLUSIVE;
        let excludes = |hold: &Hold| {
            (exclusive || hold.limit == Limit::EXCLUSIVE) && hold.deadline > self.now.wall()
        };
        let (mut steps, mut owners) = (0, Vec::new());
        keys.inspect(wanted.name, &mut |lock: &Lock| {
            if !exclusive && lock.strictest() != Some(Limit::EXCLUSIVE) {
                return;
            }
            steps = if by_name {
                lock.holders().min(1 + requests.owners())
            } else {
                lock.holders()
            };
            if steps > steps_left {
                return;
            }
            if steps == lock.holders() {
                let holders = lock.holds().filter(excludes);
                let holders = holders.filter(|hold| *hold.owner != *waiter);
                let holders = holders.map(|hold| {
                    let (name, owner) = (wanted.name, hold.owner);
                    let session = holds.session_of(HoldRef { name, owner }, hold.token);
                    requests.actor_hash(owner, session)
                });
                owners.extend(holders.filter(|owner| *owner == asker || requests.waits(*owner)));
                return;
            }
            let excluded = |owner: &[u8]| lock.hold(owner).is_some_and(|hold| excludes(&hold));
            let waiting = requests.each_owner();
            let waiting = waiting.filter(|(_, owner)| *owner != waiter && excluded(owner));
            owners.extend(waiting.map(|(owner, _)| owner));
            if !owners.contains(&asker) && asks != waiter && excluded(asks) {
                owners.push(asker);
            }
            // The list of those that wait has another order in each run of the server.
            owners.sort_unstable_by_key(|owner| requests.of_owner(*owner).next());
        });
        self.spend(steps)?;
        Ok(owners)
    }

    /// Returns the nearest request for many locks before a place.
    fn nearest_part(&mut self, wanted: &Wanted) -> Bounded<Option<Blocker>> {
        let queue = self.queues.at(wanted.lock);
        match queue.multi_places {
            0 => Ok(None),
            _ => {
                let requests = self.requests;
                let request = |place: &Place| requests.get(place.request()?);
                let is_part = |place: &Place| request(place).is_some_and(Request::is_many);
                self.first_of(queue.before(wanted.number()), is_part)
            }
        }
    }

    /// Returns the first request before a place whose limit is 1, unless the limit asked for is 1 itself.
    fn first_exclusive(&mut self, wanted: &Wanted) -> Bounded<Option<Blocker>> {
        if wanted.limit == Limit::EXCLUSIVE {
            return Ok(None);
        }
        let asked = self.standing_before(wanted);
        let asked = asked.filter(|asked| asked.limit == Limit::EXCLUSIVE);
        let (queue, mut found) = (self.queues.at(wanted.lock), None);
        if queue.exclusive_places() > 0 {
            let end = asked.unwrap_or(wanted).number();
            let before = queue.in_order().take_while(|(at, _)| *at < end);
            found = self.first_of(before, |place| place.share.limit == Limit::EXCLUSIVE)?;
        }
        Ok(found.or(asked.map(|_| Blocker::Asked)))
    }

    /// Returns the first request that waits at a chosen one of these places and does not count as gone.
    fn first_of<'q>(
        &mut self,
        places: impl Iterator<Item = (Arrival, &'q Place)>,
        chosen: impl Fn(&Place) -> bool,
    ) -> Bounded<Option<Blocker>> {
        for (_, place) in places {
            self.spend(1)?;
            let request = place.request().filter(|_| chosen(place));
            if let Some(id) = request.filter(|id| !self.asked.replaced.contains(id)) {
                return Ok(Some(Blocker::Request(id)));
            }
        }
        Ok(None)
    }

    /// Returns the place that the request that is asked for has before this one, if it has one.
    fn standing_before(&self, wanted: &Wanted) -> Option<&'w Wanted<'w>> {
        let before =
            |asked: &&Wanted| asked.lock == wanted.lock && asked.number() < wanted.number();
        self.standing.filter(before)
    }

    /// Returns the error for the circle that this wait for the request that is asked for closes.
    fn deadlock(&self, keys: &mut impl Keyspace, last: &Found<'w>) -> Refusal {
        let mut steps = vec![last];
        let mut at = last.waiter;
        while let Some(found) = at.and_then(|at| self.found.get(at)) {
            steps.push(found);
            at = found.waiter;
        }
        steps.reverse();
        let readable: Vec<bool> = steps.iter().map(|step| keys.readable(step.name)).collect();
        // The waiter of a step. The caller knows its own owner, and those that wait for or hold a lock whose key it may read.
        let owner = |nth: usize| {
            let waiter = steps.get(nth).and_then(|step| step.waiter);
            let around = [nth.checked_sub(1), Some(nth)].into_iter().flatten();
            let known = |nth: usize| readable.get(nth).is_some_and(|known| *known);
            let known = waiter.is_none() || around.into_iter().any(known);
            known.then(|| self.owner(waiter))
        };
        let named = steps.iter().enumerate().map(|(nth, step)| {
            let key = readable.get(nth).is_some_and(|known| *known);
            let key = key.then_some(step.name.key);
            text::step(owner(nth), key, step.queued, owner(nth + 1))
        });
        text::circle(named)
    }

    /// Returns the name of the owner that waits at this position; without one that of the owner that asks.
    fn owner(&self, at: Option<usize>) -> &'w [u8] {
        let id = at.and_then(|at| match self.found.get(at)?.blocker {
            Blocker::Asked => None,
            Blocker::Request(id) => Some(id),
            Blocker::Owner(owner) => self.requests.of_owner(owner).next(),
        });
        let request = id.and_then(|id| self.requests.get(id));
        request.map_or(self.asked.owner, |request| &request.owner)
    }
}

impl Wanted<'_> {
    /// Returns the number of the place, or one behind all others.
    fn number(&self) -> Arrival {
        self.place.unwrap_or(Arrival::LAST)
    }
}
