//! `make bench`: what dlock costs, side by side with what it replaces.
//!
//! A *way* is an operation to measure, a *group* several ways that are measured in turn on one set of servers, a *round* one
//! sample of each of them, and a *row* a line of the result: mostly the ratio of two ways. The plan lists groups and rows;
//! everything else implements the ways.
//!
//! | file | contents |
//! |---|---|
//! | `plan.txt`, `plan.rs`, `results/rows.txt` | all groups, what opens them, and all rows: start here |
//! | `way.rs`, `round.rs` | the types of a way and a group, and the one loop that measures them |
//! | `failure.rs` | why a measurement failed |
//! | `servers.rs` | a part of the plan on one server version after the other |
//!
//! | module | contents |
//! |---|---|
//! | `tools/` | parts of ways: `line.rs`, `replies.rs`: a fast client that checks every reply; `lockings.txt`, `locking.rs`: ways to take a lock and release it, ours and those of `integration/harness/src/material/rivals.rs`; `errand.rs`: commands that many owners send in turn; `setting.rs`, `meter.rs`, `pause.rs`: how a server stores its data, its expenses, and when it does not answer; `percentile.rs`: the distribution of many durations |
//! | `waiting/` | locks with waiters: `handover.rs`, `expiry.rs`, `ticket.rs`, `fair.rs`, `session.rs`, `programs.rs`, `deadlock.rs`, and thousands at once: `mass.rs`, `lapse.rs`, `ephemeral.rs` |
//! | `holding/` | locks without waiters: `pair.rs`, `beside.rs`, `again.rs`, `guard.rs`, `crowd.rs`, `holders.rs`, `kept.rs`, `renewal.rs`, `confirmed.rs`; and the cost of both: `memory.rs`, `growth.rs` |
//! | `contending/` | locks that many clients want again and again: `hot.rs` with `contest.rs`, `crossing.rs` |
//! | `results/` | samples and their statistics: `series.rs`, `spread.rs`; rows, and their outcome: `row.rs`, `outcome.rs`; the output: `report.rs`, `numbers.rs`, `check.rs` |
//! | `peers/` | the Python libraries for comparison |
//!
//! A module uses those before it, and `way.rs` and `failure.rs`; only `numbers.rs` also knows the plan.

mod contending;
mod failure;
mod holding;
mod plan;
mod results;
mod round;
mod servers;
mod tools;
mod waiting;
mod way;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use dlock_harness::Made;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{getrlimit, setrlimit, Resource};

use crate::failure::Failure;
use crate::results::numbers::numbers;
use crate::results::outcome::Outcome;
use crate::results::row::ROWS;
use crate::results::series::Records;
use crate::results::{check, report};
use crate::way::Group;

