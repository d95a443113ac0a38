//! `DLOCK.STATS`, `DLOCK.TOP`, and the numbers that INFO shows: one list for all of them.

use crate::call::{Call, Census, Reply};
use crate::error::Error;
use crate::table::Args;
use dlock_engine::counters::Hot;
use dlock_engine::{invariants, Engine, Keyspace, Millis, Now};

/// The locks that TOP shows without `COUNT`.
const SHOWN: u64 = 10;

/// A section of INFO: numbers that are shown together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name. INFO puts `dlock_` before it.
    pub name: &'static str,
    /// Its numbers, in order, by their names; INFO puts `dlock_` before these too. What only rises, except at a reset or restart,
    /// ends in `_total`, and nothing else does.
    pub fields: Vec<(&'static str, u64)>,
}

/// Makes the numbers of some times: their percentiles, with this name before them, how many there are, and their sum.
macro_rules! times {
    ($name:literal, $total:literal, $times:expr) => {
        [
            (concat!($name, "_p50_us"), $times.per_mille(500)),
            (concat!($name, "_p99_us"), $times.per_mille(990)),
            (concat!($name, "_p999_us"), $times.per_mille(999)),
            (concat!($name, "_max_us"), $times.longest_us()),
            ($total, $times.count()),
            (concat!($name, "_us_total"), $times.sum_us()),
        ]
    };
}

/// Returns every number. Names are stable: exporters and dashboards rely on them.
pub fn sections(engine: &Engine, census: &Census, now: Now) -> Vec<Section> {
    let counters = engine.counters();
    let held = census.stored_holds.saturating_add(counters.held);
    let quarantine = if census.primary {
        engine.policy().quarantine_left(now)
    } else {
        0
    };
    let refusals = &counters.refusals;
    let clock_lead = if census.primary {
        0
    } else {
        counters.clock_lead.ms(now)
    };
    let ((sessions, not_alive), (rows, begun_anew)) = (engine.sessions(), engine.session_rows());
    let oldest_wait_ms = engine.oldest_wait_ms(now);
    let now = [
        ("locks", census.locks),
        ("holders", u64::try_from(held).unwrap_or(0)),
        ("places_queued", engine.places() as u64),
        ("connections_waiting", census.connections_waiting),
        ("oldest_wait_ms", oldest_wait_ms),
        ("ephemeral", engine.ephemeral() as u64),
        ("sessions", sessions as u64),
        ("sessions_not_alive", not_alive as u64),
        ("session_rows", rows as u64),
        ("auto_renewed", engine.autos() as u64),
        ("eviction_possible", u64::from(census.eviction_possible)),
        ("quarantined", u64::from(quarantine > 0)),
        ("quarantine_left_ms", quarantine),
        ("drained", u64::from(!engine.policy().grants)),
        ("invariants_broken", invariants::count()),
    ];
    let totals = [
        ("grants_immediate_total", counters.grants_immediate),
        ("grants_waited_total", counters.grants_waited),
        ("null_replies_total", counters.refused),
        ("timeouts_total", counters.timeouts),
        ("reentries_total", counters.reentries),
        ("upgrades_total", counters.upgrades),
        ("renewals_total", counters.renewals),
        ("auto_renewals_total", counters.auto_renewals),
        ("released_total", counters.released),
        ("expired_total", counters.expired),
        ("forced_total", counters.forced),
        ("closed_total", counters.closed),
        ("removed_total", counters.removed),
        ("evicted_total", counters.evicted),
        ("replaced_total", counters.replaced),
        ("sessions_begun_anew_total", begun_anew),
        ("deadlocks_total", refusals.deadlock),
        (
            "deadlock_checks_deferred_total",
            counters.deadlocks_deferred,
        ),
        ("fenced_total", refusals.fenced),
        ("refused_quarantine_total", refusals.quarantine),
        ("refused_noack_total", refusals.no_ack),
        ("refused_drained_total", refusals.drained),
        ("refused_queuefull_total", refusals.full),
        ("refused_notheld_total", refusals.not_held),
        ("refused_wrongtype_total", refusals.wrong_type),
        ("clock_steps_total", counters.clock_steps),
    ];
    let times = [
        times!("wait", "waits_total", counters.waits),
        times!("hold", "holds_total", counters.holds),
    ];
    let status = &census.replicas;
    let closed = status.needed > 0 && census.primary;
    let too_few = closed && status.counting < status.needed;
    let closed_ms = if closed { status.closed_ms } else { 0 };
    let replicas = [
        ("replicas_needed", status.needed.into()),
        ("replicas_counting", status.counting.into()),
        ("replicas_connected", status.connected.into()),
        ("replicas_joined_partial", status.partial.into()),
        ("replicas_joined_full", status.full.into()),
        ("replicas_too_many", status.too_many.into()),
        ("replicas_too_few", status.too_few.into()),
        ("closed", u64::from(too_few || closed_ms > 0)),
        ("closed_too_few", too_few.into()),
        ("closed_left_ms", closed_ms),
        ("joins_count_late_ms", status.late_ms),
        ("confirmations_waiting", census.confirmations_waiting),
        ("clock_lead_ms", clock_lead),
    ];
    let confirmed = times!("confirmation", "confirmed_total", counters.confirmations);
    let unconfirmed = [("unconfirmed_total", counters.unconfirmed)];
    let section = |name, fields| Section { name, fields };
    vec![
        section("locks", now.to_vec()),
        section("totals", totals.to_vec()),
        section("times", times.concat()),
        section(
            "confirmations",
            [&replicas[..], &confirmed, &unconfirmed].concat(),
        ),
    ]
}

