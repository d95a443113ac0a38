//! Commands: their registration from the table, and their callbacks.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use dlock_commands::table::{Access, Arg, Kind, Spec, COMMANDS};
use dlock_engine::broken;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_char, c_int, CString};
use std::ptr;

/// Runs commands. `argv` begins with the command's name.
pub(crate) trait Handler: 'static {
    /// Runs a command of a client, of the primary, or of the AOF.
    fn run(ctx: Ctx, spec: &'static Spec, argv: &[Str]);
    /// Reports the keys of a command to the server, each by `Ctx::give_key`.
    fn give_keys(ctx: Ctx, spec: &Spec, argv: &[Str]);
}

/// The ACL category of all commands, where the server lets a module have one (`servers`).
const CATEGORY: &str = "dlock";

/// Adds the module's ACL category, where the server lets it.
///
/// Errors with what the server refuses.
pub(crate) fn add_category(ctx: Ctx) -> Result<(), &'static str> {
    // SAFETY: the context of the load; the server copies the name.
    let added =
        unsafe { raw::RedisModule_AddACLCategory.map(|add| add(ctx.raw(), text(CATEGORY))) };
    match added {
        None | Some(OK) => Ok(()),
        Some(_) => Err("the ACL category dlock"),
    }
}

/// Registers a command of the table, once the category has been added.
///
/// Errors with what the server refuses.
pub(crate) fn register<H: Handler>(ctx: Ctx, spec: &'static Spec) -> Result<(), &'static str> {
    let name = text(spec.name);
    let access = match spec.access {
        Access::Write | Access::Follow | Access::Replica | Access::Guard => "write",
        Access::Read => "readonly",
        // Where the server refuses writes it still lets a session be kept.
        Access::None | Access::Session => "",
    };
    // A cluster uses the positions of the first and the last key, on every server: of a command with a number of keys it would see
    // none, and neither redirect nor refuse it. So the server asks the module for them.
    let asks = if spec.many_keys() { "getkeys-api" } else { "" };
    let words = [access, spec.flags, asks].into_iter();
    let flags = words.filter(|word| !word.is_empty()).collect::<Vec<_>>();
    let flags = text(&flags.join(" "));
    let (first, last, step) = if spec.keyless() || spec.many_keys() {
        (0, 0, 0)
    } else {
        (1, 1, 1)
    };
    // SAFETY: the context of the load; names and descriptions are leaked, as the server may keep what it is given.
    unsafe {
        let created = api!(RedisModule_CreateCommand(
            ctx.raw(),
            name,
            Some(callback::<H>(spec)),
            flags,
            first,
            last,
            step
        ));
        if created != OK {
            return Err("the registration");
        }
        let command = api!(RedisModule_GetCommand(ctx.raw(), name));
        if command.is_null() || api!(RedisModule_SetCommandInfo(command, description(spec))) != OK {
            return Err("the description");
        }
        // Redis 7.0 lets modules have none (`servers`).
        let mut categories = spec.categories();
        let has_own = raw::RedisModule_AddACLCategory;
        if has_own.is_some() {
            categories = categories + " " + CATEGORY;
        }
        let set = raw::RedisModule_SetCommandACLCategories;
        if set.is_some_and(|set| set(command, text(&categories)) != OK) {
            return Err("the ACL categories");
        }
    }
    Ok(())
}

/// Returns the callback of a command: one for each, since the server passes nothing that identifies the command except its name.
fn callback<H: Handler>(
    spec: &'static Spec,
) -> unsafe extern "C" fn(*mut RedisModuleCtx, *mut *mut RedisModuleString, c_int) -> c_int {
    macro_rules! callbacks {
        ($($position:literal)*) => {{
            const _: () = assert!(COMMANDS.len() == [$($position),*].len(), "each command has a callback");
            match COMMANDS.iter().position(|other| other.verb == spec.verb) {
                $(Some($position) => run_at::<H, $position>,)*
                _ => run_at::<H, { usize::MAX }>,
            }
        }};
    }
    callbacks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24)
}

/// Runs the command at this position of the table.
unsafe extern "C" fn run_at<H: Handler, const POSITION: usize>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context and the server's arguments, as many as it says, which nobody changes while the command runs.
    let (ctx, argv) = unsafe { (Ctx::of(ctx), Str::all(argv, argc)) };
    catch_panic(|| {
        let Some(spec) = COMMANDS.get(POSITION) else {
            return broken!("a command has a place in the table");
        };
        let tells = spec.access == Access::Guard || spec.many_keys();
        // SAFETY: the context of the command.
        if tells && unsafe { api!(RedisModule_IsKeysPositionRequest(ctx.raw())) } != 0 {
            return H::give_keys(ctx, spec, argv);
        }
        H::run(ctx, spec, argv);
    });
    OK
}

/// Describes a command for COMMAND DOCS, COMMAND INFO, COMMAND GETKEYS and the ACL's key patterns.
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
        since: text(spec.since()),
        history: ptr::null_mut(),
        tips: spec.tips().map_or(ptr::null(), text),
        arity: spec.arity(),
        key_specs: key_specs(spec),
        args: arguments(spec.args),
    };
    Box::leak(Box::new(info))
}

/// Returns the access of a command to its keys, as the server's flags.
pub(crate) fn access(spec: &Spec) -> u32 {
    match spec.access {
        Access::None | Access::Replica => 0,
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        // The inner command's keys are handed out when they are asked for.
        Access::Guard => {
            raw::REDISMODULE_CMD_KEY_RO
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_INCOMPLETE
        }
        Access::Write | Access::Follow | Access::Session => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    }
}

fn key_specs(spec: &Spec) -> *mut raw::RedisModuleCommandKeySpec {
    if spec.keyless() {
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

/// Describes arguments; null for none.
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
        Kind::All(_) | Kind::With(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    };
    if let Kind::OneOf(args) | Kind::All(args) | Kind::With(args) = arg.kind {
        described.subargs = arguments(args);
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

/// Returns a constant as a C string that is never freed.
fn text(text: &str) -> *const c_char {
    CString::new(text).unwrap_or_default().into_raw()
}
