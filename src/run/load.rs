//! Registration: the command table turned into what the server keeps of commands.

use crate::callbacks::data_type;
use crate::callbacks::events;
use crate::callbacks::hooks::{self, Hooks};
use crate::ffi::api::{self, api, Ctx, Str, OK};
use crate::ffi::log;
use crate::ffi::panic::catch_panic;
use crate::node::census;
use crate::node::config;
use crate::node::eviction;
use crate::node::gate;
use crate::node::timer;
use crate::run::guard;
use crate::run::info;
use crate::run::STATE;
use crate::servers::dry_run;
use crate::servers::quirks;
use crate::tell::latency;
use crate::tell::notifications;
use dlock_commands::table::{Access, Arg, Kind, Spec, COMMANDS};
use redis_module::{raw, Context, RedisString, Status};
use std::ffi::{c_char, c_int, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

/// Prepares the module, or takes back what it has done and says why in the log.
pub fn init(context: &Context, args: &[RedisString]) -> Status {
    if dry_run::under_way() {
        return Status::Ok;
    }
    let ctx = context.ctx.cast::<Ctx>();
    let prepared = catch_unwind(AssertUnwindSafe(|| {
        prepare(context, ctx, args)?;
        begin(ctx);
        Ok(())
    }));
    match prepared.unwrap_or_else(|_| Err("an internal fault".to_string())) {
        Ok(()) => Status::Ok,
        Err(why) => {
            log::warning(&format!("dlock cannot be loaded: {why}"));
            // The context ends with the load.
            log::init(ptr::null_mut());
            Status::Err
        }
    }
}

/// All that a server may refuse. A module whose load fails is taken out of memory, so nothing may stay that leads into it.
/// Servers take back the settings and commands of such a module, not all of them subscriptions, and none of them timers. So
/// there are no timers yet, and subscriptions come last.
fn prepare(context: &Context, ctx: *mut Ctx, args: &[RedisString]) -> Result<(), String> {
    api::complete().map_err(|name| {
        format!("this server has no {name}; it must be Redis 7.0 or Valkey 8.0, or later")
    })?;
    log::init(ctx);
    log::panics();
    hooks::init(Hooks {
        cut: super::cut,
        has_room_for: super::has_room_for,
        databases_and_holds: super::databases_and_holds,
    });
    config::register(context, args)?;
    dry_run::run(ctx)?;
    data_type::LOCK_TYPE
        .create_data_type(context.ctx)
        .map_err(|_| format!("the server refuses the data type {}", data_type::NAME))?;
    for spec in COMMANDS {
        register(ctx, spec)
            .map_err(|what| format!("the server refuses {what} of {}", spec.name))?;
    }
    events::subscribe(ctx).map_err(|name| format!("the server refuses a subscription to {name}"))
}

/// All that cannot fail.
fn begin(ctx: *mut Ctx) {
    let flags = api::flags(ctx);
    gate::set_primary(flags & raw::REDISMODULE_CTX_FLAGS_SLAVE == 0);
    quirks::detect(ctx);
    let cluster = flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    gate::set_cluster(cluster);
    if let Some(mut state) = STATE.try_borrow_mut() {
        state.settings.cluster = cluster;
        state.settings.databases = quirks::databases(ctx, cluster);
    }
    // SAFETY: the context of the load; the callback lives as long as the module, which is never unloaded from here on.
    unsafe {
        let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS as c_int
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int
            | quirks::ATOMIC_SLOT_MIGRATION;
        api!(RedisModule_SetModuleOptions(ctx, options));
        api!(RedisModule_RegisterInfoFunc(ctx, Some(info::report)));
    }
    // SAFETY: called once, with the context of the load; the context it gives lives as long as the module.
    let own = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx)) };
    census::init();
    log::init(own);
    let databases = STATE
        .try_borrow_mut()
        .map_or(1, |state| state.settings.databases);
    let heard = events::hear_generic(ctx, own, databases).unwrap_or_else(|what| {
        log::warning(&format!(
            "the server refuses a subscription to {what}: what RENAME, MOVE, EXPIRE and PERSIST do to a lock is noticed within a \
             second, or at its next use"
        ));
        false
    });
    if let Some(mut state) = STATE.try_borrow_mut() {
        state.keys.set_server(cluster, heard);
    }
    eviction::refresh(ctx);
    latency::refresh(ctx);
    notifications::refresh();
    log::notice(concat!("dlock ", env!("CARGO_PKG_VERSION"), " is ready"));
    timer::init(own, super::event);
    // The first event is the first heartbeat.
    timer::soon();
}

