//! The server's log. The crate's own functions pass the message as a format, so that a `%n` in a lock's name would crash the
//! server; here it is always an argument.

use super::api::api;
use super::ctx::Ctx;
use redis_module::raw::RedisModuleCtx;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The context of the load, while it runs.
static LOAD: AtomicPtr<RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Logs in this context during the load, until the module has a context of its own.
pub(crate) fn during_load<T>(ctx: Ctx, load: impl FnOnce() -> T) -> T {
    LOAD.store(ctx.raw(), Ordering::Relaxed);
    let loaded = load();
    LOAD.store(ptr::null_mut(), Ordering::Relaxed);
    loaded
}

/// Logs something that the operator should act on.
pub(crate) fn warning(text: &str) {
    write(c"warning", text);
}

/// Logs something that the operator may want to know.
pub(crate) fn notice(text: &str) {
    write(c"notice", text);
}

/// Writes panics to the log from now on: where the server runs as a daemon, nobody sees its standard error.
pub(crate) fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        warning(&format!("internal fault: {panic}"))
    }));
}

/// Logs a broken invariant.
pub(crate) fn broken_invariant(expected: &str) {
    warning(&format!("internal fault: this does not hold: {expected}"));
}

fn write(level: &CStr, text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // By its own context the server knows the module of a message.
    let ctx = Ctx::own().map_or_else(|| LOAD.load(Ordering::Relaxed), Ctx::raw);
    // SAFETY: a context of the module's own, the one of the load, or none; the format takes the one string that follows it.
    unsafe {
        api!(RedisModule_Log(
            ctx,
            level.as_ptr(),
            c"%s".as_ptr(),
            text.as_ptr()
        ))
    }
}