/// Shows every number: `[RESET]`, which resets them after reading.
pub fn stats<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    if given.reset && !call.caller.may_reset() {
        return Err(Error::NoPermission("dlock.stats reset".into()));
    }
    let sections = sections(call.engine, &call.caller.census(), call.now);
    if given.reset {
        call.engine.reset_counters();
    }
    let fields = sections
        .into_iter()
        .flat_map(|section| section.fields)
        .map(|(name, value)| (name, Reply::Integer(value)));
    Ok(Reply::Map(fields.collect()))
}

/// Shows the most contended locks, of those that the user may read: `[COUNT n]`.
pub fn top<K: Keyspace>(call: &mut Call<K>, given: &Args) -> Result<Reply, Error> {
    let most = given.count(SHOWN);
    if call.primary {
        call.engine.forget_moved(call.keys);
    }
    let ranked: Vec<&Hot> = call.engine.counters().top.ranked().collect();
    let keys: Vec<&[u8]> = ranked.iter().map(|hot| &*hot.name.key).collect();
    let readable = call.caller.may_read(&keys);
    let shown = ranked.iter().zip(readable).filter(|(_, may)| *may);
    let rows = shown.take(most).map(|(hot, _)| {
        let going_on = call.engine.waiting(hot.name.as_ref(), call.now);
        row(hot, going_on)
    });
    Ok(Reply::array(rows))
}

/// Makes a row; `going_on`: how many places the queue has now, and for how long the first of them has been there.
fn row(hot: &Hot, (queued, first_waited_ms): (usize, Option<Millis>)) -> Reply {
    let longest_ms = hot.longest_us / 1000;
    Reply::Map(vec![
        ("key", Reply::Bulk(hot.name.key.to_vec())),
        ("db", Reply::number(hot.name.db)),
        ("waits", Reply::Integer(hot.waits)),
        ("error", Reply::Integer(hot.error)),
        ("wait-ms", Reply::Integer(hot.total_us / 1000)),
        (
            "longest-ms",
            Reply::Integer(longest_ms.max(first_waited_ms.unwrap_or(0))),
        ),
        ("queued", Reply::Integer(queued as u64)),
        (
            "first-waited-ms",
            first_waited_ms.map_or(Reply::Null, Reply::Integer),
        ),
    ])
}
