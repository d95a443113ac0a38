//! The effect of a disk's losses on locks.
//!
//! **Cuts.** A server works with `appendfsync always`, dies, and its AOF is cut at one byte after the other. It must come up with
//! the locks, tokens and tickets of the last command whose effects are complete: not more, not less, and none in part.
//!
//! **Losses.** Twenty workers take ten locks. The server dies, loses the writes that were not on its disk yet, and restarts in
//! its place: how many owners are granted a lock while another still believes in its lease, with and without a quarantine?

mod cuts;
mod losses;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use dlock_integration::Made;

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
    let text = page(&made, &cuts, &rows);
    fs::create_dir_all(&options.results)
        .and_then(|()| fs::write(options.results.join("disks.md"), text))
        .expect("the table can be written");
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("Not as promised:\n{}", wrong.join("\n"));
    ExitCode::FAILURE
}

fn page(made: &Made, cuts: &cuts::Cuts, rows: &[Row]) -> String {
    let worst = rows.iter().max_by_key(|row| row.seen.together);
    let worst = worst.expect("there are rows");
    let lines: Vec<String> = rows.iter().map(Row::to_string).collect();
    format!(
        "Made by `make disks`: {made}.\n\n\
         **At worst {} times an owner was let in beside another one, for {:.1} s in all**: {}. {cuts}\n\n{}\n{}\n",
        worst.seen.twice,
        worst.seen.together.as_secs_f64(),
        worst.name().replace(" | ", ", "),
        losses::HEAD,
        lines.join("\n")
    )
}
