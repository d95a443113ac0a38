//! The compared locks, and their common load.

use std::fmt;

/// The load: locks, clients of each of the two groups, how long they wait for a lock, and their lease where the lock has one.
pub const LOCKS: usize = 8;
pub const CLIENTS: usize = 10;
pub const WAIT_MS: u64 = 3_000;
pub const LEASE_MS: u64 = 8_000;

/// Nine of ten hold a lock for at most this long, the tenth for between a second and this long.
pub const SHORT_MS: u64 = 20;
pub const LONG_MS: u64 = 7_000;

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// Redisson's lock.
    RLock,
    /// Redisson's fair lock.
    FairLock,
    /// Redlock, as redsync does it, over three masters.
    Redlock,
    /// `SET NX PX`, and `WAIT` for one replica.
    SetWait,
    /// dlock with `dlock.replicas`.
    DlockReplicas,
    /// dlock with its defaults.
    Dlock,
    /// No lock: every client believes at once. A run that does not report it is blind.
    Nothing(Driver),
}

/// The program that runs the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// This program.
    Here,
    Java,
    Go,
}

impl Contestant {
    pub const ALL: [Contestant; 6] = [
        Contestant::RLock,
        Contestant::FairLock,
        Contestant::Redlock,
        Contestant::SetWait,
        Contestant::DlockReplicas,
        Contestant::Dlock,
    ];

    /// The contestants that must be reported as believed by two.
    pub const PLANTED: [Contestant; 3] = [
        Contestant::Nothing(Driver::Here),
        Contestant::Nothing(Driver::Java),
        Contestant::Nothing(Driver::Go),
    ];

    pub fn driver(self) -> Driver {
        match self {
            Contestant::RLock | Contestant::FairLock => Driver::Java,
            Contestant::Redlock => Driver::Go,
            Contestant::Nothing(driver) => driver,
            _ => Driver::Here,
        }
    }

    /// Returns its name for the drivers, and for `--only`.
    pub fn word(self) -> &'static str {
        match self {
            Contestant::RLock => "rlock",
            Contestant::FairLock => "fair",
            Contestant::Redlock => "redlock",
            Contestant::SetWait => "set-wait",
            Contestant::DlockReplicas => "dlock-replicas",
            Contestant::Dlock => "dlock",
            Contestant::Nothing(_) => "nothing",
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contestant::RLock => "Redisson `RLock`",
            Contestant::FairLock => "Redisson fair lock",
            Contestant::Redlock => "redlock (redsync), three masters",
            Contestant::SetWait => "`SET NX PX` and `WAIT 1`",
            Contestant::DlockReplicas => "dlock, `dlock.replicas 2`",
            Contestant::Dlock => "dlock, without `dlock.replicas`",
            Contestant::Nothing(Driver::Here) => "no lock",
            Contestant::Nothing(Driver::Java) => "no lock, from Java",
            Contestant::Nothing(Driver::Go) => "no lock, from Go",
        })
    }
}

/// The faults of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Stop,
    Stall,
    Cut,
}

impl Fault {
    pub const ALL: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::Stall, Fault::Cut];

    pub fn word(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Stall => "stall",
            Fault::Cut => "cut",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Kill => "killed",
            Fault::Stop => "stopped for good",
            Fault::Stall => "stalls past detection",
            Fault::Cut => "cut off with one replica",
        })
    }
}
