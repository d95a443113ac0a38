//! The server's events for modules.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent, RedisModuleString};
use std::ffi::{c_char, c_int, c_void, CStr};

/// Receives the server's events.
pub(crate) trait Listener: 'static {
    /// A database (none: all of them) is about to be emptied.
    fn flushing(ctx: Ctx, db: Option<u32>);
    /// The database has been emptied.
    fn flushed(db: Option<u32>);
    /// Two databases were exchanged.
    fn swapped(one: u32, other: u32);
    /// This server became a primary, or a replica.
    fn role_changed(primary: bool);
    /// A load begins: from a file, or from a primary.
    fn loading();
    /// The load has ended.
    fn loaded();
    /// A child was forked, or a replica has connected or disconnected.
    fn forked_or_followed();
    /// Settings of the server have changed: `changed` returns true for each of them.
    fn configured(ctx: Ctx, changed: &dyn Fn(&CStr) -> bool);
    /// The event loop is about to sleep (`true`), or has slept.
    fn sleeps(ctx: Ctx, asleep: bool);
    /// The server's own timer has fired.
    fn cron();
    /// A connection has ended.
    fn disconnected(ctx: Ctx, client: u64);
    /// Something has happened to a key.
    fn keyspace_event(ctx: Ctx, event: &[u8], key: Str);
}

/// A callback of the server's for an event.
type Callback = unsafe extern "C" fn(*mut RedisModuleCtx, RedisModuleEvent, u64, *mut c_void);

/// The events that concern locks, except connections that end, and their names in the server's API.
const WANTED: [(u64, &str); 10] = [
    (raw::REDISMODULE_EVENT_FLUSHDB, "FlushDB"),
    (raw::REDISMODULE_EVENT_SWAPDB, "SwapDB"),
    (
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        "ReplicationRoleChanged",
    ),
    (raw::REDISMODULE_EVENT_LOADING, "Loading"),
    (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, "ReplAsyncLoad"),
    (raw::REDISMODULE_EVENT_FORK_CHILD, "ForkChild"),
    (raw::REDISMODULE_EVENT_CONFIG, "Config"),
    (raw::REDISMODULE_EVENT_REPLICA_CHANGE, "ReplicaChange"),
    (raw::REDISMODULE_EVENT_EVENTLOOP, "EventLoop"),
    (raw::REDISMODULE_EVENT_CRON_LOOP, "CronLoop"),
];

/// Subscribes `L` to everything except connections that end and evictions.
///
/// Errors with what the server refuses; then it reports nothing.
pub(crate) fn subscribe<L: Listener>(ctx: Ctx) -> Result<(), &'static str> {
    for (subscribed, (id, name)) in WANTED.into_iter().enumerate() {
        if !set_callback(ctx, id, Some(event::<L>)) {
            // Not every server takes them back when a load fails.
            for (id, _) in WANTED.into_iter().take(subscribed) {
                set_callback(ctx, id, None);
            }
            return Err(name);
        }
    }
    Ok(())
}

/// Subscribes `L` to evictions. Returns true if the server reports them.
pub(crate) fn subscribe_evictions<L: Listener>(ctx: Ctx) -> bool {
    // SAFETY: a valid context, and a callback that lives as long as the module, which is never unloaded.
    unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_EVICTED,
            Some(keyspace::<L>)
        )) == OK
    }
}

/// Subscribes `L` to connections that end. Returns true if the server reports them.
pub(crate) fn subscribe_disconnects<L: Listener>(ctx: Ctx) -> bool {
    set_callback(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(event::<L>))
}

/// Subscribes to an event; without a callback the server takes the subscription back.
fn set_callback(ctx: Ctx, id: u64, callback: Option<Callback>) -> bool {
    let event = RedisModuleEvent { id, dataver: 1 };
    // SAFETY: a valid context, and a callback that lives as long as the module.
    unsafe {
        api!(RedisModule_SubscribeToServerEvent(
            ctx.raw(),
            event,
            callback
        )) == OK
    }
}

/// Receives every event that is subscribed to.
unsafe extern "C" fn event<L: Listener>(
    ctx: *mut RedisModuleCtx,
    event: RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    // SAFETY: the context of this callback, and its data.
    catch_panic(|| unsafe { report::<L>(Ctx::of(ctx), event.id, sub, data) });
}

/// Reports an event to `L`.
///
/// # Safety
/// The data is of the structure that comes with the event.
unsafe fn report<L: Listener>(ctx: Ctx, id: u64, sub: u64, data: *mut c_void) {
    match id {
        raw::REDISMODULE_EVENT_FLUSHDB => {
            // SAFETY: this event comes with this structure.
            let info = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
            let db = info.and_then(|info| u32::try_from(info.dbnum).ok());
            match sub {
                raw::REDISMODULE_SUBEVENT_FLUSHDB_END => L::flushed(db),
                _ => L::flushing(ctx, db),
            }
        }
        raw::REDISMODULE_EVENT_SWAPDB => {
            // SAFETY: this event comes with this structure.
            if let Some(info) = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
                L::swapped(info.dbnum_first as u32, info.dbnum_second as u32);
            }
        }
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => {
            L::role_changed(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
        }
        raw::REDISMODULE_EVENT_LOADING => match sub {
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED => L::loaded(),
            raw::REDISMODULE_SUBEVENT_LOADING_RDB_START
            | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START
            | raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => L::loading(),
            _ => {}
        },
        // During such a load the server continues with its present data.
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD
            if sub == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED =>
        {
            L::loading();
        }
        raw::REDISMODULE_EVENT_CONFIG => {
            // SAFETY: this event comes with this structure, whose names are C strings.
            let changed = |name: &CStr| unsafe {
                let change = data.cast::<raw::RedisModuleConfigChangeV1>().as_ref();
                change.is_some_and(|change| {
                    let mut names = 0..change.num_changes as usize;
                    names.any(|index| CStr::from_ptr(*change.config_names.add(index)) == name)
                })
            };
            L::configured(ctx, &changed);
        }
        raw::REDISMODULE_EVENT_FORK_CHILD | raw::REDISMODULE_EVENT_REPLICA_CHANGE => {
            L::forked_or_followed();
        }
        raw::REDISMODULE_EVENT_EVENTLOOP => {
            L::sleeps(ctx, sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP);
        }
        raw::REDISMODULE_EVENT_CRON_LOOP => L::cron(),
        raw::REDISMODULE_EVENT_CLIENT_CHANGE => {
            // SAFETY: this event comes with this structure.
            let info = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() };
            let ended = sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED;
            if let Some(info) = info.filter(|_| ended) {
                L::disconnected(ctx, info.id);
            }
        }
        _ => {}
    }
}

unsafe extern "C" fn keyspace<L: Listener>(
    ctx: *mut RedisModuleCtx,
    _: c_int,
    event: *const c_char,
    key: *mut RedisModuleString,
) -> c_int {
    // SAFETY: the context of this callback, the server's own event name, and the event's key.
    let (ctx, event, key) =
        unsafe { (Ctx::of(ctx), CStr::from_ptr(event).to_bytes(), Str::of(key)) };
    catch_panic(|| L::keyspace_event(ctx, event, key));
    OK
}
