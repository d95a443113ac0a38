// SPDX-License-Identifier: MIT
//! Measures dlock next to rslock, on one server in one run. Prints Markdown.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_redis::Locks;
use redis::aio::MultiplexedConnection;
use redis::Client;
use rustix::time::{clock_gettime, ClockId};

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

/// What the server tells, by a connection of its own.
struct Watch(MultiplexedConnection);

impl Watch {
    async fn new() -> Watch {
        Watch(client(&address()).get_multiplexed_async_connection().await.expect("a server"))
    }

    /// Returns a field of `INFO`.
    async fn told(&self, field: &str) -> f64 {
        let info: redis::InfoDict =
            redis::cmd("INFO").arg("everything").query_async(&mut self.0.clone()).await.expect("it may look");
        info.get(field).expect("the server has it")
    }

    /// Returns the microseconds that the server has used.
    async fn used(&self) -> f64 {
        1e6 * (self.told("used_cpu_user").await + self.told("used_cpu_sys").await)
    }

    /// Returns the id of the newest connection. Those of the last measurement may still be ending.
    async fn newest(&self) -> u64 {
        self.ids().await.into_iter().max().expect("this one")
    }

    /// Returns how many connections are newer than that.
    async fn since(&self, newest: u64) -> usize {
        self.ids().await.into_iter().filter(|id| *id > newest).count()
    }

    async fn ids(&self) -> Vec<u64> {
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query_async(&mut self.0.clone()).await.expect("it may look");
        let ids = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok());
        ids.collect()
    }
}

/// Returns the microseconds that this process has used.
fn used() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Returns the pairs a second, and the client's and the server's microseconds for each.
async fn uncontended(kind: Kind, watch: &Watch) -> [f64; 3] {
    let key = key();
    kind.pair(&key, || {}).await;
    let (server, ours, began) = (watch.used().await, used(), Instant::now());
    for _ in 0..PAIRS {
        kind.pair(&key, || {}).await;
    }
    let (took, ours) = (began.elapsed().as_secs_f64(), used() - ours);
    let (pairs, server) = (f64::from(PAIRS), watch.used().await - server);
    [pairs / took, ours / pairs, server / pairs]
}

