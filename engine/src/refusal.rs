//! Why the engine refuses a request.

use super::types::{Limit, Millis, Permits};
use thiserror::Error;

/// Why a request was refused. Nothing has changed when one of these is answered.
///
/// `Display` is the text on the wire: the first word is the code that clients dispatch on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The owner does not hold the lock, or not under the token it named, or no longer.
    #[error("NOTHELD the owner does not hold this lock (under this token)")]
    NotHeld,
    /// A request for many locks would wait, and its owner holds one of them.
    #[error(
        "HOLDING the owner holds one of these locks, and DLOCK.MACQUIRE waits only for locks that its owner does not hold: \
         give it back, take all at once, or leave it out of the list"
    )]
    Holding,
    /// A value has come to the name that has a hold or a ticket of the owner who waits there.
    #[error("TRYAGAIN another value has come to this key: ask again")]
    TryAgain,
    /// Nobody holds the lock under that token now.
    #[error("FENCED the lock is not held under this token")]
    Fenced,
    /// The wait would close a circle; the text names it.
    #[error("DEADLOCK waiting would never end: {0}")]
    Deadlock(String),
    /// One of the caps of the configuration is reached; the field names it.
    #[error("QUEUEFULL {0} is reached")]
    Full(&'static str),
    /// The server grants nothing yet, for this many milliseconds (`dlock.quarantine-ms` after a start or promotion).
    #[error(
        "QUARANTINE no grants yet: the quarantine after the start or promotion ends in {0} ms"
    )]
    Quarantine(Millis),
    /// The server grants nothing for now (`dlock.grants no`).
    #[error("QUARANTINE no grants: dlock.grants is no")]
    Draining,
    /// Replicas cannot confirm it, or have not (`dlock.replicas`).
    #[error("NOACK {0}")]
    NoAck(NoAck),
    /// The key holds something that is not a lock.
    #[error("WRONGTYPE the key holds a value that is not a lock")]
    WrongType,
    /// A request for many locks is refused because of the lock at this key.
    #[error("{} (key '{}')", .0, escaped(.1, BYTES_NAMED))]
    At(Box<Refusal>, Box<[u8]>),
    /// The hold count cannot rise any further.
    #[error("ERR the hold count must be at most {}: it would overflow", u32::MAX)]
    Overflow,
    /// A release is to leave more holds than there are; the field says how many there are.
    #[error("ERR HOLDS must be an integer from 0 to the hold count, which is {0}")]
    LeavesMore(u32),
    /// A downgrade would not weaken the limit; the field is the one that the hold has.
    #[error("ERR LIMIT must be {}", weaker(.0))]
    NotWeaker(Limit),
    /// A holder asks for more permits than it has; the field says how many it has.
    #[error("ERR PERMITS must be an integer from 1 to {0}, which the hold has: to take more, release it and ask again")]
    MorePermits(Permits),
    /// A holder of several permits asks for a stricter limit; the field says how many it has.
    #[error(
        "ERR PERMITS must be 1 for an upgrade, and the hold has {0}: release it and ask again"
    )]
    NotUpgraded(Permits),
    /// A request in a session asks again for what waits already, with another limit or number of permits.
    #[error(
        "ERR LIMIT and PERMITS must be those of the request that waits: cancel it and ask again"
    )]
    OtherShare,
    /// A request in a session asks for a stricter limit than its owner's hold has, which is this.
    #[error(
        "ERR LIMIT must be no stricter than the hold's, which is {}: a hold in a session is not upgraded; \
         release it and ask again",
        word(.0)
    )]
    Stricter(Limit),
    /// The hold is in a session: its owner believes in its limit, so a downgrade names the token.
    #[error("ERR TOKEN must be given: the hold is in a session")]
    TokenNeeded,
    /// Another user has begun the session.
    #[error("NOPERM another user has begun this session")]
    OtherUser,
    /// A SESSION command has seen more rows than there are: this many.
    #[error("ERR SEEN must be at most {0}, the last row of this id")]
    NotThatMany(u64),
    /// An effect is not well formed.
    #[error("ERR DLOCK.APPLY is for replication and the AOF only")]
    Malformed,
    /// An effect is in a format of a later version of the module.
    #[error("ERR {}", newer_format("the effect", *.format, *.known))]
    NewerFormat {
        /// Its format.
        format: u64,
        /// The latest format that this version reads.
        known: u64,
    },
}

