//! Ten thousand holds that end with their connections, all at once, each with a waiter; and equally many connections without a
//! hold, since the server needs time for those too.

use std::net::Shutdown;
use std::time::Instant;

use dlock_harness::{await_until, command, Server, PATIENCE};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::pause::{milliseconds, Pauses};
use crate::tools::replies::Pattern;
use crate::waiting::mass;
use crate::waiting::session::{Listener, QUEUED};
use crate::way::{way, Opened};

const HOLDS: usize = 10_000;

/// Opens a server for each.
pub fn open() -> Opened {
    let server = mass::start();
    let mut line = Line::wide(server.port())?;
    let mut listener = Listener::new(&server, "ephemeral");
    let ends = way("10,000 ephemeral holds end at once", move || {
        let holders = holders(&server)?;
        line.run_each(HOLDS, QUEUED, |number| {
            format!("DLOCK.ACQUIRE ephemeral:{number} next-{number} 3600000 BLOCK 0 IN bench")
        })?;
        let (handed_over, pauses) = Pauses::during(&server, || {
            let start = Instant::now();
            for holder in &holders {
                holder.close(Shutdown::Both)?;
            }
            listener.hear(HOLDS, |_| Ok(()))?;
            Ok(start.elapsed())
        })?;
        line.run_each(HOLDS, ":0\r\n", |number| {
            format!("DLOCK.RELEASE ephemeral:{number} next-{number}")
        })?;
        let handed_over = vec![("handed over after ms", milliseconds(handed_over))];
        Ok([handed_over, pauses.figures()].concat())
    });
    let server = mass::start();
    let plain = way("10,000 connections end at once", move || {
        let lines = connect(&server, |_| "PING".to_owned(), "+PONG\r\n")?;
        let ((), pauses) = Pauses::during(&server, || {
            for line in &lines {
                line.close(Shutdown::Both)?;
            }
            await_until("all are gone", PATIENCE, || {
                let clients = server.info("clients");
                clients.number::<usize>("connected_clients") < HOLDS / 2
            });
            Ok(())
        })?;
        Ok(pauses.figures())
    });
    Ok(vec![ends, plain])
}

/// Connects the holders, each with a connection of its own and a lock for the connection's life.
fn holders(server: &Server) -> Result<Vec<Line>, Failure> {
    let take =
        |number| format!("DLOCK.ACQUIRE ephemeral:{number} holder-{number} 3600000 EPHEMERAL");
    connect(server, take, "*2\r\n:#\r\n:1\r\n")
}

/// Opens connections, each of which has been answered.
fn connect(
    server: &Server,
    line_of: impl Fn(usize) -> String,
    reply: &str,
) -> Result<Vec<Line>, Failure> {
    let reply = Pattern::new(reply);
    let connection = |number| {
        let mut line = Line::narrow(server.port())?;
        line.exchange(&command(&line_of(number)).get_packed_command(), &reply)?;
        Ok(line)
    };
    (0..HOLDS).map(connection).collect()
}
