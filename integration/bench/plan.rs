//! What is measured: all groups, and all rows that are made of them.

use std::time::Duration;

use crate::contest::Contest;
use crate::handover::{PUBLISH_100, PUBLISH_3000, QUEUE_100, QUEUE_10000, QUEUE_3000};
use crate::locking::{COUNTED_HASH, DLOCK, SET_DEL, SET_SCRIPT};
use crate::percentile::{P50, P99};
use crate::row::{Row, Source, Value};
use crate::setting::Setting;
use crate::way::{Effort, Group};
use crate::{crowd, expiry, handover, hot, mass, memory, pair, ticket};

/// The group of the uncontended pair.
pub const PAIR: &str = "pair";
/// The same with an append-only file.
pub const PAIR_EVERYSEC: &str = "pair, AOF everysec";
const PAIR_ALWAYS: &str = "pair, AOF always";
const PAIR_REPLICA: &str = "pair, a replica";
const SINGLE: &str = "single pair";
const SINGLE_EVERYSEC: &str = "single pair, AOF everysec";
const SINGLE_ALWAYS: &str = "single pair, AOF always";
const SINGLE_REPLICA: &str = "single pair, a replica";
const HANDOVER: &str = "hand-over";
const EXPIRY: &str = "expiry";
const TICKETS: &str = "tickets";
const MEMORY: &str = "memory";
const MEMORY_MANY: &str = "memory, 1,000,000 locks";
const CROWD: &str = "pair among held locks";
const QUEUE: &str = "hand-over, very long queue";
const MASS: &str = "masses";
const HOT_50: &str = "hot lock, 50 clients, 1 ms";

/// Pairs in a sample: some 20 ms of CPU time, so that INFO is lost in it, and short, so that what happens on the
/// machine meanwhile hits the samples of one round alike or not at all. There are many rounds instead.
const PAIRS: usize = 10_000;

/// With an AOF a sample lasts longer: once a second the file is brought to the disk, and every sample should
/// have its part of that.
const PAIRS_AOF: usize = 100_000;

/// Pairs in a sample, one command after the other: enough for one in a thousand.
const SINGLES: usize = 3_000;

/// The same when each command waits for the disk.
const SINGLES_ALWAYS: usize = 300;

/// Sittings and rounds in each: (full), (quick).
const fn effort(full: (usize, usize), quick: (usize, usize)) -> Effort {
    Effort { full, quick }
}

/// All that is measured.
pub fn groups() -> Vec<Group> {
    let pipelined = |name, setting, pairs, effort| Group {
        name,
        effort,
        open: Box::new(move || pair::pipelined(setting, pairs)),
    };
    let single = |name, setting, pairs| Group {
        name,
        effort: effort((2, 6), (0, 0)),
        open: Box::new(move || pair::single(setting, pairs)),
    };
    let mut groups = vec![
        pipelined(PAIR, Setting::Memory, PAIRS, effort((5, 36), (2, 24))),
        pipelined(
            PAIR_EVERYSEC,
            Setting::AofEverysec,
            PAIRS_AOF,
            effort((3, 7), (1, 5)),
        ),
        pipelined(
            PAIR_ALWAYS,
            Setting::AofAlways,
            PAIRS,
            effort((2, 24), (0, 0)),
        ),
        pipelined(
            PAIR_REPLICA,
            Setting::Replica,
            PAIRS,
            effort((2, 24), (0, 0)),
        ),
        single(SINGLE, Setting::Memory, SINGLES),
        single(SINGLE_EVERYSEC, Setting::AofEverysec, SINGLES),
        single(SINGLE_ALWAYS, Setting::AofAlways, SINGLES_ALWAYS),
        single(SINGLE_REPLICA, Setting::Replica, SINGLES),
        Group {
            name: HANDOVER,
            effort: effort((3, 10), (1, 8)),
            open: Box::new(handover::open),
        },
        Group {
            name: EXPIRY,
            effort: effort((2, 6), (1, 4)),
            open: Box::new(expiry::open),
        },
        Group {
            name: TICKETS,
            effort: effort((3, 7), (1, 5)),
            open: Box::new(ticket::open),
        },
        Group {
            name: MEMORY,
            effort: effort((1, 3), (1, 1)),
            open: Box::new(|| memory::open(100_000)),
        },
        Group {
            name: MEMORY_MANY,
            effort: effort((1, 2), (0, 0)),
            open: Box::new(|| memory::open(1_000_000)),
        },
        Group {
            name: CROWD,
            effort: effort((2, 7), (0, 0)),
            open: Box::new(crowd::open),
        },
        Group {
            name: QUEUE,
            effort: effort((2, 8), (0, 0)),
            open: Box::new(handover::open_crowded),
        },
        Group {
            name: MASS,
            effort: effort((1, 3), (0, 0)),
            open: Box::new(mass::open),
        },
    ];
    groups.extend(HOT_LOCKS.iter().map(hot));
    groups
}

/// A hot lock.
pub struct HotLock {
    /// The group's name.
    pub group: &'static str,
    /// How many want it.
    pub clients: usize,
    /// How long each keeps it.
    pub section_us: u64,
}

