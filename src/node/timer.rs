//! The module's one timer, for the earliest deadline; and whether the server's event loop sleeps.

use crate::ffi::callbacks::timer::{wake_the_loop, Timer, Work};
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use crate::node::clock;
use crate::servers;
use dlock_engine::{Millis, SteadyMs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Set from the event before the event loop sleeps until the one after.
static ASLEEP: AtomicBool = AtomicBool::new(false);

/// Returns true if the event loop sleeps, or is finishing an iteration before it sleeps.
pub(crate) fn asleep() -> bool {
    ASLEEP.load(Ordering::Relaxed)
}

/// Notes whether the event loop sleeps, or is about to.
pub(crate) fn set_asleep(asleep: bool) {
    ASLEEP.store(asleep, Ordering::Relaxed);
}

/// Until when the server has read what had arrived, in milliseconds of the steady clock; and whether the engine waits for that.
/// After a stall, or a pause, what had arrived is read before anything ends for want of it. With `io-threads` the server's timers
/// come first.
static READ_UNTIL: AtomicU64 = AtomicU64::new(0);
static AWAITS_READ: AtomicBool = AtomicBool::new(false);

/// Since when the engine waits for that, and how long the server may take: where other threads read, the main thread gets what they
/// have read in a later iteration (Redis 8).
static AWAITED_SINCE: AtomicU64 = AtomicU64::new(0);
static READ_TAKES_MS: AtomicU64 = AtomicU64::new(0);
const IO_THREADS_TAKE_MS: Millis = 50;

/// Reads whether other threads read for the server: at load, and whenever its configuration changes.
pub(crate) fn refresh(ctx: Ctx) {
    let threads = ctx.setting(c"io-threads");
    let alone = threads.is_none_or(|threads| threads == "1");
    let takes = if alone { 0 } else { IO_THREADS_TAKE_MS };
    READ_TAKES_MS.store(takes, Ordering::Relaxed);
}

/// Returns until when the server has read what had arrived, as far as that was asked for.
pub(crate) fn read_until() -> SteadyMs {
    SteadyMs(READ_UNTIL.load(Ordering::Relaxed))
}

/// Asks for the next time at which the server has read what had arrived by now.
pub(crate) fn await_read(now: SteadyMs) {
    if !AWAITS_READ.swap(true, Ordering::Relaxed) {
        AWAITED_SINCE.store(now.0, Ordering::Relaxed);
    }
}

/// Notes that the server finishes an iteration: what had arrived when it began has been read, unless the server is paused.
pub(crate) fn note_read() {
    if !AWAITS_READ.load(Ordering::Relaxed) {
        return;
    }
    let now = clock::read().steady();
    let since = SteadyMs(AWAITED_SINCE.load(Ordering::Relaxed));
    if server::avoids_replica_traffic() {
        AWAITED_SINCE.store(now.0, Ordering::Relaxed);
    } else if now.since(since) >= READ_TAKES_MS.load(Ordering::Relaxed) {
        AWAITS_READ.store(false, Ordering::Relaxed);
        READ_UNTIL.store(now.0, Ordering::Relaxed);
        arm(now, now);
    }
}

/// The armed timer: its id, and when it fires.
struct Armed {
    timer: Option<(Timer, SteadyMs)>,
    // What it calls.
    event: Option<Work>,
    // During that call: the earliest time that it has asked for, if any. One timer is made for all.
    asked: Option<Option<SteadyMs>>,
}

/// The longest time that a timer is set for: a day. The server counts in microseconds, and one that overflows fires
/// at once for ever. Firing too early does no harm: the event sets the next.
const LONGEST_MS: Millis = 86_400_000;

static ARMED: MainThread<Armed> = MainThread::new(Armed {
    timer: None,
    event: None,
    asked: None,
});

/// Sets the module's event. Before that no timer is armed.
pub(crate) fn init(event: Work) {
    if let Some(mut armed) = ARMED.borrow() {
        armed.event = Some(event);
    }
}

/// Arms the timer so that the module's event comes at this time or earlier.
pub(crate) fn arm(at: SteadyMs, now: SteadyMs) {
    let Some(mut armed) = ARMED.borrow() else {
        return;
    };
    if let Some(asked) = &mut armed.asked {
        *asked = Some(asked.map_or(at, |earliest| earliest.min(at)));
        return;
    }
    let earlier = armed.timer.as_ref().is_some_and(|(_, fires)| *fires <= at);
    let Some(own) = Ctx::own().filter(|_| armed.event.is_some() && !earlier) else {
        return;
    };
    if let Some((timer, _)) = armed.timer.take() {
        timer.stop(own);
    }
    let wait = at.since(now).min(LONGEST_MS);
    armed.timer = Some((Timer::start(own, wait, elapsed), at));
    // The server computes how long it sleeps before it finishes an iteration: commands behind a wait that ended, and connections
    // that it closes. A timer that they make would wait until something else wakes it, for up to 1000/hz ms.
    if servers::before_sleep_precedes_unblocking() && asleep() {
        wake_the_loop();
    }
}

/// How late the timer may fire before that counts as a step of the wall clock.
const LATE_MS: Millis = 20;

/// Arms a timer again that should have fired: the server's timers follow the wall clock, and a step back has delayed them by as
/// much. Call it now and then, not from the timer's own callback.
pub(crate) fn catch_up() {
    let now = clock::read().steady();
    let late = ARMED.borrow().and_then(|mut armed| {
        let (timer, _) = armed.timer.take_if(|(_, at)| now.since(*at) >= LATE_MS)?;
        timer.stop(Ctx::own()?);
        Some(())
    });
    if late.is_some() {
        arm(now, now);
    }
}

/// Arms the timer so that the module's event comes as soon as the server is back in its loop.
pub(crate) fn soon() {
    let now = clock::read().steady();
    arm(now, now);
}

fn elapsed(ctx: Ctx) {
    let event = ARMED.borrow().and_then(|mut armed| {
        armed.timer = None;
        armed.asked = Some(None);
        armed.event
    });
    if let Some(event) = event {
        event(ctx);
    }
    let asked = ARMED.borrow().and_then(|mut armed| armed.asked.take());
    if let Some(at) = asked.flatten() {
        // The event may have taken its time: the server counts from now.
        arm(at, clock::read().steady());
    }
}
