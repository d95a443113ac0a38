//! What is measured: all groups, and all rows that are made of them.

use std::time::Duration;

use crate::contest::Contest;
use crate::handover::{PUBLISH_100, PUBLISH_3000, QUEUE_100, QUEUE_10000, QUEUE_3000};
use crate::locking::{
    Locking, COUNTED_HASH, COUNTING, DLOCK, DLOCK_AUTO, DLOCK_LIMIT, DLOCK_MANY, DLOCK_SESSION,
    DLOCK_SHARED, LOCKINGS, MANY, MANY_SCRIPTS, READING, READ_WRITE_HASH, RENEWED, SET_DEL,
    SET_SCRIPT, SORTED_SET, TIED,
};
use crate::percentile::{MAX, P50, P99};
use crate::row::{Row, Source, Value};
use crate::setting::Setting;
use crate::way::{Effort, Group, Opened};
use crate::{
    again, confirmed, crossing, crowd, deadlock, errand, expiry, fair, growth, guard, handover,
    holders, hot, keep, lapse, mass, memory, notice, pair, pause, renewal, session, ticket,
};

/// The group of the uncontended pair.
pub const PAIR: &str = "pair";
/// The same with an append-only file.
pub const PAIR_EVERYSEC: &str = "pair, AOF everysec";
const PAIR_ALWAYS: &str = "pair, AOF always";
const PAIR_REPLICA: &str = "pair, a replica";
const PAIR_SHARED: &str = "pair, shared";
const PAIR_COUNTED: &str = "pair, counted";
const PAIR_MANY: &str = "pair, three locks";
const PAIR_TIED: &str = "pair, tied";
const GUARD: &str = "guarded write";
const SINGLE: &str = "single pair";
const SINGLE_EVERYSEC: &str = "single pair, AOF everysec";
const SINGLE_ALWAYS: &str = "single pair, AOF always";
const SINGLE_REPLICA: &str = "single pair, a replica";
const SINGLE_AUTO: &str = "single pair, AUTO";
/// From a release to the waiter's reply.
pub const HANDOVER: &str = "hand-over";
const EXPIRY: &str = "expiry";
const TICKETS: &str = "tickets";
/// What a held lock takes.
pub const MEMORY: &str = "memory";
const MEMORY_MANY: &str = "memory, 1,000,000 locks";
const CROWD: &str = "pair among held locks";
const QUEUE: &str = "hand-over, very long queue";
const MASS: &str = "masses";
const HOLDERS: &str = "shared holds";
const NOTIFY: &str = "hand-over, NOTIFY";
const MEMORY_NOTIFY: &str = "memory, NOTIFY";
const MEMORY_BLOCKED: &str = "memory, blocked";
const CHAIN: &str = "deadlock, long chain";
const DETECTION: &str = "deadlock, detection";
const LAPSE: &str = "mass of leases, NOTIFY";
const SESSION: &str = "mass of sessions";
const RENEWALS: &str = "renewals by the server";
const KEEP: &str = "signs of life";
const CONFIRMED_1: &str = "confirmed grant, a replica";
const CONFIRMED_2: &str = "confirmed grant, two replicas";
const CONFIRMED_3: &str = "confirmed grant, three replicas";
const CONFIRMED_16: &str = "confirmed grant, two replicas, 16 connections";
const CONFIRMED_200: &str = "confirmed grant, two replicas, 200 connections";
const FAIR: &str = "fair lock";
const AGAIN: &str = "while it is held";
const CROSSING: &str = "three locks, crossing";
const HOT_50: &str = "hot lock, 50 clients, 1 ms";

/// Pairs in a sample: some 20 ms of CPU time, so that INFO is lost in it, and short, so that what happens on the
/// machine meanwhile hits the samples of one round alike or not at all. There are many rounds instead.
const PAIRS: usize = 10_000;

/// With an AOF a sample lasts longer: once a second the file is brought to the disk, and every sample should
/// have its part of that.
const PAIRS_AOF: usize = 40_000;

/// Pairs in a sample, one command after the other: enough for one in a thousand, and so few that there are many rounds
/// where a round trip takes a third of a millisecond.
const SINGLES: usize = 1_000;

/// The same when each command waits for the disk.
const SINGLES_ALWAYS: usize = 300;