const fn hot_lock(group: &'static str, clients: usize, section_us: u64) -> HotLock {
    HotLock {
        group,
        clients,
        section_us,
    }
}

/// All hot locks.
pub const HOT_LOCKS: [HotLock; 11] = [
    hot_lock("hot lock, 2 clients, 1 ms", 2, 1_000),
    hot_lock("hot lock, 10 clients, 1 ms", 10, 1_000),
    hot_lock(HOT_50, 50, 1_000),
    hot_lock("hot lock, 200 clients, 1 ms", 200, 1_000),
    hot_lock("hot lock, 500 clients, 1 ms", 500, 1_000),
    hot_lock("hot lock, 50 clients, 100 µs", 50, 100),
    hot_lock("hot lock, 2 clients, 0 ms", 2, 0),
    hot_lock("hot lock, 10 clients, 0 ms", 10, 0),
    hot_lock("hot lock, 50 clients, 0 ms", 50, 0),
    hot_lock("hot lock, 200 clients, 0 ms", 200, 0),
    hot_lock("hot lock, 500 clients, 0 ms", 500, 0),
];

/// A second each, twice; only one of them when there is little time.
fn hot(lock: &HotLock) -> Group {
    let contest = Contest {
        clients: lock.clients,
        section: Duration::from_micros(lock.section_us),
        duration: Duration::from_secs(1),
    };
    let quick = if lock.group == HOT_50 { (1, 1) } else { (0, 0) };
    Group {
        name: lock.group,
        effort: effort((1, 2), quick),
        open: Box::new(move || hot::open(contest)),
    }
}

/// The CPU time of a pair of commands beside that of another way.
const fn pair_row(
    name: &'static str,
    group: &'static str,
    what: &'static str,
    against: &'static str,
    bound: Option<f64>,
) -> Row {
    Row {
        name,
        what,
        against,
        value: ratio(group, pair::CPU, DLOCK, against),
        bound,
        goal: None,
        tolerance: 0.10,
    }
}

/// The latency of a pair of commands beside that of another way.
const fn single_row(name: &'static str, group: &'static str, what: &'static str) -> Row {
    Row {
        name,
        what,
        against: SET_DEL,
        value: ratio(group, P50, DLOCK, SET_DEL),
        bound: None,
        goal: None,
        tolerance: 0.20,
    }
}

const fn ratio(
    group: &'static str,
    figure: &'static str,
    way: &'static str,
    against: &'static str,
) -> Value {
    Value::Ratio(
        Source { group, way, figure },
        Source {
            group,
            way: against,
            figure,
        },
    )
}

const fn lateness(figure: &'static str) -> Value {
    Value::Plain(Source {
        group: EXPIRY,
        way: expiry::EXPIRY,
        figure,
    })
}

/// Contention, beside another way. What client programs and the scheduler do to it varies more than the rest.
const fn hot_row(
    name: &'static str,
    what: &'static str,
    figure: &'static str,
    against: &'static str,
) -> Row {
    Row {
        name,
        what,
        against,
        value: ratio(HOT_50, figure, hot::BLOCKING, against),
        bound: None,
        goal: None,
        tolerance: 1.0,
    }
}

const CPU_OF_PAIR: &str = "ACQUIRE + RELEASE, server CPU";
const CPU_EVERYSEC: &str = "ACQUIRE + RELEASE, server CPU, AOF everysec";
const CPU_ALWAYS: &str = "ACQUIRE + RELEASE, server CPU, AOF always";
const CPU_REPLICA: &str = "ACQUIRE + RELEASE, server CPU, with a replica";

