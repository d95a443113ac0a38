//! Telling observers: unlock messages and keyspace events.

use super::api::{self, Ctx};
use super::gate;
use super::news::{Item, News};
use crate::engine::change::{self, End};
use crate::engine::{Event, Token};
use std::ffi::CStr;

/// How unlock messages go out (`dlock.notify`, with `auto` resolved).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Not at all.
    None,
    /// PUBLISH.
    Plain,
    /// PUBLISH, in a cluster: the cluster carries it to replicas.
    PlainInCluster,
    /// SPUBLISH, on a channel in the lock's slot.
    Sharded,
}

/// Tells all of it, in order, and empties the list. `home` is the context's database.
pub fn tell(ctx: *mut Ctx, home: u32, channel: Channel, news: &mut News) {
    let mut selected = home;
    let keyspace_events = api::notifies_of_modules();
    news.work_off(|item| {
        let (db, key, event) = match item {
            Item::Lock(db, key, event) => (db, key, event),
            Item::Flush(db) => return publish_flush(ctx, channel, db),
        };
        if selected != db {
            api::select(ctx, db);
            selected = db;
        }
        if keyspace_events {
            if let Some(event) = keyspace_event(event) {
                api::notify(ctx, event, key);
            }
        }
        if let Event::Ended(end, token) = event {
            // SAFETY: the list keeps its keys alive.
            publish(ctx, channel, db, unsafe { api::bytes(key) }, end, token);
        }
    });
    if selected != home {
        api::select(ctx, home);
    }
}

/// The keyspace event of the module class that goes with something. A removal has the server's own event already.
fn keyspace_event(event: Event) -> Option<&'static CStr> {
    match event {
        Event::Acquired(_) => Some(c"dlock.acquired"),
        Event::Queued => Some(c"dlock.queued"),
        Event::Timeout => Some(c"dlock.timeout"),
        Event::Ended(End::Released, _) => Some(c"dlock.released"),
        Event::Ended(End::Expired, _) => Some(c"dlock.expired"),
        Event::Ended(End::Forced, _) => Some(c"dlock.forced"),
        Event::Ended(End::Session, _) => Some(c"dlock.session"),
        Event::Ended(End::Removed, _) => None,
    }
}

/// One message of one lock: on `__dlock@<db>__:<key>`, or on the sharded channel of its slot.
fn publish(ctx: *mut Ctx, channel: Channel, db: u32, key: &[u8], end: End, token: Token) {
    // A replica tells its own subscribers as it follows; in a cluster the primary's message reaches them.
    let to_cluster = matches!(channel, Channel::PlainInCluster | Channel::Sharded);
    if channel == Channel::None || (to_cluster && !gate::primary()) {
        return;
    }
    let braced = channel == Channel::Sharded && !has_hash_tag(key);
    let mut line = Line::new();
    line.add(b"__dlock@").number(u64::from(db)).add(b"__:");
    if braced {
        line.add(b"{").add(key).add(b"}");
    } else {
        line.add(key);
    }
    let mut message = Line::new();
    message.add(end.word().as_bytes()).add(b" ").number(token);
    api::publish(
        ctx,
        line.bytes(),
        message.bytes(),
        channel == Channel::Sharded,
    );
}

/// A flush is one message for its database. It belongs to no slot, so it always goes out plain.
fn publish_flush(ctx: *mut Ctx, channel: Channel, db: u32) {
    if channel != Channel::None {
        api::publish(ctx, format!("__dlock@{db}__").as_bytes(), b"flushed", false);
    }
}

/// Whether the cluster hashes only a part of the key.
fn has_hash_tag(key: &[u8]) -> bool {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return false;
    };
    let close = key.iter().skip(open + 1).position(|byte| *byte == b'}');
    close.is_some_and(|len| len > 0)
}

/// A short text without an allocation of its own where it is short indeed: every release makes two.
struct Line {
    short: [u8; 96],
    used: usize,
    long: Vec<u8>,
}

impl Line {
    fn new() -> Line {
        Line {
            short: [0; 96],
            used: 0,
            long: Vec::new(),
        }
    }

    fn add(&mut self, bytes: &[u8]) -> &mut Line {
        match self.short.get_mut(self.used..self.used + bytes.len()) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.used += bytes.len();
            }
            _ => {
                if self.long.is_empty() {
                    self.long.extend_from_slice(&self.short[..self.used]);
                }
                self.long.extend_from_slice(bytes);
            }
        }
        self
    }

    fn number(&mut self, value: u64) -> &mut Line {
        let mut digits = [0; change::DIGITS];
        self.add(change::decimal(value, &mut digits))
    }

    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.used]
        } else {
            &self.long
        }
    }
}
