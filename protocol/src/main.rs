//! `make check-long`: searches every setting of the table, and every clause taken out, and prints the results.
//!
//! Arguments: steps for each row that must find nothing (20,000,000); `--write`: put the table into the page; `--show`: print
//! every schedule; `--servers`: search nothing, but put the results of `make schedules` into the page. Ends with an error where a
//! setting differs from the table.

use dlock_protocol::page::{self, Found, How};
use dlock_protocol::schedule::{self, Schedule};
use dlock_protocol::settings::{without, Setting, FAULTS, SETTINGS};
use dlock_protocol::system::Setup;
use dlock_protocol::{breadth, walk};
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

const SEED: u64 = 1;
/// States of each breadth-first search, in a world where servers do not restart and no operator forces an end.
const STATES: usize = 3_000_000;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    steps: u64,
    show: bool,
    write: bool,
    servers: bool,
}

fn run() -> Result<bool, String> {
    let mut options = Options {
        steps: 20_000_000,
        show: false,
        write: false,
        servers: false,
    };
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--show" => options.show = true,
            "--write" => options.write = true,
            "--servers" => options.servers = true,
            steps => {
                options.steps = steps
                    .parse()
                    .map_err(|_| format!("{steps}: not a number of steps"))?
            }
        }
    }
    if options.servers {
        let results = read(RESULTS)?;
        rewrite(|page| page::with_servers(page, &results))?;
        return Ok(true);
    }
    let schedules = schedule::all()?;
    let started = Instant::now();
    let mut good = true;
    let mut table = page::HEAD.to_owned();
    for setting in SETTINGS {
        let found = look(&options, setting, &schedules, &mut good);
        table.push_str(&page::row(setting, &found));
    }
    for fault in FAULTS {
        let (name, text, replicas) = fault;
        let found = find(&without(fault), options.steps, &schedules);
        good &= !matches!(found.how, How::Not(_));
        println!(
            "with a fault: {text} ({name}), r = {replicas}: {}",
            told(&found.how)
        );
    }
    for replicas in [1, 2] {
        let started = Instant::now();
        let searched = breadth::search(&right(replicas).quiet(), STATES);
        good &= searched.found.is_none();
        println!(
            "every schedule of up to {} steps, r = {replicas}, {} states: {} ({:.0} s)",
            searched.depth,
            searched.states,
            if searched.found.is_none() {
                "none"
            } else {
                "FOUND"
            },
            started.elapsed().as_secs_f32()
        );
        searched.found.iter().for_each(|steps| show(steps));
    }
    println!("{:.0} s\n\n{table}", started.elapsed().as_secs_f32());
    if options.write && !good {
        println!("The page stays as it is: something is not as the table says.");
    } else if options.write {
        let results = read(RESULTS)?;
        rewrite(|page| page::with_servers(&page::with_table(page, &table)?, &results))?;
    }
    Ok(good)
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/model.md");
/// The results of `make schedules`.
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/schedules.md");

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn rewrite(change: impl FnOnce(&str) -> Option<String>) -> Result<(), String> {
    let page = change(&read(PAGE)?).ok_or("the page has no place for the table")?;
    std::fs::write(PAGE, page).map_err(|error| format!("{PAGE}: {error}"))
}

fn right(replicas: u8) -> Setup {
    let rule = SETTINGS.last().expect("the rule is the last row");
    (rule.setup)(replicas)
}

/// Searches one row.
fn look(
    options: &Options,
    setting: &Setting,
    schedules: &[(String, Schedule)],
    good: &mut bool,
) -> Vec<Found> {
    let mut all = Vec::new();
    for replicas in 1..=5 {
        let setup = (setting.setup)(replicas);
        let (breaks, holds) = (
            setting.breaks.contains(&replicas),
            setting.holds.contains(&replicas),
        );
        if !breaks && !holds {
            continue;
        }
        let started = Instant::now();
        let found = if breaks {
            find(&setup, options.steps / 4, schedules)
        } else {
            let walked = walk::walk(&setup, SEED, options.steps);
            if let Some(steps) = &walked.found {
                show(steps);
            }
            let how = walked.found.map_or(How::Not(walked.steps), |steps| {
                How::Walk(walked.steps, steps.len())
            });
            Found { replicas, how }
        };
        let wrong = matches!(found.how, How::Not(_)) == breaks;
        *good &= !wrong;
        let seconds = started.elapsed().as_secs_f32();
        let wrong = if wrong { "  NOT AS THE TABLE SAYS" } else { "" };
        println!(
            "{}, r = {replicas}: {} ({seconds:.1} s){wrong}",
            setting.name,
            told(&found.how)
        );
        if options.show && breaks {
            if let Some(steps) = walk::walk(&setup, SEED, options.steps / 4).found {
                show(&steps);
            }
        }
        all.push(found);
    }
    all
}

/// Searches for two owners: at random, then among the known schedules.
fn find(setup: &Setup, steps: u64, schedules: &[(String, Schedule)]) -> Found {
    let replicas = setup.world.replicas;
    let walked = walk::walk(setup, SEED, steps);
    let how = match walked.found {
        Some(found) => How::Walk(walked.steps, found.len()),
        None => {
            let known = schedules.iter().find(|(_, schedule)| {
                schedule.replicas == replicas && walk::breaks(setup, &schedule.steps)
            });
            known.map_or(How::Not(walked.steps), |(name, _)| {
                How::Schedule(name.clone())
            })
        }
    };
    Found { replicas, how }
}

fn told(how: &How) -> String {
    match how {
        How::Walk(steps, length) => format!("two owners, {length} steps long, after {steps}"),
        How::Schedule(name) => format!("two owners, schedule {name}"),
        How::Not(steps) => format!("none in {steps} steps"),
    }
}

fn show(steps: &[impl Display]) {
    for (number, step) in steps.iter().enumerate() {
        println!("    {:2}. {step}", number + 1);
    }
}
