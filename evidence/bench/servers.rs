//! `make bench-servers`: a client's pair and the plain one, hand-overs, and the memory of a held lock, on one server version after
//! the other.
//!
//! The versions take turns, a sitting each, so that a disturbance affects all of them.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use dlock_harness::{server_program, Made};

use crate::failure::Failure;
use crate::plan::{self, HANDOVER, MEMORY, PAIR, PROGRAMS};
use crate::results::outcome::Outcome;
use crate::results::report::{number, range};
use crate::results::series::Records;
use crate::round;
use crate::way::{Group, Stint};
use crate::{progress_bar, Options};

/// The environment's variable with the server program.
const PROGRAM: &str = "DLOCK_REDIS_SERVER";

/// The servers besides the environment's own: those that `integration/servers.sh` fetches.
const FETCHED: [&str; 4] = ["redis-7.2", "redis-8.6", "valkey-8.1", "valkey-9.1"];

/// The groups that are measured on each.
const GROUPS: [&str; 4] = [PAIR, PROGRAMS, HANDOVER, MEMORY];

/// Ratios of the table, by their rows' names, and their headings.
const RATIOS: [(&str, &str); 14] = [
    ("client/set-del", "a client's pair ∕ `SET` + `DEL`"),
    ("client/set-script", "a client's pair ∕ compare-and-delete"),
    (
        "client/set-compared",
        "a client's pair ∕ `SET` + `DELEX` or `DELIFEQ`",
    ),
    (
        "client-60/set-del",
        "the same, owner of 60 bytes ∕ `SET` + `DEL`",
    ),
    (
        "client-60/set-script",
        "the same, owner of 60 bytes ∕ compare-and-delete",
    ),
    ("pair/set-del", "pair ∕ `SET` + `DEL`"),
    ("pair/set-script", "pair ∕ compare-and-delete"),
    ("pair/counted-hash", "pair ∕ counted hash"),
    (
        "programs/cpu",
        "release → a session's row ∕ `RPUSH` → `BLPOP`, server CPU",
    ),
    ("programs/p50", "the same, p50"),
    (
        "hand-over/100",
        "release → waiter ∕ publish → subscriber, 100",
    ),
    (
        "memory/client",
        "a client's held lock ∕ `SET key owner PX`, owner of 27 bytes",
    ),
    ("memory/client-60", "the same, owner of 60 bytes"),
    ("memory", "a held lock ∕ `SET key owner PX`"),
];

/// A server version, and its measurements.
struct Version {
    program: PathBuf,
    machine: Made,
    records: Records,
}

/// Measures all versions, and keeps the results unless only a part was wanted. Returns whether everything was measured.
pub fn run(directory: &Path, options: &Options) -> Result<bool, Failure> {
    let own = PathBuf::from(server_program());
    let fetched = FETCHED.map(|name| directory.join(name).join("server"));
    let mut versions = Vec::new();
    for program in [own].into_iter().chain(fetched) {
        env::set_var(PROGRAM, &program);
        versions.push(Version {
            program,
            machine: Made::now(),
            records: Records::default(),
        });
    }
    let failures = measure(&mut versions, options);
    let outcomes: Vec<Outcome> = versions
        .into_iter()
        .map(|version| Outcome::new(version.machine, options.quick, &version.records))
        .collect();
    let table = table(&outcomes)?;
    println!("{table}");
    for failure in &failures {
        println!("NOT MEASURED: {failure}");
    }
    let is_whole = failures.is_empty() && options.only.is_none() && options.way.is_none();
    if is_whole {
        keep(&outcomes, &table, options)?;
    }
    Ok(failures.is_empty())
}

