//! Who waits, in order: the volatile side of a lock, on the server that decides.
//!
//! A `Line` exists for a lock that somebody is queued for, or that has to be watched (see `Lock::needs_watch`). It holds
//! every place of the queue, tickets and waiters alike; of a ticket the lock's value holds the durable half.

use super::deadline::{Deadlines, Due, DueKey};
use super::index::Index;
use super::order::Order;
use super::roster::Roster;
use super::stakes::Stakes;
use super::{Limit, Millis, Name, NameRef, Now};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

/// Names one waiting request for as long as this server runs.
pub type RequestId = u64;

/// One request that waits at a place.
#[derive(Debug)]
pub struct Request {
    /// Its name towards the server.
    pub id: RequestId,
    /// The connection's client id.
    pub client: u64,
    /// The lease it asks for, from the grant on.
    pub lease: Millis,
    /// `HOLDS n`: make the hold count at least n rather than one more.
    pub holds: Option<NonZeroU32>,
    /// When its time is up; none for a wait without bound, and for a part of a request for many locks.
    pub until: Option<DueKey>,
    /// Whether the hold is to end with the connection.
    pub session: bool,
    /// Whether it is a part of a request for many locks: then it is granted only together with the others.
    pub many: bool,
    /// The channel that is told of the outcome; none for a blocked connection.
    pub channel: Option<Rc<[u8]>>,
}

/// One owner's place in a queue. Several requests of the owner share it.
#[derive(Debug)]
pub struct Place {
    /// Whose place it is.
    pub owner: Rc<[u8]>,
    /// What is asked for: the strictest of what its requests asked.
    pub limit: Limit,
    /// Since when it is there.
    pub since: Millis,
    /// Whether it is a ticket: the value that the line was last reconciled with has it at this number, too. Kept apart, as
    /// most places are none, and there may be many places.
    pub ticket: Option<Box<Keeping>>,
    /// Who waits here, in order. Empty: an absent ticket.
    pub requests: Vec<Request>,
}

/// How long a ticket is kept.
#[derive(Debug, Default)]
pub struct Keeping {
    /// For how long while nobody is there for it.
    pub claim: Millis,
    /// With no request left, when it is dropped.
    pub absent: Option<NonZeroU64>,
    /// The due entry that looks after that. It may come earlier than `absent` says, and is set anew then: a ticket that is
    /// polled again and again moves no entry.
    pub window: Option<DueKey>,
}

// Neither lies across two lines of memory: who polls a ticket in a long queue waits for each line.
const _: () = assert!(std::mem::size_of::<Place>() == 64 && std::mem::size_of::<Keeping>() == 32);

impl Place {
    /// Since when it is there, to the microsecond: a place's number is that, unless it stands ahead of the queue.
    pub fn since_us(&self, number: u64) -> u64 {
        number.max(self.since.saturating_mul(1000))
    }

    /// How long it is kept while nobody is there for it; none if it is no ticket.
    pub fn claim(&self) -> Option<Millis> {
        self.ticket.as_deref().map(|ticket| ticket.claim)
    }

    /// Makes it a ticket, or one that is kept so long.
    pub fn set_claim(&mut self, claim: Millis) {
        self.ticket.get_or_insert_with(Box::default).claim = claim;
    }

    /// With no request left, when it is dropped.
    pub fn absent(&self) -> Option<Millis> {
        let until = self.ticket.as_deref()?.absent?;
        Some(until.get())
    }

    /// Takes out the due entry that looks after its window.
    pub fn take_window(&mut self) -> Option<DueKey> {
        self.ticket
            .as_deref_mut()
            .and_then(|ticket| ticket.window.take())
    }

    /// Keeps the ticket until then although nobody is there for it. A place that is none has nothing to keep.
    pub fn keep_until(
        &mut self,
        until: Millis,
        name: &Name,
        number: u64,
        deadlines: &mut Deadlines,
    ) {
        let Some(ticket) = self.ticket.as_deref_mut() else {
            return;
        };
        ticket.absent = NonZeroU64::new(until);
        match ticket.window {
            Some(window) if window.at <= until => {}
            late => {
                if let Some(due) = late {
                    deadlines.remove(due);
                }
                let due = Due::Window(name.clone(), number);
                ticket.window = Some(deadlines.add(until, due));
            }
        }
    }

    /// Adds a request. Most places never have a second, and there may be many places: no room is kept for one.
    pub fn join(&mut self, request: Request) {
        if let Some(ticket) = self.ticket.as_deref_mut() {
            ticket.absent = None;
        }
        self.requests.reserve_exact(1);
        self.requests.push(request);
    }

    /// Whether all who wait here ask for other locks as well: then it is served only together with those.
    pub fn only_many(&self) -> bool {
        !self.requests.is_empty() && self.requests.iter().all(|request| request.many)
    }
}

