//! Many locks at once: all of them or none.

use super::{Answer, Lock, Many, Model, Place, Request, Wait};
use crate::circles;
use crate::error::Error;

/// Where a request for many locks stands at one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// In no queue: its owner holds the lock as it asks for, or with a stricter limit.
    Holds,
    /// Before the queue: its owner holds the lock with a weaker limit.
    Upgrades,
    /// In the queue.
    Queues,
}

impl Lock {
    /// Where a request for this lock among others has to stand.
    fn stand(&self, owner: &str, limit: usize) -> Stand {
        match self.hold(owner) {
            None => Stand::Queues,
            Some(hold) if hold.limit > limit => Stand::Upgrades,
            Some(_) => Stand::Holds,
        }
    }

    /// The owner's place among those where such a request stands.
    fn place(&self, owner: &str, stand: Stand) -> Option<&Place> {
        let mine = |place: &&Place| place.owner == owner;
        match stand {
            Stand::Holds => None,
            Stand::Upgrades => self.upgrade.as_ref().filter(mine),
            Stand::Queues => self.queue.iter().find(mine),
        }
    }

    /// Whether the lock could be had now: nobody is before the owner, and it may hold beside the others.
    fn open(&self, owner: &str, limit: usize) -> bool {
        match self.stand(owner, limit) {
            Stand::Holds => true,
            Stand::Upgrades => self.compatible(owner, limit),
            Stand::Queues => {
                let first = self.in_order().next();
                let limit = limit.min(first.map_or(limit, |place| place.limit));
                first.map_or(true, |place| place.owner == owner) && self.compatible(owner, limit)
            }
        }
    }

    /// Whether a waiting request has its turn here: it heads the queue, or needs no place in it.
    fn turn(&self, many: &Many) -> bool {
        let its = |place: &Place| place.waits.iter().any(|wait| wait.id == many.wait.id);
        match self.in_order().next() {
            Some(head) if its(head) => !self.foreign && self.compatible(&head.owner, head.limit),
            _ => !self.in_order().any(its),
        }
    }
}

impl Model {
    /// All of the locks or none.
    pub fn acquire_many(&mut self, request: &Request, keys: &[String]) -> Answer {
        let (quarantined, grants) = (self.quarantined(), self.grants);
        let (owner, limit) = (&request.owner, request.limit);
        if keys.iter().any(|key| self.lock(key).foreign) {
            return Answer::Refused(Error::WrongType);
        }
        let holds = |lock: &mut Lock| lock.stand(owner, limit) == Stand::Holds;
        if !grants && !keys.iter().all(|key| holds(self.lock(key))) {
            return Answer::Refused(Error::Draining);
        }
        let open = keys.iter().all(|key| self.lock(key).open(owner, limit));
        if request.wait.is_none() && quarantined {
            return Answer::Refused(Error::Quarantine);
        }
        if request.wait.is_none() && !open {
            return Answer::Null;
        }
        if open && !quarantined {
            return self.grant_many_now(request, keys);
        }
        match self.admit(request, keys) {
            Ok(()) => self.wait_for_many(request, keys),
            Err(error) => Answer::Refused(error),
        }
    }

    fn grant_many_now(&mut self, request: &Request, keys: &[String]) -> Answer {
        let many = self.many(request, keys);
        for key in keys {
            // Its own place at the head is taken with the lock.
            let known = self.lock(key).place(&many.owner, Stand::Queues).is_some();
            let stand = self.lock(key).stand(&many.owner, many.limit);
            if known && stand == Stand::Queues {
                self.queue_up(&many, key, stand);
            }
        }
        self.grant_many(&many);
        self.settle();
        self.answer(many.wait.id).expect("it was granted")
    }

    /// Whether such a request may wait.
    fn admit(&mut self, request: &Request, keys: &[String]) -> Result<(), Error> {
        let mut fresh = 0;
        for key in keys {
            let stand = self.stand_of_many(key, request);
            let lock = self.lock(key);
            let upgrade = lock.upgrade.as_ref().filter(|_| stand == Stand::Upgrades);
            if upgrade.is_some_and(|place| place.owner != request.owner) {
                return Err(Error::Deadlock(String::new()));
            }
            let known = lock.place(&request.owner, stand).is_some();
            let asked = Request {
                key: key.clone(),
                ..request.clone()
            };
            let cap = self.cap(&asked, known || stand == Stand::Holds);
            if let Some(cap) = cap.filter(|_| stand != Stand::Holds) {
                return Err(Error::Full(cap));
            }
            fresh += usize::from(!known && stand != Stand::Holds);
        }
        if self.places() + fresh > self.max_places {
            return Err(Error::Full("dlock.max-places"));
        }
        match self.never_ends(request, keys) {
            true => Err(Error::Deadlock(String::new())),
            false => Ok(()),
        }
    }

    /// Where it stands: in quarantine re-entry has to wait too.
    fn stand_of_many(&mut self, key: &str, request: &Request) -> Stand {
        let quarantined = self.quarantined();
        match self.lock(key).stand(&request.owner, request.limit) {
            Stand::Holds if quarantined => Stand::Queues,
            stand => stand,
        }
    }

