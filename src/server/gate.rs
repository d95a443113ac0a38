//! Whether this server would accept a write now: what is decided outside of a command must pass the same gate.

use super::api::{self, api, Ctx, Text};
use super::slot;
use crate::engine::NameRef;
use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this server decides. Kept by the role events, since asking for the flags costs more than an uncontended
/// command can spare.
static PRIMARY: AtomicBool = AtomicBool::new(true);

/// Set while the module asks the server about itself: then the effect command does nothing and says so.
static PROBING: AtomicBool = AtomicBool::new(false);

/// Whether the server is a node of a cluster: that never changes.
static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether the server is a node of a cluster.
pub fn in_cluster() -> bool {
    IN_CLUSTER.load(Ordering::Relaxed)
}

/// Notes whether the server is a node of a cluster.
pub fn set_cluster(cluster: bool) {
    IN_CLUSTER.store(cluster, Ordering::Relaxed);
}

/// Whether this server decides, or follows another.
pub fn primary() -> bool {
    PRIMARY.load(Ordering::Relaxed)
}

/// Notes the role.
pub fn set_primary(primary: bool) {
    PRIMARY.store(primary, Ordering::Relaxed);
}

/// Whether a call of the effect command is the module's own question.
pub fn probing() -> bool {
    PROBING.load(Ordering::Relaxed)
}

/// Whether changes are possible now: not on a replica, not while loading, not while paused, failing over or shutting
/// down (anything that propagated then would bring the server down), and not where the server would refuse a client's
/// write, for want of replicas or because its disk fails.
pub fn open(ctx: *mut Ctx) -> bool {
    let flags = api::flags(ctx);
    let barred = raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    if !primary() || flags & barred != 0 || api::must_hold_back() {
        return false;
    }
    // In a cluster the question is put for each key.
    flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0 || probe(ctx, b"dlock")
}

/// Whether the queue of this key may move now, in a cluster: the slot is this node's and stays, and the cluster is up.
pub fn accepts_key(ctx: *mut Ctx, name: NameRef) -> bool {
    // In a slot that is migrating away the server still serves the keys that are left, but no others: so it is asked for one
    // that is not there.
    match slot::neighbour(name.key) {
        Some(neighbour) => probe(ctx, &neighbour),
        None => probe(ctx, name.key),
    }
}

/// Asks the server to run a write command that does nothing, under the rules that scripts are held to: `E` gives refusals as
/// replies.
fn probe(ctx: *mut Ctx, key: &[u8]) -> bool {
    run(ctx, key, c"SEsc")
}

/// Has the server run a command that does nothing, under no rules.
pub fn pass_through(ctx: *mut Ctx) {
    run(ctx, b"dlock", c"sc");
}

fn run(ctx: *mut Ctx, key: &[u8], rules: &CStr) -> bool {
    let key = Text::new(key);
    PROBING.store(true, Ordering::Relaxed);
    // SAFETY: a live context, a string of one's own and a constant, as the rules say.
    let passed = unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"DLOCK.APPLY".as_ptr(),
            rules.as_ptr(),
            key.raw(),
            c"".as_ptr()
        ));
        let passed = !reply.is_null()
            && api!(RedisModule_CallReplyType(reply)) != raw::REDISMODULE_REPLY_ERROR as i32;
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        passed
    };
    PROBING.store(false, Ordering::Relaxed);
    passed
}
