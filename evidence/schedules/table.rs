//! The table: a row per schedule.

use std::io;
use std::path::Path;

use dlock_evidence::page::{self, fill};
use dlock_harness::Made;

use crate::play::{Must, Seen, Variant};

/// A schedule in one of its variants, and its observations.
pub struct Row {
    pub schedule: String,
    /// The server's version.
    pub version: String,
    pub variant: Variant,
    pub must: Must,
    pub seen: Seen,
}

impl Row {
    /// Returns the cell: how long there were two owners, or that there was one.
    fn cell(&self) -> String {
        match self.seen.together {
            Some(together) => format!("{:.1}", together.as_secs_f64()),
            None => "none".to_owned(),
        }
    }
}

/// All rows of a run.
pub struct Table {
    rows: Vec<Row>,
    tick_ms: u64,
    made: Made,
}

impl Table {
    pub fn new(rows: Vec<Row>, tick_ms: u64, made: Made) -> Table {
        Table {
            rows,
            tick_ms,
            made,
        }
    }

    /// Returns the rows with a wrong result: two owners under the rule, or none where there must be two.
    pub fn wrong(&self) -> Vec<String> {
        let wrong = |row: &&Row| row.must != Must::Race && !row.seen.shows(row.must);
        let text = |row: &Row| {
            let (version, variant) = (&row.version, row.variant.name());
            format!("{version} | {} | {variant} | {}", row.schedule, row.cell())
        };
        self.rows.iter().filter(wrong).map(text).collect()
    }

    /// Writes the table to a directory.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let versions = different(self.rows.iter().map(|row| row.version.as_str()));
        let mut lines = Vec::new();
        for schedule in different(self.rows.iter().map(|row| row.schedule.as_str())) {
            let rows = self.rows.iter().filter(|row| row.schedule == schedule);
            let rows: Vec<&Row> = rows.collect();
            let seen = |variant: Variant| {
                let rows = rows.iter().filter(|row| row.variant == variant);
                let cells: Vec<String> = rows.map(|row| row.cell()).collect();
                cells.join(" / ")
            };
            let mut others: Vec<Variant> = Vec::new();
            for row in &rows {
                if row.variant != Variant::Rule && !others.contains(&row.variant) {
                    others.push(row.variant);
                }
            }
            let others = others.iter();
            let others = others.map(|other| format!("`{}` {}", other.name(), seen(*other)));
            let others: Vec<String> = others.collect();
            let (rule, others) = (seen(Variant::Rule), others.join(", "));
            lines.push(format!("| {schedule} | {rule} | {others} |"));
        }
        let text = fill(
            include_str!("page.txt"),
            &[
                ("made", &self.made.clone().with(&versions)),
                ("versions", &versions.join(" / ")),
                ("tick", &self.tick_ms),
                ("rows", &lines.join("\n")),
            ],
        );
        page::keep(directory, "schedules.md", &text)
    }
}

/// Returns each of them once, in their order.
fn different<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut different: Vec<&str> = Vec::new();
    for one in all {
        if !different.contains(&one) {
            different.push(one);
        }
    }
    different
}
