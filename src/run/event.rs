//! The module's own event: something is due, or a callback has posted a notice.

use super::confirm::apply_replica_counts;
use super::enter::{self, RETRY_MS};
use super::keyspace::{Mode, Origin};
use super::notices::SETTLED_A_STEP;
use super::state::{State, RESTORED, STATE};
use crate::callbacks::data_type;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::poisoned;
use crate::ffi::{log, server};
use crate::inbox;
use crate::node::{clock, gate, timer};
use crate::replicas;
use crate::tell::observers::subscribers;
use crate::tell::{confirm, latency, replicate};
use dlock_engine::Now;
use std::cell::RefMut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long one step of the scan takes, and how long after it the next one comes: less than 5 ms of a second, however many names
/// and ties there are.
const SCAN_STEP: Duration = Duration::from_micros(75);
const SCAN_PAUSE_MS: u64 = 25;

/// Names and ties that are scanned between two readings of the clock.
const SCANNED_AT_ONCE: usize = 16;

/// How often the module checks what no callback reports: a step of the clock, the end of the last replica.
const CHECK_MS: u64 = 1000;

/// How often a primary of a cluster asks which slots are its own, unless its engine is idle: a slot can leave without a change of the
/// awaited keys, and the program of a session learns of it within a second.
const SLOTS_MS: u64 = 500;

/// Handles the module's own event.
pub(super) fn event(ctx: Ctx) {
    if poisoned() {
        return;
    }
    gate::on_event(ctx, clock::read().steady());
    // Whether changes are possible is asked only where there may be any: the question is a command of the server's, which MONITOR
    // and its statistics show.
    let open = has_work() && gate::open(ctx);
    let mode = if open { Mode::Write } else { Mode::Read };
    if replicas::on() {
        update_replicas(ctx);
    }
    let used = latency::processor_time();
    enter::run(ctx, mode, Origin::Event, clock::read(), |state, now| {
        // A lease or a wait that ended while the server was busy: the next in the queue had to wait longer.
        let late = state.engine.overdue(now);
        if late > 0 {
            latency::sample(c"dlock-late", Duration::from_millis(late));
        }
        // What prolongs a claim window or a session may have arrived and not been read yet. Their ends wait for that.
        state.engine.note_read(timer::read_until());
        if state.engine.awaits_read(now) {
            timer::await_read(now.steady());
        }
        let due = state.engine.tick(now);
        let more = due || (!open && state.engine.time_out(now));
        if now.steady() >= state.next_check {
            state.next_check = now.steady().after(CHECK_MS);
            if let Some(step) = state.engine.observe_clocks(now) {
                log::warning(&format!(
                    "the wall clock stepped by {step} ms; leases follow it"
                ));
            }
            replicate::refresh(ctx);
            state.watch_clock_lead(now);
            subscribers::refresh(ctx);
            state.engine.begin_scan();
        }
        timer::arm(state.next_check, now.steady());
        if gate::in_cluster() {
            if now.steady() >= state.next_slots {
                state.next_slots = now.steady().after(SLOTS_MS);
                state.refresh_slots(now);
            }
            timer::arm(state.next_slots, now.steady());
        }
        if open && now.steady() >= state.next_scan {
            state.next_scan = now.steady().after(SCAN_PAUSE_MS);
            if state.scan(now) {
                timer::arm(state.next_scan, now.steady());
            }
        }
        if state.search_step(now) {
            timer::arm(state.search.next_step, now.steady());
        }
        let left = open
            && state
                .engine
                .settle_dirty(&mut state.keys, now, SETTLED_A_STEP);
        if !state.engine.unsettled() {
            // All restored tickets are counted as places by now.
            RESTORED.store(0, Ordering::Relaxed);
        }
        let follows = state.follow_dirty(now);
        let frees = data_type::free_step();
        if more || left || follows || frees {
            timer::arm(now.steady(), now.steady());
        }
    });
    // An answer whose time is up is refused before the event loop sleeps (`run::confirm`).
    if let Some(deadline) = confirm::next_deadline() {
        timer::arm(deadline, clock::read().steady());
    }
    // The server samples commands; only the module can sample its own event.
    latency::sample_since(c"dlock-event", used);
}

/// Returns true if the inbox has something, or the engine has a queue, a watched lock, a tied hold, a session or anything left to
/// settle or free. Also true while the state is borrowed.
fn has_work() -> bool {
    let works = |state: RefMut<State>| !state.engine.is_idle() || state.engine.unsettled();
    inbox::has_something() || STATE.try_borrow_mut().is_none_or(works)
}

/// Sends replicas the notice of a full resynchronisation, or of this primary's start, if one is owed. Also renews the engine's policy
/// when the number of replicas that count has changed.
fn update_replicas(ctx: Ctx) {
    let now = clock::read().steady();
    apply_replica_counts(now);
    // The notice is also sent while the server would refuse a client's write, for lack of replicas or because its disk fails.
    let may_tell = gate::primary() && !server::avoids_replica_traffic();
    if may_tell && replicas::with(|links, terms| links.standing.take_notice(terms)) {
        ctx.tell_replicas(c"DLOCK.HEED");
    } else if replicas::with(|links, terms| links.standing.has_notice(terms)) {
        timer::arm(now.after(RETRY_MS), now);
    }
}

impl State {
    /// On a replica with `dlock.replicas`: warns once when its clock gets too far ahead of the primary's.
    fn watch_clock_lead(&mut self, now: Now) {
        if !replicas::on() || gate::primary() {
            return;
        }
        if let Some(lead) = self.engine.begins_to_lead(now) {
            log::warning(&format!(
                "the clock of this server is up to {lead} ms ahead of its primary's: if it takes over, it ends leases by as much \
                 before their owners do, unless they allow for it"
            ));
        }
    }

    /// Runs one step of the scan. Returns true if something is left.
    fn scan(&mut self, now: Now) -> bool {
        let begun = Instant::now();
        while self.engine.scan_step(&mut self.keys, now, SCANNED_AT_ONCE) {
            if begun.elapsed() > SCAN_STEP {
                return true;
            }
        }
        false
    }
}
