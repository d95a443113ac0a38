//! What the server tells its modules.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent, RedisModuleString};
use std::ffi::{c_char, c_int, c_void, CStr};

/// Receives the server's events.
pub(crate) trait Listener: 'static {
    /// A database (all: none) is about to be emptied.
    fn flushing(ctx: Ctx, db: Option<u32>);
    /// It has been.
    fn flushed(db: Option<u32>);
    /// Two databases were exchanged.
    fn swapped(one: u32, other: u32);
    /// This server became a primary, or a replica.
    fn role_changed(primary: bool);
    /// Loading begins: from a file, or from a primary.
    fn loading();
    /// It has ended.
    fn loaded();
    /// A child was forked, or a replica came or went.
    fn forked_or_followed();
    /// Settings of the server have changed; the question tells which.
    fn configured(ctx: Ctx, changed: &dyn Fn(&CStr) -> bool);
    /// The event loop is about to sleep (`true`), or has slept.
    fn sleeps(ctx: Ctx, asleep: bool);
    /// The server's own timer has gone off.
    fn cron();
    /// A connection has ended.
    fn disconnected(ctx: Ctx, client: u64);
    /// Something has happened to a key.
    fn keyspace_event(ctx: Ctx, event: &[u8], key: Str);
}

/// A callback of the server's for an event.
type Callback = unsafe extern "C" fn(*mut RedisModuleCtx, RedisModuleEvent, u64, *mut c_void);

/// Subscribes `L` to everything except connections that end.
///
/// Errors with what the server refuses; then it tells nothing.
pub(crate) fn subscribe<L: Listener>(ctx: Ctx) -> Result<(), &'static str> {
    let wanted: [(u64, Callback, &'static str); 10] = [
        (raw::REDISMODULE_EVENT_FLUSHDB, flush::<L>, "FlushDB"),
        (raw::REDISMODULE_EVENT_SWAPDB, swap::<L>, "SwapDB"),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            role::<L>,
            "ReplicationRoleChanged",
        ),
        (raw::REDISMODULE_EVENT_LOADING, loading::<L>, "Loading"),
        (
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
            async_loading::<L>,
            "ReplAsyncLoad",
        ),
        (raw::REDISMODULE_EVENT_FORK_CHILD, fork::<L>, "ForkChild"),
        (raw::REDISMODULE_EVENT_CONFIG, config::<L>, "Config"),
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            fork::<L>,
            "ReplicaChange",
        ),
        (
            raw::REDISMODULE_EVENT_EVENTLOOP,
            event_loop::<L>,
            "EventLoop",
        ),
        (raw::REDISMODULE_EVENT_CRON_LOOP, cron::<L>, "CronLoop"),
    ];
    for (at, (id, callback, name)) in wanted.into_iter().enumerate() {
        if !hear(ctx, id, Some(callback)) {
            // Not every server takes them back when a load fails.
            for (id, ..) in wanted.into_iter().take(at) {
                hear(ctx, id, None);
            }
            return Err(name);
        }
    }
    // SAFETY: a live context, and a callback that lives as long as the module, which is never unloaded.
    let heard = unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_EVICTED,
            Some(keyspace::<L>)
        ))
    };
    (heard == OK).then_some(()).ok_or("keyspace events")
}

/// Has `L` told of connections that end. Returns true if the server does.
pub(crate) fn subscribe_disconnects<L: Listener>(ctx: Ctx) -> bool {
    hear(ctx, raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(client::<L>))
}

/// Subscribes to an event; without a callback the server takes the subscription back.
fn hear(ctx: Ctx, id: u64, callback: Option<Callback>) -> bool {
    let event = RedisModuleEvent { id, dataver: 1 };
    // SAFETY: a live context, and a callback that lives as long as the module.
    unsafe {
        api!(RedisModule_SubscribeToServerEvent(
            ctx.raw(),
            event,
            callback
        )) == OK
    }
}

unsafe extern "C" fn client<L: Listener>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    // SAFETY: the context of this callback; this event comes with this structure.
    let (ctx, info) = unsafe {
        (
            Ctx::of(ctx),
            data.cast::<raw::RedisModuleClientInfo>().as_ref(),
        )
    };
    let ended = sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED;
    if let Some(info) = info.filter(|_| ended) {
        catch_panic(|| L::disconnected(ctx, info.id));
    }
}

unsafe extern "C" fn flush<L: Listener>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    // SAFETY: the context of this callback; this event comes with this structure.
    let (ctx, info) = unsafe {
        (
            Ctx::of(ctx),
            data.cast::<raw::RedisModuleFlushInfo>().as_ref(),
        )
    };
    let db = info.and_then(|info| u32::try_from(info.dbnum).ok());
    catch_panic(|| match sub {
        raw::REDISMODULE_SUBEVENT_FLUSHDB_END => L::flushed(db),
        _ => L::flushing(ctx, db),
    });
}

unsafe extern "C" fn swap<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    // SAFETY: this event comes with this structure.
    if let Some(info) = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
        catch_panic(|| L::swapped(info.dbnum_first as u32, info.dbnum_second as u32));
    }
}

extern "C" fn role<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    catch_panic(|| L::role_changed(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER));
}

extern "C" fn loading<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    match sub {
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED => catch_panic(L::loaded),
        raw::REDISMODULE_SUBEVENT_LOADING_RDB_START
        | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START
        | raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => catch_panic(L::loading),
        _ => {}
    }
}

/// Reports a load during which the server goes on with the data that it has.
extern "C" fn async_loading<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED {
        catch_panic(L::loading);
    }
}

unsafe extern "C" fn config<L: Listener>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    // SAFETY: this event comes with this structure, whose names are C strings.
    let changed = |name: &CStr| unsafe {
        let change = data.cast::<raw::RedisModuleConfigChangeV1>().as_ref();
        change.is_some_and(|change| {
            let mut names = 0..change.num_changes as usize;
            names.any(|at| CStr::from_ptr(*change.config_names.add(at)) == name)
        })
    };
    // SAFETY: the context of this callback.
    catch_panic(|| L::configured(unsafe { Ctx::of(ctx) }, &changed));
}

extern "C" fn fork<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    catch_panic(L::forked_or_followed);
}

unsafe extern "C" fn event_loop<L: Listener>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    let asleep = sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP;
    // SAFETY: the context of this callback.
    catch_panic(|| L::sleeps(unsafe { Ctx::of(ctx) }, asleep));
}

extern "C" fn cron<L: Listener>(
    _: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    catch_panic(L::cron);
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
