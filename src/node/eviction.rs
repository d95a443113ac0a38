//! Warns the operator if the server may evict locks to free memory: nothing else can be done about it.

use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use std::sync::atomic::{AtomicBool, Ordering};

static POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Returns true if the server's policy can take a lock.
pub(crate) fn possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed)
}

/// Reads the server's policy, and warns when it has become one that can take a lock.
pub(crate) fn refresh(ctx: Ctx) {
    let policy = ctx
        .server_info(c"memory", c"maxmemory_policy")
        .unwrap_or_default();
    let possible = !policy.is_empty() && policy != "noeviction";
    if possible && !POSSIBLE.swap(possible, Ordering::Relaxed) {
        log::warning(&format!(
            "maxmemory-policy {policy} can evict locks while they are held; use noeviction for a lock server"
        ));
    }
    POSSIBLE.store(possible, Ordering::Relaxed);
}
