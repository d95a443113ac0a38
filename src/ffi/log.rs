//! The server's log. The crate's own functions hand the message over as a format, so that a `%n` in a lock's name
//! would bring the server down; here it is always an argument.

use crate::ffi::api::{api, Ctx};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A context of the module's own, by which the server knows whose message it is.
static CONTEXT: AtomicPtr<Ctx> = AtomicPtr::new(ptr::null_mut());

/// Takes the context to log in.
pub fn init(ctx: *mut Ctx) {
    CONTEXT.store(ctx, Ordering::Relaxed);
}

/// Something the operator should act on.
pub fn warning(text: &str) {
    write(c"warning", text);
}

/// Something the operator may want to know.
pub fn notice(text: &str) {
    write(c"notice", text);
}

/// Has panics written to the log: where the server runs as a daemon, nobody sees its standard error.
pub fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        warning(&format!("internal fault: {panic}"))
    }));
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
