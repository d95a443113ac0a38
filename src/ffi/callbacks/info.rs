//! INFO: the module's sections.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use redis_module::raw::RedisModuleInfoCtx;
use std::ffi::{c_int, CString};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// The output of INFO.
pub(crate) struct Report<'event>(*mut RedisModuleInfoCtx, PhantomData<&'event ()>);

impl Report<'_> {
    /// Begins a section. Returns false if it was not asked for.
    pub(crate) fn section(&mut self, name: &str) -> bool {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the server's own context of this call; the name is copied.
        unsafe { api!(RedisModule_InfoAddSection(self.0, name.as_ptr())) == OK }
    }

    /// Adds a field to the section that was begun last.
    pub(crate) fn field(&mut self, name: &str, value: u64) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: as above.
        unsafe {
            api!(RedisModule_InfoAddFieldULongLong(
                self.0,
                name.as_ptr(),
                value
            ))
        };
    }
}

/// A function that adds the sections.
pub(crate) type Write = fn(Report<'_>);

static WRITE: OnceLock<Write> = OnceLock::new();

/// Calls `write` for each INFO from now on.
pub(crate) fn register(ctx: Ctx, write: Write) {
    // A second load brings the same.
    let _ = WRITE.set(write);
    // SAFETY: the context of the load; the callback lives as long as the module, which is never unloaded from here on.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report))) };
}

/// Adds the sections, except to a crash report: the state may be what crashed.
extern "C" fn report(ctx: *mut RedisModuleInfoCtx, for_crash_report: c_int) {
    let write = WRITE.get().filter(|_| for_crash_report == 0);
    if let Some(write) = write {
        catch_panic(|| write(Report(ctx, PhantomData)));
    }
}
