//! The clients' beliefs, and the faults in them.

use std::collections::HashMap;

use nix::time::{clock_gettime, ClockId};

/// An instant, in nanoseconds of the one monotonic clock of this machine. The drivers in Java and Go also read this clock.
pub type Nanos = i64;

pub const MS: Nanos = 1_000_000;

/// The number of groups of clients.
pub const GROUPS: usize = 2;

/// Returns the time of the clock that all clients read.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux and macOS has it");
    time.tv_sec() * 1_000 * MS + time.tv_nsec()
}

/// How a client's hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The release was answered as done.
    Released,
    /// The server reported, within the promised time, that the client does not hold the lock.
    Lost,
    /// The release was not answered, or its outcome is unknown.
    Unknown,
}

/// The time in which a client believed that it had a lock: from the answer until it began to release it, or until its lease ended
/// by its own clock.
#[derive(Clone, Debug)]
pub struct Belief {
    pub lock: usize,
    /// The client's group.
    pub group: usize,
    pub client: String,
    pub from: Nanos,
    pub until: Nanos,
    pub end: End,
}

/// A fault, from its beginning until shortly before the next one.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub from: Nanos,
    pub until: Nanos,
    /// Whether the fault had its effect: a replica was promoted, where there are replicas.
    pub took_effect: bool,
    /// Whether a Sentinel had seen its own timer stall, and decided nothing for half a minute: the machine was too busy for the
    /// times of this round to mean anything.
    pub tilted: bool,
}

/// The observations of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub grants: usize,
    /// Grants of a lock in which another client believed.
    pub twice: usize,
    pub longest: Nanos,
    pub together: Nanos,
    pub lost: usize,
    pub unknown: usize,
    /// For each round whose time counts: the longest time in which a group of clients was granted nothing.
    pub gaps: Vec<Nanos>,
}

impl Seen {
    /// Analyses the clients' beliefs.
    pub fn of(beliefs: &[Belief], rounds: &[Round]) -> Seen {
        let mut seen = Seen {
            grants: beliefs.len(),
            ..Seen::default()
        };
        let mut locks: HashMap<usize, Vec<&Belief>> = HashMap::new();
        for belief in beliefs {
            seen.lost += usize::from(belief.end == End::Lost);
            seen.unknown += usize::from(belief.end == End::Unknown);
            if belief.from < belief.until {
                locks.entry(belief.lock).or_default().push(belief);
            }
        }
        for of_one in locks.values_mut() {
            of_one.sort_by_key(|belief| belief.from);
            // The earlier belief that lasts longest.
            let mut busy: Option<&Belief> = None;
            for belief in of_one.iter().copied() {
                if let Some(before) = busy.filter(|before| before.until > belief.from) {
                    let together = before.until.min(belief.until) - belief.from;
                    seen.twice += 1;
                    seen.together += together;
                    seen.longest = seen.longest.max(together);
                }
                if busy.is_none_or(|before| before.until < belief.until) {
                    busy = Some(belief);
                }
            }
        }
        for round in rounds.iter().filter(|round| !round.tilted) {
            let of_group = |group: usize| {
                let of_it = beliefs.iter().filter(move |belief| belief.group == group);
                let mut grants: Vec<Nanos> = of_it
                    .map(|belief| belief.from)
                    .filter(|at| (round.from..round.until).contains(at))
                    .collect();
                grants.sort_unstable();
                grants.extend([round.until]);
                let mut last = round.from;
                let gaps = grants.into_iter().map(|at| {
                    let gap = at - last;
                    last = at;
                    gap
                });
                gaps.max().unwrap_or_default()
            };
            seen.gaps
                .push((0..GROUPS).map(of_group).max().unwrap_or_default());
        }
        seen
    }

    /// Returns the median of the rounds' longest gaps.
    pub fn median_gap(&self) -> Nanos {
        let mut gaps = self.gaps.clone();
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied().unwrap_or_default()
    }

    pub fn longest_gap(&self) -> Nanos {
        self.gaps.iter().copied().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(client: &str, from: Nanos, until: Nanos) -> Belief {
        Belief {
            lock: 0,
            group: 0,
            client: client.into(),
            from: from * MS,
            until: until * MS,
            end: End::Released,
        }
    }

    fn twice(beliefs: &[Belief]) -> (usize, Nanos, Nanos) {
        let seen = Seen::of(beliefs, &[]);
        (seen.twice, seen.longest / MS, seen.together / MS)
    }

    #[test]
    fn a_lock_that_is_granted_twice_is_found_and_measured() {
        let two = [belief("a", 0, 10), belief("b", 7, 12)];
        assert_eq!(twice(&two), (1, 3, 3));
        let inside = [
            belief("a", 0, 10),
            belief("b", 2, 3),
            belief("c", 5, 9),
            belief("d", 9, 20),
        ];
        assert_eq!(twice(&inside), (3, 4, 6));
    }

    #[test]
    fn one_after_the_other_and_other_locks_are_right() {
        let mut beliefs = vec![belief("a", 0, 10), belief("b", 10, 12), belief("a", 12, 13)];
        assert_eq!(twice(&beliefs), (0, 0, 0));
        beliefs.push(belief("c", 1, 2));
        beliefs[3].lock = 1;
        assert_eq!(twice(&beliefs), (0, 0, 0));
        // A grant that came after its own lease is no belief.
        beliefs.push(belief("d", 5, 5));
        assert_eq!(twice(&beliefs), (0, 0, 0));
    }

    #[test]
    fn losses_are_counted() {
        let mut beliefs = [belief("a", 0, 1), belief("b", 1, 2), belief("c", 2, 3)];
        beliefs[0].end = End::Lost;
        beliefs[1].end = End::Unknown;
        let seen = Seen::of(&beliefs, &[]);
        assert_eq!((seen.grants, seen.lost, seen.unknown), (3, 1, 1));
    }

    #[test]
    fn the_longest_time_of_a_group_without_a_grant_includes_both_ends() {
        let round = |from: Nanos, until: Nanos| Round {
            from: from * MS,
            until: until * MS,
            took_effect: true,
            tilted: until == 2_009,
        };
        let mut beliefs = vec![
            belief("a", 90, 91),
            belief("b", 150, 151),
            belief("c", 160, 161),
        ];
        let rounds = [round(100, 200), round(155, 170), round(2_000, 2_009)];
        // The other group has no grants at all.
        assert_eq!(Seen::of(&beliefs, &rounds).gaps, [100 * MS, 15 * MS]);
        let mut others = beliefs.clone();
        others.iter_mut().for_each(|belief| belief.group = 1);
        beliefs.extend(others);
        let seen = Seen::of(&beliefs, &rounds);
        assert_eq!(seen.gaps, [50 * MS, 10 * MS]);
        assert_eq!((seen.longest_gap(), seen.median_gap()), (50 * MS, 50 * MS));
    }
}
