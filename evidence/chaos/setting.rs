//! Settings of servers and clients against lost grants.

use dlock_evidence::group::DOWN_AFTER_MS;
use dlock_harness::ServerBuilder;

use crate::client::LEASE_MS;

/// The longest lease, and an allowance for clocks and for the time until the last replica follows the new primary.
pub const QUARANTINE_MS: u64 = LEASE_MS + 5_000;

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// `min-replicas-to-write`.
    pub to_write: Replicas,
    /// `min-replicas-max-lag`, in seconds.
    pub max_lag: u64,
    /// `dlock.quarantine-ms`; 0 is none.
    pub quarantine_ms: u64,
    /// Whether `dlock.replicas` is the number of replicas: answers wait until half of them have confirmed them.
    pub confirms: bool,
    /// The clients send `WAIT` for this many after each grant and renewal, and believe only what these have.
    pub wait: Replicas,
    /// What programs with sessions do wrong.
    pub mistake: Option<Mistake>,
}

/// What a program with a session does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It counts what an answer says from when the answer came, not from when it asked.
    CountsFromAnswer,
}

/// A share of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    None,
    One,
    /// The number that two primaries cannot both have at one time: floor((r + 1) / 2) of r.
    Half,
    All,
}

impl Replicas {
    /// Returns the number, of this many replicas.
    pub fn of(self, replicas: usize) -> usize {
        match self {
            Replicas::None => 0,
            Replicas::One => 1,
            Replicas::Half => replicas.div_ceil(2),
            Replicas::All => replicas,
        }
    }
}

/// No measure.
pub const NOTHING: Setting = Setting {
    name: "nothing",
    to_write: Replicas::None,
    max_lag: 1,
    quarantine_ms: 0,
    confirms: false,
    wait: Replicas::None,
    mistake: None,
};

/// The recommendation if a round trip to a replica is affordable: the servers themselves wait for their replicas.
pub const CONFIRMED: Setting = Setting {
    name: "dlock.replicas",
    quarantine_ms: QUARANTINE_MS,
    confirms: true,
    ..NOTHING
};

/// Programs with sessions that count from the answer.
pub const COUNTS_FROM_ANSWER: Setting = Setting {
    name: "dlock.replicas, programs count from the answer",
    mistake: Some(Mistake::CountsFromAnswer),
    ..CONFIRMED
};

/// The recommendation without a round trip: half of the replicas, a lag that is 2 s below the detection, and a quarantine.
pub const RECOMMENDED: Setting = Setting {
    name: "min-replicas half, lag 1 + quarantine",
    to_write: Replicas::Half,
    quarantine_ms: QUARANTINE_MS,
    ..NOTHING
};

/// One replica of any number: enough for up to two of them.
pub const ONE_REPLICA: Setting = Setting {
    name: "min-replicas 1, lag 1 + quarantine",
    to_write: Replicas::One,
    ..RECOMMENDED
};

/// All replicas: a cut that leaves the primary all but one stops it.
pub const ALL_REPLICAS: Setting = Setting {
    name: "min-replicas all, lag 1 + quarantine",
    to_write: Replicas::All,
    ..RECOMMENDED
};

/// A quarantine without an allowance.
pub const NO_ALLOWANCE: Setting = Setting {
    name: "min-replicas half, lag 1 + quarantine of one lease",
    quarantine_ms: LEASE_MS,
    ..RECOMMENDED
};

pub const QUARANTINE: Setting = Setting {
    name: "quarantine",
    quarantine_ms: QUARANTINE_MS,
    ..NOTHING
};

pub const WAIT_ONE: Setting = Setting {
    name: "WAIT 1",
    wait: Replicas::One,
    ..NOTHING
};

pub const WAIT_ALL: Setting = Setting {
    name: "WAIT for all",
    wait: Replicas::All,
    ..NOTHING
};

pub const WAIT_AND_QUARANTINE: Setting = Setting {
    name: "WAIT for half + quarantine",
    wait: Replicas::Half,
    ..QUARANTINE
};

