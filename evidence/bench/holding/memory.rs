//! The bytes of a held lock, and of a wait for one.

use std::thread;
use std::time::Duration;

use dlock_harness::{command, Ask, Grant, Server};

use crate::failure::Failure;
use crate::tools::errand::owners;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{
    exclusive, CLIENT_27, CLIENT_60, DLOCK, OWNER, OWNER_27, OWNER_60, SET_DEL,
};
use crate::waiting::session::{self, Listener};
use crate::way::{way, Opened};

/// The number of commands that are sent at once.
const BATCH: usize = 1_000;

/// Longer than a sample: no lease is renewed meanwhile.
const LEASE_MS: u64 = 3_600_000;

/// The figure.
const BYTES: &str = "bytes";

/// The number of locks that are held.
const LOCKS: usize = 100_000;

/// The ways to hold a lock, their names in the tables, and the owner.
const HELD: [(&str, &str, &str); 6] = [
    (CLIENT_27, CLIENT_27, OWNER_27),
    ("SET NX PX, 27 bytes", SET_DEL, OWNER_27),
    (CLIENT_60, CLIENT_60, OWNER_60),
    ("SET NX PX, 60 bytes", SET_DEL, OWNER_60),
    (DLOCK, DLOCK, OWNER),
    (SET_DEL, SET_DEL, OWNER),
];

/// Opens all ways. Each sample has a server of its own, because freed memory of an earlier sample would be reused.
pub fn open() -> Opened {
    let ways = HELD.map(|(name, locking, owner)| {
        way(name, move || {
            let (server, locking) = (Server::start(), exclusive(locking)?);
            let loaded = locking.load_with_lease(&server, LEASE_MS);
            let lock = |number| format!("stock:item:{number:07}");
            let before = used_memory(&server);
            let mut line = Line::wide(server.port())?;
            for start in (0..LOCKS).step_by(BATCH) {
                let numbers = start..LOCKS.min(start + BATCH);
                line.run(&Batch {
                    reply: loaded.taken.clone(),
                    times: numbers.len(),
                    bytes: numbers
                        .flat_map(|number| loaded.take_as(&lock(number), owner))
                        .collect(),
                })?;
            }
            drop(line);
            // The program keeps its session, and has seen the rows about its locks: the first command reads them, the second one
            // says so.
            let keeper = loaded.session.map(|session| {
                let mut keeper = Listener::of(&server, &lock(0), session);
                keeper.keep()?;
                Ok::<_, Failure>(keeper)
            });
            let keeper = keeper.transpose()?;
            let bytes = (used_memory(&server) - before) / LOCKS as f64;
            drop(keeper);
            Ok(vec![(BYTES, bytes)])
        })
    });
    Ok(ways.into())
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
    queue_up: fn(&Server, &[String]) -> Result<Waiting, Failure>,
) -> Opened {
    Ok(vec![way(name, move || {
        let server = Server::start();
        let before = used_memory(&server);
        let waiting = queue_up(&server, &owners(count + 1))?;
        thread::sleep(idle);
        let bytes = used_memory(&server) - before;
        drop(waiting);
        Ok(vec![(BYTES, bytes / count as f64)])
    })])
}

/// The connections of those who wait, and the one that keeps their session.
type Waiting = (Vec<Line>, Option<Listener>);

fn in_session(server: &Server, owners: &[String]) -> Result<Waiting, Failure> {
    let keeper = Listener::new(server, "stock");
    let mut line = Line::wide(server.port())?;
    session::queue_up(server, &mut line, "stock", owners)?;
    Ok((vec![line], Some(keeper)))
}

fn blocked(server: &Server, owners: &[String]) -> Result<Waiting, Failure> {
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
    Ok((lines?, None))
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
