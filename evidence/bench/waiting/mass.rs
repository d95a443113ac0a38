//! Masses: ten thousand waiters, all of which are granted their lock, or die, at once.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use dlock_harness::redis;
use dlock_harness::{await_until, command, Ask, Grant, Server, Wire, PATIENCE};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::pause::{milliseconds, Pauses};
use crate::tools::replies::Pattern;
use crate::waiting::lapse::{end_within_a_second, lateness};
use crate::way::{way, Figure, Opened};

/// The number of waiters.
const WAITERS: usize = 10_000;

/// Opens a server for each, with room for the connections.
pub fn open() -> Opened {
    let (leases, deaths) = (start(), start());
    Ok(vec![
        way("10,000 leases end in one second", move || {
            end_leases(&leases)
        }),
        way("10,000 waiters die at once", move || let_die(&deaths)),
    ])
}

/// Starts a server that accepts more connections than by default.
pub fn start() -> Server {
    Server::builder().config("maxclients", 15_000).start()
}

/// Opens a connection for each line, on which a request waits.
fn wait_all(server: &Server, line_of: impl Fn(usize) -> String) -> Result<Vec<Line>, Failure> {
    let waits = |number| {
        let mut line = Line::narrow(server.port())?;
        line.send(&command(&line_of(number)).get_packed_command())?;
        Ok(line)
    };
    let lines: Result<Vec<Line>, Failure> = (0..WAITERS).map(waits).collect();
    server.await_blocked_clients(WAITERS);
    lines
}

/// Ends all leases within a second, each with a waiter.
fn end_leases(server: &Server) -> Result<Vec<Figure>, Failure> {
    let start = Instant::now();
    let mut line = Line::wide(server.port())?;
    line.run_each(WAITERS, "*2\r\n:#\r\n:1\r\n", |number| {
        format!("DLOCK.ACQUIRE mass:{number} first 86400000")
    })?;
    let mut lines = wait_all(server, |number| {
        format!("DLOCK.ACQUIRE mass:{number} second 3600000 BLOCK 0")
    })?;
    let deadlines = end_within_a_second(&mut line, "mass", WAITERS, start.elapsed())?;
    let (latest, pauses) = Pauses::during(server, || watch(&mut lines, &deadlines))?;
    line.run_each(WAITERS, ":0\r\n", |number| {
        format!("DLOCK.RELEASE mass:{number} second")
    })?;
    // How late the last waiter has the lock, after the end of the lease for which it waited.
    Ok([vec![("latest ms", milliseconds(latest))], pauses.figures()].concat())
}

/// Reads in the order of the deadlines. A grant out of order is read late, so the true delay may be smaller.
fn watch(lines: &mut [Line], deadlines: &[Duration]) -> Result<Duration, Failure> {
    let granted = Pattern::new("*2\r\n:#\r\n:1\r\n");
    let mut latest = Duration::ZERO;
    for (line, deadline) in lines.iter_mut().zip(deadlines) {
        line.expect(&granted, 1)?;
        latest = latest.max(lateness(*deadline)?);
    }
    Ok(latest)
}

/// Ends all waiters of one lock at one instant.
fn let_die(server: &Server) -> Result<Vec<Figure>, Failure> {
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE deaths holder 3600000");
    let lines = wait_all(server, |number| {
        format!("DLOCK.ACQUIRE deaths waiter-{number} 3600000 BLOCK 0")
    })?;
    let (gone, pauses) = Pauses::during(server, || {
        let start = Instant::now();
        for line in &lines {
            line.close(Shutdown::Both)?;
        }
        await_until("nobody waits any more", PATIENCE, || {
            queued(&mut connection) == 0
        });
        Ok(start.elapsed())
    })?;
    let _: u64 = connection.ask("DLOCK.RELEASE deaths holder");
    // How long it takes until the server has removed all of them.
    Ok([
        vec![("gone after ms", milliseconds(gone))],
        pauses.figures(),
    ]
    .concat())
}

fn queued(connection: &mut Wire) -> u64 {
    let info: std::collections::HashMap<String, redis::Value> =
        connection.ask("DLOCK.INFO deaths COUNT 1");
    info.get("queued")
        .and_then(|value| redis::from_redis_value(value).ok())
        .unwrap_or(u64::MAX)
}
