//! The play: all that wait for nothing give back what they hold, and the queues are served, until nothing moves any more.

use super::look::{Bounded, Look, Target};
use crate::types::{Arrival, Limit};

/// Holders that give nothing back.
#[derive(Clone, Copy)]
pub(super) struct Staying {
    count: usize,
    strictest: Limit,
}

impl Staying {
    /// Returns true if one more may hold beside them, by the granting rule.
    pub(super) fn allows(self, limit: Limit) -> bool {
        self.count == 0 || self.strictest.min(limit).allows(self.count + 1)
    }
}

impl Look<'_> {
    pub(super) fn play(&mut self) -> Bounded<()> {
        for lock in &mut self.locks {
            lock.waits.sort_unstable();
        }
        // Waits that may be grantable. What was found last is what the others depend on: it is looked at first.
        let mut candidates: Vec<usize> = (0..self.waits.len()).collect();
        while let Some(wait) = candidates.pop() {
            self.spend(1)?;
            if !self.waits[wait].granted && self.is_grantable(wait)? {
                self.grant(wait, &mut candidates)?;
            }
        }
        Ok(())
    }

    fn is_grantable(&mut self, wait: usize) -> Bounded<bool> {
        for nth in 0..self.waits[wait].targets.len() {
            let Target {
                lock,
                number,
                limit,
            } = self.waits[wait].targets[nth];
            self.spend(1)?;
            if self.head(lock).map(|(_, head)| head) != Some(wait) {
                return Ok(false);
            }
            let staying = self.staying(lock, self.waits[wait].owner)?;
            if !staying.allows(limit) {
                return Ok(false);
            }
            let before = self.first_incompatible_before(lock, number, staying)?;
            if before.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A wait is granted: its owner holds the lock, and gives all back once it waits for nothing any more.
    fn grant(&mut self, wait: usize, candidates: &mut Vec<usize>) -> Bounded<()> {
        self.waits[wait].granted = true;
        let owner = self.waits[wait].owner;
        self.owners[owner].ungranted -= 1;
        for nth in 0..self.waits[wait].targets.len() {
            let Target { lock, limit, .. } = self.waits[wait].targets[nth];
            let holders = &mut self.locks[lock].holders;
            match holders.iter_mut().find(|(holder, _)| *holder == owner) {
                Some((_, held)) => *held = limit,
                None => {
                    holders.push((owner, limit));
                    self.owners[owner].holds.push(lock);
                }
            }
            let steps = holders.len();
            self.spend(steps)?;
            candidates.extend(self.head(lock).map(|(_, wait)| wait));
        }
        if self.owners[owner].ungranted == 0 {
            self.spend(self.owners[owner].holds.len())?;
            for nth in 0..self.owners[owner].holds.len() {
                let lock = self.owners[owner].holds[nth];
                candidates.extend(self.head(lock).map(|(_, wait)| wait));
            }
        }
        Ok(())
    }

    /// Returns the first of the known waits of a lock that is not granted.
    pub(super) fn head(&mut self, lock: usize) -> Option<(Arrival, usize)> {
        let node = &mut self.locks[lock];
        while let Some((number, wait)) = node.waits.get(node.granted) {
            if !self.waits[*wait].granted {
                return Some((*number, *wait));
            }
            node.granted += 1;
        }
        None
    }

    /// Returns the holders that give nothing back, other than this owner.
    pub(super) fn staying(&mut self, lock: usize, owner: usize) -> Bounded<Staying> {
        self.spend(self.locks[lock].holders.len())?;
        let owners = &self.owners;
        let holders = &mut self.locks[lock].holders;
        // Who gives back has done so for good.
        holders.retain(|(holder, _)| owners[*holder].ungranted > 0);
        let others = holders.iter().filter(|(holder, _)| *holder != owner);
        let mut staying = Staying {
            count: 0,
            strictest: Limit::SHARED,
        };
        for (_, limit) in others {
            staying.count += 1;
            staying.strictest = staying.strictest.min(*limit);
        }
        Ok(staying)
    }

    /// Returns the first place before this number whose owner waits for nothing else, and that is not compatible with the
    /// holders that give nothing back. (Whoever has a place behind others is none of these.)
    pub(super) fn first_incompatible_before(
        &mut self,
        lock: usize,
        number: Arrival,
        staying: Staying,
    ) -> Bounded<Option<Arrival>> {
        if staying.count == 0 {
            return Ok(None);
        }
        self.head(lock);
        let node = &self.locks[lock];
        // Those before a place that was granted have had their turn.
        let served = node.waits[..node.granted].last().map(|(at, _)| *at);
        let queue = node.queue;
        let places = queue.from(served.unwrap_or(Arrival::AHEAD));
        for (at, place) in places.skip_while(|(at, _)| Some(*at) == served) {
            if at >= number {
                break;
            }
            self.spend(1)?;
            let stands = place
                .request()
                .is_some_and(|id| !self.replaced.contains(&id) && !self.wait_at.contains_key(&id));
            if stands && !staying.allows(place.limit) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}
