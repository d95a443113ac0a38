//! The options of a run, and its cells.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use dlock_harness::server_program;

use crate::control::Planted;
use crate::fault::Fault;
use crate::report::Cell;
use crate::run::{Length, Mode, Plan};
use crate::setting::Setting;

/// The measured servers, if they were fetched.
const MAIN_SERVERS: [&str; 2] = ["redis-8.6", "valkey-9.1"];

/// Rounds per cell, unless the options say otherwise.
const ROUNDS: usize = 15;

/// A cell of the quick run ends after the round in which this time is over.
const QUICK: Duration = Duration::from_secs(45);

/// A cell, for any server.
struct Kind {
    mode: Mode,
    replicas: usize,
    fault: Fault,
    setting: Setting,
}

/// Returns the cells of a run on the first server, or on others. `cells.txt` has them.
fn cells_of(is_quick: bool, is_first: bool) -> Vec<Kind> {
    let (mut applies, mut cells) = (false, Vec::new());
    let lines = include_str!("cells.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(kinds) = line.strip_prefix("    ") {
            let kinds = read(kinds).unwrap_or_else(|| panic!("no cell: {line}"));
            cells.extend(kinds.into_iter().filter(|_| applies));
            continue;
        }
        let (run, servers) = line.split_once(", ").expect("a run and servers");
        let is_run = (run == "quick") == is_quick;
        applies = is_run
            && match servers {
                "every server" => true,
                "the first server" => is_first,
                "other servers" => !is_first,
                _ => panic!("no such servers: {servers}"),
            };
    }
    cells
}

fn read(line: &str) -> Option<Vec<Kind>> {
    let mut parts = line.split(" | ");
    let (mode, faults, setting) = (parts.next()?, parts.next()?, parts.next()?);
    let (name, replicas) = mode.split_once(", ").unwrap_or((mode, ""));
    let (mode, usual) = match name {
        "Sentinel" => (Mode::Sentinel, 2),
        "Cluster" => (Mode::Cluster, 1),
        "By hand" => (Mode::ByHand, 4),
        _ => return None,
    };
    let replicas = match replicas.split_once(' ') {
        Some((number, _)) => number.parse().ok()?,
        None => usual,
    };
    let kind = |fault| {
        Some(Kind {
            mode,
            replicas,
            fault: Fault::named(fault)?,
            setting: Setting::named(setting)?,
        })
    };
    faults.split(" / ").map(kind).collect()
}

/// Kills, stops and cuts off servers while clients use locks, and judges the clients' records.
#[derive(Parser)]
pub struct Options {
    /// Few cells and few rounds: four to five minutes
    #[arg(long)]
    pub quick: bool,
    /// Faults in each cell
    #[arg(long, default_value_t = ROUNDS)]
    pub rounds: usize,
    /// A cell begins no round after this many minutes
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// No cell begins after this many minutes
    #[arg(long)]
    pub end: Option<f64>,
    /// Plays only the rounds that the results lack: continues an interrupted run
    #[arg(long)]
    pub more: bool,
    /// Starts nothing, but puts the figures of this other directory to the results; may be given several times
    #[arg(long)]
    pub merge: Vec<PathBuf>,
    /// Cells that run at a time
    #[arg(long, default_value_t = 4)]
    pub lanes: usize,
    /// The seed of the clients and the faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only cells whose name contains this: "Sentinel | partition"
    #[arg(long, default_value = "")]
    pub only: String,
    /// No cells whose name contains this; may be given several times
    #[arg(long)]
    pub skip: Vec<String>,
    /// Where `make servers` has put other servers
    #[arg(long)]
    pub servers: Option<PathBuf>,
    /// Where the figures go; those of other cells that are there stay
    #[arg(long)]
    pub results: Option<PathBuf>,
    /// Also writes the history of each cell there, as --again reads it
    #[arg(long)]
    pub histories: Option<PathBuf>,
    /// Only the quorum over independent masters, this many seconds for each way
    #[arg(long)]
    pub quorum: Option<u64>,
    /// Starts nothing, but judges again the histories that are there
    #[arg(long)]
    pub again: Option<PathBuf>,
    /// Makes this wrong in the run itself, which must then fail
    #[arg(long, value_enum)]
    pub plant: Option<Planted>,
}

