//! How many locks there are, how many holds came and went with their values, and whether the server may evict locks.
//!
//! Values are counted on creation and on free; every value goes through both. So the numbers cannot
//! drift, whatever loads, expires, evicts, moves or overwrites keys. Only a flush may free its values later, in the
//! background. Those values are counted apart, so that an empty server has no locks.

use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Numbers of locks and of holds.
struct Count {
    locks: AtomicI64,
    holds: AtomicI64,
}

impl Count {
    const fn new() -> Count {
        Count {
            locks: AtomicI64::new(0),
            holds: AtomicI64::new(0),
        }
    }

    fn add(&self, locks: i64, holds: i64) {
        self.locks.fetch_add(locks, Ordering::Relaxed);
        if holds != 0 {
            self.holds.fetch_add(holds, Ordering::Relaxed);
        }
    }
}

/// Values at keys.
static AT_KEYS: Count = Count::new();

/// Values that a flush has left to be freed.
static LEFT_TO_FREE: Count = Count::new();

/// Set while a flush empties the databases: values that are freed within belong to it.
static FLUSHING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this is the server's main thread: other threads only free values, for example after a flush.
pub(crate) fn init() {
    MAIN.set(true);
}

/// Returns true if this is the server's main thread.
pub(crate) fn in_main_thread() -> bool {
    MAIN.get()
}

/// Returns how many locks there are.
pub(crate) fn locks() -> u64 {
    u64::try_from(AT_KEYS.locks.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Returns the holds that came with loaded values, less those that went with freed ones. The engine counts the others.
pub(crate) fn holds() -> i64 {
    AT_KEYS.holds.load(Ordering::Relaxed)
}

/// Counts a value that was made outside of the engine, with its holds.
pub(crate) fn created(holds: usize) {
    AT_KEYS.add(1, holds as i64);
}

/// Counts a value that is freed with the holds that it still has, on any thread.
pub(crate) fn freed(holds: usize) {
    let left = LEFT_TO_FREE.locks.load(Ordering::Relaxed) > 0 && !MAIN.get();
    let count = if left || FLUSHING.load(Ordering::Relaxed) {
        &LEFT_TO_FREE
    } else {
        &AT_KEYS
    };
    count.add(-1, -(holds as i64));
}

/// Counts all locks of this database (none: of all) as gone, `held` holds in all databases. If the server has keys in other
/// databases, nobody knows how many of the locks are there: then all are counted until they are freed.
pub(crate) fn flushing(ctx: Ctx, db: Option<u32>, databases: u32, held: i64) {
    let others = (0..databases).filter(|other| db.is_some_and(|db| db != *other));
    if !empty(ctx, others) {
        return;
    }
    FLUSHING.store(true, Ordering::Relaxed);
    LEFT_TO_FREE.add(AT_KEYS.locks.swap(0, Ordering::Relaxed), held);
    AT_KEYS.add(0, -held);
}

/// Ends the count of a flush.
pub(crate) fn flushed() {
    FLUSHING.store(false, Ordering::Relaxed);
}

/// Returns true if these databases have no key.
fn empty(ctx: Ctx, mut databases: impl Iterator<Item = u32>) -> bool {
    let home = ctx.selected();
    let empty = databases.all(|db| {
        ctx.select(db);
        ctx.db_size() == 0
    });
    ctx.select(home);
    empty
}

/// Whether the server may evict locks to free memory.
static EVICTION_POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Returns true if the server's policy can take a lock.
pub(crate) fn eviction_possible() -> bool {
    EVICTION_POSSIBLE.load(Ordering::Relaxed)
}

/// Reads the server's policy, and warns when it has become one that can take a lock. Returns true if it is one.
pub(crate) fn refresh_eviction(ctx: Ctx) -> bool {
    let policy = ctx
        .server_info(c"memory", c"maxmemory_policy")
        .unwrap_or_default();
    let possible = !policy.is_empty() && policy != "noeviction";
    let was_possible = EVICTION_POSSIBLE.swap(possible, Ordering::Relaxed);
    if possible && !was_possible {
        log::warning(&format!(
            "maxmemory-policy {policy} can evict locks while they are held; use noeviction for a lock server"
        ));
    }
    possible
}
