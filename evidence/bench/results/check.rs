//! Comparison of a run with the committed one.

use std::fmt::{Display, Formatter};

use crate::results::outcome::Line;
use crate::results::report::number;

/// A row, compared with the committed one.
pub struct Change<'a> {
    /// The row's name.
    pub name: &'a str,
    verdict: Verdict,
}

/// The verdict on a row.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// The row has a limit.
    Held {
        was: Option<f64>,
        is: f64,
        limit: f64,
    },
    /// A figure that depends on the machine, and has no bound.
    Shown { was: f64, is: f64 },
    /// The committed result is older than the row.
    New { is: f64 },
    /// The row was committed, but this run has not measured it.
    NotMeasured { was: f64 },
}

/// Returns a verdict for each row of either run.
///
/// A ratio may exceed the committed one by its tolerance, and a plain figure must keep its bound. Tolerance and bound are those
/// of this run's plan: changing them needs no new committed result.
pub fn changes<'a>(committed: &'a [Line], now: &'a [Line]) -> Vec<Change<'a>> {
    let measured = now.iter().map(|row| Change {
        name: &row.name,
        verdict: Verdict::of(of_name(committed, &row.name), row),
    });
    let gone = committed
        .iter()
        .filter(|row| of_name(now, &row.name).is_none());
    let not_measured = gone.map(|row| Change {
        name: &row.name,
        verdict: Verdict::NotMeasured {
            was: row.spread.median,
        },
    });
    measured.chain(not_measured).collect()
}

/// Returns the names of the rows that exceed their limit.
pub fn worse<'a>(changes: &[Change<'a>]) -> Vec<&'a str> {
    let worse = changes.iter().filter(|change| change.is_worse());
    worse.map(|change| change.name).collect()
}

fn of_name<'a>(rows: &'a [Line], name: &str) -> Option<&'a Line> {
    rows.iter().find(|row| row.name == name)
}

impl Verdict {
    fn of(committed: Option<&Line>, row: &Line) -> Verdict {
        let was = committed.map(|line| line.spread.median);
        let is = row.spread.median;
        let limit = if row.is_ratio {
            was.map(|was| was * (1.0 + row.tolerance))
        } else {
            row.bound
        };
        match (was, limit) {
            (was, Some(limit)) => Verdict::Held { was, is, limit },
            (Some(was), None) => Verdict::Shown { was, is },
            (None, None) => Verdict::New { is },
        }
    }
}

impl Change<'_> {
    fn is_worse(&self) -> bool {
        matches!(self.verdict, Verdict::Held { is, limit, .. } if is > limit)
    }
}

impl Display for Change<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (was, is, verdict) = match self.verdict {
            Verdict::Held { was, is, limit } => {
                let verdict = if self.is_worse() { "WORSE" } else { "as good" };
                (
                    was,
                    Some(is),
                    format!("may be {:>8}  {verdict}", number(limit)),
                )
            }
            Verdict::Shown { was, is } => (Some(was), Some(is), "only shown".to_owned()),
            Verdict::New { is } => (
                None,
                Some(is),
                "NEW: not in the committed result".to_owned(),
            ),
            Verdict::NotMeasured { was } => {
                (Some(was), None, "not measured in this run".to_owned())
            }
        };
        let or_dash = |figure: Option<f64>| figure.map_or("-".to_owned(), number);
        let (was, is) = (or_dash(was), or_dash(is));
        write!(f, "{:28} {was:>8} → {is:>8}  {verdict}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::spread::Spread;

    /// Returns a ratio with a tolerance of a tenth.
    fn ratio(median: f64) -> Line {
        Line {
            name: "row".to_owned(),
            what: String::new(),
            against: String::new(),
            is_ratio: true,
            spread: Spread::of(&[median]).expect("a sample"),
            bound: None,
            goal: None,
            tolerance: 0.10,
        }
    }

    /// Returns a figure that depends on the machine.
    fn plain(median: f64, bound: Option<f64>) -> Line {
        Line {
            is_ratio: false,
            bound,
            ..ratio(median)
        }
    }

    /// Asserts whether the one row is worse, and the text about it.
    fn check(committed: &[Line], now: &[Line], is_worse: bool, said: &str) {
        let changes = changes(committed, now);
        let [change] = &changes[..] else {
            panic!("one row, and {} are told of", changes.len());
        };
        assert_eq!(change.is_worse(), is_worse, "{change}");
        assert!(change.to_string().ends_with(said), "{change}");
    }

    #[test]
    fn a_ratio_may_grow_by_its_tolerance() {
        check(&[ratio(1.0)], &[ratio(0.5)], false, "as good");
        check(&[ratio(1.0)], &[ratio(1.09)], false, "as good");
        check(&[ratio(1.0)], &[ratio(1.11)], true, "WORSE");
    }

    #[test]
    fn the_tolerance_is_that_of_today() {
        let strict = Line {
            tolerance: 0.05,
            ..ratio(1.09)
        };
        check(&[ratio(1.0)], &[strict], true, "WORSE");
    }

    #[test]
    fn the_bound_of_a_ratio_is_not_what_it_is_compared_with() {
        let bounded = |median| Line {
            bound: Some(1.0),
            ..ratio(median)
        };
        check(&[bounded(1.2)], &[bounded(1.3)], false, "as good");
    }

    #[test]
    fn a_figure_of_the_machine_is_held_to_its_bound_alone() {
        let bound = Some(2.0);
        check(&[plain(1.0, bound)], &[plain(1.9, bound)], false, "as good");
        check(&[plain(1.0, bound)], &[plain(2.1, bound)], true, "WORSE");
        check(&[], &[plain(2.1, bound)], true, "WORSE");
        check(
            &[plain(1.0, None)],
            &[plain(9.0, None)],
            false,
            "only shown",
        );
    }

    #[test]
    fn a_row_of_one_side_is_told_of() {
        check(
            &[],
            &[ratio(9.0)],
            false,
            "NEW: not in the committed result",
        );
        check(&[ratio(1.0)], &[], false, "not measured in this run");
    }
}
