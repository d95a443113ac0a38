//! Counts and times of the engine's decisions, in memory that does not grow.

mod lead;
mod times;
mod top;

pub use lead::ClockLead;
pub use times::Times;
pub use top::{Hot, Top};

use super::lock::End;
use super::types::{NameRef, Now, Token};
use crate::refusal::Refusal;

/// All counts and times. They begin at 0 with the server, and again by `DLOCK.STATS RESET`; `held` and
/// `clock_lead` are gauges.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Grants that were made at once.
    pub grants_immediate: u64,
    /// Grants to requests that had waited.
    pub grants_waited: u64,
    /// Re-entries of a holder.
    pub reentries: u64,
    /// Upgrades to a stricter limit.
    pub upgrades: u64,
    /// Requests that were answered null at once.
    pub refused: u64,
    /// Waits that ended by time-out.
    pub timeouts: u64,
    /// Renewals.
    pub renewals: u64,
    /// Those of them that the server made by itself.
    pub auto_renewals: u64,
    /// Holds released by their owners.
    pub released: u64,
    /// Holds whose lease ran out.
    pub expired: u64,
    /// Holds ended by force.
    pub forced: u64,
    /// Holds that ended with the connection that they were tied to.
    pub closed: u64,
    /// Holds that went with their key.
    pub removed: u64,
    /// Waits whose place a newer request of the same owner has taken.
    pub replaced: u64,
    /// Locks that the server evicted.
    pub evicted: u64,
    /// Requests that were refused, and waits that ended so, by reason.
    pub refusals: Refusals,
    /// Requests that wait because the search for a circle of waiting owners was cut off.
    pub deadlocks_deferred: u64,
    /// Steps of the wall clock.
    pub clock_steps: u64,
    /// How long those who were granted a lock had waited for it.
    pub waits: Times,
    /// How long holds lasted.
    pub holds: Times,
    /// How long answers waited until replicas had confirmed them.
    pub confirmations: Times,
    /// By how much this server's clock is ahead of its primary's.
    pub clock_lead: ClockLead,
    /// Answers that replicas did not confirm in time, or whose hold had ended by then.
    pub unconfirmed: u64,
    /// The locks that were waited for most.
    pub top: Top,
    /// Holds that were made here less those that were ended here. The caller adds those that come and go with values.
    pub held: i64,
}

/// Requests that were refused, and waits that ended so, by the error that they got. What is wrong with arguments is not
/// counted.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    /// The wait would have closed a circle.
    pub deadlock: u64,
    /// Nothing is granted after a start or promotion.
    pub quarantine: u64,
    /// The operator has switched grants off.
    pub drained: u64,
    /// One of the caps was reached.
    pub full: u64,
    /// The owner did not hold the lock, or not under that token.
    pub not_held: u64,
    /// CHECK or GUARD found the token dead.
    pub fenced: u64,
    /// The key held something else.
    pub wrong_type: u64,
    /// Replicas could not confirm it, or have not.
    pub no_ack: u64,
}

impl Refusals {
    /// Counts a request that was refused, or a wait that ended so.
    pub fn count(&mut self, error: &Refusal) {
        *match error {
            Refusal::At(error, _) => return self.count(error),
            Refusal::Deadlock(_) => &mut self.deadlock,
            Refusal::Quarantine(_) => &mut self.quarantine,
            Refusal::Draining => &mut self.drained,
            Refusal::Full(_) => &mut self.full,
            Refusal::NotHeld => &mut self.not_held,
            Refusal::Fenced => &mut self.fenced,
            Refusal::WrongType => &mut self.wrong_type,
            Refusal::NoAck(_) => &mut self.no_ack,
            _ => return,
        } += 1;
    }
}

impl Counters {
    /// Resets everything except the gauges.
    pub fn reset(&mut self) {
        *self = Counters {
            held: self.held,
            clock_lead: std::mem::take(&mut self.clock_lead),
            ..Counters::default()
        };
    }

    /// Counts the end of a hold.
    pub fn ended(&mut self, end: End, token: Token, now: Now) {
        self.held -= 1;
        self.gone(end, token, now);
    }

    /// Counts the end of a hold that `held` does not count, as it went with its value. The token tells when it was granted.
    pub fn gone(&mut self, end: End, token: Token, now: Now) {
        match end {
            End::Released => self.released += 1,
            End::Expired => self.expired += 1,
            End::Forced => self.forced += 1,
            End::Closed => self.closed += 1,
            End::Removed => self.removed += 1,
        }
        self.holds.record(now.us.saturating_sub(token.0));
    }

    /// Counts a wait that ended with a grant, and its microseconds.
    pub fn waited(&mut self, name: NameRef, us: u64) {
        self.waits.record(us);
        self.top.waited(name, us);
    }
}
