//! The records of a run's clients, and the observations of its servers. The judge reads nothing else. Times
//! are in microseconds since the run began: all clients live in one process, so there is one clock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use dlock_harness::belief::{Belief, End, Micros, SECOND};

/// All of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The times in which a client believed that it held a lock.
    pub beliefs: Vec<Belief>,
    /// The writes by GUARD.
    pub writes: Vec<Write>,
    /// The written lists, as they were at the end.
    pub logs: Vec<Log>,
    /// Waits in a queue.
    pub waits: Vec<Wait>,
    /// Times in which a program with a session is not there.
    #[serde(default)]
    pub absences: Vec<Absence>,
    /// Places kept by ticket.
    pub tickets: Vec<Ticket>,
    /// The faults.
    pub rounds: Vec<Round>,
    /// Answers by command and kind.
    pub answers: BTreeMap<String, u64>,
    /// Calls that got no answer within their bound.
    pub unanswered: Vec<Unanswered>,
    /// The counts that were left at the servers after all clients had ended.
    pub left: Vec<Left>,
    /// Servers that ended without having been killed.
    pub died: Vec<String>,
    /// The settings of the servers at the end.
    pub settings: Vec<Applied>,
}

/// One write by GUARD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Write {
    pub lock: String,
    pub token: u64,
    pub sent: Micros,
    /// The last instant at which the hold can have been alive: the arrival of the last reply that extended its lease, and that
    /// lease.
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

/// A time in which nobody need have a lock: a program that held it or waited for it hangs or has died, and the server ends its session
/// and its lease within a bound.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Absence {
    pub lock: String,
    /// When the program stopped.
    pub from: Micros,
    /// When the bound is over.
    pub until: Micros,
}

/// A place that an owner kept from slice to slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ticket {
    pub lock: String,
    pub owner: String,
    /// When the place was first asked for.
    pub asked: Micros,
    /// When the server had confirmed the place.
    pub placed: Micros,
    /// When its owner last asked for it, or had the lock.
    pub until: Micros,
    /// The token, if it was granted.
    pub token: Option<u64>,
}

/// A call without an answer: from when it was sent until it was given up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unanswered {
    pub command: String,
    pub from: Micros,
    pub until: Micros,
}

/// A fault, or a move of a slot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    pub name: String,
    pub from: Micros,
    /// When everything is as before the fault: forgotten holds and places have ended too.
    pub calm: Micros,
    /// Whether it can lose places. (Replication is asynchronous.)
    pub lossy: bool,
    /// Whether a server can run and not answer.
    pub silent: bool,
    /// Whether there was another primary afterwards.
    pub promoted: bool,
    /// Whether the servers agreed again.
    pub healed: bool,
    /// When the new primary was noticed, and its door.
    pub new: Option<(Micros, u16)>,
}

/// A count that a server still had after all clients had ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Left {
    pub server: String,
    pub gauge: String,
    pub value: u64,
}

/// A server's report of its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub server: String,
    pub to_write: u64,
    pub max_lag: u64,
    pub quarantine_ms: u64,
    #[serde(default)]
    pub replicas: u64,
}
