//! The observations of a cell, from its clients' beliefs.

use dlock_harness::belief::{overlap, Belief, End, Micros};

/// The number of groups of clients.
pub const GROUPS: usize = 2;

/// Returns the group of a client, whose name is `GROUP-NUMBER`.
pub fn group_of(client: &str) -> Option<usize> {
    client.split('-').next()?.parse().ok()
}

/// A fault, from its beginning until shortly before the next one.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub from: Micros,
    pub until: Micros,
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
    pub longest: Micros,
    pub lost: usize,
    /// For each round whose time counts: the longest time in which a group of clients was granted nothing.
    pub gaps: Vec<Micros>,
}

impl Seen {
    /// Analyses the clients' beliefs.
    pub fn of(beliefs: &[Belief], rounds: &[Round]) -> Seen {
        let overlap = overlap(beliefs);
        let lost = beliefs.iter().filter(|belief| belief.end == End::Lost);
        let mut seen = Seen {
            grants: beliefs.len(),
            twice: overlap.beside,
            longest: overlap.longest,
            lost: lost.count(),
            gaps: Vec::new(),
        };
        for round in rounds.iter().filter(|round| !round.tilted) {
            let of_group = |group: usize| {
                let of_it = beliefs
                    .iter()
                    .filter(move |belief| group_of(&belief.owner) == Some(group));
                let mut grants: Vec<Micros> = of_it
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
    pub fn median_gap(&self) -> Micros {
        let mut gaps = self.gaps.clone();
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied().unwrap_or_default()
    }

    pub fn longest_gap(&self) -> Micros {
        self.gaps.iter().copied().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use dlock_harness::belief::MILLISECOND as MS;

    use super::*;

    fn belief(client: &str, from: Micros, until: Micros) -> Belief {
        Belief::new("0", client, from * MS, until * MS)
    }

    #[test]
    fn grants_beside_an_owner_and_losses_are_counted() {
        let mut beliefs = [
            belief("0-a", 0, 10),
            belief("0-b", 7, 12),
            belief("1-c", 12, 13),
        ];
        beliefs[0].end = End::Lost;
        beliefs[1].end = End::Unknown;
        let seen = Seen::of(&beliefs, &[]);
        assert_eq!((seen.grants, seen.lost), (3, 1));
        assert_eq!((seen.twice, seen.longest), (1, 3 * MS));
    }

    #[test]
    fn the_longest_time_of_a_group_without_a_grant_includes_both_ends() {
        let round = |from: Micros, until: Micros| Round {
            from: from * MS,
            until: until * MS,
            took_effect: true,
            tilted: until == 2_009,
        };
        let mut beliefs = vec![
            belief("0-a", 90, 91),
            belief("0-b", 150, 151),
            belief("0-c", 160, 161),
        ];
        let rounds = [round(100, 200), round(155, 170), round(2_000, 2_009)];
        // The other group has no grants at all.
        assert_eq!(Seen::of(&beliefs, &rounds).gaps, [100 * MS, 15 * MS]);
        let mut others = beliefs.clone();
        others
            .iter_mut()
            .for_each(|belief| belief.owner = "1-a".into());
        beliefs.extend(others);
        let seen = Seen::of(&beliefs, &rounds);
        assert_eq!(seen.gaps, [50 * MS, 10 * MS]);
        assert_eq!((seen.longest_gap(), seen.median_gap()), (50 * MS, 50 * MS));
    }
}
