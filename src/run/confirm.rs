//! Looking what replicas have confirmed, and telling what waits for that (`dlock.replicas`): one look and one question to the
//! replicas for all answers of a turn of the event loop.

use super::enter;
use super::keyspace::{Mode, Origin};
use super::state::{State, STATE};
use crate::ffi::call::Rules;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::poisoned;
use crate::ffi::server;
use crate::node::{clock, gate, timer};
use crate::replicas;
use crate::settings::clauses::{self, Clause};
use crate::settings::config;
use crate::tell::confirm::{self, PendingReply};
use dlock_engine::{broken, NoAck, Now, Outcome, Refusal, SteadyMs};

/// The event loop is about to sleep: the effects of all that was decided are in the stream.
pub(super) fn look(ctx: Ctx) {
    let waiting = confirm::waiting() > 0;
    if poisoned() || !(waiting || replicas::has_changed()) {
        return;
    }
    let now = clock::read();
    let steady = now.steady();
    if replicas::look(ctx, steady) {
        // Replicas from the time as a primary. The server writes to its clients after this hook, so nothing more leaves by their
        // links.
        replicas::on_refused();
        drop(ctx.call(c"CLIENT", Rules::NONE, [b"KILL", b"TYPE", b"replica"]));
    }
    heed_replicas(steady);
    replicas::report(steady);
    if !waiting || !gate::primary() {
        return;
    }
    confirm::stamp(replicas::offset());
    let acknowledged = match replicas::status(steady).needed {
        0 => u64::MAX,
        needed => replicas::acknowledged_by(needed, steady),
    };
    let confirmed = confirm::take_confirmed(acknowledged);
    let most = confirm::most_needed();
    // What reaches replicas while the server is paused brings it down.
    if most.is_some_and(|most| !server::must_hold_back() && replicas::ask(acknowledged, most)) {
        ctx.ask_replicas();
    }
    if !confirmed.is_empty() {
        let told = enter::run(ctx, Mode::Read, Origin::Event, now, |state, now| {
            confirmed
                .into_iter()
                .for_each(|held| state.confirmed(held, now));
        });
        if told.is_none() {
            broken!("nothing is worked off while the event loop is about to sleep");
        }
    }
}

/// Has the settings read anew where other numbers of replicas are needed, or count, than the engine goes by. When that may change
/// next by itself the module's event comes.
pub(super) fn heed_replicas(now: SteadyMs) {
    let Some(state) = STATE.try_borrow_mut() else {
        return;
    };
    let (policy, replicas) = (state.engine.policy(), replicas::status(now));
    let known = (policy.replicas_needed, policy.replicas_counting);
    if known != (replicas.needed, replicas.counting) {
        config::changed();
    }
    if let Some(at) = replicas::next_to_count(now) {
        timer::arm(at, now);
    }
}

impl State {
    /// Sends an answer that replicas have confirmed, if what it promises still holds.
    fn confirmed(&mut self, held: PendingReply, now: Now) {
        let promises = &held.output.pending.promises;
        let (engine, keys) = (&mut self.engine, &mut self.keys);
        let mut promised = promises.iter();
        let stands = promised.all(|promise| engine.stands(keys, now, promise))
            || !clauses::stands(Clause::EndedNotConfirmed);
        if !stands {
            return self.not_confirmed(held, NoAck::Ended);
        }
        let took_us = now.steady_us.saturating_sub(held.since_us);
        engine.confirmed(promises, took_us);
        let mut output = held.output;
        output.pending.confirmed = true;
        if let Outcome::Keeps { client, first_end } = output.outcome {
            // What was renewed since is not confirmed.
            let mut kept = engine.kept(now, client);
            kept.first_end = kept.first_end.min(first_end.or(kept.first_end));
            output.outcome = Outcome::Kept(kept);
        }
        engine.put_out(output);
    }

    /// Refuses an answer that was not confirmed in time.
    fn not_confirmed(&mut self, held: PendingReply, why: NoAck) {
        let (output, pending) = held.tell(Outcome::Refused(Refusal::NoAck(why)));
        self.engine.not_confirmed(pending.promises);
        self.engine.put_out(output);
    }

    /// The time of these answers is up.
    pub(super) fn time_out_unconfirmed(&mut self, now: Now) {
        for held in confirm::take_overdue(now.steady()) {
            let late = confirm::too_late(held.needs, now.steady());
            self.not_confirmed(held, late);
        }
    }

    /// Refuses the answers that wait for a confirmation by a channel: the server decides no longer.
    pub(super) fn abandon_unconfirmed(&mut self) {
        for held in confirm::take_published() {
            let (output, _) = held.tell(Outcome::Moved);
            self.engine.put_out(output);
        }
    }
}
