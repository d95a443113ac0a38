//! The lock itself, and nothing else: no Redis, no clock, no randomness, no I/O, no `unsafe`.
//!
//! Time is an argument everywhere; the same inputs give the same outputs. The methods of [`Engine`] fall in four kinds:
//!
//! * **requests** (`acquire`, `acquire_many`, `renew`, `release`, `force`, `cancel`, …): what a client asks; they bring the
//!   lock up to date, decide, and answer;
//! * **events** (`tick`, `leave`, `ended`, `undelivered`, `stale`, …): what happened outside a request; they only note what is to be
//!   done, since they may come at a moment when nothing may be changed;
//! * **settlement** (`settle_dirty`): does what is to be done, when the caller says that changes are possible now;
//! * **getters** (`held`, `position`, `check`, `view`, `next_wakeup`): change nothing.
//!
//! After each of them the caller works through what has piled up: the changed [`Entry`]s of its [`Keyspace`], and the
//! engine's [`Wake`]s and [`Message`]s.

mod acquire;
pub mod change;
pub mod codec;
pub mod counters;
pub mod deadline;
mod graph;
mod holders;
pub mod index;
mod keep;
pub mod line;
pub mod lock;
mod look;
mod many;
pub mod order;
mod requests;
pub mod roster;
mod serve;
mod sessions;
mod stakes;
pub mod token;
mod waits;

pub use acquire::{Answer, Ask, Wait};
pub use graph::Edge;
pub use look::{HoldView, PlaceKind, PlaceView, Row, State};
pub use many::ManyAnswer;

use crate::error::Error;
use change::{Change, End};
use counters::Counters;
use deadline::Deadlines;
use line::{Lines, RequestId};
use lock::Lock;
use many::Next;
use requests::Requests;
use sessions::Sessions;
use stakes::StakeIndex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use token::TokenClock;

/// Milliseconds: of the unix epoch for a point in time, else a duration.
pub type Millis = u64;

/// A fencing token.
pub type Token = u64;

/// Tokens stay below this, so that every client language holds them exactly (2^53).
pub const MAX_TOKEN: Token = 1 << 53;

/// The largest limit that is not "no bound".
pub const MAX_LIMIT: u64 = u32::MAX as u64 - 1;

/// The largest number that values and effects may contain: what both, and the server itself, can say.
pub const MAX_NUMBER: u64 = i64::MAX as u64;

/// The longest owner, in bytes.
pub const MAX_OWNER: usize = 1024;

/// The wall clock of the server at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Microseconds of the unix epoch.
    pub us: u64,
}

impl Now {
    /// Milliseconds of the unix epoch, rounded down.
    pub fn ms(self) -> Millis {
        self.us / 1000
    }
}

/// The most owners that may hold at once as far as one owner is concerned. The strictest sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Limit(u32);

impl Limit {
    /// One owner: a mutex.
    pub const EXCLUSIVE: Limit = Limit(1);
    /// No bound: the readers of a read-write lock.
    pub const SHARED: Limit = Limit(u32::MAX);

    /// As it stands in values, effects and replies, where 0 is "no bound".
    pub fn from_wire(value: u32) -> Option<Limit> {
        match value {
            0 => Some(Limit::SHARED),
            u32::MAX => None,
            n => Some(Limit(n)),
        }
    }

    /// As it stands in values, effects and replies, where 0 is "no bound".
    pub fn to_wire(self) -> u32 {
        if self == Limit::SHARED {
            0
        } else {
            self.0
        }
    }

    /// Whether so many owners may hold at once.
    pub fn allows(self, owners: usize) -> bool {
        self == Limit::SHARED || owners <= self.0 as usize
    }
}

/// A lock's name, kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: Rc<[u8]>,
}

/// A lock's name, lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameRef<'a> {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
}

impl Name {
    /// The same name, lent.
    pub fn lend(&self) -> NameRef<'_> {
        NameRef {
            db: self.db,
            key: &self.key,
        }
    }
}

impl NameRef<'_> {
    /// The same name, kept.
    pub fn keep(self) -> Name {
        Name {
            db: self.db,
            key: Rc::from(self.key),
        }
    }
}

/// What the operator has configured, in the units of the configuration table.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The longest lease that may be asked for: in a server with a quarantine, one that ends within it.
    pub max_lease_ms: Millis,
    /// The longest claim window.
    pub max_claim_ms: Millis,
    /// How long a polled or re-found ticket is kept while nobody is there for it.
    pub claim_window_ms: Millis,
    /// Places a lock.
    pub max_queue: usize,
    /// Places over all locks.
    pub max_places: usize,
    /// Waiting requests over all locks.
    pub max_waiters: usize,
    /// Holders a lock.
    pub max_holders: usize,
    /// The age beyond which renewals and re-entry cannot carry a hold; 0: none.
    pub max_hold_ms: Millis,
    /// Whether a wait that could never end is refused.
    pub deadlock_detection: bool,
    /// Holders and places that one look for a circle of waiting owners passes at most.
    pub deadlock_max_steps: usize,
    /// `dlock.grants`: no new grants or places when false.
    pub grants: bool,
    /// Until when nothing is granted after a start or promotion; 0: no quarantine.
    pub quarantine_until: Millis,
}

