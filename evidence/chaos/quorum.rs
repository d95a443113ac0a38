//! The quorum over independent masters, measured: split votes, waits, and the effect of masters that die and come back.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use dlock_evidence::page::{self, fill, lines};
use dlock_harness::{Ask, Made, Server};
use fastrand::Rng;
use serde::Serialize;

use crate::history::{Belief, History, Micros};
use crate::judge::judge;

mod at_once;
mod in_order;

use in_order::{Held, Quorum, Vote};

const MASTERS: usize = 3;
const CLIENTS: usize = 6;
const LEASE: Duration = Duration::from_secs(6);
const QUARANTINE: Duration = Duration::from_millis(6_200);
const WAIT: Duration = Duration::from_secs(10);
const LOCK: &str = "k";

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Variant {
    name: &'static str,
    how: How,
    keeps: Keeps,
    /// Whether two masters die, one shortly after the other, again and again.
    deaths: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// By `in_order.rs`.
    InOrder,
    /// All masters are asked without waiting, in any order, until a majority agrees.
    AtOnce,
}

/// The memory of a master that comes back.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    Nothing,
    AofAlways,
    /// Nothing, but it grants nothing until every forgotten hold is over.
    Quarantine,
}

const fn variant(name: &'static str, how: How, keeps: Keeps, deaths: bool) -> Variant {
    Variant {
        name,
        how,
        keeps,
        deaths,
    }
}

pub const VARIANTS: [Variant; 5] = [
    variant(
        "in order, waiting at the first",
        How::InOrder,
        Keeps::Nothing,
        false,
    ),
    variant(
        "all at once, without a queue",
        How::AtOnce,
        Keeps::Nothing,
        false,
    ),
    variant(
        "in order; masters die and forget",
        How::InOrder,
        Keeps::Nothing,
        true,
    ),
    variant(
        "in order; masters die, AOF always",
        How::InOrder,
        Keeps::AofAlways,
        true,
    ),
    variant(
        "in order; masters die, quarantine",
        How::InOrder,
        Keeps::Quarantine,
        true,
    ),
];

/// The results.
#[derive(Serialize)]
pub struct Row {
    name: String,
    server: String,
    seconds: f64,
    /// Masters that were killed and came back.
    deaths: usize,
    tries: usize,
    grants: usize,
    /// Tries that some masters granted, but no majority.
    split_votes: usize,
    /// Tries that ended with the given time.
    busy: usize,
    /// Tries that found no master.
    unreachable: usize,
    overlaps: usize,
    overlap_s: f64,
    wait_ms_median: f64,
    wait_ms_p99: f64,
}

#[derive(Default)]
struct Count {
    history: History,
    waits_ms: Vec<f64>,
    tries: usize,
    split: usize,
    busy: usize,
    unreachable: usize,
}

/// Plays one variant for `length`.
pub fn measure(variant: Variant, program: &OsString, length: Duration, seed: u64) -> Row {
    let mut masters: Vec<Server> = (0..MASTERS).map(|_| variant.master(program)).collect();
    for master in &masters {
        // The quarantine of the start is not measured.
        set_quarantine(master, 0);
        if variant.keeps == Keeps::Quarantine {
            set_quarantine(master, QUARANTINE.as_millis());
        }
    }
    let ports: Vec<u16> = masters.iter().map(Server::port).collect();
    let (began, stop) = (Instant::now(), AtomicBool::new(false));
    let count = Mutex::new(Count::default());
    let mut random = Rng::with_seed(seed);
    let mut deaths = 0;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut random = random.fork();
            let (ports, stop, count) = (&ports, &stop, &count);
            scope.spawn(move || {
                let owner = format!("client-{number}");
                let mut client = Client {
                    quorum: Quorum::new(ports, &owner),
                    owner,
                    began,
                };
                while !stop.load(Ordering::Relaxed) {
                    client.turn(variant.how, ports, &mut random, count);
                }
            });
        }
        while began.elapsed() < length {
            thread::sleep(Duration::from_millis(500));
            if variant.deaths {
                let first = random.usize(..MASTERS);
                let second = (first + random.usize(1..MASTERS)) % MASTERS;
                for victim in [first, second] {
                    masters[victim].kill9();
                    masters[victim].restart();
                    deaths += 1;
                    thread::sleep(Duration::from_millis(random.u64(200..1_000)));
                }
                thread::sleep(QUARANTINE + Duration::from_secs(2));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut count = count.into_inner().expect("no client panics with it");
    let verdict = judge(&count.history, 0);
    count.waits_ms.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (count.waits_ms.len() as f64 * share) as usize;
        count.waits_ms.get(index).copied().unwrap_or(0.0)
    };
    Row {
        name: variant.name.into(),
        server: masters[0].version().to_string(),
        seconds,
        deaths,
        tries: count.tries,
        grants: verdict.grants,
        split_votes: count.split,
        busy: count.busy,
        unreachable: count.unreachable,
        overlaps: verdict.overlaps,
        overlap_s: verdict.overlap_s,
        wait_ms_median: at(0.5),
        wait_ms_p99: at(0.99),
    }
}

