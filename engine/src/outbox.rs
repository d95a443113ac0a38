//! What the engine puts out: who is to be told, in order. The caller works it off after each event.
//!
//! What happens at a key is not here but in its [`crate::Entry`]: the value that has changed, the effect that replicas read,
//! the events for observers. There is one entry for each key that an event has opened; its buffers are reused,
//! and its key has a name already. So an uncontended pair of commands (two effects, two events) allocates nothing, where in a
//! list of all outputs each would need a name. One function of the caller works both off, in one order:
//!
//! 1. the entries: keys are written and replicated before any message about them;
//! 2. outputs for connections: they are answered;
//! 3. the entries' events, in order: the end of a hold comes before the beginning of the next one;
//! 4. outputs with a message, which are published: whoever hears one may rely on all of that.

use crate::holds::KeepReply;
use crate::queue::Place;
use crate::refusal::Refusal;
use crate::types::{Arrival, ClientId, Grant, Millis, Name, RequestId, SteadyMs, Token, WallMs};
use std::rc::Rc;

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is the owner's.
    Granted(Grant),
    /// All of the locks are, in the order of the request.
    GrantedAll(Vec<Grant>),
    /// Time is up.
    TimedOut,
    /// The place was cancelled.
    Cancelled,
    /// A newer request of the same owner has taken the place.
    Replaced,
    /// The connection that asked has ended.
    Gone,
    /// The lock's slot is served elsewhere now, or all locks are: this server decides no longer. By a channel also: another value
    /// has come to the name, with a hold or a ticket of the owner.
    Moved,
    /// It cannot be granted any more.
    Refused(Refusal),
    /// A hold is renewed, for this many milliseconds from then on.
    Renewed(Millis),
    /// A sign of life was taken, of this connection; when the first lease ends of those that the server renews, as it was then.
    Keeps {
        /// The connection.
        client: ClientId,
        /// None if the server renews nothing for it.
        first_end: Option<WallMs>,
    },
    /// What the sign of life is answered.
    Kept(KeepReply),
}

/// A hold that an answer gives or prolongs.
#[derive(Debug, Clone)]
pub struct Promise {
    /// The lock.
    pub name: Name,
    /// Whose hold it is.
    pub owner: Rc<[u8]>,
    /// Under which token.
    pub token: Token,
    /// The ticket that a new hold has used, and its number, if its owner had it by `CLAIM`: it stands again if the hold is given
    /// back.
    pub ticket: Option<(Arrival, Box<Place>)>,
}

/// What an answer promises, and what it waits for that replicas are to confirm.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// The holds that it gives or prolongs.
    pub promises: Vec<Promise>,
    /// How long its request would wait for it; none: for ever.
    pub until: Option<SteadyMs>,
    /// It waits no longer.
    pub confirmed: bool,
}

impl Pending {
    /// What is to be confirmed of an answer with these promises, whose request would wait until then.
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
                | Outcome::Renewed(_)
                | Outcome::Keeps { .. }
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
    /// What is given back if the connection does not get it, and what its confirmation needs. What is published to a channel
    /// stands.
    pub pending: Pending,
    /// How it is published; none for a connection that is blocked.
    pub message: Option<Message>,
}

/// What the message for a request that waits by a channel needs beside the outcome.
#[derive(Debug, Clone)]
pub struct Message {
    /// The channel.
    pub channel: Rc<[u8]>,
    /// The lock.
    pub name: Name,
    /// Who asked for it.
    pub owner: Rc<[u8]>,
}

impl Output {
    /// Returns how a request ended, for its connection or for the channel that it waits by.
    pub(crate) fn new(
        id: RequestId,
        channel: Option<Rc<[u8]>>,
        owner: Rc<[u8]>,
        name: &Name,
        outcome: Outcome,
        pending: Pending,
    ) -> Output {
        let message = channel.map(|channel| Message {
            channel,
            name: name.clone(),
            owner,
        });
        Output {
            id,
            outcome,
            pending,
            message,
        }
    }

    /// Returns true if replicas are to confirm it first, where they are to confirm anything.
    pub fn waits_for_replicas(&self) -> bool {
        self.outcome.promises() && !self.pending.confirmed
    }
}