/// All that is measured.
pub fn groups() -> Vec<Group> {
    let pipelined = |name, setting, pairs, effort| Group {
        name,
        effort,
        open: Box::new(move || pair::pipelined(setting, &LOCKINGS, pairs)),
    };
    let of_kind = |name, lockings: &'static [Locking]| Group {
        name,
        effort: Effort::full(3, 12, 16).quick(1, 8, 3),
        open: Box::new(move || pair::pipelined(Setting::Memory, lockings, PAIRS)),
    };
    let single = |name, setting, pairs| Group {
        name,
        effort: Effort::full(2, 15, 20),
        open: Box::new(move || pair::single(setting, &LOCKINGS, pairs)),
    };
    let mut groups = vec![
        pipelined(
            PAIR,
            Setting::Memory,
            PAIRS,
            Effort::full(5, 36, 50).quick(2, 18, 11),
        ),
        pipelined(
            PAIR_EVERYSEC,
            Setting::AofEverysec,
            PAIRS_AOF,
            Effort::full(3, 8, 45).quick(1, 5, 10),
        ),
        pipelined(
            PAIR_ALWAYS,
            Setting::AofAlways,
            PAIRS,
            Effort::full(2, 12, 35),
        ),
        pipelined(
            PAIR_REPLICA,
            Setting::Replica,
            PAIRS,
            Effort::full(2, 16, 25),
        ),
        of_kind(PAIR_SHARED, &READING),
        of_kind(PAIR_COUNTED, &COUNTING),
        of_kind(PAIR_MANY, &MANY),
        of_kind(PAIR_TIED, &TIED),
        Group {
            name: GUARD,
            effort: Effort::full(3, 12, 10).quick(1, 8, 3),
            open: Box::new(|| guard::open(PAIRS)),
        },
        single(SINGLE, Setting::Memory, SINGLES),
        single(SINGLE_EVERYSEC, Setting::AofEverysec, SINGLES),
        single(SINGLE_ALWAYS, Setting::AofAlways, SINGLES_ALWAYS),
        single(SINGLE_REPLICA, Setting::Replica, SINGLES),
        Group {
            name: SINGLE_AUTO,
            effort: Effort::full(2, 12, 10).quick(1, 8, 2),
            open: Box::new(|| pair::single(Setting::Memory, &RENEWED, SINGLES)),
        },
        Group {
            name: HANDOVER,
            effort: Effort::full(3, 10, 40).quick(1, 5, 8),
            open: Box::new(handover::open),
        },
        Group {
            name: EXPIRY,
            effort: Effort::full(2, 6, 25).quick(1, 3, 5),
            open: Box::new(expiry::open),
        },
        Group {
            name: TICKETS,
            effort: Effort::full(3, 7, 22).quick(1, 5, 7),
            open: Box::new(ticket::open),
        },
        Group {
            name: MEMORY,
            effort: Effort::full(1, 3, 10).quick(1, 1, 3).cold(),
            open: Box::new(|| memory::open(100_000)),
        },
        Group {
            name: MEMORY_MANY,
            effort: Effort::full(1, 2, 32).cold(),
            open: Box::new(|| memory::open(1_000_000)),
        },
        Group {
            name: CROWD,
            effort: Effort::full(2, 7, 25),
            open: Box::new(crowd::open),
        },
        Group {
            name: QUEUE,
            effort: Effort::full(2, 8, 22),
            open: Box::new(handover::open_crowded),
        },
        Group {
            name: MASS,
            effort: Effort::full(1, 3, 25).cold(),
            open: Box::new(mass::open),
        },
    ];
    groups.extend(of_the_family());
    groups.push(growth::group());
    groups.extend(HOT_LOCKS.iter().map(hot));
    groups
}

