//! The measurements of a service.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::spawn;
use hdrhistogram::Histogram;
use tokio::runtime::Handle;

use crate::failure::Failure;
use crate::locks::client::{Address, Client, Lifetime};
use crate::machine::tree;

/// Figures by name.
pub type Figures = Vec<(&'static str, f64)>;

/// Pairs, or hand-overs, per second.
pub const RATE: &str = "per second";
/// From asking for a lock to having it, the median.
pub const P50: &str = "wait p50 µs";
/// The wait that one in a hundred exceeds.
pub const P99: &str = "wait p99 µs";
/// The longest wait.
pub const MAX: &str = "wait max µs";
/// Processor time of all the service's processes for each.
pub const CPU: &str = "server cpu µs";
/// Jain's index of the turns of each client: 1 when all had equally many.
pub const FAIRNESS: &str = "Jain index";
/// Hand-overs, or pairs, per second of work of one core of the server.
pub const PER_CORE: &str = "per second of a core";
/// From the kill of the holder until the next has the lock.
pub const NEXT: &str = "s until the next has it";
/// The memory that a held lock adds to all the service's processes.
pub const HELD: &str = "bytes a held lock";
/// The memory that a waiter adds, connection included.
pub const WAITER: &str = "bytes a waiter";

/// Clients that take and release for some time.
#[derive(Clone, Copy)]
pub struct Load {
    /// The number of clients.
    pub clients: usize,
    /// Whether all want one lock; otherwise each has its own.
    pub hot: bool,
    /// How long each keeps it.
    pub work: Duration,
    /// How long they ask.
    pub duration: Duration,
}

/// One hold of a client: when it asked, had the lock, and began to release it, from the start.
#[derive(Clone, Copy)]
pub struct Turn {
    /// The client.
    pub client: usize,
    /// When it asked.
    pub asked: Duration,
    /// When it had it.
    pub granted: Duration,
    /// When it began to release it.
    pub released: Duration,
}

/// Runs clients with a thread each, like most programs.
pub fn contend(
    handle: &Handle,
    address: Address,
    processes: &[u32],
    load: Load,
) -> Result<Round, Failure> {
    let clients = handle.block_on(connect(address, load.clients))?;
    let before = tree::cpu_us(processes);
    let mut turns = run(handle, clients, load)?;
    let cpu_us = tree::cpu_us(processes) - before;
    let figures = figures(&turns, load, cpu_us);
    let hand_overs = if load.hot {
        hand_overs(&mut turns)?
    } else {
        histogram()
    };
    Ok(Round {
        figures,
        hand_overs,
    })
}

/// The outcome of a round.
pub struct Round {
    /// Its figures.
    pub figures: Figures,
    /// From each release until the next client had the lock, in nanoseconds.
    pub hand_overs: Histogram<u64>,
}

/// Returns the times from each release until the next client has the lock, if it was waiting by then, in nanoseconds. Fails when
/// two had it at once.
pub fn hand_overs(turns: &mut [Turn]) -> Result<Histogram<u64>, Failure> {
    turns.sort_unstable_by_key(|turn| turn.granted);
    let mut waits = histogram();
    for pair in turns.windows(2) {
        let [before, next] = pair else { continue };
        let Some(wait) = next.granted.checked_sub(before.released) else {
            return Err("two clients had the lock at once".into());
        };
        if next.asked < before.released {
            waits.saturating_record(wait.as_nanos() as u64);
        }
    }
    Ok(waits)
}

/// Makes a histogram of nanoseconds, up to ten minutes.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(600_000_000_000, 3).expect("bounds in order")
}

async fn connect(address: Address, count: usize) -> Result<Vec<Box<dyn Client>>, Failure> {
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        clients.push(address.connect(number, Lifetime::Default).await?);
    }
    Ok(clients)
}

fn run(handle: &Handle, clients: Vec<Box<dyn Client>>, load: Load) -> Result<Vec<Turn>, Failure> {
    let door = Arc::new(Barrier::new(clients.len()));
    let start = Arc::new(OnceLock::new());
    let threads: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, mut client)| {
            let (door, start, handle) = (door.clone(), start.clone(), handle.clone());
            thread::spawn(move || -> Result<Vec<Turn>, Failure> {
                let lock = if load.hot { 0 } else { number };
                // Each has had its lock once before it counts.
                handle.block_on(client.acquire(lock))?;
                handle.block_on(client.release(lock))?;
                door.wait();
                let start: &Instant = start.get_or_init(Instant::now);
                let mut turns = Vec::new();
                loop {
                    let asked = start.elapsed();
                    if asked >= load.duration {
                        return Ok(turns);
                    }
                    handle.block_on(client.acquire(lock))?;
                    let granted = start.elapsed();
                    if !load.work.is_zero() {
                        thread::sleep(load.work);
                    }
                    turns.push(Turn {
                        client: number,
                        asked,
                        granted,
                        released: start.elapsed(),
                    });
                    handle.block_on(client.release(lock))?;
                }
            })
        })
        .collect();
    let mut turns = Vec::new();
    let mut failed = None;
    for thread in threads {
        match thread.join().map_err(|_| "a client panicked")? {
            Ok(some) => turns.extend(some),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(turns), Err)
}

