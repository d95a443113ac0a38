//! Tickets: what a command costs in a long queue and in a short one.

use std::rc::Rc;

use dlock_integration::{command, Ask, Grant, Server};
use fastrand::Rng;

use crate::failure::Failure;
use crate::line::{Batch, Line};
use crate::meter::Meter;
use crate::replies::Pattern;
use crate::way::{Figure, Opened, Way};

/// Commands measured in a sample.
const COMMANDS: usize = 20_000;

/// Commands that are sent at once.
const BATCH: usize = 500;

/// The figure.
pub const CPU: &str = "cpu µs";

const SHORT: usize = 100;
const LONG: usize = 10_000;

/// What somebody with a ticket does.
struct Errand {
    /// What the tables call it with a short queue and with a long one.
    names: (&'static str, &'static str),
    commands: &'static [&'static str],
    reply: &'static str,
}

const FAIRACQUIRE: &str = "DLOCK.FAIRACQUIRE {key} {owner} CLAIM 600000";

const ERRANDS: [Errand; 3] = [
    Errand {
        names: (POLL_SHORT, POLL_LONG),
        commands: &[FAIRACQUIRE],
        reply: "*-1\r\n",
    },
    Errand {
        names: (POSITION_SHORT, POSITION_LONG),
        commands: &["DLOCK.POSITION {key} {owner}"],
        reply: ":#\r\n",
    },
    Errand {
        names: (CANCEL_SHORT, CANCEL_LONG),
        commands: &["DLOCK.CANCEL {key} {owner}", FAIRACQUIRE],
        reply: ":1\r\n*-1\r\n",
    },
];

/// Asking again, short queue.
pub const POLL_SHORT: &str = "poll, 100 queued";
/// Asking again, long queue.
pub const POLL_LONG: &str = "poll, 10,000 queued";
/// Looking, short queue.
pub const POSITION_SHORT: &str = "position, 100 queued";
/// Looking, long queue.
pub const POSITION_LONG: &str = "position, 10,000 queued";
/// Leaving and coming back, short queue.
pub const CANCEL_SHORT: &str = "cancel + queue again, 100 queued";
/// Leaving and coming back, long queue.
pub const CANCEL_LONG: &str = "cancel + queue again, 10,000 queued";

/// Both queues on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (key, length) in [("short", SHORT), ("long", LONG)] {
        let owners: Rc<Vec<String>> = Rc::new((0..length).map(owner).collect());
        queue_up(&server, key, &owners)?;
        for errand in &ERRANDS {
            ways.push(Box::new(Tickets {
                name: if length == SHORT {
                    errand.names.0
                } else {
                    errand.names.1
                },
                errand,
                key,
                owners: Rc::clone(&owners),
                random: Rng::with_seed(length as u64),
                line: Line::wide(server.port())?,
                server: Rc::clone(&server),
            }));
        }
    }
    Ok(ways)
}

fn owner(number: usize) -> String {
    format!("6f9619ff-8b86-d011-b42d-00cf4fc964ff:{number:06}")
}

/// Somebody holds the lock, and all the others get a ticket.
fn queue_up(server: &Server, key: &str, owners: &[String]) -> Result<(), Failure> {
    let _: Grant = server
        .connection()
        .ask(&format!("DLOCK.ACQUIRE {key} holder 86400000"));
    let mut line = Line::wide(server.port())?;
    let batches = batches(key, owners, &[FAIRACQUIRE], &Pattern::new("*-1\r\n"));
    batches.iter().try_for_each(|batch| line.run(batch))
}

fn batches(key: &str, owners: &[String], commands: &[&str], reply: &Pattern) -> Vec<Batch> {
    let bytes_of = |owner: &String| -> Vec<u8> {
        commands
            .iter()
            .flat_map(|template| {
                let line = template.replace("{key}", key).replace("{owner}", owner);
                command(&line).get_packed_command()
            })
            .collect()
    };
    owners
        .chunks(BATCH)
        .map(|owners| Batch {
            bytes: owners.iter().flat_map(bytes_of).collect(),
            reply: reply.clone(),
            times: owners.len(),
        })
        .collect()
}

struct Tickets {
    name: &'static str,
    errand: &'static Errand,
    key: &'static str,
    owners: Rc<Vec<String>>,
    random: Rng,
    line: Line,
    server: Rc<Server>,
}

impl Tickets {
    /// Everybody's turn comes equally often, each time in another order: in one order, those who leave the
    /// queue and come back would soon always be those at its head.
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

impl Way for Tickets {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let turns = self.turns();
        let reply = Pattern::new(self.errand.reply);
        let batches = batches(self.key, &turns, self.errand.commands, &reply);
        let before = Meter::read(&self.server);
        for batch in &batches {
            self.line.run(batch)?;
        }
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        Ok(vec![(CPU, cpu_us / turns.len() as f64)])
    }
}
