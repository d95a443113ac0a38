//! A primary and two replicas under a setting against lost grants, without anybody who watches them.

use dlock_harness::workers::LEASE_MS;
use dlock_harness::{await_until, stat, Ask, Server, ServerBuilder, PATIENCE};

/// The longest lease of the workers, and a second.
pub const QUARANTINE_MS: u64 = LEASE_MS + 1_000;

/// The servers' setting against lost grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Nothing,
    Quarantine,
    Replicas,
}

impl Setting {
    pub fn name(self) -> &'static str {
        match self {
            Setting::Nothing => "nothing",
            Setting::Quarantine => "a quarantine",
            Setting::Replicas => "dlock.replicas 2",
        }
    }

    /// Configures one of the servers.
    pub fn builder(self) -> ServerBuilder {
        let server = Server::builder();
        match self {
            Setting::Nothing => server,
            Setting::Quarantine => server
                .module_argument("quarantine-ms")
                .module_argument(QUARANTINE_MS),
            // Of moments until all are together: it cannot be shortened later.
            Setting::Replicas => ["replicas", "2", "quarantine-ms", "1"]
                .iter()
                .fold(server, ServerBuilder::module_argument),
        }
    }

    /// Makes the first the primary of the others, and waits until they are in sync. The quarantine of the start is not shown.
    pub fn join(self, servers: &[Server; 3]) {
        let [primary, replicas @ ..] = servers;
        for replica in replicas {
            replica.replica_of(primary);
        }
        for replica in replicas {
            replica.wait_in_sync(primary);
        }
        let say = |quarantine_ms: u64| {
            for server in servers {
                let line = format!("CONFIG SET dlock.quarantine-ms {quarantine_ms}");
                server.connection().ask::<String>(&line);
            }
        };
        match self {
            Setting::Nothing => return,
            Setting::Quarantine => say(0),
            Setting::Replicas => await_until("both replicas count", PATIENCE, || {
                stat(primary, "replicas_counting") == 2 && stat(primary, "joins_count_late_ms") == 0
            }),
        }
        say(QUARANTINE_MS);
    }
}
