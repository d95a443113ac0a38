//! Names that somebody waits for and that have no key, and the check whether one of them has come to have one.
//!
//! A value that replaces or removes a lock is told of by the lock's own callback. A value that appears where there was none
//! has nobody to tell of it:
//!
//! * the server's event of a new key (class `n`) costs each new key of the whole server 650 instructions, an eighth of a SET,
//!   from the first subscription on, whether or not anybody waits, and some servers cannot be listened to (`quirks`);
//! * so do the callbacks of connections that are blocked on the key (`wait_key`).
//!
//! But names like these are few: a lock with a queue has a value, unless its next holder waits for other locks as well, or
//! nothing is granted for now. So they are checked, some in each turn of the event loop, which is where a key can have
//! appeared. A server without them pays for reading one flag a turn.

use super::api::{self, hot, Ctx, Text};
use super::inbox::{self, Notice};
use super::{quirks, STATE};
use crate::engine::Name;
use redis_module::raw;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Names that one turn of the event loop checks: 5 µs. Where there are more, their turn comes after that of the others.
const A_TURN: usize = 32;

/// How long the check of one heartbeat may take, for a server that makes few turns of its event loop.
const A_HEARTBEAT: Duration = Duration::from_millis(1);

/// Whether there are any. A key may have appeared only then.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether there are any.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The names.
#[derive(Default)]
pub struct Vacant {
    names: BTreeSet<Name>,
    // The one that was checked last: the next check begins behind it.
    last: Option<Name>,
}

impl Vacant {
    /// Somebody waits for this name, which has no key.
    pub fn add(&mut self, name: Name) {
        self.names.insert(name);
        ANY.store(true, Ordering::Relaxed);
    }

    /// This name has a key, or nobody waits for it. Gives whether it was one of these.
    pub fn remove(&mut self, name: &Name) -> bool {
        let removed = self.names.remove(name);
        ANY.store(!self.names.is_empty(), Ordering::Relaxed);
        removed
    }

    /// The next names in turn, `most` of them at most, none twice.
    fn next(&mut self, most: usize) -> Vec<Name> {
        let behind = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.names.range((behind, Bound::Unbounded));
        let names: Vec<Name> = rest
            .chain(&self.names)
            .take(most.min(self.names.len()))
            .cloned()
            .collect();
        self.last = names.last().cloned();
        names
    }
}

/// Checks some of them: the event loop has made a turn.
pub fn turn(ctx: *mut Ctx) {
    inspect_next(ctx, A_TURN);
}

/// Checks as many of them as a heartbeat has time for.
pub fn heartbeat(ctx: *mut Ctx) {
    let begun = Instant::now();
    let mut left = STATE
        .try_borrow_mut()
        .map_or(0, |state| state.vacant.names.len());
    while left > 0 && begun.elapsed() < A_HEARTBEAT {
        inspect_next(ctx, A_TURN);
        left = left.saturating_sub(A_TURN);
    }
}

/// Checks the next ones, and leaves word of those that have a key. No borrow is held meanwhile: a server may remove an expired
/// key when it is opened, and call back.
fn inspect_next(ctx: *mut Ctx, most: usize) {
    let names = STATE
        .try_borrow_mut()
        .map(|mut state| state.vacant.next(most));
    let home = api::selected(ctx);
    for name in names.unwrap_or_default() {
        let has_key = has_key(ctx, &name);
        let Some(mut state) = STATE.try_borrow_mut() else {
            break;
        };
        let waited_for = state.engine.watches(name.as_ref());
        if has_key || !waited_for {
            state.vacant.remove(&name);
        }
        if has_key && waited_for {
            inbox::post(Notice::Brought(name));
        }
    }
    api::select(ctx, home);
}

/// Whether there is a key of this name, of whatever type. Leaves no trace.
fn has_key(ctx: *mut Ctx, name: &Name) -> bool {
    let mode = quirks::TRACELESS_IF_ABSENT;
    api::select(ctx, name.db);
    let key = Text::new(&name.key);
    // SAFETY: the server's own context; opened and closed.
    unsafe {
        let open = hot!(RedisModule_OpenKey(ctx, key.raw(), mode));
        if open.is_null() {
            return false;
        }
        let there = hot!(RedisModule_KeyType(open)) != raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
        hot!(RedisModule_CloseKey(open));
        there
    }
}
