//! Connections that are blocked, and what the server asks and tells of them.
//!
//! The server keeps one number with each, by which `Waits` finds what it knows of it.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use redis_module::raw::{self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr;

/// Who knows the connections that are blocked.
pub(crate) trait Waits: 'static {
    /// The answer is to be written: the connection was unblocked, or CLIENT UNBLOCK TIMEOUT asks for it.
    fn reply(ctx: Ctx, id: u64);
    /// The connection has ended before the server has worked off its answer, or CLIENT UNBLOCK ERROR has answered it. What is
    /// written by then is dropped.
    fn disconnected(id: u64);
    /// The server has done with it: nothing comes any more.
    fn freed(id: u64);
}

/// A connection that is blocked and has not been told to have ended (`Waits::disconnected`).
#[derive(Debug)]
pub(crate) struct Handle<W>(*mut RedisModuleBlockedClient, PhantomData<W>);

impl<W: Waits> Handle<W> {
    /// Blocks the calling connection, on a key if there is one, without a time-out. None if the server does not let it wait.
    pub(crate) fn block(ctx: Ctx, key: Option<Str>, id: NonZeroU64) -> Option<Handle<W>> {
        let mut keys = [key.map_or(ptr::null_mut(), Str::raw)];
        // SAFETY: a live context; the data is a number and no pointer that anybody follows.
        let handle = unsafe {
            api!(RedisModule_BlockClientOnKeys(
                ctx.raw(),
                Some(pass),
                Some(reply::<W>),
                Some(free::<W>),
                0,
                keys.as_mut_ptr(),
                c_int::from(key.is_some()),
                id.get() as usize as *mut c_void
            ))
        };
        if handle.is_null() {
            return None;
        }
        let handle = Handle(handle, PhantomData);
        handle.hear_of_end();
        Some(handle)
    }

    /// Unblocks it: its answer is asked for when the server works it off, later in this iteration of its loop. It must not have
    /// ended. The server has made it forget whom to tell when it ends before that.
    pub(crate) fn unblock(self) {
        // SAFETY: the connection is blocked, and not unblocked, since that takes the handle; the server keeps it until it has
        // worked it off.
        unsafe { api!(RedisModule_UnblockClient(self.0, ptr::null_mut())) };
        self.hear_of_end();
    }

    fn hear_of_end(&self) {
        // SAFETY: as above.
        unsafe {
            api!(RedisModule_SetDisconnectCallback(
                self.0,
                Some(disconnected::<W>)
            ))
        };
    }
}

/// Nothing is ever served through the key, which nobody creates. Cannot panic.
extern "C" fn pass(_: *mut RedisModuleCtx, _: *mut *mut RedisModuleString, _: c_int) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

/// Which one a callback is about.
///
/// # Safety
/// A context of a blocked connection.
unsafe fn id(ctx: *mut RedisModuleCtx) -> u64 {
    // SAFETY: as the caller says; the data is a number.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) as usize as u64 }
}

extern "C" fn reply<W: Waits>(
    ctx: *mut RedisModuleCtx,
    _: *mut *mut RedisModuleString,
    _: c_int,
) -> c_int {
    // SAFETY: the context of this callback.
    catch_panic(|| unsafe { W::reply(Ctx::of(ctx), id(ctx)) });
    OK
}

extern "C" fn disconnected<W: Waits>(ctx: *mut RedisModuleCtx, _: *mut RedisModuleBlockedClient) {
    // SAFETY: the context of this callback.
    catch_panic(|| W::disconnected(unsafe { id(ctx) }));
}

extern "C" fn free<W: Waits>(_: *mut RedisModuleCtx, data: *mut c_void) {
    catch_panic(|| W::freed(data as usize as u64));
}
