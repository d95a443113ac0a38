//! The ties between holds and connections: AUTO and EPHEMERAL.

use super::Model;
use dlock_engine::Millis;

/// A tie between a hold and a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tie {
    pub client: u64,
    /// Whether the hold ends with the connection.
    pub ephemeral: bool,
    pub auto: Option<Auto>,
}

/// How the server renews a hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Auto {
    /// The lease that each renewal sets.
    pub lease: Millis,
    /// From when on, and for how long, the server renews; none without bound.
    pub bound: Option<(Millis, Millis)>,
    pub next: Next,
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// When a quarter to a third of a lease (the second) has passed since an instant (the first): the engine chooses.
    Since(Millis, Millis),
    At(Millis),
    /// Never: its time has passed, or the hold is too old.
    Stopped,
}

impl Auto {
    pub(super) fn renews(&self) -> bool {
        self.next != Next::Stopped
    }
}

impl Model {
    /// Returns the renewal that AUTO asks for, from now on.
    pub(super) fn auto(&self, lease: Millis, ms: Millis) -> Auto {
        Auto {
            lease,
            bound: (ms > 0).then_some((self.steady, ms)),
            next: Next::Since(self.steady, lease),
        }
    }

    /// Notes that a connection begins to wait, or has waited.
    pub(super) fn note_waiting(&mut self, client: u64) {
        self.waited.insert(client, self.steady);
    }

    /// Returns true if the time for which the server renews a hold has passed.
    fn is_over(&self, tie: &Tie) -> bool {
        let Some((since, ms)) = tie.auto.and_then(|auto| auto.bound) else {
            return false;
        };
        let mut blocked = self.waits.iter().map(|wait| wait.asked.client);
        let waited = self.waited.get(&tie.client).copied().unwrap_or_default();
        !blocked.any(|client| client == tie.client) && since.max(waited) + ms <= self.steady
    }

    /// Returns when the next renewal is due, on the steady clock; now if the engine is yet to choose.
    pub fn next_renewal(&self) -> Option<Millis> {
        let holds = self.locks.values().flat_map(|lock| &lock.holds);
        let nexts = holds.filter_map(|hold| match hold.tie?.auto?.next {
            Next::At(at) => Some(at),
            Next::Since(..) => Some(self.steady),
            Next::Stopped => None,
        });
        nexts.min()
    }

    /// Returns true if the server may renew any hold in the future.
    pub fn may_renew(&self) -> bool {
        let asked = self.waits.iter().any(|wait| wait.asked.auto.is_some());
        asked || self.next_renewal().is_some()
    }

    /// Renews the holds whose renewal is due.
    pub(super) fn renew_by_itself(&mut self) {
        let steady = self.steady;
        let due = |auto: Auto| matches!(auto.next, Next::At(at) if at <= steady);
        let mut locks = std::mem::take(&mut self.locks);
        for hold in locks.values_mut().flat_map(|lock| &mut lock.holds) {
            let Some(tie) = hold.tie.filter(|tie| tie.auto.is_some_and(due)) else {
                continue;
            };
            // A hold that has ended before is not renewed.
            if hold.deadline < self.now {
                continue;
            }
            let over = self.is_over(&tie);
            let Some(auto) = hold.tie.as_mut().and_then(|tie| tie.auto.as_mut()) else {
                continue;
            };
            if over {
                auto.next = Next::Stopped;
                continue;
            }
            let lease = auto.lease.min(self.policy.max_lease_ms);
            let wanted = self.now + lease;
            let bounded = self.bounded(hold.since, wanted);
            hold.deadline = hold.deadline.max(bounded);
            auto.next = match bounded < wanted {
                true => Next::Stopped,
                false => Next::Since(self.steady, lease),
            };
        }
        self.locks = locks;
    }
}
