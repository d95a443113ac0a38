//! The graph of waits, for people to read.

use crate::keyspace::Keyspace;
use crate::lock::{Hold, Lock};
use crate::queue::{LockId, Place};
use crate::state::Engine;
use crate::types::{HoldRef, Millis, Name, NameRef, Now};
use std::rc::Rc;

/// One wait of an owner for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The owner that waits.
    pub waiter: Rc<[u8]>,
    /// The lock that it waits for.
    pub name: Name,
    /// The owner that it waits for: a holder that excludes it, or the one right before it in the queue.
    pub blocker: Rc<[u8]>,
    /// Since how many milliseconds it waits.
    pub waited_ms: Millis,
    /// The session that waits.
    pub waiter_session: Option<Rc<[u8]>>,
    /// The session of the hold or place that it waits for.
    pub blocker_session: Option<Rc<[u8]>>,
}

/// The locks of one page.
const PAGE: usize = 256;

/// The most locks that one call visits: a watched lock may have nobody waiting, and there may be many.
const MOST_LOCKS: usize = 100_000;

impl Engine {
    /// Returns who waits for whom in a database, at most `most` pairs. A waiter has a pair with each holder in its way, or, with
    /// none, with the one right before it in the queue. Locks that are not `readable` are left out. Absent tickets wait for
    /// nobody, but are before others.
    pub fn graph(
        &self,
        keys: &mut impl Keyspace,
        now: Now,
        db: u32,
        most: usize,
        readable: &dyn Fn(&[&[u8]]) -> Vec<bool>,
    ) -> Vec<Edge> {
        let mut edges = Vec::new();
        let (mut next, mut looked) = (Some(0), 0);
        while let Some(from) = next.filter(|_| looked < MOST_LOCKS && edges.len() < most) {
            let (page, after) = self.queues.keys_from(db, from, PAGE);
            looked += page.len();
            next = after;
            let queued = |key: Rc<[u8]>| {
                let lock = self.queues.id(NameRef { db, key: &key })?;
                (!self.queues.at(lock).is_empty()).then_some((key, lock))
            };
            let page: Vec<(Rc<[u8]>, LockId)> = page.into_iter().filter_map(queued).collect();
            let asked: Vec<&[u8]> = page.iter().map(|(key, _)| &**key).collect();
            let shown = page.iter().zip(readable(&asked)).filter(|(_, may)| *may);
            for ((_, lock), _) in shown {
                if edges.len() < most {
                    self.waits_for(keys, now, *lock, most, &mut edges);
                }
            }
        }
        edges
    }

    /// Adds the pairs of one lock.
    fn waits_for(
        &self,
        keys: &mut impl Keyspace,
        now: Now,
        lock: LockId,
        most: usize,
        edges: &mut Vec<Edge>,
    ) {
        let queue = self.queues.at(lock);
        let name = &queue.name;
        let mut before: Option<&Place> = None;
        let named = |no| Some(self.holds.sessions.get(no)?.name.clone());
        let of_place = |place: &Place| self.session_of_place(place).and_then(named);
        let mut add = |lock: &Lock| {
            for (_, place) in queue.in_order() {
                let first = before.replace(place);
                if place.is_absent() {
                    continue;
                }
                let session = of_place(place);
                let mut edge = |(blocker, blocker_session): (Rc<[u8]>, _)| {
                    edges.push(Edge {
                        waiter: place.owner.clone(),
                        name: name.clone(),
                        blocker,
                        waited_ms: place.waited_us(now) / 1000,
                        waiter_session: session.clone(),
                        blocker_session,
                    });
                    edges.len() < most
                };
                let of_hold = |hold: Hold| {
                    let (name, owner) = (name.as_ref(), hold.owner);
                    let session = self.holds.session_of(HoldRef { name, owner }, hold.token);
                    (Rc::from(owner), session.and_then(named))
                };
                let mut holders = in_the_way(lock, now, place).map(of_hold).peekable();
                let more = match (holders.peek(), first) {
                    (Some(_), _) => holders.all(&mut edge),
                    (None, Some(first)) => edge((first.owner.clone(), of_place(first))),
                    (None, None) => true,
                };
                if !more {
                    return;
                }
            }
        };
        let mut exists = false;
        keys.inspect(name.as_ref(), &mut |lock| {
            exists = true;
            add(lock);
        });
        if !exists {
            // It is reserved for the head.
            add(&Lock::FREE);
        }
    }
}

/// Returns the holds that exclude this place's owner.
fn in_the_way<'l>(
    lock: &'l Lock,
    now: Now,
    place: &'l Place,
) -> impl Iterator<Item = Hold<'l>> + 'l {
    let compatible = lock.admits(&place.owner, place.share);
    lock.holds().filter(move |hold| {
        !compatible && hold.deadline > now.wall() && *hold.owner != *place.owner
    })
}
