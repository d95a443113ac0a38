//! The replicas that are connected to this server, and whose confirmation counts: what the rule ([`dlock_confirm`]) makes of INFO and
//! of the server's events.

use crate::ffi::callbacks::sync;
use crate::ffi::ctx::Ctx;
use crate::ffi::log;
use crate::ffi::memory::MainThread;
use crate::node::{clock, gate, timer};
use crate::settings::config;
use crate::settings::rule::terms;
use dlock_confirm::{Line, Links, Status, Terms};
use dlock_engine::SteadyMs;
use std::sync::atomic::{AtomicBool, Ordering};

lazy_static::lazy_static! {
    static ref REPLICAS: MainThread<Links> = MainThread::new(Links::default());
}

/// Whether something may have changed since the replicas were last read.
static CHANGED: AtomicBool = AtomicBool::new(true);

/// Does something with the replicas. Returns what it returns. Arms the timer if the stream must carry a notice from now on.
pub(crate) fn with<T: Default>(work: impl FnOnce(&mut Links, &Terms<u64>) -> T) -> T {
    let terms = terms();
    let Some(mut links) = REPLICAS.borrow() else {
        return T::default();
    };
    let had_notice = links.standing.has_notice(&terms);
    let result = work(&mut links, &terms);
    if !had_notice && links.standing.has_notice(&terms) {
        timer::soon();
    }
    result
}

/// Returns true if replicas must confirm answers.
pub(crate) fn on() -> bool {
    config::REPLICAS.amount() > 0
}

/// Refuses to serve replicas, or leaves it to the server, by its role and `dlock.replicas`.
pub(crate) fn refuse_requests() {
    sync::refuse(terms().refuses_requests());
}

/// Notes that a request for a resynchronisation was refused, or a link ended.
pub(crate) fn on_refused() {
    with(|links, _| links.on_refused());
    changed();
}

/// Notes that this server begins with new data: it was started, or it resynchronises fully.
pub(crate) fn begin() {
    let now = clock::read().steady();
    with(|links, terms| links.standing.begin(terms, now.0));
}

/// Takes the primary's notice that a replica joins by a full resynchronisation, or that it was started.
pub(crate) fn on_full_sync() {
    let now = clock::read().steady();
    with(|links, terms| links.standing.on_full_sync(terms, now.0));
}

/// Notes the server's role.
pub(crate) fn on_role(primary: bool) {
    with(|links, _| links.standing.on_role(primary));
    refuse_requests();
    changed();
}

/// Reads `dlock.replicas`.
pub(crate) fn read_setting() {
    let now = clock::read().steady();
    if with(|links, terms| links.on_setting(terms, now.0)) {
        refuse_requests();
        changed();
    }
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

/// Returns the state of the replicas.
pub(crate) fn status(now: SteadyMs) -> Status {
    with(|links, terms| links.status(terms, now.0))
}

/// Reads the replicas from INFO, from sections that call no module. Call it where the effects of all decisions are in the stream.
/// Returns true if this server is a replica and has replicas from its time as a primary, whose links must be closed.
pub(crate) fn refresh(ctx: Ctx, now: SteadyMs) -> bool {
    let changed = CHANGED.swap(false, Ordering::Relaxed);
    with(|links, terms| {
        ctx.server_fields(c"replication", |fields| links.read(terms, fields, now.0));
        // The counts before a promotion say nothing about the time after it.
        if changed || terms.primary && links.newcomers() > 0 {
            ctx.server_fields(c"stats", |fields| links.read_joins(terms, fields, now.0));
        }
        links.end_reading(terms)
    })
}

/// Logs changes of the number of connected replicas, and refused requests.
pub(crate) fn report(now: SteadyMs) {
    for line in with(|links, terms| links.report(terms, now.0)) {
        match line {
            Line::Warning(text) => log::warning(&text),
            Line::Notice(text) => log::notice(&text),
        }
    }
}

/// The last words of a replica in the log.
const CANNOT_FOLLOW: &str =
    "dlock ends the server: it cannot apply what its primary says, and with dlock.replicas it must not confirm what it does not keep";

/// Ends the process of a replica that cannot apply the stream, if its confirmation may count: the server would still confirm it.
pub(crate) fn abort_diverged_replica() {
    if on() && !gate::primary() {
        log::warning(CANNOT_FOLLOW);
        std::process::abort();
    }
}