/// The queue of one lock.
#[derive(Debug, Default)]
pub struct Line {
    /// The places, in order of arrival.
    pub places: Roster<Place>,
    by_owner: Index<Rc<[u8]>, u64>,
    /// The holder that waits for a stricter limit: ahead of the queue, only for the other holders to leave.
    pub upgrade: Option<Box<Place>>,
    /// The due entry of the earliest lease.
    pub lease: Option<DueKey>,
    /// How many parts of requests for many locks wait here.
    pub many: usize,
    /// Requests for many locks that do not queue here, as long as their owner holds the lock.
    pub entering: BTreeSet<RequestId>,
    /// What it has put down in the index of stakes.
    pub stakes: Stakes,
    /// Absent tickets whose window has ended.
    pub lapsed: Vec<u64>,
    /// Waits that ended by time-out since the last settlement; for the events that tell of them.
    pub timeouts: u32,
    /// An end that the key was given from outside (EXPIRE), earlier than its leases. As long as nothing else touches the
    /// lock the server removes the key then; the next request makes it the leases' own end.
    pub ends: Option<Millis>,
    /// Whether the queue has to stand still, as its slot is migrating away.
    pub closed: bool,
    /// Whether the value at the key may have been replaced behind the line's back.
    pub stale: bool,
    /// Whether a settlement is pending.
    pub dirty: bool,
}

impl Line {
    /// Whether nobody is queued.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.upgrade.is_none()
    }

    /// Whether nobody waits at any place.
    pub fn is_unattended(&self) -> bool {
        self.in_order().all(|(_, place)| place.requests.is_empty())
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len() + usize::from(self.upgrade.is_some())
    }

    /// The number of this owner's place.
    pub fn number_of(&self, owner: &[u8]) -> Option<u64> {
        self.by_owner.get(owner).copied()
    }

    /// Puts a place at its number. The owner has no place yet and the number is free, or nothing happens.
    pub fn insert(&mut self, number: u64, place: Place) -> bool {
        if self.by_owner.get(&place.owner).is_some() {
            return false;
        }
        let owner = place.owner.clone();
        let inserted = self.places.insert(number, Box::new(place)).is_ok();
        if inserted {
            self.by_owner.insert(owner, number);
        }
        inserted
    }

    /// Takes a place out.
    pub fn remove(&mut self, number: u64) -> Option<Box<Place>> {
        let place = self.places.remove(number)?;
        self.by_owner.remove(&place.owner);
        Some(place)
    }

    /// The place with this number; 0 is the waiting upgrade.
    pub fn place(&self, number: u64) -> Option<&Place> {
        match number {
            UPGRADE => self.upgrade.as_deref(),
            _ => self.places.get(number),
        }
    }

    /// Takes out the place with this number; 0 is the waiting upgrade.
    pub fn take(&mut self, number: u64) -> Option<Box<Place>> {
        match number {
            UPGRADE => self.upgrade.take(),
            _ => self.remove(number),
        }
    }

    /// The number of this owner's place, the waiting upgrade's included.
    pub fn stand_of(&self, owner: &[u8]) -> Option<u64> {
        let upgrades = |place: &Place| *place.owner == *owner;
        match self.upgrade.as_deref() {
            Some(place) if upgrades(place) => Some(UPGRADE),
            _ => self.number_of(owner),
        }
    }

    /// A number before all places; none if there is no more room for one.
    pub fn ahead(&self) -> Option<u64> {
        let first = self.places.front().map_or(QUEUED, |(number, _)| number);
        Some(first.min(QUEUED) - 1).filter(|number| *number > UPGRADE)
    }

    /// The place that is served next: the waiting upgrade, or the first in order.
    pub fn head(&self) -> Option<(u64, &Place)> {
        match self.upgrade.as_deref() {
            Some(place) => Some((UPGRADE, place)),
            None => self.places.front(),
        }
    }

    /// All places as they are served: the waiting upgrade first.
    pub fn in_order(&self) -> impl Iterator<Item = (u64, &Place)> {
        let upgrade = self.upgrade.as_deref().map(|place| (UPGRADE, place));
        upgrade.into_iter().chain(self.places.iter())
    }

    /// The place with this number; 0 is the waiting upgrade.
    pub fn place_mut(&mut self, number: u64) -> Option<&mut Place> {
        match number {
            UPGRADE => self.upgrade.as_deref_mut(),
            _ => self.places.get_mut(number),
        }
    }
}

/// The number that the waiting upgrade goes by: before every other.
pub const UPGRADE: u64 = 0;

