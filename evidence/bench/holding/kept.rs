//! A command that keeps a session (`SESSION`) with ten thousand holds.

use dlock_harness::{command, Ask, Server};

use crate::tools::line::{Batch, Line};
use crate::tools::meter::Meter;
use crate::tools::replies::Pattern;
use crate::way::{way, Opened};

const HOLDS: usize = 10_000;

/// The number of commands that are sent at once.
const BATCH: usize = 500;

/// The number of batches in a sample.
const BATCHES: usize = 20;

/// Opens a server, and a session with all holds.
pub fn open() -> Opened {
    let server = Server::start();
    let mut line = Line::wide(server.port())?;
    line.run_each(HOLDS, "*2\r\n:#\r\n:#\r\n", |number| {
        format!("DLOCK.ACQUIRE kept:{number} owner-{number} 86400000 IN bench")
    })?;
    let keep = "DLOCK.SESSION kept:0 bench 600000";
    let told: (u64, u64, u64, Vec<redis::Value>) = server.connection().ask(keep);
    let keep = command(&format!("{keep} SEEN {} {}", told.0, told.1)).get_packed_command();
    let batch = Batch {
        bytes: keep.repeat(BATCH),
        reply: Pattern::new("*4\r\n:#\r\n:#\r\n:#\r\n*0\r\n"),
        times: BATCH,
    };
    Ok(vec![way("SESSION, 10,000 holds", move || {
        let cpu_us = Meter::cpu_us(&server, || (0..BATCHES).try_for_each(|_| line.run(&batch)))?;
        Ok(vec![("cpu µs", cpu_us / (BATCH * BATCHES) as f64)])
    })])
}
