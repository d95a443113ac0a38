//! The bytes that a held lock takes, and a wait for one.

use std::thread;
use std::time::Duration;

use dlock_integration::{command, Ask, Grant, Server};

use crate::errand::owners;
use crate::failure::Failure;
use crate::line::{Batch, Line};
use crate::locking::{Locking, DLOCK, LOCKINGS, SET_DEL};
use crate::notice;
use crate::way::{Figure, Opened, Way};

/// Sent at once.
const BATCH: usize = 1_000;

/// The figure.
pub const BYTES: &str = "bytes";

/// So many locks held at once. Each sample has a server of its own: what was there before would leave holes to
/// be filled.
pub fn open(locks: usize) -> Opened {
    Ok(LOCKINGS
        .iter()
        .filter(|locking| [DLOCK, SET_DEL].contains(&locking.name))
        .map(|locking| Box::new(Memory { locking, locks }) as Box<dyn Way>)
        .collect())
}

struct Memory {
    locking: &'static Locking,
    locks: usize,
}

impl Way for Memory {
    fn name(&self) -> &str {
        self.locking.name
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let server = Server::start();
        let loaded = self.locking.load(&server);
        let names: Vec<String> = (0..self.locks)
            .map(|number| format!("stock:item:{number:07}"))
            .collect();
        let before = used_memory(&server);
        let mut line = Line::wide(server.port())?;
        for names in names.chunks(BATCH) {
            line.run(&Batch {
                bytes: names.iter().flat_map(|name| loaded.take(name)).collect(),
                reply: loaded.taken.clone(),
                times: names.len(),
            })?;
        }
        drop(line);
        let bytes = used_memory(&server) - before;
        Ok(vec![(BYTES, bytes / self.locks as f64)])
    }
}

/// One of those who wait by a channel.
pub const NOTIFY: &str = "a wait by NOTIFY";
/// One of those who block, with the connection.
pub const BLOCKED: &str = "a connection that waits";

/// Who wait by a channel, and who block.
const WAITERS: (usize, usize) = (100_000, 3_000);

/// Waits for one lock by a channel.
pub fn open_notify() -> Opened {
    Ok(vec![Box::new(Waits {
        name: NOTIFY,
        count: WAITERS.0,
        queue_up: by_channel,
        idle: Duration::ZERO,
    })])
}

/// Connections that wait for one lock.
pub fn open_blocked() -> Opened {
    Ok(vec![Box::new(Waits {
        name: BLOCKED,
        count: WAITERS.1,
        queue_up: blocked,
        idle: IDLE,
    })])
}

/// After this time the server has taken away the buffers of connections that nothing comes from.
const IDLE: Duration = Duration::from_secs(8);

struct Waits {
    name: &'static str,
    count: usize,
    queue_up: fn(&Server, &[String]) -> Result<Vec<Line>, Failure>,
    idle: Duration,
}

impl Way for Waits {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let server = Server::start();
        let before = used_memory(&server);
        let lines = (self.queue_up)(&server, &owners(self.count + 1))?;
        thread::sleep(self.idle);
        let bytes = used_memory(&server) - before;
        drop(lines);
        Ok(vec![(BYTES, bytes / self.count as f64)])
    }
}

fn by_channel(server: &Server, owners: &[String]) -> Result<Vec<Line>, Failure> {
    let mut line = Line::wide(server.port())?;
    notice::queue_up(server, &mut line, "stock", owners)?;
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

/// What is in use when the server has cleaned up after its clients and moved its keys to a larger table.
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
