//! The one loop that measures everything.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Instant;

use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::results::series::Records;
use crate::way::{Group, Named, Opened, Stint, Way};

/// Measures the wanted ways of a group, for a number of rounds or until its share of the time is over.
///
/// Every round takes one sample of each way, so that a disturbance affects all ways; the order changes from round to round, so
/// that no way always follows the same other. Before the first round each way warms up, and one that fails to is left out; the
/// failures give the reason.
pub fn measure(
    group: &Group,
    stint: Stint,
    is_wanted: impl Fn(&str) -> bool,
    records: &mut Records,
    progress: &ProgressBar,
) -> Vec<Failure> {
    let mut failures = Vec::new();
    let start = Instant::now();
    for sitting in 1..=stint.sittings {
        // Each sitting has its part of the share, so that the first leaves time for the last.
        let end = start + stint.share.mul_f64(sitting as f64 / stint.sittings as f64);
        let sitting = || {
            let ways = open(group, &is_wanted, &mut failures)?;
            sit(group, ways, (stint.rounds, end), records, progress)
        };
        // The harness panics when a server misbehaves, and has printed the reason.
        let sat = catch_unwind(AssertUnwindSafe(sitting));
        if let Err(failure) = sat.unwrap_or_else(|_| Err("given up".into())) {
            failures.push(failure);
            break;
        }
    }
    failures
}

fn open(group: &Group, is_wanted: impl Fn(&str) -> bool, failures: &mut Vec<Failure>) -> Opened {
    let mut ways = (group.open)()?;
    ways.retain_mut(
        |(name, way)| match is_wanted(name).then(|| warm_up(group, way.as_mut())) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                failures.push(format!("{name}: {error}").into());
                false
            }
            None => false,
        },
    );
    Ok(ways)
}

fn warm_up(group: &Group, way: &mut dyn Way) -> Result<(), Failure> {
    if group.effort.warms_up {
        way.warm_up()
    } else {
        Ok(())
    }
}

fn sit(
    group: &Group,
    mut ways: Vec<Named>,
    (rounds, end): (usize, Instant),
    records: &mut Records,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    for round in 0..rounds {
        if round > 0 && Instant::now() >= end {
            break;
        }
        for turn in order(round, ways.len()) {
            let (name, way) = &mut ways[turn];
            let figures = way.sample().map_err(|error| format!("{name}: {error}"))?;
            for (figure, value) in figures {
                records.add(group.name, name, figure, value);
            }
        }
        progress.inc(1);
    }
    Ok(())
}

/// Returns the order of the ways in a round: each round begins with another way, and every second one is reversed.
fn order(round: usize, ways: usize) -> impl Iterator<Item = usize> {
    (0..ways).map(move |turn| {
        if round % 2 == 0 {
            (round + turn) % ways
        } else {
            (round + ways - turn) % ways
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::way::{way, Effort};
    use std::time::Duration;

    #[test]
    fn no_further_round_begins_when_the_share_is_over() {
        let check = |share_s, samples| {
            let group = Group {
                name: "group",
                effort: Effort {
                    full: Stint {
                        sittings: 2,
                        rounds: 5,
                        share: Duration::from_secs(share_s),
                    },
                    quick: None,
                    warms_up: true,
                },
                open: Box::new(|| Ok(vec![way("quiet", || Ok(vec![("figure", 1.0)]))])),
            };
            let mut records = Records::default();
            let progress = ProgressBar::hidden();
            let failures = measure(&group, group.effort.full, |_| true, &mut records, &progress);
            assert!(failures.is_empty());
            assert_eq!(records.samples("group", "quiet", "figure").len(), samples);
        };
        check(3_600, 10);
        // One of each sitting.
        check(0, 2);
    }

    #[test]
    fn each_round_measures_every_way_once() {
        for ways in 1..6 {
            for round in 0..20 {
                let mut turns: Vec<_> = order(round, ways).collect();
                turns.sort_unstable();
                assert_eq!(turns, (0..ways).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_order_changes() {
        let rounds: Vec<Vec<_>> = (0..4).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 2, 1]]);
    }
}
