//! Whole-number settings, which are checked together once all that one CONFIG SET names are set: what is wrong may be a pair of them,
//! and the server sets and restores one after another.

use crate::ffi::api::{api, ERR, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Text;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CString};
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

/// A whole-number setting.
pub(crate) struct Setting {
    /// Its value now.
    pub value: &'static AtomicI64,
    /// Returns what is wrong with all settings as they are.
    pub check: fn() -> Result<(), &'static str>,
    /// Runs after each change of the value.
    pub changed: fn(),
}

/// Registers a setting under its name without the module's. The server keeps the value within the bounds.
pub(crate) fn register(
    ctx: Ctx,
    name: &str,
    default: i64,
    bounds: RangeInclusive<i64>,
    setting: Setting,
) {
    let name = CString::new(name).unwrap_or_default();
    let setting: &'static Setting = Box::leak(Box::new(setting));
    // SAFETY: a valid context; the server copies the name, and passes the setting, which is never freed, to the callbacks below.
    unsafe {
        api!(RedisModule_RegisterNumericConfig(
            ctx.raw(),
            name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT as c_uint,
            *bounds.start(),
            *bounds.end(),
            Some(get),
            Some(set),
            Some(apply),
            ptr::from_ref(setting).cast_mut().cast()
        ));
    }
}

/// # Safety
/// The pointer is a setting that was registered.
unsafe fn of(setting: *mut c_void) -> &'static Setting {
    // SAFETY: as the caller says; it is never freed.
    unsafe { &*setting.cast() }
}

unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { of(setting) };
    catch_panic(|| setting.value.load(Ordering::Relaxed))
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: as above.
    let setting = unsafe { of(setting) };
    catch_panic(|| {
        setting.value.store(value, Ordering::Relaxed);
        (setting.changed)();
        OK
    })
}

unsafe extern "C" fn apply(
    _ctx: *mut RedisModuleCtx,
    setting: *mut c_void,
    error: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: as above.
    let setting = unsafe { of(setting) };
    catch_panic(|| match (setting.check)() {
        Ok(()) => OK,
        Err(text) => {
            // SAFETY: the server frees the string.
            unsafe { *error = Text::new(text.as_bytes()).into_raw() };
            ERR
        }
    })
}
