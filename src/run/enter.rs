//! The one way in for whatever happens. [`run`] takes the state once, reads the clock once, hands the inbox to the
//! engine, lets it decide, and then performs what was decided, in this order:
//!
//! 1. write the keys and replicate, lock by lock (`keyspace::write`): nobody may be told of what is not yet so;
//! 2. arm the timer for what is due next;
//! 3. with no borrow of the state held any more, answer the waiters (`blocking`): the server may call back from within;
//! 4. tell observers (`observers`), and waiters by a channel (`notify`): last, since what they hear must be so by then.

use super::keyspace::{Mode, Origin};
use super::state::{Late, State, STATE};
use crate::ffi::ctx::Ctx;
use crate::node::{gate, inbox, timer};
use crate::tell::{blocking, notify, observers};
use dlock_engine::Now;
use std::cell::RefMut;

/// How long to wait before asking again whether changes are possible (the server tells when a pause begins or ends to
/// nobody).
pub const RETRY_MS: u64 = 10;

/// The one way in. Takes the state, lets `work` decide, performs what was decided. None if the state is borrowed already.
pub fn run<T>(
    ctx: Ctx,
    mode: Mode,
    origin: Origin,
    now: Now,
    work: impl FnOnce(&mut State, Now) -> T,
) -> Option<T> {
    let mut guard = STATE.try_borrow_mut()?;
    let state = &mut *guard;
    state.refresh_settings();
    state.told = 0;
    state.keys.begin(ctx, mode, origin);
    if inbox::has_something() {
        state.read_inbox(now);
    }
    let result = work(state, now);
    // A key that the event has opened may have been removed by that, since its time was over: this ended what stood there before
    // what the event has put there began, and is told first (see `notifications`).
    while inbox::has_something() {
        state.read_inbox(now);
    }
    let own = state.notifications.len();
    state.keys.write(&mut state.notifications);
    if !state.late.is_empty() {
        state
            .late
            .extend(state.notifications.put_off(own).map(Late::from));
    }
    state.arm(now);
    let ledger = &state.engine.ledger;
    if !(ledger.wakes.is_empty() && ledger.messages.is_empty() && state.notifications.is_empty()) {
        tell(ctx, guard);
    }
    Some(result)
}

/// Answers the waiters and tells observers, with no borrow held: the server may call back from within.
#[cold]
fn tell(ctx: Ctx, mut state: RefMut<State>) {
    let answered = !state.engine.ledger.wakes.is_empty();
    if answered {
        blocking::answer(&mut state.engine.ledger.wakes);
    }
    let (channel, home) = (state.settings.channel, state.keys.home());
    let mut notifications = std::mem::take(&mut state.notifications);
    let mut texts = std::mem::take(&mut state.texts);
    let mut messages = std::mem::take(&mut state.engine.ledger.messages);
    drop(state);
    if answered {
        blocking::deliver(ctx);
    }
    observers::tell(ctx, home, channel, &mut notifications, &mut texts);
    for message in messages.drain(..) {
        notify::publish(ctx, &message);
    }
    if let Some(mut state) = STATE.try_borrow_mut() {
        (state.notifications, state.texts) = (notifications, texts);
    }
}

impl State {
    /// Sees to it that the module's event comes when something is due.
    #[inline]
    fn arm(&mut self, now: Now) {
        if !self.engine.is_idle() {
            self.arm_timer(now);
        }
    }

    #[cold]
    fn arm_timer(&mut self, now: Now) {
        if let Some(wait) = self.engine.next_wakeup(now) {
            timer::arm(now.steady().after(wait), now.steady());
        }
        // A replica has nothing to settle until it is promoted, of which it is told.
        if self.engine.unsettled() && gate::primary() {
            timer::arm(now.steady().after(RETRY_MS), now.steady());
        }
    }
}
