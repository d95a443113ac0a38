//! What differs from server to server in how connections wait, by what the server says it is.

use super::api::{self, Ctx};
use redis_module::raw;
use std::sync::atomic::{AtomicBool, Ordering};

/// When an answered connection is unblocked, so that whatever ends it in the same turn of the event loop is told of as the end of
/// one that has no answer yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unblocks {
    /// Redis 7.0 writes the answer at once, but takes the connection for a blocked one until it goes to sleep: CLIENT UNBLOCK
    /// … ERROR in between adds a second reply. It raises an event right before it works off what was unblocked.
    BeforeSleep,
    /// Redis 7.2 does the same, but raises that event too late.
    EndOfTurn,
    /// Redis 7.4 and later write the answer only when they work off what was unblocked. Valkey keeps it apart until
    /// then, and drops it if the connection ends or is unblocked by error before.
    AtOnce,
}

static IS_REDIS_7_2: AtomicBool = AtomicBool::new(false);
static BARS_SUBSCRIBERS: AtomicBool = AtomicBool::new(false);

/// Finds out what server this is. To be called at load.
pub fn look(ctx: *mut Ctx) {
    let version = |field| api::server_info(ctx, c"server", field);
    match version(c"valkey_version") {
        Some(valkey) => BARS_SUBSCRIBERS.store(!valkey.starts_with("8.0."), Ordering::Relaxed),
        None => {
            let redis = version(c"redis_version").unwrap_or_default();
            IS_REDIS_7_2.store(redis.starts_with("7.2."), Ordering::Relaxed);
        }
    }
}

/// When this server's connections are unblocked.
pub fn unblocks() -> Unblocks {
    if tells_of_sleep() {
        Unblocks::BeforeSleep
    } else if IS_REDIS_7_2.load(Ordering::Relaxed) {
        Unblocks::EndOfTurn
    } else {
        Unblocks::AtOnce
    }
}

/// Whether this server raises an event right before it works off unblocked connections and goes to sleep: Redis 7.0
/// (told by a function that came with 7.2). Later ones raise it between that and the writing of replies.
pub fn tells_of_sleep() -> bool {
    // SAFETY: a pointer that the server set before this.
    unsafe { raw::RedisModule_CachedMicroseconds }.is_none()
}

/// Whether this server lets a module block no connection that has subscriptions, which in RESP3 can send commands: Valkey
/// since 8.1 (`moduleBlockClient` takes normal clients only).
pub fn bars_subscribers() -> bool {
    BARS_SUBSCRIBERS.load(Ordering::Relaxed)
}