fn register(ctx: *mut Ctx, spec: &'static Spec) -> Result<(), &'static str> {
    let name = text(spec.name);
    let access = match spec.access {
        Access::Write | Access::Follow | Access::Guard => "write",
        Access::Read => "readonly",
        Access::None => "",
    };
    // Where the first key is and where the last is what a cluster goes by, on every server that there is: from keys that a
    // number tells of it would see none, and neither redirect nor refuse. So it asks the module for them.
    let asks = if spec.many_keys() { "getkeys-api" } else { "" };
    let words = [access, spec.flags, asks].into_iter();
    let flags = words.filter(|word| !word.is_empty()).collect::<Vec<_>>();
    let flags = text(&flags.join(" "));
    let (first, last, step) = if spec.access == Access::None || spec.many_keys() {
        (0, 0, 0)
    } else {
        (1, 1, 1)
    };
    // SAFETY: the context of the load; names and descriptions are leaked, as the server may keep what it is given.
    unsafe {
        let created = api!(RedisModule_CreateCommand(
            ctx,
            name,
            Some(callback(spec)),
            flags,
            first,
            last,
            step
        ));
        if created != OK {
            return Err("the registration");
        }
        let command = api!(RedisModule_GetCommand(ctx, name));
        if command.is_null() || api!(RedisModule_SetCommandInfo(command, description(spec))) != OK {
            return Err("the description");
        }
        if !quirks::set_categories(command, text(spec.categories)) {
            return Err("the ACL categories");
        }
    }
    Ok(())
}

/// The callback of a command: one for each, since the server gives it nothing to tell the command by but its name.
fn callback(spec: &'static Spec) -> unsafe extern "C" fn(*mut Ctx, *mut *mut Str, c_int) -> c_int {
    macro_rules! callbacks {
        ($($at:literal)*) => {
            match COMMANDS.iter().position(|other| other.verb == spec.verb) {
                $(Some($at) => at::<$at>,)*
                _ => at::<{ usize::MAX }>,
            }
        };
    }
    callbacks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
}

/// Runs the command at this place of the table.
unsafe extern "C" fn at<const AT: usize>(ctx: *mut Ctx, argv: *mut *mut Str, argc: c_int) -> c_int {
    catch_panic(|| {
        if let Some(spec) = COMMANDS.get(AT) {
            // SAFETY: the server's arguments, as many as it says; nobody else uses them while the command runs.
            let argv = unsafe { std::slice::from_raw_parts_mut(argv, argc.max(0) as usize) };
            let tells = spec.access == Access::Guard || spec.many_keys();
            // SAFETY: the context of the command.
            if tells && unsafe { api!(RedisModule_IsKeysPositionRequest(ctx)) } != 0 {
                return match spec.many_keys() {
                    true => give_keys(ctx, spec, argv),
                    false => guard::give_keys(ctx, argv),
                };
            }
            crate::run::command(ctx, spec, argv);
        }
    });
    OK
}

/// Hands out the keys of a command that a number tells of.
fn give_keys(ctx: *mut Ctx, spec: &Spec, argv: &[*mut Str]) {
    // SAFETY: a context that asks for keys, and the server's arguments; the positions are within these.
    unsafe {
        let words: Vec<&[u8]> = argv.iter().skip(1).map(|word| api::bytes(*word)).collect();
        for at in spec.keys(&words) {
            api!(RedisModule_KeyAtPosWithFlags(
                ctx,
                at as c_int + 1,
                access(spec) as c_int
            ));
        }
    }
}

/// What COMMAND DOCS, COMMAND INFO, COMMAND GETKEYS and the ACL's key patterns are made from.
fn description(spec: &'static Spec) -> *const raw::RedisModuleCommandInfo {
    static VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: std::mem::size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: std::mem::size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: std::mem::size_of::<raw::RedisModuleCommandArg>(),
    };
    let info = raw::RedisModuleCommandInfo {
        version: &VERSION,
        summary: text(spec.summary),
        complexity: text(spec.complexity),
        since: text("0.1.0"),
        history: ptr::null_mut(),
        tips: spec.tips().map_or(ptr::null(), text),
        arity: spec.arity(),
        key_specs: key_specs(spec),
        args: arguments(spec.args),
    };
    Box::leak(Box::new(info))
}

/// What a command does to its keys.
fn access(spec: &Spec) -> u32 {
    match spec.access {
        Access::None => 0,
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        // The inner command's keys are handed out when they are asked for.
        Access::Guard => {
            raw::REDISMODULE_CMD_KEY_RO
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_INCOMPLETE
        }
        Access::Write | Access::Follow => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    }
}

fn key_specs(spec: &Spec) -> *mut raw::RedisModuleCommandKeySpec {
    if spec.access == Access::None {
        return ptr::null_mut();
    }
    // SAFETY: all-zero is the end mark of the list, and "left out" in every field.
    let mut specs: [raw::RedisModuleCommandKeySpec; 2] = unsafe { std::mem::zeroed() };
    specs[0].flags = u64::from(access(spec));
    specs[0].begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    specs[0].bs.index.pos = 1;
    if spec.many_keys() {
        specs[0].find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
        specs[0].fk.keynum.keynumidx = 0;
        specs[0].fk.keynum.firstkey = 1;
        specs[0].fk.keynum.keystep = 1;
    } else {
        specs[0].find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        specs[0].fk.range.lastkey = 0;
        specs[0].fk.range.keystep = 1;
    }
    Box::leak(Box::new(specs)).as_mut_ptr()
}

/// A list of arguments, none for an empty one.
fn arguments(args: &[Arg]) -> *mut raw::RedisModuleCommandArg {
    if args.is_empty() {
        return ptr::null_mut();
    }
    let mut list: Vec<raw::RedisModuleCommandArg> = args.iter().map(argument).collect();
    // SAFETY: all-zero is the end mark of the list, and "left out" in every field.
    list.push(unsafe { std::mem::zeroed() });
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

fn argument(arg: &Arg) -> raw::RedisModuleCommandArg {
    // SAFETY: all-zero is "left out" in every field.
    let mut described: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
    described.name = text(arg.name);
    described.type_ = match arg.kind {
        Kind::Key | Kind::Keys => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        Kind::Text(..) | Kind::Word | Kind::Words => {
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING
        }
        Kind::Integer(..) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::Flag(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        Kind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
    };
    if let Kind::OneOf(choices) = arg.kind {
        described.subargs = arguments(choices);
    }
    let key = matches!(arg.kind, Kind::Key | Kind::Keys);
    described.key_spec_index = if key { 0 } else { -1 };
    described.token = arg.token.map_or(ptr::null(), text);
    if arg.optional {
        described.flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
    }
    if matches!(arg.kind, Kind::Words | Kind::Keys) {
        described.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int;
    }
    described
}

/// A constant as the server wants it, for as long as it may want it.
fn text(text: &str) -> *const c_char {
    CString::new(text).unwrap_or_default().into_raw()
}
