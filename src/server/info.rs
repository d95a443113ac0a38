//! The module's sections of INFO.

use super::api::api;
use super::{blocking, eviction, persist, STATE};
use redis_module::raw::RedisModuleInfoCtx;
use std::ffi::{c_int, CStr};

/// Adds the module's section. For a crash report nothing is added: the state may be what crashed.
pub extern "C" fn report(ctx: *mut RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return;
    }
    let Some(state) = STATE.lend() else { return };
    let counters = &state.engine.counters;
    let fields: &[(&CStr, u64)] = &[
        (c"locks", persist::live() as u64),
        (c"places_queued", state.engine.places() as u64),
        (c"connections_waiting", blocking::waiting() as u64),
        (c"grants_immediate_total", counters.grants_immediate),
        (c"grants_waited_total", counters.grants_waited),
        (c"null_replies_total", counters.refused),
        (c"timeouts_total", counters.timeouts),
        (c"reentries_total", counters.reentries),
        (c"upgrades_total", counters.upgrades),
        (c"renewals_total", counters.renewals),
        (c"released_total", counters.released),
        (c"expired_total", counters.expired),
        (c"forced_total", counters.forced),
        (c"removed_total", counters.removed),
        (c"session_ends_total", counters.sessions),
        (c"sessions", state.engine.sessions() as u64),
        (c"notify_waiting", state.engine.notifies() as u64),
        (c"deadlocks_total", counters.deadlocks),
        (
            c"deadlock_checks_given_up_total",
            counters.deadlocks_unknown,
        ),
        (c"eviction_possible", u64::from(eviction::possible())),
        (c"evicted_total", state.evicted),
        (c"clock_steps_total", state.steps.count),
    ];
    // SAFETY: the server's own context of this call; names are constants.
    unsafe {
        if api!(RedisModule_InfoAddSection(ctx, c"locks".as_ptr())) != super::api::OK {
            return;
        }
        for (name, value) in fields {
            api!(RedisModule_InfoAddFieldULongLong(
                ctx,
                name.as_ptr(),
                *value
            ));
        }
    }
}
