//! All groups of the plan: `plan.txt` says how much of each is measured. `results/rows.txt` has the rows.

use std::time::Duration;

use crate::contending::contest::Contest;
use crate::contending::{crossing, hot};
use crate::holding::{
    again, beside, confirmed, crowd, growth, guard, holders, kept, memory, pair, renewal,
};
use crate::tools::locking::lockings;
use crate::tools::setting::Setting::{AofAlways, AofEverysec, Memory, Replica};
use crate::waiting::{
    deadlock, ephemeral, expiry, fair, handover, lapse, mass, programs, session, ticket,
};
use crate::way::{Effort, Group, Opened, Stint};

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
/// A lock that many clients want; the rest of the name has their number, and how long each keeps it.
pub const HOT_LOCK: &str = "hot lock, ";

/// Pairs in a sample: some 20 ms of CPU time, so that the cost of INFO is negligible, and short, so that a disturbance of the
/// machine affects all samples of one round or none. There are many rounds instead.
const PAIRS: usize = 10_000;

/// With an AOF a sample lasts longer: the file is synced once a second, and every sample should have its share of that.
const PAIRS_AOF: usize = 40_000;

/// Pairs in a sample, one command after the other: enough for one in a thousand, and few enough for many rounds where a round
/// trip takes a third of a millisecond.
const SINGLES: usize = 1_000;

/// Returns all groups.
///
/// # Panics
/// If a line of the plan cannot be read, or no way is known for its group.
pub fn groups() -> Vec<Group> {
    let lines = include_str!("plan.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let group = |line| read(line).unwrap_or_else(|| panic!("no group: {line}"));
    lines.map(group).collect()
}

fn read(line: &'static str) -> Option<Group> {
    let mut cells = line.split(" | ");
    let name = cells.next()?;
    Some(Group {
        name,
        effort: Effort {
            full: stint(cells.next()?)?,
            quick: match cells.next()? {
                "–" => None,
                quick => Some(stint(quick)?),
            },
            warms_up: match cells.next() {
                None => true,
                Some("cold") => false,
                Some(_) => return None,
            },
        },
        open: match contest(name) {
            Some(contest) => Box::new(move || hot::open(contest)),
            None => Box::new(opening(name)?),
        },
    })
}

/// Reads `3 × 12, 16 s`.
fn stint(cell: &str) -> Option<Stint> {
    let (sittings, rest) = cell.split_once(" × ")?;
    let (rounds, share) = rest.strip_suffix(" s")?.split_once(", ")?;
    Some(Stint {
        sittings: sittings.parse().ok()?,
        rounds: rounds.parse().ok()?,
        share: Duration::from_secs(share.parse().ok()?),
    })
}

/// Returns the contest of a hot lock: a second each.
fn contest(group: &str) -> Option<Contest> {
    let (clients, section) = group.strip_prefix(HOT_LOCK)?.split_once(" clients, ")?;
    let (section, unit) = section.split_once(' ')?;
    let section = section.parse().ok()?;
    Some(Contest {
        clients: clients.parse().ok()?,
        section: match unit {
            "ms" => Duration::from_millis(section),
            _ => Duration::from_micros(section),
        },
        duration: Duration::from_secs(1),
    })
}

/// Returns what opens a group that is no hot lock.
fn opening(group: &str) -> Option<fn() -> Opened> {
    Some(match group {
        PAIR => || pair::pipelined(Memory, lockings("exclusive"), PAIRS),
        PAIR_EVERYSEC => || pair::pipelined(AofEverysec, lockings("exclusive"), PAIRS_AOF),
        "pair, AOF always" => || pair::pipelined(AofAlways, lockings("exclusive"), PAIRS),
        "pair, a replica" => || pair::pipelined(Replica, lockings("exclusive"), PAIRS),
        "pair, shared" => || pair::pipelined(Memory, lockings("shared"), PAIRS),
        "pair, counted" => || pair::pipelined(Memory, lockings("counted"), PAIRS),
        "pair, three locks" => || pair::pipelined(Memory, lockings("three"), PAIRS),
        "pair, tied" => || pair::pipelined(Memory, lockings("tied"), PAIRS),
        "pair, a subscriber" => || beside::open_subscriber(PAIRS),
        "pair of others" => || beside::open_others(PAIRS),
        "guarded write" => || guard::open(PAIRS),
        "single pair" => || pair::single(Memory, lockings("exclusive"), SINGLES),
        "single pair, AUTO" => || pair::single(Memory, lockings("renewed"), SINGLES),
        PROGRAMS => programs::open,
        HANDOVER => handover::open,
        "expiry" => expiry::open,
        "tickets" => ticket::open,
        MEMORY => memory::open,
        "pair among held locks" => crowd::open,
        "hand-over, very long queue" => handover::open_crowded,
        "masses" => mass::open,
        "shared holds" => holders::open,
        "hand-over, session" => session::open,
        "memory, session" => memory::open_in_session,
        "memory, blocked" => memory::open_blocked,
        "deadlock, long chain" => deadlock::open_chain,
        "deadlock, detection" => deadlock::open_wait,
        "mass of leases, session" => lapse::open,
        "mass of ephemeral holds" => ephemeral::open,
        "renewals by the server" => renewal::open,
        "kept session" => kept::open,
        "confirmed grant, a replica" => || confirmed::open(1, 1),
        "confirmed grant, two replicas" => || confirmed::open(2, 1),
        "confirmed grant, three replicas" => || confirmed::open(3, 1),
        "confirmed grant, two replicas, 16 connections" => || confirmed::open(2, 16),
        "confirmed grant, two replicas, 200 connections" => || confirmed::open(2, 200),
        "fair lock" => fair::open,
        "while it is held" => again::open,
        "three locks, crossing" => crossing::open,
        "growth of a cluster" => growth::open,
        _ => return None,
    })
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
