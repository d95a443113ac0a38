//! A heartbeat (`KEEP`) for ten thousand holds of one connection.

use dlock_integration::{command, Server};

use crate::tools::line::{Batch, Line};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{way, Opened};

const HOLDS: usize = 10_000;

/// The number of heartbeats that are sent at once.
const BATCH: usize = 500;

/// The number of batches in a sample.
const BATCHES: usize = 20;

/// Opens a server, and a connection with all holds.
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
    Ok(vec![way("KEEP, 10,000 ties", move || {
        let cpu_us = Meter::cpu_us(&server, || (0..BATCHES).try_for_each(|_| line.run(&batch)))?;
        Ok(vec![("cpu µs", cpu_us / (BATCH * BATCHES) as f64)])
    })])
}
