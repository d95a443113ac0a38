//! One timer of the server, for the earliest thing that is due.

use crate::ffi::api::{api, Ctx};
use crate::ffi::cell::MainThread;
use crate::node::clock;
use crate::node::event_loop;
use crate::servers::quirks;
use dlock_engine::{Millis, SteadyMs};
use std::ffi::c_void;
use std::ptr;

/// The armed timer: its id, and when it goes off.
struct Armed {
    ctx: *mut Ctx,
    timer: Option<(u64, SteadyMs)>,
    // What is called when it goes off.
    event: Option<fn(*mut Ctx)>,
}

/// The longest time that a timer is set for: a day. The server counts in microseconds, and one that overflows is due
/// at once for ever. Going off too early does no harm: the event sets the next.
const LONGEST_MS: Millis = 86_400_000;

static ARMED: MainThread<Armed> = MainThread::new(Armed {
    ctx: ptr::null_mut(),
    timer: None,
    event: None,
});

/// Takes the context that timers are made in: one of the module's own, since callbacks may have none; and the module's event.
pub fn init(own: *mut Ctx, event: fn(*mut Ctx)) {
    if let Some(mut armed) = ARMED.try_borrow_mut() {
        armed.ctx = own;
        armed.event = Some(event);
    }
}

/// Sees to it that the module's event comes at `at` or earlier.
pub fn arm(at: SteadyMs, now: SteadyMs) {
    let Some(mut armed) = ARMED.try_borrow_mut() else {
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
        let wait = at.since(now).min(LONGEST_MS) as i64;
        let id = api!(RedisModule_CreateTimer(
            armed.ctx,
            wait,
            Some(elapsed),
            ptr::null_mut()
        ));
        armed.timer = Some((id, at));
    }
    // The server has decided for how long it sleeps before it works off the last of a turn: commands behind a wait that ended,
    // and connections that it closes. A timer that they make would wait until something else wakes it, for up to 1000/hz ms.
    if quirks::tells_of_sleep() && event_loop::asleep() {
        wake_the_loop();
    }
}

/// How much later than armed the timer may go off before that is put down to a step of the wall clock.
const LATE_MS: Millis = 20;

/// Arms a timer anew that should have gone off: the server's timers follow the wall clock, and one that stepped back has put
/// them off by as much. To be called now and then, not from the timer's own callback.
pub fn catch_up() {
    let now = clock::read().steady();
    let late = ARMED.try_borrow_mut().and_then(|mut armed| {
        let (id, at) = armed.timer.filter(|(_, at)| now.since(*at) >= LATE_MS)?;
        armed.timer = None;
        // SAFETY: the id is of a timer that has not gone off, since its callback takes it out before anything else.
        unsafe { api!(RedisModule_StopTimer(armed.ctx, id, ptr::null_mut())) };
        Some(at)
    });
    if late.is_some() {
        arm(now, now);
    }
}

#[cold]
fn wake_the_loop() {
    // SAFETY: a callback that needs nothing, and lives as long as the module, which is never unloaded.
    unsafe {
        api!(RedisModule_EventLoopAddOneShot(
            Some(woken),
            ptr::null_mut()
        ))
    };
}

extern "C" fn woken(_data: *mut c_void) {}

/// Sees to it that the module's event comes as soon as the server is back in its loop.
pub fn soon() {
    let now = clock::read().steady();
    arm(now, now);
}

extern "C" fn elapsed(ctx: *mut Ctx, _data: *mut c_void) {
    crate::ffi::panic::catch_panic(|| {
        let event = ARMED.try_borrow_mut().and_then(|mut armed| {
            armed.timer = None;
            armed.event
        });
        if let Some(event) = event {
            event(ctx);
        }
    });
}
