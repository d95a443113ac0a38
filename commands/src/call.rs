//! A call of a command: its caller, its input, and its reply.

use crate::error::Error;
use crate::table::Args;
use dlock_engine::{
    ClientId, Engine, Keyspace, Lock, Millis, NameRef, Now, Refusal, RequestId, Token,
};

/// The caller of a command, and what it may know about clients.
pub trait Caller {
    /// Returns the connection's client id; 0 if the caller has no connection of its own.
    fn client(&self) -> u64;
    /// Returns whether this caller may be kept waiting.
    fn may_wait(&self) -> MayWait;
    /// Returns the name of the calling ACL user.
    fn user(&self) -> Vec<u8>;
    /// Returns true if the server would accept a write of this key now.
    fn may_write(&self, key: &[u8]) -> bool;
    /// Returns how many answers wait for their confirmation by replicas.
    fn unconfirmed(&self) -> usize;
    /// Returns true if this is a primary's stream or the AOF, whose effects are applied.
    fn is_followed(&self) -> bool;
    /// Returns true if the caller has a connection of its own, whose end the server reports: not a script, not another module.
    fn own_connection(&self) -> bool;
    /// Makes an owner's name: a version-4 UUID.
    fn fresh_owner(&self) -> String;
    /// Returns true if this connection exists.
    fn connected(&self, client: u64) -> bool;
    /// Returns address and name of a connection, if it exists and the caller may list connections.
    fn describe(&self, client: u64) -> Option<(Vec<u8>, Vec<u8>)>;
    /// Returns true if the caller may list connections.
    fn may_list_clients(&self) -> bool;
    /// Returns true if the caller is a file that is read at a start.
    fn is_loading(&self) -> bool;
    /// Returns which of these keys the calling user may read.
    fn may_read(&self, keys: &[&[u8]]) -> Vec<bool>;
    /// Returns true if the calling user may ask the server for a copy of its data (PSYNC).
    fn may_synchronize(&self) -> bool;
    /// Returns true if the calling user may reset the server's own statistics.
    fn may_reset(&self) -> bool;
    /// Returns the numbers that the engine does not have.
    fn census(&self) -> Census;
}

/// Whether a caller may be kept waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayWait {
    /// It may wait.
    Yes,
    /// It may not, in MULTI, in a script, or in another module's call: `BLOCK` is ignored.
    Ignored,
    /// The server does not block this connection, and `BLOCK` is an error: a null would look like a time-out.
    Refused,
}

/// Numbers for `DLOCK.STATS` and INFO that the engine does not have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Census {
    /// How many keys are locks.
    pub locks: u64,
    /// Holds that came with loaded values, less those that went with removed ones.
    pub stored_holds: i64,
    /// Blocked connections.
    pub connections_waiting: u64,
    /// Whether the server's eviction policy can remove a lock.
    pub eviction_possible: bool,
    /// Whether this server is a primary: a replica has no quarantine.
    pub primary: bool,
    /// The replicas that confirm answers.
    pub replicas: dlock_confirm::Status,
    /// How many answers wait for a confirmation.
    pub confirmations_waiting: u64,
}

/// One call of a command.
pub struct Call<'c, K: Keyspace> {
    /// The engine.
    pub engine: &'c mut Engine,
    /// The locks.
    pub keys: &'c mut K,
    /// The time of the call.
    pub now: Now,
    /// The caller's database.
    pub db: u32,
    /// The caller.
    pub caller: &'c dyn Caller,
    /// The lease of a request that leaves it out.
    pub default_lease_ms: Millis,
    /// Whether this server is a primary.
    pub primary: bool,
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Token and hold count, and the owner if the server named it.
    Grant(Token, u32, Option<String>),
    /// Token and session id.
    GrantIn(Token, u64),
    /// No reply yet: the request waits under this number, for its turn or for replicas; the owner if the server named it.
    Wait(RequestId, Option<String>),
    /// The inner command may run, and its reply is the reply.
    Run,
    /// `OK`: replicas that join count late for a while. The caller notes it.
    FullSyncNotice,
    /// The reply is the page of a list that this asks for.
    List(Box<Listing>),
    /// Null, where the other reply is an array or a map.
    NullArray,
    /// Null.
    Null,
    /// `OK`.
    Ok,
    /// An integer.
    Integer(u64),
    /// A word or other text of the module's own.
    Text(&'static str),
    /// Bytes.
    Bulk(Vec<u8>),
    /// A list.
    Array(Vec<Reply>),
    /// Names and values.
    Map(Vec<(&'static str, Reply)>),
}

impl Reply {
    /// Makes a list.
    pub(crate) fn array(items: impl IntoIterator<Item = Reply>) -> Reply {
        Reply::Array(items.into_iter().collect())
    }

    /// Makes an integer.
    pub(crate) fn number(number: impl Into<u64>) -> Reply {
        Reply::Integer(number.into())
    }
}

/// One request for a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Where its page begins.
    pub source: Source,
    /// The pattern that keys must match.
    pub pattern: Option<Vec<u8>>,
    /// How many keys to read.
    pub count: usize,
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) session: Option<Vec<u8>>,
    pub(crate) contended: bool,
}

/// Where a page comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The server's keys, from this cursor on.
    Keys(u64),
    /// The engine's queues, from this hash on.
    Queues(u64),
}

impl<K: Keyspace> Call<'_, K> {
    /// Returns true if the caller has a connection of its own, whose end the server reports. A connection with ties is one, which
    /// spares a question to the server of 500 instructions.
    pub(crate) fn own_connection(&self) -> bool {
        let client = ClientId(self.caller.client());
        self.engine.has_connection(client) || self.caller.own_connection()
    }

    /// Names the lock at a key of the caller's database.
    pub(crate) fn name<'a>(&self, key: &'a [u8]) -> NameRef<'a> {
        NameRef { db: self.db, key }
    }

    /// Names the locks of a command.
    pub(crate) fn names<'a>(&self, given: &Args<'a>) -> Vec<NameRef<'a>> {
        given.keys.iter().map(|key| self.name(key)).collect()
    }

    /// Returns the lock at a name as it is, for read-only commands.
    ///
    /// Errors if the key has a value of another type.
    pub(crate) fn lock(&mut self, name: NameRef) -> Result<(&Engine, Option<&Lock>), Error> {
        let entry = self.keys.entry(name);
        if entry.foreign {
            return Err(Refusal::WrongType.into());
        }
        Ok((self.engine, entry.lock.as_deref()))
    }

    /// Returns the given lease, or the default.
    pub(crate) fn lease(&self, given: Option<Millis>) -> Millis {
        given.unwrap_or_else(|| {
            let most = self.engine.policy().max_lease_ms;
            self.default_lease_ms.min(most)
        })
    }
}
