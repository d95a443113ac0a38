//! What observers are to be told once an event has been worked off, in the order in which they are told: of each name what
//! happened there in the order in which it happened, so that the end of a hold always comes before the next one's beginning.
//!
//! One rule gives that order: what callbacks have noted comes before what the event itself has done. They note what others did
//! to keys before the event, and what the server removed as the event opened a key; both end what stood there before anything
//! that the event puts there begins. So an event reads the inbox twice, before it decides and after it, and only then has the
//! locks that it has opened add what it did (`run::enter::run`; `observers` in `integration/tests` finds every other order).

use super::subscribers;
use crate::ffi::server;
use crate::ffi::text::{Str, Text};
use dlock_engine::broken;
use dlock_engine::{Event, Name};
use std::sync::atomic::{AtomicBool, Ordering};

/// How many notifications the buffers keep room for: a mass of them gives its memory back.
const KEPT_ROOM: usize = 1024;

/// A list of notifications, in order. Its buffers are reused: an uncontended command allocates nothing here.
#[derive(Default)]
pub(crate) struct Notifications {
    items: Vec<Notification>,
    owned_keys: Vec<Text>,
}

/// Whether the server passes the module's keyspace events on. Where it does not, none is noted.
static KEYSPACE_EVENTS: AtomicBool = AtomicBool::new(false);

/// Returns true if keyspace events are to be raised.
pub(crate) fn keyspace_events() -> bool {
    KEYSPACE_EVENTS.load(Ordering::Relaxed)
}

/// Asks the server whether it passes keyspace events on: at load, and whenever its configuration changes.
pub(crate) fn refresh() {
    KEYSPACE_EVENTS.store(server::notifies_of_modules(), Ordering::Relaxed);
}

/// The key that a notification names.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// The argument of the command that runs. The list is worked off before that returns.
    Argument(Str<'static>),
    /// One that the list keeps.
    Owned(usize),
}

impl Key {
    fn of<'a>(self, owned: &'a [Text]) -> Option<Str<'a>> {
        match self {
            Key::Argument(key) => Some(key),
            Key::Owned(at) => owned.get(at).map(Text::as_str),
        }
    }
}

/// What happened to a lock; without one, a database was emptied.
struct Notification {
    db: u32,
    lock: Option<(Key, Event)>,
}

impl Notifications {
    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds what happened to a lock, if anybody may listen.
    pub(crate) fn add(&mut self, db: u32, key: Key, event: &Event) {
        if is_wanted(event) {
            let lock = Some((key, *event));
            self.items.push(Notification { db, lock });
        }
    }

    /// Takes a key that a notification names, so that it lives until the list has been worked off.
    pub(crate) fn own_key(&mut self, key: Text) -> Key {
        self.owned_keys.push(key);
        Key::Owned(self.owned_keys.len() - 1)
    }

    /// Adds what happened to a lock by its name, if anybody may listen.
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

    /// Hands every notification over, in order, and is empty then: the database, and the lock's key and what happened to it; none if
    /// the database was emptied.
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

/// Returns true if somebody may listen to an event. Only the end of a hold has a message as well.
fn is_wanted(event: &Event) -> bool {
    let ended = matches!(event, Event::Ended(..));
    keyspace_events() || (ended && !subscribers::skip())
}
