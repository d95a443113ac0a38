//! The rule by which a request is granted now: the lock admits it (`Lock::admits`), it is its turn, and nothing else is in its way.
//! The same rule serves a new request, a place in a queue, and one of many locks.

use crate::keyspace::{Entry, Value};
use crate::lock::Hold;
use crate::queue::WaitQueue;
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{Arrival, Limit, Now, Share, ONE};

/// The kinds of requests for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Its owner holds the lock with its limit or a stricter one, and re-enters it.
    Reenter,
    /// Its owner holds the lock with a weaker limit: it waits for the other holders only, ahead of the queue.
    Upgrade,
    /// Its owner does not hold the lock. It stands at the owner's place, or without one behind all others.
    Queue(Option<Arrival>),
}

impl RequestKind {
    /// Returns the kind of a request of this owner, which has this place in the queue.
    pub(crate) fn of(
        entry: &Entry<impl Value>,
        place: Option<Arrival>,
        owner: &[u8],
        limit: Limit,
    ) -> RequestKind {
        match entry.hold(owner) {
            Some(hold) if hold.limit <= limit => RequestKind::Reenter,
            Some(_) => RequestKind::Upgrade,
            None => RequestKind::Queue(place),
        }
    }

    /// Returns the place that such a request waits at; none for one behind all others.
    pub(crate) fn place(self) -> Option<Arrival> {
        match self {
            RequestKind::Reenter => None,
            RequestKind::Upgrade => Some(Arrival::UPGRADE_SLOT),
            RequestKind::Queue(place) => place,
        }
    }

    /// Returns the kind of request that waits at this place.
    pub(crate) fn to(number: Arrival) -> RequestKind {
        match number {
            Arrival::UPGRADE_SLOT => RequestKind::Upgrade,
            number => RequestKind::Queue(Some(number)),
        }
    }
}

/// Whether a request may be granted now; if not, the first reason in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grantable {
    /// It may be granted.
    Now,
    /// Another waiter is before it, or it is not compatible with the holders.
    Blocked,
    /// The lock has as many holders as it may have.
    Full,
    /// Its slot is migrating away: the lock's next holder is found where it goes. Or the queue is not reconciled up to its place.
    Closed,
    /// The server grants nothing for now.
    Withheld,
}

impl Engine {
    /// Returns whether a request of this owner and this kind may be granted now.
    pub(super) fn grantable(
        &self,
        entry: &Entry<impl Value>,
        queue: &WaitQueue,
        now: Now,
        owner: &[u8],
        share: Share,
        kind: RequestKind,
    ) -> Grantable {
        if kind == RequestKind::Reenter {
            // A drained server still lets holders enter once more: they could not finish otherwise.
            return if self.policy.quarantined(now) {
                Grantable::Withheld
            } else {
                Grantable::Now
            };
        }
        let head = queue.head().map(|(number, _)| number);
        let first = match kind {
            RequestKind::Queue(place) => head.is_none() || head == place,
            _ => true,
        };
        if !first || !entry.value().admits(owner, share) {
            return Grantable::Blocked;
        }
        if kind != RequestKind::Upgrade && entry.holders() >= self.policy.max_holders {
            return Grantable::Full;
        }
        if queue.closed && !queue.is_empty() {
            return Grantable::Closed;
        }
        if let (Some(until), RequestKind::Queue(place)) = (queue.reconciled, kind) {
            // The value may have tickets before it that have no places yet.
            if place.is_none_or(|place| place > until) {
                return Grantable::Closed;
            }
        }
        if self.policy.granting(now) {
            Grantable::Now
        } else {
            Grantable::Withheld
        }
    }
}

/// Errors if a holder asks for more permits than it has, or, with several permits, for a stricter limit: no hold becomes that.
pub(in crate::rules) fn refuse_permits(
    entry: &Entry<impl Value>,
    owner: &[u8],
    Share { limit, permits }: Share,
) -> Result<(), Refusal> {
    let Some(hold) = entry.hold(owner) else {
        return Ok(());
    };
    match hold.limit <= limit {
        true if permits > hold.permits => Err(Refusal::MorePermits(hold.permits)),
        false if !upgrades(&hold, limit) => Err(Refusal::NotUpgraded(hold.permits)),
        _ => Ok(()),
    }
}

/// Returns true if an upgrade to this limit is possible.
pub(in crate::rules) fn upgrades(hold: &Hold, limit: Limit) -> bool {
    limit < hold.limit && hold.permits == ONE
}