/// The place where locks are kept: the caller's keyspace. The engine asks it for each lock it has to do with.
pub trait Keyspace {
    /// The entry of this lock, opened on first use, the same one until the event is worked off.
    fn entry(&mut self, name: NameRef) -> &mut Entry;

    /// Whether this lock may be changed outside of a request now. The caller has seen to all that does not depend on
    /// the key; a node of a cluster asks whether the key's slot is its own.
    fn accepts(&mut self, _name: NameRef) -> bool {
        true
    }

    /// Whether the key's slot is served elsewhere now, so that nothing will ever be granted here.
    fn moved(&mut self, _name: NameRef) -> bool {
        false
    }

    /// Shows the lock as it stands, without opening it for a change.
    fn look(&mut self, name: NameRef, see: &mut dyn FnMut(&Lock)) {
        if let Some(lock) = &self.entry(name).lock {
            see(lock);
        }
    }

    /// Whether the caller may read this key, so that an error may name it. Outside of a command there is no caller.
    fn readable(&mut self, _name: NameRef) -> bool {
        true
    }

    /// Whether this connection is still there.
    fn connected(&self, _client: u64) -> bool {
        true
    }
}

/// One lock as an event finds and leaves it.
#[derive(Debug, Default)]
pub struct Entry {
    /// The value at the key. The engine puts a lock here when there was none, but never takes one away: what has
    /// become empty is for the caller to delete.
    pub lock: Option<Box<Lock>>,
    /// The key holds something that is not a lock.
    pub foreign: bool,
    /// An end that the key was given from outside, earlier than the leases, where nothing else tells of it.
    pub ends: Option<Millis>,
    /// Whether anything has changed, or the key's TTL is to be put right.
    pub changed: bool,
    /// Whether nobody is to be told of changes: then no effect is written.
    pub unheard: bool,
    /// What replicas and the AOF must be told (see [`change`]).
    pub effect: Vec<u8>,
    /// What observers are to be told, in order.
    pub events: Vec<Event>,
}

/// Something that observers are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A grant.
    Acquired(Token),
    /// A hold is gone.
    Ended(End, Token),
    /// A new place in the queue.
    Queued,
    /// A wait ended by time-out.
    Timeout,
}

impl Entry {
    /// The owner's hold.
    pub fn hold(&self, owner: &[u8]) -> Option<lock::Hold<'_>> {
        self.lock.as_ref()?.hold(owner)
    }

    /// How many owners hold it.
    pub fn holders(&self) -> usize {
        self.lock.as_ref().map_or(0, |lock| lock.holders())
    }

    /// Whether a ticket stands at this number.
    pub fn has_ticket(&self, number: u64) -> bool {
        self.lock
            .as_ref()
            .is_some_and(|lock| lock.ticket(number).is_some())
    }

    /// Whether the owner may hold with this limit beside the other holders.
    pub fn admits(&self, owner: &[u8], limit: Limit) -> bool {
        self.lock
            .as_ref()
            .map_or(true, |lock| lock.admits(owner, limit))
    }

    /// Makes a change: moves the state and writes the effect. Nothing else moves a lock on the primary.
    #[inline]
    pub fn commit(&mut self, change: &Change) {
        self.lock.get_or_insert_with(Box::default);
        self.amend(change);
    }

    /// The same where there is a lock already; else there is nothing to change.
    #[inline]
    pub fn amend(&mut self, change: &Change) {
        let Some(lock) = &mut self.lock else { return };
        lock.apply(change);
        self.changed = true;
        if !self.unheard {
            change.write(&mut self.effect);
        }
    }

    /// Has the key's TTL put right even if nothing else changes, here and on replicas.
    pub fn retime(&mut self) {
        self.changed = true;
        if !self.unheard {
            change::begin(&mut self.effect);
        }
    }

    /// Takes over the primary's decision: moves the state of a replica, or of a server that reads its AOF.
    ///
    /// Errors with nothing changed when the effect is not well formed.
    pub fn follow(&mut self, effect: &[u8], clock: &mut TokenClock) -> Result<(), Error> {
        let changes = change::read(effect).ok_or(Error::Internal)?;
        for change in &changes {
            match change {
                Change::Hold(hold) => {
                    clock.follow(hold.token);
                    let before = self.hold(hold.owner).map(|hold| hold.token);
                    if before != Some(hold.token) {
                        self.events.push(Event::Acquired(hold.token));
                    }
                }
                Change::Unhold { token, end, .. } => self.events.push(Event::Ended(*end, *token)),
                Change::Ticket { number, .. } => {
                    clock.follow(*number);
                    if !self.has_ticket(*number) {
                        self.events.push(Event::Queued);
                    }
                }
                Change::Unticket { .. } | Change::Watch(_) => {}
            }
            self.lock.get_or_insert_with(Box::default).apply(change);
        }
        Ok(())
    }
}

/// The answer to a request whose connection is blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// Which request.
    pub id: RequestId,
    /// What it is told.
    pub outcome: Outcome,
}

