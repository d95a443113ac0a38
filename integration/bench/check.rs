//! Whether a run is as good as the committed one.

use crate::outcome::{Line, Outcome};

/// A row beside what it was.
pub struct Change<'a> {
    /// The row's name.
    pub name: &'a str,
    /// What was committed.
    was: f64,
    /// What is now.
    is: f64,
    /// What it may be.
    limit: f64,
}

/// All rows that are in both.
///
/// A ratio may be more than the committed one by its tolerance. A plain figure belongs to the machine that it
/// was measured on, and is only held to its bound.
pub fn changes<'a>(committed: &Outcome, now: &'a Outcome) -> Vec<Change<'a>> {
    now.rows
        .iter()
        .filter_map(|row| {
            let before = committed.row(&row.name)?;
            Some(Change {
                name: &row.name,
                was: before.spread.median,
                is: row.spread.median,
                limit: limit(before)?,
            })
        })
        .collect()
}

fn limit(committed: &Line) -> Option<f64> {
    if committed.is_ratio {
        Some(committed.spread.median * (1.0 + committed.tolerance))
    } else {
        committed.bound
    }
}

impl Change<'_> {
    /// Whether it is as good as it was.
    pub fn is_good(&self) -> bool {
        self.is <= self.limit
    }
}

impl std::fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.is_good() { "as good" } else { "WORSE" };
        write!(
            f,
            "{:28} {:8.2} → {:8.2}, may be {:8.2}  {verdict}",
            self.name, self.was, self.is, self.limit
        )
    }
}
