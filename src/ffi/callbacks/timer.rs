//! Timers of the server's.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use redis_module::raw::RedisModuleCtx;
use std::ffi::c_void;
use std::ptr;

/// What a timer calls, once.
pub(crate) type Work = fn(Ctx<'_>);

/// A timer that has not gone off, as far as its owner knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timer(u64);

impl Timer {
    /// Calls `work` after `ms` milliseconds.
    pub(crate) fn start(own: Ctx<'static>, wait_ms: u64, work: Work) -> Timer {
        // SAFETY: the context lives as long as the module; the data is a function, which does, too.
        Timer(unsafe {
            api!(RedisModule_CreateTimer(
                own.raw(),
                i64::try_from(wait_ms).unwrap_or(i64::MAX),
                Some(elapsed),
                work as *mut c_void
            ))
        })
    }

    /// Stops it. One that has gone off is passed over by the server.
    pub(crate) fn stop(self, own: Ctx<'static>) {
        // SAFETY: as above; the server looks the number up.
        let _ = unsafe { api!(RedisModule_StopTimer(own.raw(), self.0, ptr::null_mut())) } == OK;
    }
}

extern "C" fn elapsed(ctx: *mut RedisModuleCtx, work: *mut c_void) {
    // SAFETY: the context of this callback; the data is what `start` has given.
    let (ctx, work) = unsafe { (Ctx::of(ctx), std::mem::transmute::<*mut c_void, Work>(work)) };
    catch_panic(|| work(ctx));
}

/// Wakes the event loop, should it sleep.
pub(crate) fn wake_the_loop() {
    // SAFETY: a callback that needs nothing, and lives as long as the module, which is never unloaded.
    unsafe {
        api!(RedisModule_EventLoopAddOneShot(
            Some(woken),
            ptr::null_mut()
        ))
    };
}

/// Cannot panic.
extern "C" fn woken(_data: *mut c_void) {}
