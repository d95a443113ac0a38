//! What everybody at a lock does in turn, and what that costs when they are few or many.

use std::rc::Rc;

use dlock_integration::{command, Server};
use fastrand::Rng;

use crate::failure::Failure;
use crate::tools::line::{Batch, Line};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{Figure, Way};

/// Commands measured in a sample.
const COMMANDS: usize = 20_000;

/// Commands that are sent at once.
const BATCH: usize = 500;

/// Commands with `{key}` and `{owner}` for what differs, and their replies.
#[derive(Clone, Copy)]
pub struct Errand {
    /// One after the other.
    pub commands: &'static [&'static str],
    /// The replies to all of them.
    pub reply: &'static str,
}

/// Owners' names as clients make them: 43 bytes. Those of a crowd of another size are others: an owner is one actor, and could
/// not hold one lock while it waits for the next.
pub fn owners(count: usize) -> Rc<Vec<String>> {
    let owner = |number| format!("6f9619ff-8b86-d011-b42d-{count:012}:{number:06}");
    Rc::new((0..count).map(owner).collect())
}

impl Errand {
    /// Everybody does it once, in order.
    pub fn once(&self, line: &mut Line, key: &str, owners: &[String]) -> Result<(), Failure> {
        let batches = self.batches(key, owners);
        batches.iter().try_for_each(|batch| line.run(batch))
    }

    /// Everybody does it, in the order of these turns.
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

/// An errand, and those who run it.
pub struct Errands {
    name: &'static str,
    errand: Errand,
    key: &'static str,
    owners: Rc<Vec<String>>,
    random: Rng,
    line: Line,
    server: Rc<Server>,
}

impl Errands {
    /// On a connection of their own.
    pub fn new(
        name: &'static str,
        errand: Errand,
        key: &'static str,
        owners: &Rc<Vec<String>>,
        server: &Rc<Server>,
    ) -> Result<Errands, Failure> {
        Ok(Errands {
            name,
            errand,
            key,
            owners: Rc::clone(owners),
            random: Rng::with_seed(owners.len() as u64),
            line: Line::wide(server.port())?,
            server: Rc::clone(server),
        })
    }

    /// Everybody's turn comes equally often, each time in another order: in one order, those who leave a queue and
    /// come back would soon always be those at its head.
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
    fn name(&self) -> &str {
        self.name
    }

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