/// What only some of the locks, or of the ways to wait, have to do with.
fn of_the_family() -> [Group; 18] {
    let group = |name, effort, open: fn() -> Opened| Group {
        name,
        effort,
        open: Box::new(open),
    };
    [
        group(
            HOLDERS,
            Effort::full(3, 7, 18).quick(1, 5, 5),
            holders::open,
        ),
        group(NOTIFY, Effort::full(3, 7, 22).quick(1, 3, 5), notice::open),
        group(
            MEMORY_NOTIFY,
            Effort::full(1, 3, 8).quick(1, 1, 2).cold(),
            memory::open_notify,
        ),
        group(
            MEMORY_BLOCKED,
            Effort::full(1, 3, 30).cold(),
            memory::open_blocked,
        ),
        group(
            CHAIN,
            Effort::full(3, 4, 5).quick(1, 3, 2),
            deadlock::open_chain,
        ),
        group(
            DETECTION,
            Effort::full(3, 5, 20).quick(1, 4, 5),
            deadlock::open_wait,
        ),
        group(
            LAPSE,
            Effort::full(1, 5, 28).quick(1, 1, 5).cold(),
            lapse::open,
        ),
        group(
            SESSION,
            Effort::full(1, 5, 25).quick(1, 1, 4).cold(),
            session::open,
        ),
        group(
            RENEWALS,
            Effort::full(1, 4, 12).quick(1, 1, 3),
            renewal::open,
        ),
        group(KEEP, Effort::full(1, 5, 5).quick(1, 3, 2), keep::open),
        group(CONFIRMED_1, Effort::full(2, 15, 6), || {
            confirmed::open(1, 1)
        }),
        group(CONFIRMED_2, Effort::full(2, 15, 8).quick(1, 4, 2), || {
            confirmed::open(2, 1)
        }),
        group(CONFIRMED_3, Effort::full(2, 15, 6), || {
            confirmed::open(3, 1)
        }),
        group(CONFIRMED_16, Effort::full(2, 15, 4), || {
            confirmed::open(2, 16)
        }),
        group(CONFIRMED_200, Effort::full(2, 15, 4), || {
            confirmed::open(2, 200)
        }),
        group(FAIR, Effort::full(2, 5, 16).quick(1, 1, 3), fair::open),
        group(AGAIN, Effort::full(3, 12, 12).quick(1, 6, 2), again::open),
        group(
            CROSSING,
            Effort::full(1, 5, 20).quick(1, 1, 3).cold(),
            crossing::open,
        ),
    ]
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
pub const HOT_LOCKS: [HotLock; 15] = [
    hot_lock("hot lock, 2 clients, 1 ms", 2, 1_000),
    hot_lock("hot lock, 10 clients, 1 ms", 10, 1_000),
    hot_lock(HOT_50, 50, 1_000),
    hot_lock("hot lock, 200 clients, 1 ms", 200, 1_000),
    hot_lock("hot lock, 500 clients, 1 ms", 500, 1_000),
    hot_lock("hot lock, 2 clients, 100 µs", 2, 100),
    hot_lock("hot lock, 10 clients, 100 µs", 10, 100),
    hot_lock("hot lock, 50 clients, 100 µs", 50, 100),
    hot_lock("hot lock, 200 clients, 100 µs", 200, 100),
    hot_lock("hot lock, 500 clients, 100 µs", 500, 100),
    hot_lock("hot lock, 2 clients, 0 ms", 2, 0),
    hot_lock("hot lock, 10 clients, 0 ms", 10, 0),
    hot_lock("hot lock, 50 clients, 0 ms", 50, 0),
    hot_lock("hot lock, 200 clients, 0 ms", 200, 0),
    hot_lock("hot lock, 500 clients, 0 ms", 500, 0),
];

/// A second each, three times; only one of them, once, when there is little time.
fn hot(lock: &HotLock) -> Group {
    let contest = Contest {
        clients: lock.clients,
        section: Duration::from_micros(lock.section_us),
        duration: Duration::from_secs(1),
    };
    // Hundreds who try again and again have all had their turn only seconds after the contest is over.
    let share_s = match lock.clients {
        ..100 => 22,
        100..500 => 30,
        500.. => 44,
    };
    let full = Effort::full(1, 3, share_s).cold();
    Group {
        name: lock.group,
        effort: if lock.group == HOT_50 {
            full.quick(1, 1, 7)
        } else {
            full
        },
        open: Box::new(move || hot::open(contest)),
    }
}

// How much more than in the committed result, as a part of it, is a change and no chance: by how many rounds the quick
// plan has, since the medians of few lie further apart.

/// 36 rounds on two servers.
const MANY_ROUNDS: f64 = 0.10;
/// Five to eight rounds on one server.
const SOME_ROUNDS: f64 = 0.20;
/// The same where thousands take turns, or fewer rounds.
const FEW_ROUNDS: f64 = 0.30;
/// One.
const ONE_ROUND: f64 = 1.0;

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
        tolerance: SOME_ROUNDS,
    }
}

