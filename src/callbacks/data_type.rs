//! The data type: how locks are saved, loaded, rewritten, digested and freed.

use super::HOOKS;
use crate::ffi::callbacks::data_type::{self as callbacks_type, methods, LoadContext, ModuleValue};
use crate::ffi::log;
use crate::ffi::memory::MainThread;
use crate::inbox::{self, Notice};
use crate::node::{census, clock, gate, timer};
use dlock_engine::lock::token;
use dlock_engine::refusal::newer_format;
use dlock_engine::{change, codec, Lock, NameRef};
use redis_module::native_types::RedisType;
use redis_module::raw;
use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of the encoding that the server keeps with a value. The bytes carry their own (see `codec`).
const ENCODING: i32 = 1;

/// The reply of TYPE for a lock.
pub(crate) const NAME: &str = "dlock-obj";

/// The type of a lock's value.
pub(crate) static LOCK_TYPE: RedisType = RedisType::new(NAME, ENCODING, methods::<Lock>());

/// Returns the server's handle of the type.
pub(crate) fn lock_type() -> *mut raw::RedisModuleType {
    *LOCK_TYPE.raw_type.borrow()
}

/// No server has ever handed out a lower number for a ticket: numbers are microseconds of the wall clock.
const FIRST_PLACE: u64 = 1 << 40;

/// Passes a lock to the server, which will free it.
pub(crate) fn into_raw(lock: Box<Lock>) -> *mut c_void {
    census::created(0);
    callbacks_type::into_raw(lock)
}

impl ModuleValue for Lock {
    const REWRITTEN_BY: &'static CStr = c"DLOCK.APPLY";

    /// Loads a value. A server trusts its own data, and its primary's. RESTORE is open to every user: it refuses a value that no
    /// healthy server could have written, and one that is beyond the caps of this server.
    fn load(from: &LoadContext, version: c_int) -> Option<Box<Lock>> {
        if version > ENCODING {
            report_newer_value(
                version.unsigned_abs().into(),
                ENCODING.unsigned_abs().into(),
            );
            return None;
        }
        let lock = decoded(&from.string()?)?;
        let believed =
            raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
        let from_a_user = from.ctx().flags() & believed == 0 && gate::primary();
        let numbers = || {
            lock.holds()
                .map(|hold| hold.token.0)
                .chain(lock.tickets().map(|(number, _)| number.0))
        };
        let now = clock::read();
        let plausible = lock.obeys_the_rule()
            && lock.has_distinct_tokens()
            && numbers().all(|number| token::plausible(number, now))
            && lock.tickets().all(|(number, _)| number.0 >= FIRST_PLACE);
        if from_a_user
            && !(plausible && HOOKS.get().is_some_and(|hooks| (hooks.has_room_for)(&lock)))
        {
            return None;
        }
        if let Some(latest) = numbers().max() {
            inbox::post_number(latest);
        }
        // A lock with one holder and no queue needs nothing but its key's TTL, which comes with it from a file; what
        // RESTORE brings has the TTL that the user gave. One whose leases are over would have gone by its TTL: a user has taken
        // that away.
        let over = lock.live_holders(now.wall()) == 0;
        if from_a_user || over || lock.needs_watch() {
            if let Some((db, key)) = from.name() {
                inbox::post(Notice::Brought(NameRef { db, key }.to_owned()));
            }
        }
        census::created(lock.holders());
        // The module's next event bounds the leases of a restored value. Leases from a file or a primary stay: their owners know
        // them.
        Some(Box::new(if from_a_user {
            lock.marked_restored()
        } else {
            lock
        }))
    }

    fn save(&self) -> Vec<u8> {
        if gate::in_cluster() {
            inbox::written(self);
        }
        codec::encode(self)
    }

    fn rewrite(&self) -> Vec<u8> {
        change::rebuild(self)
    }

    fn digest(&self) -> Vec<u8> {
        codec::encode(self)
    }

    fn bytes(&self) -> usize {
        Lock::bytes(self)
    }

    fn ignores_unlinks() -> bool {
        inbox::ignores_unlinks()
    }

    fn unlinked(&self, db: u32, key: &[u8]) {
        inbox::post_unlinked(NameRef { db, key }.to_owned(), self);
    }

    fn freed(self: Box<Lock>) {
        inbox::freed(&self);
        census::freed(self.holders());
        free_later(*self);
    }
}

/// Decodes a value, and reports one in a newer format.
fn decoded(value: &[u8]) -> Option<Lock> {
    if let Some(format) = codec::later(value) {
        report_newer_value(format.into(), codec::VERSION.into());
    }
    codec::decode(value)
}

/// Logs a value in a newer format, of a file, a primary or a RESTORE. The load fails: the server does not start, does not take its
/// primary's data, or answers an error. At most one line a second, since RESTORE is open to every user.
fn report_newer_value(format: u64, known: u64) {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let second = clock::read().steady_us / 1_000_000 + 1;
    if TOLD.swap(second, Ordering::Relaxed) != second {
        log::warning(&newer_format("a lock's value", format, known));
    }
}

/// The most holders and tickets of a value that is freed at once, and the most that one step frees of a larger one: less than a
/// millisecond.
const A_STEP: usize = 4096;

/// Values that have gone, with more holders and tickets than can be freed at once: a million take the main thread 0.2 s, after
/// DEL as after UNLINK.
static REMAINS: MainThread<Vec<Lock>> = MainThread::new(Vec::new());

/// Frees a value, or keeps it to be freed in steps. Another thread frees it at once, since nobody waits for that.
fn free_later(lock: Lock) {
    if lock.holders() + lock.tickets_len() <= A_STEP || !census::in_main_thread() {
        return;
    }
    if let Some(mut remains) = REMAINS.borrow() {
        remains.push(lock);
        drop(remains);
        timer::soon();
    }
}

/// Frees one step of the values that are left to be freed. Returns true if there is more.
pub(crate) fn free_step() -> bool {
    let Some(mut remains) = REMAINS.borrow() else {
        return false;
    };
    let Some(lock) = remains.last_mut() else {
        return false;
    };
    if lock.shed(A_STEP) {
        remains.pop();
    }
    !remains.is_empty()
}
