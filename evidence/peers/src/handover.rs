//! One hot lock of dlock on several servers: the duration of a hand-over, by the number of clients and the time of each hold.

use std::path::PathBuf;
use std::time::Duration;

use dlock_harness::Server;
use hdrhistogram::Histogram;
use tokio::runtime::Handle;

use crate::cell::{self, Figures, Load};
use crate::failure::Failure;
use crate::locks::client::{Address, Kind};
use crate::outcome::Outcome;
use crate::service::java_versions;

/// The name in the outcome.
pub const GROUP: &str = "hand-over";
/// The numbers of clients.
pub const CLIENTS: [usize; 4] = [2, 16, 100, 1_000];
/// How long each keeps the lock, in milliseconds, and how long a round asks in the full run.
pub const HOLDS: [(u64, Duration); 3] = [
    (0, Duration::from_millis(1_000)),
    (1, Duration::from_millis(1_500)),
    (10, Duration::from_millis(4_000)),
];

/// From the sending of a release until a waiter has the lock, the median.
pub const P50: &str = "hand-over p50 µs";
/// The duration that one in a hundred exceeds.
pub const P99: &str = "hand-over p99 µs";
/// The duration that one in a thousand exceeds, of all rounds together.
pub const P999: &str = "hand-over p99.9 µs";
/// The number of hand-overs.
pub const COUNT: &str = "hand-overs";

/// Returns the name of a situation in the outcome.
pub fn situation(clients: usize, hold_ms: u64) -> String {
    format!("{clients} clients, {hold_ms} ms")
}

/// The samples of a situation.
struct Samples {
    rounds: Vec<Figures>,
    all: Histogram<u64>,
}

/// Measures on each of these servers in turn, round after round.
pub fn measure(
    handle: &Handle,
    programs: &[PathBuf],
    rounds: usize,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let version = |program: &PathBuf| Server::builder().program(program).version().to_string();
    let names: Vec<String> = programs.iter().map(version).collect();
    let all = [java_versions(), names.clone()].concat();
    outcome.made = outcome.made.clone().with(&all);
    let situations: Vec<(usize, u64, Duration)> = HOLDS
        .iter()
        .flat_map(|&(hold, duration)| CLIENTS.map(|clients| (clients, hold, duration)))
        .collect();
    let mut samples: Vec<Vec<Option<Samples>>> = names
        .iter()
        .map(|_| situations.iter().map(|_| None).collect())
        .collect();
    for round in 0..rounds {
        for (program, samples) in programs.iter().zip(&mut samples) {
            eprintln!("hand-overs, round {}: {} …", round + 1, program.display());
            let server = Server::builder().program(program).start();
            let address = Address {
                kind: Kind::Dlock,
                port: server.port(),
            };
            for (&(clients, hold_ms, duration), known) in situations.iter().zip(samples) {
                let load = Load {
                    clients,
                    hot: true,
                    work: Duration::from_millis(hold_ms),
                    duration: if outcome.quick {
                        duration / 4
                    } else {
                        duration
                    },
                };
                add(
                    known,
                    cell::contend(handle, address, &[server.pid()], load)?,
                )?;
            }
        }
    }
    for (name, samples) in names.iter().zip(samples) {
        for (&(clients, hold_ms, _), known) in situations.iter().zip(samples) {
            let known = known.ok_or("nothing was measured")?;
            outcome.add(GROUP, name, &situation(clients, hold_ms), &known.rounds);
            let all = &known.all;
            outcome.set(P999, all.value_at_quantile(0.999) as f64 / 1e3);
            outcome.set(COUNT, all.len() as f64);
        }
    }
    Ok(())
}

fn add(known: &mut Option<Samples>, round: cell::Round) -> Result<(), Failure> {
    let mut figures = round.figures;
    let waits = round.hand_overs;
    for (name, quantile) in [(P50, 0.5), (P99, 0.99)] {
        figures.push((name, waits.value_at_quantile(quantile) as f64 / 1e3));
    }
    match known {
        Some(samples) => {
            samples.rounds.push(figures);
            samples.all.add(&waits)?;
        }
        None => {
            *known = Some(Samples {
                rounds: vec![figures],
                all: waits,
            });
        }
    }
    Ok(())
}
