//! The durable state of a lock: its holders and the tickets of its queue. `Lock::admits` decides which owners may hold it together.

pub mod change;
pub mod codec;
mod holders;
pub mod token;

pub use change::{Change, End};

use super::types::{Arrival, ClientId, Limit, Millis, Permits, Share, Token, WallMs};
use holders::Holders;
use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::ops::Bound;

/// One owner's hold of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The fencing token of the grant; it also tells when the grant was made.
    pub token: Token,
    /// When the hold ends by itself.
    pub deadline: WallMs,
    /// The hold count: 1 for a first grant, more by re-entry.
    pub holds: u32,
    /// The most permits that may be held at once, as this owner asked for it.
    pub limit: Limit,
    /// How many of them it holds.
    pub permits: Permits,
    /// The client id of the connection that last took or entered it; 0 if this run of the server did not grant it. A hold that a
    /// user has brought is marked here until it is bounded (see `Lock::marked_restored`). Not part of the durable state.
    pub client: ClientId,
    /// Whether it is a new hold that no later command of its owner has touched. The server's own renewals do not count. Not part of
    /// the durable state.
    pub fresh: bool,
}

/// A durable place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The owner of the place.
    pub owner: Box<[u8]>,
    /// The limit and the permits that the owner asks for.
    pub share: Share,
    /// The claim window: how long the place is kept while no connection waits on it; 0: not at all.
    pub claim: Millis,
}

/// The durable state of one lock: the value at its key.
///
/// | held | queued | form | the key's TTL |
/// |---|---|---|---|
/// | no | no | the key does not exist (a `Lock` is empty only between a change and the deletion of its key) | – |
/// | by one, with a hold count of at most 63, a limit of at most 65,535, at most 255 permits | no | `Sole` | the lease |
/// | the same | by waiters only | `Sole`, `watched` | none: the module ends the leases |
/// | otherwise | no | `Full` | the latest lease |
/// | otherwise | yes | `Full`, `watched` | none |
///
/// A queue is the tickets here and the waiters of this server (see `queue`); `watched` tells a server that loads the
/// value that there were waiters, so that it watches the leases itself although they are gone.
#[derive(Debug, Clone)]
pub enum Lock {
    /// The usual lock, in one allocation of 64 bytes (a size class of every malloc), and one for an owner with a long name.
    Sole(Sole),
    /// Any other lock.
    Full(Box<Full>),
}

/// The mark of a hold that a user has brought, in the small form.
const RESTORED: u32 = u32::MAX;

/// The longest owner that the small form has in place: a UUID, a colon and two more bytes; it fills the 64 bytes.
const IN_PLACE: usize = 39;

/// One holder, or none.
#[derive(Debug, Clone)]
pub struct Sole {
    token: Token,
    deadline: WallMs,
    // The hold count, 0 for no holder, and the two bits below. More re-entries need the large form.
    state: u8,
    permits: NonZeroU8,
    // As `Limit::to_wire` writes it.
    limit: u16,
    // Ids that are as high or higher than the mark are not remembered.
    client: u32,
    owner: Owner,
}

/// The owner of the small form.
#[derive(Debug, Clone)]
enum Owner {
    Short {
        // Never zero, so that the compiler keeps the discriminant in it.
        len: NonZeroU8,
        bytes: [u8; IN_PLACE],
    },
    Long(Box<[u8]>),
}

const _: () = assert!(std::mem::size_of::<Lock>() == 64);

/// The bit next to the hold count that says that the lock is watched.
const WATCHED: u8 = 0x80;

/// The bit next to that one that says that the hold is fresh.
const FRESH: u8 = 0x40;

/// The bits of the hold count.
const HOLDS: u8 = FRESH - 1;

/// Any number of holders and tickets.
#[derive(Debug, Clone, Default)]
pub struct Full {
    pub(super) holders: Holders,
    pub(super) tickets: BTreeMap<Arrival, Ticket>,
    pub(super) watched: bool,
}

// Getters of `Lock` for the large form. They are cold, so that the compiler keeps them out of the path of the usual lock.
impl Full {
    #[cold]
    fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.tickets.is_empty()
    }

    #[cold]
    fn needs_watch(&self) -> bool {
        let alone = || self.holders.iter().next();
        self.watched
            || !self.tickets.is_empty()
            || self.holders.len() > 1
            || alone().is_some_and(|hold| hold.client == ClientId::RESTORED)
    }

    #[cold]
    fn hold(&self, owner: &[u8]) -> Option<Hold<'_>> {
        self.holders.get(owner)
    }

    #[cold]
    fn first(&self) -> Option<Hold<'_>> {
        self.holders.first()
    }
}