/// The waits, shortest first, and each worker's turns within the time. Waits that outlast it also count.
async fn contend(kind: Kind, workers: usize) -> (Vec<Duration>, Vec<u64>) {
    let (key, until) = (key(), Instant::now() + CONTENDED);
    let seen = Arc::new(Mutex::new((Vec::new(), vec![0; workers])));
    let work = |worker: usize| {
        let (kind, key, seen) = (kind.clone(), key.clone(), seen.clone());
        tokio::spawn(async move {
            while Instant::now() < until {
                let asked = Instant::now();
                let had = || {
                    let mut seen = seen.lock().expect("no panic");
                    seen.0.push(asked.elapsed());
                    seen.1[worker] += u64::from(Instant::now() < until);
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

async fn all(tasks: impl IntoIterator<Item = tokio::task::JoinHandle<()>>) {
    for task in tasks.into_iter().collect::<Vec<_>>() {
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

/// Returns the connections while `count` tasks wait for one held lock. They take it in turn in the end.
async fn waiting(count: usize, watch: &Watch) -> usize {
    let (before, key) = (watch.newest().await, key());
    let locks = Locks::new(client(&address())).expect("good settings");
    let kind = Kind::Dlock(locks.clone());
    let hold = locks.on(&key).lock().await.expect("the lock");
    let turns = (0..count).map(|_| {
        let (kind, key) = (kind.clone(), key.clone());
        tokio::spawn(async move { kind.pair(&key, || {}).await })
    });
    let turns: Vec<_> = turns.collect();
    while watch.told("dlock_places_queued").await < count as f64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let connections = watch.since(before).await;
    hold.release().await.expect("it was held");
    all(turns).await;
    locks.close();
    connections
}

/// Returns the commands a second on the wire while `count` locks are held, the connections, and how many locks were lost.
async fn held(count: usize, watch: &Watch) -> (f64, usize, usize) {
    let before = watch.newest().await;
    let path = control(&format!("path {}", address()));
    let locks = Locks::new(client(&path)).expect("good settings");
    let mut holds = Vec::new();
    for _ in 0..count {
        holds.push(locks.on(key()).lock().await.expect("the lock"));
    }
    let connections = watch.since(before).await;
    let commands = || control(&format!("commands {path}")).parse::<f64>().expect("a number");
    let first = commands();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let rate = (commands() - first) / 10.0;
    let lost = holds.iter().filter(|hold| hold.is_lost()).count();
    locks.close();
    (rate, connections, lost)
}

/// Returns each kind's measures of all rounds, each sorted. The kinds alternate.
async fn rounds<const N: usize>(
    measure: impl AsyncFn(fn(&str) -> Kind) -> [f64; N],
) -> Vec<(&'static str, [Vec<f64>; N])> {
    let mut rows = KINDS.map(|(title, _)| (title, [const { Vec::new() }; N])).to_vec();
    for _ in 0..ROUNDS {
        for ((_, make), (_, values)) in KINDS.iter().zip(&mut rows) {
            for (value, seen) in measure(*make).await.into_iter().zip(values) {
                seen.push(value);
            }
        }
    }
    rows.iter_mut().flat_map(|(_, values)| values).for_each(|seen| seen.sort_by(f64::total_cmp));
    rows
}

#[tokio::main]
async fn main() {
    let (server, watch) = (std::env::var("DLOCK_SERVER").unwrap_or_default(), Watch::new().await);
    println!("\n{server}; medians of {ROUNDS} interleaved rounds, and the least and the most\n");
    println!("| uncontended | pairs a second | least, most | of rslock | client µs a pair | server µs a pair |");
    println!("|---|---|---|---|---|---|");
    let (middle, last) = (ROUNDS / 2, ROUNDS - 1);
    let rows = rounds(async |make| uncontended(make(&address()), &watch).await).await;
    let theirs = rows.iter().find(|(kind, _)| *kind == "rslock").expect("it is a kind").1[0][middle];
    for (kind, [rate, ours, servers]) in &rows {
        println!(
            "| {kind} | {:.0} | {:.0}, {:.0} | {:.2} | {:.0} | {:.1} |",
            rate[middle],
            rate[0],
            rate[last],
            rate[middle] / theirs,
            ours[middle],
            servers[middle]
        );
    }
    println!("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms | fewest and most turns |");
    println!("|---|---|---|---|---|---|---|---|");
    for workers in [16, 100] {
        for (kind, make) in KINDS {
            let (waits, turns) = contend(make(&address()), workers).await;
            let at = |part: f64| {
                let at = (waits.len() as f64 * part) as usize;
                waits.get(at.min(waits.len() - 1)).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1000.0)
            };
            let rate = turns.iter().sum::<u64>() as f64 / CONTENDED.as_secs_f64();
            let (least, most) = (turns.iter().min().expect("workers"), turns.iter().max().expect("workers"));
            let [p50, p99, p999, longest] = [0.5, 0.99, 0.999, 1.0].map(at);
            println!(
                "| {workers} | {kind} | {rate:.0} | {p50:.1} | {p99:.1} | {p999:.1} | {longest:.1} | {least}, {most} |"
            );
        }
    }
    println!("\n| tasks that wait for one held lock | | connections |\n|---|---|---|");
    for count in [1, 100, 1_000] {
        println!("| {count} | dlock | {} |", waiting(count, &watch).await);
    }
    println!("\n| 32 tasks on free locks, 50 ms a round trip | round trips in all | least, most |\n|---|---|---|");
    for (kind, [trips]) in rounds(async |make| [far(make).await]).await {
        println!("| {kind} | {:.1} | {:.1}, {:.1} |", trips[middle], trips[0], trips[last]);
    }
    println!("\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|");
    for count in [10, 1_000, 10_000] {
        let (rate, connections, lost) = held(count, &watch).await;
        println!("| {count} | dlock | {rate:.1} | {connections} | {lost} |");
    }
}
