//! The server, and how a step learns what happened.

use std::collections::HashMap;

use dlock_integration::{Ask, Server, Wire};

use crate::lock::{Terms, Way, LONG_MS};
use crate::part::tally;

/// A server with the module, and how much is asked of it.
pub struct Stage {
    server: Server,
    quick: bool,
    planted: bool,
}

impl Stage {
    /// With `quick`, steps have smaller numbers. With `planted`, DLOCK is misused at each step.
    pub fn new(quick: bool, planted: bool) -> Stage {
        Stage {
            server: Server::start(),
            quick,
            planted,
        }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// A number: the smaller one for a quick run.
    pub fn so_many(&self, full: u64, quick: u64) -> u64 {
        match self.quick {
            true => quick,
            false => full,
        }
    }

    /// Whether DLOCK is misused.
    pub fn is_planted(&self) -> bool {
        self.planted
    }
}

/// What was counted at a lock.
pub fn counted(connection: &mut Wire, key: &str, what: &str) -> u64 {
    let counts: HashMap<String, u64> = connection.ask(&format!("HGETALL {}", tally(key)));
    counts.get(what).copied().unwrap_or(0)
}

/// Whether the lock is still that of an owner whose connection has ended, and nothing will ever end that (or not within a day).
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
            // -1: it has no end.
            let left: i64 = connection.ask(&format!("PTTL {key}"));
            holder.as_ref() == Some(owner) && left == -1
        }
    }
}

/// Whether anybody has the lock.
pub fn is_taken(connection: &mut Wire, terms: &Terms) -> bool {
    let key = &terms.key;
    match terms.way {
        Way::Dlock(_) | Way::Misused(_) => connection
            .ask::<Option<(u64, u64, u64, String)>>(&format!("DLOCK.HELD {key}"))
            .is_some(),
        _ => connection.ask(&format!("EXISTS {key}")),
    }
}