/// The CPU time of commands of another kind beside what they replace.
const fn kind_row(
    name: &'static str,
    group: &'static str,
    what: &'static str,
    way: &'static str,
    against: &'static str,
) -> Row {
    Row {
        value: ratio(group, pair::CPU, way, against),
        ..pair_row(name, group, what, against, None)
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
        tolerance: SOME_ROUNDS,
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
        tolerance: ONE_ROUND,
    }
}

/// A hand-over of a fair lock, by this module beside scripts.
const fn fair_row(
    name: &'static str,
    what: &'static str,
    way: &'static str,
    against: &'static str,
) -> Row {
    Row {
        name,
        what,
        against,
        value: ratio(FAIR, fair::CPU, way, against),
        bound: None,
        goal: None,
        tolerance: FEW_ROUNDS,
    }
}

/// Three of six locks, in crossing orders.
const fn crossing_row(
    name: &'static str,
    what: &'static str,
    figure: &'static str,
    (way, against): (&'static str, &'static str),
) -> Row {
    Row {
        name,
        what,
        against,
        value: ratio(CROSSING, figure, way, against),
        bound: None,
        goal: None,
        tolerance: ONE_ROUND,
    }
}

/// A grant that replicas confirm, beside what is done without.
const fn confirmed_row(
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
        value: ratio(group, confirmed::TAKES, confirmed::CONFIRMED, against),
        bound,
        goal: None,
        tolerance: FEW_ROUNDS,
    }
}

/// A figure as it is, of a group that has one way. Without a bound it belongs to the machine and is only shown.
const fn plain_row(
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    source: Source,
) -> Row {
    Row {
        name,
        what,
        against: unit,
        value: Value::Plain(source),
        bound: None,
        goal: None,
        tolerance: ONE_ROUND,
    }
}

const fn lapse(figure: &'static str) -> Source {
    Source {
        group: LAPSE,
        way: lapse::LAPSES,
        figure,
    }
}

const fn mass(way: &'static str, figure: &'static str) -> Source {
    Source {
        group: MASS,
        way,
        figure,
    }
}

const fn session(figure: &'static str) -> Source {
    Source {
        group: SESSION,
        way: session::ENDS,
        figure,
    }
}

/// A look for deadlocks along a chain, by the server's own time.
const fn chain_row(name: &'static str, what: &'static str, way: &'static str, most: f64) -> Row {
    let source = Source {
        group: CHAIN,
        way,
        figure: deadlock::TIME,
    };
    Row {
        bound: Some(most),
        ..plain_row(name, what, "µs, the server's time", source)
    }
}

