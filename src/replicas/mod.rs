//! Whose confirmation counts (`dlock.replicas`), and until when this server confirms nothing.
//!
//! The server tells a module when a replica comes or goes, and in INFO what each has acknowledged. How one has joined is seen
//! so: one that needs everything (a *full* resynchronisation) is counted by the server when it asks for it, and is there for a
//! while before it is `online`; one that needs the rest of the stream only (a *partial* one) is online at once. What cannot be told
//! apart counts as full.
//!
//! | what | from when on it counts |
//! |---|---|
//! | a replica that has joined by a partial resynchronisation | at once: it knows nothing that this server does not know |
//! | one that has joined by a full one | `dlock.quarantine-ms` later: what it confirmed elsewhere, and forgot, has ended by then |
//! | any that joins within that time after a full joining was told in the stream, here or by an earlier primary | the same |
//! | any, where there is to be one replica only | at once: nobody else can have confirmed anything |
//!
//! A replica serves none itself: it refuses whoever asks for a resynchronisation ([`refuse_requests`]).
//!
//! A server itself confirms nothing for that time after its start, and after it began to take over another's data. The reasons, and
//! what gives two owners where one of these is left out, are in `docs/protocol.md`.

mod links;
mod report;

pub(crate) use links::on;

use crate::ffi::callbacks::sync;
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::memory::MainThread;
use crate::node::{clock, gate};
use crate::settings::config;
use dlock_commands::Replicas;
use dlock_engine::SteadyMs;
use links::{quarantine, Links};
use std::sync::atomic::{AtomicBool, Ordering};

lazy_static::lazy_static! {
    static ref REPLICAS: MainThread<Links> = MainThread::new(Links::default());
}

/// Whether something may have changed since replicas were last looked at.
static CHANGED: AtomicBool = AtomicBool::new(true);

/// Refuses to serve replicas, or leaves it to the server, by its role and `dlock.replicas`: whom a replica brings up to date may
/// have confirmed for others what it forgets by that, and a replica can tell nobody.
pub(crate) fn refuse_requests() {
    sync::refuse(on() && !gate::primary());
}

/// Notes that a request for a resynchronisation was refused, or a link ended.
pub(crate) fn on_refused() {
    report::count_refused();
    changed();
}

/// This server begins with new data: it was started, or it takes over another's.
pub(crate) fn begin() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        replicas.since = now;
        replicas.close();
        replicas.close_confirmations(now);
    }
}

/// Reads `dlock.replicas`. Nobody was looked at while none were to confirm anything: how they have joined is not known.
pub(crate) fn read_setting() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        let before = std::mem::replace(&mut replicas.setting, config::REPLICAS.amount());
        if before == replicas.setting {
            return;
        }
        if before == 0 {
            replicas.close();
            replicas.links.clear();
            (replicas.seen, replicas.asked) = (None, 0);
        }
        if before > 1 {
            replicas.single_replica_counts_from = now.after(quarantine());
        }
    }
    refuse_requests();
    changed();
}

/// A replica has come or gone, a child was forked, or the role has changed: replicas are to be looked at.
pub(crate) fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// Returns true if they are.
pub(crate) fn has_changed() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// The primary has told that somebody joins by a full resynchronisation, or that it was started.
pub(crate) fn close_confirmations() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        replicas.close_confirmations(now);
    }
}

/// Takes what is to be told in the stream.
pub(crate) fn take_to_tell() -> bool {
    let replicas = REPLICAS.borrow();
    replicas.is_some_and(|mut replicas| std::mem::take(&mut replicas.to_tell))
}

/// Returns true if something is to be told in the stream.
pub(crate) fn has_to_tell() -> bool {
    REPLICAS.borrow().is_some_and(|replicas| replicas.to_tell)
}

/// Until when this server confirms nothing, since it was started or has taken over another's data.
pub(crate) fn confirm_blackout_until() -> SteadyMs {
    REPLICAS
        .borrow()
        .map_or(SteadyMs(0), |replicas| replicas.confirm_blackout_until)
}