    fn wait_for_many(&mut self, request: &Request, keys: &[String]) -> Answer {
        let id = self.enter_many(request, keys);
        self.settle();
        self.answer(id).unwrap_or(Answer::Waits(id))
    }

    fn many(&mut self, request: &Request, keys: &[String]) -> Many {
        Many {
            wait: self.wait(request),
            owner: request.owner.clone(),
            keys: keys.to_vec(),
            limit: request.limit,
        }
    }

    /// Enters all queues at the same instant.
    fn enter_many(&mut self, request: &Request, keys: &[String]) -> u64 {
        let many = self.many(request, keys);
        for key in keys {
            let stand = self.stand_of_many(key, request);
            self.queue_up(&many, key, stand);
        }
        let id = many.wait.id;
        self.manys.push(many);
        id
    }

    fn queue_up(&mut self, many: &Many, key: &str, stand: Stand) {
        let part = Wait {
            many: true,
            until: None,
            ..many.wait.clone()
        };
        let place = match stand {
            Stand::Holds => return,
            Stand::Upgrades => self.stand_to_upgrade(key, &many.owner, many.limit),
            Stand::Queues => self.stand(key, &many.owner, many.limit),
        };
        place.kept_until = None;
        place.waits.push(part);
        self.moves += 1;
    }

    /// Who waits for many locks and no longer holds one of them queues for it from now on, as whoever comes now. The place
    /// that it may have had was used up by the hold: to come back to it would pass those who were next.
    pub(super) fn queue_late(&mut self) {
        for many in self.manys.clone() {
            for key in &many.keys {
                let stand = self.lock(key).stand(&many.owner, many.limit);
                let its = |place: &Place| place.waits.iter().any(|wait| wait.id == many.wait.id);
                if stand == Stand::Holds || self.lock(key).in_order().any(its) {
                    continue;
                }
                let other = self.lock(key).upgrade.as_ref();
                if stand == Stand::Upgrades && other.is_some_and(|place| place.owner != many.owner)
                {
                    self.break_off_only(&many);
                    break;
                }
                self.queue_up(&many, key, stand);
            }
        }
    }

    fn break_off_only(&mut self, many: &Many) {
        self.tell(&many.wait, Answer::Refused(Error::Deadlock(String::new())));
        self.leave(|wait| wait.id == many.wait.id);
    }

    /// Grants to the first that has its turn at all of its locks.
    pub(super) fn serve_many(&mut self) {
        let turn = |many: &&Many| many.keys.iter().all(|key| self.locks[key].turn(many));
        let next = self.manys.iter().find(turn).cloned();
        if let Some(many) = next.filter(|_| self.granting()) {
            self.grant_many(&many);
        }
    }

    fn grant_many(&mut self, many: &Many) {
        let mut grants = Vec::new();
        for key in &many.keys {
            let place = self.take_out(key, many.wait.id);
            // With the limit of all who share the place: theirs are re-entries then.
            let limit = place.as_ref().map_or(many.limit, |place| place.limit);
            let answer = self.take_for(&many.wait, key, &many.owner, limit);
            let Answer::Granted { grant, .. } = answer else {
                unreachable!("take grants")
            };
            grants.push(grant);
            if let Some(place) = place {
                self.grant_place(key, &place);
            }
        }
        self.manys.retain(|other| other.wait.id != many.wait.id);
        self.tell(&many.wait, Answer::GrantedAll(grants));
    }

    /// Takes out the place where this request has a part.
    fn take_out(&mut self, key: &str, id: u64) -> Option<Place> {
        let lock = self.lock(key);
        let its = |place: &Place| place.waits.iter().any(|wait| wait.id == id);
        if let Some(place) = lock.upgrade.take_if(|place| its(place)) {
            return Some(place);
        }
        let at = lock.queue.iter().position(its)?;
        Some(lock.queue.remove(at))
    }

    /// Whether this request is to be refused, as its wait could never end. `keys` are those of a request for many locks.
    pub(super) fn never_ends(&mut self, request: &Request, keys: &[String]) -> bool {
        if !self.detection || request.wait.is_none() {
            return false;
        }
        let verdict = circles::verdict(self, request, keys);
        self.verdicts[0] += 1;
        self.verdicts[1] += usize::from(verdict.is_none());
        verdict.unwrap_or(self.refuses)
    }

    /// Enters the queues, and lets nothing come of it yet. Gives the name of the request.
    pub fn enter(&mut self, request: &Request, keys: &[String]) -> u64 {
        if !keys.is_empty() {
            return self.enter_many(request, keys);
        }
        let (key, owner, limit) = (&request.key, &request.owner, request.limit);
        let wait = self.wait(request);
        let id = wait.id;
        let place = match self.lock(key).stand(owner, limit) {
            Stand::Upgrades => self.stand_to_upgrade(key, owner, limit),
            _ => self.stand(key, owner, limit),
        };
        place.kept_until = None;
        place.waits.push(wait);
        id
    }
}
