//! Whether this server would accept a write now: what is decided outside of a command must pass the same gate. The server is asked
//! by a call of the effect command, which then does nothing and says so.

use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use crate::node::clock;
use dlock_confirm::Stalls;
use dlock_engine::SteadyMs;
use redis_module::raw;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this server is a primary. The role events set it, since the context's flags cost more than an uncontended command can
/// spare.
static PRIMARY: AtomicBool = AtomicBool::new(true);

/// Whether the server is a node of a cluster: that never changes.
static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Returns true if the server is a node of a cluster.
pub(crate) fn in_cluster() -> bool {
    IN_CLUSTER.load(Ordering::Relaxed)
}

/// Notes whether the server is a node of a cluster.
pub(crate) fn set_cluster(cluster: bool) {
    IN_CLUSTER.store(cluster, Ordering::Relaxed);
}

/// The stalls of the process. With `min-replicas-to-write` nothing is decided after one before the server has counted its replicas
/// again: it would accept a probe.
static STALLS: MainThread<Stalls> = MainThread::new(Stalls::new());

/// Notes that the process runs, each time the server's own timer fires.
pub(crate) fn on_beat(now: SteadyMs) {
    if let Some(mut stalls) = STALLS.borrow() {
        stalls.on_beat(now.0);
    }
}

/// Notes that the module's event begins, and closes the gate if the process has stalled before it.
pub(crate) fn on_event(ctx: Ctx, now: SteadyMs) {
    let stalls = || STALLS.borrow();
    if !stalls().is_some_and(|mut stalls| stalls.on_event(now.0)) {
        return;
    }
    let counts = ctx
        .setting(c"min-replicas-to-write")
        .is_some_and(|least| least != "0");
    if let Some(mut stalls) = stalls().filter(|_| counts) {
        stalls.await_recount(now.0);
    }
}

/// Returns true if the server's count of replicas may be from before a stall.
fn is_stale() -> bool {
    let recounted_at = STALLS.borrow().and_then(|stalls| stalls.recounted_at());
    recounted_at.is_some_and(|at| clock::read().steady().0 < at)
}

/// Returns true if this server is a primary.
pub(crate) fn primary() -> bool {
    PRIMARY.load(Ordering::Relaxed)
}

/// Notes the role.
pub(crate) fn set_primary(primary: bool) {
    PRIMARY.store(primary, Ordering::Relaxed);
}

/// Returns true if changes are possible now: not on a replica, not while loading, not while paused, failing over or shutting
/// down (anything that propagated then would bring the server down), and not where the server would refuse a client's
/// write, for want of replicas or because its disk fails.
pub(crate) fn open(ctx: Ctx) -> bool {
    let flags = ctx.flags();
    let barred = raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    if !primary() || flags & barred != 0 || server::avoids_replica_traffic() || is_stale() {
        return false;
    }
    // In a cluster each key is probed.
    flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0 || write_of(ctx, b"dlock") == Passage::Open
}

/// Set while the module probes the server: then the effect command does nothing and answers OK.
static PROBING: AtomicBool = AtomicBool::new(false);

/// Returns true if a call of the effect command is the module's own probe.
pub(crate) fn probing() -> bool {
    PROBING.load(Ordering::Relaxed)
}

/// The server's answer to a write of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It would be accepted.
    Open,
    /// Only ASKING is missing: the key belongs to another node.
    Elsewhere,
    /// It would be refused.
    Barred,
}

/// The words of every server for a key of another node. It checks that last.
const ELSEWHERE: &str = "non local key";

/// Returns true if the server would refuse a write of this key, also if the key were its own.
pub(crate) fn is_barred(ctx: Ctx, key: &[u8]) -> bool {
    write_of(ctx, key) == Passage::Barred
}

/// Returns the server's answer to a write of this key, under the rules for scripts.
pub(crate) fn write_of(ctx: Ctx, key: &[u8]) -> Passage {
    PROBING.store(true, Ordering::Relaxed);
    let answer = ctx.call(c"DLOCK.APPLY", Rules::SCRIPT, [key, b""]);
    let passage = match &answer {
        None => Passage::Barred,
        Some(answer) if !answer.value().is_error() => Passage::Open,
        Some(answer) => match answer.value().text().unwrap_or_default() {
            text if text.contains(ELSEWHERE) => Passage::Elsewhere,
            _ => Passage::Barred,
        },
    };
    // The reply is freed first: callbacks from there also belong to the probe.
    drop(answer);
    PROBING.store(false, Ordering::Relaxed);
    passage
}
