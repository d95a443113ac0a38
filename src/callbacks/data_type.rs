//! The data type: how locks are saved, loaded, rewritten, digested and freed.

use crate::callbacks::hooks;
use crate::callbacks::remains;
use crate::ffi::api::{self, api};
use crate::ffi::panic::catch_panic;
use crate::node::census;
use crate::node::clock;
use crate::node::gate;
use crate::node::inbox;
use crate::node::newer_format;
use dlock_engine::lock::token;
use dlock_engine::{change, codec, Lock, Name, NameRef};
use redis_module::native_types::RedisType;
use redis_module::raw;
use redis_module::raw::{
    RedisModuleDigest, RedisModuleIO, RedisModuleKeyOptCtx, RedisModuleString,
};
use std::ffi::{c_int, c_void};
use std::ptr;

/// The version of the encoding that the server keeps beside a value. The bytes carry their own (see `codec`).
const ENCODING: i32 = 1;

/// What TYPE says of a lock.
pub const NAME: &str = "dlock-obj";

/// The type of a lock's value. `copy` is missing on purpose: COPY would hand one token to two keys.
pub static LOCK_TYPE: RedisType = RedisType::new(
    NAME,
    ENCODING,
    raw::RedisModuleTypeMethods {
        version: raw::REDISMODULE_TYPE_METHOD_VERSION as u64,
        rdb_load: Some(load),
        rdb_save: Some(save),
        aof_rewrite: Some(rewrite),
        free: Some(free),
        mem_usage: None,
        digest: Some(digest),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: Some(memory),
        free_effort2: Some(effort),
        unlink2: Some(unlinked),
        copy2: None,
        aux_save2: None,
    },
);

/// The type as the server knows it.
pub fn lock_type() -> *mut raw::RedisModuleType {
    *LOCK_TYPE.raw_type.borrow()
}

/// No server has ever handed out a lower number for a ticket: numbers are microseconds of the wall clock.
const FIRST_PLACE: u64 = 1 << 40;

/// Makes a lock the server's: a value that it will free.
pub fn give(lock: Box<Lock>) -> *mut c_void {
    census::given(0);
    Box::into_raw(lock).cast()
}

/// Reads a value, if it can be: else the answer is null, which the server takes for a corrupt one.
unsafe extern "C" fn load(io: *mut RedisModuleIO, version: c_int) -> *mut c_void {
    // SAFETY: the server reads a value of this type from `io`.
    let lock = catch_panic(|| unsafe { read(io, version) });
    lock.map_or(ptr::null_mut(), |lock| Box::into_raw(Box::new(lock)).cast())
}

/// Reads a value. A server that loads its own data, or its primary's, believes it; RESTORE is open to every user, so a
/// value that no healthy server could have written is refused there, and one that is beyond the caps of this one.
///
/// # Safety
/// The server reads a value of this type from `io`.
unsafe fn read(io: *mut RedisModuleIO, version: c_int) -> Option<Lock> {
    if version > ENCODING {
        newer_format::value(
            version.unsigned_abs().into(),
            ENCODING.unsigned_abs().into(),
        );
        return None;
    }
    // SAFETY: what is read is this type's, as the caller says.
    let lock = unsafe { decoded(io) }?;
    // SAFETY: as above: the context is the server's own.
    let flags = api::flags(unsafe { api!(RedisModule_GetContextFromIO(io)) });
    let believed = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    let from_a_user = flags & believed == 0 && gate::primary();
    let numbers = || {
        lock.holds()
            .map(|hold| hold.token.0)
            .chain(lock.tickets().map(|(number, _)| number.0))
    };
    let now = clock::read();
    let plausible = lock.obeys_the_rule()
        && numbers().all(|number| token::plausible(number, now))
        && lock.tickets().all(|(number, _)| number.0 >= FIRST_PLACE);
    if from_a_user && !(plausible && hooks::has_room_for(&lock)) {
        return None;
    }
    if let Some(latest) = numbers().max() {
        inbox::post_number(latest);
    }
    // A lock with one holder and no queue needs nothing but its key's TTL, which comes with it from a file; what
    // RESTORE brings has the TTL that the user gave.
    if from_a_user || lock.needs_watch() {
        // SAFETY: as above.
        if let Some(name) = unsafe { name_of(io) } {
            inbox::post_brought(name);
        }
    }
    census::given(lock.holders());
    // Its leases are bounded by the module's next event. What a server has told its owner is kept, whatever has been set since.
    Some(if from_a_user { lock.restored() } else { lock })
}

/// The lock that is read next; none if the bytes end too early, or are not a lock's.
///
/// # Safety
/// The server reads a value of this type from `io`.
unsafe fn decoded(io: *mut RedisModuleIO) -> Option<Lock> {
    let mut len = 0;
    // SAFETY: what `save` has written is one string; it is copied for the caller, who frees it.
    unsafe {
        let bytes = api!(RedisModule_LoadStringBuffer(io, &mut len));
        if bytes.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
            return None;
        }
        let value = std::slice::from_raw_parts(bytes.cast(), len);
        let (lock, format) = (codec::decode(value), codec::later(value));
        api::free(bytes.cast());
        if let Some(format) = format {
            newer_format::value(format.into(), codec::VERSION.into());
        }
        lock
    }
}

