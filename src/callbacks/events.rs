//! What the server tells its modules: only noted here, worked off by the module's next event.

use crate::callbacks::data_type;
use crate::callbacks::hooks;
use crate::ffi::api::{self, api, hot, Ctx, Str, OK};
use crate::ffi::log;
use crate::ffi::panic::catch_panic;
use crate::node::census;
use crate::node::clock;
use crate::node::event_loop;
use crate::node::eviction;
use crate::node::gate;
use crate::node::inbox::{self, Notice};
use crate::node::timer;
use crate::servers::quirks;
use crate::tell::blocking;
use crate::tell::latency;
use crate::tell::notifications;
use crate::tell::replicate;
use crate::tell::subscribers;
use crate::tell::unsent;
use dlock_engine::{ClientId, Name, NameRef};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Subscribes to everything that concerns locks, but for what `hear_generic` adds.
pub fn subscribe(ctx: *mut Ctx) -> Result<(), &'static str> {
    let wanted: [(u64, raw::RedisModuleEventCallback, &'static str); 9] = [
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(flushed), "FlushDB"),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(swapped), "SwapDB"),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            Some(role_changed),
            "ReplicationRoleChanged",
        ),
        (raw::REDISMODULE_EVENT_LOADING, Some(loading), "Loading"),
        (
            raw::REDISMODULE_EVENT_FORK_CHILD,
            Some(listener),
            "ForkChild",
        ),
        (raw::REDISMODULE_EVENT_CONFIG, Some(configured), "Config"),
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            Some(listener),
            "ReplicaChange",
        ),
        (raw::REDISMODULE_EVENT_EVENTLOOP, Some(turned), "EventLoop"),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(cron), "CronLoop"),
    ];
    let hear = |id, callback| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context of the load, and a callback that lives as long as the module; without one the server takes
        // the subscription back.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, callback)) == OK }
    };
    for (at, (id, callback, name)) in wanted.into_iter().enumerate() {
        if !hear(id, callback) {
            // Not every server takes them back when a load fails.
            for (id, ..) in wanted.into_iter().take(at) {
                hear(id, None);
            }
            return Err(name);
        }
    }
    listen(ctx, raw::REDISMODULE_NOTIFY_EVICTED)
}

/// Subscribes to what happens to keys, where that is safe; else it is found by the look once a second. To be called when the
/// module's commands can be run. `own` is a context of the module's own. Gives whether they are heard.
pub fn hear_generic(ctx: *mut Ctx, own: *mut Ctx, databases: u32) -> Result<bool, &'static str> {
    if quirks::generic_events_are_safe(ctx, own, databases) {
        listen(ctx, raw::REDISMODULE_NOTIFY_GENERIC)?;
        return Ok(true);
    }
    log::notice(
        "generic keyspace events of this server version move clients to another database, so dlock does not listen to them: \
          what RENAME, MOVE, EXPIRE and PERSIST do to a lock is noticed within a second, or at its next use",
    );
    Ok(false)
}

fn listen(ctx: *mut Ctx, classes: i32) -> Result<(), &'static str> {
    let callback: raw::RedisModuleNotificationFunc = Some(keyspace_event);
    // SAFETY: the context of the load, and a callback that lives as long as the module, which is never unloaded.
    let heard = unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx, classes, callback
        ))
    };
    match heard {
        OK => Ok(()),
        _ => Err("keyspace events"),
    }
}

/// Set once the module hears of connections that end.
static DISCONNECTS_SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Has the server tell of connections that end, from the first one on that waits or to which something is tied: the server
/// asks for the address of each connection that it tells of, which those who use none of this need not pay for.
pub fn subscribe_disconnects(ctx: *mut Ctx) {
    if DISCONNECTS_SUBSCRIBED.swap(true, Ordering::Relaxed) {
        return;
    }
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        dataver: 1,
    };
    // SAFETY: a live context of this module, and a callback that lives as long as it.
    let heard = unsafe {
        api!(RedisModule_SubscribeToServerEvent(
            ctx,
            event,
            Some(client_changed)
        ))
    };
    if heard != OK {
        log::warning(
            "the server does not report connections that end, so a hold with SESSION ends only with its lease",
        );
    }
}

extern "C" fn client_changed(
    ctx: *mut Ctx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    catch_panic(|| {
        if sub != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
            return;
        }
        // SAFETY: this event comes with this structure.
        if let Some(info) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            let client = ClientId(info.id);
            inbox::post(Notice::Ended(client));
            unsent::on_disconnect(ctx, client);
        }
    });
}