/// What is known now.
pub(crate) fn status(now: SteadyMs) -> Replicas {
    REPLICAS
        .borrow()
        .map_or(Replicas::default(), |replicas| replicas.status(now))
}

/// Asks the server for its replicas: no module is asked for these sections of INFO. To be called where the effects of what was
/// decided are in the stream. Returns true if this server follows another and has replicas, from when it was a primary: their
/// links are to be ended.
pub(crate) fn look(ctx: Ctx, now: SteadyMs) -> bool {
    let changed = CHANGED.swap(false, Ordering::Relaxed);
    let Some(mut replicas) = REPLICAS.borrow() else {
        return false;
    };
    replicas.look_at_links(ctx, now);
    // What was counted before a promotion is not counted after it.
    if changed || gate::primary() && replicas.newcomers() > 0 {
        replicas.look_at_joins(ctx, now);
    }
    if gate::primary() {
        return false;
    }
    replicas.asked = 0;
    !std::mem::take(&mut replicas.links).is_empty()
}

/// Reports in the log what has changed of how many replicas are connected, and what was refused to others.
pub(crate) fn report(now: SteadyMs) {
    let connected = REPLICAS.borrow().map(|replicas| replicas.connected());
    if let Some(connected) = connected {
        report::report(connected, now);
    }
}

/// Returns when another replica begins to count by itself, if one does.
pub(crate) fn next_to_count(now: SteadyMs) -> Option<SteadyMs> {
    let replicas = REPLICAS.borrow()?;
    let later = replicas.links.iter().map(|link| link.counts_from);
    later.filter(|at| *at > now).min()
}

/// How much of the stream there is.
pub(crate) fn offset() -> u64 {
    REPLICAS.borrow().map_or(0, |replicas| replicas.offset)
}

/// Returns the offset that at least `needed` counting replicas have acknowledged.
pub(crate) fn acknowledged_by(needed: u32, now: SteadyMs) -> u64 {
    let Some(replicas) = REPLICAS.borrow() else {
        return 0;
    };
    let mut acknowledged: Vec<u64> = replicas
        .counting(now)
        .map(|link| link.acknowledged)
        .collect();
    acknowledged.sort_unstable_by(|one, other| other.cmp(one));
    let at = (needed as usize).checked_sub(1);
    at.and_then(|at| acknowledged.get(at).copied()).unwrap_or(0)
}

/// How many replicas have acknowledged so much of the stream, of those whose confirmation counts.
pub(crate) fn have_acknowledged(offset: u64, now: SteadyMs) -> u32 {
    let replicas = REPLICAS.borrow();
    replicas.map_or(0, |replicas| {
        let counting = replicas.counting(now);
        counting.filter(|link| link.acknowledged >= offset).count() as u32
    })
}

/// Notes that replicas are asked to acknowledge the stream as it is, of which they have acknowledged so much and `most` is needed.
/// Returns false if that is not to be done: they were asked already, or have not answered what they were asked last. One question
/// at a time, since each is a write for replicas and save points.
pub(crate) fn ask(acknowledged: u64, most: u64) -> bool {
    let Some(mut replicas) = REPLICAS.borrow() else {
        return false;
    };
    if acknowledged < replicas.asked || most <= replicas.asked {
        return false;
    }
    replicas.asked = replicas.offset;
    true
}

/// What a replica has to say before its process ends.
const CANNOT_FOLLOW: &str =
    "dlock ends the server: it cannot apply what its primary says, and with dlock.replicas it must not confirm what it does not keep";

/// A replica cannot apply the stream: the server would go on to confirm it. So its process ends, if it may be counted.
pub(crate) fn abort_diverged_replica() {
    if on() && !gate::primary() {
        log::warning(CANNOT_FOLLOW);
        std::process::abort();
    }
}
