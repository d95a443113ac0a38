//! A fair lock by scripts, compared with this module's: the cost of a hand-over to the server with few and with many queued.
//!
//! One connection sends for all owners. In each turn the holder releases the lock, the next one asks again and is granted it, and
//! the former holder queues up again: three commands in either way.

use std::rc::Rc;
use std::time::Instant;

use dlock_integration::{command, Ask, Server};

use crate::failure::Failure;
use crate::tools::errand::owners;
use crate::tools::line::{Batch, Line};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{Figure, Opened, Way};
use dlock_integration::rivals::{FAIR_GIVE, FAIR_TAKE};

/// The number of turns that are sent at once.
const BATCH: usize = 500;

/// How long a place in the queue of the scripts lasts.
const PATIENCE_MS: u64 = 3_600_000;

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
    let mut ways: Vec<Box<dyn Way>> = Vec::new();
    for (queued, turns, dlock, script_turns, scripts) in QUEUES {
        ways.push(Box::new(Fair::new(
            dlock, &TICKETS, queued, turns, &server,
        )?));
        ways.push(Box::new(Fair::new(
            scripts,
            &SCRIPTS,
            queued,
            script_turns,
            &server,
        )?));
    }
    Ok(ways)
}

/// The commands for the lock. `{key}`, `{owner}`, `{now}`, `{take}` and `{give}` (the scripts' SHA-1) are placeholders.
struct Protocol {
    prefix: &'static str,
    ask: &'static str,
    granted: &'static str,
    queued: &'static str,
    give: &'static str,
    given: &'static str,
}

/// This module, by tickets, since a blocked connection could not send for all.
const TICKETS: Protocol = Protocol {
    prefix: "fair",
    ask: "DLOCK.FAIRACQUIRE {key} {owner} 86400000 CLAIM 600000",
    granted: "*2\r\n:#\r\n:1\r\n",
    queued: "*-1\r\n",
    give: "DLOCK.RELEASE {key} {owner}",
    given: ":0\r\n",
};

const SCRIPTS: Protocol = Protocol {
    prefix: "scripts",
    ask: "EVALSHA {take} 3 {key} {key}:queue {key}:timeouts {lease} {owner} {patience} {now}",
    granted: "$-1\r\n",
    queued: ":#\r\n",
    give: "EVALSHA {give} 4 {key} {key}:queue {key}:timeouts {key}:unlocked {owner} {now}",
    given: ":1\r\n",
};

/// A lock with its queue.
struct Fair {
    name: &'static str,
    /// The holder and the queued owners, in order; `next` is the index of the holder.
    owners: Rc<Vec<String>>,
    next: usize,
    turns: usize,
    ask: String,
    give: String,
    key: String,
    reply: Pattern,
    line: Line,
    server: Rc<Server>,
}

impl Fair {
    fn new(
        name: &'static str,
        protocol: &Protocol,
        queued: usize,
        turns: usize,
        server: &Rc<Server>,
    ) -> Result<Fair, Failure> {
        let mut connection = server.connection();
        let time: (u64, u64) = connection.ask("TIME");
        let now_ms = time.0 * 1_000;
        let mut fill = |template: &str| {
            let mut load =
                |script| -> String { connection.ask_command(command("SCRIPT LOAD").arg(script)) };
            template
                .replace("{take}", &load(FAIR_TAKE))
                .replace("{give}", &load(FAIR_GIVE))
                .replace("{lease}", &LEASE_MS.to_string())
                .replace("{patience}", &PATIENCE_MS.to_string())
                .replace("{now}", &now_ms.to_string())
        };
        let (ask, give) = (fill(protocol.ask), fill(protocol.give));
        let reply = [protocol.given, protocol.granted, protocol.queued].concat();
        let mut fair = Fair {
            name,
            owners: owners(queued + 1),
            next: 0,
            turns,
            ask,
            give,
            key: format!("{}:{queued}", protocol.prefix),
            reply: Pattern::new(&reply),
            line: Line::wide(server.port())?,
            server: Rc::clone(server),
        };
        let asks = |owners: &[String]| {
            owners
                .iter()
                .flat_map(|owner| fair.words(&fair.ask, owner))
                .collect()
        };
        let (first, others) = fair.owners.split_first().ok_or("there are no owners")?;
        let first = Batch {
            bytes: fair.words(&fair.ask, first),
            reply: Pattern::new(protocol.granted),
            times: 1,
        };
        let others: Vec<Batch> = others
            .chunks(BATCH)
            .map(|owners| Batch {
                bytes: asks(owners),
                reply: Pattern::new(protocol.queued),
                times: owners.len(),
            })
            .collect();
        fair.line.run(&first)?;
        for batch in &others {
            fair.line.run(batch)?;
        }
        Ok(fair)
    }

    fn words(&self, template: &str, owner: &str) -> Vec<u8> {
        let line = template
            .replace("{key}", &self.key)
            .replace("{owner}", owner);
        command(&line).get_packed_command()
    }

    /// Returns a batch of `turns` turns, from the present holder on.
    fn batch(&mut self, turns: usize) -> Batch {
        let mut bytes = Vec::new();
        for _ in 0..turns {
            let holder = self.next;
            self.next = (holder + 1) % self.owners.len();
            bytes.extend(self.words(&self.give, &self.owners[holder]));
            bytes.extend(self.words(&self.ask, &self.owners[self.next]));
            bytes.extend(self.words(&self.ask, &self.owners[holder]));
        }
        Batch {
            bytes,
            reply: self.reply.clone(),
            times: turns,
        }
    }
}

impl Way for Fair {
    fn name(&self) -> &str {
        self.name
    }

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
