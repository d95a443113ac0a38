//! Blocked connections, and the server's callbacks for them.
//!
//! The server keeps one number with each, by which `Waits` finds its state.

use crate::ffi::api::{api, OK};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use redis_module::raw::{self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr;

/// Handles the server's callbacks for blocked connections.
pub(crate) trait Waits: 'static {
    /// Writes the answer: the connection was unblocked, by the module or by CLIENT UNBLOCK TIMEOUT.
    fn reply(ctx: Ctx, id: u64);
    /// Notes that the connection has ended before the server has sent its answer, or that CLIENT UNBLOCK ERROR has answered it. A
    /// reply that is written is dropped.
    fn disconnected(id: u64);
    /// Notes that the server has freed it: no callback follows.
    fn freed(id: u64);
}

/// A blocked connection whose end has not been reported (`Waits::disconnected`).
#[derive(Debug)]
pub(crate) struct Handle<W>(*mut RedisModuleBlockedClient, PhantomData<W>);

impl<W: Waits> Handle<W> {
    /// Blocks the calling connection, on a key if there is one, without a time-out. None if the server does not block it.
    pub(crate) fn block(ctx: Ctx, key: Option<Str>, id: NonZeroU64) -> Option<Handle<W>> {
        let mut keys = [key.map_or(ptr::null_mut(), Str::raw)];
        // SAFETY: a valid context; the data is a number and no pointer that anybody follows.
        let client = unsafe {
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
        if client.is_null() {
            return None;
        }
        let handle = Handle(client, PhantomData);
        handle.set_disconnect_callback();
        Some(handle)
    }

    /// Unblocks it: the server asks for its answer later in this iteration of its loop. It must not have ended. The server has
    /// reset its disconnect callback by then, so it is set again.
    pub(crate) fn unblock(self) {
        // SAFETY: the connection is blocked, and not unblocked, since that takes the handle; the server keeps it until it has
        // worked it off.
        unsafe { api!(RedisModule_UnblockClient(self.0, ptr::null_mut())) };
        self.set_disconnect_callback();
    }

    fn set_disconnect_callback(&self) {
        // SAFETY: as above.
        unsafe {
            api!(RedisModule_SetDisconnectCallback(
                self.0,
                Some(disconnected::<W>)
            ))
        };
    }
}

/// Answers that the key serves nothing: nobody ever creates it. Cannot panic.
extern "C" fn pass(_: *mut RedisModuleCtx, _: *mut *mut RedisModuleString, _: c_int) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

/// Returns the number of the connection that a callback is about.
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
