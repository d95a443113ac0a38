//! The consequences of an event: whatever it was, all locks are brought up to date.

use super::{overflow, Answer, Hold, Lock, Model, Place, Request, Tie, Told, Unheard, Wait, Way};
use dlock_commands::error::Error;
use dlock_engine::Refusal;

impl Model {
    /// Brings all locks up to date.
    pub(super) fn settle(&mut self) {
        loop {
            self.moved = false;
            self.end_what_is_over();
            self.refuse_other_types();
            self.follow_values();
            self.serve();
            if !self.moved {
                return self.note_writes();
            }
        }
    }

    /// Sets the TTL of every key to which the module has written since.
    pub(super) fn note_writes(&mut self) {
        for lock in self.locks.values_mut() {
            let written = lock.value_written();
            if lock.written != written {
                (lock.written, lock.ttl) = (written, None);
            }
        }
    }

    /// Removes the keys whose TTL a user has set, and no later write has replaced.
    pub(super) fn remove_expired_keys(&mut self) {
        let over = |lock: &Lock| lock.ttl.is_some_and(|end| end <= self.now);
        let locks = self.locks.iter().filter(|(_, lock)| over(lock));
        let keys: Vec<String> = locks.map(|(key, _)| key.clone()).collect();
        if !keys.is_empty() {
            self.del(&keys);
        }
    }

    fn end_what_is_over(&mut self) {
        let (now, steady) = (self.now, self.steady);
        for lock in self.locks.values_mut() {
            lock.holds.retain(|hold| hold.deadline > now);
            let kept = |place: &Place| place.kept_until.is_none_or(|until| until > steady);
            lock.queue.retain(kept);
        }
    }

    /// Refuses the waiters of a key that became another type.
    fn refuse_other_types(&mut self) {
        for (key, lock) in self.locks.clone() {
            let concerns = |wait: &&Wait| lock.foreign && wait.asked.keys.contains(&key);
            for wait in self.waits.clone().iter().filter(concerns) {
                self.end_wait(wait.id, Answer::Refused(Error::Refused(Refusal::WrongType)));
            }
            self.lock(&key).keep_places(|_| !lock.foreign);
        }
    }

    /// Ends the waits that an arriving value makes pointless. An upgrade needs its hold. A waiter whose owner received a hold or
    /// another ticket by the value must ask again.
    fn follow_values(&mut self) {
        for (key, lock) in self.locks.clone() {
            let lost = |place: &&Place| lock.hold(&place.owner).is_none();
            if let Some(wait) = lock
                .upgrade
                .as_ref()
                .filter(lost)
                .and_then(|place| place.wait)
            {
                self.end_wait(wait, Answer::Refused(Error::Refused(Refusal::NotHeld)));
            }
            let brought = |place: &&Place| {
                let mut places = lock.queue.iter();
                let its = |other: &Place| other.owner == place.owner && other.wait.is_none();
                match lock.way(&place.owner, place.limit) {
                    Way::Queues => places.any(its),
                    Way::Reenters => true,
                    Way::Upgrades => {
                        let several = |hold: &Hold| hold.permits > 1;
                        lock.upgrade.as_ref() != Some(place)
                            || lock.hold(&place.owner).is_some_and(several)
                    }
                }
            };
            let waits = lock
                .in_order()
                .filter(brought)
                .filter_map(|place| place.wait);
            for id in waits.collect::<Vec<_>>() {
                self.end_wait(id, Answer::Refused(Error::Refused(Refusal::TryAgain)));
            }
            // A holder has no ticket.
            let queue = &mut self.lock(&key).queue;
            queue.retain(|place| lock.hold(&place.owner).is_none());
        }
    }

    /// Grants all that can be granted: first to requests for one lock, then for many, in order of arrival.
    fn serve(&mut self) {
        loop {
            let ready = self.waits.iter().filter(|wait| self.grantable(wait));
            let Some(wait) = ready.min_by_key(|wait| wait.asked.many).cloned() else {
                return;
            };
            let overflows = |key: &String| {
                let hold = self.locks[key].hold(&wait.asked.owner);
                hold.is_some_and(|hold| hold.overflows(&wait.asked))
            };
            if wait.asked.keys.iter().any(overflows) {
                self.end_wait(wait.id, Answer::Refused(overflow()));
            } else {
                self.grant(&wait);
            }
        }
    }

    /// Returns true if the request heads all of its queues and could have all of its locks.
    fn grantable(&self, wait: &Wait) -> bool {
        let Wait { id, asked, .. } = wait;
        let turn = |key: &String| {
            let lock = &self.locks[key];
            let first = lock
                .in_order()
                .next()
                .is_some_and(|place| place.wait == Some(*id));
            let full =
                lock.hold(&asked.owner).is_none() && lock.holds.len() >= self.policy.max_holders;
            first && !full && lock.compatible(&asked.owner, asked.limit, asked.permits)
        };
        self.granting() && asked.keys.iter().all(turn)
    }

    fn grant(&mut self, wait: &Wait) {
        let asked = &wait.asked;
        let kept = |place: &Place| place.claim > Some(0);
        let new = |key: &&String| self.locks[*key].hold(&asked.owner).is_none();
        let new: Vec<(String, Option<Place>)> = asked
            .keys
            .iter()
            .filter(new)
            .map(|key| {
                let place = self.locks[key].place_of(wait.id);
                (key.clone(), place.cloned().filter(kept))
            })
            .collect();
        self.remove_wait(wait.id);
        let answer = self.take_all(asked);
        if self.cut.contains(&asked.client) {
            for (key, ticket) in new {
                let hold = self.locks[&key].hold(&asked.owner);
                self.unheard.push(Unheard {
                    owner: asked.owner.clone(),
                    grant: hold.expect("the hold was granted").grant,
                    key,
                    ticket,
                });
            }
        }
        self.tell(wait.clone(), answer);
    }

