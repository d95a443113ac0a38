//! Clients that each want three of six locks, in any order: all at once by MACQUIRE, or one after the other.
//!
//! One after the other, with plain keys, they wait crosswise, and no one notices it: a client that has waited for too long releases
//! its locks, and both start again.

use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{command, Server};
use fastrand::Rng;

use crate::contending::contest::{Contest, BYPASS, JAIN, RATE};
use crate::contending::hot::{self, owner, Client};
use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::locking::{exclusive, Loaded, SET_SCRIPT};
use crate::tools::replies::Pattern;
use crate::way::{way, Named, Opened};

const LOCKS: usize = 6;
const WANTED: usize = 3;

const CONTEST: Contest = Contest {
    clients: 16,
    section: Duration::from_millis(1),
    duration: Duration::from_secs(1),
};

/// Opens all ways on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let crossing = |name, make: Make| -> Named {
        let server = Rc::clone(&server);
        way(name, move || {
            let clients = (0..CONTEST.clients).map(|number| make(&server, number));
            let clients = clients.collect::<Result<Vec<_>, _>>()?;
            let figures = hot::measure(&server, &CONTEST, || hot::run(&CONTEST, clients))?;
            // Clients that want other locks overtake no one.
            let figures = figures
                .into_iter()
                .filter(|(name, _)| ![JAIN, BYPASS].contains(name));
            let renamed = figures.map(|(name, value)| match name {
                RATE => ("completions/s", value),
                _ => (name, value),
            });
            Ok(renamed.collect())
        })
    };
    Ok(vec![
        crossing("MACQUIRE", AtOnce::make),
        crossing("SET one by one, 1 ms sleep, 50 ms: again", TimedOut::make),
    ])
}

type Make = fn(&Server, usize) -> Result<Box<dyn Client>, Failure>;

/// The locks that a client wants next: identical in every way.
struct Wishes {
    random: Rng,
    locks: [usize; LOCKS],
}

impl Wishes {
    fn of(client: usize) -> Wishes {
        Wishes {
            random: Rng::with_seed(client as u64),
            locks: std::array::from_fn(|number| number),
        }
    }

    fn next(&mut self) -> Vec<String> {
        self.random.shuffle(&mut self.locks);
        let wanted = self.locks.iter().take(WANTED);
        wanted.map(|lock| format!("crossing:{lock}")).collect()
    }
}

fn packed(line: &str) -> Vec<u8> {
    command(line).get_packed_command()
}

struct AtOnce {
    line: Line,
    owner: String,
    wishes: Wishes,
    wanted: String,
}

impl AtOnce {
    fn make(server: &Server, client: usize) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(AtOnce {
            line: Line::narrow(server.port())?,
            owner: owner(client),
            wishes: Wishes::of(client),
            wanted: String::new(),
        }))
    }
}

impl Client for AtOnce {
    fn acquire(&mut self) -> Result<(), Failure> {
        self.wanted = self.wishes.next().join(" ");
        let AtOnce { wanted, owner, .. } = &*self;
        let take = format!("DLOCK.MACQUIRE {WANTED} {wanted} {owner} 30000 BLOCK 0");
        let taken = Pattern::new("*3\r\n:#\r\n:#\r\n:#\r\n");
        self.line.exchange(&packed(&take), &taken)
    }

    fn release(&mut self) -> Result<(), Failure> {
        let AtOnce { wanted, owner, .. } = &*self;
        let give = format!("DLOCK.MRELEASE {WANTED} {wanted} {owner}");
        let given = Pattern::new("*3\r\n:0\r\n:0\r\n:0\r\n");
        self.line.exchange(&packed(&give), &given)
    }
}

struct TimedOut {
    line: Line,
    owner: String,
    loaded: Loaded,
    wishes: Wishes,
    held: Vec<String>,
    random: Rng,
}

impl TimedOut {
    /// The sleep between two tries for one lock.
    const SLEEP: Duration = Duration::from_millis(1);
    /// How long a client waits for one lock before it releases those that it has.
    const PATIENCE: Duration = Duration::from_millis(50);

    fn make(server: &Server, client: usize) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(TimedOut {
            line: Line::narrow(server.port())?,
            owner: owner(client),
            loaded: exclusive(SET_SCRIPT)?.load(server),
            wishes: Wishes::of(client),
            held: Vec::new(),
            random: Rng::with_seed(client as u64),
        }))
    }

    fn try_all(&mut self, wanted: &[String]) -> Result<bool, Failure> {
        for key in wanted {
            let begin = Instant::now();
            let take = self.loaded.take_as(key, &self.owner);
            loop {
                self.line.send(&take)?;
                match self.line.reply()?.as_str() {
                    "+OK" => break,
                    "$-1" if begin.elapsed() >= Self::PATIENCE => {
                        self.release()?;
                        // Otherwise these would meet again.
                        thread::sleep(Self::PATIENCE.mul_f64(self.random.f64()));
                        return Ok(false);
                    }
                    "$-1" => thread::sleep(Self::SLEEP),
                    other => return Err(format!("SET was answered {other}").into()),
                }
            }
            self.held.push(key.clone());
        }
        Ok(true)
    }
}

impl Client for TimedOut {
    fn acquire(&mut self) -> Result<(), Failure> {
        let wanted = self.wishes.next();
        while !self.try_all(&wanted)? {}
        Ok(())
    }

    fn release(&mut self) -> Result<(), Failure> {
        for key in std::mem::take(&mut self.held) {
            let give = self.loaded.give_as(&key, &self.owner);
            self.line.exchange(&give, &self.loaded.given)?;
        }
        Ok(())
    }
}
