//! Later callbacks: by a timer of the server's, or where the server processes the clients that modules have unblocked. There it
//! frees a blocked call of the module's own, and runs its free callback (`servers`).

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use redis_module::raw::RedisModuleCtx;
use std::ffi::c_void;
use std::ptr;

/// A function that a timer calls, once.
pub(crate) type Work = fn(Ctx<'_>);

/// A timer that has not fired, as far as its owner knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timer(u64);

impl Timer {
    /// Calls `work` after `ms` milliseconds.
    pub(crate) fn start(own: Ctx<'static>, wait_ms: u64, work: Work) -> Timer {
        // SAFETY: the context lives as long as the module; so does the data, which is a function.
        Timer(unsafe {
            api!(RedisModule_CreateTimer(
                own.raw(),
                i64::try_from(wait_ms).unwrap_or(i64::MAX),
                Some(elapsed),
                work as *mut c_void
            ))
        })
    }

    /// Stops it. The server ignores one that has fired.
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

/// Does nothing: the event loop is awake by then. Cannot panic.
extern "C" fn woken(_data: *mut c_void) {}

impl Ctx<'_> {
    /// Blocks the command that runs, and unblocks it; `freed` is called once the server has freed the blocked client. Returns
    /// true if it will be.
    pub(crate) fn block_once(self, freed: fn()) -> bool {
        // SAFETY: a valid context; the data is a function, which lives as long as the module.
        unsafe {
            let handle = api!(RedisModule_BlockClient(
                self.raw(),
                None,
                None,
                Some(on_free),
                0
            ));
            if handle.is_null() {
                return false;
            }
            api!(RedisModule_UnblockClient(handle, freed as *mut c_void));
        }
        true
    }
}

extern "C" fn on_free(_ctx: *mut RedisModuleCtx, freed: *mut c_void) {
    // SAFETY: the data is what `block_once` has given.
    let freed = unsafe { std::mem::transmute::<*mut c_void, fn()>(freed) };
    catch_panic(freed);
}
