//! Requests for a resynchronisation (PSYNC, SYNC), which `DLOCK.SYNC` answers while this server serves no replicas.
//!
//! A command filter gets a request before the server does. So no part of a copy leaves, by whatever connection the server would
//! have sent it. The server calls a filter for every command: it is registered only while it is needed.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::{Str, Text};
use dlock_engine::broken;
use redis_module::raw;
use std::ffi::c_int;

/// The command that answers.
const ANSWER: &[u8] = b"dlock.sync";

/// The filter, while it is registered.
static FILTER: MainThread<Option<*mut raw::RedisModuleCommandFilter>> = MainThread::new(None);

/// Refuses such requests from now on, or leaves them to the server.
pub(crate) fn refuse(wanted: bool) {
    let (Some(mut filter), Some(own)) = (FILTER.borrow(), Ctx::own()) else {
        return;
    };
    match *filter {
        None if wanted => {
            // SAFETY: a context and a callback that live as long as the module.
            let registered = unsafe {
                api!(RedisModule_RegisterCommandFilter(
                    own.raw(),
                    Some(answer_instead),
                    raw::REDISMODULE_CMDFILTER_NOSELF as c_int
                ))
            };
            *filter = (!registered.is_null()).then_some(registered);
        }
        Some(registered) if !wanted => {
            *filter = None;
            // SAFETY: what the server has given, once. No filter calls this.
            if unsafe { api!(RedisModule_UnregisterCommandFilter(own.raw(), registered)) } != OK {
                broken!("the server knows its filter");
            }
        }
        _ => {}
    }
}

unsafe extern "C" fn answer_instead(command: *mut raw::RedisModuleCommandFilterCtx) {
    catch_panic(|| {
        // SAFETY: the command of this callback; there is no word beyond the last.
        let word = |position: c_int| unsafe {
            let string = api!(RedisModule_CommandFilterArgGet(command, position));
            (!string.is_null()).then(|| Str::of(string).bytes())
        };
        let name = word(0).unwrap_or_default();
        let full = name.eq_ignore_ascii_case(b"sync");
        if !full && !name.eq_ignore_ascii_case(b"psync") {
            return;
        }
        // A coordinated failover: this very command promotes the server, or the server refuses it.
        let promotes = word(3).is_some_and(|word| word.eq_ignore_ascii_case(b"failover"));
        if promotes && !full {
            return;
        }
        let answer = Text::new(ANSWER).into_raw();
        // SAFETY: the server takes the string over.
        unsafe { api!(RedisModule_CommandFilterArgReplace(command, 0, answer)) };
    });
}
