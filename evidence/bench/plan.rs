//! All groups of the plan. `results/rows.txt` has the rows.

use std::time::Duration;

use crate::contending::contest::Contest;
use crate::contending::{crossing, hot};
use crate::holding::{
    again, beside, confirmed, crowd, growth, guard, holders, kept, memory, pair, renewal,
};
use crate::tools::locking::{COUNTING, LOCKINGS, MANY, READING, RENEWED, TIED};
use crate::tools::setting::Setting::{AofAlways, AofEverysec, Memory, Replica};
use crate::waiting::{
    deadlock, ephemeral, expiry, fair, handover, lapse, mass, programs, session, ticket,
};
use crate::way::{Effort, Group, Opened};

/// The group of the uncontended pair.
pub const PAIR: &str = "pair";
/// The uncontended pair with an append-only file.
pub const PAIR_EVERYSEC: &str = "pair, AOF everysec";
/// From a release to the next program, which waits as our clients do.
pub const PROGRAMS: &str = "hand-over, programs";
/// From a release to the waiter's reply.
pub const HANDOVER: &str = "hand-over";
/// The memory of a held lock.
pub const MEMORY: &str = "memory";

/// Pairs in a sample: some 20 ms of CPU time, so that the cost of INFO is negligible, and short, so that a disturbance of the
/// machine affects all samples of one round or none. There are many rounds instead.
const PAIRS: usize = 10_000;

/// With an AOF a sample lasts longer: the file is synced once a second, and every sample should have its share of that.
const PAIRS_AOF: usize = 40_000;

/// Pairs in a sample, one command after the other: enough for one in a thousand, and few enough for many rounds where a round
/// trip takes a third of a millisecond.
const SINGLES: usize = 1_000;

