//! Finds settings that the module does not have: `MODULE LOADEX … CONFIG dlock.nosuch 1`.
//!
//! The server looks for them when the module has loaded, and would then unload it, which no server can do with a module that has
//! a data type: they keep it, or crash (`quirks`). A module is not told what settings are left over. So, before it has a type, it has the server load it once more with
//! nothing in it: what is left over from the load under way is left over there too, and the server unloads that empty
//! module and says so.

use crate::ffi::api::{self, api, Ctx, Text};
use crate::ffi::log;
use redis_module::raw;
use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicBool, Ordering};

static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Whether the load that has just begun is the empty one.
pub fn under_way() -> bool {
    UNDER_WAY.load(Ordering::Relaxed)
}

/// Errors when settings are left over. To be called once the module's own have been taken, and before it has a type.
pub fn run(ctx: *mut Ctx) -> Result<(), String> {
    // A server that starts has no clients yet. It reads all modules' settings from its file and refuses by itself to start
    // with one that no module has.
    let clients = api::server_info(ctx, c"clients", c"connected_clients");
    let Some(path) = own_path().filter(|_| clients.is_some_and(|clients| clients != "0")) else {
        return Ok(());
    };
    log::notice("dlock loads and unloads an empty module to see whether CONFIG names a setting that dlock does not have");
    UNDER_WAY.store(true, Ordering::Relaxed);
    let passed = module_command(ctx, b"LOADEX", path.to_bytes());
    UNDER_WAY.store(false, Ordering::Relaxed);
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

/// The file that the server has loaded the module from.
fn own_path() -> Option<&'static CStr> {
    // SAFETY: all-zero is a value of this structure. The function fills it in for an address within this library, whose name
    // stays as long as the library does.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(own_path as *const c_void, &mut found) != 0;
        (known && !found.dli_fname.is_null()).then(|| CStr::from_ptr(found.dli_fname))
    }
}

/// Whether the server does this; none if it has no such command.
fn module_command(ctx: *mut Ctx, verb: &[u8], argument: &[u8]) -> Option<bool> {
    let (verb, argument) = (Text::new(verb), Text::new(argument));
    // SAFETY: the context of the load, a constant and strings of one's own; the reply is freed.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx,
            c"MODULE".as_ptr(),
            c"ss".as_ptr(),
            verb.raw(),
            argument.raw()
        ));
        if reply.is_null() {
            return None;
        }
        let kind = api!(RedisModule_CallReplyType(reply));
        api!(RedisModule_FreeCallReply(reply));
        Some(kind != raw::REDISMODULE_REPLY_ERROR as c_int)
    }
}
