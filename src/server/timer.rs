//! One timer of the server, for the earliest thing that is due.

use super::api::{api, Ctx};
use super::cell::MainThread;
use super::clock;
use crate::engine::Millis;
use std::ffi::c_void;
use std::ptr;

/// The armed timer: its id, and when it goes off.
struct Armed {
    ctx: *mut Ctx,
    timer: Option<(u64, Millis)>,
}

/// The longest time that a timer is set for: a day. The server counts in microseconds, and one that overflows is due
/// at once for ever. Going off too early does no harm: the event sets the next.
const LONGEST_MS: u64 = 86_400_000;

static ARMED: MainThread<Armed> = MainThread::new(Armed {
    ctx: ptr::null_mut(),
    timer: None,
});

/// Takes the context that timers are made in: one of the module's own, since callbacks may have none.
pub fn init(own: *mut Ctx) {
    if let Some(mut armed) = ARMED.lend() {
        armed.ctx = own;
    }
}

/// Sees to it that the module's event comes at `at` or earlier.
pub fn arm(at: Millis, now: Millis) {
    let Some(mut armed) = ARMED.lend() else {
        return;
    };
    if armed.ctx.is_null() || armed.timer.is_some_and(|(_, earlier)| earlier <= at) {
        return;
    }
    // SAFETY: the context lives as long as the module; the id is of a timer that has not gone off, since the callback
    // takes it out before anything else.
    unsafe {
        if let Some((id, _)) = armed.timer.take() {
            api!(RedisModule_StopTimer(armed.ctx, id, ptr::null_mut()));
        }
        let wait = at.saturating_sub(now).min(LONGEST_MS) as i64;
        let id = api!(RedisModule_CreateTimer(
            armed.ctx,
            wait,
            Some(elapsed),
            ptr::null_mut()
        ));
        armed.timer = Some((id, at));
    }
}

/// Sees to it that the module's event comes as soon as the server is back in its loop.
pub fn soon() {
    let now = clock::wall().ms();
    arm(now, now);
}

extern "C" fn elapsed(ctx: *mut Ctx, _data: *mut c_void) {
    super::door(|| {
        if let Some(mut armed) = ARMED.lend() {
            armed.timer = None;
        }
        super::event(ctx);
    });
}
