//! What exists for some servers only, each with its version, its reason, and the test that notices its end. Where one server
//! version differs from another, the module asks here, and nowhere else.
//!
//! A caller asks a question by its name. The answer comes from the functions that the server offers, or from a trial, so that it
//! stays right when servers change; from the version only where neither shows it. Each question names its versions, the reason,
//! and the test (of `integration/tests`) that would notice a server of which that is no longer true.
//!
//! Other measures cost so little that they are taken on every server, though only some need them. Nothing asks for the version
//! there. When the last server that needs one is no longer supported it can go, if its test stays green without it:
//!
//! | measure | needed by | reason | test |
//! |---|---|---|---|
//! | `node::slots`: nobody is blocked on a lock's own key | Redis 7.0 | when the key appears, `serveClientsBlockedOnKeyByModule` leaves `server.current_client` at a connection that may be freed before it is read. Elsewhere it saves calling everybody back: 1 ms for 10,000 | `blocked`: `a_key_appears_under_those_who_wait_for_it` under `make memcheck`, `no_lock_s_key_is_blocked_on` |
//! | `tell::blocking`: the server is given no time-out | Redis 7.0 | one that falls together with a grant loses the reply. Elsewhere it would be late by up to 1000/hz ms | `waiting`: `time_is_up_after_the_milliseconds_given` |
//! | `callbacks::events`: a load that fails takes its subscriptions back | Redis 7.0 | the server keeps them, and calls what is no longer there | `load`: `no_setting_out_of_range_is_loaded_and_nothing_is_left` |
//! | `run::load`: an empty module is loaded first | all but Redis 7.0, up to Redis 8.6 and Valkey 9.1 | a setting that no module has makes them unload a module with a data type, and crash. Redis 7.0 answers with an error and keeps the module | `load`: `no_setting_that_there_is_not_is_loaded` |
//! | `run::guard`: a reply that writes nothing is replaced by an error | Valkey since 8.1 | it delays what a command writes until modules have received the change, and loses an error of a command that a module has called | `guard_replies`: `every_command_that_is_refused_is_answered` |
//! | `ffi::ctx`: a script's own client is not looked up | Valkey 9.1 | it finds that client, which has no connection, and fails when it asks for the address | `ephemeral`: `refused_in_scripts_and_allowed_in_a_transaction` |
//! | `run::event`: a node asks twice a second which slots are its own | Redis since 8.4 | an atomic slot migration removes the keys of a slot without a callback | `cluster`: `everybody_who_waits_in_a_slot_is_told_that_it_has_left` |
//! | `ffi::callbacks::command`: a command is given no ACL categories | Redis 7.0 | it has no function for it | `commands`: `categories_allow_and_deny` |
//! | `ffi::callbacks::command`: the category `@dlock` is left out | Redis 7.0 and 7.2 | these lack the function for it | `commands`: `one_category_has_all_commands` |
//! | `node::clock`: the time is read once for MULTI and for a script | Redis 7.0 | it does not tell its own time, which does not advance there | `basics`: `check_guards_a_transaction` |

use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use redis_module::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_REDIS_7_2: AtomicBool = AtomicBool::new(false);
static BARS_SUBSCRIBERS: AtomicBool = AtomicBool::new(false);

/// Detects the server. Call it at load, before any question.
pub(crate) fn detect(ctx: Ctx) {
    let version = |field| ctx.server_info(c"server", field);
    match version(c"valkey_version") {
        Some(valkey) => BARS_SUBSCRIBERS.store(!valkey.starts_with("8.0."), Ordering::Relaxed),
        None => {
            let redis = version(c"redis_version").unwrap_or_default();
            IS_REDIS_7_2.store(redis.starts_with("7.2."), Ordering::Relaxed);
        }
    }
}

/// When an answered connection is unblocked, so that the server reports its end within the same iteration of the event loop as
/// that of a connection without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unblocks {
    /// Redis 7.0 writes the answer at once, but takes the connection for a blocked one until it goes to sleep: CLIENT UNBLOCK
    /// … ERROR in between adds a second reply. It raises an event right before it works off what was unblocked.
    BeforeSleep,
    /// Redis 7.2 does the same, but raises that event too late.
    EndOfIteration,
    /// Redis 7.4 and later write the answer only when they work off what was unblocked. Valkey keeps it apart until
    /// then, and drops it if the connection ends or is unblocked by error before.
    AtOnce,
}

/// Returns when this server's connections are unblocked.
///
/// Test: `undelivered`, all of it, and `waiting`: `unblocked_by_error_just_after_the_grant`. A new server for which `AtOnce` is
/// too early fails them.
pub(crate) fn unblocks() -> Unblocks {
    if before_sleep_precedes_unblocking() {
        Unblocks::BeforeSleep
    } else if IS_REDIS_7_2.load(Ordering::Relaxed) {
        Unblocks::EndOfIteration
    } else {
        Unblocks::AtOnce
    }
}