/// Measures dlock side by side with what it replaces.
#[derive(Parser)]
struct Options {
    /// Fewer rounds: under two minutes
    #[arg(long)]
    quick: bool,
    /// Compare with the committed result, and fail where a ratio has grown by more than its tolerance
    #[arg(long)]
    check: bool,
    /// Only groups whose name contains this; the result is not kept
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only ways whose name contains this, to profile them; the result is not kept
    #[arg(long, value_name = "TEXT")]
    way: Option<String>,
    /// Measure nothing: write the tables of the last full run again
    #[arg(long)]
    plot: bool,
    /// Where runs are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    results: PathBuf,
    /// Pairs, hand-overs and memory on other servers too: those that `make servers` keeps in this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "check")]
    servers: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmark. Returns whether every bound was kept.
fn run(options: &Options) -> Result<bool, Failure> {
    if options.plot {
        let directory = options.results.join("full");
        let outcome = Outcome::load(&directory.join(FIGURES))?;
        fs::write(directory.join(PLOTS), numbers(&outcome))?;
        return Ok(true);
    }
    allow_many_connections()?;
    if let Some(directory) = &options.servers {
        return servers::run(directory, options);
    }
    let mut groups = plan::groups();
    if let Some(text) = &options.only {
        groups.retain(|group| group.name.contains(text.as_str()));
    }
    let (outcome, is_complete) = measure_and_report(&groups, options);
    if options.check {
        let committed = Outcome::load(Path::new(COMMITTED))?;
        let is_as_good = check(&committed, &outcome, groups, options);
        return Ok(is_complete && is_as_good);
    }
    let is_whole = is_complete && options.only.is_none() && options.way.is_none();
    if is_whole {
        keep(outcome, &options.results)?;
    }
    Ok(is_complete)
}

fn measure_and_report(groups: &[Group], options: &Options) -> (Outcome, bool) {
    let machine = Made::now();
    let start = Instant::now();
    let (records, failures) = measure(groups, options);
    let outcome = Outcome::new(machine, options.quick, &records);
    println!("{}", report::text(&outcome));
    println!("Measured in {} s.", start.elapsed().as_secs());
    for failure in &failures {
        println!("NOT MEASURED: {failure}");
    }
    (outcome, failures.is_empty())
}

/// Compares with the committed result. A worse row is measured once more before the run fails.
fn check(
    committed: &Outcome,
    outcome: &Outcome,
    mut groups: Vec<Group>,
    options: &Options,
) -> bool {
    let changes = check::changes(&committed.rows, &outcome.rows);
    changes.iter().for_each(|change| println!("{change}"));
    let worse = check::worse(&changes);
    let rows = || ROWS.iter().filter(|row| worse.contains(&row.name));
    groups.retain(|group| rows().any(|row| row.group() == group.name));
    if groups.is_empty() {
        return true;
    }
    if let Some(load) = outcome.machine.load.filter(|load| *load > BUSY) {
        println!("\nThe load was {load:.1} before the run: on a machine that is not busy it may be as good.");
    }
    println!("\nOnce more, what seems worse:");
    let (again, is_complete) = measure_and_report(&groups, options);
    let mut changes = check::changes(&committed.rows, &again.rows);
    changes.retain(|change| worse.contains(&change.name));
    changes.iter().for_each(|change| println!("{change}"));
    is_complete && check::worse(&changes).is_empty()
}

fn keep(mut outcome: Outcome, results: &Path) -> Result<(), Failure> {
    let directory = results.join(if outcome.quick { "quick" } else { "full" });
    fs::create_dir_all(&directory)?;
    outcome.save(&directory.join(FIGURES))?;
    fs::write(directory.join(PLOTS), numbers(&outcome))?;
    // The committed part, which later runs are compared with.
    outcome.figures.clear();
    outcome.save(&directory.join("bench.json"))?;
    println!("Kept in {}", directory.display());
    Ok(())
}

/// With a higher load the machine was busy with something else.
const BUSY: f64 = 0.5;

/// The file of everything that a run has measured.
const FIGURES: &str = "figures.json";

/// The numbers for `make pictures`.
const PLOTS: &str = "plots.md";

/// The rows of a full run, which the documents quote.
const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/bench.json");

fn measure(groups: &[Group], options: &Options) -> (Records, Vec<String>) {
    let mut records = Records::default();
    let mut failures = Vec::new();
    let is_wanted = |way: &str| match &options.way {
        Some(text) => way.contains(text.as_str()),
        None => true,
    };
    for group in groups {
        let Some(stint) = group.effort.stint(options.quick) else {
            continue;
        };
        let progress = progress_bar(group.name, stint.sittings * stint.rounds);
        let failed = round::measure(group, stint, is_wanted, &mut records, &progress);
        progress.finish_and_clear();
        failures.extend(
            failed
                .iter()
                .map(|error| format!("{}: {error}", group.name)),
        );
    }
    (records, failures)
}

fn progress_bar(name: &'static str, rounds: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:22} {bar:40} {pos}/{len} rounds, {eta} left")
        .expect("a correct template");
    ProgressBar::new(rounds as u64)
        .with_style(style)
        .with_prefix(name)
}

/// As many as the longest queue needs, and some more.
const CONNECTIONS: u64 = 20_000;

/// Allows thousands of connections, here and in the servers, which inherit the limit.
fn allow_many_connections() -> Result<(), Failure> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(CONNECTIONS).max(soft);
    Ok(setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?)
}