fn measure(versions: &mut [Version], options: &Options) -> Vec<String> {
    let is_wanted = |way: &str| options.way.as_ref().is_none_or(|text| way.contains(text));
    let mut groups = plan::groups();
    groups.retain(|group| {
        let is_meant = options
            .only
            .as_ref()
            .is_none_or(|text| group.name.contains(text));
        GROUPS.contains(&group.name) && is_meant
    });
    let stint = |group: &Group| group.effort.stint(options.quick);
    let sittings = groups
        .iter()
        .filter_map(|group| Some(stint(group)?.sittings));
    let mut failures = Vec::new();
    for sitting in 0..sittings.max().unwrap_or_default() {
        for version in &mut *versions {
            env::set_var(PROGRAM, &version.program);
            for group in &groups {
                let Some(all) = stint(group).filter(|stint| sitting < stint.sittings) else {
                    continue;
                };
                let one = Stint {
                    sittings: 1,
                    rounds: all.rounds,
                    share: all.share.div_f64(all.sittings as f64),
                };
                let progress = progress_bar(group.name, one.rounds);
                let failed = round::measure(group, one, is_wanted, &mut version.records, &progress);
                progress.finish_and_clear();
                let name = &version.machine.server;
                failures.extend(
                    failed
                        .iter()
                        .map(|error| format!("{name}, {}: {error}", group.name)),
                );
            }
        }
    }
    failures
}

/// Returns the table: a line for each ratio and figure, a column for each version.
fn table(outcomes: &[Outcome]) -> Result<String, Failure> {
    let first = outcomes.first().ok_or("no server was measured")?;
    let mut text = String::new();
    let heads: Vec<&str> = outcomes
        .iter()
        .map(|outcome| outcome.machine.server.as_str())
        .collect();
    writeln!(
        text,
        "{}{}. Medians; in brackets the middle half of the rounds.\n",
        first.machine.clone().with(&heads),
        if first.quick { ", the quick plan" } else { "" },
    )?;
    writeln!(text, "| | {} |", heads.join(" | "))?;
    writeln!(text, "|---|{}", "---:|".repeat(heads.len()))?;
    let mut line = |what: &str, cells: Vec<Option<String>>| {
        let cells: Vec<String> = cells
            .into_iter()
            .map(|cell| cell.unwrap_or_else(|| "–".to_owned()))
            .collect();
        writeln!(text, "| {what} | {} |", cells.join(" | "))
    };
    for (name, what) in RATIOS {
        let cell = |outcome: &Outcome| {
            let row = outcome.rows.iter().find(|row| row.name == name)?;
            let spread = &row.spread;
            Some(format!(
                "{} ({})",
                number(spread.median),
                range(spread.lower, spread.upper)
            ))
        };
        line(what, outcomes.iter().map(cell).collect())?;
    }
    for figure in &first.figures {
        let is_shown = [PAIR, MEMORY].contains(&figure.group.as_str())
            && !figure.figure.contains("at once")
            || figure.figure.starts_with("p50")
            || figure.figure.starts_with("cpu");
        if !is_shown {
            continue;
        }
        let cell = |outcome: &Outcome| {
            let is_it = |known: &&crate::results::outcome::Absolute| {
                (&known.group, &known.way, &known.figure)
                    == (&figure.group, &figure.way, &figure.figure)
            };
            Some(number(outcome.figures.iter().find(is_it)?.spread.median))
        };
        let what = format!("{}: {}, {}", figure.group, figure.way, figure.figure);
        line(&what, outcomes.iter().map(cell).collect())?;
    }
    Ok(text)
}

fn keep(outcomes: &[Outcome], table: &str, options: &Options) -> Result<(), Failure> {
    let name = if options.quick {
        "servers-quick"
    } else {
        "servers"
    };
    let directory = options.results.join(name);
    fs::create_dir_all(&directory)?;
    let texts: Vec<String> = outcomes
        .iter()
        .map(Outcome::text)
        .collect::<Result<_, _>>()?;
    fs::write(
        directory.join("servers.json"),
        format!("[{}]\n", texts.join(",\n")),
    )?;
    fs::write(
        directory.join("servers.md"),
        format!("# One module, five servers\n\nMade by `make bench-servers`: {table}"),
    )?;
    println!("Kept in {}", directory.display());
    Ok(())
}
