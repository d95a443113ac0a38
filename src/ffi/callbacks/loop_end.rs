//! A call back from where the server works off the connections that modules have unblocked: what a blocked call of the module's own
//! leaves behind is freed there, and its free callback runs (`servers::iteration_end`).

use crate::ffi::api::api;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use redis_module::raw::RedisModuleCtx;
use std::ffi::c_void;

impl Ctx<'_> {
    /// Blocks the command that runs, and unblocks it; `freed` is called once the server has freed what that leaves. Returns true
    /// if it will be.
    pub(crate) fn block_once(self, freed: fn()) -> bool {
        // SAFETY: a live context; the data is a function, which lives as long as the module.
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
