//! The table: a row a schedule and server.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{fs, io, thread};

use crate::play::{Must, Seen, Variant};

/// A schedule in one of its variants, and what was seen.
pub struct Row {
    pub schedule: String,
    /// The server's version.
    pub version: String,
    pub variant: Variant,
    pub must: Must,
    pub seen: Seen,
}

impl Row {
    /// What was seen: for how long there were two owners, or that there was one.
    fn cell(&self) -> String {
        match self.seen.together {
            Some(together) => format!("{:.1} s", together.as_secs_f64()),
            None => "none".to_owned(),
        }
    }
}

/// All rows of a run.
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub fn new(rows: Vec<Row>) -> Table {
        Table { rows }
    }

    /// What is not as it must be: two owners where the rule stands, or none where there must be two.
    pub fn wrong(&self) -> Vec<String> {
        let wrong = |row: &&Row| !row.seen.shows(row.must);
        let text = |row: &Row| {
            let (version, variant) = (&row.version, row.variant.name());
            format!("{version} | {} | {variant} | {}", row.schedule, row.cell())
        };
        self.rows.iter().filter(wrong).map(text).collect()
    }

    /// Writes the table to a directory.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let mut text = format!(
            "Made by `make schedules`, dlock {}, {}, {} cores, {}.\n\n\
             For how long two owners believed in the lock.\n\n\
             | schedule | server | with all clauses | without a clause, or with another setting |\n|---|---|---|---|\n",
            env!("CARGO_PKG_VERSION"),
            said("date", &["-u", "+%F"]),
            thread::available_parallelism().map_or(1, usize::from),
            said("uname", &["-srm"])
        );
        let mut done: Vec<(&str, &str)> = Vec::new();
        for row in &self.rows {
            let of = (row.schedule.as_str(), row.version.as_str());
            if done.contains(&of) {
                continue;
            }
            done.push(of);
            let same = self
                .rows
                .iter()
                .filter(|row| (row.schedule.as_str(), row.version.as_str()) == of);
            let (rule, others): (Vec<&Row>, Vec<&Row>) =
                same.partition(|row| row.variant == Variant::Rule);
            let rule = rule.first().map_or_else(String::new, |row| row.cell());
            let others = others
                .iter()
                .map(|row| format!("`{}` {}", row.variant.name(), row.cell()));
            let others: Vec<String> = others.collect();
            writeln!(
                text,
                "| {} | {} | {rule} | {} |",
                of.0,
                of.1,
                others.join(", ")
            )
            .expect("a String takes all");
        }
        fs::create_dir_all(directory)?;
        fs::write(directory.join("schedules.md"), text)
    }
}

/// What a program writes.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
