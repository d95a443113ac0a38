// SPDX-License-Identifier: MIT
//! Measures dlock next to rslock, on one server in one run. Prints Markdown.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_redis::Locks;
use redis::Client;

const PAIRS: u32 = 1000;
const ROUNDS: usize = 5;
const CONTENDED: Duration = Duration::from_secs(6);
const LEASE: Duration = Duration::from_secs(10);

fn address() -> String {
    std::env::var("DLOCK_SINGLE").expect("use `make bench-clients`")
}

fn client(address: &str) -> Client {
    Client::open(format!("redis://{address}/")).expect("an address")
}

fn key() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970");
    format!("bench:{:x}:{}", time.as_nanos(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[derive(Clone)]
enum Kind {
    Dlock(Locks),
    Rslock(rslock::LockManager),
}

impl Kind {
    fn dlock(address: &str) -> Kind {
        Kind::Dlock(Locks::new(client(address)).expect("good settings"))
    }

    fn rslock(address: &str) -> Kind {
        Kind::Rslock(rslock::LockManager::new(vec![format!("redis://{address}/")]))
    }

    /// Takes the lock, works and gives it back.
    async fn pair(&self, key: &str, work: impl FnOnce()) {
        match self {
            Kind::Dlock(locks) => {
                let hold = locks.on(key).lock().await.expect("the lock");
                work();
                hold.release().await.expect("it was held");
            }
            Kind::Rslock(manager) => {
                let lock = manager.acquire_no_guard(key, LEASE).await.expect("the lock");
                work();
                manager.unlock(&lock).await;
            }
        }
    }
}

const KINDS: [(&str, fn(&str) -> Kind); 2] = [("dlock", Kind::dlock), ("rslock", Kind::rslock)];

async fn uncontended(kind: Kind) -> f64 {
    let key = key();
    kind.pair(&key, || {}).await;
    let began = Instant::now();
    for _ in 0..PAIRS {
        kind.pair(&key, || {}).await;
    }
    f64::from(PAIRS) / began.elapsed().as_secs_f64()
}

/// The waits, shortest first, and each worker's turns.
async fn contend(kind: Kind, workers: usize) -> (Vec<Duration>, Vec<u64>) {
    let (key, until) = (key(), Instant::now() + CONTENDED);
    let seen = Arc::new(Mutex::new((Vec::new(), vec![0; workers])));
    let work = |worker: usize| {
        let (kind, key, seen) = (kind.clone(), key.clone(), seen.clone());
        tokio::spawn(async move {
            while Instant::now() < until {
                let asked = Instant::now();
                let had = || {
                    if Instant::now() < until {
                        let mut seen = seen.lock().expect("no panic");
                        seen.0.push(asked.elapsed());
                        seen.1[worker] += 1;
                    }
                };
                // The round does not wait for a worker that never gets the lock.
                let end = tokio::time::Instant::from_std(until) + Duration::from_secs(5);
                let _ = tokio::time::timeout_at(end, kind.pair(&key, had)).await;
            }
        })
    };
    all((0..workers).map(work)).await;
    let (mut waits, turns) = std::mem::take(&mut *seen.lock().expect("no panic"));
    waits.sort_unstable();
    (waits, turns)
}

async fn all(tasks: impl Iterator<Item = tokio::task::JoinHandle<()>>) {
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

fn control(line: &str) -> String {
    let mut stream = TcpStream::connect(std::env::var("DLOCK_CONTROL").expect("it is set")).expect("it answers");
    writeln!(stream, "{line}").expect("it reads");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("it answers");
    answer.trim_start_matches("ok").trim().to_owned()
}

/// Thirty-two tasks, each with a free lock, where a round trip takes 50 ms: how many round trips all of them take.
async fn far(make: fn(&str) -> Kind) -> f64 {
    let path = control(&format!("path {}", address()));
    let kind = make(&path);
    kind.pair(&key(), || {}).await; // connected
    control(&format!("delay {path} 50"));
    let began = Instant::now();
    all((0..32).map(|_| {
        let kind = kind.clone();
        tokio::spawn(async move { kind.pair(&key(), || {}).await })
    }))
    .await;
    let trips = began.elapsed().as_secs_f64() / 0.05;
    control(&format!("close {path}"));
    trips
}

/// Returns the commands a second on the wire while `count` locks are held, the connections, and how many locks were lost.
async fn held(count: usize) -> (f64, usize, usize) {
    let (path, straight) = (control(&format!("path {}", address())), client(&address()));
    let mut watch = straight.get_multiplexed_async_connection().await.expect("a server");
    let mut seen = async || -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut watch).await.expect("it may look");
        list.lines().count()
    };
    tokio::time::sleep(Duration::from_secs(1)).await; // those of the last one end
    let before = seen().await;
    let locks = Locks::new(client(&path)).expect("good settings");
    let mut holds = Vec::new();
    for _ in 0..count {
        holds.push(locks.on(key()).lock().await.expect("the lock"));
    }
    let connections = seen().await - before;
    let commands = || control(&format!("commands {path}")).parse::<f64>().expect("a number");
    let first = commands();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let rate = (commands() - first) / 10.0;
    let lost = holds.iter().filter(|hold| hold.is_lost()).count();
    locks.close();
    (rate, connections, lost)
}

/// Returns the median, the minimum and the maximum of all rounds of each kind. The kinds alternate.
async fn rounds<F: Future<Output = f64>>(measure: impl Fn(fn(&str) -> Kind) -> F) -> Vec<(&'static str, [f64; 3])> {
    let mut values = KINDS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (at, (_, make)) in KINDS.iter().enumerate() {
            values[at].push(measure(*make).await);
        }
    }
    let row = |(at, mut values): (usize, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        (KINDS[at].0, [values[ROUNDS / 2], values[0], values[ROUNDS - 1]])
    };
    values.into_iter().enumerate().map(row).collect()
}

