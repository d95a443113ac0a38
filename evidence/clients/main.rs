//! Failovers under the clients. Programs of all languages take turns on the same locks while the primary is killed, stops, or gives
//! its role away as planned, under Sentinel and in a cluster, with `dlock.replicas`.
//!
//! Each language's `clients/<language>/failover.sh` starts such a program. It reports each hold by the one monotonic clock of the
//! machine, so that the run can judge: no two of them believed in a lock at once; no hold that was kept with a lease of one and a half
//! times (detection + 5 s) was lost; and each of them was granted a lock soon after the promotion.
//!
//! | file | contents |
//! |---|---|
//! | `servers.rs` | the servers, and what happens to their primary |
//! | `program.rs` | a language's program, and what it reports |
//! | `seen.rs` | what the rounds of a scene have in common: the table |

mod program;
mod seen;
mod servers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use dlock_evidence::page::{self, fill};
use dlock_harness::{until, Made};

use crate::program::{install, Playing, Program, PROGRAMS};
use crate::seen::{table, Round, Seen};
use crate::servers::{Fault, Mode, Scene, DOWN_AFTER_MS};

/// 1.5 x (detection + 5 s).
const LEASE_MS: u64 = 3 * (DOWN_AFTER_MS + 5_000) / 2;

/// How long the programs take turns before the fault.
const CALM: Duration = Duration::from_secs(2);

/// How long they take turns after the promotion, and again after a stopped primary has come back.
const AFTER: Duration = Duration::from_secs(6);

/// How long the programs may take to begin, and a program to get its next lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command line.
#[derive(Parser)]
struct Options {
    /// Where the programs are installed
    #[arg(long, default_value = "target/clients")]
    installed: PathBuf,
    /// Where the page and the programs' logs go
    #[arg(long, default_value = "target/failover-clients")]
    results: PathBuf,
    /// One round of three scenes, instead of three rounds of six
    #[arg(long)]
    quick: bool,
    /// Only these languages
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

const ROUNDS: usize = 3;

const SCENES: [(Mode, Fault); 6] = [
    (Mode::Sentinel, Fault::Kill),
    (Mode::Sentinel, Fault::Stop),
    (Mode::Sentinel, Fault::Planned),
    (Mode::Cluster, Fault::Kill),
    (Mode::Cluster, Fault::Stop),
    (Mode::Cluster, Fault::Planned),
];

const QUICK: [(Mode, Fault); 3] = [SCENES[0], SCENES[1], SCENES[3]];

fn main() -> ExitCode {
    let options = Options::parse();
    let is_chosen = |program: &&Program| {
        options.only.is_empty() || options.only.iter().any(|name| name == program.language)
    };
    let programs: Vec<&Program> = PROGRAMS.iter().filter(is_chosen).collect();
    if programs.is_empty() {
        eprintln!("--only: none of these is a language");
        return ExitCode::FAILURE;
    }
    let mut languages: Vec<&str> = programs.iter().map(|program| program.language).collect();
    languages.dedup();
    for language in languages {
        install(language, &options.installed);
    }
    let made = Made::now();
    let (scenes, rounds): (&[_], _) = match options.quick {
        true => (&QUICK, 1),
        false => (&SCENES, ROUNDS),
    };
    let mut seen = Vec::new();
    for (mode, fault) in scenes {
        let played = (1..=rounds).map(|number| {
            let logs = options.results.join(format!("{mode}-{fault}-{number}"));
            let round = play(*mode, *fault, &programs, &options.installed, &logs);
            println!("{mode}, {fault}, round {number}: {round}");
            round
        });
        seen.push(Seen::new(*mode, *fault, played.collect()));
    }
    let page = fill(
        include_str!("page.txt"),
        &[
            ("made", &made),
            ("table", &table(&programs, &seen)),
            ("rounds", &rounds),
            ("beliefs", &seen.iter().map(Seen::beliefs).sum::<usize>()),
            ("overlaps", &seen.iter().map(Seen::overlaps).sum::<usize>()),
            ("lease", &(LEASE_MS / 1_000)),
            ("detection", &(DOWN_AFTER_MS / 1_000)),
        ],
    );
    println!("\n{page}");
    let directory = if options.quick { "quick" } else { "full" };
    page::keep(
        &options.results.join(directory),
        "failover-clients.md",
        &page,
    )
    .expect("the page can be written");
    let wrong: Vec<String> = seen.iter().flat_map(Seen::wrong).collect();
    page::verdict(&wrong)
}

/// Plays one round, with servers and programs of its own.
fn play(
    mode: Mode,
    fault: Fault,
    programs: &[&'static Program],
    installed: &Path,
    logs: &Path,
) -> Round {
    let mut scene = Scene::start(mode);
    let playing: Vec<Playing> = programs
        .iter()
        .map(|program| Playing::start(program, &scene, LEASE_MS, installed, logs))
        .collect();
    for one in &playing {
        let is_ready = until(PATIENCE, || one.is_ready());
        assert!(
            is_ready,
            "{} does not begin: see {}",
            one.name(),
            logs.display()
        );
    }
    sleep(CALM);
    let (began, promoted) = scene.inflict(fault);
    sleep(AFTER);
    for one in &playing {
        // A program that gets none by then has no first grant in the table.
        until(PATIENCE, || one.has_turned_since(promoted));
    }
    if fault == Fault::Stop {
        scene.come_back();
        sleep(AFTER);
    }
    let notes = playing.into_iter().map(Playing::end).collect();
    Round::new(began, promoted, notes)
}
