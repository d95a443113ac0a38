//! What a later version of the module has written. Its format is not known here, so it is refused, and in such a way that
//! nothing is lost: the operator is told, and a server that would go on without what it cannot read ends instead.

use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::node::gate;
use crate::node::time::clock;
use dlock_engine::refusal::newer_format;
use dlock_engine::Refusal;
use redis_module::raw;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value in a file, in what a primary sends, or in RESTORE. The server is told that it cannot be read: it does not start, or
/// does not take over its primary's data, or answers an error. RESTORE is open to every user, so the log is not written to by
/// each of them.
pub(crate) fn value(format: u64, known: u64) {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let second = clock::read().steady_us / 1_000_000 + 1;
    if TOLD.swap(second, Ordering::Relaxed) != second {
        log::warning(&newer_format("a lock's value", format, known));
    }
}

/// A decision of a primary, or in the AOF. Passing it over would leave this server with other locks than those it follows, and
/// its own files would keep the difference. A server that ends instead resumes at this very decision once it has been updated.
///
/// A server that decides itself gets such decisions with a slot that moves here from a newer one; it only refuses them.
pub(crate) fn effect(ctx: Ctx, refusal: &Refusal) {
    log::warning(&refusal.to_string());
    if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 || !gate::primary() {
        log::warning(
            "the server stops, because it would lose locks: update its module and start it again",
        );
        std::process::exit(1);
    }
}