    /// Makes the owner a holder of all locks.
    pub(super) fn take_all(&mut self, request: &Request) -> Answer {
        let grants: Vec<(u64, u32)> = request
            .keys
            .iter()
            .map(|key| self.take(key, request))
            .collect();
        match grants[..] {
            [(grant, holds)] if !request.many => Answer::Granted { grant, holds },
            _ => Answer::GrantedAll(grants.iter().map(|(grant, _)| *grant).collect()),
        }
    }

    /// Makes the owner a holder, or enters the lock once more. Returns the grant and its count.
    fn take(&mut self, key: &str, request: &Request) -> (u64, u32) {
        let (now, latest, fresh) = (self.now, self.latest.max(self.now), self.grants_made + 1);
        let before = self.lock(key).hold(&request.owner).cloned();
        let mut hold = before.unwrap_or(Hold {
            owner: request.owner.clone(),
            grant: fresh,
            since: latest,
            holds: 0,
            deadline: 0,
            limit: request.limit,
            permits: request.permits,
            tie: None,
            client: request.client,
            touched: false,
        });
        hold.touched = hold.holds > 0;
        hold.client = request.client;
        if hold.limit > request.limit {
            (hold.grant, hold.since) = (fresh, latest);
            (hold.limit, hold.permits) = (request.limit, request.permits);
        }
        hold.holds = match request.holds {
            Some(least) => hold.holds.max(least),
            None => hold.holds + 1,
        };
        let wanted = hold.deadline.max(now + request.lease);
        hold.deadline = match hold.grant == fresh {
            true => wanted,
            false => self.bounded(hold.since, wanted).max(hold.deadline),
        };
        if let Some(auto) = hold.tie.as_mut().and_then(|tie| tie.auto.as_mut()) {
            auto.lease = auto.lease.max(request.lease);
        }
        if request.ephemeral || request.auto.is_some() {
            let client = request.client;
            let same = hold.tie.filter(|tie| tie.client == client);
            let auto = request.auto.map(|ms| self.auto(request.lease, ms));
            let tie = Tie {
                client,
                ephemeral: request.ephemeral || same.is_some_and(|tie| tie.ephemeral),
                auto: auto.or(same.and_then(|tie| tie.auto)),
            };
            hold.tie = Some(tie);
        }
        if hold.grant == fresh {
            (self.grants_made, self.latest) = (fresh, latest);
        }
        let told = (hold.grant, hold.holds);
        let lock = self.lock(key);
        lock.holds.retain(|other| other.owner != hold.owner);
        lock.holds.push(hold);
        told
    }

    /// Returns the deadline, bounded by the greatest age of a hold.
    pub(super) fn bounded(&self, since: u64, deadline: u64) -> u64 {
        match self.policy.max_hold_ms {
            0 => deadline,
            age => deadline.min(since + age),
        }
    }

    /// Revokes the new holds whose answers were not delivered and that no later command has touched. Delivery is known only after
    /// the turn in which they were granted.
    pub(super) fn revoke_undelivered(&mut self) {
        while !self.unheard.is_empty() {
            for unheard in std::mem::take(&mut self.unheard) {
                self.revoke_one(unheard);
            }
            self.settle();
        }
    }

    fn revoke_one(&mut self, unheard: Unheard) {
        let steady = self.steady;
        let lock = self.lock(&unheard.key);
        let its = |hold: &Hold| hold.grant == unheard.grant;
        let Some(at) = lock.holds.iter().position(its) else {
            return;
        };
        if lock.holds[at].touched {
            self.spared += 1;
            return;
        }
        lock.holds.remove(at);
        let free = lock.place(&unheard.owner).is_none();
        if let Some(place) = unheard.ticket.filter(|_| free) {
            let (wait, kept_until) = (None, place.claim.map(|claim| steady + claim));
            lock.queue.push(Place {
                wait,
                kept_until,
                ..place
            });
            lock.queue.sort_by_key(|place| place.arrival);
        }
    }

    /// Ends the wait of a request with an answer; all its places go.
    pub(super) fn end_wait(&mut self, id: u64, answer: Answer) {
        if let Some(wait) = self.remove_wait(id) {
            self.tell(wait, answer);
        }
    }

    fn remove_wait(&mut self, id: u64) -> Option<Wait> {
        let at = self.waits.iter().position(|wait| wait.id == id)?;
        for lock in self.locks.values_mut() {
            lock.keep_places(|place| place.wait != Some(id));
        }
        let wait = self.waits.remove(at);
        self.note_waiting(wait.asked.client);
        Some(wait)
    }

    /// Ends the wait of a request. Its ticket is kept for a window that begins now.
    pub(super) fn depart(&mut self, id: u64) -> Option<Wait> {
        let steady = self.steady;
        for lock in self.locks.values_mut() {
            for place in lock.queue.iter_mut().filter(|place| place.wait == Some(id)) {
                if let Some(claim) = place.claim.filter(|claim| *claim > 0) {
                    (place.wait, place.kept_until) = (None, Some(steady + claim));
                }
            }
        }
        self.remove_wait(id)
    }

    pub(super) fn tell(&mut self, wait: Wait, answer: Answer) {
        self.moved = true;
        let at = self.now;
        self.told.push(Told { at, wait, answer });
    }
}
