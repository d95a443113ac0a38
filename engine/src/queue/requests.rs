//! The requests that wait, over all locks: found by number, by owner and by connection.

use super::deadlines::DueKey;
use super::LockId;
use crate::collections::{shrink_if_empty, ByNumber};
use crate::invariants::broken;
use crate::types::{Arrival, ClientId, Now, OwnerHash, RequestId, SessionNo, SteadyMs, Terms};
use std::collections::hash_map::{Entry as Slot, RandomState};
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
    /// The channel that the outcome is published on; none for a blocked connection.
    pub channel: Option<Rc<[u8]>>,
    /// Where it waits.
    pub at: WaitsAt,
}

// A size class of every malloc: there may be a million of them.
const _: () = assert!(std::mem::size_of::<Request>() <= 112);

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

    /// Returns true if it blocks its connection: it waits neither by a channel nor in a session.
    pub(crate) fn blocks(&self) -> bool {
        self.channel.is_none() && self.terms.session.is_none()
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

/// The requests of one connection that wait by a channel: mostly the same channel, so its name is shared.
#[derive(Debug, Clone)]
struct Notified {
    channel: Rc<[u8]>,
    ids: BTreeSet<RequestId>,
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
    // By the hash of the owner's name. An owner mostly has one, but may wait for a hundred thousand locks by a channel.
    by_owner: BTreeSet<(OwnerHash, RequestId)>,
    // How many owners have any.
    owners: usize,
    hash: RandomState,
    // Those that wait by a channel, by connection.
    notified: ByNumber<ClientId, Notified>,
    notifies: usize,
    // How many block no connection, and how many are an actor's of a session.
    apart: usize,
    actors: usize,
    last: u64,
}

impl Requests {
    /// Returns a number that no other request has had. It follows the wall clock, so that a client sees no number of an earlier
    /// run of the server a second time.
    pub(crate) fn next_id(&mut self, now: Now) -> RequestId {
        self.last = (self.last + 1).max(now.us);
        RequestId(self.last)
    }

    /// Returns how many requests wait by a blocked connection.
    pub(crate) fn blocked(&self) -> usize {
        self.by_id.len() - self.apart
    }

    /// Returns how many requests wait by no blocked connection: by a channel, or in a session.
    pub(crate) fn apart(&self) -> usize {
        self.apart
    }

    /// Returns how many requests wait by a channel.
    pub(crate) fn notifies(&self) -> usize {
        self.notifies
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

    /// Returns the next of the requests by which this connection waits on a channel.
    pub(crate) fn notified(&self, client: ClientId) -> Option<RequestId> {
        self.notified.get(&client)?.ids.first().copied()
    }

    /// Returns the channel's name for a request of this connection, shared if it waits by that channel already.
    pub(crate) fn channel(&self, client: ClientId, channel: &[u8]) -> Rc<[u8]> {
        let known = self.notified.get(&client).map(|notified| &notified.channel);
        match known.filter(|known| ***known == *channel) {
            Some(known) => known.clone(),
            None => Rc::from(channel),
        }
    }

    /// Adds a request.
    pub(crate) fn add(&mut self, id: RequestId, request: Box<Request>) {
        self.owners += usize::from(!self.waits(request.hash));
        self.by_owner.insert((request.hash, id));
        self.apart += usize::from(!request.blocks());
        self.actors += usize::from(request.is_actor());
        if let Some(channel) = &request.channel {
            let notified = self.notified.entry(request.terms.client);
            let notified = notified.or_insert_with(|| Notified {
                channel: channel.clone(),
                ids: BTreeSet::new(),
            });
            notified.ids.insert(id);
            self.notifies += 1;
        }
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
        if request.channel.is_some() {
            self.notifies -= 1;
            if let Slot::Occupied(mut notified) = self.notified.entry(request.terms.client) {
                notified.get_mut().ids.remove(&id);
                if notified.get().ids.is_empty() {
                    notified.remove();
                }
            }
        }
        Some(request)
    }
}