impl Owner {
    const NONE: Owner = Owner::Short {
        len: NonZeroU8::MIN,
        bytes: [0; IN_PLACE],
    };

    fn as_bytes(&self) -> &[u8] {
        match self {
            Owner::Short { len, bytes } => bytes.get(..usize::from(len.get())).unwrap_or_default(),
            Owner::Long(owner) => owner,
        }
    }

    /// Sets the owner, in place if it is short. The caller has checked that it is not empty.
    fn set(&mut self, owner: &[u8]) {
        if owner.len() > IN_PLACE {
            if self.as_bytes() != owner {
                *self = Owner::Long(Box::from(owner));
            }
            return;
        }
        if let Owner::Long(_) = self {
            *self = Owner::NONE;
        }
        if let Owner::Short { len, bytes } = self {
            *len = NonZeroU8::new(owner.len() as u8).unwrap_or(NonZeroU8::MIN);
            if let Some(place) = bytes.get_mut(..owner.len()) {
                place.copy_from_slice(owner);
            }
        }
    }
}

impl Sole {
    /// Held by nobody.
    const FREE: Sole = Sole {
        token: Token(0),
        deadline: WallMs(0),
        state: 0,
        permits: NonZeroU8::MIN,
        limit: 1,
        client: 0,
        owner: Owner::NONE,
    };

    /// Applies a change, if this form can express the result. Returns false, with nothing changed, if it cannot.
    #[inline(always)]
    fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Hold(hold) => self.is_for(hold.owner) && self.put(hold),
            Change::Unhold { owner, token, .. } => {
                self.end(owner, *token);
                true
            }
            Change::Watch(watched) => {
                self.watch(*watched);
                true
            }
            _ => false,
        }
    }

    /// Returns true if this form has room for this owner's hold.
    fn is_for(&self, owner: &[u8]) -> bool {
        self.holds() == 0 || self.owner.as_bytes() == owner
    }

    /// Sets the hold, in place: a value that is made elsewhere and then moved costs as much again. Returns false,
    /// with nothing changed, if the owner is empty, or a number too large.
    fn put(&mut self, hold: &Hold) -> bool {
        let (Ok(holds), Ok(permits), Ok(limit)) = (
            u8::try_from(hold.holds),
            NonZeroU8::try_from(hold.permits),
            u16::try_from(hold.limit.to_wire()),
        ) else {
            return false;
        };
        if holds > HOLDS || hold.owner.is_empty() {
            return false;
        }
        self.owner.set(hold.owner);
        self.state = holds | (self.state & WATCHED) | if hold.fresh { FRESH } else { 0 };
        self.token = hold.token;
        self.deadline = hold.deadline;
        self.permits = permits;
        self.limit = limit;
        self.client = match hold.client {
            ClientId::RESTORED => RESTORED,
            ClientId(id) => u32::try_from(id).map_or(0, |id| if id < RESTORED { id } else { 0 }),
        };
        true
    }

    /// Ends this owner's hold, or, of no owner, the one with this token.
    fn end(&mut self, owner: &[u8], token: Token) {
        let meant = match owner {
            [] => self.token == token,
            owner => self.owner.as_bytes() == owner,
        };
        if meant {
            self.state &= WATCHED;
        }
    }

    fn holds(&self) -> u8 {
        self.state & HOLDS
    }

    fn watched(&self) -> bool {
        self.state & WATCHED != 0
    }

    fn watch(&mut self, watched: bool) {
        self.state = self.state & !WATCHED | if watched { WATCHED } else { 0 };
    }

    fn hold(&self) -> Option<Hold<'_>> {
        (self.holds() > 0).then(|| Hold {
            owner: self.owner.as_bytes(),
            token: self.token,
            deadline: self.deadline,
            holds: u32::from(self.holds()),
            limit: Limit::from_wire(u32::from(self.limit)).unwrap_or(Limit::EXCLUSIVE),
            permits: self.permits.into(),
            client: match self.client {
                RESTORED => ClientId::RESTORED,
                id => ClientId(u64::from(id)),
            },
            fresh: self.state & FRESH != 0,
        })
    }
}

