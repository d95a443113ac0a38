//! The one way in for commands and events. [`run`] takes the state once, passes the inbox to the engine, lets it decide, and then
//! performs the outputs, in this order:
//!
//! 1. write the keys and replicate, lock by lock (`keyspace::write`): no client may learn of a change that has not happened yet;
//! 2. arm the timer for what is due next, while the state is still here to ask;
//! 3. with no borrow of the state, answer the waiters (`blocking`): the server may call back from within. Answers that
//!    replicas must confirm wait (`confirm`), and come here again;
//! 4. notify observers (`observers`) of each key's events, in order: the end of a hold before the next owner's `acquired`.
//!
//! The engine's outputs are in two places: the entries of the opened keys (1 and 4), and its outbox (3).
//! `engine/src/outbox.rs` has the reason.

use super::caller;
use super::keyspace::{Mode, Origin};
use super::state::{State, STATE};
use crate::ffi::ctx::Ctx;
use crate::inbox;
use crate::node::{gate, timer};
use crate::tell::{blocking, observers};
use dlock_engine::{Now, Receiver};
use std::cell::RefMut;

/// How long to wait before asking again whether changes are possible: the server does not report the begin or end of a pause.
pub(super) const RETRY_MS: u64 = 10;

/// Runs an event or a command: takes the state, lets `work` decide, performs the outputs. None if the state is borrowed already.
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
    // Opening an expired key deletes it; that deletion is reported before what this event did (see `Notifications`).
    while inbox::has_something() {
        state.read_inbox(now);
    }
    state.engine.tell_sessions(now);
    if state.engine.has_unseen_entries() {
        state
            .engine
            .note_origins(|client| caller::origin(ctx, client));
    }
    perform(ctx, guard, now);
    Some(result)
}

/// Performs the outputs, in the one order (see the top of this file).
#[inline(always)]
fn perform(ctx: Ctx, mut guard: RefMut<State>, now: Now) {
    let state = &mut *guard;
    state.keys.write(&mut state.notifications);
    if !state.engine.is_idle() {
        state.arm_timer(now);
    }
    if state.engine.has_outputs() || !state.notifications.is_empty() {
        tell(ctx, guard, now);
    }
}

/// Answers the waiters and tells observers, with no borrow of the state.
#[cold]
fn tell(ctx: Ctx, mut state: RefMut<State>, now: Now) {
    let (channel, home) = (state.settings.channel, state.keys.home());
    let mut notifications = std::mem::take(&mut state.notifications);
    let mut texts = std::mem::take(&mut state.texts);
    let outputs = state.engine.take_outputs();
    let confirms = state.engine.policy().confirms();
    drop(state);
    let mut answered = false;
    for output in outputs {
        if confirms && output.waits_for_replicas() {
            blocking::keep_unconfirmed(output, now);
            continue;
        }
        match output.to {
            // The rows of the session report it.
            Receiver::Session(_) | Receiver::Nobody => {}
            Receiver::Connection => {
                blocking::answer(output.id, output.outcome, output.pending.promises);
                answered = true;
            }
        }
    }
    if answered {
        blocking::deliver(ctx);
    }
    observers::tell(ctx, home, channel, &mut notifications, &mut texts);
    if let Some(mut state) = STATE.borrow() {
        (state.notifications, state.texts) = (notifications, texts);
    }
}

impl State {
    /// Arms the timer for what is due next.
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
