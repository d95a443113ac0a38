//! Many clients that want one lock: the grants of each, and figures about them.

use std::time::Duration;

use crate::tools::percentile::Durations;
use crate::way::Figure;

/// The setting of a contest.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// Clients, each with a connection of its own. Each asks again as soon as it has released.
    pub clients: usize,
    /// How long a client keeps the lock, doing nothing.
    pub section: Duration,
    /// How long clients ask. Every request of this time is granted in the end.
    pub duration: Duration,
}

/// One grant of the lock. Times are from the start of the contest.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The client.
    pub client: usize,
    /// When it asked.
    pub asked: Duration,
    /// When it received the grant.
    pub granted: Duration,
}

/// Turns a second.
pub const RATE: &str = "hand-overs/s";
/// Jain's index of the turns of each client: 1 when all had equally many, 1/n when one had all.
pub const JAIN: &str = "Jain index";
/// The most turns of clients that had asked later than a waiting one, by more than a request may take to reach the server.
pub const BYPASS: &str = "longest bypass";

/// Requests within this time count as simultaneous.
const AT_ONCE: Duration = Duration::from_millis(2);

/// Returns the figures of a contest.
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

/// Returns the most turns by which a waiting client was passed: turns that were asked for more than [`AT_ONCE`] later, and
/// granted earlier.
fn longest_bypass(turns: &[Turn]) -> usize {
    let mut by_grant: Vec<&Turn> = turns.iter().collect();
    by_grant.sort_by_key(|turn| turn.granted);
    let mut by_asking: Vec<(Duration, usize)> = by_grant
        .iter()
        .enumerate()
        .map(|(rank, turn)| (turn.asked, rank))
        .collect();
    by_asking.sort_unstable();
    // From the last request to the first: then exactly the later ones are counted.
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

/// The count of added numbers, and of those below a given one (a Fenwick tree).
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
        // The first to ask is served last.
        check(&[turn(0, 1, 9), turn(1, 2, 3), turn(2, 3, 4)], 2);
        // Client 1 gets it twice while client 0 waits; earlier requests do not count.
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