/// Returns true if this server raises an event right before it works off unblocked connections and goes to sleep: Redis 7.0
/// (told by a function that came with 7.2). Later ones raise it between that and the writing of replies.
///
/// It has decided by then for how long it sleeps: a timer that is made while it works off the last of an iteration does not wake
/// it.
///
/// Test: `undelivered`: `killed_behind_another_wait`.
pub(crate) fn before_sleep_precedes_unblocking() -> bool {
    !server::tells_time()
}

/// Returns true if this server lets a module block no connection that has subscriptions, which in RESP3 can send commands: Valkey
/// since 8.1 (`moduleBlockClient` takes normal clients only).
///
/// Test: `blocked`: `a_subscriber_waits_where_it_may` fails on another server that bars them. No test notices
/// a Valkey that no longer does: the request would still be refused.
pub(crate) fn bars_subscribers() -> bool {
    BARS_SUBSCRIBERS.load(Ordering::Relaxed)
}

/// Opens a key without a trace: no change of its age, no event, no count, no removal of a key that has
/// expired. Redis 7.0 knows only the first, and takes the others for nothing.
///
/// Test: `appearing`: `to_look_for_a_key_leaves_no_trace`.
pub(crate) const TRACELESS: c_int = (raw::REDISMODULE_READ
    | raw::REDISMODULE_OPEN_KEY_NOTOUCH
    | raw::REDISMODULE_OPEN_KEY_NOEFFECTS) as c_int;

/// Opens a key that is probably not there. On Redis 7.0 one that is opened for reading only counts as a miss.
///
/// Test: as above.
pub(crate) const TRACELESS_IF_ABSENT: c_int = TRACELESS | raw::REDISMODULE_WRITE as c_int;

/// Commands that wait, though not every server says so: Redis 7.2 does not flag WAIT as blocking.
///
/// Test: `guard`: `tests/servers/guard.txt`.
pub(crate) const WAITS_UNFLAGGED: [&[u8]; 2] = [b"wait", b"waitaof"];

/// An option by which a module declares that its keys may travel in an atomic slot migration: Valkey since 9.0. Other servers
/// ignore the bit.
///
/// Test: `cluster`: `a_slot_that_moves_at_once_takes_its_locks_along`.
pub(crate) const ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Returns how many databases the server has. A node of a cluster has one, whatever `databases` says, but Valkey since 9.0 has a
/// setting for it.
///
/// Test: `conversations`: `tests/servers/events.txt`, its flushes.
pub(crate) fn databases(ctx: Ctx, cluster: bool) -> u32 {
    let (setting, usual) = if cluster {
        (c"cluster-databases", 1)
    } else {
        (c"databases", 16)
    };
    let value = ctx.setting(setting).and_then(|value| value.parse().ok());
    value.unwrap_or(usual)
}

/// Set while the module makes its call.
static CALLING: AtomicBool = AtomicBool::new(false);

/// Set when the module's call will be freed at the end of this iteration.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// The function that is called then.
static WORK: MainThread<Option<fn()>> = MainThread::new(None);

/// Calls `work` once at the end of this iteration of the event loop, from where the server works off the connections that modules
/// have unblocked: before it sends anything, and after every command of the iteration. Returns true if the server will.
///
/// The server that needs this ([`Unblocks::EndOfIteration`]) reports that moment to nobody. But it can block a call of the module's
/// own, and unblock it at once, as it does with a connection. It frees the call when its turn comes among those that were
/// unblocked, and the free callback of the call is the hook.
pub(crate) fn call_at_iteration_end(ctx: Ctx, work: fn()) -> bool {
    if AWAITED.load(Ordering::Relaxed) {
        return true;
    }
    if let Some(mut kept) = WORK.borrow() {
        *kept = Some(work);
    }
    CALLING.store(true, Ordering::Relaxed);
    drop(ctx.call(c"DLOCK.HELP", Rules::MAY_BLOCK, []));
    CALLING.store(false, Ordering::Relaxed);
    AWAITED.load(Ordering::Relaxed)
}

/// Returns true if a call of `DLOCK.HELP` is the module's own in [`call_at_iteration_end`].
pub(crate) fn is_own_call() -> bool {
    CALLING.load(Ordering::Relaxed)
}

/// Blocks the module's own call, and unblocks it. In MULTI and in scripts the server does not block it, and answers it with an
/// error; what is freed is so all the same.
pub(crate) fn block_own_call(ctx: Ctx) {
    if ctx.block_once(freed) {
        AWAITED.store(true, Ordering::Relaxed);
    }
}

fn freed() {
    AWAITED.store(false, Ordering::Relaxed);
    let work = WORK.borrow().and_then(|mut kept| kept.take());
    if let Some(work) = work {
        work();
    }
}
