//! The schedules of the protocol's model, played on real servers.
//!
//! `protocol/schedules/*.txt` break weaker rules than the present one. Each runs with `dlock.replicas` as released, with a module
//! that lacks the clause that it breaks, and without the setting: no second owner in the first case, two owners in the others. A
//! proxy holds back every link between two servers, except in the steps that let data through. So events that race in operation
//! happen in the order of the schedule.
//!
//! | file | contents |
//! |---|---|
//! | `group.rs` | the servers, their links, joins, restarts |
//! | `client.rs` | the clients, and their beliefs |
//! | `play.rs` | one schedule: its steps on the servers |
//! | `table.rs` | the table |

mod client;
mod group;
mod play;
mod table;

use std::ffi::OsString;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use dlock_evidence::lanes::in_lanes;
use dlock_evidence::page;
use dlock_harness::{module_path, server_program, Made, Server};
use dlock_protocol::schedule::{self, Schedule};

use crate::play::{play, Must, Play, Seen, Variant};
use crate::table::{Row, Table};

/// The number of tries of a play that does not show the expected. Each try has ticks twice as long, because the machine may be
/// busy.
const TRIES: usize = 3;

/// The servers besides the environment's own, if they were fetched.
const SERVERS: [&str; 2] = ["redis-8.6", "valkey-9.1"];

/// The command line.
#[derive(Parser)]
struct Options {
    /// Only the environment's server, the rule and one clause of each schedule
    #[arg(long)]
    quick: bool,
    /// The module that lacks a clause when the environment says so
    #[arg(long)]
    planted: PathBuf,
    /// Only schedules whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Only this clause or setting ("rule": all clauses)
    #[arg(long)]
    variant: Option<String>,
    /// Plays at a time
    #[arg(long, default_value_t = 4)]
    lanes: usize,
    /// Milliseconds of a tick: a quarter of a lease
    #[arg(long, default_value_t = 4_000)]
    tick: u64,
    /// Where the table goes
    #[arg(long, default_value = "target/schedules")]
    results: PathBuf,
    /// Prints the servers' logs
    #[arg(long)]
    logs: bool,
    /// Where `make servers` has put other servers than the environment's
    #[arg(long)]
    servers: Option<PathBuf>,
}

/// A schedule in one of its variants, on a server.
struct Case<'a> {
    server: usize,
    name: &'a str,
    schedule: &'a Schedule,
    variant: Variant,
    must: Must,
}

impl Case<'_> {
    /// Plays the case. Returns the observations of the last try.
    fn play(&self, options: &Options, program: &OsString) -> Seen {
        let module = match self.variant.of_module() {
            Some(_) => options.planted.clone(),
            None => module_path(),
        };
        let mut tick = Duration::from_millis(options.tick);
        let mut once = || {
            let seen = catch_unwind(|| {
                play(&Play {
                    schedule: self.schedule,
                    variant: self.variant,
                    program,
                    module: &module,
                    tick,
                })
            });
            tick *= 2;
            // The panic has been printed.
            seen.unwrap_or_else(|_| Seen {
                together: None,
                otherwise: vec!["nothing: it was not played to its end".to_owned()],
                logs: String::new(),
            })
        };
        let mut seen = once();
        for _ in 1..TRIES {
            // Two owners are never retried.
            if seen.together.is_some() || seen.shows(self.must) {
                break;
            }
            seen = once();
        }
        seen
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let schedules = schedule::all().expect("the schedules can be read");
    let programs = programs(&options);
    let mut cases = Vec::new();
    for server in 0..programs.len() {
        for (name, schedule) in &schedules {
            let mut all = Variant::of(schedule);
            if options.quick {
                all = Variant::most_telling(&all);
            }
            let wanted = |variant: &Variant| {
                let wanted = options.variant.as_deref();
                name.contains(&options.only) && wanted.is_none_or(|wanted| wanted == variant.name())
            };
            cases.extend(all.into_iter().filter(wanted).map(|variant| Case {
                server,
                name,
                schedule,
                variant,
                must: variant.must(name, schedule),
            }));
        }
    }
    let versions: Vec<String> = programs.iter().map(version).collect();
    println!("{} plays, {} at a time", cases.len(), options.lanes);
    let made = Made::now();
    let rows = in_lanes(options.lanes, &cases, |case| {
        let seen = case.play(&options, &programs[case.server]);
        let version = versions[case.server].clone();
        println!("{version} | {}", line(case, &seen));
        if options.logs {
            println!("{}", seen.logs);
        }
        Row {
            schedule: case.name.to_owned(),
            version,
            variant: case.variant,
            must: case.must,
            seen,
        }
    });
    let table = Table::new(rows, options.tick, made);
    table
        .keep(&options.results)
        .expect("the table can be written");
    page::verdict(&table.wrong())
}

fn programs(options: &Options) -> Vec<OsString> {
    let mut programs = vec![server_program()];
    if let Some(directory) = options.servers.as_ref().filter(|_| !options.quick) {
        let fetched = SERVERS.map(|name| directory.join(name).join("server"));
        let fetched = fetched.into_iter().filter(|path| path.exists());
        programs.extend(fetched.map(PathBuf::into_os_string));
    }
    programs
}

fn version(program: &OsString) -> String {
    Server::builder().program(program).version().to_string()
}

fn line(case: &Case, seen: &Seen) -> String {
    let found = match seen.together {
        Some(together) => format!("two owners for {:.1} s", together.as_secs_f64()),
        None => "one owner".to_owned(),
    };
    let wrong = case.must != Must::Race && !seen.shows(case.must);
    let (name, variant) = (case.name, case.variant.name());
    let otherwise = match seen.otherwise.is_empty() {
        true => String::new(),
        false => format!(
            " (otherwise than in the model: {})",
            seen.otherwise.join(", ")
        ),
    };
    let mark = if wrong { " — NOT AS IT MUST BE" } else { "" };
    format!("{name} | {variant} | {found}{otherwise}{mark}")
}