/// All settings.
pub const ALL: [Setting; 13] = [
    CONFIRMED,
    COUNTS_FROM_ANSWER,
    RECOMMENDED,
    ONE_REPLICA,
    ALL_REPLICAS,
    NO_ALLOWANCE,
    WAIT_AND_QUARANTINE,
    NOTHING,
    QUARANTINE,
    Setting {
        name: "min-replicas half, lag 1",
        quarantine_ms: 0,
        ..RECOMMENDED
    },
    WAIT_ONE,
    WAIT_ALL,
    Setting {
        name: "min-replicas half, lag 10",
        max_lag: 10,
        quarantine_ms: 0,
        ..RECOMMENDED
    },
];

impl Setting {
    /// Returns the setting of this name.
    pub fn named(name: &str) -> Option<Setting> {
        ALL.into_iter().find(|setting| setting.name == name)
    }

    /// Returns true if no two owners may believe in a lock, whatever the fault, if a cut leaves the primary at most `beside` of
    /// its replicas.
    pub fn is_safe(&self, replicas: usize, beside: usize) -> bool {
        let least = Replicas::Half.of(replicas);
        let is_enough =
            |asked: Replicas| asked.of(replicas) >= least && asked.of(replicas) > beside;
        let stops = is_enough(self.to_write) && self.max_lag * 1_000 + 2_000 <= DOWN_AFTER_MS;
        let outlives = self.quarantine_ms >= QUARANTINE_MS && (stops || is_enough(self.wait));
        // A promoted server knows what all replicas have.
        self.confirms || outlives || self.wait == Replicas::All
    }

    /// Configures a server with this many replicas.
    pub fn apply(&self, mut server: ServerBuilder, replicas: usize) -> ServerBuilder {
        if self.to_write != Replicas::None {
            server = server
                .config("min-replicas-to-write", self.to_write.of(replicas))
                .config("min-replicas-max-lag", self.max_lag);
        }
        if self.confirms {
            // As docs/guarantees.md recommends it.
            server = server
                .config("appendonly", "yes")
                .config("rdb-del-sync-files", "yes")
                .module_argument("replicas")
                .module_argument(replicas);
        }
        if self.quarantine_ms > 0 {
            server = server
                .module_argument("quarantine-ms")
                .module_argument(self.quarantine_of_the_start());
        }
        server
    }

    /// Returns how long a server grants nothing after its first start, which is not measured: the final value is set when all
    /// servers are together.
    fn quarantine_of_the_start(&self) -> u64 {
        match self.confirms {
            // Where replicas confirm answers it cannot be shortened later.
            true => 1,
            false => self.quarantine_ms,
        }
    }

    /// Returns how long a new primary grants nothing after its promotion.
    pub fn after_promotion_ms(&self) -> u64 {
        match self.confirms {
            true => 0,
            false => self.quarantine_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_what_two_primaries_cannot_both_have() {
        let half = [1, 2, 3, 4, 5].map(|replicas| Replicas::Half.of(replicas));
        assert_eq!(half, [1, 1, 2, 2, 3]);
        for replicas in 1..10 {
            let nodes_of_two = 2 * (Replicas::Half.of(replicas) + 1);
            assert!(nodes_of_two > replicas + 1);
        }
    }

    #[test]
    fn a_setting_is_safe_only_where_its_rules_are_kept() {
        assert!(RECOMMENDED.is_safe(2, 0));
        assert!(RECOMMENDED.is_safe(3, 1));
        assert!(!RECOMMENDED.is_safe(2, 1));
        assert!(ONE_REPLICA.is_safe(2, 0));
        assert!(!ONE_REPLICA.is_safe(3, 0));
        assert!(ALL_REPLICAS.is_safe(2, 1));
        assert!(WAIT_ALL.is_safe(3, 2));
        let unsafe_ones = [NOTHING, QUARANTINE, WAIT_ONE, NO_ALLOWANCE];
        assert!(unsafe_ones.iter().all(|setting| !setting.is_safe(2, 0)));
    }
}
