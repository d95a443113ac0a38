//! The server, and a step's views of it.

use std::collections::HashMap;

use dlock_harness::{Ask, Server, Wire};

use crate::lock::{Terms, Way, LONG_MS};
use crate::part::tally;

/// A server with the module, and the load on it.
pub struct Stage {
    server: Server,
    quick: bool,
    planted: bool,
}

impl Stage {
    /// Starts the server. With `quick`, steps have smaller numbers. With `planted`, DLOCK is misused at each step.
    pub fn new(quick: bool, planted: bool) -> Stage {
        Stage {
            server: Server::start(),
            quick,
            planted,
        }
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns a number: the smaller one for a quick run.
    pub fn so_many(&self, full: u64, quick: u64) -> u64 {
        match self.quick {
            true => quick,
            false => full,
        }
    }

    /// Returns true if DLOCK is misused.
    pub fn is_planted(&self) -> bool {
        self.planted
    }
}

/// Returns a counter of a lock.
pub fn counted(connection: &mut Wire, key: &str, what: &str) -> u64 {
    let counts: HashMap<String, u64> = connection.ask(&format!("HGETALL {}", tally(key)));
    counts.get(what).copied().unwrap_or(0)
}

/// Returns true if an owner whose connection has ended still has the lock, and nothing will end that (or not within a day).
pub fn is_stuck(connection: &mut Wire, terms: &Terms) -> bool {
    let Terms { key, owner, .. } = terms;
    match terms.way {
        Way::Dlock(_) | Way::Misused(_) => {
            let hold: Option<(u64, u64, u64)> =
                connection.ask(&format!("DLOCK.HELD {key} {owner}"));
            hold.is_some_and(|(_, _, left_ms)| left_ms > LONG_MS / 2)
        }
        _ => {
            let holder: Option<String> = connection.ask(&format!("GET {key}"));
            // -1: it does not expire.
            let left: i64 = connection.ask(&format!("PTTL {key}"));
            holder.as_ref() == Some(owner) && left == -1
        }
    }
}

/// Returns true if the lock is taken.
pub fn is_taken(connection: &mut Wire, terms: &Terms) -> bool {
    let key = &terms.key;
    match terms.way {
        Way::Dlock(_) | Way::Misused(_) => connection
            .ask::<Option<(u64, u64, u64, String)>>(&format!("DLOCK.HELD {key}"))
            .is_some(),
        _ => connection.ask(&format!("EXISTS {key}")),
    }
}
