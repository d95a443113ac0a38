//! Messages in order.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::Duration;

use redis::{from_redis_value, Value};

use crate::machine::patience::PATIENCE;
use crate::servers::server::Server;

/// A message on a channel. Bytes that are not UTF-8 are shown as U+FFFD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The channel.
    pub channel: String,
    /// The published text.
    pub payload: String,
}

/// Collects messages from the moment it exists.
pub struct Subscriber {
    stream: TcpStream,
    messages: Receiver<Message>,
}

impl Subscriber {
    /// Subscribes to channels.
    #[track_caller]
    pub fn channels(server: &Server, channels: &[&str]) -> Subscriber {
        Subscriber::subscribe(server, "SUBSCRIBE", channels)
    }

    /// Subscribes to patterns.
    #[track_caller]
    pub fn patterns(server: &Server, patterns: &[&str]) -> Subscriber {
        Subscriber::subscribe(server, "PSUBSCRIBE", patterns)
    }

    /// Subscribes to channels of the cluster's slots.
    #[track_caller]
    pub fn shard_channels(server: &Server, channels: &[&str]) -> Subscriber {
        Subscriber::subscribe(server, "SSUBSCRIBE", channels)
    }

    #[track_caller]
    fn subscribe(server: &Server, verb: &str, names: &[&str]) -> Subscriber {
        let mut wire = server.connection();
        wire.send_command(redis::cmd(verb).arg(names));
        // The server confirms each subscription: only then is no message missed.
        for name in names {
            if let Err(error) = wire.read() {
                panic!("{verb} {name} was refused: {error}");
            }
        }
        wire.set_read_timeout(None);
        let stream = wire.stream();
        let (sender, messages) = channel();
        thread::spawn(move || {
            while let Ok(value) = wire.read_value() {
                let Some(message) = message_of(&value) else {
                    continue;
                };
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Subscriber { stream, messages }
    }

    /// Returns the next message, if there is one within `timeout`.
    pub fn next(&self, timeout: Duration) -> Option<Message> {
        self.messages.recv_timeout(timeout).ok()
    }

    /// Returns the next message's payload.
    ///
    /// # Panics
    /// If there is none within [`PATIENCE`].
    #[track_caller]
    pub fn payload(&self) -> String {
        self.message().payload
    }

    /// Returns the next message.
    ///
    /// # Panics
    /// If there is none within [`PATIENCE`].
    #[track_caller]
    pub fn message(&self) -> Message {
        self.next(PATIENCE).expect("a message")
    }

    /// Returns the messages that have arrived and were not taken yet. Messages caused by commands on *another* connection may
    /// still be under way.
    pub fn arrived(&self) -> Vec<Message> {
        self.messages.try_iter().collect()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Also ends the reading thread.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Returns the message in `message channel payload`, `smessage channel payload` or `pmessage pattern channel payload`.
fn message_of(value: &Value) -> Option<Message> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [kind, .., channel, payload] = parts.as_slice() else {
        return None;
    };
    let kind = text_of(kind);
    let is_message = matches!(kind.as_str(), "message" | "pmessage" | "smessage");
    is_message.then(|| Message {
        channel: text_of(channel),
        payload: text_of(payload),
    })
}

fn text_of(value: &Value) -> String {
    let bytes: Vec<u8> = match value {
        Value::BulkString(bytes) => bytes.clone(),
        other => from_redis_value(other).unwrap_or_default(),
    };
    String::from_utf8_lossy(&bytes).into_owned()
}
