//! An uncontended lock: the cost of a grant and its release.

use std::rc::Rc;
use std::time::Instant;

use crate::failure::Failure;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{Give, Loaded, Locking};
use crate::tools::meter::Meter;
use crate::tools::percentile::Durations;
use crate::tools::replies::Pattern;
use crate::tools::setting::{Setting, Stage};
use crate::waiting::session::Listener;
use crate::way::{way, Figure, Named, Opened, Way};

/// The number of locks that are taken in turn.
const NAMES: usize = 1_000;

/// The number of pairs that are sent at once.
const PAIRS_IN_BATCH: usize = 500;

/// The server's CPU time for a pair.
pub const CPU: &str = "cpu µs";

/// Opens these ways on one server, many pairs sent at once: the cost of the commands, and little else.
pub fn pipelined(setting: Setting, lockings: &'static [Locking], pairs: usize) -> Opened {
    on_one_server(setting, lockings, |locking, stage| {
        Ok(way(locking.name, Pipelined::new(locking, stage, pairs)?))
    })
}

/// Opens these ways on one server, each command sent after the answer to the one before, as a single client does.
pub fn single(setting: Setting, lockings: &'static [Locking], pairs: usize) -> Opened {
    on_one_server(setting, lockings, |locking, stage| {
        one_by_one(locking, stage, pairs)
    })
}

fn on_one_server(
    setting: Setting,
    lockings: &'static [Locking],
    make: impl Fn(&Locking, Rc<Stage>) -> Result<Named, Failure>,
) -> Opened {
    let stage = Rc::new(setting.start());
    let known = |locking: &&Locking| locking.is_known_to(&stage.server);
    lockings
        .iter()
        .filter(known)
        .map(|locking| make(locking, Rc::clone(&stage)))
        .collect()
}

/// Returns their names.
pub fn names() -> Vec<String> {
    (0..NAMES)
        .map(|number| format!("stock:item:{number:06}"))
        .collect()
}

/// A way, many pairs at once: all their requests, and when all are granted, their releases.
pub struct Pipelined {
    stage: Rc<Stage>,
    line: Line,
    flights: Vec<Flight>,
    pairs: usize,
    keeper: Option<Listener>,
}

/// Commands that are sent at once, and those that follow their replies.
struct Flight {
    first: Batch,
    then: Releases,
}

enum Releases {
    /// The first commands have done it all.
    None,
    Prepared(Batch),
    /// They name the tokens of the grants.
    Named(Vec<Give>, Pattern),
}

impl Pipelined {
    /// Makes a way on this server, with `pairs` pairs in a sample.
    pub fn new(locking: &Locking, stage: Rc<Stage>, pairs: usize) -> Result<Pipelined, Failure> {
        let loaded = locking.load(&stage.server);
        Pipelined::with_locks(&loaded, &names(), stage, pairs)
    }

    /// Makes a way with locks of other names.
    pub fn with_locks(
        loaded: &Loaded,
        locks: &[String],
        stage: Rc<Stage>,
        pairs: usize,
    ) -> Result<Pipelined, Failure> {
        let flight = |locks: &[String]| {
            let gives: Vec<Give> = locks.iter().map(|lock| loaded.give(lock)).collect();
            let prepared: Option<Vec<&[u8]>> = gives.iter().map(Give::without_token).collect();
            Flight {
                first: batch(locks.iter().map(|lock| loaded.take(lock)), &loaded.taken),
                then: match prepared {
                    Some(bytes) => Releases::Prepared(batch(bytes, &loaded.given)),
                    None => Releases::Named(gives, loaded.given.clone()),
                },
            }
        };
        let flights = locks.chunks(PAIRS_IN_BATCH).map(flight).collect();
        let mut way = Pipelined::flying(flights, stage, pairs)?;
        let keep = |session| Listener::of(&way.stage.server, &locks[0], session);
        way.keeper = loaded.session.map(keep);
        Ok(way)
    }

    /// Makes a way with other commands, a few for each lock, whose answers are all alike.
    pub fn of(
        commands: &[Vec<u8>],
        reply: &Pattern,
        stage: Rc<Stage>,
        pairs: usize,
    ) -> Result<Pipelined, Failure> {
        let flight = |commands: &[Vec<u8>]| Flight {
            first: batch(commands, reply),
            then: Releases::None,
        };
        let flights = commands.chunks(PAIRS_IN_BATCH).map(flight).collect();
        Pipelined::flying(flights, stage, pairs)
    }

    fn flying(flights: Vec<Flight>, stage: Rc<Stage>, pairs: usize) -> Result<Pipelined, Failure> {
        Ok(Pipelined {
            line: Line::wide(stage.server.port())?,
            stage,
            flights,
            pairs,
            keeper: None,
        })
    }
}

fn batch<B: AsRef<[u8]>>(commands: impl IntoIterator<Item = B>, reply: &Pattern) -> Batch {
    let (mut bytes, mut times) = (Vec::new(), 0);
    for command in commands {
        bytes.extend_from_slice(command.as_ref());
        times += 1;
    }
    Batch {
        bytes,
        reply: reply.clone(),
        times,
    }
}

impl Flight {
    fn run(&self, line: &mut Line) -> Result<(), Failure> {
        line.run(&self.first)?;
        match &self.then {
            Releases::None => Ok(()),
            Releases::Prepared(batch) => line.run(batch),
            Releases::Named(gives, given) => {
                let (tokens, mut bytes) = (line.numbers(), Vec::new());
                if tokens.len() != gives.len() {
                    return Err("not every grant has a token".into());
                }
                for (give, token) in gives.iter().zip(tokens) {
                    give.write(*token, &mut bytes);
                }
                line.send(&bytes)?;
                line.expect(given, gives.len())
            }
        }
    }
}

impl Way for Pipelined {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep()?;
        }
        let times = self.pairs / PAIRS_IN_BATCH;
        let before = Meter::read(&self.stage.server);
        for flight in self.flights.iter().cycle().take(times) {
            flight.run(&mut self.line)?;
        }
        let cpu_us = Meter::read(&self.stage.server).cpu_us_since(&before);
        Ok(vec![(CPU, cpu_us / self.pairs as f64)])
    }

    /// Takes every lock once: a sample may be a hundred times as long.
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.flights
            .iter()
            .try_for_each(|flight| flight.run(&mut self.line))
    }
}

/// Makes a way that sends one command after the other.
fn one_by_one(locking: &Locking, stage: Rc<Stage>, pairs: usize) -> Result<Named, Failure> {
    let loaded = locking.load(&stage.server);
    let mut line = Line::narrow(stage.server.port())?;
    let names = names();
    let mut keeper = loaded
        .session
        .map(|session| Listener::of(&stage.server, &names[0], session));
    let commands: Vec<(Vec<u8>, Give)> = names
        .iter()
        .map(|name| (loaded.take(name), loaded.give(name)))
        .collect();
    let mut release = Vec::new();
    Ok(way(locking.name, move || {
        if let Some(keeper) = &mut keeper {
            keeper.keep()?;
        }
        let mut durations = Durations::new();
        let cpu_us = Meter::cpu_us(&stage.server, || {
            for (take, give) in commands.iter().cycle().take(pairs) {
                let start = Instant::now();
                line.exchange(take, &loaded.taken)?;
                release.clear();
                let token = line.numbers().first().copied().unwrap_or_default();
                give.write(token, &mut release);
                line.exchange(&release, &loaded.given)?;
                durations.record(start.elapsed());
            }
            Ok(())
        })?;
        Ok([vec![(CPU, cpu_us / pairs as f64)], durations.figures()].concat())
    }))
}
