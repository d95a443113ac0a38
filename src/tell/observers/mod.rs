//! Notifications for observers: unlock messages and keyspace events. `subscribers` knows whether anybody would receive them.
//!
//! An event adds its notifications to a list ([`Notifications`]): for each name in the order in which things happened, so that
//! the end of a hold always comes before the begin of the next.
//!
//! One rule gives that order: notices of callbacks come before the acts of the event itself. They report what others did to keys
//! before the event, and what the server removed as the event opened a key; both end an old hold before the event begins a new
//! one. So an event reads the inbox twice, before it decides and after it, and only then adds the events of the locks that it has
//! opened (`run::enter::run`; `observers` in `integration/tests` finds every other order).

pub(crate) mod subscribers;

use crate::ffi::ctx::Ctx;
use crate::ffi::server;
use crate::ffi::text::{Str, Text};
use crate::node::{gate, slots};
use crate::settings::Channel;
use dlock_commands::words::hash_slot;
use dlock_engine::{broken, End, Event, Name, Token};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many notifications the buffers keep room for; the memory of a mass of them is freed.
const KEPT_ROOM: usize = 1024;

/// A list of notifications, in order. Its buffers are reused: an uncontended command allocates nothing here.
#[derive(Default)]
pub(crate) struct Notifications {
    items: Vec<Notification>,
    owned_keys: Vec<Text>,
}

/// Whether the server publishes the module's keyspace events. Otherwise none is noted.
static KEYSPACE_EVENTS: AtomicBool = AtomicBool::new(false);

/// Returns true if keyspace events are to be raised.
pub(crate) fn keyspace_events() -> bool {
    KEYSPACE_EVENTS.load(Ordering::Relaxed)
}

/// Asks the server whether it publishes keyspace events: at load, and whenever its configuration changes.
pub(crate) fn refresh() {
    KEYSPACE_EVENTS.store(server::notifies_of_modules(), Ordering::Relaxed);
}

/// The key that a notification names.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// The argument of the command that runs. The list is sent before that returns.
    Argument(Str<'static>),
    /// A key that the list keeps.
    Owned(usize),
}

impl Key {
    fn of<'a>(self, owned: &'a [Text]) -> Option<Str<'a>> {
        match self {
            Key::Argument(key) => Some(key),
            Key::Owned(index) => owned.get(index).map(Text::as_str),
        }
    }
}

/// An event of a lock; without one, a database was emptied.
struct Notification {
    db: u32,
    lock: Option<(Key, Event)>,
}

impl Notifications {
    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an event of a lock, if anybody may listen.
    pub(crate) fn add(&mut self, db: u32, key: Key, event: &Event) {
        if is_wanted(event) {
            let lock = Some((key, *event));
            self.items.push(Notification { db, lock });
        }
    }

    /// Takes a key that a notification names, so that it lives until the list has been sent.
    pub(crate) fn own_key(&mut self, key: Text) -> Key {
        self.owned_keys.push(key);
        Key::Owned(self.owned_keys.len() - 1)
    }

    /// Adds events of a lock by its name, if anybody may listen.
    pub(crate) fn add_named(&mut self, name: &Name, events: impl Iterator<Item = Event>) {
        let mut events = events.filter(is_wanted).peekable();
        if events.peek().is_some() {
            let key = self.own_key(Text::new(&name.key));
            self.items.extend(events.map(|event| Notification {
                db: name.db,
                lock: Some((key, event)),
            }));
        }
    }

    /// Adds that a database was emptied.
    pub(crate) fn add_flush(&mut self, db: u32) {
        self.items.push(Notification { db, lock: None });
    }

    /// Passes every notification to `tell`, in order, and empties the list: the database, and the lock's key and event; none if the
    /// database was emptied.
    pub(crate) fn drain(&mut self, mut tell: impl FnMut(u32, Option<(Str, Event)>)) {
        for Notification { db, lock } in &self.items {
            let Some((key, event)) = *lock else {
                tell(*db, None);
                continue;
            };
            match key.of(&self.owned_keys) {
                Some(key) => tell(*db, Some((key, event))),
                None => broken!("a notification's key is kept as long as it"),
            }
        }
        self.items.clear();
        self.items.shrink_to(KEPT_ROOM);
        self.owned_keys.clear();
        self.owned_keys.shrink_to(KEPT_ROOM);
    }
}

/// Returns true if an event may have a listener. Only the end of a hold has a message as well.
fn is_wanted(event: &Event) -> bool {
    let ended = matches!(event, Event::Ended(..));
    keyspace_events() || (ended && !subscribers::skip())
}

/// Sends all notifications, in order, and empties the list. `home` is the context's database.
pub(crate) fn tell(
    ctx: Ctx,
    home: u32,
    channel: Channel,
    notifications: &mut Notifications,
    texts: &mut Texts,
) {
    let mut selected = home;
    let keyspace_events = keyspace_events();
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

/// Returns the keyspace event of the module class for an event. A removal has the server's own event already.
fn keyspace_event(event: &Event) -> Option<&'static CStr> {
    match event {
        Event::Acquired(_) => Some(c"dlock.acquired"),
        Event::Queued => Some(c"dlock.queued"),
        Event::Timeout => Some(c"dlock.timeout"),
        Event::Ended(End::Released, _) => Some(c"dlock.released"),
        Event::Ended(End::Expired, _) => Some(c"dlock.expired"),
        Event::Ended(End::Forced, _) => Some(c"dlock.forced"),
        Event::Ended(End::Closed, _) => Some(c"dlock.closed"),
        Event::Ended(End::Removed, _) => None,
    }
}

/// Publishes one message of one lock: on `__dlock@<db>__:<key>`, or on the sharded channel of its slot.
fn publish(
    ctx: Ctx,
    channel: Channel,
    texts: &mut Texts,
    db: u32,
    key: &[u8],
    end: End,
    token: Token,
) {
    // A replica publishes to its own subscribers; in a cluster the primary's message reaches them.
    let to_cluster = is_to_cluster(channel);
    if channel == Channel::None || (to_cluster && !gate::primary()) {
        return;
    }
    // Subscribers at other nodes of a cluster are not counted here.
    if !to_cluster && !subscribers::may_exist(ctx) {
        return;
    }
    // The sharded channel is in the lock's slot; where no such name can be made, the message goes out plain.
    let braced = channel == Channel::Sharded && slots::can_be_braced(key);
    let sharded = braced || (channel == Channel::Sharded && hash_slot::tag(key).is_some());
    texts.set_channel(db, key, braced);
    texts.set_message(end, token);
    ctx.publish(sharded, &texts.channel, &texts.message);
}

/// Returns true if all nodes of a cluster pass a message on, so that only the primary may send it.
fn is_to_cluster(channel: Channel) -> bool {
    matches!(channel, Channel::PlainInCluster | Channel::Sharded)
}

/// Publishes a flush, as one message for its database. It belongs to no slot, so it always goes out plain.
fn publish_flush(ctx: Ctx, channel: Channel, db: u32) {
    if channel != Channel::None && (gate::primary() || !is_to_cluster(channel)) {
        let sharded = false;
        ctx.publish(sharded, format!("__dlock@{db}__").as_bytes(), b"flushed");
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
    fn set_channel(&mut self, db: u32, key: &[u8], braced: bool) {
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
    fn set_message(&mut self, end: End, token: Token) {
        self.message.clear();
        self.message.extend_from_slice(end.word().as_bytes());
        self.message.push(b' ');
        self.message
            .extend_from_slice(itoa::Buffer::new().format(token.0).as_bytes());
    }
}