/// The numbers below this are those of places ahead of the queue: before all tickets, also before those that are brought by
/// RENAME later. All other numbers are what the clock showed in microseconds, and that passed this in the second hour of
/// 1970. A ticket has one of these only if its owner has asked for it at a place that it was given ahead of the queue.
const QUEUED: u64 = 1 << 32;

/// Since when a ticket is there that goes by this number. One ahead of the queue does not tell.
pub fn arrived(number: u64, now: Now) -> Millis {
    match number {
        0..QUEUED => now.ms(),
        number => (number / 1000).min(now.ms()),
    }
}

/// All lines, by database and key.
///
/// Most of an event is about one lock: its line is looked up a dozen times, each time at the cost of comparing its name
/// rather than of hashing it.
#[derive(Debug, Default)]
pub struct Lines {
    dbs: Vec<Db>,
    // A line stays at its place, so that it can be told by that.
    slots: Vec<Option<Box<Kept>>>,
    free: Vec<usize>,
    // Where the line is that was looked up last, unless it has gone.
    last: Cell<usize>,
    len: usize,
}

#[derive(Debug, Default)]
struct Db {
    slots: Index<Rc<[u8]>, usize>,
    // The keys once more, for scans.
    order: Order,
}

#[derive(Debug)]
struct Kept {
    name: Name,
    line: Line,
}

impl Lines {
    /// The line of a lock.
    pub fn get(&self, name: NameRef) -> Option<&Line> {
        let at = self.find(name)?;
        self.slots.get(at)?.as_ref().map(|kept| &kept.line)
    }

    /// The line of a lock.
    pub fn get_mut(&mut self, name: NameRef) -> Option<&mut Line> {
        let at = self.find(name)?;
        self.slots.get_mut(at)?.as_mut().map(|kept| &mut kept.line)
    }

    /// The line of a lock, made if it is not there.
    pub fn make(&mut self, name: &Name) -> &mut Line {
        let at = match self.find(name.lend()) {
            Some(at) => at,
            None => self.place(name),
        };
        let kept = self.slots[at].get_or_insert_with(|| Kept::empty(name));
        &mut kept.line
    }

    /// Takes a line out.
    pub fn remove(&mut self, name: NameRef) -> Option<Line> {
        let db = self.dbs.get_mut(name.db as usize)?;
        let (key, at) = db.slots.remove(name.key)?;
        db.order.remove(&key);
        let kept = self.slots.get_mut(at)?.take()?;
        self.len -= 1;
        if self.len == 0 {
            (self.slots, self.free) = Default::default();
        } else {
            self.free.push(at);
        }
        Some(kept.line)
    }

    /// About `most` keys of a database from this point of their order on, and the point to go on from.
    pub fn from(&self, db: u32, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let db = self.dbs.get(db as usize);
        db.map_or((Vec::new(), None), |db| db.order.from(from, most))
    }

    /// The full name under which a line is kept.
    pub fn name(&self, name: NameRef) -> Option<Name> {
        let at = self.find(name)?;
        self.slots.get(at)?.as_ref().map(|kept| kept.name.clone())
    }

    /// All names of a database, or of all databases.
    pub fn names(&self, db: Option<u32>) -> Vec<Name> {
        let kept = self.slots.iter().flatten().map(|kept| &kept.name);
        let chosen = kept.filter(|name| db.map_or(true, |db| db == name.db));
        let mut names: Vec<Name> = chosen.cloned().collect();
        // The same inputs give the same outputs: places are given anew in the order in which lines have gone.
        names.sort_unstable();
        names
    }

    /// Where the line of a lock is. In a server without a contended lock there is none.
    #[inline(always)]
    fn find(&self, name: NameRef) -> Option<usize> {
        match self.len {
            0 => None,
            _ => self.search(name),
        }
    }

    #[cold]
    fn search(&self, name: NameRef) -> Option<usize> {
        let last = self.last.get();
        if let Some(Some(kept)) = self.slots.get(last) {
            if kept.name.lend() == name {
                return Some(last);
            }
        }
        self.look_up(name)
    }

    #[inline(never)]
    fn look_up(&self, name: NameRef) -> Option<usize> {
        let at = *self.dbs.get(name.db as usize)?.slots.get(name.key)?;
        self.last.set(at);
        Some(at)
    }

    /// Gives a line that is not there a place.
    fn place(&mut self, name: &Name) -> usize {
        let db = name.db as usize;
        if self.dbs.len() <= db {
            self.dbs.resize_with(db + 1, Db::default);
        }
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.dbs[db].slots.insert(name.key.clone(), at);
        self.dbs[db].order.insert(&name.key);
        self.last.set(at);
        self.len += 1;
        at
    }
}

impl Kept {
    fn empty(name: &Name) -> Box<Kept> {
        Box::new(Kept {
            name: name.clone(),
            line: Line::default(),
        })
    }
}
