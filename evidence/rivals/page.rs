//! The page: a row for each lock and fault, the worst first.

use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use dlock_evidence::group::{DOWN_AFTER_MS, REPL_TIMEOUT};
use dlock_evidence::page::{self, fill, lines};
use dlock_harness::belief::{Micros, SECOND};
use dlock_harness::Made;

use crate::contestant::{Contestant, Fault, CLIENTS, LEASE_MS, LOCKS, LONG_MS, SHORT_MS, WAIT_MS};
use crate::scene::{AFTER, QUARANTINE_MS, STALL};
use crate::seen::Seen;

/// The observations of a lock under a fault.
pub struct Row {
    pub contestant: Contestant,
    pub fault: Fault,
    pub seen: Seen,
    /// Faults whose time does not count.
    pub tilted: usize,
    /// Faults after which no replica was promoted, although no Sentinel was in TILT.
    pub without_effect: usize,
}

impl Row {
    /// Returns the reasons why this row says less than it seems to.
    pub fn failed_controls(&self, rounds: usize) -> Vec<String> {
        let mut failed = Vec::new();
        if self.without_effect > 0 {
            failed.push(format!("{} faults had no effect", self.without_effect));
        }
        let played = self.seen.gaps.len() + self.tilted;
        if played != rounds {
            failed.push(format!("{played} faults, not {rounds}"));
        }
        if self.seen.grants < 10 {
            failed.push(format!("only {} grants", self.seen.grants));
        }
        failed
    }
}

fn seconds(micros: Micros) -> f64 {
    micros as f64 / SECOND as f64
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = &self.seen;
        let twice = match seen.twice {
            0 => "none | –".to_owned(),
            twice => format!("**{twice}** | {:.1} s", seconds(seen.longest)),
        };
        let fault = match (self.contestant, self.fault) {
            (Contestant::Redlock, Fault::Cut) => "cut off (one master)".to_owned(),
            (Contestant::Redlock, fault) => format!("{fault} (one master)"),
            (_, fault) => fault.to_string(),
        };
        let timed = seen.gaps.len();
        let gap = match timed {
            0 => "– | –".to_owned(),
            _ => format!(
                "{:.1} s | {:.1} s",
                seconds(seen.median_gap()),
                seconds(seen.longest_gap())
            ),
        };
        write!(
            f,
            "| {} | {fault} | {} | {twice} | {} | {gap} | {timed} of {} |",
            self.contestant,
            seen.grants,
            seen.lost,
            timed + self.tilted,
        )
    }
}

/// All rows of a run, and its conditions.
pub struct Page {
    pub rounds: usize,
    /// The number of reports on clients without a lock.
    pub reported: usize,
    pub made: Made,
    pub rows: Vec<Row>,
}

impl Page {
    /// Writes the page to a directory.
    pub fn keep(mut self, directory: &Path) -> io::Result<()> {
        let rank = |row: &Row| {
            let seen = &row.seen;
            (seen.twice, seen.longest, seen.lost, seen.longest_gap())
        };
        self.rows.sort_by_key(|row| Reverse(rank(row)));
        let worst = self.rows.first().filter(|row| row.seen.twice > 0);
        let worst = worst.map_or_else(String::new, |worst| {
            format!(
                "**At worst, {} locks were granted while another client believed in them, for up to {:.1} s** ({}; the primary is {}).\n\n",
                worst.seen.twice,
                seconds(worst.seen.longest),
                worst.contestant,
                worst.fault
            )
        });
        let detection = Duration::from_millis(DOWN_AFTER_MS);
        let text = fill(
            include_str!("page.txt"),
            &[
                ("made", &self.made),
                ("reported", &self.reported),
                ("worst", &worst),
                ("rows", &lines(&self.rows)),
                ("rounds", &self.rounds),
                ("clients", &CLIENTS),
                ("locks", &LOCKS),
                ("wait", &WAIT_MS),
                ("short", &SHORT_MS),
                ("long", &(LONG_MS / 1_000)),
                ("lease", &(LEASE_MS / 1_000)),
                ("down", &DOWN_AFTER_MS),
                ("failover", &(2 * DOWN_AFTER_MS)),
                ("repl-timeout", &REPL_TIMEOUT),
                ("after", &AFTER.as_secs()),
                ("gone", &(detection + AFTER).as_secs()),
                ("stall", &format!("{:.1}", STALL.as_secs_f64())),
                ("quarantine", &QUARANTINE_MS),
            ],
        );
        page::keep(directory, "rivals.md", &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Driver;

    fn row(contestant: Contestant, twice: usize) -> Row {
        Row {
            contestant,
            fault: Fault::Cut,
            seen: Seen {
                grants: 100,
                twice,
                longest: SECOND * 3 / 2,
                gaps: vec![1],
                ..Seen::default()
            },
            tilted: 0,
            without_effect: 0,
        }
    }

    #[test]
    fn the_worst_stands_first() {
        let directory = tempfile::tempdir().unwrap();
        let page = Page {
            rounds: 1,
            reported: 7,
            made: Made::default(),
            rows: vec![row(Contestant::Dlock, 0), row(Contestant::SetWait, 3)],
        };
        page.keep(directory.path()).unwrap();
        let text = std::fs::read_to_string(directory.path().join("rivals.md")).unwrap();
        assert!(text.contains("**At worst, 3 locks were granted"), "{text}");
        let place = |name: Contestant| text.find(&format!("\n| {name} | cut")).unwrap();
        assert!(place(Contestant::SetWait) < place(Contestant::Dlock));
    }

    #[test]
    fn a_row_that_says_nothing_fails() {
        let good = row(Contestant::Nothing(Driver::Here), 0);
        assert_eq!(good.failed_controls(1), Vec::<String>::new());
        assert_eq!(good.failed_controls(2).len(), 1);
        let mut bad = row(Contestant::Dlock, 0);
        (bad.seen.grants, bad.without_effect) = (2, 1);
        assert_eq!(bad.failed_controls(1).len(), 2);
    }
}
