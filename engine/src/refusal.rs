//! Why the engine refuses a request.

use super::types::{Limit, Millis, Permits};
use std::fmt;

/// Why a request was refused. Nothing has changed when one of these is answered.
///
/// `Display` is the text on the wire: the first word is the code that clients dispatch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The owner does not hold the lock, or not under the token it named, or no longer.
    NotHeld,
    /// A request for many locks would wait, and its owner holds one of them.
    Holding,
    /// A value has come to the name that has a hold or a ticket of the owner who waits there.
    TryAgain,
    /// Nobody holds the lock under that token now.
    Fenced,
    /// The wait would close a circle; the text names it.
    Deadlock(String),
    /// One of the caps of the configuration is reached; the field names it.
    Full(&'static str),
    /// The server grants nothing yet, for this many milliseconds (`dlock.quarantine-ms` after a start or promotion).
    Quarantine(Millis),
    /// The server grants nothing for now (`dlock.grants no`).
    Draining,
    /// Replicas cannot confirm it, or have not (`dlock.replicas`).
    NoAck(NoAck),
    /// The key holds something that is not a lock.
    WrongType,
    /// A request for many locks is refused because of the lock at this key.
    At(Box<Refusal>, Box<[u8]>),
    /// The hold count cannot rise any further.
    Overflow,
    /// A release is to leave more holds than there are; the field says how many there are.
    LeavesMore(u32),
    /// A downgrade would not weaken the limit; the field is the one that the hold has.
    NotWeaker(Limit),
    /// A holder asks for more permits than it has; the field says how many it has.
    MorePermits(Permits),
    /// A holder of several permits asks for a stricter limit; the field says how many it has.
    NotUpgraded(Permits),
    /// A request in a session asks again for what waits already, with another limit or number of permits.
    OtherShare,
    /// A request in a session asks for a stricter limit than its owner's hold has, which is this.
    Stricter(Limit),
    /// The hold is in a session: its owner believes in its limit, so a downgrade names the token.
    TokenNeeded,
    /// Another user has begun the session.
    OtherUser,
    /// A SESSION command has seen more rows than there are: this many.
    NotThatMany(u64),
    /// An effect is not well formed.
    Malformed,
    /// An effect is in a format of a later version of the module.
    NewerFormat {
        /// Its format.
        format: u64,
        /// The latest format that this version reads.
        known: u64,
    },
}

/// Why replicas do not confirm an answer. Nothing has changed, but after the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAck {
    /// Fewer replicas are there than must confirm it.
    TooFew {
        /// How many there are whose confirmation counts.
        counting: u32,
        /// How many must confirm.
        needed: u32,
    },
    /// The server was started, or began to take over another's data, too short a while ago: what it had confirmed may still be
    /// believed for this many milliseconds.
    Quarantine(Millis),
    /// The caller cannot be kept waiting.
    Barred,
    /// As many answers wait as may.
    Full,
    /// Not enough have confirmed it in time: what was asked may be in force.
    Late {
        /// How many have confirmed it.
        confirmed: u32,
        /// How many must confirm it.
        needed: u32,
    },
    /// The hold had ended by the time of its confirmation.
    Ended,
}

impl fmt::Display for NoAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAck::TooFew { counting, needed } => write!(
                f,
                "{counting} of {needed} replicas can confirm it; nothing has changed"
            ),
            NoAck::Quarantine(left_ms) => write!(
                f,
                "nothing is confirmed yet: the quarantine after the start or full resynchronisation ends in {left_ms} ms; \
                 nothing has changed"
            ),
            NoAck::Barred => f.write_str(
                "the server cannot block this caller until replicas have confirmed it (dlock.replicas); nothing has changed",
            ),
            NoAck::Full => f.write_str(
                "dlock.max-waiters answers already wait for confirmation; nothing has changed",
            ),
            NoAck::Late { confirmed, needed } => write!(
                f,
                "{confirmed} of {needed} replicas have confirmed it in time; it may have taken effect"
            ),
            NoAck::Ended => f.write_str("the hold had ended before replicas confirmed it"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotHeld => f.write_str("NOTHELD the owner does not hold this lock (under this token)"),
            Refusal::Holding => f.write_str(
                "HOLDING the owner holds one of these locks, and DLOCK.MACQUIRE waits only for locks that its owner does not hold: \
                 give it back, take all at once, or leave it out of the list",
            ),
            Refusal::TryAgain => f.write_str("TRYAGAIN another value has come to this key: ask again"),
            Refusal::Fenced => f.write_str("FENCED the lock is not held under this token"),
            Refusal::Deadlock(circle) => write!(f, "DEADLOCK waiting would never end: {circle}"),
            Refusal::Full(cap) => write!(f, "QUEUEFULL {cap} is reached"),
            Refusal::Quarantine(left_ms) => write!(
                f,
                "QUARANTINE no grants yet: the quarantine after the start or promotion ends in {left_ms} ms"
            ),
            Refusal::Draining => f.write_str("QUARANTINE no grants: dlock.grants is no"),
            Refusal::NoAck(why) => write!(f, "NOACK {why}"),
            Refusal::WrongType => f.write_str("WRONGTYPE the key holds a value that is not a lock"),
            Refusal::At(refusal, key) => write!(f, "{refusal} (key '{}')", escaped(key, BYTES_NAMED)),
            Refusal::Overflow => write!(
                f,
                "ERR the hold count must be at most {}: it would overflow",
                u32::MAX
            ),
            Refusal::LeavesMore(holds) => write!(
                f,
                "ERR HOLDS must be an integer from 0 to the hold count, which is {holds}"
            ),
            Refusal::NotWeaker(Limit::SHARED) => f.write_str("ERR LIMIT must be SHARED, as the hold is"),
            Refusal::NotWeaker(limit) => write!(
                f,
                "ERR LIMIT must be {} or more, or SHARED: DLOCK.DOWNGRADE only weakens a limit",
                limit.to_wire()
            ),
            Refusal::MorePermits(permits) => write!(
                f,
                "ERR PERMITS must be an integer from 1 to {permits}, which the hold has: to take more, release it and ask again"
            ),
            Refusal::NotUpgraded(permits) => write!(
                f,
                "ERR PERMITS must be 1 for an upgrade, and the hold has {permits}: release it and ask again"
            ),
            Refusal::OtherShare => f.write_str(
                "ERR LIMIT and PERMITS must be those of the request that waits: cancel it and ask again",
            ),
            Refusal::Stricter(limit) => write!(
                f,
                "ERR LIMIT must be no stricter than the hold's, which is {}: a hold in a session is not upgraded; \
                 release it and ask again",
                match *limit {
                    Limit::SHARED => "SHARED".to_string(),
                    limit => limit.to_wire().to_string(),
                }
            ),
            Refusal::TokenNeeded => f.write_str("ERR TOKEN must be given: the hold is in a session"),
            Refusal::OtherUser => f.write_str("NOPERM another user has begun this session"),
            Refusal::NotThatMany(last) => write!(f, "ERR SEEN must be at most {last}, the last row of this id"),
            Refusal::Malformed => f.write_str("ERR DLOCK.APPLY is for replication and the AOF only"),
            Refusal::NewerFormat { format, known } => {
                write!(f, "ERR {}", newer_format("the effect", *format, *known))
            }
        }
    }
}

impl std::error::Error for Refusal {}

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
