//! A data type of the module's: how its values are saved, loaded, rewritten, digested and freed.

use crate::ffi::api::api;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::catch_panic;
use crate::ffi::text::Str;
use dlock_engine::broken;
use redis_module::raw::{
    self, RedisModuleDigest, RedisModuleIO, RedisModuleKeyOptCtx, RedisModuleString,
};
use std::ffi::{c_int, c_void, CStr};
use std::marker::PhantomData;
use std::ptr;

/// The values of a data type.
pub(crate) trait ModuleValue: Sized + 'static {
    /// The command that a value is rewritten as in the AOF, after its key.
    const REWRITTEN_BY: &'static CStr;
    /// Reads a value; none makes the server report a corrupt one.
    fn load(from: &LoadContext, version: c_int) -> Option<Box<Self>>;
    /// Returns the value as one string.
    fn save(&self) -> Vec<u8>;
    /// Returns the value as the argument after its key in a command.
    fn rewrite(&self) -> Vec<u8>;
    /// Returns bytes that are equal for equal values.
    fn digest(&self) -> Vec<u8>;
    /// Returns how many bytes it takes.
    fn bytes(&self) -> usize;
    /// Notes that it leaves its name, in whatever way.
    fn unlinked(&self, db: u32, key: &[u8]);
    /// Returns true while values that leave their names are not reported.
    fn ignores_unlinks() -> bool;
    /// Frees it, on any thread: a flush frees whole databases in the background.
    fn freed(self: Box<Self>);
}

/// Returns the methods of a type for the server. `copy` is missing on purpose: COPY would give one token to two keys.
pub(crate) const fn methods<T: ModuleValue>() -> raw::RedisModuleTypeMethods {
    raw::RedisModuleTypeMethods {
        version: raw::REDISMODULE_TYPE_METHOD_VERSION as u64,
        rdb_load: Some(load::<T>),
        rdb_save: Some(save::<T>),
        aof_rewrite: Some(rewrite::<T>),
        free: Some(free::<T>),
        mem_usage: None,
        digest: Some(digest::<T>),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: Some(memory::<T>),
        free_effort2: Some(effort),
        unlink2: Some(unlinked::<T>),
        copy2: None,
        aux_save2: None,
    }
}

/// Passes a value to the server, which will free it: for a key of this type, and nothing else.
pub(crate) fn into_raw<T: ModuleValue>(value: Box<T>) -> *mut c_void {
    Box::into_raw(value).cast()
}

/// The source of a value that is loaded.
pub(crate) struct LoadContext<'event>(*mut RedisModuleIO, PhantomData<&'event ()>);

impl LoadContext<'_> {
    /// Reads the next string, as a copy; none if the bytes end too early.
    pub(crate) fn string(&self) -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the server reads a value of this type; the string is copied for the caller, who frees it.
        unsafe {
            let bytes = api!(RedisModule_LoadStringBuffer(self.0, &mut len));
            if bytes.is_null() {
                return None;
            }
            let copy = std::slice::from_raw_parts(bytes.cast::<u8>(), len).to_vec();
            api!(RedisModule_Free(bytes.cast()));
            (api!(RedisModule_IsIOError(self.0)) == 0).then_some(copy)
        }
    }

    /// Returns the context of the load.
    pub(crate) fn ctx(&self) -> Ctx<'_> {
        // SAFETY: the server's own, for the length of this callback.
        unsafe { Ctx::of(api!(RedisModule_GetContextFromIO(self.0)).cast()) }
    }

    /// Returns the database and the key of the value, if the server knows them.
    pub(crate) fn name(&self) -> Option<(u32, &[u8])> {
        // SAFETY: the key is the server's own, for the length of this callback.
        unsafe {
            let key = api!(RedisModule_GetKeyNameFromIO(self.0));
            let db = u32::try_from(api!(RedisModule_GetDbIdFromIO(self.0))).ok()?;
            (!key.is_null()).then(|| (db, Str::of(key.cast_mut()).bytes()))
        }
    }
}

