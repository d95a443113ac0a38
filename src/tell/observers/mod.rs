//! Telling observers: unlock messages and keyspace events.
//!
//! `in_order` has what there is to be told once an event has been worked off, in the order in which it happened; `subscribers`
//! knows whether anybody would hear it.

pub(crate) mod in_order;
pub(crate) mod subscribers;

use crate::ffi::ctx::Ctx;
use crate::node::{gate, slots};
use crate::settings::Channel;
use dlock_commands::words::hash_slot;
use dlock_engine::{End, Event, Token};
use in_order::Notifications;
use std::ffi::CStr;

/// Tells all of it, in order, and empties the list. `home` is the context's database.
pub(crate) fn tell(
    ctx: Ctx,
    home: u32,
    channel: Channel,
    notifications: &mut Notifications,
    texts: &mut Texts,
) {
    let mut selected = home;
    let keyspace_events = in_order::keyspace_events();
    notifications.drain(|db, lock| {
        let Some((key, event)) = lock else {
            return publish_flush(ctx, channel, db);
        };
        if selected != db {
            ctx.select(db);
            selected = db;
        }
        if keyspace_events {
            if let Some(event) = keyspace_event(&event) {
                ctx.notify(event, key);
            }
        }
        if let Event::Ended(end, token) = event {
            publish(ctx, channel, texts, db, key.bytes(), end, token);
        }
    });
    if selected != home {
        ctx.select(home);
    }
}

/// The keyspace event of the module class that goes with something. A removal has the server's own event already.
fn keyspace_event(event: &Event) -> Option<&'static CStr> {
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
fn publish(
    ctx: Ctx,
    channel: Channel,
    texts: &mut Texts,
    db: u32,
    key: &[u8],
    end: End,
    token: Token,
) {
    // A replica tells its own subscribers as it follows; in a cluster the primary's message reaches them.
    let to_cluster = matches!(channel, Channel::PlainInCluster | Channel::Sharded);
    if channel == Channel::None || (to_cluster && !gate::primary()) {
        return;
    }
    // Who subscribes at another node of a cluster is not counted here.
    if !to_cluster && !subscribers::may_exist(ctx) {
        return;
    }
    // The sharded channel is in the lock's slot; where no name can be made that is, the message goes out plain.
    let braced = channel == Channel::Sharded && slots::can_be_braced(key);
    let sharded = braced || (channel == Channel::Sharded && hash_slot::tag(key).is_some());
    texts.name(db, key, braced);
    texts.say(end, token);
    match sharded {
        true => ctx.publish_sharded(&texts.channel, &texts.message),
        false => ctx.publish(&texts.channel, &texts.message),
    }
}

/// A flush is one message for its database. It belongs to no slot, so it always goes out plain.
fn publish_flush(ctx: Ctx, channel: Channel, db: u32) {
    if channel != Channel::None {
        ctx.publish(format!("__dlock@{db}__").as_bytes(), b"flushed");
    }
}

/// The texts of a message. Their buffers are reused: every release makes them.
#[derive(Default)]
pub(crate) struct Texts {
    channel: Vec<u8>,
    message: Vec<u8>,
    // The channel's beginning, the same for all messages of a database: which database, and how long it is.
    prefix: Option<(u32, usize)>,
}

impl Texts {
    /// Makes the channel's name.
    fn name(&mut self, db: u32, key: &[u8], braced: bool) {
        match self.prefix {
            Some((same, len)) if same == db => self.channel.truncate(len),
            _ => {
                self.channel.clear();
                self.channel.extend_from_slice(b"__dlock@");
                self.channel
                    .extend_from_slice(itoa::Buffer::new().format(db).as_bytes());
                self.channel.extend_from_slice(b"__:");
                self.prefix = Some((db, self.channel.len()));
            }
        }
        if braced {
            self.channel.push(b'{');
        }
        self.channel.extend_from_slice(key);
        if braced {
            self.channel.push(b'}');
        }
    }

    /// Makes the message.
    fn say(&mut self, end: End, token: Token) {
        self.message.clear();
        self.message.extend_from_slice(end.word().as_bytes());
        self.message.push(b' ');
        self.message
            .extend_from_slice(itoa::Buffer::new().format(token.0).as_bytes());
    }
}
