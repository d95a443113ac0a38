//! Whether this server would accept a write now: what is decided outside of a command must pass the same gate. The server is asked
//! by a call of the effect command, which then does nothing and says so.

use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::server;
use crate::node::clock;
use dlock_engine::{Millis, SteadyMs};
use redis_module::raw;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// When the process was last seen to run (in the far future at first), and until when nothing is decided after a stall:
/// milliseconds of the steady clock.
static LAST_BEAT: AtomicU64 = AtomicU64::new(u64::MAX);
static STALE_UNTIL: AtomicU64 = AtomicU64::new(0);

/// The shortest stall. The server's own timer fires ten times a second.
const STOOD_STILL_MS: Millis = 1_000;

/// How long the server takes after a stall to count its replicas again: it does so once a second.
const RECOUNT_MS: Millis = 1_100;

/// Notes that the process runs, each time the server's own timer fires.
pub(crate) fn note_alive(now: SteadyMs) {
    if now.0.saturating_sub(LAST_BEAT.load(Ordering::Relaxed)) < STOOD_STILL_MS {
        LAST_BEAT.store(now.0, Ordering::Relaxed);
    }
}

/// Closes the gate after a stall of the process (SIGSTOP, a paused machine). The server still counts the replicas from before the
/// stall as good, and would accept a probe, although another server may have been promoted meanwhile. So with
/// `min-replicas-to-write` nothing is decided before it has counted them again.
pub(crate) fn after_stall(ctx: Ctx, now: SteadyMs) {
    let last = LAST_BEAT.swap(now.0, Ordering::Relaxed);
    let stood_still = now.0.saturating_sub(last) >= STOOD_STILL_MS;
    let counts = || {
        ctx.setting(c"min-replicas-to-write")
            .is_some_and(|least| least != "0")
    };
    if stood_still && counts() {
        STALE_UNTIL.store(now.after(RECOUNT_MS).0, Ordering::Relaxed);
    }
}

/// Returns true if the server's count of replicas may be from before a stall.
fn is_stale() -> bool {
    let until = STALE_UNTIL.load(Ordering::Relaxed);
    until > 0 && clock::read().steady().0 < until
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
    if !primary() || flags & barred != 0 || server::must_hold_back() || is_stale() {
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