/// What a request that waits by a channel is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which request.
    pub id: RequestId,
    /// The channel.
    pub channel: Rc<[u8]>,
    /// The lock.
    pub name: Name,
    /// Who asked for it.
    pub owner: Rc<[u8]>,
    /// What it is told.
    pub outcome: Outcome,
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is the owner's.
    Granted(Grant),
    /// All of the locks are, in the order of the request.
    GrantedAll(Vec<Grant>),
    /// Time is up.
    Null,
    /// The place was cancelled.
    Cancelled,
    /// The lock's slot is served elsewhere now, or all locks are: this server decides no longer.
    Moved,
    /// It cannot be granted any more.
    Refused(Error),
}

/// A grant, or a re-entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// The hold count now.
    pub holds: u32,
    /// How much of it this request added.
    pub added: u32,
}

/// All locks' queues and deadlines, and the token clock. See the module's documentation for its use.
#[derive(Debug, Default)]
pub struct Engine {
    /// What the operator has configured. The caller keeps it up to date.
    pub policy: Policy,
    /// What has been done so far.
    pub counters: Counters,
    /// The token clock.
    pub clock: TokenClock,
    /// Answers to blocked connections, for the caller to deliver.
    pub wakes: Vec<Wake>,
    /// What is to be published to those who wait by a channel.
    pub messages: Vec<Message>,
    lines: Lines,
    deadlines: Deadlines,
    requests: Requests,
    sessions: Sessions,
    stakes: StakeIndex,
    places: usize,
    // How many lines are stale.
    stale: usize,
    dirty: VecDeque<Name>,
    // What a settlement has made possible elsewhere: worked off before the event ends.
    next: BTreeSet<Next>,
    undelivered: Vec<Undelivered>,
    // Connections that have ended, while what belonged to them is being cleared away; and the token of the last hold that
    // had to be left, since its slot is migrating away.
    leaving: BTreeMap<u64, Token>,
    // Locks whose queue may have become part of a circle other than by a request.
    suspects: BTreeSet<Name>,
    // Locks that somebody was let wait for only because an owner can act by another connection: looked at again.
    relying: BTreeSet<Name>,
    // A compatible head was not granted because nothing is granted for now.
    held_back: bool,
}

/// A grant whose connection died before it had the answer.
#[derive(Debug)]
struct Undelivered {
    name: Name,
    owner: Box<[u8]>,
    grant: Grant,
}

impl Default for Policy {
    /// The defaults of the configuration table.
    fn default() -> Self {
        Policy {
            max_lease_ms: 2_592_000_000,
            max_claim_ms: 600_000,
            claim_window_ms: 5_000,
            max_queue: 100_000,
            max_places: 1_000_000,
            max_waiters: 50_000,
            max_holders: 100_000,
            max_hold_ms: 0,
            deadlock_detection: true,
            deadlock_max_steps: 100_000,
            grants: true,
            quarantine_until: 0,
        }
    }
}

impl Policy {
    /// Whether locks are granted to new holders at this time.
    pub fn granting(&self, now: Now) -> bool {
        self.grants && !self.quarantined(now)
    }

    /// Whether the quarantine after a start or promotion lasts.
    pub fn quarantined(&self, now: Now) -> bool {
        now.ms() < self.quarantine_until
    }
}

impl Engine {
    /// A hold has ended with its key.
    pub fn gone(&mut self, end: End, token: Token, now: Now) {
        self.sessions.untie(token);
        self.counters.gone(end, token, now);
    }

    /// A hold has left with its key's slot. It goes on elsewhere, without the connection that it is tied to here.
    pub fn left(&mut self, token: Token) {
        self.sessions.untie(token);
    }

    /// The same for all holds of locks that have left.
    pub fn left_all(&mut self, left: impl Fn(&Name) -> bool) {
        self.sessions.untie_all(left);
    }

    /// All values of a database (or of all) have gone, and are not to come back.
    pub fn flushed(&mut self, db: Option<u32>) {
        self.sessions.flush(db);
    }

    /// Two databases were exchanged.
    pub fn swapped(&mut self, one: u32, other: u32) {
        self.sessions.swap(one, other);
    }

    /// How many holds are tied to connections.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many requests wait by a channel.
    pub fn notifies(&self) -> usize {
        self.requests.notifies()
    }

    /// How many places are queued over all locks.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Whether settlements are pending.
    pub fn unsettled(&self) -> bool {
        !self.dirty.is_empty() || !self.undelivered.is_empty() || !self.leaving.is_empty()
    }

    /// Whether nothing is due, ever, and nothing left to settle: so it is as long as no lock is contended.
    #[inline]
    pub fn idle(&self) -> bool {
        self.deadlines.is_empty() && !self.held_back && !self.unsettled()
    }

    /// When something is due next; none if nothing is.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let granting =
            Some(self.policy.quarantine_until).filter(|_| self.held_back && self.policy.grants);
        match (self.deadlines.next(), granting) {
            (Some(due), Some(granting)) => Some(due.min(granting)),
            (due, granting) => due.or(granting),
        }
    }
}
