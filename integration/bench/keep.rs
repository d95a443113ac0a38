//! A sign of life (`KEEP`) for ten thousand holds of one connection.

use dlock_integration::{command, Server};

use crate::failure::Failure;
use crate::line::{Batch, Line};
use crate::meter::Meter;
use crate::replies::Pattern;
use crate::way::{Figure, Opened, Way};

const HOLDS: usize = 10_000;

/// Signs of life that are sent at once.
const BATCH: usize = 500;

/// How many batches a sample has.
const BATCHES: usize = 20;

/// The way.
pub const KEEP: &str = "KEEP, 10,000 ties";

/// Processor time of the server for each sign of life.
pub const CPU: &str = "cpu µs";

/// A server, and a connection that holds so much.
pub fn open() -> Opened {
    let server = Server::start();
    let mut line = Line::wide(server.port())?;
    line.run_each(HOLDS, "*2\r\n:#\r\n:1\r\n", |number| {
        format!("DLOCK.ACQUIRE keep:{number} owner-{number} 86400000 AUTO 86400000")
    })?;
    let keep = command("DLOCK.KEEP 60000").get_packed_command();
    let batch = Batch {
        bytes: keep.repeat(BATCH),
        reply: Pattern::new("*3\r\n:10000\r\n:#\r\n*0\r\n"),
        times: BATCH,
    };
    Ok(vec![Box::new(Keep {
        server,
        line,
        batch,
    })])
}

struct Keep {
    server: Server,
    line: Line,
    batch: Batch,
}

impl Way for Keep {
    fn name(&self) -> &str {
        KEEP
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let before = Meter::read(&self.server);
        for _ in 0..BATCHES {
            self.line.run(&self.batch)?;
        }
        let cpu_us = Meter::read(&self.server).cpu_us_since(&before);
        Ok(vec![(CPU, cpu_us / (BATCH * BATCHES) as f64)])
    }
}
