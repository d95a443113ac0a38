//! Programs that use locks, and note what they believe.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dlock_integration::redis::Value;
use dlock_integration::{command, connect, reply_of, Wire};

/// How many there are, and how many locks.
pub const WORKERS: usize = 20;
pub const LOCKS: usize = 10;

/// Their leases.
pub const LEASE_MS: u64 = 3_000;

/// What they stop before the end of a lease, for clocks.
const ALLOWANCE: Duration = Duration::from_millis(100);

/// How long a connection may take to answer, beside the wait for a lock.
const BOUND: Duration = Duration::from_millis(1_500);

/// Somebody believed to have a lock.
#[derive(Debug, Clone)]
pub struct Belief {
    pub lock: usize,
    pub worker: usize,
    pub from: Instant,
    pub until: Instant,
}

/// Workers that work.
pub struct Workers {
    port: Arc<AtomicU16>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Belief>>>,
}

impl Workers {
    /// Starts them, at the server with this port.
    pub fn start(port: u16) -> Workers {
        let (port, over) = (
            Arc::new(AtomicU16::new(port)),
            Arc::new(AtomicBool::new(false)),
        );
        let threads = (0..WORKERS).map(|worker| {
            let (port, over) = (port.clone(), over.clone());
            thread::spawn(move || work(worker, &port, &over))
        });
        Workers {
            threads: threads.collect(),
            port,
            over,
        }
    }

    /// From now on the primary is there.
    pub fn turn_to(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// Ends them, and gives what they believed.
    pub fn end(self) -> Vec<Belief> {
        self.over.store(true, Ordering::Relaxed);
        let beliefs = self
            .threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a worker"));
        beliefs.collect()
    }
}

/// Asks, and waits for the answer; none without one, or with an error.
fn ask(wire: &mut Wire, line: &str) -> Option<Value> {
    wire.send_bytes(&command(line).get_packed_command()).ok()?;
    reply_of(wire.read_value().ok()?).ok()
}

fn work(worker: usize, port: &AtomicU16, over: &AtomicBool) -> Vec<Belief> {
    let mut random = fastrand::Rng::with_seed(worker as u64);
    let (mut beliefs, mut link): (Vec<Belief>, Option<(u16, Wire)>) = (Vec::new(), None);
    while !over.load(Ordering::Relaxed) {
        let at = port.load(Ordering::Relaxed);
        if link.as_ref().map(|(to, _)| *to) != Some(at) {
            let stream = connect(Ipv4Addr::LOCALHOST, at, BOUND);
            link = stream.ok().map(|stream| (at, Wire::new(stream)));
        }
        let Some((_, wire)) = &mut link else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        let lock = random.usize(..LOCKS);
        let owner = format!("worker-{worker}-{}", beliefs.len());
        // As long as it holds the lock it works, whatever becomes of the server: some for moments, some for most of a lease.
        let work_ms = if random.u8(..10) < 8 {
            random.u64(1..20)
        } else {
            random.u64(500..2_500)
        };
        let asked = Instant::now();
        match ask(
            wire,
            &format!("DLOCK.ACQUIRE lock:{lock} {owner} {LEASE_MS} BLOCK 300"),
        ) {
            Some(Value::Array(_)) => {}
            Some(_) => continue,
            // Nobody knows what has become of it: it is not believed.
            None => {
                link = None;
                thread::sleep(Duration::from_millis(20));
                continue;
            }
        }
        let from = Instant::now();
        let end = asked + Duration::from_millis(LEASE_MS) - ALLOWANCE;
        thread::sleep(Duration::from_millis(work_ms).min(end.saturating_duration_since(from)));
        let until = Instant::now().min(end);
        beliefs.push(Belief {
            lock,
            worker,
            from,
            until: until.max(from),
        });
        if ask(wire, &format!("DLOCK.RELEASE lock:{lock} {owner}")).is_none() {
            link = None;
        }
    }
    beliefs
}
