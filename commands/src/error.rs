//! Every error a client can get from the module, with its exact text.

use dlock_engine::refusal::Refusal;
use std::fmt;

/// Why a request was refused. Nothing has changed when one of these is answered.
///
/// `Display` is the text on the wire: the first word is the code that clients dispatch on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The engine refuses it.
    Refused(Refusal),
    /// A newer request of the same owner has taken the place.
    Replaced,
    /// Decisions are made on the primary only.
    ReadOnly,
    /// This internal command came from a client.
    Internal(&'static str),
    /// A replica serves no replicas while replicas confirm answers. The requesting server knows the code, and tries again later.
    ServesNone,
    /// Another module's callback called the command while this module handles an event.
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
    /// An argument is wrong: its name, and what it must be.
    Argument(&'static str, String),
    /// An option that the command does not know.
    UnknownOption(String),
    /// An option's former word, its present one, and since which version it has that.
    Renamed(&'static str, &'static str, &'static str),
    /// A number where options stand: the word, the argument that it may be meant for, and what that comes right after.
    Misplaced(String, &'static str, &'static str),
    /// The same option, or two options that exclude each other.
    Conflict(&'static str, &'static str),
    /// An option that belongs to a connection, from a caller that has none.
    NoConnection(&'static str),
    /// The server does not block this connection.
    MayNotWait,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refusal) => refusal.fmt(f),
            Error::Replaced => f.write_str("REPLACED a newer request of the same owner has taken its place"),
            Error::ReadOnly => f.write_str("READONLY locks are acquired and released on the primary only"),
            Error::Internal(command) => write!(f, "ERR {command} is for replication and the AOF only"),
            Error::ServesNone => f.write_str(
                "NOMASTERLINK with dlock.replicas a replica serves no replicas: follow its primary",
            ),
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
                "ERR '{command}' was refused, and the server does not give a module the reason"
            ),
            Error::NoScan(why) => write!(f, "ERR DLOCK.LIST needs SCAN, and the server refuses it: {why}"),
            Error::Arity(command) => write!(f, "ERR wrong number of arguments for '{command}' command"),
            Error::Argument(name, must) => write!(f, "ERR {name} must be {must}"),
            Error::UnknownOption(option) => write!(f, "ERR unknown option '{option}'"),
            Error::Renamed(before, now, since) => write!(f, "ERR {before} is {now} since {since}"),
            Error::Misplaced(word, arg, before) => write!(
                f,
                "ERR unknown option '{word}': {arg} comes right after {before}"
            ),
            Error::Conflict(first, second) if first == second => write!(f, "ERR {first} is given twice"),
            Error::Conflict(first, second) => write!(f, "ERR {first} cannot be combined with {second}"),
            Error::NoConnection(option) => write!(
                f,
                "ERR {option} needs a client connection: it is not possible in a script or from another module"
            ),
            Error::MayNotWait => f.write_str(
                "ERR BLOCK is not possible here: this server does not block a connection that has subscriptions; \
                 use another connection, RESP2, or a session (IN)",
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}
