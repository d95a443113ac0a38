//! The engine's outputs: answers, in order. The caller performs them after each event.
//!
//! What happens at a key is not here but in its [`crate::Entry`]: the value that has changed, the effect that replicas read,
//! the events for observers. There is one entry for each key that an event has opened; its buffers are reused,
//! and its key has a name already. So an uncontended pair of commands (two effects, two events) allocates nothing, where in a
//! list of all outputs each would need a name. One function of the caller performs both, in one order:
//!
//! 1. the entries: keys are written and replicated before anybody learns of that;
//! 2. outputs for connections: they are answered;
//! 3. the entries' events, in order: the end of a hold comes before the beginning of the next one.

use crate::holds::sessions::NewsRow;
use crate::holds::HoldId;
use crate::queue::Place;
use crate::refusal::Refusal;
use crate::types::{
    Arrival, Grant, HoldRef, Millis, Name, RequestId, SessionNo, SteadyMs, Token, WallMs,
};
use std::rc::Rc;

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lock was granted.
    Granted(Grant),
    /// All of the locks were granted, in the order of the request.
    GrantedAll(Vec<Grant>),
    /// Time is up.
    TimedOut,
    /// The place was cancelled.
    Cancelled,
    /// A newer request of the same owner has taken the place.
    Replaced,
    /// The session that asked has ended, or waits no longer.
    Gone,
    /// In a session: the lock's slot has moved, or replicas have not confirmed the grant. Its program asks again.
    Moved,
    /// It can no longer be granted.
    Refused(Refusal),
    /// A hold is renewed, for this many milliseconds from then on; in a session, it has this id.
    Renewed(Millis, Option<u64>),
    /// The server has renewed holds of sessions: nobody waits for that, but their programs count on it once it is confirmed.
    Prolonged,
    /// The reply to a SESSION command.
    News(Box<News>),
}

/// The reply to a SESSION command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The session's id; 0 if there is none.
    pub id: u64,
    /// The last number of a row.
    pub last: u64,
    /// The earliest end of a lease among all holds of the session; none if it has none.
    pub first_end: Option<WallMs>,
    /// The rows that have not been seen.
    pub rows: Vec<NewsRow>,
    /// When the command arrived: every duration of the reply counts from then.
    pub arrived: SteadyMs,
}

/// A hold that an answer gives or prolongs.
#[derive(Debug, Clone)]
pub struct Promise {
    /// The lock.
    pub name: Name,
    /// The owner of the hold.
    pub owner: Rc<[u8]>,
    /// The token of the hold.
    pub token: Token,
    /// When its lease ends.
    pub end: WallMs,
    /// Whether the hold is new.
    pub is_new: bool,
    /// The session that learns of it by a row.
    pub session: Option<SessionNo>,
    /// The ticket with a `CLAIM` that a new hold has used, and its number: the ticket stands again if the server revokes the hold.
    pub ticket: Option<(Arrival, Box<Place>)>,
}

impl Promise {
    /// Returns the hold.
    pub(crate) fn hold(&self) -> HoldId {
        let (name, owner) = (self.name.as_ref(), &*self.owner);
        HoldId::new(HoldRef { name, owner }, self.token)
    }
}

/// The part of an answer that replicas confirm.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// The holds that it gives or prolongs.
    pub promises: Vec<Promise>,
    /// Until when its request would wait; none: for ever.
    pub until: Option<SteadyMs>,
    /// Whether it waits no longer.
    pub confirmed: bool,
}

impl Pending {
    /// Returns what is to be confirmed of an answer with these promises, whose request would wait until then.
    pub(crate) fn new(promises: Vec<Promise>, until: Option<SteadyMs>) -> Pending {
        Pending {
            promises,
            until,
            confirmed: false,
        }
    }
}

impl Outcome {
    /// Returns true if it gives or prolongs a hold: replicas are to confirm it, where the policy says so.
    pub fn promises(&self) -> bool {
        matches!(
            self,
            Outcome::Granted(_)
                | Outcome::GrantedAll(_)
                | Outcome::Renewed(..)
                | Outcome::Prolonged
        )
    }
}

/// The answer to a request that waits.
#[derive(Debug, Clone)]
pub struct Output {
    /// Which request.
    pub id: RequestId,
    /// The outcome.
    pub outcome: Outcome,
    /// The holds that the server revokes if the connection does not get the answer, and what its confirmation needs.
    pub pending: Pending,
    /// Who gets it.
    pub to: Receiver,
}

/// Who gets an outcome.
#[derive(Debug, Clone)]
pub enum Receiver {
    /// The connection that is blocked.
    Connection,
    /// A session, once replicas have confirmed it: what they need not confirm is in its rows already.
    Session(SessionNo),
    /// Nobody: it is only confirmed.
    Nobody,
}

impl Output {
    /// Returns how the request of a blocked connection ended.
    pub(crate) fn new(id: RequestId, outcome: Outcome, pending: Pending) -> Output {
        Output {
            id,
            outcome,
            pending,
            to: Receiver::Connection,
        }
    }

    /// Returns true if replicas are to confirm it first, where they are to confirm anything.
    pub fn waits_for_replicas(&self) -> bool {
        self.outcome.promises() && !self.pending.confirmed
    }
}
