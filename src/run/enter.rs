//! The one way in for whatever happens. [`run`] takes the state once, reads the clock once, hands the inbox to the
//! engine, lets it decide, and then performs what was decided, in this order:
//!
//! 1. write the keys and replicate, lock by lock (`keyspace::write`): nobody may be told of what is not yet so;
//! 2. arm the timer for what is due next, while the state is still here to ask;
//! 3. with no borrow of the state held any more, answer the waiters (`blocking`): the server may call back from within. What
//!    replicas are to confirm first is held back (`confirm`), and comes here again;
//! 4. tell observers (`observers`) of each key's events, in order: the end of a hold before the next owner's `acquired`;
//! 5. publish to those who wait by a channel (`reply`): last, since whoever hears it may rely on all of that.
//!
//! What the engine puts out comes from two places: the entries of the keys that were opened (1 and 4), and its outbox (3 and
//! 5). `engine/src/outbox.rs` says why these are two.

use super::keyspace::{Mode, Origin};
use super::state::{State, STATE};
use crate::ffi::ctx::Ctx;
use crate::inbox;
use crate::node::{gate, timer};
use crate::tell::{blocking, observers, reply};
use dlock_engine::Now;
use std::cell::RefMut;

/// How long to wait before asking again whether changes are possible (the server tells when a pause begins or ends to
/// nobody).
pub(super) const RETRY_MS: u64 = 10;

/// The one way in. Takes the state, lets `work` decide, performs what was decided. None if the state is borrowed already.
pub(super) fn run<T>(
    ctx: Ctx,
    mode: Mode,
    origin: Origin,
    now: Now,
    work: impl FnOnce(&mut State, Now) -> T,
) -> Option<T> {
    let mut guard = STATE.try_borrow_mut()?;
    let state = &mut *guard;
    state.refresh_settings();
    state.keys.begin(ctx, mode, origin);
    if inbox::has_something() {
        state.read_inbox(now);
    }
    let result = work(state, now);
    // A key that the event has opened may have been removed by that, since its time was over: this ended what stood there before
    // what the event has put there began, and its message comes first (see `notifications`).
    while inbox::has_something() {
        state.read_inbox(now);
    }
    perform(ctx, guard, now);
    Some(result)
}

/// Does what was decided, in the one order in which that is done (the top of this file says why).
#[inline(always)]
fn perform(ctx: Ctx, mut guard: RefMut<State>, now: Now) {
    let state = &mut *guard;
    state.keys.write(&mut state.notifications);
    state.arm(now);
    if state.engine.has_outputs() || !state.notifications.is_empty() {
        tell(ctx, guard, now);
    }
}

/// Answers the waiters, and tells observers and those who wait by a channel, with no borrow held.
#[cold]
fn tell(ctx: Ctx, mut state: RefMut<State>, now: Now) {
    let (channel, home) = (state.settings.channel, state.keys.home());
    let mut notifications = std::mem::take(&mut state.notifications);
    let mut texts = std::mem::take(&mut state.texts);
    let outputs = state.engine.take_outputs();
    let confirms = state.engine.policy().confirms();
    drop(state);
    let (mut answered, mut messages) = (false, Vec::new());
    for output in outputs {
        if confirms && output.waits_for_replicas() {
            blocking::hold(output, now);
            continue;
        }
        match output.message {
            Some(message) => messages.push((output.id, output.outcome, message)),
            None => {
                blocking::answer(output);
                answered = true;
            }
        }
    }
    if answered {
        blocking::deliver(ctx);
    }
    observers::tell(ctx, home, channel, &mut notifications, &mut texts);
    for (id, outcome, message) in &messages {
        reply::publish(ctx, *id, outcome, message);
    }
    if let Some(mut state) = STATE.borrow() {
        (state.notifications, state.texts) = (notifications, texts);
    }
}

impl State {
    /// Sees to it that the module's event comes when something is due.
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
        // A replica has nothing to settle until the server reports its promotion.
        if self.engine.unsettled() && gate::primary() {
            timer::arm(now.steady().after(RETRY_MS), now.steady());
        }
    }
}
