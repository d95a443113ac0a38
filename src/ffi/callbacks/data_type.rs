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
    /// Reads a value, if it can be: else the server takes it for a corrupt one.
    fn load(from: &LoadContext, version: c_int) -> Option<Box<Self>>;
    /// The value as one string.
    fn save(&self) -> Vec<u8>;
    /// The value as what follows its key in a command.
    fn rewrite(&self) -> Vec<u8>;
    /// What two equal values have in common.
    fn digest(&self) -> Vec<u8>;
    /// How many bytes it takes.
    fn bytes(&self) -> usize;
    /// It leaves its name, in whatever way.
    fn unlinked(&self, db: u32, key: &[u8]);
    /// Returns true if nobody wants to hear that values leave their names.
    fn ignores_unlinks() -> bool;
    /// It is freed. May come on any thread: a flush frees whole databases in the background.
    fn freed(self: Box<Self>);
}

/// What the server is given of a type. `copy` is missing on purpose: COPY would hand one token to two keys.
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

/// Makes a value the server's, which will free it: for a key of this type, and nothing else.
pub(crate) fn into_raw<T: ModuleValue>(value: Box<T>) -> *mut c_void {
    Box::into_raw(value).cast()
}

/// Where a value is read from.
pub(crate) struct LoadContext<'event>(*mut RedisModuleIO, PhantomData<&'event ()>);

impl LoadContext<'_> {
    /// What is read next, copied; none if the bytes end too early.
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

    /// The context of the load.
    pub(crate) fn ctx(&self) -> Ctx<'_> {
        // SAFETY: the server's own, for the length of this callback.
        unsafe { Ctx::of(api!(RedisModule_GetContextFromIO(self.0)).cast()) }
    }

    /// The database and the key that is loaded to, if the server tells it.
    pub(crate) fn name(&self) -> Option<(u32, &[u8])> {
        // SAFETY: the key is the server's own, for the length of this callback.
        unsafe {
            let key = api!(RedisModule_GetKeyNameFromIO(self.0));
            let db = u32::try_from(api!(RedisModule_GetDbIdFromIO(self.0))).ok()?;
            (!key.is_null()).then(|| (db, Str::of(key.cast_mut()).bytes()))
        }
    }
}

/// Works on a value of this type, in a callback of the server's.
///
/// # Safety
/// `value` is null, or one of this type that nobody changes or frees for the length of the call.
unsafe fn with<T: ModuleValue, R: Default>(value: *const c_void, work: impl FnOnce(&T) -> R) -> R {
    // SAFETY: made by `into_raw` or `load`, and the caller's promise.
    catch_panic(|| match unsafe { value.cast::<T>().as_ref() } {
        Some(value) => work(value),
        None => {
            broken!("a key of the module's type has a value");
            R::default()
        }
    })
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
    unsafe { with(value, save) };
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
    unsafe { with(value, rewrite) };
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
    unsafe { with(value, add) };
}

unsafe extern "C" fn free<T: ModuleValue>(value: *mut c_void) {
    if value.is_null() {
        return;
    }
    // SAFETY: made by `into_raw` or `load`; the server frees it once, and has it no more.
    catch_panic(|| T::freed(unsafe { Box::from_raw(value.cast::<T>()) }));
}

unsafe extern "C" fn memory<T: ModuleValue>(
    _: *mut RedisModuleKeyOptCtx,
    value: *const c_void,
    _: usize,
) -> usize {
    // SAFETY: the server's own value, for the length of this call.
    unsafe { with(value, T::bytes) }
}

/// Always cheap to free, since what is large goes in steps (`callbacks::data_type`). The server would free it in another thread if it
/// were told more, and only at once if it were told nothing: but the inbox tells a removal from a rename by the value being freed
/// right after it was unlinked. Cannot panic.
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
    unsafe { with(value, unlinked) };
}
