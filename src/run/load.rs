//! The load: registration with the server, and the initial state.

use super::command::Commands;
use super::{caller, confirm, event, keyspace, state};
use crate::callbacks::data_type;
use crate::callbacks::events;
use crate::callbacks::{self, Hooks};
use crate::ffi::call::Rules;
use crate::ffi::callbacks::command::{add_category, register};
use crate::ffi::callbacks::info::{self, Report};
use crate::ffi::ctx::Ctx;
use crate::ffi::{api, log, server};
use crate::node::{census, clock, gate, timer};
use crate::replicas;
use crate::servers;
use crate::settings::config;
use crate::tell::observers;
use crate::tell::{blocking, latency};
use crate::version;
use dlock_commands::look::stats;
use dlock_commands::table::COMMANDS;
use redis_module::{raw, Context, RedisString, Status};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// Prepares the module, or takes back what it has done and says why in the log.
pub(crate) fn init(context: &Context, args: &[RedisString]) -> Status {
    if DRY_RUN.load(Ordering::Relaxed) {
        return Status::Ok;
    }
    let ctx = Ctx::of_load(context);
    log::during_load(ctx, || {
        let prepared = catch_unwind(AssertUnwindSafe(|| {
            prepare(context, ctx, args)?;
            begin(ctx);
            Ok(())
        }));
        match prepared.unwrap_or_else(|_| Err("an internal fault".to_string())) {
            Ok(()) => Status::Ok,
            Err(why) => {
                log::warning(&format!("dlock cannot be loaded: {why}"));
                Status::Err
            }
        }
    })
}

/// Registers everything that a server may refuse. The server unmaps a module whose load fails, so nothing that leads into it may
/// stay. Servers remove the settings and commands of such a module, some of them subscriptions, and none of them timers. So there
/// are no timers yet, and subscriptions come last.
fn prepare(context: &Context, ctx: Ctx, args: &[RedisString]) -> Result<(), String> {
    api::complete().map_err(|name| {
        format!("this server has no {name}; it must be Redis 7.0 or Valkey 8.0, or later")
    })?;
    log::panics();
    dlock_engine::invariants::set_hook(log::broken_invariant);
    callbacks::set_hooks(Hooks {
        has_room_for: state::has_room_for,
        databases_and_holds: state::databases_and_holds,
        confirm: confirm::check_unconfirmed,
    });
    config::register(context, args)?;
    dry_run(ctx)?;
    data_type::LOCK_TYPE
        .create_data_type(context.ctx)
        .map_err(|_| format!("the server refuses the data type {}", data_type::NAME))?;
    add_category(ctx).map_err(|what| format!("the server refuses {what}"))?;
    for spec in COMMANDS {
        register::<Commands>(ctx, spec)
            .map_err(|what| format!("the server refuses {what} of {}", spec.name))?;
    }
    events::subscribe(ctx).map_err(|name| format!("the server refuses a subscription to {name}"))
}

/// Does the part of the load that cannot fail.
fn begin(ctx: Ctx) {
    let flags = ctx.flags();
    gate::set_primary(flags & raw::REDISMODULE_CTX_FLAGS_SLAVE == 0);
    replicas::begin();
    servers::detect(ctx);
    let cluster = flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    gate::set_cluster(cluster);
    if let Some(mut state) = state::STATE.borrow() {
        state.settings.databases = servers::databases(ctx, cluster);
    }
    ctx.set_options(keyspace::OPTIONS | keyspace::CLOSES_SILENTLY);
    info::register(ctx, report);
    ctx.make_own();
    census::init();
    replicas::refuse_requests();
    events::refresh_eviction(ctx);
    latency::refresh(ctx);
    timer::refresh(ctx);
    observers::refresh();
    log::notice(&format!("dlock {} is ready", version::TEXT));
    blocking::init(state::news_for);
    timer::init(event::event);
    // The first event is the first heartbeat.
    timer::soon();
}

/// Adds the module's sections to INFO.
fn report(mut report: Report) {
    let Some(mut state) = state::STATE.try_borrow_mut() else {
        return;
    };
    state.refresh_settings();
    for section in stats::sections(&state.engine, &caller::census(), clock::read()) {
        // Refused if it was not asked for.
        if report.section(section.name) {
            for (name, value) in section.fields {
                report.field(name, value);
            }
        }
    }
}

/// Set while the server loads the module once more, with nothing in it.
static DRY_RUN: AtomicBool = AtomicBool::new(false);

/// Finds settings that the module does not have: `MODULE LOADEX … CONFIG dlock.nosuch 1`.
///
/// The server looks for them when the module has loaded, and would then unload it, which no server can do with a module that has
/// a data type: they keep it, or crash (`servers`). No server reports the settings that are left over. So, before it has a type,
/// the module lets the server load it once more with nothing in it. Unknown settings are still pending in the nested load, so the
/// server unloads that empty module and says so.
///
/// Errors when settings are left over. To be called once the module's own have been taken, and before it has a type.
fn dry_run(ctx: Ctx) -> Result<(), String> {
    // A server that starts has no clients yet. It reads all modules' settings from its file and refuses by itself to start
    // with one that no module has.
    let clients = ctx.server_info(c"clients", c"connected_clients");
    let Some(path) = server::own_path().filter(|_| clients.is_some_and(|clients| clients != "0"))
    else {
        return Ok(());
    };
    log::notice("dlock loads and unloads an empty module to see whether CONFIG names a setting that dlock does not have");
    DRY_RUN.store(true, Ordering::Relaxed);
    let passed = module_command(ctx, b"LOADEX", path.to_bytes());
    DRY_RUN.store(false, Ordering::Relaxed);
    match passed {
        // Without a command of this name there is no other way to give settings than the file.
        None => Ok(()),
        Some(false) => Err("CONFIG names a setting that dlock does not have".to_string()),
        Some(true) => match module_command(ctx, b"UNLOAD", b"dlock") {
            Some(true) => Ok(()),
            _ => Err("the server keeps an empty module of this name".to_string()),
        },
    }
}

/// Runs a MODULE command. Returns whether the server has done it; none if it has no such command.
fn module_command(ctx: Ctx, verb: &[u8], argument: &[u8]) -> Option<bool> {
    let answer = ctx.call(c"MODULE", Rules::NONE, [verb, argument])?;
    Some(!answer.value().is_error())
}