/// Why replicas do not confirm an answer. Nothing has changed, but after the last two.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoAck {
    /// Fewer replicas are there than must confirm it.
    #[error("{counting} of {needed} replicas can confirm it; nothing has changed")]
    TooFew {
        /// How many there are whose confirmation counts.
        counting: u32,
        /// How many must confirm.
        needed: u32,
    },
    /// The server was started, or began to take over another's data, too short a while ago: what it had confirmed may still be
    /// believed for this many milliseconds.
    #[error(
        "nothing is confirmed yet: the quarantine after the start or full resynchronisation ends in {0} ms; \
         nothing has changed"
    )]
    Quarantine(Millis),
    /// The caller cannot be kept waiting.
    #[error("the server cannot block this caller until replicas have confirmed it (dlock.replicas); nothing has changed")]
    Barred,
    /// As many answers wait as may.
    #[error("dlock.max-waiters answers already wait for confirmation; nothing has changed")]
    Full,
    /// Not enough have confirmed it in time: what was asked may be in force.
    #[error(
        "{confirmed} of {needed} replicas have confirmed it in time; it may have taken effect"
    )]
    Late {
        /// How many have confirmed it.
        confirmed: u32,
        /// How many must confirm it.
        needed: u32,
    },
    /// The hold had ended by the time of its confirmation.
    #[error("the hold had ended before replicas confirmed it")]
    Ended,
}

/// Returns a limit as commands write it.
fn word(limit: &Limit) -> String {
    match *limit {
        Limit::SHARED => "SHARED".to_string(),
        limit => limit.to_wire().to_string(),
    }
}

/// Returns the limits that a downgrade from this one may name.
fn weaker(limit: &Limit) -> String {
    match *limit {
        Limit::SHARED => "SHARED, as the hold is".to_string(),
        limit => format!(
            "{} or more, or SHARED: DLOCK.DOWNGRADE only weakens a limit",
            limit.to_wire()
        ),
    }
}

impl Refusal {
    /// Returns the code that clients dispatch on: the first word of its text.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refusal::At(refusal, _) => refusal.code(),
            Refusal::NotHeld => "NOTHELD",
            Refusal::Holding => "HOLDING",
            Refusal::TryAgain => "TRYAGAIN",
            Refusal::Fenced => "FENCED",
            Refusal::Deadlock(_) => "DEADLOCK",
            Refusal::Full(_) => "QUEUEFULL",
            Refusal::Quarantine(_) | Refusal::Draining => "QUARANTINE",
            Refusal::NoAck(_) => "NOACK",
            Refusal::WrongType => "WRONGTYPE",
            Refusal::OtherUser => "NOPERM",
            _ => "ERR",
        }
    }

    /// Returns true if the key holds something that is not a lock.
    pub(crate) fn is_wrong_type(&self) -> bool {
        match self {
            Refusal::At(refusal, _) => refusal.is_wrong_type(),
            refusal => *refusal == Refusal::WrongType,
        }
    }

    /// Returns the refusal of a request for many locks, because of the lock at this key.
    pub(crate) fn at(self, key: &[u8]) -> Refusal {
        Refusal::At(Box::new(self), key.into())
    }
}

/// Bytes of an owner or key that an error shows.
pub(crate) const BYTES_NAMED: usize = 64;

/// Returns the error text for a format that a later version of the module has written.
pub fn newer_format(what: &str, format: u64, known: u64) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{what} has format {format}, and dlock {version} knows formats up to {known}: \
         update the module of this server"
    )
}

/// Returns a client's bytes as they may stand in an error or a log line: printable ASCII as it is, the rest as `\xhh`,
/// cut after `most` bytes of input.
pub fn escaped(bytes: &[u8], most: usize) -> String {
    let mut text = String::new();
    for &byte in bytes.iter().take(most) {
        match byte {
            b'\\' | b'\'' | b'"' => text.extend(['\\', byte as char]),
            0x20..=0x7e => text.push(byte as char),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if bytes.len() > most {
        text.push_str("...");
    }
    text
}
