//! Commands as lines of text.

use redis::{Cmd, ConnectionLike, FromRedisValue, RedisError, Value};

/// The reply to a granted request: the fencing token and the hold count.
pub type Grant = (u64, u64);

/// The reply to a request that waits in a session: 0, the places before it, the id of the session.
pub type Queued = (u64, u64, u64);

/// Returns a command from a line of words: `command("SET k v").arg(b"\0")`. There is no quoting; `arg` adds words that a line
/// cannot express.
pub fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    for word in line.split_ascii_whitespace() {
        command.arg(word);
    }
    command
}

/// Returns a command from a line, with more words, which may be any bytes.
pub fn with(line: &str, words: &[&[u8]]) -> Cmd {
    let mut command = command(line);
    for word in words {
        command.arg(*word);
    }
    command
}

/// Returns a reply as a value, or the text of an error (`NOTHELD bob does not hold stock`).
pub fn reply_of(value: Value) -> Result<Value, String> {
    match value {
        Value::ServerError(error) => Err(text_of_error(&error.into())),
        value => Ok(value),
    }
}

fn text_of_error(error: &RedisError) -> String {
    let code = error.code().unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{code} {detail}"),
        None => code.to_owned(),
    }
}

/// Sends commands as lines, and checks the replies.
pub trait Ask: ConnectionLike {
    /// Returns the reply to `command`, or the text of its error.
    ///
    /// # Panics
    /// If there is no reply: the connection is gone or its read timeout has passed.
    #[track_caller]
    fn answer(&mut self, command: &Cmd) -> Result<Value, String> {
        match self.req_command(command) {
            Ok(value) => reply_of(value),
            Err(error) => panic!("no reply to {:?}: {error}", text_of(command)),
        }
    }

    /// Returns the reply to `line`, or the text of its error.
    #[track_caller]
    fn try_ask(&mut self, line: &str) -> Result<Value, String> {
        self.answer(&command(line))
    }

    /// Sends `line` for its effect, not for its reply.
    ///
    /// # Panics
    /// If the reply is an error.
    #[track_caller]
    fn run(&mut self, line: &str) {
        self.ask(line)
    }

    /// Returns the reply to `line`, as a `T`.
    ///
    /// # Panics
    /// If the reply is an error or not a `T`.
    #[track_caller]
    fn ask<T: FromRedisValue>(&mut self, line: &str) -> T {
        self.ask_command(&command(line))
    }

    /// Returns the reply to `command`, as a `T`.
    ///
    /// # Panics
    /// If the reply is an error or not a `T`.
    #[track_caller]
    fn ask_command<T: FromRedisValue>(&mut self, command: &Cmd) -> T {
        match self.answer(command) {
            Ok(value) => decode(&text_of(command), value),
            Err(error) => panic!("{:?} was refused: {error}", text_of(command)),
        }
    }

    /// Returns the error that refuses `line`.
    ///
    /// # Panics
    /// If it is not refused.
    #[track_caller]
    fn refusal(&mut self, line: &str) -> String {
        match self.try_ask(line) {
            Ok(value) => panic!("{line:?} should have been refused, but was answered {value:?}"),
            Err(error) => error,
        }
    }
}

impl<C: ConnectionLike> Ask for C {}

#[track_caller]
pub(crate) fn decode<T: FromRedisValue>(line: &str, value: Value) -> T {
    T::from_redis_value(&value)
        .unwrap_or_else(|error| panic!("{line:?} was answered {value:?}: {error}"))
}

fn text_of(command: &Cmd) -> String {
    let words = command.args_iter().map(|argument| match argument {
        redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => "…".to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
