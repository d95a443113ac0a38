//! The engine's terms as types: points in time, names, limits, and identifying numbers.

use std::num::NonZeroU32;
use std::rc::Rc;

/// A duration in milliseconds.
pub type Millis = u64;

/// Defines a number that identifies one thing and is no amount.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

number! {
    /// A fencing token. It tells when the grant was made: it is that time in microseconds of the unix epoch, or a little more.
    Token
}
number! {
    /// The server's id of a connection; 0 for none, or one that this server does not know.
    ClientId
}
number! {
    /// Identifies one waiting request, or an answer that waits. No number is used twice in a run of the server.
    RequestId
}
number! {
    /// A place's number in the order of arrival: the time in microseconds of the unix epoch, or a little more.
    Arrival
}
number! {
    /// The hash of an owner's name in the indexes. It has a secret key, so no client can make two owners share one.
    OwnerHash
}

/// Identifies a session as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNo(pub NonZeroU32);

/// The party to which a hold is tied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// A connection.
    Connection(ClientId),
    /// A session.
    Session(SessionNo),
}

impl ClientId {
    /// No connection.
    pub const NONE: ClientId = ClientId(0);

    /// Stands where a connection's id would, in a hold that a user has brought by RESTORE and that is not bounded yet.
    pub const RESTORED: ClientId = ClientId(u64::MAX);
}

impl Token {
    /// The lowest number that is not a token (2^53): every client language holds each token exactly.
    pub const END: Token = Token(1 << 53);

    /// Returns true if a number may be a token, or a place's number, which comes from the same clock.
    pub fn may_be(number: u64) -> bool {
        number > 0 && number < Token::END.0
    }

    /// Returns when the grant was made.
    pub fn granted(self) -> WallMs {
        WallMs(self.0 / 1000)
    }
}

impl Arrival {
    /// The number of the waiting upgrade's place: ahead of the queue.
    pub const UPGRADE_SLOT: Arrival = Arrival(0);

    /// A number behind all places.
    pub const LAST: Arrival = Arrival(u64::MAX);
}

/// Defines a point in time, with its arithmetic.
macro_rules! point {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Millis);

        impl $name {
            /// Returns the point that is this much later.
            pub fn after(self, ms: Millis) -> $name {
                $name(self.0.saturating_add(ms))
            }

            /// Returns how much later this is than another point; 0 if it is not.
            pub fn since(self, earlier: $name) -> Millis {
                self.0.saturating_sub(earlier.0)
            }
        }
    };
}

point! {
    /// A point of the server's wall clock, in milliseconds of the unix epoch. Leases end by it, as every TTL of the server.
    WallMs
}
point! {
    /// A point of a clock that never steps, in milliseconds. Waits and claim windows end by it.
    SteadyMs
}

/// The clocks of the server at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The wall clock: microseconds of the unix epoch.
    pub us: u64,
    /// A clock that never steps: microseconds since some beginning.
    pub steady_us: u64,
}

impl Now {
    /// Returns the wall clock in milliseconds.
    pub fn wall(self) -> WallMs {
        WallMs(self.us / 1000)
    }

    /// Returns the clock that never steps in milliseconds.
    pub fn steady(self) -> SteadyMs {
        SteadyMs(self.steady_us / 1000)
    }
}

/// The largest limit that is not "no bound".
pub const MAX_LIMIT: u64 = u32::MAX as u64 - 1;

/// The largest number that values and effects may contain. Both, and the server itself, can express it.
pub const MAX_NUMBER: u64 = i64::MAX as u64;

/// The longest owner, in bytes.
pub const MAX_OWNER: usize = 1024;

/// The most permits that may be held at once, as one owner asks for it. The strictest sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Limit(u32);

impl Limit {
    /// One owner: a mutex.
    pub const EXCLUSIVE: Limit = Limit(1);
    /// No bound: the readers of a read-write lock.
    pub const SHARED: Limit = Limit(u32::MAX);

    /// Reads a limit of a value, an effect or a reply, where 0 is "no bound".
    pub fn from_wire(value: u32) -> Option<Limit> {
        match value {
            0 => Some(Limit::SHARED),
            u32::MAX => None,
            n => Some(Limit(n)),
        }
    }

    /// Returns the limit as values, effects and replies contain it, where 0 is "no bound".
    pub fn to_wire(self) -> u32 {
        if self == Limit::SHARED {
            0
        } else {
            self.0
        }
    }

    /// Returns true if this many permits may be held at once.
    pub fn allows(self, permits: u64) -> bool {
        self == Limit::SHARED || permits <= u64::from(self.0)
    }
}

/// How many places a hold takes under the limits, all at once, as long as it lasts.
pub type Permits = NonZeroU32;

/// One permit, which nearly every hold takes.
pub const ONE: Permits = Permits::MIN;

/// The limit and the permits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The most permits that may be held at once.
    pub limit: Limit,
    /// How many of them the hold takes. The limit allows them.
    pub permits: Permits,
}

/// The terms of a request for a lock.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The limit and the permits.
    pub share: Share,
    /// The lease, from the grant on.
    pub lease: Millis,
    /// `HOLDS n`: make the hold count at least n rather than one more.
    pub holds: Option<NonZeroU32>,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    /// How long the server renews the hold, if it does. The lease is at least [`SHORTEST_AUTO_LEASE_MS`] then.
    ///
    /// [`SHORTEST_AUTO_LEASE_MS`]: crate::SHORTEST_AUTO_LEASE_MS
    pub auto: Option<NonZeroU32>,
    /// The session that the hold and the wait belong to, instead of the connection.
    pub session: Option<SessionNo>,
    /// The connection that asks.
    pub client: ClientId,
}

impl Terms {
    /// Returns whom the hold is tied to, if the grant ties it.
    pub fn party(&self) -> Party {
        match self.session {
            Some(session) => Party::Session(session),
            None => Party::Connection(self.client),
        }
    }

    /// Returns true if the grant ties the hold to the connection or to a session.
    pub fn ties(&self) -> bool {
        self.ephemeral || self.auto.is_some() || self.session.is_some()
    }
}

/// A lock's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: Rc<[u8]>,
}

/// A lock's name, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRef<'a> {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
}

impl Name {
    /// Borrows the name.
    pub fn as_ref(&self) -> NameRef<'_> {
        NameRef {
            db: self.db,
            key: &self.key,
        }
    }
}

impl NameRef<'_> {
    /// Returns the name as an owned value.
    pub fn to_owned(self) -> Name {
        Name {
            db: self.db,
            key: Rc::from(self.key),
        }
    }
}

/// A hold, by its lock and its owner.
#[derive(Debug, Clone, Copy)]
pub struct HoldRef<'a> {
    /// The lock.
    pub name: NameRef<'a>,
    /// Its holder, or its next one.
    pub owner: &'a [u8],
}

/// A grant, or a re-entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// The hold count now.
    pub holds: u32,
}
