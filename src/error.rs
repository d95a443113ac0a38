//! Every error a client can get from the module, with its exact text.

#![forbid(unsafe_code)]

use std::fmt;

/// Why a request was refused. Nothing has changed when one of these is answered.
///
/// `Display` is the text on the wire: the first word is the code that clients dispatch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The owner does not hold the lock, or not under the token it named, or no longer.
    NotHeld,
    /// `DLOCK.CHECK`: nobody holds the lock under that token now.
    Fenced,
    /// Waiting would never end; the text names the circle.
    Deadlock(String),
    /// One of the caps of the configuration is reached; the field names it.
    Full(&'static str),
    /// The server grants nothing for so many milliseconds yet (`dlock.quarantine-ms` after a start or promotion).
    Quarantine(u64),
    /// The server grants nothing for now (`dlock.grants no`).
    Draining,
    /// A newer request of the same owner has taken the place.
    Replaced,
    /// The key holds something that is not a lock.
    WrongType,
    /// Decisions are made on the primary only.
    ReadOnly,
    /// The internal effect command came from a client, or makes no sense.
    Internal,
    /// An effect is in a format of a later version of the module: which, and the latest that is known.
    Later(u64, u64),
    /// The command was called from within an event of the module itself (by another module's callback).
    Busy,
    /// An earlier panic left the module's state in doubt; it refuses everything until a restart.
    Poisoned,
    /// `DLOCK.GUARD` does not run this command.
    Unguarded(String),
    /// The calling user may not run the inner command, or not on these keys.
    NoPermission(String),
    /// `DLOCK.GUARD` was called by something that has no user.
    NoUser,
    /// The command that `DLOCK.GUARD` ran found a value of another type (the server's own error).
    InnerWrongType,
    /// The command that `DLOCK.GUARD` ran was refused, and the server does not say why.
    Unanswered(String),
    /// The server does not run SCAN for `DLOCK.LIST`.
    NoScan(String),
    /// Wrong arity, as the server words it.
    Arity(&'static str),
    /// An argument is not what it may be: its name, and what it may be.
    Argument(&'static str, String),
    /// An option that the command does not know.
    UnknownOption(String),
    /// The same option, or two options that exclude each other.
    Conflict(&'static str, &'static str),
    /// An option that belongs to a connection, from a caller that has none.
    NoConnection(&'static str),
    /// The calling user may not publish on this channel.
    NoChannel(String),
    /// The server lets this connection wait for nothing.
    MayNotWait,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotHeld => f.write_str("NOTHELD the owner does not hold this lock (under this token)"),
            Error::Fenced => f.write_str("FENCED the lock is not held under this token"),
            Error::Deadlock(circle) => write!(f, "DEADLOCK waiting would never end: {circle}"),
            Error::Full(cap) => write!(f, "QUEUEFULL {cap} is reached"),
            Error::Quarantine(left_ms) => write!(
                f,
                "QUARANTINE no grants yet: the quarantine after the start or promotion ends in {left_ms} ms"
            ),
            Error::Draining => f.write_str("QUARANTINE no grants: dlock.grants is no"),
            Error::Replaced => f.write_str("REPLACED a newer request of the same owner has taken its place"),
            Error::WrongType => f.write_str("WRONGTYPE the key holds a value that is not a lock"),
            Error::ReadOnly => f.write_str("READONLY locks are taken and given back on the primary only"),
            Error::Internal => f.write_str("ERR DLOCK.APPLY is for replication and the AOF only"),
            Error::Later(format, known) => {
                write!(f, "ERR {}", later("the effect", *format, *known))
            }
            Error::Busy => f.write_str("ERR dlock cannot be called while it handles an event"),
            Error::Poisoned => f.write_str(
                "ERR dlock stopped serving after an internal fault; see the server log and restart the server",
            ),
            Error::Unguarded(command) => write!(
                f,
                "ERR '{command}' cannot be run by DLOCK.GUARD: it blocks, or is a DLOCK command or SELECT"
            ),
            Error::NoPermission(command) => write!(
                f,
                "NOPERM the user may not run '{command}' with these arguments"
            ),
            Error::NoUser => f.write_str("ERR DLOCK.GUARD needs a calling user"),
            Error::InnerWrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Error::Unanswered(command) => write!(
                f,
                "ERR '{command}' was refused, and the server does not tell a module why"
            ),
            Error::NoScan(why) => write!(f, "ERR DLOCK.LIST needs SCAN, and the server refuses it: {why}"),
            Error::Arity(command) => write!(f, "ERR wrong number of arguments for '{command}' command"),
            Error::Argument(name, must) => write!(f, "ERR {name} must be {must}"),
            Error::UnknownOption(option) => write!(f, "ERR unknown option '{option}'"),
            Error::Conflict(first, second) if first == second => write!(f, "ERR {first} is given twice"),
            Error::Conflict(first, second) => write!(f, "ERR {first} cannot be combined with {second}"),
            Error::NoConnection(option) => write!(
                f,
                "ERR {option} needs a client connection: it is not possible in a script or from another module"
            ),
            Error::NoChannel(channel) => write!(f, "NOPERM the user may not use the channel '{channel}'"),
            Error::MayNotWait => f.write_str(
                "ERR BLOCK is not possible here: this server does not block a connection that has subscriptions; \
                 use another connection, RESP2, or NOTIFY",
            ),
        }
    }
}

impl std::error::Error for Error {}

/// What there is to say of something that a later version of the module has written.
pub fn later(what: &str, format: u64, known: u64) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{what} has format {format}, and dlock {version} knows formats up to {known}: \
         update the module of this server"
    )
}

/// Bytes of a client as they may stand in an error or a log line: printable ASCII as it is, the rest as `\xhh`,
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
