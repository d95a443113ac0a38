//! An uncontended lock: the cost of a grant and its release.

use std::rc::Rc;
use std::time::Instant;

use crate::failure::Failure;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::Locking;
use crate::tools::meter::Meter;
use crate::tools::percentile::Durations;
use crate::tools::replies::Pattern;
use crate::tools::setting::{Setting, Stage};
use crate::way::{way, Figure, Opened, Way};

/// The number of locks that are taken in turn.
const NAMES: usize = 1_000;

/// The number of pairs that are sent at once.
const PAIRS_IN_BATCH: usize = 500;

/// The server's CPU time for a pair.
pub const CPU: &str = "cpu µs";

/// Opens these ways on one server, many pairs sent at once: the cost of the commands, and little else.
pub fn pipelined(setting: Setting, lockings: &'static [Locking], pairs: usize) -> Opened {
    on_one_server(setting, lockings, |locking, stage| {
        Ok(Box::new(Pipelined::new(locking, stage, pairs)?))
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
    make: impl Fn(&Locking, Rc<Stage>) -> Result<Box<dyn Way>, Failure>,
) -> Opened {
    let stage = Rc::new(setting.start());
    lockings
        .iter()
        .map(|locking| make(locking, Rc::clone(&stage)))
        .collect()
}

/// Returns their names.
pub fn names() -> Vec<String> {
    (0..NAMES)
        .map(|number| format!("stock:item:{number:06}"))
        .collect()
}

/// A way, many pairs at once.
pub struct Pipelined {
    name: &'static str,
    stage: Rc<Stage>,
    line: Line,
    batches: Vec<Batch>,
    pairs: usize,
}

impl Pipelined {
    /// Makes a way on this server, with `pairs` pairs in a sample.
    pub fn new(locking: &Locking, stage: Rc<Stage>, pairs: usize) -> Result<Pipelined, Failure> {
        let loaded = locking.load(&stage.server);
        let pair_of = |name: &String| [loaded.take(name), loaded.give(name)].concat();
        let commands = names().iter().map(pair_of).collect();
        Pipelined::of(locking.name, commands, &loaded.pair(), stage, pairs)
    }

    /// Makes a way with other commands, a few for each lock, whose answers are all alike.
    pub fn of(
        name: &'static str,
        commands: Vec<Vec<u8>>,
        reply: &Pattern,
        stage: Rc<Stage>,
        pairs: usize,
    ) -> Result<Pipelined, Failure> {
        let batches = commands
            .chunks(PAIRS_IN_BATCH)
            .map(|commands| Batch {
                bytes: commands.concat(),
                reply: reply.clone(),
                times: commands.len(),
            })
            .collect();
        Ok(Pipelined {
            name,
            line: Line::wide(stage.server.port())?,
            stage,
            batches,
            pairs,
        })
    }
}

impl Way for Pipelined {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let times = self.pairs / PAIRS_IN_BATCH;
        let before = Meter::read(&self.stage.server);
        let start = Instant::now();
        for batch in self.batches.iter().cycle().take(times) {
            self.line.run(batch)?;
        }
        let elapsed_us = start.elapsed().as_secs_f64() * 1e6;
        let cpu_us = Meter::read(&self.stage.server).cpu_us_since(&before);
        Ok(vec![
            (CPU, cpu_us / self.pairs as f64),
            // From sending many pairs at once to having their replies, on average.
            ("µs for 500 at once", elapsed_us / times as f64),
        ])
    }

    /// Takes every lock once: a sample may be a hundred times as long.
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.batches
            .iter()
            .try_for_each(|batch| self.line.run(batch))
    }
}

/// Makes a way that sends one command after the other.
fn one_by_one(locking: &Locking, stage: Rc<Stage>, pairs: usize) -> Result<Box<dyn Way>, Failure> {
    let loaded = locking.load(&stage.server);
    let mut line = Line::narrow(stage.server.port())?;
    let commands: Vec<(Vec<u8>, Vec<u8>)> = names()
        .iter()
        .map(|name| (loaded.take(name), loaded.give(name)))
        .collect();
    Ok(way(locking.name, move || {
        let mut durations = Durations::new();
        let cpu_us = Meter::cpu_us(&stage.server, || {
            for (take, give) in commands.iter().cycle().take(pairs) {
                let start = Instant::now();
                line.exchange(take, &loaded.taken)?;
                line.exchange(give, &loaded.given)?;
                durations.record(start.elapsed());
            }
            Ok(())
        })?;
        Ok([vec![(CPU, cpu_us / pairs as f64)], durations.figures()].concat())
    }))
}
