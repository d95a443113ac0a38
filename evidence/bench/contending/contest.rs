//! Many clients that want one lock: who got it when, and what that says.

use std::time::Duration;

use crate::tools::percentile::Durations;
use crate::way::Figure;

/// How it is fought.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// Clients, each with a connection of its own. Each asks again as soon as it has given back.
    pub clients: usize,
    /// How long a client keeps the lock, doing nothing.
    pub section: Duration,
    /// For how long clients ask. What they have asked for until then they get.
    pub duration: Duration,
}

/// One time that a client got the lock. Times are from the start of the contest.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Who.
    pub client: usize,
    /// When it asked.
    pub asked: Duration,
    /// When it was told that it has the lock.
    pub granted: Duration,
}

/// Turns in a second.
pub const RATE: &str = "hand-overs/s";
/// Jain's index of the turns of each client: 1 when all had as many, 1/n when one had all.
pub const JAIN: &str = "Jain index";
/// The most turns that others had who had asked later than somebody who still waited, by more than it may
/// take from the client's asking to the server's hearing it.
pub const BYPASS: &str = "longest bypass";

/// Who asked within this time of each other has asked at the same time.
const AT_ONCE: Duration = Duration::from_millis(2);

/// What the turns of a contest say.
pub fn figures(contest: &Contest, turns: &[Turn]) -> Vec<Figure> {
    let in_time = turns
        .iter()
        .filter(|turn| turn.granted < contest.duration)
        .count();
    let mut waits = Durations::new();
    for turn in turns {
        waits.record(turn.granted.saturating_sub(turn.asked));
    }
    let mut figures = vec![(RATE, in_time as f64 / contest.duration.as_secs_f64())];
    figures.extend(waits.figures());
    figures.push((JAIN, jain(contest.clients, turns)));
    figures.push((BYPASS, longest_bypass(turns) as f64));
    figures
}

fn jain(clients: usize, turns: &[Turn]) -> f64 {
    let mut counts = vec![0.0_f64; clients];
    for turn in turns {
        counts[turn.client] += 1.0;
    }
    let sum: f64 = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    sum * sum / (clients as f64 * squares)
}

/// For each turn, how many asked later, and not [`AT_ONCE`], and were granted earlier; the most of all.
fn longest_bypass(turns: &[Turn]) -> usize {
    let mut by_grant: Vec<&Turn> = turns.iter().collect();
    by_grant.sort_by_key(|turn| turn.granted);
    let mut by_asking: Vec<(Duration, usize)> = by_grant
        .iter()
        .enumerate()
        .map(|(rank, turn)| (turn.asked, rank))
        .collect();
    by_asking.sort_unstable();
    // From the last that asked to the first; counted are those that asked later.
    let mut later = Counts::new(turns.len());
    let mut still_to_count = by_asking.iter().rev().peekable();
    let mut longest = 0;
    for (asked, rank) in by_asking.iter().rev() {
        while let Some((_, other)) = still_to_count.next_if(|(other, _)| *other > *asked + AT_ONCE)
        {
            later.add(*other);
        }
        longest = longest.max(later.below(*rank));
    }
    longest
}

/// How many numbers were added, and how many of them are below a given one (a Fenwick tree).
struct Counts(Vec<usize>);

impl Counts {
    fn new(len: usize) -> Counts {
        Counts(vec![0; len + 1])
    }

    fn add(&mut self, number: usize) {
        let mut at = number + 1;
        while at < self.0.len() {
            self.0[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    fn below(&self, number: usize) -> usize {
        let mut at = number;
        let mut count = 0;
        while at > 0 {
            count += self.0[at];
            at &= at - 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(client: usize, asked: u64, granted: u64) -> Turn {
        let [asked, granted] = [asked, granted].map(|tens| Duration::from_millis(10 * tens));
        Turn {
            client,
            asked,
            granted,
        }
    }

    #[test]
    fn bypasses() {
        let check = |turns: &[Turn], longest| assert_eq!(longest_bypass(turns), longest);
        check(&[], 0);
        check(&[turn(0, 1, 2), turn(1, 2, 3), turn(2, 3, 4)], 0);
        // The first to ask is the last to be served.
        check(&[turn(0, 1, 9), turn(1, 2, 3), turn(2, 3, 4)], 2);
        // Client 1 gets it twice while client 0 waits; what it asked for before does not count.
        check(
            &[
                turn(1, 0, 2),
                turn(0, 1, 8),
                turn(1, 3, 4),
                turn(1, 5, 6),
                turn(2, 7, 9),
            ],
            2,
        );
    }

    #[test]
    fn fairness() {
        let all_alike = [turn(0, 0, 1), turn(1, 0, 2)];
        let one_has_all = [turn(0, 0, 1), turn(0, 1, 2)];
        assert_eq!(jain(2, &all_alike), 1.0);
        assert_eq!(jain(2, &one_has_all), 0.5);
    }
}
