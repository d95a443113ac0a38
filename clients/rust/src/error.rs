// SPDX-License-Identifier: MIT
//! What can go wrong with a lock, and which of it a little time can repair.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, ParsingError, RedisError};

/// Why there is no lock, or why it is no longer held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock is not, or no longer, held under this name and token.
    NotHeld(String),
    /// A guarded command was not run: the lock is not held under this token.
    Fenced(String),
    /// The wait could never end; the server names the circle.
    Deadlock(String),
    /// Another request of the same owner has taken its place in the queue. The client does not ask again.
    Replaced(String),
    /// One of the server's caps on places and holders is reached.
    QueueFull(String),
    /// The server grants nothing for now, since it has just started or is drained. A wait asks again.
    Quarantine(String),
    /// Too few replicas have confirmed: as after a lost reply, what was asked may be in force.
    NoAck(String),
    /// The lock was not granted in time.
    Timeout {
        /// How long the caller waited.
        after: Duration,
        /// Why nobody could say whether the lock was free. `None`: others held it.
        cause: Option<Arc<Error>>,
    },
    /// No majority of the masters could vote; the text has the error of each that could not.
    Unreachable(String),
    /// These locks are closed.
    Closed,
    /// A bad argument.
    Invalid {
        /// Which one.
        argument: &'static str,
        /// What it may be.
        why: String,
    },
    /// Any other error of the server or the connection.
    Redis(RedisError),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotHeld(text)
            | Error::Fenced(text)
            | Error::Deadlock(text)
            | Error::Replaced(text)
            | Error::QueueFull(text)
            | Error::Quarantine(text)
            | Error::NoAck(text) => f.write_str(text),
            Error::Unreachable(text) => write!(f, "no majority of the masters has voted: {text}"),
            Error::Timeout { after, cause: None } => write!(f, "not granted within {after:?}: it is taken"),
            Error::Timeout { after, cause: Some(cause) } => write!(f, "not granted within {after:?}: {cause}"),
            Error::Closed => f.write_str("these locks are closed"),
            Error::Invalid { argument, why } => write!(f, "{argument} {why}"),
            Error::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Timeout { cause: Some(cause), .. } => Some(cause.as_ref()),
            Error::Redis(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        let kind = match error.code().map(|code| code.trim_end_matches(':')) {
            Some("NOTHELD") => Error::NotHeld,
            Some("FENCED") => Error::Fenced,
            Some("DEADLOCK") => Error::Deadlock,
            Some("REPLACED") => Error::Replaced,
            Some("QUEUEFULL") => Error::QueueFull,
            Some("QUARANTINE") => Error::Quarantine,
            Some("NOACK") => Error::NoAck,
            _ => return Error::Redis(error),
        };
        kind(error.to_string())
    }
}

impl From<ParsingError> for Error {
    fn from(error: ParsingError) -> Error {
        RedisError::from(error).into()
    }
}

impl Error {
    /// Reports whether the wait ended because others held the lock: nothing is broken.
    pub fn is_taken(&self) -> bool {
        matches!(self, Error::Timeout { cause: None, .. })
    }

    /// Reports whether the wait ended, whatever the reason.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    pub(crate) fn invalid(argument: &'static str, why: impl Into<String>) -> Error {
        Error::Invalid { argument, why: why.into() }
    }

    pub(crate) fn io(kind: std::io::ErrorKind, text: &str) -> Error {
        Error::Redis(std::io::Error::new(kind, text).into())
    }

    pub(crate) fn silent() -> Error {
        Error::io(std::io::ErrorKind::TimedOut, "the server does not answer")
    }

    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Error::Redis(error) => error.code(),
            _ => None,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.code() == Some("READONLY")
    }

    /// Reports whether nobody listens, so that nothing was sent.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Error::Redis(error) if error.is_connection_refusal())
    }

    /// Reports whether the server has answered so.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, Error::Redis(error) if is_broken(error))
    }

    /// Returns the error of a connection that could not be made. What has worked before will work again: an unknown name, a
    /// certificate or a password is final only until there was a connection.
    pub(crate) fn of_connection(self, has_worked: bool) -> Error {
        match &self {
            _ if has_worked && !self.is_retryable() => Error::io(std::io::ErrorKind::NotConnected, &self.to_string()),
            Error::Redis(error) if !has_worked && is_final(error) => {
                Error::Redis((ErrorKind::InvalidClientConfig, "cannot connect", error.to_string()).into())
            }
            _ => self,
        }
    }

    /// Reports whether another connection, another node or a little time can repair it.
    pub(crate) fn is_retryable(&self) -> bool {
        let error = match self {
            Error::NoAck(_) | Error::Quarantine(_) => return true,
            Error::Redis(error) => error,
            _ => return false,
        };
        match error.code() {
            Some("ERR") => error.detail().is_some_and(|text| text.starts_with("max number of clients")),
            Some(code) => matches!(
                code,
                "UNBLOCKED"
                    | "MOVED"
                    | "ASK"
                    | "TRYAGAIN"
                    | "CLUSTERDOWN"
                    | "LOADING"
                    | "READONLY"
                    | "MASTERDOWN"
                    | "NOREPLICAS"
                    | "MISCONF"
                    | "BUSY"
            ),
            None => is_broken(error),
        }
    }
}

/// Reports whether the connection is no longer usable.
fn is_broken(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::Parse
        | ErrorKind::Client
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::ClusterConnectionNotFound => error.code().is_none(),
        _ => false,
    }
}

/// An unknown name, an untrusted certificate, no TLS at all, or a wrong password in a cluster: the standard library, TLS and the redis
/// crate report them by their words only.
fn is_final(error: &RedisError) -> bool {
    let text = error.to_string();
    let unknown = text.contains("failed to lookup address") && !text.contains("Temporary failure");
    unknown
        || ["certificate", "No such host", "InvalidContentType", "AuthenticationFailed"]
            .iter()
            .any(|words| text.contains(words))
}
