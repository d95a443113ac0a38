//! What differs from setting to setting: how servers are configured, and how clients behave. The rule of confirmations is the
//! module's own ([`dlock_confirm`]). A planted fault takes away one of its clauses, or is one of a client, or of whoever calls it.

use dlock_confirm::{Rule, Terms};

/// Everything that a setting, or a planted fault, can change. Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// `dlock.replicas`; 0: no answer waits for replicas.
    pub replicas: u8,
    /// The rule by which replicas confirm answers.
    pub rule: Rule,
    /// Replicas that a client itself waits for (`WAIT`).
    pub wait: u8,
    pub lease: i16,
    /// `dlock.quarantine-ms`; without `dlock.replicas` a server grants nothing for that time after its start and its promotion.
    pub quarantine: i16,
    /// How much earlier than its lease a client stops.
    pub allowance: i16,
    /// Whether a server learns of its own full resynchronisation only when it has loaded it.
    pub learns_when_loaded: bool,
    /// Whether clients name the token when they renew at a closed server.
    pub names_token: bool,
    /// Whether a client counts its lease from the sending of the request, not from the answer.
    pub counts_from_sending: bool,
    /// Whether a client that asked for a shorter lease and was not answered believes the earlier end.
    pub believes_earlier: bool,
    /// The server refuses writes with fewer replicas that have acknowledged within `lag`. 0: it never does.
    pub min_replicas: u8,
    pub lag: i16,
}

/// The lease of most requests.
pub const LEASE: i16 = 4;
/// The lease of a renewal that shortens.
pub const SHORT: i16 = 2;
/// The most by which servers' clocks differ, and how much earlier a client stops.
pub const SKEW: i16 = 1;

/// Returns `floor((r + 1) / 2)`: the confirmations for r replicas.
#[must_use]
pub const fn needed(replicas: u8) -> u8 {
    replicas.div_ceil(2)
}

impl Conduct {
    /// Returns servers and clients without any measure for failovers.
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            replicas: 0,
            rule: Rule::WHOLE,
            wait: 0,
            lease: LEASE,
            quarantine: 0,
            allowance: SKEW,
            learns_when_loaded: false,
            names_token: true,
            counts_from_sending: true,
            believes_earlier: true,
            min_replicas: 0,
            lag: 0,
        }
    }

    /// Returns `dlock.quarantine-ms` alone, longer than the lease by `allowance` ticks.
    #[must_use]
    pub const fn quarantine(allowance: i16) -> Self {
        Self {
            quarantine: LEASE + allowance,
            ..Self::nothing()
        }
    }

    /// Returns `dlock.replicas`, and a quarantine of the longest lease.
    #[must_use]
    pub const fn replicas(replicas: u8) -> Self {
        Self {
            replicas,
            ..Self::quarantine(0)
        }
    }

    /// Returns the same without the clause whose absence has this name.
    #[must_use]
    pub fn without(self, fault: &str) -> Self {
        let rule = self.rule.without(fault);
        Self {
            rule: rule.unwrap_or_else(|| panic!("no clause has the name {fault}")),
            ..self
        }
    }

    /// Returns the client's own `WAIT n` after each grant and renewal.
    #[must_use]
    pub const fn wait(n: u8) -> Self {
        Self {
            wait: n,
            ..Self::nothing()
        }
    }

    /// Returns `min-replicas-to-write n` with a small lag, and a quarantine of the lease and the duration of orderly failovers.
    #[must_use]
    pub const fn min_replicas(n: u8) -> Self {
        Self {
            min_replicas: n,
            lag: 1,
            ..Self::quarantine(2)
        }
    }

    /// Returns the terms of the rule at a server.
    #[must_use]
    pub fn terms(&self, primary: bool) -> Terms<i16> {
        Terms {
            rule: self.rule,
            replicas: self.replicas.into(),
            quarantine: self.quarantine,
            primary,
        }
    }

    /// Returns how many replicas must have confirmed before an answer is believed. 0: answers are sent at once.
    #[must_use]
    pub fn confirmations(&self) -> u32 {
        match self.replicas {
            0 => self.wait.into(),
            replicas => self.terms(true).needed(replicas.into()),
        }
    }
}
