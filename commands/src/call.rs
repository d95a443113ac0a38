//! A call of a command: who calls, what is there, and what is answered.

use crate::error::Error;
use crate::table::Args;
use dlock_engine::{
    ClientId, Engine, Keyspace, Lock, Millis, NameRef, Now, Refusal, RequestId, Token,
};

/// Who calls, and what can be found out about clients.
pub trait Caller {
    /// The connection's client id; 0 if the caller has no connection of its own.
    fn client(&self) -> u64;
    /// Returns whether this caller may be kept waiting.
    fn may_wait(&self) -> MayWait;
    /// How many answers wait for their confirmation by replicas.
    fn unconfirmed(&self) -> usize;
    /// Returns true if this is a primary's stream or the AOF, whose decisions are followed.
    fn is_followed(&self) -> bool;
    /// Returns true if the caller has a connection of its own, whose end the server will tell of: not a script, not another
    /// module.
    fn own_connection(&self) -> bool;
    /// Returns true if the caller may publish on this channel.
    fn may_publish(&self, channel: &[u8]) -> bool;
    /// A fresh owner's name: a version-4 UUID.
    fn fresh_owner(&self) -> String;
    /// Returns true if this connection is there.
    fn connected(&self, client: u64) -> bool;
    /// Address and name of a connection, if it is there and the caller may list connections.
    fn describe(&self, client: u64) -> Option<(Vec<u8>, Vec<u8>)>;
    /// Which of these keys the calling user may read.
    fn may_read(&self, keys: &[&[u8]]) -> Vec<bool>;
    /// Returns true if the calling user may reset the server's own statistics.
    fn may_reset(&self) -> bool;
    /// What the server counts.
    fn census(&self) -> Census;
}

/// Whether a caller may be kept waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayWait {
    /// It may.
    Yes,
    /// In MULTI, in a script, or in another module's call: it is as if it had not asked to.
    Ignored,
    /// The server lets this connection wait for nothing. A null would look like a time-out to it.
    Refused,
}

/// What there is now, where it is not the engine that knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Census {
    /// Keys that are locks.
    pub locks: u64,
    /// Holds that came with loaded values, less those that went with removed ones.
    pub stored_holds: i64,
    /// Blocked connections.
    pub connections_waiting: u64,
    /// Whether the server's policy can take a lock.
    pub eviction_possible: bool,
    /// Whether this server decides: on one that follows there is no quarantine.
    pub primary: bool,
    /// The replicas that confirm answers.
    pub replicas: Replicas,
}

/// What there is to say of the replicas that confirm answers (`dlock.replicas`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Replicas {
    /// How many must confirm an answer; 0 where none needs to.
    pub needed: u32,
    /// How many are online whose confirmation counts.
    pub counting: u32,
    /// How many are connected, in whatever state.
    pub connected: u32,
    /// How many of the connected have joined by a partial resynchronisation.
    pub partial: u32,
    /// How many by a full one.
    pub full: u32,
    /// Whether they are more than are configured.
    pub too_many: bool,
    /// Whether this server is a primary and they are fewer.
    pub too_few: bool,
    /// For how many milliseconds this server confirms nothing yet, since it was started or has taken over another's data.
    pub closed_ms: Millis,
    /// For how many milliseconds whoever joins counts late.
    pub late_ms: Millis,
    /// How many answers wait for a confirmation.
    pub waiting: u64,
}

/// What is taken where a request leaves something out.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// The lease.
    pub lease_ms: Millis,
}

/// One call of a command.
pub struct Call<'c, K: Keyspace> {
    /// The locks' queues.
    pub engine: &'c mut Engine,
    /// The locks.
    pub keys: &'c mut K,
    /// The time of the call.
    pub now: Now,
    /// The caller's database.
    pub db: u32,
    /// Who calls.
    pub caller: &'c dyn Caller,
    /// What is taken where the request leaves something out.
    pub defaults: &'c Defaults,
    /// Whether this server decides, or follows another one.
    pub primary: bool,
}

/// What a command answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Token and hold count, and the owner if the server named it.
    Grant(Token, u32, Option<String>),
    /// No answer yet: the request waits under this number, for its turn or for replicas; the owner if the server named it.
    Wait(RequestId, Option<String>),
    /// The inner command may run: its reply is the answer.
    Run,
    /// Heard: replicas that join count late for a while.
    FullSyncNotice,
    /// The page of a list that this asks for is the answer.
    List(Box<Listing>),
    /// Nothing, where an array or a map is the other answer.
    NullArray,
    /// Nothing.
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
    pub(crate) source: Source,
    /// What keys have to match.
    pub pattern: Option<Vec<u8>>,
    /// How many keys to read.
    pub count: usize,
    pub(crate) owner: Option<Vec<u8>>,
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
    /// Returns true if the caller has a connection of its own, whose end the server will tell of. A connection that something is
    /// tied to is one, and the server need not be asked: it would be 500 instructions.
    pub(crate) fn own_connection(&self) -> bool {
        let client = ClientId(self.caller.client());
        self.engine.has_connection(client) || self.caller.own_connection()
    }

    /// The lock at a key of the caller's database.
    pub(crate) fn name<'a>(&self, key: &'a [u8]) -> NameRef<'a> {
        NameRef { db: self.db, key }
    }

    /// The locks that a command names.
    pub(crate) fn names<'a>(&self, given: &Args<'a>) -> Vec<NameRef<'a>> {
        given.keys.iter().map(|key| self.name(key)).collect()
    }

    /// The lock at a name as it is, for commands that only read.
    ///
    /// Errors if the key holds something else.
    pub(crate) fn lock(&mut self, name: NameRef) -> Result<(&Engine, Option<&Lock>), Error> {
        let entry = self.keys.entry(name);
        if entry.foreign {
            return Err(Refusal::WrongType.into());
        }
        Ok((self.engine, entry.lock.as_deref()))
    }

    /// The lease that was given, or the default.
    pub(crate) fn lease(&self, given: Option<Millis>) -> Millis {
        match given {
            Some(lease) => lease,
            None => self
                .defaults
                .lease_ms
                .min(self.engine.policy().max_lease_ms),
        }
    }
}
