//! The module's own event: time has come, or a callback has left something in the inbox.

use super::confirm::heed_replicas;
use super::enter::{self, RETRY_MS};
use super::keyspace::{Mode, Origin};
use super::notices::SETTLED_A_STEP;
use super::state::{State, RESTORED};
use crate::callbacks::data_type;
use crate::ffi::ctx::Ctx;
use crate::ffi::panic::poisoned;
use crate::ffi::{log, server};
use crate::node::{clock, gate, timer};
use crate::replicas;
use crate::tell::observers::subscribers;
use crate::tell::{confirm, latency, replicate};
use dlock_engine::Now;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long one step of the look over what is waited for or tied takes, and how long after it the next one comes: less than 5 ms
/// of a second, however many names and ties there are.
const LOOK: Duration = Duration::from_micros(75);
const LOOK_MS: u64 = 25;

/// Names and ties that are looked at between two looks at the clock.
const LOOKED_AT_ONCE: usize = 16;

/// How often the module checks what nothing tells it of: a step of the clock, the end of the last replica.
const HEARTBEAT_MS: u64 = 1000;

/// How often a node of a cluster asks which slots are its own, while somebody waits or is tied to a hold: not every way in which
/// a slot leaves does anything to the keys that are waited for, and a waiter by a channel is to be told within a second.
const SLOTS: Duration = Duration::from_millis(500);

/// The module's own event: time has come, or a callback has left something in the inbox.
pub(super) fn event(ctx: Ctx) {
    if poisoned() {
        return;
    }
    gate::after_stall(ctx, clock::read().steady());
    let open = gate::open(ctx);
    let mode = if open { Mode::Write } else { Mode::Read };
    if replicas::on() {
        look_after_replicas(ctx);
    }
    let (began, used) = (Instant::now(), latency::processor_time());
    enter::run(ctx, mode, Origin::Event, clock::read(), |state, now| {
        // A lease or a wait whose time came while the server was busy: the next in the queue had to wait for that.
        let late = state.engine.overdue(now);
        if late > 0 {
            latency::sample(c"dlock-late", Duration::from_millis(late));
        }
        let due = state.engine.tick(now);
        state.time_out_unconfirmed(now);
        let beats = now.steady() >= state.heartbeat;
        if beats {
            state.heartbeat = now.steady().after(HEARTBEAT_MS);
            if state.steps.observe(now) {
                state.engine.count_clock_step();
            }
            replicate::refresh(ctx);
            state.watch_clock_lead();
            subscribers::heartbeat(ctx);
            state.engine.begin_look();
        }
        timer::arm(state.heartbeat, now.steady());
        if state.keys.in_cluster() {
            if state.slots_seen.is_none_or(|seen| seen + SLOTS <= began) {
                state.slots_seen = Some(began);
                state.refresh_slots(now);
            }
            let next = now.steady().after(SLOTS.as_millis() as u64);
            timer::arm(next, now.steady());
        }
        if open && now.steady() >= state.next_look {
            state.next_look = now.steady().after(LOOK_MS);
            if state.look(now) {
                timer::arm(state.next_look, now.steady());
            }
        }
        let left = open
            && state
                .engine
                .settle_dirty(&mut state.keys, now, SETTLED_A_STEP);
        if !state.engine.unsettled() {
            RESTORED.store(0, Ordering::Relaxed);
        }
        let follows = state.follow_dirty(now);
        let buried = data_type::free_step();
        if due || left || follows || buried {
            timer::arm(now.steady(), now.steady());
        }
    });
    if let Some(deadline) = confirm::next_deadline() {
        timer::arm(deadline, clock::read().steady());
    }
    // Commands have their own samples; what the module does by itself nobody else could tell of.
    latency::sample_since(c"dlock-event", used);
}

/// What is to be told to replicas, and noticed of them by itself.
fn look_after_replicas(ctx: Ctx) {
    let now = clock::read().steady();
    heed_replicas(now);
    // Also while the server would refuse a write, for want of replicas or because its disk fails.
    let may_tell = gate::primary() && !server::must_hold_back();
    if may_tell && replicas::take_to_tell() {
        ctx.tell_replicas(c"DLOCK.HEED");
    } else if replicas::has_to_tell() && gate::primary() {
        timer::arm(now.after(RETRY_MS), now);
    }
}

/// A clock that is further ahead than this of its primary's ends leases too early if this server takes over.
const LEAD_MS: u64 = 50;

impl State {
    /// Warns, once while it is so, of a clock that is too far ahead of the primary's.
    fn watch_clock_lead(&mut self) {
        let lead = match gate::primary() {
            true => 0,
            false => self.engine.counters().clock_lead.ms(),
        };
        let leads = replicas::on() && lead > LEAD_MS;
        if leads && !self.clock_leads {
            log::warning(&format!(
                "the clock of this server is up to {lead} ms ahead of its primary's: if it takes over, it ends leases by as much \
                 before their owners do, unless they allow for it"
            ));
        }
        self.clock_leads = leads;
    }

    /// Goes on with the look over what is waited for or tied. Returns true if something is left.
    fn look(&mut self, now: Now) -> bool {
        let begun = Instant::now();
        while self.engine.look(&mut self.keys, now, LOOKED_AT_ONCE) {
            if begun.elapsed() > LOOK {
                return true;
            }
        }
        false
    }
}
