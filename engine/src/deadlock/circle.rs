//! What is left standing after the play: the knot that has to be untied, and the circle as an error names it.

use super::look::{Bounded, Look, Target};
use super::text::{Circle, Step, STEPS_NAMED};
use crate::types::{Arrival, RequestId};
use std::rc::Rc;

/// One wait that is left standing is in the way of another.
#[derive(Clone, Copy)]
struct Arrow {
    /// The one that is in the way.
    to: usize,
    /// At which lock.
    lock: usize,
    /// Whether by its place in the queue; else by a hold of its owner.
    queued: bool,
}

impl Look<'_> {
    /// Returns what is in the way of a wait that is left standing: at each lock the holders with which it is not compatible, else
    /// the head of the queue.
    fn arrows(&mut self, wait: usize) -> Bounded<Vec<Arrow>> {
        let mut arrows = Vec::new();
        let owner = self.waits[wait].owner;
        for nth in 0..self.waits[wait].targets.len() {
            self.spend(1)?;
            let Target {
                lock,
                number,
                limit,
            } = self.waits[wait].targets[nth];
            let staying = self.staying(lock, owner)?;
            if !staying.allows(limit) {
                let holders = self.locks[lock].holders.iter().map(|(holder, _)| *holder);
                let others = holders.filter(|holder| *holder != owner);
                let waits = others.flat_map(|holder| &self.owners[holder].waits);
                let stuck = waits.filter(|wait| !self.waits[**wait].granted);
                let queued = false;
                arrows.extend(stuck.map(|to| Arrow {
                    to: *to,
                    lock,
                    queued,
                }));
                self.spend(arrows.len())?;
                continue;
            }
            let head = self.head(lock).filter(|(at, _)| *at < number);
            let end = head.map_or(number, |(at, _)| at);
            let to = match self.first_incompatible_before(lock, end, staying)? {
                Some(at) => self.add_bystander(lock, at)?,
                None => head.map(|(_, wait)| wait),
            };
            let queued = true;
            arrows.extend(to.map(|to| Arrow { to, lock, queued }));
        }
        Ok(arrows)
    }

    /// Adds the wait at a place that has come up only now. Returns its node.
    fn add_bystander(&mut self, lock: usize, number: Arrival) -> Bounded<Option<usize>> {
        let queue = self.locks[lock].queue;
        let Some((place, id)) = queue
            .place(number)
            .and_then(|place| Some((place, place.request()?)))
        else {
            return Ok(None);
        };
        let owner = self.owner(self.requests.hash(&place.owner));
        let wait = self.add_request(owner, id)?;
        let node = &mut self.locks[lock];
        if let Some(late) = node.waits.pop() {
            let at = node.waits.partition_point(|other| *other < late);
            node.waits.insert(at, late);
            node.granted = node.granted.min(at);
        }
        Ok(wait)
    }

    /// Returns a knot that one comes to from a request that is left standing: requests of which each is in the way of each other,
    /// directly or not, and nobody else is in the way of any. Every knot has a circle, and which knot is untied first makes no
    /// difference to the others.
    ///
    /// Tarjan's algorithm (1972), up to the first component that is complete.
    pub(crate) fn knot(&mut self, from: RequestId) -> Bounded<Vec<RequestId>> {
        self.renew_steps();
        let mut stack: Vec<usize> = Vec::new();
        let mut path: Vec<(usize, Vec<Arrow>)> = Vec::new();
        // Where a wait is on the stack (nothing leaves that before the component is complete), and the lowest that it leads to.
        let mut index: Vec<Option<usize>> = Vec::new();
        let mut low: Vec<usize> = Vec::new();
        let mut next = self.wait_at.get(&from).copied();
        loop {
            self.spend(1)?;
            if let Some(wait) = next.take() {
                path.push((wait, self.arrows(wait)?));
                index.resize(self.waits.len(), None);
                index[wait] = Some(stack.len());
                low.push(stack.len());
                stack.push(wait);
            }
            let Some((wait, arrows)) = path.last_mut() else {
                return Ok(Vec::new());
            };
            let own = index[*wait].unwrap_or_default();
            if let Some(arrow) = arrows.pop() {
                match index[arrow.to] {
                    None => next = Some(arrow.to),
                    Some(known) => low[own] = low[own].min(low[known]),
                }
                continue;
            }
            if low[own] == own {
                let knot = stack[own..].iter();
                return Ok(knot.map(|wait| self.waits[*wait].id).collect());
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                let before = index[*before].unwrap_or_default();
                low[before] = low[before].min(low[own]);
            }
        }
    }

    /// Returns the circle that one comes to from a request that is left standing, by what is first in the way of each; the way, if
    /// that is long. `asks` is the owner of the request that is in no queue yet.
    pub(crate) fn circle(&mut self, from: RequestId, asks: &[u8]) -> Circle {
        self.renew_steps();
        let mut way: Vec<(usize, Arrow)> = Vec::new();
        let mut seen: Vec<Option<usize>> = Vec::new();
        let mut at = self.wait_at.get(&from).copied();
        let mut first = None;
        while let (Some(wait), None) = (at, first) {
            let arrow = self
                .arrows(wait)
                .ok()
                .and_then(|arrows| arrows.first().copied());
            at = arrow.map(|arrow| arrow.to);
            way.extend(arrow.map(|arrow| (wait, arrow)));
            seen.resize(self.waits.len(), None);
            seen[wait] = Some(way.len() - 1);
            first = at.and_then(|next| seen[next]);
        }
        let circle = &way[first.unwrap_or(0)..];
        let named = circle.iter().take(STEPS_NAMED);
        Circle {
            named: named
                .map(|(wait, arrow)| self.step(*wait, *arrow, asks))
                .collect(),
            more: first.map(|_| circle.len().saturating_sub(STEPS_NAMED)),
        }
    }

    fn step(&self, wait: usize, arrow: Arrow, asks: &[u8]) -> Step {
        let owner = |wait: usize| match self.requests.get(self.waits[wait].id) {
            Some(request) => request.owner.clone(),
            None => Rc::from(asks),
        };
        Step {
            waiter: owner(wait),
            name: self.locks[arrow.lock].name.to_owned(),
            blocker: owner(arrow.to),
            queued: arrow.queued,
        }
    }
}