impl Default for Lock {
    /// Makes a lock that nobody holds and nobody waits for.
    fn default() -> Self {
        Lock::FREE
    }
}

impl Lock {
    /// Held by nobody.
    pub const FREE: Lock = Lock::Sole(Sole::FREE);

    /// Returns true if nothing is left, so that the key must be deleted.
    pub fn is_empty(&self) -> bool {
        match self {
            Lock::Sole(sole) => sole.holds() == 0,
            Lock::Full(full) => full.is_empty(),
        }
    }

    /// Returns true if the module itself must watch this lock: it has (or had, when it was saved) a queue, there are several leases
    /// and the key's TTL is only the latest of them, or its leases came by RESTORE and are not bounded yet.
    pub fn needs_watch(&self) -> bool {
        match self {
            Lock::Sole(sole) => sole.client == RESTORED || sole.watched(),
            Lock::Full(full) => full.needs_watch(),
        }
    }

    /// Returns true if anybody was queued at the last change.
    pub fn watched(&self) -> bool {
        match self {
            Lock::Sole(sole) => sole.watched(),
            Lock::Full(full) => full.watched,
        }
    }

    /// Returns the owner's hold.
    pub fn hold(&self, owner: &[u8]) -> Option<Hold<'_>> {
        match self {
            Lock::Sole(sole) => sole.hold().filter(|hold| hold.owner == owner),
            Lock::Full(full) => full.hold(owner),
        }
    }

    /// Returns all holds.
    pub fn holds(&self) -> impl Iterator<Item = Hold<'_>> {
        let (sole, full) = match self {
            Lock::Sole(sole) => (sole.hold(), None),
            Lock::Full(full) => (None, Some(full.holders.iter())),
        };
        sole.into_iter().chain(full.into_iter().flatten())
    }

    /// Returns token and deadline of each hold, in the order of [`Lock::owned_leases`]. Of many holders it reads only the index of their
    /// deadlines.
    pub fn leases(&self) -> impl Iterator<Item = (Token, WallMs)> + '_ {
        self.owned_leases()
            .map(|(_, token, deadline)| (token, deadline))
    }

    /// Returns owner, token and deadline of each hold: of many holders, and of those that [`Lock::split_off`] returns, in the order of
    /// deadlines; else in the order of owners.
    pub fn owned_leases(&self) -> impl Iterator<Item = (&[u8], Token, WallMs)> {
        let (sole, full) = match self {
            Lock::Sole(sole) => (sole.hold(), None),
            Lock::Full(full) => (None, Some(full.holders.named())),
        };
        let sole = sole.into_iter();
        let sole = sole.map(|hold| (hold.owner, hold.token, hold.deadline));
        sole.chain(full.into_iter().flatten())
    }

    /// Returns how many owners hold it.
    pub fn holders(&self) -> usize {
        match self {
            Lock::Sole(sole) => usize::from(sole.holds() > 0),
            Lock::Full(full) => full.holders.len(),
        }
    }

    /// Returns how many permits are held. A user can bring more holders by RESTORE than 32 bits count permits of.
    pub fn permits(&self) -> u64 {
        match self {
            Lock::Sole(sole) if sole.holds() > 0 => u64::from(sole.permits.get()),
            Lock::Sole(_) => 0,
            Lock::Full(full) => full.holders.permits(),
        }
    }

    /// Returns how many owners hold it whose leases have not run out.
    pub fn live_holders(&self, now: WallMs) -> usize {
        match self {
            Lock::Sole(sole) => sole
                .hold()
                .map_or(0, |hold| usize::from(hold.deadline > now)),
            Lock::Full(full) => full.holders.live(now),
        }
    }

    /// Returns the hold whose lease ends last.
    pub fn last(&self) -> Option<Hold<'_>> {
        match self {
            Lock::Sole(sole) => sole.hold(),
            Lock::Full(full) => full.holders.last(),
        }
    }

    /// Returns how many tickets there are.
    pub fn tickets_len(&self) -> usize {
        self.full().map_or(0, |full| full.tickets.len())
    }

    /// Returns the strictest limit among the holders; none when nobody holds it.
    pub fn strictest(&self) -> Option<Limit> {
        match self {
            Lock::Sole(sole) => sole.hold().map(|hold| hold.limit),
            Lock::Full(full) => full.holders.strictest(),
        }
    }

    /// Returns the tickets in order, with their numbers.
    pub fn tickets(&self) -> impl Iterator<Item = (Arrival, &Ticket)> {
        let tickets = self.full().into_iter().flat_map(|full| &full.tickets);
        tickets.map(|(number, ticket)| (*number, ticket))
    }

    /// Returns the tickets behind this number, in order.
    pub fn tickets_behind(&self, number: Arrival) -> impl Iterator<Item = (Arrival, &Ticket)> {
        let behind = (Bound::Excluded(number), Bound::Unbounded);
        let full = self.full().into_iter();
        let tickets = full.flat_map(move |full| full.tickets.range(behind));
        tickets.map(|(number, ticket)| (*number, ticket))
    }

    /// Returns the last ticket.
    pub fn last_ticket(&self) -> Option<(Arrival, &Ticket)> {
        let (number, ticket) = self.full()?.tickets.last_key_value()?;
        Some((*number, ticket))
    }

    /// Returns the ticket with this number.
    pub fn ticket(&self, number: Arrival) -> Option<&Ticket> {
        self.full()?.tickets.get(&number)
    }

    /// Returns the hold whose lease ends first.
    pub fn first(&self) -> Option<Hold<'_>> {
        match self {
            Lock::Sole(sole) => sole.hold(),
            Lock::Full(full) => full.first(),
        }
    }

    /// Returns when the first lease ends.
    pub fn earliest(&self) -> Option<WallMs> {
        self.first().map(|hold| hold.deadline)
    }

    /// Returns the hold whose lease ends first, if it has ended at `now`.
    pub fn first_ended(&self, now: WallMs) -> Option<Hold<'_>> {
        self.first().filter(|hold| hold.deadline <= now)
    }

    /// Returns when the key must expire: the latest lease, or none while anybody is queued. Then the module ends the leases
    /// itself and grants in the same step; the server must not remove the key under the queue.
    pub fn key_expiry(&self) -> Option<WallMs> {
        if self.watched() || self.tickets_len() > 0 {
            None
        } else {
            self.last().map(|hold| hold.deadline)
        }
    }

    /// **The granting rule.** Returns true if `owner` may hold `permits` with `limit` along with the other holders: the sum of all
    /// permits exceeds neither its limit nor that of any other holder. Mutex, read-write lock and semaphore are this one
    /// rule with limits 1, unbounded and n.
    pub fn admits(&self, owner: &[u8], Share { limit, permits }: Share) -> bool {
        let mine = self.hold(owner);
        let others = self.permits() - mine.map_or(0, |hold| u64::from(hold.permits.get()));
        if others == 0 {
            return true;
        }
        let all = others + u64::from(permits.get());
        // The owner's own limit is among them: it has allowed this sum before, or is weaker than the one that it asks for.
        let strictest = self.strictest();
        limit.allows(all) && strictest.is_none_or(|limit| limit.allows(all))
    }

    /// Returns true if the granting rule could have admitted all holders together.
    pub fn obeys_the_rule(&self) -> bool {
        self.strictest()
            .is_none_or(|limit| limit.allows(self.permits()))
    }

    /// Returns true if no two holders share a token: no server grants one twice.
    pub fn has_distinct_tokens(&self) -> bool {
        let mut tokens: Vec<Token> = self.leases().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens.len() == self.holders()
    }

    /// Applies a change: on the primary, on a replica and from the AOF alike. Only this and [`Lock::split_off`] change who holds the
    /// lock and who is queued.
    pub fn apply(&mut self, change: &Change) {
        if let Lock::Sole(sole) = self {
            if sole.apply(change) {
                return;
            }
        }
        self.apply_fully(change);
    }

    #[cold]
    fn apply_fully(&mut self, change: &Change) {
        let full = match change {
            // The small form has no ticket to remove.
            Change::Unticket { .. } if self.full().is_none() => return,
            _ => self.make_full(),
        };
        match change {
            Change::Hold(hold) => full.holders.put(hold),
            Change::Unhold { owner, token, .. } => match owner {
                [] => full.holders.remove_only(*token),
                owner => full.holders.remove(owner),
            },
            Change::Ticket {
                number,
                owner,
                share,
                claim,
            } => {
                let ticket = Ticket {
                    owner: Box::from(*owner),
                    share: *share,
                    claim: *claim,
                };
                full.tickets.insert(*number, ticket);
            }
            Change::Unticket { number } => {
                full.tickets.remove(number);
            }
            Change::Watch(watched) => full.watched = *watched,
        }
        self.shrink();
    }

    /// Marks a lock that a user brings by RESTORE: its leases must be bounded before it is used. The mark stays with the value,
    /// whatever it is renamed to before that.
    pub fn marked_restored(mut self) -> Lock {
        let owners: Vec<Box<[u8]>> = self.holds().map(|hold| Box::from(hold.owner)).collect();
        for owner in &owners {
            self.set_client(owner, ClientId::RESTORED);
        }
        self
    }

    /// Returns the owners whose leases must be bounded.
    pub fn restored_owners(&self) -> Vec<Box<[u8]>> {
        let marked = self
            .holds()
            .filter(|hold| hold.client == ClientId::RESTORED);
        marked.map(|hold| Box::from(hold.owner)).collect()
    }

    /// Sets the connection of an owner's hold, which is no longer fresh then. That is not durable, so it has no effect to replicate.
    pub fn set_client(&mut self, owner: &[u8], client: ClientId) {
        if let Some(hold) = self.hold(owner) {
            let hold = Hold {
                owner,
                client,
                fresh: false,
                ..hold
            };
            self.apply(&Change::Hold(hold));
        }
    }

    /// Returns true if the holders stand in the order of their deadlines, as many holders do.
    pub(super) fn is_indexed(&self) -> bool {
        self.full().is_some_and(|full| full.holders.is_indexed())
    }

    /// Takes out the holders whose leases end at `until` or before, and returns them as a lock. Writes no effect: the caller does
    /// (see [`super::keyspace::Entry::end_until`]).
    pub(super) fn split_off(&mut self, until: WallMs) -> Lock {
        match self {
            Lock::Sole(sole) if sole.holds() > 0 && sole.deadline <= until => {
                let ended = std::mem::replace(sole, Sole::FREE);
                sole.watch(ended.watched());
                Lock::Sole(ended)
            }
            Lock::Sole(_) => Lock::FREE,
            Lock::Full(full) => {
                let ended = Full {
                    holders: full.holders.split_off(until),
                    ..Full::default()
                };
                self.shrink();
                Lock::Full(Box::new(ended))
            }
        }
    }

    /// Frees `most` tickets and holders of a lock that has gone. Returns true if none is left.
    pub fn shed(&mut self, most: usize) -> bool {
        let Lock::Full(full) = self else { return true };
        let mut room = most;
        while room > 0 && full.tickets.pop_first().is_some() {
            room -= 1;
        }
        while room > 0 && full.holders.free_one() {
            room -= 1;
        }
        full.is_empty()
    }

    /// Returns roughly the memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let apart = match self {
            Lock::Sole(sole) => match &sole.owner {
                Owner::Short { .. } => 0,
                Owner::Long(owner) => owner.len(),
            },
            Lock::Full(full) => {
                let tickets = full.tickets.values();
                let tickets: usize = tickets.map(|ticket| 80 + ticket.owner.len()).sum();
                std::mem::size_of::<Full>() + full.holders.bytes() + tickets
            }
        };
        std::mem::size_of::<Lock>() + apart
    }

    /// Returns the large form; none if the lock is in the small one.
    fn full(&self) -> Option<&Full> {
        match self {
            Lock::Sole(_) => None,
            Lock::Full(full) => Some(full),
        }
    }

    /// Returns the large form, which is made from the small one if necessary.
    fn make_full(&mut self) -> &mut Full {
        if let Lock::Sole(sole) = self {
            let mut full = Box::new(Full {
                watched: sole.watched(),
                ..Full::default()
            });
            if let Some(hold) = sole.hold() {
                full.holders.put(&hold);
            }
            *self = Lock::Full(full);
        }
        match self {
            Lock::Full(full) => full,
            Lock::Sole(_) => unreachable!("the small form was replaced above"),
        }
    }

    /// Returns to the small form if that can express the same, so that equal states have equal forms.
    fn shrink(&mut self) {
        let Lock::Full(full) = self else { return };
        if !full.tickets.is_empty() || full.holders.len() > 1 {
            return;
        }
        let mut small = Sole::FREE;
        small.watch(full.watched);
        let mut holds = full.holders.iter();
        if holds.next().is_none_or(|hold| small.put(&hold)) {
            drop(holds);
            *self = Lock::Sole(small);
        }
    }
}
