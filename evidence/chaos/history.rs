//! What a run's clients have recorded, and what was seen of the servers. The judge reads nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Microseconds since the run began. All clients live in one process, so there is one clock.
pub type Micros = u64;

/// A second.
pub const SECOND: Micros = 1_000_000;

/// All of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The times in which a client believed that it held a lock.
    pub beliefs: Vec<Belief>,
    /// What was written by GUARD.
    pub writes: Vec<Write>,
    /// What was found at the end of what was written.
    pub logs: Vec<Log>,
    /// Waits in a queue.
    pub waits: Vec<Wait>,
    /// Places that were kept by ticket.
    pub tickets: Vec<Ticket>,
    /// What was done to the servers.
    pub rounds: Vec<Round>,
    /// Answers by command and kind.
    pub answers: BTreeMap<String, u64>,
    /// Calls that got no answer within their bound.
    pub unanswered: Vec<Unanswered>,
    /// What was left at the servers when everybody had gone.
    pub left: Vec<Left>,
    /// Servers that ended without having been killed.
    pub died: Vec<String>,
    /// What the servers said of their settings in the end.
    pub settings: Vec<Applied>,
    /// The calls about locks, one by one, if somebody wants them.
    pub calls: Vec<Call>,
}

/// One owner believed that it held one lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Belief {
    pub lock: String,
    pub owner: String,
    pub token: u64,
    /// The most owners that this one allows; 0 is no bound.
    pub limit: u64,
    /// When the request was sent.
    pub asked: Micros,
    /// From when on it worked.
    pub from: Micros,
    /// When it stopped: it gave the lock back, its lease was over, or it was told that it had lost it.
    pub until: Micros,
    pub end: End,
    /// The door of the server that granted it.
    pub server: u16,
    /// Was it believed only after a renewal? The others count from the request that was granted.
    pub renewed: bool,
}

/// Why an owner stopped believing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It gave the lock back.
    Released,
    /// Its lease was over, by what it had last been told.
    RanOut,
    /// A server said that it did not hold the lock, before its lease was over.
    Lost,
    /// It was granted the lock, but could not confirm that, and never believed.
    Unconfirmed,
}

/// One write by GUARD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Write {
    pub lock: String,
    pub token: u64,
    pub sent: Micros,
    /// The last instant at which the hold can have been alive: the arrival of the last reply that lengthened its
    /// lease, and that lease.
    pub alive_until: Micros,
    pub done: bool,
}

/// The tokens under which a lock's list was written, in the order of the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Log {
    pub lock: String,
    pub tokens: Vec<u64>,
}

/// One wait: from when the request was sent until it was answered or given up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wait {
    pub lock: String,
    pub owner: String,
    pub from: Micros,
    pub until: Micros,
}

/// A place that an owner kept from slice to slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ticket {
    pub lock: String,
    pub owner: String,
    /// When the place was first asked for.
    pub asked: Micros,
    /// When the server had said that there was a place.
    pub placed: Micros,
    /// When its owner last asked for it, or had the lock.
    pub until: Micros,
    /// The token, if it came to that.
    pub token: Option<u64>,
}

/// A call without an answer: from when it was sent until it was given up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unanswered {
    pub command: String,
    pub from: Micros,
    pub until: Micros,
}

/// One fault, or one move of a slot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    pub name: String,
    pub from: Micros,
    /// From when on everything is as if nothing had been: what nobody knows of has ended too.
    pub calm: Micros,
    /// Can places be lost in it? (Replication is asynchronous.)
    pub lossy: bool,
    /// Can a server be there and not answer?
    pub silent: bool,
    /// Was there another primary afterwards?
    pub promoted: bool,
    /// Did the servers find together again?
    pub healed: bool,
    /// When somebody noticed that another server was primary, and its door.
    pub new: Option<(Micros, u16)>,
}

/// What a server still counted when everybody had gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Left {
    pub server: String,
    pub gauge: String,
    pub value: u64,
}

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub server: String,
    pub to_write: u64,
    pub max_lag: u64,
    pub quarantine_ms: u64,
    #[serde(default)]
    pub replicas: u64,
}

/// One call about locks, from when it was sent until it was answered or given up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The client: it has one call at a time.
    pub client: String,
    pub command: String,
    pub keys: Vec<String>,
    pub owner: Option<String>,
    /// The token that was named in the request.
    pub named: Option<u64>,
    /// The lease that was asked for.
    pub lease_ms: Option<u64>,
    /// The most owners that this one allows, of a request for a lock; 0 is no bound.
    pub limit: Option<u64>,
    pub sent: Micros,
    pub ended: Micros,
    pub outcome: Outcome,
    /// The door where it was answered.
    pub server: u16,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was carried out.
    Done {
        /// One for each key, if it was a grant.
        tokens: Vec<u64>,
        /// What is left of the lease, if that was told.
        left_ms: Option<u64>,
    },
    /// It was not carried out, and will not be.
    Refused(String),
    /// Nobody knows.
    Unknown(String),
}
