//! Renewals, releases, and events from outside.

use super::{Answer, Hold, Lock, Model, Place, Tie, Value, Wait};
use dlock_commands::error::Error;
use dlock_engine::Millis;
use dlock_engine::Policy;
use dlock_engine::Refusal;

impl Model {
    /// Returns the owner's hold, under this token if one is named.
    fn held(&mut self, key: &str, owner: &str, grant: Option<u64>) -> Result<&mut Hold, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::Refused(Refusal::WrongType));
        }
        let its =
            |hold: &&mut Hold| hold.owner == owner && grant.is_none_or(|grant| grant == hold.grant);
        lock.holds
            .iter_mut()
            .find(its)
            .ok_or(Error::Refused(Refusal::NotHeld))
    }

    /// Sets a new lease, and ties the hold as the last renewal says; but EPHEMERAL of this connection stays.
    pub fn renew(
        &mut self,
        key: &str,
        owner: &str,
        grant: Option<u64>,
        lease: Millis,
        asked: Option<Tie>,
    ) -> Result<u64, Error> {
        let hold = self.held(key, owner, grant)?.clone();
        let wanted = self.now + lease;
        // A lower bound ends no existing lease earlier.
        let deadline = self
            .bounded(hold.since, wanted)
            .max(hold.deadline.min(wanted));
        let before = self.held(key, owner, None)?.clone();
        let ephemeral = before.ephemeral();
        let tie = match asked {
            Some(tie) => Some(Tie {
                ephemeral: tie.ephemeral || ephemeral == Some(tie.client),
                ..tie
            }),
            None => ephemeral.map(|client| Tie {
                client,
                ephemeral: true,
                auto: None,
            }),
        };
        let hold = self.held(key, owner, None)?;
        (hold.deadline, hold.tie, hold.touched) = (deadline, tie, true);
        // The module writes the hold even if its end stays.
        self.lock(key).ttl = None;
        let left = deadline.saturating_sub(self.now);
        self.settle();
        Ok(left)
    }

    /// Releases one hold, or all but `leave` of them.
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
        self.leave_holds(key, owner, left);
        self.settle();
        Ok(u64::from(left))
    }

    fn leave_holds(&mut self, key: &str, owner: &str, left: u32) {
        let holds = &mut self.lock(key).holds;
        for hold in holds.iter_mut().filter(|hold| hold.owner == owner) {
            (hold.holds, hold.touched) = (left, true);
        }
        holds.retain(|hold| hold.holds > 0);
    }

    /// Renews all of the leases or none. Returns the rest of the shortest.
    pub fn renew_many(
        &mut self,
        keys: &[String],
        owner: &str,
        lease: Millis,
        asked: Option<Tie>,
    ) -> Result<u64, Error> {
        for key in keys {
            self.held(key, owner, None)?;
        }
        let left = keys
            .iter()
            .map(|key| self.renew(key, owner, None, lease, asked));
        let left: Result<Vec<u64>, Error> = left.collect();
        Ok(left?.into_iter().min().unwrap_or(lease))
    }

    /// Releases one hold of each lock that the owner holds, and only then serves the queues.
    pub fn release_many(
        &mut self,
        keys: &[String],
        owner: &str,
    ) -> Result<Vec<Option<u32>>, Error> {
        if keys.iter().any(|key| self.lock(key).foreign) {
            return Err(Error::Refused(Refusal::WrongType));
        }
        let mut remaining = Vec::new();
        for key in keys {
            let left = self.held(key, owner, None).ok().map(|hold| hold.holds - 1);
            self.leave_holds(key, owner, left.unwrap_or(0));
            remaining.push(left);
        }
        self.settle();
        Ok(remaining)
    }

    /// Weakens the limit; everything else stays.
    pub fn downgrade(&mut self, key: &str, owner: &str, limit: usize) -> Result<Answer, Error> {
        let hold = self.held(key, owner, None)?;
        if limit < hold.limit {
            return Err(Error::Argument("LIMIT", String::new()));
        }
        (hold.limit, hold.touched) = (limit, true);
        let (grant, holds) = (hold.grant, hold.holds);
        self.settle();
        Ok(Answer::Granted { grant, holds })
    }

    /// Ends all holds, or those of this owner.
    pub fn force(&mut self, key: &str, owner: Option<&str>) -> Result<u64, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::Refused(Refusal::WrongType));
        }
        let stays = |hold: &Hold| owner.is_some_and(|owner| owner != hold.owner);
        let before = lock.holds.len();
        lock.holds.retain(stays);
        let ended = before - lock.holds.len();
        self.settle();
        Ok(ended as u64)
    }

    /// Removes the owner's place, and answers the request that waits there.
    pub fn cancel(&mut self, key: &str, owner: &str) -> Result<u64, Error> {
        let lock = self.lock(key);
        if lock.foreign {
            return Err(Error::Refused(Refusal::WrongType));
        }
        let place = lock.place(owner).cloned();
        lock.keep_places(|place| place.owner != owner);
        if let Some(id) = place.as_ref().and_then(|place| place.wait) {
            self.end_wait(id, Answer::Cancelled);
        }
        self.settle();
        Ok(u64::from(place.is_some()))
    }

    /// Ends a connection, noticed by the server: its waits and ephemeral holds end before any waiter is served.
    pub fn dies(&mut self, client: u64) {
        for wait in self.waits.clone() {
            if wait.asked.client == client {
                self.depart(wait.id);
            }
        }
        for lock in self.locks.values_mut() {
            lock.holds.retain(|hold| hold.ephemeral() != Some(client));
            for hold in &mut lock.holds {
                hold.tie = hold.tie.filter(|tie| tie.client != client);
            }
        }
        self.cut.remove(&client);
        self.waited.remove(&client);
        self.settle();
    }

    /// Lets time pass, a millisecond at a time.
    pub fn pass(&mut self, ms: Millis) {
        self.renew_by_itself();
        for _ in 0..ms {
            self.steady += 1;
            self.step(1);
        }
    }

    /// Lets time pass on a server that does nothing meanwhile.
    pub fn stall(&mut self, ms: Millis) {
        self.steady += ms;
        self.step(ms as i64);
    }

    /// Returns the first request whose time is up.
    fn overdue(&self) -> Option<u64> {
        let late = |wait: &&Wait| wait.until.is_some_and(|until| until <= self.steady);
        let late = self.waits.iter().filter(late);
        let first = late.min_by_key(|wait| (wait.until, wait.id));
        first.map(|wait| wait.id)
    }

    /// Steps the wall clock; durations do not see it. Then everything that is due happens: holds are renewed, and leases and windows
    /// end, before the waits whose time is up.
    pub fn step(&mut self, ms: i64) {
        self.now = self.now.saturating_add_signed(ms);
        self.renew_by_itself();
        self.settle();
        while let Some(id) = self.overdue() {
            let wait = self.depart(id).expect("the request waits");
            self.tell(wait, Answer::Null);
            self.settle();
        }
        self.remove_expired_keys();
        self.revoke_undelivered();
    }

    pub fn configure(&mut self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.policy);
        self.settle();
    }

    /// Returns the durable part of a lock, as DUMP shows it.
    pub fn dump(&self, key: &str) -> Option<Value> {
        self.value(key).filter(|value| !value.foreign)
    }

    fn value(&self, key: &str) -> Option<Value> {
        let lock = self.locks.get(key).filter(|lock| lock.exists())?;
        let tickets = lock.queue.iter().filter(|place| place.claim.is_some());
        // The window of an absent ticket.
        let kept_until = |place: &Place| place.kept_until.filter(|_| place.wait.is_none());
        let ticket = |place: &Place| Place {
            kept_until: kept_until(place),
            ..place.clone()
        };
        Some(Value {
            foreign: lock.foreign,
            holds: lock.holds.clone(),
            tickets: tickets.map(ticket).collect(),
        })
    }

    /// Takes the value from the key, with the tickets without a waiting request. Waiters stay.
    fn take_value(&mut self, key: &str) -> Option<Value> {
        let value = self.value(key);
        let lock = self.lock(key);
        (lock.foreign, lock.ttl) = (false, None);
        lock.holds.clear();
        lock.queue.retain(|place| place.wait.is_some());
        value
    }

    /// Puts a value with its holders and tickets at a key. The tickets are ordered by number among the waiters. One that was absent
    /// before keeps the rest of its window, and others get a fresh one. An owner may have two places then, until that is settled.
    fn put_value(&mut self, key: &str, value: Value) {
        let (steady, default) = (self.steady, self.policy.claim_window_ms);
        let lock = self.lock(key);
        (lock.foreign, lock.ttl) = (value.foreign, None);
        lock.holds = value.holds;
        // A ticket equal to one that is here is that ticket, and its window continues.
        let told = |place: &Place| {
            let share = (place.limit, place.permits);
            (place.owner.clone(), place.arrival, share, place.claim)
        };
        let same = |one: &Place, other: &Place| told(one) == told(other);
        let comes = |place: &Place| value.tickets.iter().any(|ticket| same(ticket, place));
        lock.queue
            .retain(|place| place.wait.is_some() || comes(place));
        for ticket in &value.tickets {
            let its =
                |place: &Place| (&place.owner, place.arrival) == (&ticket.owner, ticket.arrival);
            if !lock.queue.iter().any(its) {
                let window = ticket.claim.unwrap_or(0).max(default);
                let fresh = steady + window;
                let kept_until = ticket.kept_until.map_or(fresh, |until| until.min(fresh));
                let (wait, kept_until) = (None, Some(kept_until));
                lock.queue.push(Place {
                    wait,
                    kept_until,
                    ..ticket.clone()
                });
            }
        }
        lock.queue.sort_by_key(|place| place.arrival);
    }

    /// Removes these keys, in one event.
    pub fn del(&mut self, keys: &[String]) {
        for key in keys {
            self.take_value(key);
        }
        self.settle();
    }

    /// Replaces the value at the key by one of another type.
    pub fn overwrite(&mut self, key: &str) {
        let foreign = true;
        self.put_value(
            key,
            Value {
                foreign,
                ..Value::default()
            },
        );
        self.settle();
    }

    /// Renames a lock; the TTL of its key goes with it. Where a request is queued, or several owners hold it, the module writes
    /// to it at once.
    pub fn rename(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        let Lock { ttl, written, .. } = self.lock(from).clone();
        if let Some(value) = self.take_value(from) {
            self.put_value(to, value.untied());
            let lock = self.lock(to);
            if lock.in_order().next().is_none() && lock.holds.len() < 2 {
                (lock.ttl, lock.written) = (ttl, written);
            }
        }
        self.settle();
    }

    /// Gives the key a TTL, as a user does.
    pub fn expire(&mut self, key: &str, ms: Millis) {
        let end = self.now + ms;
        let lock = self.lock(key);
        lock.ttl = lock.exists().then_some(end);
        self.settle();
    }

    /// Returns true if the server would remove the key before the first of its leases ends.
    pub fn would_remove(&self, key: &str, ms: Millis) -> bool {
        let holds = self.locks.get(key).into_iter().flat_map(|lock| &lock.holds);
        let first = holds.map(|hold| hold.deadline).min();
        first.is_some_and(|first| self.now + ms < first)
    }

    /// Swaps two databases.
    pub fn swap(&mut self, one: u32, other: u32) {
        let swapped = |key: &str| match key.split_once(':') {
            Some((db, rest)) if db == one.to_string() => format!("{other}:{rest}"),
            Some((db, rest)) if db == other.to_string() => format!("{one}:{rest}"),
            _ => key.to_string(),
        };
        let keys: Vec<String> = self
            .locks
            .keys()
            .filter(|key| swapped(key) != **key)
            .cloned()
            .collect();
        let values: Vec<(String, Option<Value>)> = keys
            .iter()
            .map(|key| (swapped(key), self.take_value(key)))
            .collect();
        for (key, value) in values {
            self.put_value(&key, value.unwrap_or_default().untied());
        }
        self.settle();
    }

    /// Puts a user's value at a key: its holds have no connections, and its leases are bounded.
    pub fn restore(&mut self, key: &str, mut value: Value) {
        let most = self.now + self.policy.max_restored_ms;
        for hold in &mut value.holds {
            hold.deadline = hold.deadline.min(most);
        }
        for ticket in &mut value.tickets {
            ticket.kept_until = None;
        }
        self.put_value(key, value.untied());
        self.settle();
    }
}

impl Value {
    /// Returns the value without ties: they do not travel with it.
    fn untied(mut self) -> Value {
        for hold in &mut self.holds {
            hold.tie = None;
        }
        self
    }
}