/// Passes a value of this type to `work`, in a callback of the server's.
///
/// # Safety
/// `value` is null, or one of this type that nobody changes or frees for the length of the call.
unsafe fn with<T: ModuleValue, R: Default>(value: *const c_void, work: impl FnOnce(&T) -> R) -> R {
    // SAFETY: made by `into_raw` or `load`, and the caller's promise.
    match unsafe { value.cast::<T>().as_ref() } {
        Some(value) => work(value),
        None => {
            broken!("a key of the module's type has a value");
            R::default()
        }
    }
}

unsafe extern "C" fn load<T: ModuleValue>(io: *mut RedisModuleIO, version: c_int) -> *mut c_void {
    let value = catch_panic(|| T::load(&LoadContext(io, PhantomData), version));
    value.map_or(ptr::null_mut(), into_raw)
}

unsafe extern "C" fn save<T: ModuleValue>(io: *mut RedisModuleIO, value: *mut c_void) {
    let save = |value: &T| {
        let bytes = value.save();
        let (start, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the server writes to `io` and copies the bytes.
        unsafe { api!(RedisModule_SaveStringBuffer(io, start, len)) };
    };
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { with(value, save) });
}

/// Writes the value as one effect; the server itself adds the key's TTL.
unsafe extern "C" fn rewrite<T: ModuleValue>(
    io: *mut RedisModuleIO,
    key: *mut RedisModuleString,
    value: *mut c_void,
) {
    let rewrite = |value: &T| {
        let bytes = value.rewrite();
        // SAFETY: the server writes to `io`; the format takes the key, and the bytes and their number.
        unsafe {
            api!(RedisModule_EmitAOF(
                io,
                T::REWRITTEN_BY.as_ptr(),
                c"sb".as_ptr(),
                key,
                bytes.as_ptr().cast::<std::ffi::c_char>(),
                bytes.len()
            ));
        }
    };
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { with(value, rewrite) });
}

unsafe extern "C" fn digest<T: ModuleValue>(digest: *mut RedisModuleDigest, value: *mut c_void) {
    let add = |value: &T| {
        let bytes = value.digest();
        let (start, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the server's own digest; the bytes go into it.
        unsafe {
            api!(RedisModule_DigestAddStringBuffer(digest, start, len));
            api!(RedisModule_DigestEndSequence(digest));
        }
    };
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { with(value, add) });
}

unsafe extern "C" fn free<T: ModuleValue>(value: *mut c_void) {
    if value.is_null() {
        return;
    }
    // SAFETY: made by `into_raw` or `load`; the server frees it once, and does not use it afterwards.
    catch_panic(|| T::freed(unsafe { Box::from_raw(value.cast::<T>()) }));
}

unsafe extern "C" fn memory<T: ModuleValue>(
    _: *mut RedisModuleKeyOptCtx,
    value: *const c_void,
    _: usize,
) -> usize {
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { with(value, T::bytes) })
}

/// Returns that a value is cheap to free: large ones are freed in steps (`callbacks::data_type`). With a higher number the server
/// would free it in another thread, but the inbox recognises a removal, as opposed to a rename, by the free right after the
/// unlink. Cannot panic.
unsafe extern "C" fn effort(_: *mut RedisModuleKeyOptCtx, _: *const c_void) -> usize {
    1
}

unsafe extern "C" fn unlinked<T: ModuleValue>(
    ctx: *mut RedisModuleKeyOptCtx,
    value: *const c_void,
) {
    if T::ignores_unlinks() {
        return;
    }
    let unlinked = |value: &T| {
        // SAFETY: the server's own context, for the length of this call.
        unsafe {
            let key = api!(RedisModule_GetKeyNameFromOptCtx(ctx));
            let db = u32::try_from(api!(RedisModule_GetDbIdFromOptCtx(ctx)));
            if let (Ok(db), false) = (db, key.is_null()) {
                value.unlinked(db, Str::of(key.cast_mut()).bytes());
            }
        }
    };
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { with(value, unlinked) });
}
