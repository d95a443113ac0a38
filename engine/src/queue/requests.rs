//! The requests that wait, over all locks: found by number and by owner.

use super::deadlines::DueKey;
use super::LockId;
use crate::collections::{shrink_if_empty, ByNumber};
use crate::invariants::broken;
use crate::types::{Arrival, OwnerHash, RequestId, SessionNo, SteadyMs, Terms};
use std::collections::hash_map::RandomState;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::iter::successors;
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

/// A request that waits.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The owner that asks.
    pub owner: Rc<[u8]>,
    /// The hash of the actor that asks, by which the search for circles finds it.
    pub hash: OwnerHash,
    /// The terms of the request.
    pub terms: Terms,
    /// When its time is up; none for a wait without bound.
    pub until: Option<DueKey<SteadyMs>>,
    /// Where it waits.
    pub at: WaitsAt,
}

// A size class of every malloc: there may be a million of them.
const _: () = assert!(std::mem::size_of::<Request>() <= 96);

/// Where a request waits.
#[derive(Debug, Clone)]
pub(crate) enum WaitsAt {
    /// At one lock.
    One(Part),
    /// At many locks at once, in the order of the request. Boxed twice, so that the other case stays small.
    Many(Box<Box<[Part]>>),
}

/// A request's place at one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    /// The lock.
    pub lock: LockId,
    /// The number of its place there.
    pub place: Arrival,
}

impl Part {
    /// Returns the place with this number in this lock's queue, if there are both.
    pub(crate) fn at(lock: Option<LockId>, place: Option<Arrival>) -> Option<Part> {
        let (lock, place) = lock.zip(place)?;
        Some(Part { lock, place })
    }
}

impl Request {
    /// Returns its parts, one for each lock.
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.at {
            WaitsAt::One(part) => std::slice::from_ref(part),
            WaitsAt::Many(parts) => parts,
        }
    }

    /// Returns true if it blocks its connection: it waits in no session.
    pub(crate) fn blocks(&self) -> bool {
        self.terms.session.is_none()
    }

    /// Returns true if it is an actor's of a session.
    fn is_actor(&self) -> bool {
        self.terms.session.is_some() && actor(&self.owner).is_some()
    }

    /// Returns true if it is for many locks.
    pub(crate) fn is_many(&self) -> bool {
        matches!(self.at, WaitsAt::Many(_))
    }
}

/// Returns the actor that an owner's name in a session begins with.
pub(crate) fn actor(owner: &[u8]) -> Option<&[u8]> {
    let end = owner.iter().rposition(|byte| *byte == b'#')?;
    owner.get(..end)
}

/// All waiting requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests {
    by_id: ByNumber<RequestId, Box<Request>>,
    // By the hash of the owner's name. An owner mostly has one, but may wait for a hundred thousand locks in a session.
    by_owner: BTreeSet<(OwnerHash, RequestId)>,
    // How many owners have any.
    owners: usize,
    hash: RandomState,
    // How many wait in a session, and how many are an actor's of a session.
    apart: usize,
    actors: usize,
    last: u64,
}

impl Requests {
    /// Returns a number that no other request has had.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.last += 1;
        RequestId(self.last)
    }

    /// Returns how many requests wait by a blocked connection.
    pub(crate) fn blocked(&self) -> usize {
        self.by_id.len() - self.apart
    }

    /// Returns how many requests wait in a session.
    pub(crate) fn apart(&self) -> usize {
        self.apart
    }

    /// Returns a request.
    pub(crate) fn get(&self, id: RequestId) -> Option<&Request> {
        self.by_id.get(&id).map(|request| &**request)
    }

    /// Returns a request.
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.by_id.get_mut(&id).map(|request| &mut **request)
    }

    /// Hashes an owner for the indexes.
    pub(crate) fn hash(&self, owner: &[u8]) -> OwnerHash {
        OwnerHash(self.hash.hash_one(owner))
    }

    /// Hashes an actor of a session, or else an owner: what stands before the last `#` of an owner's name is the actor.
    pub(crate) fn actor_hash(&self, owner: &[u8], session: Option<SessionNo>) -> OwnerHash {
        match session.zip(actor(owner)) {
            Some(actor) => OwnerHash(self.hash.hash_one(actor)),
            None => self.hash(owner),
        }
    }

    /// Returns true if an actor of a session waits for anything.
    pub(crate) fn actors_wait(&self) -> bool {
        self.actors > 0
    }

    /// Returns an owner's waiting requests, in order.
    pub(crate) fn of_owner(&self, owner: OwnerHash) -> impl Iterator<Item = RequestId> + '_ {
        let all = (owner, RequestId(0))..=(owner, RequestId(u64::MAX));
        self.by_owner.range(all).map(|(_, id)| *id)
    }

    /// Returns true if an owner waits for anything.
    pub(crate) fn waits(&self, owner: OwnerHash) -> bool {
        self.of_owner(owner).next().is_some()
    }

    /// Returns how many owners wait.
    pub(crate) fn owners(&self) -> usize {
        self.owners
    }

    /// Returns each owner that waits, with its name, in no order.
    pub(crate) fn each_owner(&self) -> impl Iterator<Item = (OwnerHash, &[u8])> {
        let next = |(owner, _): &&(OwnerHash, RequestId)| {
            let last = (*owner, RequestId(u64::MAX));
            self.by_owner.range((Excluded(last), Unbounded)).next()
        };
        let firsts = successors(self.by_owner.first(), next);
        firsts.filter_map(|(hash, id)| Some((*hash, &*self.get(*id)?.owner)))
    }

    /// Adds a request.
    pub(crate) fn add(&mut self, id: RequestId, request: Box<Request>) {
        self.owners += usize::from(!self.waits(request.hash));
        self.by_owner.insert((request.hash, id));
        self.apart += usize::from(!request.blocks());
        self.actors += usize::from(request.is_actor());
        if self.by_id.insert(id, request).is_some() {
            broken!("a request's number is given once");
        }
    }

    /// Takes a request out.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Box<Request>> {
        let request = self.by_id.remove(&id)?;
        shrink_if_empty(&mut self.by_id);
        self.by_owner.remove(&(request.hash, id));
        self.owners -= usize::from(!self.waits(request.hash));
        self.apart -= usize::from(!request.blocks());
        self.actors -= usize::from(request.is_actor());
        Some(request)
    }
}
