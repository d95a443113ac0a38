//! The chaos run: the value of a lock beyond one machine.
//!
//! Servers replicate, watched by Sentinels, joined to a cluster or pointed by hand; clients use all of the commands; and one kind
//! of fault follows the other. The clients record their requests, the answers, and when they believed that they held a lock; the
//! [judge](judge) reads these records, and nothing else. The figures go to a directory, with a table of them.
//!
//! | file | contents |
//! |---|---|
//! | `cells.txt`, `options.rs` | the cells of a run, and its options |
//! | `run.rs` | one cell: servers, clients, faults |
//! | `fault.rs`, `setting.rs` | the faults, and the settings against them |
//! | `nodes.rs`, `sentinel.rs`, `cluster.rs`, `by_hand.rs` | the servers |
//! | `client.rs`, `route.rs`, `link.rs` | the clients, programs with sessions among them; their way to the primary; calls with a bound |
//! | `history.rs`, `judge/` | the records, and the rules that they must obey |
//! | `control.rs` | proof that a run can fail |
//! | `quorum.rs` | the quorum over independent masters |
//! | `report.rs` | figures and the table |

mod by_hand;
mod client;
mod cluster;
mod control;
mod fault;
mod history;
mod judge;
mod link;
mod nodes;
mod options;
mod quorum;
mod report;
mod route;
mod run;
mod sentinel;
mod setting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use dlock_evidence::lanes::in_lanes;
use dlock_evidence::page;
use dlock_harness::{Made, Server};
use indicatif::{ProgressBar, ProgressStyle};

use crate::history::History;
use crate::options::Options;
use crate::report::Cell;
use crate::run::{play, Plan};

fn main() -> ExitCode {
    let options = Options::parse();
    let results = options
        .results
        .clone()
        .unwrap_or_else(|| PathBuf::from("target/chaos"));
    if !options.merge.is_empty() {
        for other in &options.merge {
            let runs = report::kept(other).expect("the other figures can be read");
            report::keep(&results, runs).expect("the results can be written");
        }
        return ExitCode::SUCCESS;
    }
    let mut plans = options.plans();
    if options.more {
        let runs = report::kept(&results).expect("the figures can be read");
        plans = options.lacking(plans, &runs);
    }
    if let Some(seconds) = options.quorum {
        return measure_quorum(&options, Duration::from_secs(seconds), &results);
    }
    let blind = control::blind_spots(judge::judge);
    if !blind.is_empty() {
        println!("{}", blind.join("\n"));
        return ExitCode::FAILURE;
    }
    println!(
        "{} cells, {} at a time, to {}",
        plans.len(),
        options.lanes,
        results.display()
    );
    let (made, progress) = (made(&options).to_string(), progress_bar(&plans));
    let begun = Instant::now();
    let has_time = || {
        let minutes = begun.elapsed().as_secs_f64() / 60.0;
        options.end.is_none_or(|end| minutes < end)
    };
    let writing = Mutex::new(());
    let failed = in_lanes(options.lanes, &plans, |plan| {
        if !has_time() {
            return None;
        }
        let history = history_of(plan, &options, &progress)?;
        let cell = Cell {
            made: made.clone(),
            ..Cell::new(plan, plan.version().to_string(), &history)
        };
        let line = cell.line();
        progress.suspend(|| println!("{line}"));
        let is_wrong = !cell.faults.is_empty();
        let _one_at_a_time = writing.lock().expect("no lane panics with it");
        report::keep(&results, vec![cell]).expect("the results can be written");
        is_wrong.then_some(line)
    });
    progress.finish_and_clear();
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    if !plans.iter().any(|plan| plan.must_overlap(plan.end.rounds)) {
        println!("No cell of this choice must show two owners: that none were seen proves less.");
    }
    page::verdict(&failed)
}

fn made(options: &Options) -> Made {
    let servers = options.main_servers().into_iter();
    let versions = servers.map(|(_, program)| Server::builder().program(program).version());
    let versions: Vec<String> = versions.map(|version| version.to_string()).collect();
    Made::now().with(&versions)
}

fn measure_quorum(options: &Options, length: Duration, results: &Path) -> ExitCode {
    let made = made(options);
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    for (_, program) in options.main_servers() {
        for variant in quorum::VARIANTS {
            let row = quorum::measure(variant, &program, length, options.seed);
            let found = row.faults(&variant);
            println!(
                "{row}{}",
                if found.is_empty() {
                    ""
                } else {
                    " — NOT AS PROMISED"
                }
            );
            faults.extend(found);
            rows.push(row);
        }
    }
    quorum::keep(results, &rows, &made).expect("the results can be written");
    page::verdict(&faults)
}

/// Plays a cell, or reads its earlier history.
fn history_of(plan: &Plan, options: &Options, progress: &ProgressBar) -> Option<History> {
    let name = format!("{} {}", plan.name(), plan.seed).replace([' ', '|', ',', '+'], "-");
    let path = |directory: &Path| directory.join(format!("{name}.json"));
    if let Some(directory) = &options.again {
        let bytes = fs::read(path(directory)).ok()?;
        return Some(serde_json::from_slice(&bytes).expect("a history that this program wrote"));
    }
    let mut scene = plan.start();
    let history = play(plan, scene.as_mut(), &|| progress.inc(1));
    if let Some(directory) = &options.histories {
        let text = serde_json::to_string(&history).expect("a history is plain data");
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(path(directory), text));
        written.expect("the histories can be written");
    }
    Some(history)
}

fn progress_bar(plans: &[Plan]) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos} of at most {len} rounds, {elapsed}")
        .expect("a correct template");
    let rounds: usize = plans.iter().map(|plan| plan.end.rounds).sum();
    ProgressBar::new(rounds as u64).with_style(style)
}
