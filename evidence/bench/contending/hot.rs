//! One hot lock: many clients, each of which wants it again as soon as it has released it.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{command, Server};

use crate::contending::contest::{self, Contest, Turn};
use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::locking::{exclusive, Locking, COUNTED_HASH, DLOCK, SET_SCRIPT};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{way, Figure, Named, Opened};

/// The lock's key.
const KEY: &str = "hot";

/// Server CPU per hand-over.
pub const CPU: &str = "cpu µs";
/// Bytes that the server receives and sends per hand-over.
pub const BYTES: &str = "net bytes";

/// This module.
pub const BLOCKING: &str = "dlock";
/// A plain key, tried again after a millisecond.
pub const POLLING_1MS: &str = "SET + script, 1 ms sleep";
/// The scripts over a hash, tried again after a message that the lock is free.
pub const PUBSUB: &str = "counted-hash, publish/subscribe";
/// A Python library.
pub const REDIS_PY_100MS: &str = "redis-py Lock, 100 ms sleep";
/// The Python library with a shorter sleep.
pub const REDIS_PY_1MS: &str = "redis-py Lock, 1 ms sleep";
/// Another Python library, which waits by BLPOP.
pub const PYTHON_REDIS_LOCK: &str = "python-redis-lock, BLPOP";

/// The ways in Python, their names in the program, and the most clients with which they take seconds: a program of hundreds of
/// threads that wake up a thousand times a second does not.
const PEERS: [(&str, &str, usize); 3] = [
    (REDIS_PY_100MS, "redis-py-100ms", 500),
    (REDIS_PY_1MS, "redis-py-1ms", 50),
    (PYTHON_REDIS_LOCK, "python-redis-lock", 500),
];

/// Opens all ways on one server. Those in Python are left out unless `DLOCK_BENCH_PYTHON` names an interpreter with the
/// libraries.
pub fn open(contest: Contest) -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Named> = Vec::new();
    let native: [(&'static str, &str, MakeClient); 3] = [
        (BLOCKING, DLOCK, Blocking::make),
        (POLLING_1MS, SET_SCRIPT, Polling::make),
        (PUBSUB, COUNTED_HASH, Subscribing::make),
    ];
    for (name, locking, make) in native {
        let (server, locking) = (Rc::clone(&server), exclusive(locking)?);
        ways.push(way(name, move || {
            let clients = (0..contest.clients).map(|number| make(&server, locking, number));
            let clients = clients.collect::<Result<Vec<_>, _>>()?;
            measure(&server, &contest, || run(&contest, clients))
        }));
    }
    let python = env::var_os("DLOCK_BENCH_PYTHON");
    if let Some(python) = python.filter(|python| Path::new(python).exists()) {
        let peers = PEERS.iter().filter(|peer| contest.clients <= peer.2);
        ways.extend(peers.map(|&(name, program, _)| {
            let (server, python) = (Rc::clone(&server), python.clone());
            way(name, move || {
                measure(&server, &contest, || {
                    run_peer(&python, program, server.port(), &contest)
                })
            })
        }));
    }
    Ok(ways)
}

/// Returns the figures of a contest, with the server's expenses for it.
pub fn measure(
    server: &Server,
    contest: &Contest,
    run: impl FnOnce() -> Result<Vec<Turn>, Failure>,
) -> Result<Vec<Figure>, Failure> {
    let before = Meter::read(server);
    let turns = run()?;
    let after = Meter::read(server);
    let count = turns.len() as f64;
    let mut figures = contest::figures(contest, &turns);
    figures.push((CPU, after.cpu_us_since(&before) / count));
    figures.push((BYTES, after.net_bytes_since(&before) / count));
    Ok(figures)
}

/// A client that takes the lock, waiting as long as necessary, and releases it.
pub trait Client: Send {
    /// Takes the lock.
    fn acquire(&mut self) -> Result<(), Failure>;
    /// Releases the lock.
    fn release(&mut self) -> Result<(), Failure>;
}

type MakeClient = fn(&Server, &Locking, usize) -> Result<Box<dyn Client>, Failure>;

/// Lets clients contend, each in a thread of its own. Returns the turns.
pub fn run(contest: &Contest, clients: Vec<Box<dyn Client>>) -> Result<Vec<Turn>, Failure> {
    let door = Barrier::new(clients.len());
    let start = OnceLock::new();
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| {
                let (door, start) = (&door, &start);
                thread::Builder::new()
                    .stack_size(128 * 1024)
                    .spawn_scoped(scope, move || contend(contest, number, client, door, start))
            })
            .collect::<Result<_, _>>()?;
        let mut turns = Vec::new();
        for thread in threads {
            turns.extend(thread.join().map_err(|_| "a client panicked")??);
        }
        Ok(turns)
    })
}

fn contend(
    contest: &Contest,
    number: usize,
    mut client: Box<dyn Client>,
    door: &Barrier,
    start: &OnceLock<Instant>,
) -> Result<Vec<Turn>, Failure> {
    let mut turns = Vec::new();
    door.wait();
    let start = start.get_or_init(Instant::now);
    loop {
        let asked = start.elapsed();
        if asked >= contest.duration {
            return Ok(turns);
        }
        client.acquire()?;
        turns.push(Turn {
            client: number,
            asked,
            granted: start.elapsed(),
        });
        if !contest.section.is_zero() {
            thread::sleep(contest.section);
        }
        client.release()?;
    }
}

