//! The rivals under equal chaos: locks that two clients believed in at once, lost locks, and the time without grants, while the
//! primary was killed, stopped, stalled or cut off.
//!
//! Each cell has servers and clients of its own on this machine. Every client records when it believed that it had a lock, by the
//! one monotonic clock of the machine. First the run plays clients without any lock: if it does not report these, it fails.
//!
//! | file | contents |
//! |---|---|
//! | `contestant.rs` | the locks, the faults, and the load |
//! | `scene.rs` | the servers, and their faults |
//! | `here.rs` | clients that are threads of this program |
//! | `driver.rs`, `java/`, `redlock/` | clients in Java (Redisson) and Go (redsync), and the programs that run them |
//! | `seen.rs` | the observations of a cell |
//! | `page.rs` | the page |

mod contestant;
mod driver;
mod here;
mod page;
mod scene;
mod seen;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{fs, panic};

use clap::Parser;
use dlock_evidence::lanes::in_lanes;
use dlock_harness::belief::{now, Belief};
use dlock_harness::Made;
use fastrand::Rng;

use crate::contestant::{Contestant, Driver, Fault, CLIENTS};
use crate::driver::{Drivers, Playing};
use crate::here::Client;
use crate::page::{Page, Row};
use crate::scene::Scene;
use crate::seen::{Round, Seen, GROUPS};

/// The number of locks that each group of clients takes before a fault.
const GRANTS: usize = 10;

/// How long they work before a fault.
const CALM: Duration = Duration::from_secs(3);

/// How long the clients may take for that. After it the fault comes nevertheless, and the gap counts as a time without grants.
const PATIENCE: Duration = Duration::from_secs(120);

/// The command line.
#[derive(Parser)]
struct Options {
    /// Where the drivers are
    #[arg(long, default_value = "target/rivals")]
    drivers: PathBuf,
    /// Where the page goes, in `full` or `quick`
    #[arg(long, default_value = "target/rivals")]
    results: PathBuf,
    /// One fault of each kind for each lock, instead of five
    #[arg(long)]
    quick: bool,
    /// Faults of each kind for each lock
    #[arg(long)]
    rounds: Option<usize>,
    /// Cells that are played at a time
    #[arg(long, default_value_t = 6)]
    lanes: usize,
    /// Only these locks (rlock, fair, redlock, set-wait, dlock-replicas, dlock)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these faults (kill, stop, stall, cut)
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    fn cells(&self) -> Vec<(Contestant, Fault)> {
        let is_chosen =
            |words: &[String], word: &str| words.is_empty() || words.iter().any(|one| one == word);
        let mut cells = Vec::new();
        for fault in Fault::ALL {
            for contestant in Contestant::ALL {
                if is_chosen(&self.only, contestant.word()) && is_chosen(&self.faults, fault.word())
                {
                    cells.push((contestant, fault));
                }
            }
        }
        cells
    }
}

/// Runs the clients of a cell during `happen`.
fn play(
    contestant: Contestant,
    scene: &mut Scene,
    drivers: &Drivers,
    log: &Path,
    seed: u64,
    happen: impl FnOnce(&mut Scene, &dyn Fn()) -> Vec<Round>,
) -> (Vec<Belief>, Vec<Round>) {
    let groups = scene.clients.clone();
    let granted: Arc<[AtomicUsize; GROUPS]> = Arc::default();
    let await_work = || {
        let counts = || {
            (*granted)
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed))
        };
        let (before, begun) = (counts(), Instant::now());
        let work = |now: [usize; GROUPS]| {
            let mut pairs = now.iter().zip(before);
            pairs.all(|(now, before)| *now >= before + GRANTS)
        };
        while !work(counts()) && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20));
        }
        sleep(CALM);
    };
    if contestant.driver() != Driver::Here {
        let playing = Playing::start(drivers, contestant, &groups, &granted, log);
        let rounds = happen(scene, &await_work);
        return (playing.end(), rounds);
    }
    let (over, mut random) = (AtomicBool::new(false), Rng::with_seed(seed));
    thread::scope(|threads_of| {
        let mut threads = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            for number in 0..CLIENTS {
                let client = Client {
                    contestant,
                    group: (at, group),
                    name: format!("{at}-{number}"),
                    over: &over,
                    granted: &granted,
                    random: random.fork(),
                    link: None,
                };
                threads.push(threads_of.spawn(move || client.work()));
            }
        }
        // The scope waits for the clients even if this panics.
        let rounds = panic::catch_unwind(AssertUnwindSafe(|| happen(scene, &await_work)));
        over.store(true, Ordering::Relaxed);
        let beliefs = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a client does not panic"));
        let beliefs = beliefs.collect();
        match rounds {
            Ok(rounds) => (beliefs, rounds),
            Err(panicked) => panic::resume_unwind(panicked),
        }
    })
}

