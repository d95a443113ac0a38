//! What a run is told, and the cells that follow from it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use dlock_integration::server_program;

use crate::fault::Fault;
use crate::report::Cell;
use crate::run::{Length, Mode, Plan};
use crate::setting::{Setting, ALL, MAIN_SETTINGS, NOTHING, RECOMMENDED};

/// The servers that are measured, if they were fetched.
const MAIN_SERVERS: [&str; 2] = ["redis-8.6", "valkey-9.1"];

/// Rounds a cell, if nobody says otherwise.
const ROUNDS: usize = 15;

/// A cell of the quick run ends after the round in which this is over.
const QUICK: Duration = Duration::from_secs(50);

/// Kills, stops and cuts off servers while clients use locks, and judges what the clients saw.
#[derive(Parser)]
pub struct Options {
    /// Few cells and few rounds: less than four minutes
    #[arg(long)]
    pub quick: bool,
    /// Faults in each cell
    #[arg(long, default_value_t = ROUNDS)]
    pub rounds: usize,
    /// A cell begins no round after so many minutes
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// No cell begins after so many minutes
    #[arg(long)]
    pub end: Option<f64>,
    /// Plays only what the results lack of the rounds: goes on with a run that was cut off
    #[arg(long)]
    pub more: bool,
    /// Starts nothing, but puts the figures of this other directory to the results; may be given several times
    #[arg(long)]
    pub merge: Vec<PathBuf>,
    /// Cells that run at the same time
    #[arg(long, default_value_t = 4)]
    pub lanes: usize,
    /// What the clients and the faults are drawn from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only cells in whose name this stands: "Sentinel | partition"
    #[arg(long, default_value = "")]
    pub only: String,
    /// No cells in whose name this stands; may be given several times
    #[arg(long)]
    pub skip: Vec<String>,
    /// Where `make servers` has put other servers
    #[arg(long)]
    pub servers: Option<PathBuf>,
    /// Where the figures go; those of other cells that are there stay
    #[arg(long)]
    pub results: Option<PathBuf>,
    /// Also writes the history of each cell to the results
    #[arg(long)]
    pub histories: bool,
    /// Only the quorum over independent masters, so many seconds for each way
    #[arg(long)]
    pub quorum: Option<u64>,
    /// Starts nothing, but judges again the histories that are among the results
    #[arg(long)]
    pub again: bool,
}

impl Options {
    /// The cells of this run, the most telling first.
    pub fn plans(&self) -> Vec<Plan> {
        let servers = self.main_servers();
        let mut cells: Vec<(usize, Mode, Fault, Setting)> = Vec::new();
        if self.quick {
            let sentinel = [
                (Fault::Kill, NOTHING),
                (Fault::LagThenKill, RECOMMENDED),
                (Fault::Partition, RECOMMENDED),
            ];
            let cluster = [Fault::Migrate, Fault::Failover, Fault::Partition];
            for server in 0..servers.len() {
                let last = Fault::MoveAtOnce;
                cells.extend(sentinel.map(|(fault, set)| (server, Mode::Sentinel, fault, set)));
                cells.extend(cluster.map(|fault| (server, Mode::Cluster, fault, NOTHING)));
                cells.push((server, Mode::Cluster, last, NOTHING));
            }
        } else {
            // On the first server all is measured, on the others what matters most.
            let (first, others) = ALL.split_at(MAIN_SETTINGS);
            for setting in first {
                let faults = Fault::SENTINEL;
                cells.extend(faults.map(|fault| (0, Mode::Sentinel, fault, *setting)));
            }
            for server in 1..servers.len() {
                let faults = Fault::SENTINEL;
                cells.extend(faults.map(|fault| (server, Mode::Sentinel, fault, RECOMMENDED)));
            }
            for server in 0..servers.len() {
                for fault in Fault::CLUSTER {
                    cells.push((server, Mode::Cluster, fault, NOTHING));
                }
            }
            for server in 0..servers.len() {
                for fault in [
                    Fault::FailoverTakeover,
                    Fault::Kill,
                    Fault::Stop,
                    Fault::Partition,
                ] {
                    cells.push((server, Mode::Cluster, fault, RECOMMENDED));
                }
            }
            for setting in others {
                let faults = Fault::SENTINEL;
                cells.extend(faults.map(|fault| (0, Mode::Sentinel, fault, *setting)));
            }
        }
        let plans = cells.into_iter().map(|(server, mode, fault, setting)| {
            let (name, program) = &servers[server];
            Plan {
                mode,
                server: name.clone(),
                program: program.clone(),
                fault,
                setting,
                seed: self.seed,
                end: self.length(),
            }
        });
        plans
            .filter(|plan| plan.is_possible() && self.wants(&plan.name()))
            .collect()
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only) && !self.skip.iter().any(|text| name.contains(text))
    }

    /// What is still to be played when these runs are there.
    pub fn lacking(&self, plans: Vec<Plan>, runs: &[Cell]) -> Vec<Plan> {
        let plans = plans.into_iter().map(|mut plan| {
            let of_it: Vec<&Cell> = runs.iter().filter(|run| run.is_of(&plan)).collect();
            for run in of_it {
                plan.end.rounds = plan.end.rounds.saturating_sub(run.verdict.rounds);
                // What comes to it is another run.
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

    /// Names and programs: the environment's server when no other was fetched.
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
