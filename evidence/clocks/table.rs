//! The table: a row per case.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use dlock_evidence::page::{self, fill, lines};
use dlock_evidence::setting::Setting;
use dlock_harness::workers::{Seen, LEASE_MS, LOCKS, WORKERS};
use dlock_harness::Made;

use crate::{Case, Motion, Whose, AFTER};

/// The observations of one case.
pub struct Row {
    pub case: Case,
    /// The gap is from the step, or from the primary's death, to the first grant after it.
    pub seen: Seen,
    /// From its grant until the lock of a dead owner was free. None: not within the observed time.
    pub free: Option<Duration>,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Primary => "the primary's",
            Whose::Replicas => "the replicas', of which one takes over",
            Whose::All => "everybody's, and a replica takes over",
        })
    }
}

impl fmt::Display for Motion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = |ms: i64| match ms.abs() {
            3_600_000.. => format!("{} h", ms.abs() / 3_600_000),
            ms => format!("{} s", ms / 1_000),
        };
        match self {
            Motion::Step(ms) if *ms < 0 => write!(f, "−{}", length(*ms)),
            Motion::Step(ms) => write!(f, "+{}", length(*ms)),
            Motion::Strobe(ms) => write!(f, "to and fro by {}", length(*ms)),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = match self.setting {
            Setting::Replicas => "`dlock.replicas 2`",
            other => other.name(),
        };
        write!(f, "{} | {} | {setting}", self.whose, self.motion)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = match self.seen.gap {
            Duration::MAX => "none while it was watched".to_owned(),
            gap => format!("{:.1} s", gap.as_secs_f64()),
        };
        let free = match self.free {
            None => "not while it was watched".to_owned(),
            Some(free) => format!("{:.1} s", free.as_secs_f64()),
        };
        let (case, twice) = (&self.case, self.seen.two_owners());
        write!(f, "| {case} | {twice} | {gap} | {free} |")
    }
}

/// Writes the table of these rows to a directory.
pub fn keep(rows: &[Row], made: &Made, directory: &Path) -> io::Result<()> {
    let most = rows.iter().max_by_key(|row| row.seen.together);
    let most = most.expect("there are rows");
    let text = fill(
        include_str!("page.txt"),
        &[
            ("made", made),
            ("twice", &most.seen.twice),
            (
                "together",
                &format!("{:.1}", most.seen.together.as_secs_f64()),
            ),
            ("worst", &most.case.to_string().replace(" | ", ", ")),
            ("workers", &WORKERS),
            ("locks", &LOCKS),
            ("lease", &LEASE_MS),
            ("after", &format!("{:.0}", AFTER.as_secs_f64())),
            ("rows", &lines(rows)),
        ],
    );
    page::keep(directory, "clocks.md", &text)
}