/// Plays clients without a lock, with each kind of driver. Returns the number of reported faults, or the driver without any.
fn planted(options: &Options, drivers: &Drivers, logs: &Path) -> Result<usize, String> {
    let mut reported = 0;
    for contestant in Contestant::PLANTED {
        let mut scene = Scene::start(contestant);
        let log = logs.join(format!("nothing-{:?}.log", contestant.driver()));
        let (beliefs, _) = play(
            contestant,
            &mut scene,
            drivers,
            &log,
            options.seed,
            |_, await_work| {
                await_work();
                Vec::new()
            },
        );
        let seen = Seen::of(&beliefs, &[]);
        if seen.twice == 0 {
            return Err(format!("{contestant}: two that believed were not seen"));
        }
        println!(
            "{contestant}: believed by two {} times, as it must be",
            seen.twice
        );
        reported += seen.twice;
    }
    Ok(reported)
}

/// Plays a cell.
fn cell(
    (contestant, fault): (Contestant, Fault),
    options: &Options,
    drivers: &Drivers,
    logs: &Path,
) -> Row {
    let mut scene = Scene::start(contestant);
    let mut random = Rng::with_seed(options.seed);
    let log = logs.join(format!("{}-{}.log", contestant.word(), fault.word()));
    let count = options.rounds();
    let (beliefs, rounds) = play(
        contestant,
        &mut scene,
        drivers,
        &log,
        options.seed,
        |scene, await_work| {
            await_work();
            let mut rounds: Vec<Round> = Vec::new();
            for _ in 0..count {
                sleep(Duration::from_millis(random.u64(..500)));
                let mut round = scene.inflict(fault, &mut random);
                sleep(scene.settling());
                await_work();
                round.until = now();
                rounds.push(round);
            }
            rounds
        },
    );
    let record: String = (beliefs.iter())
        .map(|b| {
            format!(
                "{} {} {} {} {:?}\n",
                b.lock, b.owner, b.from, b.until, b.end
            )
        })
        .chain(
            rounds
                .iter()
                .map(|r| format!("fault {} {}\n", r.from, r.until)),
        )
        .collect();
    fs::write(log.with_extension("beliefs"), record).expect("the directory can be written to");
    Row {
        contestant,
        fault,
        seen: Seen::of(&beliefs, &rounds),
        tilted: rounds.iter().filter(|round| round.tilted).count(),
        without_effect: (rounds.iter())
            .filter(|round| !round.took_effect && !round.tilted)
            .count(),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let drivers = Drivers::new(&options.drivers);
    let results = (options.results).join(if options.quick { "quick" } else { "full" });
    let logs = results.join("logs");
    fs::create_dir_all(&logs).expect("the results can be written");
    let mut versions = drivers.versions();
    let made = Made::now();
    versions.insert(0, made.server.clone());
    let made = made.with(&versions);
    let reported = match planted(&options, &drivers, &logs) {
        Ok(reported) => reported,
        Err(blind) => {
            println!("CONTROL FAILED: {blind}");
            return ExitCode::FAILURE;
        }
    };
    let cells = options.cells();
    let rows = in_lanes(options.lanes, &cells, |of| {
        let row = panic::catch_unwind(|| cell(*of, &options, &drivers, &logs));
        match &row {
            Ok(row) => println!("{row}"),
            Err(_) => println!("{}, {}: not played to its end", of.0, of.1),
        }
        row.ok()
    });
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    let mut failed = rows.len() < cells.len();
    for row in &rows {
        for what in row.failed_controls(options.rounds()) {
            println!("CONTROL FAILED: {}, {}: {what}", row.contestant, row.fault);
            failed = true;
        }
    }
    let page = Page {
        rounds: options.rounds(),
        reported,
        made,
        rows,
    };
    let kept = page.keep(&results);
    kept.expect("the results can be written");
    match failed {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    }
}