/// Returns the figures of the turns.
pub fn figures(turns: &[Turn], load: Load, cpu_us: f64) -> Figures {
    let mut waits = histogram();
    let mut counts = vec![0.0_f64; load.clients];
    for turn in turns {
        waits.saturating_record(turn.granted.saturating_sub(turn.asked).as_nanos() as u64);
        counts[turn.client] += 1.0;
    }
    let in_time = turns
        .iter()
        .filter(|turn| turn.granted < load.duration)
        .count();
    let at = |quantile| waits.value_at_quantile(quantile) as f64 / 1e3;
    let sum: f64 = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    vec![
        (RATE, in_time as f64 / load.duration.as_secs_f64()),
        (P50, at(0.5)),
        (P99, at(0.99)),
        (MAX, at(1.0)),
        (CPU, cpu_us / turns.len() as f64),
        (PER_CORE, turns.len() as f64 / cpu_us * 1e6),
        (FAIRNESS, sum * sum / (load.clients as f64 * squares)),
    ]
}

/// Kills a process that holds a lock, with SIGKILL, while another waits for it.
pub async fn kill_holder(address: Address, lifetime: Lifetime) -> Result<Figures, Failure> {
    const LOCK: usize = 777;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--hold", &format!("{address},{lifetime:?},{LOCK}")]);
    command.stdout(Stdio::piped()).stdin(Stdio::null());
    let mut holder = spawn(command)?;
    let output = holder.stdout.take().ok_or("no output")?;
    let said = tokio::task::spawn_blocking(move || BufReader::new(output).lines().next());
    if !matches!(said.await?, Some(Ok(line)) if line == "held") {
        let _ = holder.wait();
        return Err("the holder did not get the lock".into());
    }
    let mut client = address.connect(1, lifetime).await?;
    let waiter = tokio::spawn(async move {
        client.acquire(LOCK).await?;
        let granted = Instant::now();
        client.release(LOCK).await?;
        Ok::<_, Failure>(granted)
    });
    // The waiter is in the queue by then, and the holder has sent a heartbeat.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed = Instant::now();
    holder.kill()?;
    holder.wait()?;
    let granted = waiter.await??;
    Ok(vec![(
        NEXT,
        granted.saturating_duration_since(killed).as_secs_f64(),
    )])
}

/// Runs the process that is killed: it takes the lock, reports it, and lives on.
pub async fn hold(text: &str) -> Result<(), Failure> {
    let mut words = text.split(',');
    let mut word = || words.next().ok_or("a word is missing");
    let address: Address = word()?.parse()?;
    let lifetime = match word()? {
        "Short" => Lifetime::Short,
        _ => Lifetime::Default,
    };
    let lock = word()?.parse()?;
    let mut client = address.connect(0, lifetime).await?;
    client.acquire(lock).await?;
    println!("held");
    std::future::pending().await
}

/// Measures many locks held by one client, and then many clients that wait for one lock.
pub async fn memory(
    address: Address,
    processes: &[u32],
    locks: usize,
    waiters: usize,
) -> Result<Figures, Failure> {
    const LOCK: usize = 888_888;
    let mut holder = address.connect(0, Lifetime::Default).await?;
    holder.acquire(LOCK).await?;
    let before = tree::memory(processes);
    for lock in 0..locks {
        holder.acquire(lock).await?;
    }
    let held = tree::memory(processes) - before;
    let mut waiting = Vec::new();
    let before = tree::memory(processes);
    for number in 1..=waiters {
        let mut client = address.connect(number, Lifetime::Default).await?;
        waiting.push(tokio::spawn(async move { client.acquire(LOCK).await }));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    if let Some(early) = waiting.iter().position(|task| task.is_finished()) {
        let said = waiting.swap_remove(early).await?;
        return Err(format!("somebody does not wait: {said:?}").into());
    }
    let waits = tree::memory(processes) - before;
    waiting.iter().for_each(|task| task.abort());
    Ok(vec![
        (HELD, held / locks as f64),
        (WAITER, waits / waiters as f64),
    ])
}
