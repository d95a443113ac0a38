//! The bytes of a held lock, and of a wait for one.

use std::thread;
use std::time::Duration;

use dlock_integration::{command, Ask, Grant, Server};

use crate::failure::Failure;
use crate::tools::errand::owners;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{DLOCK, LOCKINGS, SET_DEL};
use crate::tools::replies::Pattern;
use crate::waiting::session;
use crate::way::{way, Opened};

/// The number of commands that are sent at once.
const BATCH: usize = 1_000;

/// The figure.
const BYTES: &str = "bytes";

/// Opens a way with `locks` held locks. Each sample has a server of its own, because freed memory of an earlier sample would be
/// reused.
pub fn open(locks: usize) -> Opened {
    let lockings = LOCKINGS.iter();
    let lockings = lockings.filter(|locking| [DLOCK, SET_DEL].contains(&locking.name));
    let ways = lockings.map(|locking| {
        way(locking.name, move || {
            let server = Server::start();
            let loaded = locking.load(&server);
            let take = |number| loaded.take(&format!("stock:item:{number:07}"));
            let before = used_memory(&server);
            let mut line = Line::wide(server.port())?;
            for start in (0..locks).step_by(BATCH) {
                let numbers = start..locks.min(start + BATCH);
                line.run(&Batch {
                    reply: loaded.taken.clone(),
                    times: numbers.len(),
                    bytes: numbers.flat_map(take).collect(),
                })?;
            }
            drop(line);
            Ok(vec![(
                BYTES,
                (used_memory(&server) - before) / locks as f64,
            )])
        })
    });
    Ok(ways.collect())
}

/// Opens waits for one lock in a session.
pub fn open_in_session() -> Opened {
    waits("a wait in a session", 100_000, Duration::ZERO, in_session)
}

/// Opens connections that wait for one lock.
pub fn open_blocked() -> Opened {
    waits("a connection that waits", 3_000, IDLE, blocked)
}

/// After this time the server has freed the buffers of silent connections.
const IDLE: Duration = Duration::from_secs(8);

fn waits(
    name: &'static str,
    count: usize,
    idle: Duration,
    queue_up: fn(&Server, &[String]) -> Result<Vec<Line>, Failure>,
) -> Opened {
    Ok(vec![way(name, move || {
        let server = Server::start();
        let before = used_memory(&server);
        let lines = queue_up(&server, &owners(count + 1))?;
        thread::sleep(idle);
        let bytes = used_memory(&server) - before;
        drop(lines);
        Ok(vec![(BYTES, bytes / count as f64)])
    })])
}

fn in_session(server: &Server, owners: &[String]) -> Result<Vec<Line>, Failure> {
    let mut line = Line::wide(server.port())?;
    // The session lives as long as this connection.
    let keep = command("DLOCK.SESSION stock bench 600000").get_packed_command();
    line.exchange(&keep, &Pattern::new("*4\r\n:#\r\n:0\r\n$-1\r\n*0\r\n"))?;
    session::queue_up(server, &mut line, "stock", owners)?;
    Ok(vec![line])
}

fn blocked(server: &Server, owners: &[String]) -> Result<Vec<Line>, Failure> {
    let (first, others) = owners.split_first().ok_or("there are no owners")?;
    let take = format!("DLOCK.ACQUIRE stock {first} 86400000");
    let _: Grant = server.connection().ask(&take);
    let wait = |owner: &String| {
        let mut line = Line::narrow(server.port())?;
        let wait = format!("DLOCK.ACQUIRE stock {owner} 86400000 BLOCK 0");
        line.send(&command(&wait).get_packed_command())?;
        Ok(line)
    };
    let lines: Result<Vec<Line>, Failure> = others.iter().map(wait).collect();
    server.await_blocked_clients(others.len());
    lines
}

/// Returns the used memory after the server has cleaned up after its clients and moved its keys to a larger table.
fn used_memory(server: &Server) -> f64 {
    let read = || server.info("memory").number::<f64>("used_memory");
    let mut last = read();
    loop {
        thread::sleep(Duration::from_millis(250));
        let now = read();
        if now >= last {
            return now;
        }
        last = now;
    }
}
