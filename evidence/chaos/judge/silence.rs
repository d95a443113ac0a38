//! How long a client that asks all the time was granted nothing.

use crate::client::PULSES;
use crate::history::{History, Micros, Round};

/// Returns the longest time without a grant of one of the pulses, for each round, shortest first.
pub fn longest(history: &History) -> Vec<Micros> {
    let pulses = PULSES.map(|lock| {
        let beliefs = history.beliefs.iter().filter(|belief| belief.lock == lock);
        let mut grants: Vec<Micros> = beliefs.map(|belief| belief.from).collect();
        grants.sort_unstable();
        grants
    });
    let of_round = |round: &Round| {
        let pulses = pulses.iter().filter(|grants| !grants.is_empty());
        pulses.map(|grants| in_round(grants, round)).max()
    };
    let mut longest: Vec<Micros> = history.rounds.iter().filter_map(of_round).collect();
    longest.sort_unstable();
    longest
}

fn in_round(grants: &[Micros], round: &Round) -> Micros {
    let last = grants.last().copied().unwrap_or_default().max(round.calm);
    let ends = grants.iter().copied().chain([last]);
    let gaps = [0].into_iter().chain(grants.iter().copied()).zip(ends);
    let gaps = gaps.filter(|(from, until)| *until > round.from && *from < round.calm);
    gaps.map(|(from, until)| until - from).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SECOND;
    use crate::judge::planted::{belief, round};

    fn history(grants: &[u64]) -> History {
        History {
            beliefs: (grants.iter())
                .map(|at| belief(PULSES[0], "a", *at, *at, at + 1))
                .collect(),
            rounds: vec![round(10, 20)],
            ..History::default()
        }
    }

    #[test]
    fn the_gap_around_a_fault_is_measured() {
        assert_eq!(longest(&history(&[1, 9, 16, 17, 30])), [13 * SECOND]);
        assert_eq!(longest(&history(&[1, 9, 16, 17, 18, 21])), [7 * SECOND]);
    }

    #[test]
    fn silence_to_the_end_counts() {
        assert_eq!(longest(&history(&[1, 9])), [11 * SECOND]);
    }
}