impl Options {
    /// Returns the cells of this run, the most telling first.
    pub fn plans(&self) -> Vec<Plan> {
        let servers = self.main_servers();
        let mut cells = Vec::new();
        for server in 0..servers.len() {
            let is_first = server == 0;
            let kinds = cells_of(self.quick, is_first);
            cells.extend(kinds.into_iter().map(|kind| (server, kind)));
        }
        let plans = cells.into_iter().map(|(server, kind)| {
            let (name, program) = &servers[server];
            Plan {
                mode: kind.mode,
                replicas: kind.replicas,
                server: name.clone(),
                program: program.clone(),
                fault: kind.fault,
                setting: kind.setting,
                seed: self.seed,
                end: self.length(),
                planted: self.plant,
            }
        });
        plans
            .filter(|plan| plan.is_possible() && self.wants(&plan.name()))
            .collect()
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only) && !self.skip.iter().any(|text| name.contains(text))
    }

    /// Returns the plans that are still to be played when these runs exist.
    pub fn lacking(&self, plans: Vec<Plan>, runs: &[Cell]) -> Vec<Plan> {
        let plans = plans.into_iter().map(|mut plan| {
            let of_it: Vec<&Cell> = runs.iter().filter(|run| run.is_of(&plan)).collect();
            for run in of_it {
                plan.end.rounds = plan.end.rounds.saturating_sub(run.verdict.rounds);
                // The additional rounds are another run.
                plan.seed = plan.seed.max(run.seed + 1);
            }
            plan
        });
        plans.filter(|plan| plan.end.rounds > 0).collect()
    }

    fn length(&self) -> Length {
        let at_most = if self.quick {
            QUICK
        } else {
            Duration::from_secs_f64(self.minutes * 60.0)
        };
        Length {
            rounds: self.rounds,
            at_most,
        }
    }

    /// Returns names and programs: the environment's server if no other was fetched.
    pub fn main_servers(&self) -> Vec<(String, OsString)> {
        let fetched = self.servers.iter().flat_map(|directory| {
            let programs = MAIN_SERVERS.map(|name| (name, directory.join(name).join("server")));
            programs.into_iter().filter(|(_, path)| path.exists())
        });
        let mut servers: Vec<(String, OsString)> = fetched
            .map(|(name, path)| (name.to_owned(), path.into_os_string()))
            .collect();
        if servers.is_empty() {
            let program = server_program();
            let name = Path::new(&program).file_name().unwrap_or(&program);
            servers.push((name.to_string_lossy().into_owned(), program));
        }
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::plan;

    /// A run of any length on any server would notice a blind judge, faults without effect, settings that were not applied, or a
    /// module without a quarantine.
    #[test]
    fn every_plan_has_its_controls() {
        for (is_quick, is_first) in [(true, true), (true, false), (false, true), (false, false)] {
            let cells = cells_of(is_quick, is_first);
            let plans = cells.into_iter().map(|kind| Plan {
                mode: kind.mode,
                replicas: kind.replicas,
                ..plan(kind.fault, kind.setting)
            });
            let plans: Vec<Plan> = plans.collect();
            let some = |is: &dyn Fn(&Plan) -> bool| plans.iter().any(is);
            assert!(some(&|plan| plan.must_overlap(1)));
            assert!(some(&|plan| plan.must_refuse()));
            let is_quarantined =
                |plan: &Plan| plan.fault.replaces() && plan.setting.quarantine_ms > 0;
            assert!(some(&is_quarantined));
            assert!(some(
                &|plan| plan.promises_one_owner() && plan.fault.is_lossy()
            ));
        }
    }

    /// A setting that must show two owners promises no single one.
    #[test]
    fn no_cell_must_show_what_it_promises_not_to() {
        for is_quick in [true, false] {
            for kind in cells_of(is_quick, true) {
                let plan = Plan {
                    mode: kind.mode,
                    replicas: kind.replicas,
                    ..plan(kind.fault, kind.setting)
                };
                assert!(!(plan.must_overlap(15) && plan.promises_one_owner()));
            }
        }
    }
}
