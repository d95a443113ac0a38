//! Reading what replicas have confirmed, and sending the answers that wait for that (`dlock.replicas`): one reading and one
//! question to the replicas for all answers of an iteration of the event loop.

use super::enter;
use super::keyspace::{Mode, Origin};
use super::state::{State, STATE};
use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::poisoned;
use crate::ffi::server;
use crate::node::{clock, gate, timer};
use crate::replicas;
use crate::settings::config;
use crate::settings::rule::terms;
use crate::tell::confirm::{self, Unconfirmed};
use dlock_confirm::Links;
use dlock_engine::{broken, NoAck, Now, Outcome, Receiver, Refusal, SteadyMs};
use std::sync::atomic::{AtomicU64, Ordering};

/// When the server last read its connections while answers waited: milliseconds of the steady clock. What replicas had sent by then
/// is known.
static READ_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Sends the answers that replicas have confirmed, and refuses those whose time is up. Called before the event loop sleeps: the
/// effects of all decisions are in the stream.
///
/// A server may be late, so that a confirmation and the end of an answer's time come together. Then the confirmation counts: the time
/// of an answer is up when the server has read its connections once since then.
pub(super) fn check_unconfirmed(ctx: Ctx) {
    let waiting = confirm::waiting() > 0;
    if poisoned() || !(waiting || replicas::has_changed()) {
        return;
    }
    let now = clock::read();
    let steady = now.steady();
    let read_until = SteadyMs(READ_UNTIL.swap(steady.0, Ordering::Relaxed));
    if replicas::refresh(ctx, steady) {
        // Replicas from the time as a primary. The server writes to its clients after this hook, so their links carry nothing more.
        replicas::on_refused();
        drop(ctx.call(c"CLIENT", Rules::NONE, [b"KILL", b"TYPE", b"replica"]));
    }
    apply_replica_counts(steady);
    replicas::report(steady);
    if !waiting {
        return;
    }
    let confirmed = if gate::primary() {
        take_confirmed(ctx, steady)
    } else {
        Vec::new()
    };
    let overdue = confirm::take_overdue(read_until);
    if !(confirmed.is_empty() && overdue.is_empty()) {
        let told = enter::run(ctx, Mode::Read, Origin::Event, now, |state, now| {
            for answer in confirmed {
                state.confirmed(answer, now);
            }
            for answer in overdue {
                let late = confirm::too_late(answer.needs, now.steady());
                state.not_confirmed(answer, late);
            }
        });
        if told.is_none() {
            broken!("no event runs while the event loop is about to sleep");
        }
    }
}

/// Takes out the answers that replicas have confirmed, and asks them for what the others need.
fn take_confirmed(ctx: Ctx, now: SteadyMs) -> Vec<Unconfirmed> {
    let read = |links: &mut Links, terms: &_| (links.offset(), links.confirmed(terms, now.0));
    let (offset, until) = replicas::with(read);
    confirm::stamp(offset);
    let confirmed = confirm::take_confirmed(until);
    let most = confirm::most_needed();
    // A write to replicas while the server is paused would crash it.
    let asks = |most| {
        !server::avoids_replica_traffic() && replicas::with(|links, _| links.ask(until, most))
    };
    if most.is_some_and(asks) {
        ctx.ask_replicas();
    }
    confirmed
}

/// Renews the engine's policy if other numbers of replicas are needed, or count, than it has. Arms the timer for when another
/// replica begins to count.
pub(super) fn apply_replica_counts(now: SteadyMs) {
    let Some(state) = STATE.try_borrow_mut() else {
        return;
    };
    let (policy, replicas) = (state.engine.policy(), replicas::status(now));
    let known = (policy.replicas_needed, policy.replicas_counting);
    if known != (replicas.needed, replicas.counting) {
        config::changed();
    }
    if let Some(at) = replicas::with(|links, _| links.next_to_count(now.0)) {
        timer::arm(SteadyMs(at), now);
    }
}

impl State {
    /// Sends an answer that replicas have confirmed, if its promises still stand.
    fn confirmed(&mut self, answer: Unconfirmed, now: Now) {
        let promises = &answer.output.pending.promises;
        let (engine, keys) = (&mut self.engine, &mut self.keys);
        if answer.output.outcome == Outcome::Prolonged {
            return engine.prolonged(promises);
        }
        let mut promised = promises.iter();
        let stands = promised.all(|promise| engine.stands(keys, now, promise));
        if !terms().rule.sends(stands) {
            return self.not_confirmed(answer, NoAck::Ended);
        }
        let took_us = now.steady_us.saturating_sub(answer.since_us);
        engine.confirmed(promises, took_us);
        let mut output = answer.output;
        if let Receiver::Session(_) = output.to {
            return;
        }
        output.pending.confirmed = true;
        engine.push_output(output);
    }

    /// Refuses an answer that was not confirmed in time.
    fn not_confirmed(&mut self, answer: Unconfirmed, why: NoAck) {
        let mut output = answer.output;
        if output.outcome == Outcome::Prolonged {
            // Nobody waits for it, and later renewals ask for confirmations of their own.
            return;
        }
        output.outcome = Outcome::Refused(Refusal::NoAck(why));
        let promises = std::mem::take(&mut output.pending.promises);
        self.engine.not_confirmed(promises);
        if !matches!(output.to, Receiver::Session(_)) {
            self.engine.push_output(output);
        }
    }
}
