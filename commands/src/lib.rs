//! The commands: one table, by which their words are read, and for each family the way from there to an engine call to a
//! reply.
//!
//! Nothing here knows of Redis either: words are byte slices, the keyspace is the engine's trait, a reply is a value.

#![forbid(unsafe_code)]

pub mod change;
pub mod error;
pub mod look;
pub mod table;
pub mod words;

use change::acquire::{self, Family};
use change::{apply, hold, keep, many, queue};
use dlock_engine::{
    ClientId, Engine, Keyspace, Lock, Millis, NameRef, Now, Refusal, RequestId, Token,
};
use error::Error;
use look::{graph, inspect, list, stats};
use table::{Access, Args, Spec, Verb};
use words::args;

/// Who calls, and what can be found out about clients.
pub trait Caller {
    /// The connection's client id; 0 if the caller has no connection of its own.
    fn client(&self) -> u64;
    /// Returns true if this caller may be kept waiting.
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
    Heed,
    /// The page of a list that this asks for is the answer.
    List(Box<list::Listing>),
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

/// Runs a command. Takes its words after the command's name. The commands are not inlined here: the short ones would pay
/// for the stack of the long ones.
///
/// Errors: every one of [`Error`]; nothing has changed then.
pub fn execute<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let tied = !call.engine.ledger.ties.is_empty();
    if tied {
        // What this connection ends itself it need not be told of.
        call.engine
            .ledger
            .ties
            .act_for(ClientId(call.caller.client()));
    }
    let answer = decide(spec, call, words);
    if tied {
        call.engine.ledger.ties.act_for(ClientId::NONE);
    }
    if let Err(Error::Refused(refusal)) = &answer {
        call.engine.ledger.counters.refusals.count(refusal);
    }
    answer
}

#[inline(always)]
fn decide<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let decides = matches!(
        spec.access,
        Access::Write | Access::Guard | Access::Connection
    );
    if decides && !call.primary {
        return Err(Error::ReadOnly);
    }
    // Most requests say no more than this. To read them by the table would be 500 of the 14,900 instructions that the server takes
    // for an uncontended pair, and 900 with AUTO; of the others none is worth a second way.
    let plain = match spec.verb {
        Verb::Acquire | Verb::Release => args::plain(words, &call.engine.policy),
        _ => None,
    };
    match (spec.verb, plain) {
        (Verb::Acquire, Some(plain)) if plain.owner != acquire::FRESH => {
            acquire::run_plain(call, plain)
        }
        (Verb::Release, Some(plain)) if plain.lease.is_none() && plain.auto.is_none() => {
            hold::release_plain(call, plain)
        }
        _ => execute_any(spec, call, words),
    }
}

/// The same for any words.
#[inline(never)]
fn execute_any<K: Keyspace>(
    spec: &'static Spec,
    call: &mut Call<K>,
    words: &[&[u8]],
) -> Result<Reply, Error> {
    let given = &args::read(spec, words, &call.engine.policy)?;
    match spec.verb {
        Verb::Acquire => acquire::run(call, given, Family::Plain),
        Verb::FairAcquire => acquire::run(call, given, Family::Fair),
        Verb::AcquireMany => many::acquire(call, given),
        Verb::RenewMany => many::renew(call, given),
        Verb::ReleaseMany => many::release(call, given),
        Verb::Downgrade => hold::downgrade(call, given),
        Verb::Renew => hold::renew(call, given),
        Verb::Release => hold::release(call, given),
        Verb::Keep => keep::run(call, given),
        Verb::ForceRelease => hold::force(call, given),
        Verb::Cancel => queue::cancel(call, given),
        Verb::Position => queue::position(call, given),
        Verb::Held => inspect::held(call, given),
        Verb::Check => inspect::check(call, given),
        Verb::Guard => inspect::guard(call, given),
        Verb::Info => inspect::info(call, given),
        Verb::List => list::run(given),
        Verb::Stats => stats::stats(call, given),
        Verb::Top => stats::top(call, given),
        Verb::Graph => graph::run(call, given),
        Verb::Help => Ok(inspect::help()),
        Verb::Apply => apply::run(call, given),
        Verb::Heed => apply::heed(call),
    }
}

impl<K: Keyspace> Call<'_, K> {
    /// Returns true if the caller has a connection of its own, whose end the server will tell of. A connection that something is
    /// tied to is one, and the server need not be asked: it would be 500 instructions.
    fn own_connection(&self) -> bool {
        let client = ClientId(self.caller.client());
        self.engine.ledger.ties.know(client) || self.caller.own_connection()
    }

    /// The lock at a key of the caller's database.
    fn name<'a>(&self, key: &'a [u8]) -> NameRef<'a> {
        NameRef { db: self.db, key }
    }

    /// The locks that a command names.
    fn names<'a>(&self, given: &Args<'a>) -> Vec<NameRef<'a>> {
        given.keys.iter().map(|key| self.name(key)).collect()
    }

    /// The lock at a name as it is, for commands that only read.
    ///
    /// Errors if the key holds something else.
    fn lock(&mut self, name: NameRef) -> Result<(&Engine, Option<&Lock>), Error> {
        let entry = self.keys.entry(name);
        if entry.foreign {
            return Err(Refusal::WrongType.into());
        }
        Ok((self.engine, entry.lock.as_deref()))
    }

    /// The lease that was given, or the default.
    fn lease(&self, given: Option<Millis>) -> Millis {
        match given {
            Some(lease) => lease,
            None => self.defaults.lease_ms.min(self.engine.policy.max_lease_ms),
        }
    }
}