extern "C" fn flushed(ctx: *mut Ctx, _event: raw::RedisModuleEvent, sub: u64, data: *mut c_void) {
    catch_panic(|| {
        // SAFETY: this event comes with this structure.
        let db = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }
            .map_or(-1, |info| info.dbnum);
        let db = u32::try_from(db).ok();
        if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            census::flushed();
            inbox::post(Notice::Flushed(db));
            return;
        }
        inbox::before_flush();
        if let Some((databases, held)) = hooks::databases_and_holds() {
            census::flushing(ctx, db, databases, held);
        }
    });
}

extern "C" fn swapped(_ctx: *mut Ctx, _event: raw::RedisModuleEvent, _sub: u64, data: *mut c_void) {
    catch_panic(|| {
        // SAFETY: this event comes with this structure.
        if let Some(info) = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
            let (one, other) = (info.dbnum_first as u32, info.dbnum_second as u32);
            inbox::post(Notice::Swapped(one, other));
        }
    });
}

extern "C" fn role_changed(
    _ctx: *mut Ctx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    catch_panic(|| {
        let primary = sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
        gate::set_primary(primary);
        replicate::somebody_may_listen();
        inbox::post(Notice::Role { primary });
    });
}

extern "C" fn loading(_ctx: *mut Ctx, _event: raw::RedisModuleEvent, sub: u64, _data: *mut c_void) {
    catch_panic(|| {
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
            inbox::post(Notice::Loaded);
        }
    });
}

extern "C" fn configured(
    ctx: *mut Ctx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    data: *mut c_void,
) {
    catch_panic(|| {
        // SAFETY: this event comes with this structure, whose names are C strings.
        let changed = |name: &CStr| unsafe {
            let change = data.cast::<raw::RedisModuleConfigChangeV1>().as_ref();
            change.is_some_and(|change| {
                let mut names = 0..change.num_changes as usize;
                names.any(|at| CStr::from_ptr(*change.config_names.add(at)) == name)
            })
        };
        if changed(c"notify-keyspace-events") {
            notifications::refresh();
        }
        if changed(c"latency-monitor-threshold") {
            latency::refresh(ctx);
        }
        if changed(c"maxmemory-policy") {
            eviction::refresh(ctx);
        }
    });
}

/// A child was forked, or a replica came or went: somebody may listen to changes now.
extern "C" fn listener(
    _ctx: *mut Ctx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    _data: *mut c_void,
) {
    catch_panic(replicate::somebody_may_listen);
}

extern "C" fn turned(_ctx: *mut Ctx, _event: raw::RedisModuleEvent, sub: u64, _data: *mut c_void) {
    catch_panic(|| {
        if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
            event_loop::set_asleep(true);
            clock::turn();
            subscribers::turn();
            inbox::turn();
            blocking::before_sleep();
        } else {
            event_loop::set_asleep(false);
            unsent::turn();
        }
    });
}

extern "C" fn cron(_ctx: *mut Ctx, _event: raw::RedisModuleEvent, _sub: u64, _data: *mut c_void) {
    catch_panic(|| {
        gate::beat(clock::read().steady());
        timer::catch_up();
    });
}

extern "C" fn keyspace_event(
    ctx: *mut Ctx,
    _class: c_int,
    event: *const c_char,
    key: *mut Str,
) -> c_int {
    catch_panic(|| {
        // SAFETY: the server's own event name, and the event's key.
        let (event, bytes) = unsafe { (CStr::from_ptr(event).to_bytes(), api::bytes(key)) };
        let post: fn(Name) = match event {
            b"expire" | b"persist" => |name| inbox::post(Notice::Retimed(name)),
            b"rename_to" | b"move_to" => inbox::post_brought,
            b"evicted" => {
                // The key is gone by now: that it was a lock was seen when it left its name.
                if inbox::just_unlinked(api::selected(ctx), bytes) {
                    inbox::post(Notice::Evicted);
                }
                return;
            }
            _ => return,
        };
        if is_lock(ctx, key) {
            let name = NameRef {
                db: api::selected(ctx),
                key: bytes,
            };
            post(name.to_owned());
        }
    });
    OK
}

/// Whether a lock is at the key: other keys' events are none of the module's.
fn is_lock(ctx: *mut Ctx, key: *mut Str) -> bool {
    if !census::any() {
        return false;
    }
    // SAFETY: opened for reading, looked at, closed.
    unsafe {
        let opened = hot!(RedisModule_OpenKey(
            ctx,
            key,
            raw::REDISMODULE_READ as c_int
        ));
        if opened.is_null() {
            return false;
        }
        let is = hot!(RedisModule_ModuleTypeGetType(opened)) == data_type::lock_type();
        hot!(RedisModule_CloseKey(opened));
        is
    }
}