/// What the look for deadlocks adds to a wait.
const fn detection_row(
    name: &'static str,
    what: &'static str,
    on: &'static str,
    off: &'static str,
) -> Row {
    Row {
        name,
        what,
        against: "without detection",
        value: ratio(DETECTION, errand::CPU, on, off),
        bound: None,
        goal: None,
        tolerance: FEW_ROUNDS,
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
        tolerance: MANY_ROUNDS,
        ..pair_row("pair/set-del", PAIR, CPU_OF_PAIR, SET_DEL, Some(1.25))
    },
    Row {
        tolerance: MANY_ROUNDS,
        ..pair_row("pair/set-script", PAIR, CPU_OF_PAIR, SET_SCRIPT, Some(0.48))
    },
    Row {
        tolerance: MANY_ROUNDS,
        ..pair_row(
            "pair/counted-hash",
            PAIR,
            CPU_OF_PAIR,
            COUNTED_HASH,
            Some(0.20),
        )
    },
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
    kind_row(
        "pair-shared/read-write-hash",
        PAIR_SHARED,
        "ACQUIRE SHARED + RELEASE, server CPU",
        DLOCK_SHARED,
        READ_WRITE_HASH,
    ),
    kind_row(
        "pair-counted/sorted-set",
        PAIR_COUNTED,
        "ACQUIRE LIMIT 10 + RELEASE, server CPU",
        DLOCK_LIMIT,
        SORTED_SET,
    ),
    kind_row(
        "pair-many/scripts",
        PAIR_MANY,
        "MACQUIRE + MRELEASE of 3 locks, server CPU",
        DLOCK_MANY,
        MANY_SCRIPTS,
    ),
    Row {
        against: "without SESSION",
        ..kind_row(
            "pair-session/plain",
            PAIR_TIED,
            "ACQUIRE SESSION + RELEASE, server CPU",
            DLOCK_SESSION,
            DLOCK,
        )
    },
    Row {
        against: "without AUTO",
        bound: Some(1.15),
        ..kind_row(
            "pair-auto/plain",
            PAIR_TIED,
            "ACQUIRE AUTO + RELEASE, server CPU",
            DLOCK_AUTO,
            DLOCK,
        )
    },
    Row {
        against: "without AUTO",
        bound: Some(1.15),
        ..kind_row(
            "single-auto/plain",
            SINGLE_AUTO,
            "ACQUIRE AUTO, then RELEASE, server CPU",
            DLOCK_AUTO,
            DLOCK,
        )
    },
    kind_row(
        "pair-session/set-script",
        PAIR_TIED,
        "ACQUIRE SESSION + RELEASE, server CPU",
        DLOCK_SESSION,
        SET_SCRIPT,
    ),
    kind_row(
        "guard/script",
        GUARD,
        "GUARD … SET, server CPU",
        guard::GUARD,
        guard::SCRIPT,
    ),
    kind_row(
        "guard/set",
        GUARD,
        "GUARD … SET, server CPU",
        guard::GUARD,
        guard::SET,
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
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "hand-over/3000",
        what: "release → waiter has its reply, p50, 3,000 queued",
        against: PUBLISH_3000,
        value: ratio(HANDOVER, P50, QUEUE_3000, PUBLISH_3000),
        bound: Some(1.5),
        goal: Some(1.35),
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "hand-over/3000-to-100",
        what: "release → waiter has its reply, p50, 3,000 queued",
        against: "100 queued",
        value: ratio(HANDOVER, P50, QUEUE_3000, QUEUE_100),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "publish/3000-to-100",
        what: "publish → subscriber, p50, 3,000 in turn",
        against: "100 in turn",
        value: ratio(HANDOVER, P50, PUBLISH_3000, PUBLISH_100),
        bound: None,
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "expiry/p50",
        what: "lease ends → waiter has its reply, p50",
        against: "µs after the deadline",
        value: lateness(P50),
        bound: Some(2_000.0),
        goal: None,
        tolerance: ONE_ROUND,
    },
    Row {
        name: "expiry/p99",
        what: "lease ends → waiter has its reply, p99",
        against: "µs after the deadline",
        value: lateness(P99),
        bound: Some(5_000.0),
        goal: None,
        tolerance: ONE_ROUND,
    },
    Row {
        name: "ticket/poll",
        what: "FAIRACQUIRE again, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(TICKETS, errand::CPU, ticket::POLL_LONG, ticket::POLL_SHORT),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "ticket/position",
        what: "POSITION, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(
            TICKETS,
            errand::CPU,
            ticket::POSITION_LONG,
            ticket::POSITION_SHORT,
        ),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "ticket/cancel",
        what: "CANCEL + FAIRACQUIRE, 10,000 queued, server CPU",
        against: "100 queued",
        value: ratio(
            TICKETS,
            errand::CPU,
            ticket::CANCEL_LONG,
            ticket::CANCEL_SHORT,
        ),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
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
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "queue/cpu",
        what: "hand-over, server CPU, 10,000 queued",
        against: "100 queued",
        value: ratio(QUEUE, handover::CPU, QUEUE_10000, QUEUE_100),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "holders",
        what: "RELEASE + ACQUIRE SHARED, 10,000 holders, server CPU",
        against: "10 holders",
        value: ratio(HOLDERS, errand::CPU, holders::MANY, holders::FEW),
        bound: Some(1.5),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        name: "notify/cpu",
        what: "hand-over, server CPU, 100,000 wait by NOTIFY",
        against: "100 wait",
        value: ratio(NOTIFY, notice::CPU, notice::MANY, notice::FEW),
        bound: Some(1.3),
        goal: None,
        tolerance: FEW_ROUNDS,
    },
    Row {
        goal: Some(400.0),
        ..plain_row(
            "notify/memory",
            "a wait by NOTIFY",
            "bytes",
            Source {
                group: MEMORY_NOTIFY,
                way: memory::NOTIFY,
                figure: memory::BYTES,
            },
        )
    },
    plain_row(
        "blocked/memory",
        "a connection that waits",
        "bytes",
        Source {
            group: MEMORY_BLOCKED,
            way: memory::BLOCKED,
            figure: memory::BYTES,
        },
    ),
    chain_row(
        "deadlock/circle",
        "a circle of 1,000 owners is found and refused",
        deadlock::CIRCLE,
        1_000.0,
    ),
    chain_row(
        "deadlock/chain",
        "a chain of 1,000 owners is looked at, and let wait",
        deadlock::OPEN_END,
        1_000.0,
    ),
    chain_row(
        "deadlock/longest",
        "a chain of 60,000 owners is looked at as far as one look may go",
        deadlock::LONGEST,
        2_000.0,
    ),
    detection_row(
        "deadlock/wait",
        "ACQUIRE NOTIFY + CANCEL, server CPU, holds nothing",
        deadlock::WAIT_ON,
        deadlock::WAIT_OFF,
    ),
    detection_row(
        "deadlock/wait-with-stake",
        "ACQUIRE NOTIFY + CANCEL, server CPU, holds what is waited for",
        deadlock::STAKE_ON,
        deadlock::STAKE_OFF,
    ),
    plain_row(
        "mass/latest",
        "10,000 leases end in a second: lease ends → waiter, latest",
        "ms after the deadline",
        mass(mass::LEASES, mass::LATEST),
    ),
    plain_row(
        "mass/pause",
        "10,000 leases end in a second: longest pause",
        "ms without an answer to PING",
        mass(mass::LEASES, pause::PAUSE),
    ),
    plain_row(
        "deaths/gone",
        "10,000 connections that wait end: none is in line any more",
        "ms after the first end",
        mass(mass::DEATHS, mass::GONE),
    ),
    plain_row(
        "deaths/pause",
        "10,000 connections that wait end: longest pause",
        "ms without an answer to PING",
        mass(mass::DEATHS, pause::PAUSE),
    ),
    plain_row(
        "lapse/p50",
        "100,000 leases end in a second: lease ends → message, p50",
        "µs after the deadline",
        lapse(P50),
    ),
    plain_row(
        "lapse/p99",
        "100,000 leases end in a second: lease ends → message, p99",
        "µs after the deadline",
        lapse(P99),
    ),
    plain_row(
        "lapse/latest",
        "100,000 leases end in a second: lease ends → message, latest",
        "µs after the deadline",
        lapse(MAX),
    ),
    plain_row(
        "lapse/pause",
        "100,000 leases end in a second: longest pause",
        "ms without an answer to PING",
        lapse(pause::PAUSE),
    ),
    Row {
        bound: Some(4.0),
        ..plain_row(
            "renewal/cpu",
            "20,000 holds are renewed about once a second by AUTO",
            "µs, server CPU a renewal",
            Source {
                group: RENEWALS,
                way: renewal::RENEWALS,
                figure: renewal::CPU,
            },
        )
    },
    Row {
        bound: Some(50.0),
        ..plain_row(
            "keep/cpu",
            "KEEP with 10,000 holds of its connection",
            "µs, server CPU",
            Source {
                group: KEEP,
                way: keep::KEEP,
                figure: keep::CPU,
            },
        )
    },
    plain_row(
        "session/handed-over",
        "10,000 connections with a SESSION end: all locks handed over",
        "ms after the first end",
        session(session::HANDED_OVER),
    ),
    plain_row(
        "session/pause",
        "10,000 connections with a SESSION end: longest pause",
        "ms without an answer to PING",
        session(pause::PAUSE),
    ),
    Row {
        name: "session/pause-to-plain",
        what: "10,000 connections with a SESSION end: longest pause",
        against: "connections that hold nothing",
        value: ratio(SESSION, pause::PAUSE, session::ENDS, session::PLAIN_ENDS),
        bound: None,
        goal: None,
        tolerance: ONE_ROUND,
    },
    confirmed_row(
        "confirmed-1/set-wait",
        CONFIRMED_1,
        "a grant confirmed by a replica",
        confirmed::SET_WAIT,
        Some(0.85),
    ),
    confirmed_row(
        "confirmed-1/unconfirmed",
        CONFIRMED_1,
        "a grant confirmed by a replica",
        confirmed::UNCONFIRMED,
        Some(2.0),
    ),
    confirmed_row(
        "confirmed-2/set-wait",
        CONFIRMED_2,
        "the same, by one of two",
        confirmed::SET_WAIT,
        Some(0.85),
    ),
    confirmed_row(
        "confirmed-2/unconfirmed",
        CONFIRMED_2,
        "the same, by one of two",
        confirmed::UNCONFIRMED,
        Some(2.0),
    ),
    confirmed_row(
        "confirmed-3/set-wait",
        CONFIRMED_3,
        "the same, by two of three",
        confirmed::SET_WAIT,
        Some(0.85),
    ),
    confirmed_row(
        "confirmed-3/unconfirmed",
        CONFIRMED_3,
        "the same, by two of three",
        confirmed::UNCONFIRMED,
        Some(2.0),
    ),
    confirmed_row(
        "confirmed-16-connections/set-wait",
        CONFIRMED_16,
        "by one of two, 16 connections at once",
        confirmed::SET_WAIT,
        None,
    ),
    confirmed_row(
        "confirmed-16-connections/unconfirmed",
        CONFIRMED_16,
        "by one of two, 16 connections at once",
        confirmed::UNCONFIRMED,
        None,
    ),
    confirmed_row(
        "confirmed-200-connections/set-wait",
        CONFIRMED_200,
        "by one of two, 200 connections at once",
        confirmed::SET_WAIT,
        None,
    ),
    confirmed_row(
        "confirmed-200-connections/unconfirmed",
        CONFIRMED_200,
        "by one of two, 200 connections at once",
        confirmed::UNCONFIRMED,
        Some(2.0),
    ),
    fair_row(
        "fair/1",
        "a fair lock: hand-over and queueing again, 1 queued, server CPU",
        fair::TICKETS_1,
        fair::SCRIPTS_1,
    ),
    fair_row(
        "fair/1000",
        "the same, 1,000 queued",
        fair::TICKETS_1000,
        fair::SCRIPTS_1000,
    ),
    fair_row(
        "fair/10000",
        "the same, 10,000 queued",
        fair::TICKETS_10000,
        fair::SCRIPTS_10000,
    ),
    kind_row(
        "again/renew",
        AGAIN,
        "RENEW, server CPU",
        again::RENEW,
        again::RENEW_SCRIPT,
    ),
    kind_row(
        "again/re-entered",
        AGAIN,
        "ACQUIRE + RELEASE within a hold, server CPU",
        again::REENTER,
        again::REENTER_SCRIPTS,
    ),
    crossing_row(
        "crossing/worst-wait",
        "MACQUIRE of 3 of 6 locks, 16 clients, 1 ms each: longest wait",
        MAX,
        (crossing::AT_ONCE, crossing::TIMED_OUT),
    ),
    crossing_row(
        "crossing/worst-wait-refused",
        "MACQUIRE of 3 of 6 locks, 16 clients, 1 ms each: longest wait",
        MAX,
        (crossing::AT_ONCE, crossing::REFUSED),
    ),
    crossing_row(
        "crossing/cpu",
        "MACQUIRE + MRELEASE, the same, server CPU",
        hot::CPU,
        (crossing::AT_ONCE, crossing::TIMED_OUT),
    ),
    Row {
        against: "MACQUIRE",
        ..crossing_row(
            "crossing/completions",
            "completions by SET one after the other, the same",
            crossing::COMPLETIONS,
            (crossing::TIMED_OUT, crossing::AT_ONCE),
        )
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
    growth::PAIR_CPU,
    growth::PAIR_INSTRUCTIONS,
    growth::HANDOVER_CPU,
    growth::HANDOVER_INSTRUCTIONS,
    growth::REPLICAS_PAIR_CPU,
    growth::REPLICAS_PAIR_INSTRUCTIONS,
    growth::REPLICAS_HANDOVER_CPU,
    growth::REPLICAS_HANDOVER_INSTRUCTIONS,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What the shares of all groups come to. The last round of a group may end later.
    fn minutes(is_quick: bool) -> f64 {
        let shares = groups()
            .into_iter()
            .filter_map(|group| Some(group.effort.stint(is_quick)?.share));
        shares.sum::<Duration>().as_secs_f64() / 60.0
    }

    #[test]
    fn the_quick_plan_fits_in_two_minutes() {
        assert!(minutes(true) <= 1.85, "{}", minutes(true));
    }

    #[test]
    fn the_full_plan_fits_in_twenty_minutes() {
        assert!(minutes(false) <= 20.0, "{}", minutes(false));
    }

    #[test]
    fn every_row_is_of_a_group() {
        let groups = groups();
        for row in ROWS {
            let is_its = |group: &Group| group.name == row.group();
            assert!(groups.iter().any(is_its), "{}", row.name);
        }
    }
}