/// Waits in the server's queue.
struct Blocking {
    line: Line,
    acquire: Vec<u8>,
    release: Vec<u8>,
    granted: Pattern,
    released: Pattern,
}

impl Blocking {
    fn make(server: &Server, locking: &Locking, number: usize) -> Result<Box<dyn Client>, Failure> {
        let loaded = locking.load(server);
        let acquire = format!("DLOCK.ACQUIRE {KEY} {} 30000 BLOCK 0", owner(number));
        Ok(Box::new(Blocking {
            line: Line::narrow(server.port())?,
            acquire: command(&acquire).get_packed_command(),
            release: loaded.give_as(KEY, &owner(number)),
            granted: loaded.taken,
            released: loaded.given,
        }))
    }
}

impl Client for Blocking {
    fn acquire(&mut self) -> Result<(), Failure> {
        self.line.exchange(&self.acquire, &self.granted)
    }

    fn release(&mut self) -> Result<(), Failure> {
        self.line.exchange(&self.release, &self.released)
    }
}

/// Tries again after a sleep.
struct Polling {
    line: Line,
    acquire: Vec<u8>,
    release: Vec<u8>,
    released: Pattern,
}

impl Polling {
    const SLEEP: Duration = Duration::from_millis(1);

    fn make(server: &Server, locking: &Locking, number: usize) -> Result<Box<dyn Client>, Failure> {
        let loaded = locking.load(server);
        Ok(Box::new(Polling {
            line: Line::narrow(server.port())?,
            acquire: loaded.take_as(KEY, &owner(number)),
            release: loaded.give_as(KEY, &owner(number)),
            released: loaded.given,
        }))
    }
}

impl Client for Polling {
    fn acquire(&mut self) -> Result<(), Failure> {
        loop {
            self.line.send(&self.acquire)?;
            match self.line.reply()?.as_str() {
                "+OK" => return Ok(()),
                "$-1" => thread::sleep(Polling::SLEEP),
                other => return Err(format!("SET was answered {other}").into()),
            }
        }
    }

    fn release(&mut self) -> Result<(), Failure> {
        self.line.exchange(&self.release, &self.released)
    }
}

/// Tries again, like all others, after a message that the lock is free.
struct Subscribing {
    line: Line,
    messages: Line,
    acquire: Vec<u8>,
    release: Vec<u8>,
    released: Pattern,
}

impl Subscribing {
    fn make(server: &Server, locking: &Locking, number: usize) -> Result<Box<dyn Client>, Failure> {
        let loaded = locking.load(server);
        let mut messages = Line::wide(server.port())?;
        let channel = format!("unlocked:{KEY}");
        messages.subscribe(&channel)?;
        Ok(Box::new(Subscribing {
            line: Line::narrow(server.port())?,
            messages,
            acquire: loaded.take_as(KEY, &owner(number)),
            release: loaded.give_as(KEY, &owner(number)),
            released: loaded.given,
        }))
    }
}

impl Client for Subscribing {
    fn acquire(&mut self) -> Result<(), Failure> {
        loop {
            self.line.send(&self.acquire)?;
            let reply = self.line.reply()?;
            if reply == "$-1" {
                return Ok(());
            }
            // Otherwise it is the rest of the holder's lease.
            let lease_ms: u64 = reply
                .trim_start_matches(':')
                .parse()
                .map_err(|_| format!("the script was answered {reply}"))?;
            self.messages
                .wait_for_news(Duration::from_millis(lease_ms.max(1)))?;
        }
    }

    fn release(&mut self) -> Result<(), Failure> {
        self.line.exchange(&self.release, &self.released)
    }
}

/// Returns the name of a client.
pub fn owner(number: usize) -> String {
    format!("6f9619ff-8b86-d011-b42d-00cf4fc964ff:{number:03}")
}

/// Lets clients contend that are threads of a program in Python, with a popular library.
fn run_peer(
    python: &OsStr,
    program: &str,
    port: u16,
    contest: &Contest,
) -> Result<Vec<Turn>, Failure> {
    let output = Command::new(python)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/bench/peers/contend.py"
        ))
        .arg(program)
        .arg(port.to_string())
        .arg(contest.clients.to_string())
        .arg(contest.section.as_micros().to_string())
        .arg(contest.duration.as_millis().to_string())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    String::from_utf8(output.stdout)?
        .lines()
        .map(parse)
        .collect()
}

/// Reads a line of the program: client, asked, granted, in nanoseconds.
fn parse(line: &str) -> Result<Turn, Failure> {
    let mut words = line.split_whitespace();
    let mut number =
        || -> Result<u64, Failure> { Ok(words.next().ok_or("a word is missing")?.parse()?) };
    Ok(Turn {
        client: usize::try_from(number()?)?,
        asked: Duration::from_nanos(number()?),
        granted: Duration::from_nanos(number()?),
    })
}
