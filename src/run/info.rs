//! The module's sections of INFO.

use crate::ffi::api::{self, api};
use crate::ffi::panic::catch_panic;
use crate::node::clock;
use crate::run::caller;
use crate::run::STATE;
use dlock_commands::stats;
use redis_module::raw::RedisModuleInfoCtx;
use std::ffi::{c_int, CString};

/// Adds the module's sections. For a crash report nothing is added: the state may be what crashed.
pub extern "C" fn report(ctx: *mut RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report == 0 {
        catch_panic(|| add_sections(ctx));
    }
}

fn add_sections(ctx: *mut RedisModuleInfoCtx) {
    let Some(mut state) = STATE.try_borrow_mut() else {
        return;
    };
    state.refresh_settings();
    for section in stats::sections(&state.engine, &caller::census(), clock::read()) {
        let name = CString::new(section.name).unwrap_or_default();
        // SAFETY: the server's own context of this call; names are copied.
        unsafe {
            // Refused if it was not asked for.
            if api!(RedisModule_InfoAddSection(ctx, name.as_ptr())) != api::OK {
                continue;
            }
            for field in section.fields {
                let name = CString::new(field.name).unwrap_or_default();
                api!(RedisModule_InfoAddFieldULongLong(
                    ctx,
                    name.as_ptr(),
                    field.value
                ));
            }
        }
    }
}
