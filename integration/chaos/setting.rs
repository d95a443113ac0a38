//! What the servers and the clients do against lost grants.

use dlock_integration::ServerBuilder;

use crate::client::LEASE_MS;

/// `down-after-milliseconds` of the Sentinels, `cluster-node-timeout`.
pub const DOWN_AFTER_MS: u64 = 3_000;

/// The longest lease, and an allowance for clocks.
pub const QUARANTINE_MS: u64 = LEASE_MS + 1_000;

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// `min-replicas-to-write 1` with this `min-replicas-max-lag`, in seconds.
    pub max_lag: Option<u64>,
    /// `dlock.quarantine-ms`.
    pub quarantine: bool,
    /// The clients do `WAIT 1` after each grant and renewal, and believe only what was replicated.
    pub waits: bool,
}

const fn setting(
    name: &'static str,
    max_lag: Option<u64>,
    quarantine: bool,
    waits: bool,
) -> Setting {
    Setting {
        name,
        max_lag,
        quarantine,
        waits,
    }
}

/// Nothing is done.
pub const NOTHING: Setting = setting("nothing", None, false, false);

/// What is recommended: a lag that is 2 s below the detection, and a quarantine.
pub const RECOMMENDED: Setting = setting("min-replicas, lag 1 + quarantine", Some(1), true, false);

/// So many of them are measured before all else.
pub const MAIN_SETTINGS: usize = 3;

/// All that are measured, the most telling first.
pub const ALL: [Setting; 7] = [
    RECOMMENDED,
    setting("WAIT 1 + quarantine", None, true, true),
    NOTHING,
    setting("quarantine", None, true, false),
    setting("min-replicas, lag 1", Some(1), false, false),
    setting("WAIT 1", None, false, true),
    setting("min-replicas, lag 10", Some(10), false, false),
];

impl Setting {
    /// Is it promised that no two owners believe in a lock, whatever the fault?
    pub fn is_safe(&self) -> bool {
        self.quarantine && (self.waits || *self == RECOMMENDED)
    }

    /// What a server is started with.
    pub fn apply(&self, mut server: ServerBuilder) -> ServerBuilder {
        if let Some(lag) = self.max_lag {
            server = server
                .config("min-replicas-to-write", 1)
                .config("min-replicas-max-lag", lag);
        }
        if self.quarantine {
            server = server
                .module_argument("quarantine-ms")
                .module_argument(QUARANTINE_MS);
        }
        server
    }
}
