//! A connection of which every call has a bound.

use std::time::Duration;

use dlock_harness::redis::{Cmd, ErrorKind, Value};
use dlock_harness::{connect, reply_of, Party, Wire};

/// The kind under which calls without an answer are counted.
pub const NO_ANSWER: &str = "no answer in time";

/// How long a connect may take.
const CONNECTING: Duration = Duration::from_millis(500);

/// The outcome of a call.
#[derive(Clone, Debug)]
pub enum Reply {
    Value(Value),
    /// An error's text.
    Error(String),
    /// The connection was closed: whether the call was carried out is unknown.
    Closed,
    /// Nothing came within the bound: whether the call was or will be carried out is unknown.
    NoAnswer,
    /// No server could be reached; nothing was sent.
    Unreachable,
}

impl Reply {
    /// Returns the kind under which it is counted.
    pub fn kind(&self) -> &str {
        match self {
            Reply::Value(Value::Nil) => "null",
            Reply::Value(_) => "done",
            Reply::Error(text) => text.split(' ').next().unwrap_or_default(),
            Reply::Closed => "connection closed",
            Reply::NoAnswer => NO_ANSWER,
            Reply::Unreachable => "no server reached",
        }
    }

    /// Returns true for an error with this code.
    pub fn is_error(&self, code: &str) -> bool {
        matches!(self, Reply::Error(_)) && self.kind() == code
    }

    pub fn integer(&self) -> Option<u64> {
        match self {
            Reply::Value(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns a list of integers.
    pub fn integers(&self) -> Option<Vec<u64>> {
        match self {
            Reply::Value(value @ Value::Array(_)) => {
                dlock_harness::redis::from_redis_value(value).ok()
            }
            _ => None,
        }
    }
}

/// A connection.
pub struct Link(Wire);

impl Link {
    /// Connects as a party; `None` if that takes too long or is refused.
    pub fn connect(from: Party, port: u16) -> Option<Link> {
        let stream = connect(from, port, CONNECTING).ok()?;
        Some(Link(Wire::new(stream)))
    }

    /// Sends words and waits for the answer. After `Closed` or `NoAnswer` the link is of no more use.
    pub fn call(&mut self, words: &[&str], bound: Duration) -> Reply {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        match self.0.send_bytes(&command.get_packed_command()) {
            Ok(()) => self.next(bound),
            Err(_) => Reply::Closed,
        }
    }

    /// Reads the next reply.
    pub fn next(&mut self, bound: Duration) -> Reply {
        self.0
            .set_read_timeout(Some(bound.max(Duration::from_millis(1))));
        match self.0.read_value() {
            Ok(value) => match reply_of(value) {
                Ok(value) => Reply::Value(value),
                Err(text) => Reply::Error(text),
            },
            Err(error) if error.is_timeout() => Reply::NoAnswer,
            Err(error) if error.kind() == ErrorKind::IoError => Reply::Closed,
            Err(error) => Reply::Error(format!("UNREADABLE {error}")),
        }
    }
}
