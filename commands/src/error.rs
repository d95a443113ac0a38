//! Every error a client can get from the module, with its exact text.

use dlock_engine::refusal::{self, Refusal};
use thiserror::Error;

/// Why a request was refused. Nothing has changed when one of these is answered, except after a `NOACK` that does not say so.
///
/// `Display` is the text on the wire: the first word is the code that clients dispatch on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The engine refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A newer request of the same owner has taken the place.
    #[error("REPLACED a newer request of the same owner has taken its place")]
    Replaced,
    /// Decisions are made on the primary only.
    #[error("READONLY locks are acquired and released on the primary only")]
    ReadOnly,
    /// This internal command came from a client.
    #[error("ERR {0} is for replication and the AOF only")]
    Internal(&'static str),
    /// A replica serves no replicas while replicas confirm answers. The requesting server knows the code, and tries again later.
    #[error("NOMASTERLINK with dlock.replicas a replica serves no replicas: follow its primary")]
    ServesNone,
    /// Another module's callback called the command while this module handles an event.
    #[error("ERR dlock cannot be called while it handles an event")]
    Busy,
    /// An earlier panic left the module's state in doubt; it refuses everything until a restart.
    #[error("ERR dlock stopped serving after an internal fault; see the server log and restart the server")]
    Poisoned,
    /// `DLOCK.GUARD` does not run this command.
    #[error("ERR '{0}' cannot be run by DLOCK.GUARD: it blocks, or is a DLOCK command or SELECT")]
    Unguarded(String),
    /// The calling user may not run the inner command, or not on these keys.
    #[error("NOPERM the user may not run '{0}' with these arguments")]
    NoPermission(String),
    /// `DLOCK.GUARD` was called by something that has no user.
    #[error("ERR DLOCK.GUARD needs a calling user")]
    NoUser,
    /// The command that `DLOCK.GUARD` ran found a value of another type (the server's own error).
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    InnerWrongType,
    /// The command that `DLOCK.GUARD` ran was refused, and the server does not say why.
    #[error("ERR '{0}' was refused, and the server does not give a module the reason")]
    Unanswered(String),
    /// The server does not run SCAN for `DLOCK.LIST`.
    #[error("ERR DLOCK.LIST needs SCAN, and the server refuses it: {0}")]
    NoScan(String),
    /// Wrong arity, as the server words it.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    /// An argument is wrong: its name, and what it must be.
    #[error("ERR {0} must be {1}")]
    Argument(&'static str, String),
    /// An option that the command does not know.
    #[error("ERR unknown option '{0}'")]
    UnknownOption(String),
    /// An option's former word, its present one, and since which version it has that.
    #[error("ERR {0} is {1} since {2}")]
    Renamed(&'static str, &'static str, &'static str),
    /// A number where options stand: the word, the argument that it may be meant for, and what that comes right after.
    #[error("ERR unknown option '{0}': {1} comes right after {2}")]
    Misplaced(String, &'static str, &'static str),
    /// The same option, or two options that exclude each other.
    #[error("{}", conflict(.0, .1))]
    Conflict(&'static str, &'static str),
    /// An option that belongs to a connection, from a caller that has none.
    #[error(
        "ERR {0} needs a client connection: it is not possible in a script or from another module"
    )]
    NoConnection(&'static str),
    /// The server does not block this connection.
    #[error(
        "ERR BLOCK is not possible here: this server does not block a connection that has subscriptions; use another connection, \
         RESP2, or a session (IN)"
    )]
    MayNotWait,
}

fn conflict(first: &str, second: &str) -> String {
    if first == second {
        return format!("ERR {first} is given twice");
    }
    format!("ERR {first} cannot be combined with {second}")
}

/// Returns what a client has sent as errors show it: escaped, and no more than its beginning.
pub fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 64;
    refusal::escaped(bytes, MOST)
}
