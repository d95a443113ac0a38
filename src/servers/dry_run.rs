//! Finds settings that the module does not have: `MODULE LOADEX … CONFIG dlock.nosuch 1`.
//!
//! The server looks for them when the module has loaded, and would then unload it, which no server can do with a module that has
//! a data type: they keep it, or crash (`quirks`). A module is not told what settings are left over. So, before it has a type, it
//! has the server load it once more with
//! nothing in it: what is left over from the load under way is left over there too, and the server unloads that empty
//! module and says so.

use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::machine;
use std::sync::atomic::{AtomicBool, Ordering};

static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Returns true if the load that has just begun is the empty one.
pub(crate) fn under_way() -> bool {
    UNDER_WAY.load(Ordering::Relaxed)
}

/// Errors when settings are left over. To be called once the module's own have been taken, and before it has a type.
pub(crate) fn run(ctx: Ctx) -> Result<(), String> {
    // A server that starts has no clients yet. It reads all modules' settings from its file and refuses by itself to start
    // with one that no module has.
    let clients = ctx.server_info(c"clients", c"connected_clients");
    let Some(path) = machine::own_path().filter(|_| clients.is_some_and(|clients| clients != "0"))
    else {
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

/// Whether the server does this; none if it has no such command.
fn module_command(ctx: Ctx, verb: &[u8], argument: &[u8]) -> Option<bool> {
    let answer = ctx.call(c"MODULE", Rules::NONE, [verb, argument])?;
    Some(!answer.value().is_error())
}