/// Returns all groups.
pub fn groups() -> Vec<Group> {
    let full = Effort::full;
    let of_kind = full(3, 12, 16).quick(1, 8, 2);
    let mut groups = vec![
        group(PAIR, full(5, 36, 64).quick(2, 18, 12), || {
            pair::pipelined(Memory, &LOCKINGS, PAIRS)
        }),
        group(PAIR_EVERYSEC, full(3, 8, 45).quick(1, 5, 8), || {
            pair::pipelined(AofEverysec, &LOCKINGS, PAIRS_AOF)
        }),
        group("pair, AOF always", full(2, 12, 35), || {
            pair::pipelined(AofAlways, &LOCKINGS, PAIRS)
        }),
        group("pair, a replica", full(2, 16, 25), || {
            pair::pipelined(Replica, &LOCKINGS, PAIRS)
        }),
        group("pair, shared", of_kind, || {
            pair::pipelined(Memory, &READING, PAIRS)
        }),
        group("pair, counted", of_kind, || {
            pair::pipelined(Memory, &COUNTING, PAIRS)
        }),
        group("pair, three locks", of_kind, || {
            pair::pipelined(Memory, &MANY, PAIRS)
        }),
        group("pair, tied", of_kind, || {
            pair::pipelined(Memory, &TIED, PAIRS)
        }),
        group("pair, a subscriber", of_kind, || {
            beside::open_subscriber(PAIRS)
        }),
        group("pair of others", full(4, 12, 16).quick(2, 8, 2), || {
            beside::open_others(PAIRS)
        }),
        group("guarded write", full(3, 12, 10).quick(1, 8, 3), || {
            guard::open(PAIRS)
        }),
        group("single pair", full(2, 15, 24), || {
            pair::single(Memory, &LOCKINGS, SINGLES)
        }),
        group("single pair, AUTO", full(2, 12, 10).quick(1, 8, 2), || {
            pair::single(Memory, &RENEWED, SINGLES)
        }),
        group(PROGRAMS, full(3, 10, 16).quick(1, 8, 3), programs::open),
        group(HANDOVER, full(3, 10, 40).quick(1, 5, 7), handover::open),
        group("expiry", full(2, 6, 25).quick(1, 3, 4), expiry::open),
        group("tickets", full(3, 7, 22).quick(1, 5, 5), ticket::open),
        group(MEMORY, full(1, 3, 24).quick(1, 1, 8).cold(), memory::open),
        group("pair among held locks", full(2, 7, 25), crowd::open),
        group(
            "hand-over, very long queue",
            full(2, 8, 22),
            handover::open_crowded,
        ),
        group("masses", full(1, 3, 25).cold(), mass::open),
        group("shared holds", full(3, 7, 18).quick(1, 5, 4), holders::open),
        group(
            "hand-over, session",
            full(3, 7, 22).quick(1, 3, 4),
            session::open,
        ),
        group(
            "memory, session",
            full(1, 3, 8).quick(1, 1, 2).cold(),
            memory::open_in_session,
        ),
        group(
            "memory, blocked",
            full(1, 3, 30).cold(),
            memory::open_blocked,
        ),
        group(
            "deadlock, long chain",
            full(3, 4, 5).quick(1, 3, 2),
            deadlock::open_chain,
        ),
        group(
            "deadlock, detection",
            full(3, 5, 20).quick(1, 4, 3),
            deadlock::open_wait,
        ),
        group(
            "mass of leases, session",
            full(1, 5, 28).quick(1, 1, 4).cold(),
            lapse::open,
        ),
        group(
            "mass of ephemeral holds",
            full(1, 5, 25).quick(1, 1, 3).cold(),
            ephemeral::open,
        ),
        group(
            "renewals by the server",
            full(1, 4, 12).quick(1, 1, 3),
            renewal::open,
        ),
        group("kept session", full(1, 5, 5).quick(1, 3, 2), kept::open),
        group("confirmed grant, a replica", full(2, 15, 6), || {
            confirmed::open(1, 1)
        }),
        group(
            "confirmed grant, two replicas",
            full(2, 15, 8).quick(1, 4, 2),
            || confirmed::open(2, 1),
        ),
        group("confirmed grant, three replicas", full(2, 15, 6), || {
            confirmed::open(3, 1)
        }),
        group(
            "confirmed grant, two replicas, 16 connections",
            full(2, 15, 4),
            || confirmed::open(2, 16),
        ),
        group(
            "confirmed grant, two replicas, 200 connections",
            full(2, 15, 4),
            || confirmed::open(2, 200),
        ),
        group("fair lock", full(2, 5, 16).quick(1, 1, 3), fair::open),
        group(
            "while it is held",
            full(3, 12, 12).quick(1, 6, 2),
            again::open,
        ),
        group(
            "three locks, crossing",
            full(1, 5, 20).quick(1, 1, 3).cold(),
            crossing::open,
        ),
        group("growth of a cluster", full(1, 12, 11), growth::open),
    ];
    groups.extend(HOT_LOCKS.iter().map(hot));
    groups
}

fn group(name: &'static str, effort: Effort, open: fn() -> Opened) -> Group {
    Group {
        name,
        effort,
        open: Box::new(open),
    }
}

/// A hot lock.
pub struct HotLock {
    /// The group's name.
    pub group: &'static str,
    /// The number of clients.
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
    hot_lock("hot lock, 50 clients, 1 ms", 50, 1_000),
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

/// Returns the group of a hot lock: a second each, three times; in the quick run only one of them, once.
fn hot(lock: &HotLock) -> Group {
    let contest = Contest {
        clients: lock.clients,
        section: Duration::from_micros(lock.section_us),
        duration: Duration::from_secs(1),
    };
    // Hundreds of clients that poll have all had their turn only seconds after the end of the contest.
    let share_s = match lock.clients {
        ..100 => 22,
        100..500 => 30,
        500.. => 44,
    };
    let full = Effort::full(1, 3, share_s).cold();
    Group {
        name: lock.group,
        effort: if (lock.clients, lock.section_us) == (50, 1_000) {
            full.quick(1, 1, 7)
        } else {
            full
        },
        open: Box::new(move || hot::open(contest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::row::ROWS;

    /// Returns the sum of the shares of all groups. The last round of a group may end later.
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
        for row in ROWS.iter() {
            let is_its = |group: &Group| group.name == row.group();
            assert!(groups.iter().any(is_its), "{}", row.name);
        }
    }
}
