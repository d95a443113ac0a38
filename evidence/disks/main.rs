//! The effect of a disk's losses on locks.
//!
//! **Cuts.** A server works with `appendfsync always`, dies, and its AOF is cut at one byte after the other. It must come up with
//! the locks, tokens and tickets of the last command whose effects are complete: not more, not less, and none in part.
//!
//! **Losses.** Twenty workers take ten locks. The server dies, loses the writes that were not on its disk yet, and restarts in
//! its place: how many owners are granted a lock while another still believes in its lease, with and without a quarantine?

mod cuts;
mod losses;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use dlock_evidence::page::{self, fill, lines};
use dlock_harness::Made;

use crate::cuts::Cuts;
use crate::losses::Row;

/// The command line.
#[derive(Parser)]
struct Options {
    /// Bytes at which the AOF is cut
    #[arg(long, default_value_t = 300)]
    cuts: usize,
    /// The seed of the commands and the bytes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Losses that are played at a time
    #[arg(long, default_value_t = 3)]
    lanes: usize,
    /// Where the table goes
    #[arg(long, default_value = "target/disks")]
    results: PathBuf,
}

fn main() -> ExitCode {
    let (options, made) = (Options::parse(), Made::now());
    let cuts = cuts::play(options.cuts, options.seed);
    println!("{cuts}");
    let rows = losses::play(options.lanes);
    let mut wrong = cuts.wrong.clone();
    for row in &rows {
        println!("{row}");
        let (case, twice) = (row.case, row.seen.twice);
        if case.promises_one_owner() && twice > 0 || case.must_let_in_two() && twice == 0 {
            wrong.push(row.to_string());
        }
    }
    keep(&made, &cuts, &rows, &options.results).expect("the table can be written");
    page::verdict(&wrong)
}

fn keep(made: &Made, cuts: &Cuts, rows: &[Row], directory: &Path) -> io::Result<()> {
    let worst = rows.iter().max_by_key(|row| row.seen.together);
    let worst = worst.expect("there are rows");
    let text = fill(
        include_str!("page.txt"),
        &[
            ("made", made),
            ("twice", &worst.seen.twice),
            (
                "together",
                &format!("{:.1}", worst.seen.together.as_secs_f64()),
            ),
            ("worst", &worst.name().replace(" | ", ", ")),
            ("cuts", cuts),
            ("rows", &lines(rows)),
        ],
    );
    page::keep(directory, "disks.md", &text)
}
