//! What the engine puts out: who is to be told, in order. The caller works it off after each event.
//!
//! What happens at a key is not here but in its [`crate::Entry`]: the value that has changed, the effect that replicas read,
//! the events that observers are told of. There is one entry for each key that an event has opened; its buffers are reused,
//! and its key has a name already. So an uncontended pair of commands (two effects, two events) allocates nothing, where in a
//! list of all outputs each would need a name. One function of the caller works both off, in one order:
//!
//! 1. the entries: keys are written and replicated before anybody is told of it;
//! 2. [`Output::Wake`]: connections are answered;
//! 3. the entries' events, in order: the end of a hold is told before the next one's beginning;
//! 4. [`Output::Publish`]: whoever hears it may rely on all of that.

use crate::queue::Request;
use crate::refusal::Refusal;
use crate::types::{Grant, Name, RequestId};
use crate::undo::Undo;
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
    /// The lock's slot is served elsewhere now, or all locks are: this server decides no longer.
    Moved,
    /// It cannot be granted any more.
    Refused(Refusal),
}

/// The answer to a request whose connection is blocked.
#[derive(Debug)]
pub struct Wake {
    /// Which request.
    pub id: RequestId,
    /// What it is told.
    pub outcome: Outcome,
    /// How it is to be undone if the connection does not get it: lock by lock, where it is a grant.
    pub undo: Vec<Undo>,
}

/// What a request that waits by a channel is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which request.
    pub id: RequestId,
    /// The channel.
    pub channel: Rc<[u8]>,
    /// The lock.
    pub name: Name,
    /// Who asked for it.
    pub owner: Rc<[u8]>,
    /// What it is told.
    pub outcome: Outcome,
}

/// Something to be told.
#[derive(Debug)]
pub enum Output {
    /// A blocked connection is answered.
    Wake(Wake),
    /// A message is published.
    Publish(Message),
}

impl Output {
    fn id(&self) -> RequestId {
        match self {
            Output::Wake(wake) => wake.id,
            Output::Publish(message) => message.id,
        }
    }

    fn outcome_mut(&mut self) -> &mut Outcome {
        match self {
            Output::Wake(wake) => &mut wake.outcome,
            Output::Publish(message) => &mut message.outcome,
        }
    }

    fn into_outcome(self) -> Outcome {
        match self {
            Output::Wake(wake) => wake.outcome,
            Output::Publish(message) => message.outcome,
        }
    }
}

/// What is to be told, in the order in which it was decided.
#[derive(Debug, Default)]
pub struct Outbox {
    outputs: Vec<Output>,
}

impl Outbox {
    /// Returns true if nothing is to be told.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Returns how much is to be told.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Takes out all of it, in order.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// What is told, to be told otherwise.
    pub fn outcomes_mut(&mut self) -> impl Iterator<Item = &mut Outcome> {
        self.outputs.iter_mut().map(Output::outcome_mut)
    }

    /// Adds how a request's wait ended, for its connection or for the channel that it waits by; and how that is undone, if it
    /// is a grant. What was published to a channel stands.
    pub(crate) fn tell(
        &mut self,
        id: RequestId,
        request: Request,
        name: &Name,
        outcome: Outcome,
        undo: Vec<Undo>,
    ) {
        self.outputs.push(match request.channel {
            None => Output::Wake(Wake { id, outcome, undo }),
            Some(channel) => Output::Publish(Message {
                id,
                channel,
                name: name.clone(),
                owner: request.owner,
                outcome,
            }),
        });
    }

    /// Drops what was to be told to connections.
    pub(crate) fn forget_wakes(&mut self) {
        let published = |output: &Output| matches!(output, Output::Publish(_));
        self.outputs.retain(published);
    }

    /// Takes back what a request was told in the event in which it began to wait.
    pub(crate) fn take_back(&mut self, id: RequestId) -> Option<Outcome> {
        let at = self.outputs.iter().rposition(|output| output.id() == id)?;
        Some(self.outputs.remove(at).into_outcome())
    }
}
