//! A command whose reply is awaited.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, Value};

use crate::machine::patience::{await_until, PATIENCE};
use crate::servers::server::Server;
use crate::talk::ask::{command, decode, reply_of, Ask};
use crate::talk::wire::Wire;

/// A client with a connection of its own that has sent one command and waits for the reply.
///
/// Dropping it closes its connection: the server sees a dead client.
pub struct Blocked {
    line: String,
    client_id: u64,
    stream: TcpStream,
    replies: Receiver<(Result<Value, String>, Instant)>,
}

impl Blocked {
    /// Sends `line` and returns when the server has blocked the client.
    ///
    /// # Panics
    /// If the server answers instead.
    #[track_caller]
    pub fn start(server: &Server, line: &str) -> Blocked {
        let mut blocked = Blocked::send(server, line);
        blocked.await_blocked(server);
        blocked
    }

    /// Sends `line` and returns at once.
    #[track_caller]
    pub fn send(server: &Server, line: &str) -> Blocked {
        Blocked::send_on(server.connection(), &command(line), line)
    }

    /// Sends `command` on a connection that may have been prepared (`SELECT`, `HELLO 3`, `AUTH`, …).
    /// `name` stands for the command in messages.
    #[track_caller]
    pub fn send_on(mut wire: Wire, command: &Cmd, name: &str) -> Blocked {
        let client_id = wire.client_id();
        let stream = wire.stream();
        // The thread ends with the connection: at the latest when this value is dropped.
        wire.set_read_timeout(None);
        wire.send_command(command);
        let (sender, replies) = channel();
        thread::spawn(move || {
            while let Ok(value) = wire.read_value() {
                let at = Instant::now();
                if sender.send((reply_of(value), at)).is_err() {
                    break;
                }
            }
        });
        Blocked {
            line: name.to_owned(),
            client_id,
            stream,
            replies,
        }
    }

    /// Waits until the server has blocked the client.
    ///
    /// # Panics
    /// If the server answers instead.
    #[track_caller]
    pub fn await_blocked(&mut self, server: &Server) {
        let mut observer = server.connection();
        let what = format!("{:?} is blocked", self.line);
        await_until(&what, PATIENCE, || {
            if let Ok((reply, _)) = self.replies.try_recv() {
                panic!("{:?} should wait, but the answer is {reply:?}", self.line);
            }
            is_blocked(&mut observer, self.client_id)
        });
    }

    /// Returns true if the server holds the client blocked now.
    pub fn is_blocked(&self, server: &Server) -> bool {
        is_blocked(&mut server.connection(), self.client_id)
    }

    /// Returns this client's id at the server, for `CLIENT UNBLOCK` and `CLIENT KILL`.
    pub fn client_id(&self) -> u64 {
        self.client_id
    }

    /// Returns the reply, as a `T`.
    ///
    /// # Panics
    /// If it does not come, or is an error, or not a `T`.
    #[track_caller]
    pub fn reply<T: FromRedisValue>(&self) -> T {
        match self.outcome() {
            Ok(value) => decode(&self.line, value),
            Err(error) => panic!("{:?} was refused: {error}", self.line),
        }
    }

    /// Returns the error that refuses the command.
    ///
    /// # Panics
    /// If no reply comes, or another one.
    #[track_caller]
    pub fn refusal(&self) -> String {
        match self.outcome() {
            Ok(value) => panic!(
                "{:?} should have been refused, but was answered {value:?}",
                self.line
            ),
            Err(error) => error,
        }
    }

    /// Returns the reply, or the text of its error.
    ///
    /// # Panics
    /// If none comes within [`PATIENCE`].
    #[track_caller]
    pub fn outcome(&self) -> Result<Value, String> {
        self.outcome_at().0
    }

    /// Returns the reply, or the text of its error, and when it arrived.
    ///
    /// # Panics
    /// If none comes within [`PATIENCE`].
    #[track_caller]
    pub fn outcome_at(&self) -> (Result<Value, String>, Instant) {
        match self.replies.recv_timeout(PATIENCE) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => {
                panic!("no reply to {:?} within {PATIENCE:?}", self.line)
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the connection that waited for {:?} was closed", self.line)
            }
        }
    }

    /// Returns the reply, or the text of its error; `None` if none came in time or the connection was closed.
    pub fn outcome_within(&self, timeout: Duration) -> Option<Result<Value, String>> {
        self.replies
            .recv_timeout(timeout)
            .ok()
            .map(|(reply, _)| reply)
    }

    /// Waits until the server has closed the connection. Returns its last replies.
    ///
    /// # Panics
    /// If the connection is open after [`PATIENCE`].
    #[track_caller]
    pub fn last_words(&self) -> Vec<Result<Value, String>> {
        let mut words = Vec::new();
        loop {
            match self.replies.recv_timeout(PATIENCE) {
                Ok((reply, _)) => words.push(reply),
                Err(RecvTimeoutError::Disconnected) => return words,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the connection of {:?} was not closed", self.line)
                }
            }
        }
    }

    /// Ends the client as a crash would: its connection closes without a command.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Also ends the reading thread.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Returns true if the client is blocked: its flags have a `b`.
fn is_blocked(observer: &mut Wire, client_id: u64) -> bool {
    let line: String = observer.ask(&format!("CLIENT LIST ID {client_id}"));
    line.split_whitespace()
        .find_map(|word| word.strip_prefix("flags="))
        .is_some_and(|flags| flags.contains('b'))
}