/// The name that is loaded to, if the server tells it.
///
/// # Safety
/// The server reads a value from `io`.
unsafe fn name_of(io: *mut RedisModuleIO) -> Option<Name> {
    // SAFETY: the name is the server's own, and copied.
    unsafe {
        let (key, db) = (
            api!(RedisModule_GetKeyNameFromIO(io)),
            api!(RedisModule_GetDbIdFromIO(io)),
        );
        let db = u32::try_from(db).ok()?;
        (!key.is_null()).then(|| {
            NameRef {
                db,
                key: api::bytes(key),
            }
            .to_owned()
        })
    }
}

/// A value of this type.
///
/// # Safety
/// `value` is null, or one of this type that nobody changes or frees during the callback.
unsafe fn lock_at<'a>(value: *const c_void) -> Option<&'a Lock> {
    // SAFETY: made by `give` or `load`, and the caller's promise.
    unsafe { value.cast::<Lock>().as_ref() }
}

unsafe extern "C" fn save(io: *mut RedisModuleIO, value: *mut c_void) {
    catch_panic(|| {
        // SAFETY: the server's own value, for the length of this call.
        let Some(lock) = (unsafe { lock_at(value) }) else {
            return;
        };
        if gate::in_cluster() {
            inbox::written(lock);
        }
        let bytes = codec::encode(lock);
        // SAFETY: the server writes to `io` and copies the bytes.
        unsafe {
            api!(RedisModule_SaveStringBuffer(
                io,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
        }
    });
}

/// Writes the value as one effect; the server itself adds the key's TTL.
unsafe extern "C" fn rewrite(
    io: *mut RedisModuleIO,
    key: *mut RedisModuleString,
    value: *mut c_void,
) {
    catch_panic(|| {
        // SAFETY: the server's own value, for the length of this call.
        let Some(lock) = (unsafe { lock_at(value) }) else {
            return;
        };
        let effect = change::rebuild(lock);
        let start = effect.as_ptr().cast::<std::ffi::c_char>();
        // SAFETY: the server writes to `io`; the format takes the key, and the bytes and their number.
        unsafe {
            api!(RedisModule_EmitAOF(
                io,
                c"DLOCK.APPLY".as_ptr(),
                c"sb".as_ptr(),
                key,
                start,
                effect.len()
            ));
        }
    });
}

unsafe extern "C" fn digest(digest: *mut RedisModuleDigest, value: *mut c_void) {
    catch_panic(|| {
        // SAFETY: the server's own value, for the length of this call.
        let Some(lock) = (unsafe { lock_at(value) }) else {
            return;
        };
        let bytes = codec::encode(lock);
        // SAFETY: the server's own digest; the bytes go into it.
        unsafe {
            api!(RedisModule_DigestAddStringBuffer(
                digest,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
            api!(RedisModule_DigestEndSequence(digest));
        }
    });
}

/// May run on any thread: a flush frees whole databases in the background.
unsafe extern "C" fn free(value: *mut c_void) {
    let value = value.cast::<Lock>();
    if value.is_null() {
        return;
    }
    catch_panic(|| {
        inbox::freed(value);
        // SAFETY: made by `give` or `load`; the server frees it once, and has it no more.
        let lock = unsafe { Box::from_raw(value) };
        census::freed(lock.holders());
        remains::bury(*lock);
    });
}

unsafe extern "C" fn memory(
    _ctx: *mut RedisModuleKeyOptCtx,
    value: *const c_void,
    _samples: usize,
) -> usize {
    // SAFETY: the server's own value, for the length of this call.
    catch_panic(|| unsafe { lock_at(value) }.map_or(0, Lock::bytes))
}

/// Always cheap to free, since what is large goes in steps (see `remains`). The server would free it in another thread if it were
/// told more, and only at once if it were told nothing: but the inbox tells a removal from a rename by the value being freed
/// right after it was unlinked.
/// Cannot panic, so it needs no `catch_panic`.
unsafe extern "C" fn effort(_ctx: *mut RedisModuleKeyOptCtx, _value: *const c_void) -> usize {
    1
}

/// A value leaves its name, in whatever way.
unsafe extern "C" fn unlinked(ctx: *mut RedisModuleKeyOptCtx, value: *const c_void) {
    // The module needs no notice of its own deletion.
    if inbox::ignores_unlinks() {
        return;
    }
    catch_panic(|| {
        // SAFETY: the server's own context and value, for the length of this call; the name is copied.
        unsafe {
            let key = api!(RedisModule_GetKeyNameFromOptCtx(ctx));
            let db = u32::try_from(api!(RedisModule_GetDbIdFromOptCtx(ctx)));
            let (Some(lock), Ok(db), false) = (lock_at(value), db, key.is_null()) else {
                return;
            };
            let key = api::bytes(key);
            inbox::post_unlinked(NameRef { db, key }.to_owned(), lock, hooks::cut);
        }
    });
}
