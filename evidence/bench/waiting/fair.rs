//! A fair lock by scripts, compared with this module's: the cost of a hand-over to the server with few and with many queued.
//!
//! One connection sends for all owners. In each turn the holder releases the lock, the next one asks again and is granted it, and
//! the former holder queues up again: three commands in either way.

use std::rc::Rc;
use std::time::Instant;

use dlock_harness::Server;

use crate::failure::Failure;
use crate::tools::errand::owners;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{lockings, Loaded, Locking};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{way, Figure, Named, Opened, Way};

/// The number of turns that are sent at once.
const BATCH: usize = 500;

/// Longer than any sample.
const LEASE_MS: u64 = 86_400_000;

/// Queue lengths, the turns in a sample of each way, and their names in the tables. The scripts visit every queued owner in each
/// turn, so they get fewer.
const QUEUES: [(usize, usize, &str, usize, &str); 3] = [
    (
        1,
        5_000,
        "FAIRACQUIRE, 1 queued",
        5_000,
        "fair scripts, 1 queued",
    ),
    (
        1_000,
        5_000,
        "FAIRACQUIRE, 1,000 queued",
        200,
        "fair scripts, 1,000 queued",
    ),
    (
        10_000,
        5_000,
        "FAIRACQUIRE, 10,000 queued",
        20,
        "fair scripts, 10,000 queued",
    ),
];

/// Opens all ways on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let [tickets, scripts] = lockings("queued") else {
        return Err("there are two such ways".into());
    };
    let mut ways: Vec<Named> = Vec::new();
    for (queued, turns, dlock, script_turns, script) in QUEUES {
        let ours = Fair::new(tickets, "*-1\r\n", queued, turns, &server)?;
        let theirs = Fair::new(scripts, ":#\r\n", queued, script_turns, &server)?;
        ways.extend([way(dlock, ours), way(script, theirs)]);
    }
    Ok(ways)
}

/// A lock with its queue.
struct Fair {
    /// The holder and the queued owners, in order; `next` is the index of the holder.
    owners: Rc<Vec<String>>,
    next: usize,
    turns: usize,
    loaded: Loaded,
    key: String,
    reply: Pattern,
    line: Line,
    server: Rc<Server>,
}

impl Fair {
    /// Takes the lock, and queues owners, each of whom is answered `waits`.
    fn new(
        locking: &Locking,
        waits: &str,
        queued: usize,
        turns: usize,
        server: &Rc<Server>,
    ) -> Result<Fair, Failure> {
        let loaded = locking.load_with_lease(server, LEASE_MS);
        let (key, waits) = (format!("{}:{queued}", locking.name), Pattern::new(waits));
        let (owners, mut line) = (owners(queued + 1), Line::wide(server.port())?);
        let (first, others) = owners.split_first().ok_or("there are no owners")?;
        line.exchange(&loaded.take_as(&key, first), &loaded.taken)?;
        for others in others.chunks(BATCH) {
            let asks = others.iter().flat_map(|owner| loaded.take_as(&key, owner));
            line.run(&Batch {
                bytes: asks.collect(),
                reply: waits.clone(),
                times: others.len(),
            })?;
        }
        Ok(Fair {
            owners,
            next: 0,
            turns,
            reply: Pattern::all(&[&loaded.given, &loaded.taken, &waits]),
            loaded,
            key,
            line,
            server: Rc::clone(server),
        })
    }

    /// Returns a batch of `turns` turns, from the present holder on.
    fn batch(&mut self, turns: usize) -> Batch {
        let mut bytes = Vec::new();
        for _ in 0..turns {
            let holder = self.next;
            self.next = (holder + 1) % self.owners.len();
            let [holder, next] = [holder, self.next].map(|at| &*self.owners[at]);
            bytes.extend(self.loaded.give_as(&self.key, holder));
            bytes.extend(self.loaded.take_as(&self.key, next));
            bytes.extend(self.loaded.take_as(&self.key, holder));
        }
        Batch {
            bytes,
            reply: self.reply.clone(),
            times: turns,
        }
    }
}

impl Way for Fair {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let batches: Vec<Batch> = (0..self.turns)
            .step_by(BATCH)
            .map(|done| self.batch(BATCH.min(self.turns - done)))
            .collect();
        let before = Meter::read(&self.server);
        let start = Instant::now();
        for batch in &batches {
            self.line.run(batch)?;
        }
        let elapsed = start.elapsed();
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        let turns = self.turns as f64;
        Ok(vec![
            ("cpu µs", cpu_us / turns),
            ("hand-overs/s", turns / elapsed.as_secs_f64()),
        ])
    }
}
