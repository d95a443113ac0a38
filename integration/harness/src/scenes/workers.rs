//! Programs that use locks during a failover and record when they believe that they hold them, and an analysis of these records.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Value;

use crate::scenes::belief::{now, overlap, Belief, Micros, MILLISECOND};
use crate::talk::ask::{command, reply_of};
use crate::talk::wire::{connect, Wire};

/// The number of workers.
pub const WORKERS: usize = 20;
/// The number of locks that they use.
pub const LOCKS: usize = 10;

/// Their leases.
pub const LEASE_MS: u64 = 3_000;

/// How long before the end of a lease they stop, to allow for clock differences.
const ALLOWANCE: Micros = 100 * MILLISECOND;

/// How long a connection may take to answer, in addition to the wait for a lock.
const BOUND: Duration = Duration::from_millis(1_500);

/// Running workers.
pub struct Workers {
    port: Arc<AtomicU16>,
    over: Arc<AtomicBool>,
    granted: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<Belief>>>,
}

impl Workers {
    /// Starts the workers, at the server with this port.
    pub fn start(port: u16) -> Workers {
        let port = Arc::new(AtomicU16::new(port));
        let (over, granted) = (Arc::default(), Arc::default());
        let threads = (0..WORKERS).map(|worker| {
            let (port, over, granted) =
                (Arc::clone(&port), Arc::clone(&over), Arc::clone(&granted));
            thread::spawn(move || work(worker, &port, &over, &granted))
        });
        Workers {
            threads: threads.collect(),
            port,
            over,
            granted,
        }
    }

    /// Directs the workers to the new primary.
    pub fn turn_to(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// Returns how many locks they have been granted.
    pub fn granted(&self) -> usize {
        self.granted.load(Ordering::Relaxed)
    }

    /// Ends the workers. Returns the overlaps of their beliefs, and the time from `died` until the first grant after it.
    pub fn end(self, died: Instant) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        let beliefs = self
            .threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a worker"));
        let died = now() - died.elapsed().as_micros() as Micros;
        Seen::of(&beliefs.collect::<Vec<_>>(), died)
    }
}

/// Sends a command and waits for its answer; none without one, or with an error.
fn ask(wire: &mut Wire, line: &str) -> Option<Value> {
    wire.send_bytes(&command(line).get_packed_command()).ok()?;
    reply_of(wire.read_value().ok()?).ok()
}

fn work(worker: usize, port: &AtomicU16, over: &AtomicBool, granted: &AtomicUsize) -> Vec<Belief> {
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
        // A worker keeps working while it holds the lock, whatever the server does: some for moments, some for most of a lease.
        let work_ms = if random.u8(..10) < 8 {
            random.u64(1..20)
        } else {
            random.u64(500..2_500)
        };
        let asked = now();
        match ask(
            wire,
            &format!("DLOCK.ACQUIRE lock:{lock} {owner} {LEASE_MS} BLOCK 300"),
        ) {
            Some(Value::Array(_)) => {}
            Some(_) => continue,
            // Without an answer the lock's state is unknown: the worker does not believe that it holds it.
            None => {
                link = None;
                thread::sleep(Duration::from_millis(20));
                continue;
            }
        }
        granted.fetch_add(1, Ordering::Relaxed);
        let from = now();
        let end = asked + LEASE_MS * MILLISECOND - ALLOWANCE;
        let work = (work_ms * MILLISECOND).min(end.saturating_sub(from));
        thread::sleep(Duration::from_micros(work));
        let until = now().min(end).max(from);
        let worker = format!("worker-{worker}");
        beliefs.push(Belief::new(lock.to_string(), worker, from, until));
        if ask(wire, &format!("DLOCK.RELEASE lock:{lock} {owner}")).is_none() {
            link = None;
        }
    }
    beliefs
}

/// The observations of a failover.
#[derive(Clone, Copy)]
pub struct Seen {
    /// The number of owners that were granted a lock while another one believed that it held it.
    pub twice: usize,
    /// The total time of these overlaps.
    pub together: Duration,
    /// The time from the primary's death to the first grant after it.
    pub gap: Duration,
}

impl Seen {
    /// Returns the cell of a table: how many owners were let in while another believed, and for how long.
    pub fn two_owners(&self) -> String {
        match self.twice {
            0 => "none".to_owned(),
            twice => format!("**{twice} times, {:.1} s**", self.together.as_secs_f64()),
        }
    }

    fn of(beliefs: &[Belief], died: Micros) -> Seen {
        let overlap = overlap(beliefs);
        let grants = beliefs.iter().map(|belief| belief.from);
        let first = grants.filter(|from| *from > died).min();
        Seen {
            twice: overlap.beside,
            together: Duration::from_micros(overlap.total),
            gap: first.map_or(Duration::MAX, |first| Duration::from_micros(first - died)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_owners_are_seen_and_one_after_the_other_is_not() {
        let belief = |worker: &str, from, until| Belief::new("0", worker, from, until);
        let mut beliefs = vec![belief("1", 0, 10), belief("2", 10, 20), belief("1", 20, 30)];
        let seen = Seen::of(&beliefs, 5);
        assert_eq!((seen.twice, seen.gap), (0, Duration::from_micros(5)));
        beliefs.push(belief("3", 15, 25));
        let seen = Seen::of(&beliefs, 5);
        assert_eq!((seen.twice, seen.together), (2, Duration::from_micros(10)));
    }
}
