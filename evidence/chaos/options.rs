//! The options of a run, and its cells.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use dlock_integration::server_program;

use crate::control::Planted;
use crate::fault::Fault;
use crate::report::Cell;
use crate::run::{Length, Mode, Plan};
use crate::setting::{
    Setting, ALL, ALL_REPLICAS, CONFIRMED, COUNTS_FROM_ANSWER, MAIN_SETTINGS, NOTHING,
    NO_ALLOWANCE, ONE_REPLICA, RECOMMENDED, WAIT_ALL, WAIT_AND_QUARANTINE, WAIT_ONE,
};

/// The measured servers, if they were fetched.
const MAIN_SERVERS: [&str; 2] = ["redis-8.6", "valkey-9.1"];

/// Rounds per cell, unless the options say otherwise.
const ROUNDS: usize = 15;

/// The primary is cut off with one of its replicas.
const BESIDE: Fault = Fault::PartitionBeside(1);

/// A cell of the quick run ends after the round in which this time is over.
const QUICK: Duration = Duration::from_secs(45);

/// A cell, for any server.
struct Kind {
    mode: Mode,
    replicas: usize,
    fault: Fault,
    setting: Setting,
}

fn sentinel(replicas: usize, fault: Fault, setting: Setting) -> Kind {
    let mode = Mode::Sentinel;
    Kind {
        mode,
        replicas,
        fault,
        setting,
    }
}

fn cluster(replicas: usize, fault: Fault, setting: Setting) -> Kind {
    Kind {
        mode: Mode::Cluster,
        replicas,
        fault,
        setting,
    }
}

/// Returns the cell with an operator: its schedule needs four replicas.
fn by_hand(setting: Setting) -> Kind {
    Kind {
        mode: Mode::ByHand,
        replicas: 4,
        fault: Fault::ChainedLater,
        setting,
    }
}

/// Returns cells for a run of minutes: the recommended setting, and those that show that the run would notice its failure.
fn quick(is_first: bool) -> Vec<Kind> {
    let mut cells = vec![
        sentinel(2, Fault::Partition, NOTHING),
        sentinel(2, Fault::Partition, RECOMMENDED),
        sentinel(2, Fault::LagThenKill, RECOMMENDED),
        sentinel(3, BESIDE, RECOMMENDED),
        sentinel(2, Fault::BriefStop, CONFIRMED),
        sentinel(2, Fault::Partition, CONFIRMED),
        by_hand(CONFIRMED),
    ];
    if is_first {
        cells.extend([
            sentinel(3, BESIDE, ONE_REPLICA),
            sentinel(2, Fault::BriefStop, RECOMMENDED),
            sentinel(2, Fault::BriefStop, WAIT_ONE),
            sentinel(2, Fault::WrongChoice, RECOMMENDED),
            sentinel(2, Fault::WrongChoice, CONFIRMED),
            sentinel(3, BESIDE, CONFIRMED),
            sentinel(1, Fault::Kill, COUNTS_FROM_ANSWER),
            by_hand(NOTHING),
        ]);
    }
    let in_cluster = [
        Fault::Migrate,
        Fault::Failover,
        Fault::Partition,
        Fault::MoveAtOnce,
    ];
    cells.extend(in_cluster.map(|fault| cluster(1, fault, NOTHING)));
    cells
}

/// Returns all cells on the first server, and the most important ones on the others.
fn full(is_first: bool) -> Vec<Kind> {
    let mut cells = Vec::new();
    let (first, others) = ALL.split_at(MAIN_SETTINGS);
    let under_sentinel = |setting: &Setting| {
        let setting = *setting;
        Fault::SENTINEL.map(move |fault| sentinel(2, fault, setting))
    };
    cells.extend(rules(is_first));
    if is_first {
        cells.extend(first.iter().flat_map(under_sentinel));
    } else {
        cells.extend(under_sentinel(&RECOMMENDED));
        cells.push(sentinel(2, Fault::Partition, NOTHING));
    }
    cells.extend(Fault::CLUSTER.map(|fault| cluster(1, fault, NOTHING)));
    let lossy = [
        Fault::FailoverTakeover,
        Fault::Kill,
        Fault::Stop,
        Fault::Partition,
    ];
    for setting in [RECOMMENDED, CONFIRMED] {
        cells.extend(lossy.map(|fault| cluster(1, fault, setting)));
    }
    cells.extend(lossy.map(|fault| cluster(2, fault, CONFIRMED)));
    if is_first {
        cells.extend(others.iter().flat_map(under_sentinel));
    }
    cells
}

/// Returns cells with each rule of the recommended setting, kept and broken.
fn rules(is_first: bool) -> Vec<Kind> {
    let mut cells = vec![
        sentinel(1, Fault::Partition, RECOMMENDED),
        sentinel(3, Fault::Partition, RECOMMENDED),
        sentinel(3, BESIDE, RECOMMENDED),
        sentinel(3, BESIDE, ONE_REPLICA),
        sentinel(2, Fault::BriefStop, RECOMMENDED),
        sentinel(2, Fault::BriefStop, WAIT_ONE),
        sentinel(2, Fault::WrongChoice, RECOMMENDED),
        sentinel(2, Fault::WrongChoice, WAIT_ONE),
        sentinel(1, Fault::Kill, CONFIRMED),
        sentinel(1, Fault::Partition, CONFIRMED),
        sentinel(2, BESIDE, CONFIRMED),
        sentinel(3, BESIDE, CONFIRMED),
        sentinel(3, Fault::PartitionBeside(2), CONFIRMED),
        sentinel(2, Fault::BriefStop, CONFIRMED),
        sentinel(2, Fault::WrongChoice, CONFIRMED),
        sentinel(2, Fault::Restart, CONFIRMED),
        cluster(1, Fault::FailoverForce, CONFIRMED),
        cluster(2, Fault::FailoverForce, CONFIRMED),
        by_hand(CONFIRMED),
    ];
    if is_first {
        cells.extend([
            sentinel(2, BESIDE, RECOMMENDED),
            sentinel(2, BESIDE, ALL_REPLICAS),
            sentinel(3, Fault::PartitionBeside(2), RECOMMENDED),
            sentinel(2, BESIDE, WAIT_ALL),
            sentinel(2, Fault::BriefStop, NO_ALLOWANCE),
            sentinel(2, Fault::BriefStop, WAIT_AND_QUARANTINE),
            sentinel(2, Fault::BriefStop, WAIT_ALL),
            sentinel(2, Fault::WrongChoice, WAIT_AND_QUARANTINE),
            sentinel(2, Fault::WrongChoice, WAIT_ALL),
            sentinel(3, BESIDE, WAIT_ONE),
            sentinel(3, BESIDE, WAIT_AND_QUARANTINE),
            sentinel(1, Fault::Kill, COUNTS_FROM_ANSWER),
            by_hand(NOTHING),
        ]);
    }
    cells
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
            let kinds = if self.quick {
                quick(is_first)
            } else {
                full(is_first)
            };
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
        for cells in [quick(true), quick(false), full(true), full(false)] {
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
        for cells in [quick(true), full(true)] {
            for kind in cells {
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
