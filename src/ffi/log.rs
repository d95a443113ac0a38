//! The server's log. The crate's own functions pass the message as a format, so that a `%n` in a lock's name would crash the
//! server; here it is always an argument.

use super::api::api;
use super::ctx::Ctx;
use redis_module::raw::RedisModuleCtx;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A context of the module's own, by which the server knows the module of a message.
static CONTEXT: AtomicPtr<RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Logs in the module's own context from now on.
pub(crate) fn init() {
    let own = Ctx::own().map_or(ptr::null_mut(), Ctx::raw);
    CONTEXT.store(own, Ordering::Relaxed);
}

/// Logs in this context during the load, and from then on in what `init` was given, if the load has come that far.
pub(crate) fn during_load<T>(ctx: Ctx, load: impl FnOnce() -> T) -> T {
    CONTEXT.store(ctx.raw(), Ordering::Relaxed);
    let loaded = load();
    // The context ends with the load.
    let _ = CONTEXT.compare_exchange(
        ctx.raw(),
        ptr::null_mut(),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
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
    let ctx = CONTEXT.load(Ordering::Relaxed);
    // SAFETY: a context of the module's own, or none; the format takes the one string that follows it.
    unsafe {
        api!(RedisModule_Log(
            ctx,
            level.as_ptr(),
            c"%s".as_ptr(),
            text.as_ptr()
        ))
    }
}
