//! Replication: the one place where effects are propagated to replicas and the AOF. (`run::event` sends `DLOCK.HEED`.)
//!
//! An effect costs the server a lookup of the command's name and several allocations, about as much as the rest of an
//! uncontended command. A server with no AOF and no replica would throw it away, so no effect is made while it is certain that
//! nobody reads it. Certain means: INFO has shown it, and nothing has happened since that every new reader needs: a full
//! synchronisation and the start of an AOF fork a child, a partial synchronisation needs a backlog (that INFO has shown not to be
//! there), and a node of a cluster may always hand slots over.

use crate::ffi::ctx::Ctx;
use crate::ffi::text::Str;
use dlock_engine::change;
use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether effects may have a reader. Set at the first sign, cleared only when INFO shows that nobody does.
static LISTENING: AtomicBool = AtomicBool::new(true);

/// Returns true if effects must be made.
pub(crate) fn listening() -> bool {
    LISTENING.load(Ordering::Relaxed)
}

/// Notes that effects may have a reader from now on.
pub(crate) fn somebody_may_listen() {
    LISTENING.store(true, Ordering::Relaxed);
}

/// Reads from the server whether anybody reads effects.
pub(crate) fn refresh(ctx: Ctx) {
    let flags = ctx.flags();
    let may = raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    let forked = flags & raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD != 0;
    let nobody = flags & may == 0
        && !forked
        && ctx.server_fields(c"replication", |field| {
            let none = |name: &CStr| field(name) == Some("0");
            none(c"connected_slaves") && none(c"repl_backlog_active")
        });
    LISTENING.store(!nobody, Ordering::Relaxed);
}

/// Propagates the effect of an event on one lock.
pub(crate) fn effect(ctx: Ctx, key: Str, effect: &[u8]) {
    let bytes = (!change::is_usual_release(effect)).then_some(effect);
    ctx.replicate(c"DLOCK.APPLY", key, bytes);
}

/// Counts a change whose effect nobody reads, for the server's save points. The server offers no other way than a verbatim
/// replication, which reaches nobody here; a receiver would refuse the command (it only applies effects), and log that.
pub(crate) fn nothing(ctx: Ctx) {
    ctx.replicate_verbatim();
}