#[tokio::main]
async fn main() {
    let server = std::env::var("DLOCK_SERVER").unwrap_or_default();
    println!("\n{server}; medians of {ROUNDS} interleaved rounds, and the least and the most\n");
    println!("| uncontended, one task | pairs a second | least, most |\n|---|---|---|");
    for (kind, [middle, least, most]) in rounds(|make| uncontended(make(&address()))).await {
        println!("| {kind} | {middle:.0} | {least:.0}, {most:.0} |");
    }
    println!("\n| tasks on one lock | | turns a second | wait p50 ms | p99 ms | longest ms | fewest and most turns |");
    println!("|---|---|---|---|---|---|---|");
    for workers in [16, 100] {
        for (kind, make) in KINDS {
            let (waits, turns) = contend(make(&address()), workers).await;
            let at = |part: f64| {
                let at = (waits.len() as f64 * part) as usize;
                waits.get(at.min(waits.len() - 1)).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1000.0)
            };
            let rate = waits.len() as f64 / CONTENDED.as_secs_f64();
            let (least, most) = (turns.iter().min().expect("workers"), turns.iter().max().expect("workers"));
            println!("| {workers} | {kind} | {rate:.0} | {:.1} | {:.1} | {:.1} | {least}, {most} |", at(0.5), at(0.99), at(1.0));
        }
    }
    println!("\n| 32 tasks on free locks, 50 ms a round trip | round trips in all | least, most |\n|---|---|---|");
    for (kind, [middle, least, most]) in rounds(far).await {
        println!("| {kind} | {middle:.1} | {least:.1}, {most:.1} |");
    }
    println!("\n| locks held in one process | commands a second | connections | lost |\n|---|---|---|---|");
    for count in [10, 1_000, 10_000] {
        let (rate, connections, lost) = held(count).await;
        println!("| {count} | {rate:.1} | {connections} | {lost} |");
    }
}