/// All rows, in the order in which they are shown.
pub const ROWS: &[Row] = &[
    Row {
        goal: Some(1.10),
        ..pair_row("pair/set-del", PAIR, CPU_OF_PAIR, SET_DEL, Some(1.25))
    },
    pair_row("pair/set-script", PAIR, CPU_OF_PAIR, SET_SCRIPT, Some(0.48)),
    pair_row(
        "pair/counted-hash",
        PAIR,
        CPU_OF_PAIR,
        COUNTED_HASH,
        Some(0.20),
    ),
    pair_row(
        "pair-everysec/set-del",
        PAIR_EVERYSEC,
        CPU_EVERYSEC,
        SET_DEL,
        Some(1.4),
    ),
    pair_row(
        "pair-everysec/set-script",
        PAIR_EVERYSEC,
        CPU_EVERYSEC,
        SET_SCRIPT,
        Some(0.55),
    ),
    pair_row(
        "pair-everysec/counted-hash",
        PAIR_EVERYSEC,
        CPU_EVERYSEC,
        COUNTED_HASH,
        Some(0.30),
    ),
    pair_row(
        "pair-always/set-del",
        PAIR_ALWAYS,
        CPU_ALWAYS,
        SET_DEL,
        None,
    ),
    pair_row(
        "pair-replica/set-del",
        PAIR_REPLICA,
        CPU_REPLICA,
        SET_DEL,
        None,
    ),
    single_row("single/set-del", SINGLE, "ACQUIRE, then RELEASE, p50"),
    single_row(
        "single-everysec/set-del",
        SINGLE_EVERYSEC,
        "ACQUIRE, then RELEASE, p50, AOF everysec",
    ),
    single_row(
        "single-always/set-del",
        SINGLE_ALWAYS,
        "ACQUIRE, then RELEASE, p50, AOF always",
    ),
    single_row(
        "single-replica/set-del",
        SINGLE_REPLICA,
        "ACQUIRE, then RELEASE, p50, with a replica",
    ),
    Row {
        name: "hand-over/100",
        what: "release → waiter has its reply, p50, 100 queued",
        against: PUBLISH_100,
        value: ratio(HANDOVER, P50, QUEUE_100, PUBLISH_100),
        bound: Some(1.5),
        goal: Some(1.35),
        tolerance: 0.15,
    },
    Row {
        name: "hand-over/3000",
        what: "release → waiter has its reply, p50, 3,000 queued",
        against: PUBLISH_3000,
        value: ratio(HANDOVER, P50, QUEUE_3000, PUBLISH_3000),
        bound: Some(1.5),
        goal: Some(1.35),
        tolerance: 0.15,
    },
    Row {
        name: "hand-over/3000-to-100",
        what: "release → waiter has its reply, p50, 3,000 queued",
        against: "100 queued",
        value: ratio(HANDOVER, P50, QUEUE_3000, QUEUE_100),
        bound: Some(1.3),
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "publish/3000-to-100",
        what: "publish → subscriber, p50, 3,000 in turn",
        against: "100 in turn",
        value: ratio(HANDOVER, P50, PUBLISH_3000, PUBLISH_100),
        bound: None,
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "expiry/p50",
        what: "lease ends → waiter has its reply, p50",
        against: "µs after the deadline",
        value: lateness(P50),
        bound: Some(2_000.0),
        goal: None,
        tolerance: 0.50,
    },
    Row {
        name: "expiry/p99",
        what: "lease ends → waiter has its reply, p99",
        against: "µs after the deadline",
        value: lateness(P99),
        bound: Some(5_000.0),
        goal: None,
        tolerance: 1.00,
    },
    Row {
        name: "ticket/poll",
        what: "FAIRACQUIRE again, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(TICKETS, ticket::CPU, ticket::POLL_LONG, ticket::POLL_SHORT),
        bound: Some(1.3),
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "ticket/position",
        what: "POSITION, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(
            TICKETS,
            ticket::CPU,
            ticket::POSITION_LONG,
            ticket::POSITION_SHORT,
        ),
        bound: Some(1.3),
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "ticket/cancel",
        what: "CANCEL + FAIRACQUIRE, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(
            TICKETS,
            ticket::CPU,
            ticket::CANCEL_LONG,
            ticket::CANCEL_SHORT,
        ),
        bound: Some(1.3),
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "memory",
        what: "a held lock, bytes",
        against: "SET key owner PX",
        value: ratio(MEMORY, memory::BYTES, DLOCK, SET_DEL),
        bound: Some(1.30),
        goal: Some(1.22),
        tolerance: 0.02,
    },
    Row {
        name: "memory/1000000",
        what: "a held lock of 1,000,000, bytes",
        against: "SET key owner PX",
        value: ratio(MEMORY_MANY, memory::BYTES, DLOCK, SET_DEL),
        bound: None,
        goal: Some(1.22),
        tolerance: 0.02,
    },
    Row {
        name: "crowd",
        what: "ACQUIRE + RELEASE, server CPU, 1,000,000 held",
        against: "1,000 held",
        value: ratio(CROWD, pair::CPU, crowd::DLOCK_MANY, crowd::DLOCK_FEW),
        bound: Some(1.2),
        goal: None,
        tolerance: 0.15,
    },
    Row {
        name: "queue/cpu",
        what: "hand-over, server CPU, 10,000 queued",
        against: "100 queued",
        value: ratio(QUEUE, handover::CPU, QUEUE_10000, QUEUE_100),
        bound: Some(1.3),
        goal: None,
        tolerance: 0.15,
    },
    hot_row(
        "hot/polling",
        "wait p99, 50 clients, 1 ms each",
        P99,
        hot::POLLING_1MS,
    ),
    hot_row(
        "hot/publish",
        "wait p99, 50 clients, 1 ms each",
        P99,
        hot::PUBSUB,
    ),
    hot_row(
        "hot/redis-py",
        "wait p99, 50 clients, 1 ms each",
        P99,
        hot::REDIS_PY_100MS,
    ),
    hot_row(
        "hot/blpop",
        "wait p99, 50 clients, 1 ms each",
        P99,
        hot::PYTHON_REDIS_LOCK,
    ),
    hot_row(
        "hot/publish-cpu",
        "server CPU a hand-over, 50 clients, 1 ms each",
        hot::CPU,
        hot::PUBSUB,
    ),
    hot_row(
        "hot/blpop-cpu",
        "server CPU a hand-over, 50 clients, 1 ms each",
        hot::CPU,
        hot::PYTHON_REDIS_LOCK,
    ),
];
