//! The requests that wait, over all locks: found by name, by owner and by connection.

use super::deadline::DueKey;
use super::index::{ByNumber, NumberIndex};
use super::line::RequestId;
use super::{Limit, Millis, Name, NameRef};
use std::collections::hash_map::{Entry as Slot, RandomState};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::rc::Rc;

/// Where a waiting request stands.
#[derive(Debug)]
pub enum Stand {
    /// In the queue of one lock: at the place with this number.
    One(Name, u64),
    /// In the queues of many.
    Many(Box<Many>),
}

/// A request for many locks at once.
#[derive(Debug)]
pub struct Many {
    /// Who asks.
    pub owner: Rc<[u8]>,
    /// The connection's client id.
    pub client: u64,
    /// The lease, from the grant on.
    pub lease: Millis,
    /// `HOLDS n`: make the hold counts at least n rather than one more.
    pub holds: Option<u32>,
    /// The most owners that may hold at once.
    pub limit: Limit,
    /// Whether the holds are to end with the connection.
    pub session: bool,
    /// When its time is up; none for a wait without bound.
    pub until: Option<DueKey>,
    /// The locks in the order of the request, and the number of its place in each one's queue: none where it does not
    /// queue, as the owner held the lock when it was last looked at.
    pub locks: Vec<(Name, Option<u64>)>,
}

impl Many {
    /// The number of its place in this lock's queue.
    pub fn number(&mut self, name: NameRef) -> Option<&mut Option<u64>> {
        self.locks
            .iter_mut()
            .find(|(lock, _)| lock.lend() == name)
            .map(|(_, number)| number)
    }
}

/// The names of an owner's waiting requests: mostly one.
#[derive(Debug)]
enum Ids {
    One(RequestId),
    // An owner may wait for a hundred thousand locks by a channel, and be granted each by itself. Boxed, since this is rare
    // and would make the usual case half as large again.
    #[allow(clippy::box_collection)]
    More(Box<BTreeSet<RequestId>>),
}

/// The requests of one connection that wait by a channel: mostly always the same one, so its name is shared.
#[derive(Debug)]
struct Notified {
    channel: Rc<[u8]>,
    ids: BTreeSet<RequestId>,
}

/// All waiting requests.
#[derive(Debug, Default)]
pub struct Requests {
    by_id: NumberIndex<Stand>,
    // By the hash of the owner's name: owners are kept with their places, and there may be many.
    by_owner: NumberIndex<Ids>,
    hash: RandomState,
    // How many requests block each connection. One, unless a connection is not what it should be.
    blocked: ByNumber<u32>,
    // Those that wait by a channel, by connection.
    notified: ByNumber<Notified>,
    notifies: usize,
    last: RequestId,
}

impl Requests {
    /// A name that no other request has had.
    pub fn fresh(&mut self) -> RequestId {
        self.last += 1;
        self.last
    }

    /// How many connections are blocked.
    pub fn blocked(&self) -> usize {
        self.by_id.len() - self.notifies
    }

    /// How many requests wait by a channel.
    pub fn notifies(&self) -> usize {
        self.notifies
    }

    /// Whether a request of this connection blocks it.
    pub fn blocks(&self, client: u64) -> bool {
        self.blocked.contains_key(&client)
    }

    /// Where a request stands.
    pub fn get(&self, id: RequestId) -> Option<&Stand> {
        self.by_id.get(&id)
    }

    /// A request for many locks.
    pub fn many_mut(&mut self, id: RequestId) -> Option<&mut Many> {
        match self.by_id.get_mut(&id) {
            Some(Stand::Many(many)) => Some(many),
            _ => None,
        }
    }

    /// What stands for an owner in the indexes. Owners cannot choose it, so two with the same one are not to be expected.
    pub fn hash(&self, owner: &[u8]) -> u64 {
        self.hash.hash_one(owner)
    }

    /// The names of the requests of an owner, given by the hash of its name.
    pub fn of_owner(&self, owner: u64) -> impl Iterator<Item = RequestId> + '_ {
        let (one, more) = match self.by_owner.get(&owner) {
            None => (None, None),
            Some(Ids::One(id)) => (Some(*id), None),
            Some(Ids::More(ids)) => (None, Some(ids.iter().copied())),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    /// Whether an owner, given by the hash of its name, waits for anything.
    pub fn waits(&self, owner: u64) -> bool {
        self.by_owner.get(&owner).is_some()
    }

    /// The next of the requests by which this connection waits on a channel.
    pub fn notified(&self, client: u64) -> Option<RequestId> {
        self.notified.get(&client)?.ids.first().copied()
    }

    /// The name of a channel that this connection is to wait by, kept.
    pub fn channel(&self, client: u64, channel: &[u8]) -> Rc<[u8]> {
        let known = self.notified.get(&client).map(|notified| &notified.channel);
        match known.filter(|known| ***known == *channel) {
            Some(known) => known.clone(),
            None => Rc::from(channel),
        }
    }

    /// Adds a request of this owner and connection, which waits by a channel if it has one.
    pub fn add(
        &mut self,
        id: RequestId,
        owner: &[u8],
        client: u64,
        channel: Option<&Rc<[u8]>>,
        at: Stand,
    ) {
        self.by_id.insert(id, at);
        let hash = self.hash(owner);
        match self.by_owner.get_mut(&hash) {
            None => drop(self.by_owner.insert(hash, Ids::One(id))),
            Some(Ids::More(ids)) => drop(ids.insert(id)),
            Some(ids) => {
                if let Ids::One(first) = *ids {
                    *ids = Ids::More(Box::new(BTreeSet::from([first, id])));
                }
            }
        }
        if let Some(channel) = channel {
            let notified = self.notified.entry(client).or_insert_with(|| Notified {
                channel: channel.clone(),
                ids: BTreeSet::new(),
            });
            notified.ids.insert(id);
            self.notifies += 1;
        } else {
            *self.blocked.entry(client).or_default() += 1;
        }
    }

    /// Takes a request of this owner and connection out. Gives where it stood.
    pub fn remove(&mut self, id: RequestId, owner: &[u8], client: u64) -> Option<Stand> {
        let (_, stand) = self.by_id.remove(&id)?;
        let hash = self.hash(owner);
        match self.by_owner.get_mut(&hash) {
            Some(Ids::More(ids)) if ids.len() > 1 => drop(ids.remove(&id)),
            _ => drop(self.by_owner.remove(&hash)),
        }
        if let Slot::Occupied(mut notified) = self.notified.entry(client) {
            if notified.get_mut().ids.remove(&id) {
                self.notifies -= 1;
                if notified.get().ids.is_empty() {
                    notified.remove();
                }
                return Some(stand);
            }
        }
        if let Slot::Occupied(mut count) = self.blocked.entry(client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(stand)
    }

    /// Forgets all of them, but no name is given a second time.
    pub fn clear(&mut self) {
        *self = Requests {
            last: self.last,
            hash: self.hash.clone(),
            ..Requests::default()
        };
    }
}
