//! The module's one timer, for the earliest deadline; and whether the server's event loop sleeps.

use crate::ffi::callbacks::timer::{wake_the_loop, Timer, Work};
use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use crate::node::clock;
use crate::servers;
use dlock_engine::{Millis, SteadyMs};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// What the server has read of what had arrived. After a stall, or a pause, that is read before anything ends for want of it. With
/// `io-threads` the server's timers come first.
struct Reading {
    // Until when what had arrived is read, as far as the engine has asked.
    until: SteadyMs,
    // Since when the engine waits for that, if it does.
    awaited_since: Option<SteadyMs>,
    // Whether the server was paused when it was asked last. It runs what it has kept back in the iteration after the one in which
    // the pause ends.
    paused: bool,
    // How long the server may take: where other threads read, the main thread gets what they have read in a later iteration
    // (Redis 8).
    takes_ms: Millis,
}

static READING: MainThread<Reading> = MainThread::new(Reading {
    until: SteadyMs(0),
    awaited_since: None,
    paused: false,
    takes_ms: 0,
});
const IO_THREADS_TAKE_MS: Millis = 50;

/// Reads whether other threads read for the server: at load, and whenever its configuration changes.
pub(crate) fn refresh(ctx: Ctx) {
    let threads = ctx.setting(c"io-threads");
    let alone = threads.is_none_or(|threads| threads == "1");
    if let Some(mut reading) = READING.borrow() {
        reading.takes_ms = if alone { 0 } else { IO_THREADS_TAKE_MS };
    }
}

/// Returns until when the server has read what had arrived, as far as that was asked for.
pub(crate) fn read_until() -> SteadyMs {
    READING
        .borrow()
        .map_or(SteadyMs(0), |reading| reading.until)
}

/// Asks for the next time at which the server has read what had arrived by now.
pub(crate) fn await_read(now: SteadyMs) {
    let awaits = |reading: &Reading| reading.awaited_since.is_some();
    if READING.borrow().is_none_or(|reading| awaits(&reading)) {
        return;
    }
    let paused = server::avoids_replica_traffic();
    if let Some(mut reading) = READING.borrow() {
        (reading.awaited_since, reading.paused) = (Some(now), paused);
    }
}

/// Notes that the server finishes an iteration: what had arrived when it began has been read, unless the server is paused, or was when
/// it was asked before.
pub(crate) fn note_read() {
    let Some(since) = READING.borrow().and_then(|reading| reading.awaited_since) else {
        return;
    };
    let now = clock::read().steady();
    let paused = server::avoids_replica_traffic();
    let Some(mut reading) = READING.borrow() else {
        return;
    };
    let was_paused = std::mem::replace(&mut reading.paused, paused);
    if paused || was_paused {
        reading.awaited_since = Some(now);
        drop(reading);
        if !paused {
            arm(now, now);
        }
    } else if now.since(since) >= reading.takes_ms {
        (reading.awaited_since, reading.until) = (None, now);
        drop(reading);
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
