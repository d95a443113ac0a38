//! Whose confirmation counts (`dlock.replicas`), and until when this server confirms nothing.
//!
//! The server reports when a replica connects or disconnects, and in INFO what each has acknowledged. How a replica has joined
//! shows there, too: the server counts a request for everything (a *full* resynchronisation), and the replica is listed for a
//! while before it is `online`; one that needs only the rest of the stream (a *partial* one) is online at once. A doubtful case
//! counts as full.
//!
//! | the replica | from when on it counts |
//! |---|---|
//! | one that has joined by a partial resynchronisation | at once: it has confirmed nothing that this server does not know |
//! | one that has joined by a full one | `dlock.quarantine-ms` later: what it confirmed elsewhere, and forgot, has ended by then |
//! | any that joins within that time after the stream has announced a full one, here or by an earlier primary | `dlock.quarantine-ms` later |
//! | any replica, if `dlock.replicas` is 1 | at once: no other can have confirmed anything |
//!
//! A replica serves none itself: it refuses requests for a resynchronisation ([`refuse_requests`]).
//!
//! A server itself confirms nothing for that time after its start, and after the begin of its own full resynchronisation. The
//! reasons, and the cases of two owners without these rules, are in `docs/protocol.md`.

mod links;
mod report;

pub(crate) use links::on;

use crate::ffi::callbacks::sync;
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::memory::MainThread;
use crate::node::{clock, gate};
use crate::settings::clauses::{stands, Clause};
use crate::settings::config;
use dlock_commands::Replicas;
use dlock_engine::SteadyMs;
use links::{quarantine, Link, Links};
use std::sync::atomic::{AtomicBool, Ordering};

lazy_static::lazy_static! {
    static ref REPLICAS: MainThread<Links> = MainThread::new(Links::default());
}

/// Does something with the replicas. Returns what it returns.
fn with<T: Default>(work: impl FnOnce(&mut Links) -> T) -> T {
    REPLICAS
        .borrow()
        .map(|mut replicas| work(&mut replicas))
        .unwrap_or_default()
}

/// Whether something may have changed since the replicas were last read.
static CHANGED: AtomicBool = AtomicBool::new(true);

/// Refuses to serve replicas, or leaves it to the server, by its role and `dlock.replicas`. A server that resynchronises forgets
/// what it has confirmed for others, and a replica can announce that to nobody.
pub(crate) fn refuse_requests() {
    let refuses = stands(Clause::ServesNone) && stands(Clause::RefusesAtOnce);
    sync::refuse(refuses && on() && !gate::primary());
}

/// Notes that a request for a resynchronisation was refused, or a link ended.
pub(crate) fn on_refused() {
    report::count_refused();
    changed();
}

/// Notes that this server begins with new data: it was started, or it resynchronises fully.
pub(crate) fn begin() {
    let now = clock::read().steady();
    with(|replicas| {
        replicas.since = now;
        replicas.begin_blackout();
        if stands(Clause::StartAnnounced) || !gate::primary() {
            replicas.on_full_sync(now);
        }
    });
}

