//! A scan of the keys of a database, a few at a time.

use super::data_type::ModuleValue;
use crate::ffi::api::api;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use redis_module::raw::{
    self, RedisModuleCtx, RedisModuleKey, RedisModuleScanCursor, RedisModuleString,
};
use std::ffi::c_void;

/// A place in the keys of a database, which the server keeps.
pub(crate) struct Scan(*mut RedisModuleScanCursor);

/// What a step looks for, and what it does with it.
struct Step<'step, T> {
    kind: *mut raw::RedisModuleType,
    see: &'step mut dyn FnMut(&[u8], &T),
}

impl Scan {
    /// Begins with the first keys.
    pub(crate) fn begin() -> Scan {
        // SAFETY: `drop` frees it.
        Scan(unsafe { api!(RedisModule_ScanCursorCreate()) })
    }

    /// Passes the next few keys of the selected database whose values are of `kind`, the type of `T`, to `see`, which must not call
    /// the server. Returns true if there are more. A key that is there from the first step to the last is passed at least once.
    pub(crate) fn step<T: ModuleValue>(
        &mut self,
        ctx: Ctx,
        kind: *mut raw::RedisModuleType,
        see: &mut dyn FnMut(&[u8], &T),
    ) -> bool {
        let mut step = Step { kind, see };
        // SAFETY: a valid context and cursor; the callback gets the step, and is called within this call only.
        unsafe {
            api!(RedisModule_Scan(
                ctx.raw(),
                self.0,
                Some(seen::<T>),
                (&raw mut step).cast()
            )) != 0
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        // SAFETY: made by `begin`, and used by nobody else.
        unsafe { api!(RedisModule_ScanCursorDestroy(self.0)) };
    }
}

unsafe extern "C" fn seen<T: ModuleValue>(
    _: *mut RedisModuleCtx,
    name: *mut RedisModuleString,
    key: *mut RedisModuleKey,
    step: *mut c_void,
) {
    catch_panic(|| {
        // SAFETY: the step that `Scan::step` has passed. The name, the key and its value are the server's own, for the length of
        // this callback; a value of this type is a `T`.
        unsafe {
            let step = &mut *step.cast::<Step<T>>();
            if key.is_null() || api!(RedisModule_ModuleTypeGetType(key)) != step.kind {
                return;
            }
            let value = api!(RedisModule_ModuleTypeGetValue(key)).cast::<T>();
            if let Some(value) = value.as_ref() {
                (step.see)(Str::of(name).bytes(), value);
            }
        }
    });
}
