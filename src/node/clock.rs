//! The clocks: the wall clock, which leases follow, and one that never steps, by which waits and claim windows last. They are
//! read once an event; within MULTI and scripts they do not advance.
//!
//! Where the server does not give modules its own time, a reading costs as much as a lookup in the keyspace. So one
//! reading serves the commands of one iteration of the event loop for as long as the processor's counter, which costs a
//! fifth, has hardly moved since. The counter decides on nothing else: one that jumps, steps back or runs at another rate
//! after a migration brings a reading too many, or one that is some fractions of a millisecond old.

use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use dlock_engine::Now;
use redis_module::raw;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The time of a command that ran within MULTI or a script, for those that follow it there: the iteration of the event loop and the
/// client for which it was read, and the time.
struct Frozen {
    iteration: u64,
    within: (u64, u64),
    now: Now,
}

static FROZEN: MainThread<Frozen> = MainThread::new(Frozen {
    iteration: 1,
    within: (0, 0),
    now: Now {
        us: 0,
        steady_us: 0,
    },
});

/// The last reading of the clocks in this iteration of the event loop, and the processor's counter at that moment.
static LAST: MainThread<Option<(u64, Now)>> = MainThread::new(None);

/// How many ticks of the processor's counter a reading serves: 65 to 260 us at 4 to 1 GHz.
const CACHE_TICKS: u64 = 1 << 18;

lazy_static::lazy_static! {
    /// Where the steady clock begins.
    static ref BEGAN: Instant = Instant::now();
}

/// Reads the clocks.
#[inline(never)]
pub(crate) fn read() -> Now {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = Now {
        us: since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()),
        steady_us: BEGAN.elapsed().as_micros() as u64,
    };
    // Every reading is kept, so that nothing in this iteration is decided by an earlier time than what came before it.
    if let (Some(mut last), Some(ticks)) = (LAST.borrow(), server::tsc()) {
        *last = Some((ticks, now));
    }
    now
}

/// Returns the time, to a fraction of a millisecond.
fn recent() -> Now {
    let last = LAST.borrow().and_then(|last| *last);
    match (last, server::tsc()) {
        (Some((then, now)), Some(ticks)) if ticks.wrapping_sub(then) < CACHE_TICKS => now,
        _ => read(),
    }
}

/// Returns the time of a command that may change locks: the server's own where it gives it.
#[inline(always)]
pub(crate) fn of_command() -> Now {
    match server::cached_time_us() {
        Some(us) => Now { us, ..recent() },
        None => recent(),
    }
}

/// Returns the time of a read-only command. It does not advance within MULTI and scripts, so that the result of a check there
/// holds for the commands that follow. Where the server does not give its own time, the first read in such a unit reads the clock
/// for all.
pub(crate) fn of_read(ctx: Ctx) -> Now {
    let within = raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
    if server::cached_time_us().is_some() || ctx.flags() & within == 0 {
        return of_command();
    }
    let client = ctx.client();
    let Some(mut frozen) = FROZEN.borrow() else {
        return read();
    };
    if frozen.within != (frozen.iteration, client) {
        frozen.within = (frozen.iteration, client);
        frozen.now = read();
    }
    frozen.now
}

/// Drops readings at the end of an iteration of the event loop: no MULTI or script lasts beyond it.
pub(crate) fn on_before_sleep() {
    if let Some(mut last) = LAST.borrow() {
        *last = None;
    }
    if let Some(mut frozen) = FROZEN.borrow() {
        frozen.iteration += 1;
    }
}
