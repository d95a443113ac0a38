//! Telling observers: unlock messages and keyspace events.

use super::api::{self, Ctx, Text};
use super::gate;
use super::keyspace::Told;
use crate::engine::change::End;
use crate::engine::{Event, Name};
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

/// Tells all of it, in order, and empties the list.
pub fn tell(ctx: *mut Ctx, channel: Channel, told: &mut Vec<Told>) {
    let home = api::selected(ctx);
    for told in told.drain(..) {
        let (name, event) = match told {
            Told::Lock(name, event) => (name, event),
            Told::Flush(db) => {
                publish_flush(ctx, channel, db);
                continue;
            }
        };
        if api::selected(ctx) != name.db {
            api::select(ctx, name.db);
        }
        if let Some(event) = keyspace_event(event) {
            api::notify(ctx, event, Text::new(&name.key).raw());
        }
        if let Event::Ended(end, token) = event {
            publish(
                ctx,
                channel,
                &name,
                format!("{} {token}", end.word()).as_bytes(),
            );
        }
    }
    if api::selected(ctx) != home {
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
fn publish(ctx: *mut Ctx, channel: Channel, name: &Name, message: &[u8]) {
    let mut to = format!("__dlock@{}__:", name.db).into_bytes();
    match channel {
        Channel::None => return,
        // A replica tells its own subscribers as it follows; in a cluster the primary's message reaches them.
        Channel::Plain => {}
        Channel::PlainInCluster | Channel::Sharded if !gate::primary() => return,
        Channel::PlainInCluster => {}
        Channel::Sharded if !has_hash_tag(&name.key) => {
            to.push(b'{');
            to.extend_from_slice(&name.key);
            to.push(b'}');
            return api::publish(ctx, &to, message, true);
        }
        Channel::Sharded => {}
    }
    to.extend_from_slice(&name.key);
    api::publish(ctx, &to, message, channel == Channel::Sharded);
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
