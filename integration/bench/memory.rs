//! The bytes that a held lock takes.

use std::thread;
use std::time::Duration;

use dlock_integration::Server;

use crate::failure::Failure;
use crate::line::{Batch, Line};
use crate::locking::{Locking, DLOCK, LOCKINGS, SET_DEL};
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