impl Variant {
    fn master(&self, program: &OsString) -> Server {
        let mut builder = Server::builder().program(program);
        if self.keeps == Keeps::AofAlways {
            builder = builder.config("appendonly", "yes");
            builder = builder.config("appendfsync", "always");
        }
        if self.keeps == Keeps::Quarantine {
            builder = builder.module_argument("quarantine-ms");
            builder = builder.module_argument(QUARANTINE.as_millis());
        }
        builder.start()
    }
}

fn set_quarantine(master: &Server, ms: u128) {
    let line = format!("CONFIG SET dlock.quarantine-ms {ms}");
    master.connection().run(&line);
}

struct Client {
    quorum: Quorum,
    owner: String,
    began: Instant,
}

impl Client {
    /// Makes one request, and works under it.
    fn turn(&mut self, how: How, ports: &[u16], random: &mut Rng, count: &Mutex<Count>) {
        let asked = Instant::now();
        let vote = match how {
            How::InOrder => self.quorum.acquire(LOCK, LEASE, WAIT),
            How::AtOnce => at_once::acquire(ports, &self.owner, LOCK, LEASE, random),
        };
        let from = Instant::now();
        // Most work is short, some needs most of the lease.
        let work_ms = match random.u8(0..10) {
            0..=7 => random.u64(1..20),
            _ => random.u64(1_000..5_500),
        };
        let mut belief = None;
        if let Vote::Held(held) = &vote {
            thread::sleep(Duration::from_millis(work_ms));
            let until = Instant::now().min(held.deadline);
            belief = Some(self.belief(held, asked, from, until));
            match how {
                How::InOrder => self.quorum.release(held),
                How::AtOnce => at_once::give_back(ports, &self.owner, LOCK),
            }
        }
        let mut count = count.lock().expect("no client panics with it");
        count.tries += 1;
        match vote {
            Vote::Held(_) => {
                count.history.beliefs.extend(belief);
                let waited = from - asked;
                count.waits_ms.push(waited.as_secs_f64() * 1_000.0);
            }
            Vote::Split => count.split += 1,
            Vote::Busy => count.busy += 1,
            Vote::Unreachable => count.unreachable += 1,
        }
        drop(count);
        thread::sleep(Duration::from_millis(random.u64(1..20)));
    }

    fn belief(&self, held: &Held, asked: Instant, from: Instant, until: Instant) -> Belief {
        let at = |instant: Instant| -> Micros {
            let since = instant.saturating_duration_since(self.began);
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        };
        Belief {
            token: held.tokens.iter().flatten().copied().max().unwrap_or(0),
            asked: at(asked),
            ..Belief::new(&*held.lock, &*self.owner, at(from), at(until))
        }
    }
}

/// Writes the figures and the table of them.
pub fn keep(directory: &Path, rows: &[Row], made: &Made) -> io::Result<()> {
    let figures = serde_json::to_string_pretty(rows)? + "\n";
    page::keep(directory, "quorum.json", &figures)?;
    let text = fill(
        include_str!("quorum.txt"),
        &[
            ("made", made),
            ("clients", &CLIENTS),
            ("masters", &MASTERS),
            ("lease", &format!("{LEASE:?}")),
            ("rows", &lines(rows)),
        ],
    );
    page::keep(directory, "quorum.md", &text)
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {} | {} | {} | {} | {} | {} | {} | {:.1}, {:.0} | {:.1} ({}) |",
            self.name,
            self.server,
            self.deaths,
            self.tries,
            self.grants,
            self.split_votes,
            self.busy,
            self.wait_ms_median,
            self.wait_ms_p99,
            self.overlap_s,
            self.overlaps,
        )
    }
}

impl Row {
    /// Returns the broken promises: a queue splits no votes while all masters are up, and masters that remember, or wait until
    /// every forgotten hold is over, vote once.
    pub fn faults(&self, variant: &Variant) -> Vec<String> {
        let mut faults = Vec::new();
        let in_order = variant.how == How::InOrder;
        if in_order && !variant.deaths && self.split_votes > 0 {
            faults.push(format!("{}: {} split votes", self.name, self.split_votes));
        }
        let may_overlap = variant.deaths && variant.keeps == Keeps::Nothing;
        if !may_overlap && self.overlaps > 0 {
            faults.push(format!("{}: {} overlaps", self.name, self.overlaps));
        }
        if self.grants == 0 {
            faults.push(format!("{}: no grants", self.name));
        }
        if !in_order && self.split_votes == 0 {
            let name = &self.name;
            faults.push(format!(
                "CONTROL FAILED: {name}: no vote was split, though nobody waits in a queue"
            ));
        }
        if variant.deaths && self.deaths == 0 {
            faults.push(format!("CONTROL FAILED: {}: no master died", self.name));
        }
        faults
    }
}
