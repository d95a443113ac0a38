//! What the operator has configured.

use super::refusal::{NoAck, Refusal};
use super::types::{Millis, Now, SteadyMs, Token, WallMs};

/// The settings that the engine uses, in the units of the configuration table. The caller keeps them up to date.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The longest lease that may be asked for: in a server with a quarantine, one that ends within it.
    pub max_lease_ms: Millis,
    /// The longest lease that a user may bring by RESTORE: what is configured, whatever a quarantine makes of it.
    pub max_restored_ms: Millis,
    /// The longest claim window.
    pub max_claim_ms: Millis,
    /// How long a ticket is kept while no connection waits on it, unless it says so itself; a loaded one, at least. Also how long the
    /// places of a session are kept that is not alive.
    pub claim_window_ms: Millis,
    /// The most places of a lock.
    pub max_queue: usize,
    /// The most places over all locks, and the most requests that wait in sessions.
    pub max_places: usize,
    /// The most blocked connections over all locks.
    pub max_waiters: usize,
    /// The most holders of a lock.
    pub max_holders: usize,
    /// The most sessions.
    pub max_sessions: usize,
    /// The age beyond which renewals and re-entry cannot carry a hold; 0: none.
    pub max_hold_ms: Millis,
    /// Whether a request that would close a circle of waiting owners is refused.
    pub deadlock_detection: bool,
    /// The most steps that the search for such a circle takes; beyond it the request waits.
    pub deadlock_max_steps: usize,
    /// Whether there are new grants and places.
    pub grants: bool,
    /// The steady time until which nothing is granted; 0: no quarantine. It begins with a start or promotion; where replicas confirm,
    /// with a start or full resynchronisation. A step of the wall clock neither ends nor prolongs it.
    pub quarantine_until: SteadyMs,
    /// How many entries the log keeps.
    pub log_max_len: usize,
    /// From how long on a hold or a wait is logged for that; none: never.
    pub log_slower_than_ms: Option<Millis>,
    /// How many replicas must have confirmed an answer that gives or prolongs a hold, before the server sends it; 0: none.
    pub replicas_needed: u32,
    /// How many replicas there are whose confirmation counts.
    pub replicas_counting: u32,
}

impl Default for Policy {
    /// Returns the defaults of the configuration table.
    fn default() -> Self {
        Policy {
            max_lease_ms: 2_592_000_000,
            max_restored_ms: 2_592_000_000,
            max_claim_ms: 600_000,
            claim_window_ms: 5_000,
            max_queue: 100_000,
            max_places: 1_000_000,
            max_waiters: 50_000,
            max_holders: 100_000,
            max_sessions: 10_000,
            max_hold_ms: 0,
            deadlock_detection: true,
            deadlock_max_steps: 1_000,
            grants: true,
            quarantine_until: SteadyMs(0),
            log_max_len: 1_024,
            log_slower_than_ms: Some(10_000),
            replicas_needed: 0,
            replicas_counting: 0,
        }
    }
}

impl Policy {
    /// Returns true if locks are granted to new holders at this time.
    pub fn granting(&self, now: Now) -> bool {
        self.grants && !self.quarantined(now)
    }

    /// Returns true if the quarantine lasts, or too few replicas are there to confirm a grant, which comes to the same.
    pub fn quarantined(&self, now: Now) -> bool {
        now.steady() < self.quarantine_until || self.replicas_counting < self.replicas_needed
    }

    /// Returns true if replicas must confirm what gives or prolongs a hold before the server sends it.
    pub fn confirms(&self) -> bool {
        self.replicas_needed > 0
    }

    /// Errors with `NoAck` if replicas must confirm what gives or prolongs a hold, and cannot now.
    pub fn check_confirmable(&self, now: Now) -> Result<(), Refusal> {
        if self.confirms() && self.quarantined(now) {
            Err(self.unconfirmable(now))
        } else {
            Ok(())
        }
    }

    /// Returns why replicas cannot confirm anything now.
    fn unconfirmable(&self, now: Now) -> Refusal {
        Refusal::NoAck(match self.quarantine_left(now) {
            0 => NoAck::TooFew {
                counting: self.replicas_counting,
                needed: self.replicas_needed,
            },
            left => NoAck::Quarantine(left),
        })
    }

    /// Returns why nothing is granted now.
    #[cold]
    pub fn withheld(&self, now: Now) -> Refusal {
        match (self.grants, self.confirms()) {
            (false, _) => Refusal::Draining,
            (true, true) => self.unconfirmable(now),
            (true, false) => Refusal::Quarantine(self.quarantine_left(now)),
        }
    }

    /// Returns how many milliseconds of the quarantine are left.
    pub fn quarantine_left(&self, now: Now) -> Millis {
        self.quarantine_until.since(now.steady())
    }

    /// Returns the deadline of a hold, no later than `max-hold-ms` after the grant. The token tells when that was. A first lease is
    /// not bounded: its program is not told of less than it asked for.
    pub fn bounded(&self, token: Token, deadline: WallMs) -> WallMs {
        match self.max_hold_ms {
            0 => deadline,
            age => deadline.min(token.granted().after(age)),
        }
    }

    /// Returns the deadline that a renewal gives to a hold that ends at `before`: `wanted`, or less where `max-hold-ms` bounds it. The
    /// bound alone moves no deadline to before `before`.
    pub fn renewed(&self, token: Token, before: WallMs, wanted: WallMs) -> WallMs {
        self.bounded(token, wanted).max(before.min(wanted))
    }
}