/// Reads `dlock.replicas`. While it was 0 the replicas were not read, and how they have joined is not known.
pub(crate) fn read_setting() {
    let now = clock::read().steady();
    if let Some(mut replicas) = REPLICAS.borrow() {
        let before = std::mem::replace(&mut replicas.setting, config::REPLICAS.amount());
        if before == replicas.setting {
            return;
        }
        if before == 0 {
            replicas.begin_blackout();
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

/// Notes that a replica has connected or disconnected, a child was forked, or the role has changed: the replicas must be read
/// again.
pub(crate) fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// Returns true if the replicas must be read again.
pub(crate) fn has_changed() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

/// Takes the primary's notice that a replica joins by a full resynchronisation, or that it was started.
pub(crate) fn on_full_sync() {
    let now = clock::read().steady();
    with(|replicas| replicas.on_full_sync(now));
}

/// Returns true if the stream must carry a notice, and takes the notice out.
pub(crate) fn take_notice() -> bool {
    with(|replicas| std::mem::take(&mut replicas.notice_due))
}

/// Returns true if the stream must carry a notice.
pub(crate) fn has_notice() -> bool {
    with(|replicas| replicas.notice_due)
}

/// Returns until when this server confirms nothing, after its start or its own full resynchronisation.
pub(crate) fn confirm_blackout_until() -> SteadyMs {
    with(|replicas| replicas.confirm_blackout_until)
}

/// Returns the state of the replicas.
pub(crate) fn status(now: SteadyMs) -> Replicas {
    with(|replicas| replicas.status(now))
}

/// Reads the replicas from INFO, from sections that call no module. Call it where the effects of all decisions are in the stream.
/// Returns true if this server is a replica and has replicas from its time as a primary, whose links must be closed.
pub(crate) fn refresh(ctx: Ctx, now: SteadyMs) -> bool {
    let changed = CHANGED.swap(false, Ordering::Relaxed);
    let Some(mut replicas) = REPLICAS.borrow() else {
        return false;
    };
    replicas.read_links(ctx, now);
    // The counts before a promotion say nothing about the time after it.
    if changed || gate::primary() && replicas.newcomers() > 0 {
        replicas.read_joins(ctx, now);
    }
    if gate::primary() {
        return false;
    }
    replicas.asked = 0;
    !std::mem::take(&mut replicas.links).is_empty() && stands(Clause::ServesNone)
}

/// Logs changes of the number of connected replicas, and refused requests.
pub(crate) fn report(now: SteadyMs) {
    report::report(with(|replicas| replicas.connected()), now);
}

/// Returns when another replica begins to count by itself, if one does.
pub(crate) fn next_to_count(now: SteadyMs) -> Option<SteadyMs> {
    with(|replicas| {
        let later = replicas.links.iter().map(|link| link.counts_from);
        later.filter(|at| *at > now).min()
    })
}

/// Returns the offset of the stream.
pub(crate) fn offset() -> u64 {
    with(|replicas| replicas.offset)
}

/// Returns the offset that at least `needed` counting replicas have acknowledged.
pub(crate) fn acknowledged_by(needed: u32, now: SteadyMs) -> u64 {
    let acknowledged = |link: &Link| match stands(Clause::Acknowledged) {
        true => link.acknowledged,
        false => u64::MAX,
    };
    let mut acknowledged: Vec<u64> =
        with(|replicas| replicas.counting(now).map(acknowledged).collect());
    acknowledged.sort_unstable_by(|one, other| other.cmp(one));
    let at = (needed as usize).checked_sub(1);
    at.and_then(|at| acknowledged.get(at).copied()).unwrap_or(0)
}

/// Returns how many counting replicas have acknowledged this offset.
pub(crate) fn have_acknowledged(offset: u64, now: SteadyMs) -> u32 {
    with(|replicas| {
        let counting = replicas.counting(now);
        counting.filter(|link| link.acknowledged >= offset).count() as u32
    })
}

/// Decides whether to ask the replicas for an acknowledgement, and notes it. They have acknowledged the offset `acknowledged`,
/// and `most` is needed. Returns false if they were asked for that already, or have not answered the last question: one question
/// at a time, since each is a write for replicas and save points.
pub(crate) fn ask(acknowledged: u64, most: u64) -> bool {
    with(|replicas| {
        let asks = acknowledged >= replicas.asked && most > replicas.asked;
        if asks {
            replicas.asked = replicas.offset;
        }
        asks
    })
}

/// The last words of a replica in the log.
const CANNOT_FOLLOW: &str =
    "dlock ends the server: it cannot apply what its primary says, and with dlock.replicas it must not confirm what it does not keep";

/// Ends the process of a replica that cannot apply the stream, if its confirmation may count: the server would go on to confirm it.
pub(crate) fn abort_diverged_replica() {
    if on() && !gate::primary() {
        log::warning(CANNOT_FOLLOW);
        std::process::abort();
    }
}
