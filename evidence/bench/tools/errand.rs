//! Commands that all owners of a lock send in turn, and their cost with few and with many owners.

use std::rc::Rc;

use dlock_harness::{command, Server};
use fastrand::Rng;

use crate::failure::Failure;
use crate::tools::line::{Batch, Line};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{Figure, Way};

/// The number of commands in a sample.
const COMMANDS: usize = 20_000;

/// The number of commands that are sent at once.
const BATCH: usize = 500;

/// Commands with `{key}` and `{owner}` as placeholders, and their replies.
#[derive(Clone, Copy)]
pub struct Errand {
    /// The commands, one after the other.
    pub commands: &'static [&'static str],
    /// The replies to all of them.
    pub reply: &'static str,
}

/// Returns owners' names as clients make them: 43 bytes. Crowds of different sizes have different names: an owner is one actor,
/// and could not hold one lock while it waits for the next.
pub fn owners(count: usize) -> Rc<Vec<String>> {
    let owner = |number| format!("6f9619ff-8b86-d011-b42d-{count:012}:{number:06}");
    Rc::new((0..count).map(owner).collect())
}

impl Errand {
    /// Runs the errand once for each owner, in order.
    pub fn once(&self, line: &mut Line, key: &str, owners: &[String]) -> Result<(), Failure> {
        let batches = self.batches(key, owners);
        batches.iter().try_for_each(|batch| line.run(batch))
    }

    /// Returns the batches for these owners, in this order.
    pub fn batches(&self, key: &str, owners: &[String]) -> Vec<Batch> {
        let bytes_of = |owner: &String| -> Vec<u8> {
            let fill = |template: &&str| {
                let line = template.replace("{key}", key).replace("{owner}", owner);
                command(&line).get_packed_command()
            };
            self.commands.iter().flat_map(fill).collect()
        };
        let reply = Pattern::new(self.reply);
        owners
            .chunks(BATCH)
            .map(|owners| Batch {
                bytes: owners.iter().flat_map(bytes_of).collect(),
                reply: reply.clone(),
                times: owners.len(),
            })
            .collect()
    }
}

/// An errand, and its owners.
pub struct Errands {
    errand: Errand,
    key: &'static str,
    owners: Rc<Vec<String>>,
    random: Rng,
    line: Line,
    server: Rc<Server>,
}

impl Errands {
    /// Makes the errands, with a connection of their own.
    pub fn new(
        errand: Errand,
        key: &'static str,
        owners: &Rc<Vec<String>>,
        server: &Rc<Server>,
    ) -> Result<Errands, Failure> {
        Ok(Errands {
            errand,
            key,
            owners: Rc::clone(owners),
            random: Rng::with_seed(owners.len() as u64),
            line: Line::wide(server.port())?,
            server: Rc::clone(server),
        })
    }

    /// Returns the next turns. Every owner's turn comes equally often, in another order each time: in a fixed order, owners that
    /// leave a queue and come back would soon always be at its head.
    fn turns(&mut self) -> Vec<String> {
        let mut turns = Vec::with_capacity(COMMANDS);
        while turns.len() < COMMANDS {
            let mut owners = self.owners.to_vec();
            self.random.shuffle(&mut owners);
            turns.extend(owners);
        }
        turns
    }
}

impl Way for Errands {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let turns = self.turns();
        let batches = self.errand.batches(self.key, &turns);
        let before = Meter::read(&self.server);
        for batch in &batches {
            self.line.run(batch)?;
        }
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        Ok(vec![("cpu µs", cpu_us / turns.len() as f64)])
    }
}
