//! What observers are to be told once an event has been worked off.

use super::api::{self, Str, Text};
use super::audience;
use crate::engine::{Event, Name};
use std::sync::atomic::{AtomicBool, Ordering};

/// A list of news, in order. It is kept between events for its room: an uncontended command allocates nothing here.
#[derive(Default)]
pub struct News {
    items: Vec<Item>,
    kept: Vec<Text>,
}

/// Whether the server passes the module's keyspace events on: what nobody can hear is no news.
static KEYSPACE_EVENTS: AtomicBool = AtomicBool::new(false);

/// Whether keyspace events are to be raised.
pub fn keyspace_events() -> bool {
    KEYSPACE_EVENTS.load(Ordering::Relaxed)
}

/// Asks the server whether it passes keyspace events on: at load, and whenever its configuration changes.
pub fn look() {
    KEYSPACE_EVENTS.store(api::notifies_of_modules(), Ordering::Relaxed);
}

/// One piece of news.
pub enum Item {
    /// Something of one lock: its database, its key (alive for as long as the list is), and what.
    Lock(u32, *mut Str, Event),
    /// A database was emptied.
    Flush(u32),
}

impl News {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds what happened to a lock whose key is the command's own argument, which lives until the command returns.
    pub fn add(&mut self, db: u32, key: *mut Str, event: &Event) {
        // Only the end of a hold is told by a message too.
        let ended = matches!(event, Event::Ended(..));
        if keyspace_events() || (ended && !audience::known_deaf()) {
            self.items.push(Item::Lock(db, key, *event));
        }
    }

    /// Keeps a key alive until the list has been worked off.
    pub fn keep(&mut self, key: Text) {
        self.kept.push(key);
    }

    /// Adds what happened to a lock by its name.
    pub fn add_named(&mut self, name: &Name, event: Event) {
        let key = Text::new(&name.key);
        self.add(name.db, key.raw(), &event);
        self.keep(key);
    }

    /// Adds that a database was emptied.
    pub fn add_flush(&mut self, db: u32) {
        self.items.push(Item::Flush(db));
    }

    /// Hands every item over, in order, and is empty then.
    pub fn work_off(&mut self, tell: impl FnMut(&Item)) {
        self.items.iter().for_each(tell);
        self.items.clear();
        self.kept.clear();
    }
}
