//! One owner's place in a wait queue, and the request that waits at it.

use super::deadlines::DueKey;
use crate::engine::types::{ClientId, Limit, Millis, Now, RequestId, SteadyMs};
use std::num::NonZeroU32;
use std::rc::Rc;

/// One owner's place in a queue. At most one request waits at it.
///
/// | ticket | occupant | it is | it goes |
/// |---|---|---|---|
/// | no | a request | a waiter | with the request |
/// | yes | a request | a ticket | with the request, unless it is kept for a claim window: then it becomes absent |
/// | yes | absent | an absent ticket | when its window ends |
/// | no | absent | – | only within a take-over |
#[derive(Debug)]
pub struct Place {
    /// Whose place it is.
    pub owner: Rc<[u8]>,
    /// What is asked for.
    pub limit: Limit,
    /// Since when it is there: microseconds of the steady clock.
    pub since_us: u64,
    /// Whether it is a ticket. Kept apart, as most places are none, and there may be many places.
    pub ticket: Option<Box<Window>>,
    /// Who waits at it.
    pub occupant: Occupant,
}

/// Who waits at a place.
#[derive(Debug)]
pub enum Occupant {
    /// Nobody.
    Absent,
    /// A request for this lock.
    One(Box<Request>),
    /// A part of a request for many locks: it is granted only together with the others.
    Part(RequestId),
}

/// A request for one lock that waits.
#[derive(Debug)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The connection that asked.
    pub client: ClientId,
    /// The lease it asks for, from the grant on.
    pub lease: Millis,
    /// `HOLDS n`: make the hold count at least n rather than one more.
    pub holds: Option<NonZeroU32>,
    /// When its time is up; none for a wait without bound.
    pub until: Option<DueKey<SteadyMs>>,
    /// Whether the hold is to end with the connection.
    pub session: bool,
    /// The channel that is told of the outcome; none for a blocked connection.
    pub channel: Option<Rc<[u8]>>,
}

/// How long a ticket is kept while nobody is there for it.
#[derive(Debug, Default)]
pub struct Window {
    /// For how long, from the end of a wait on; 0: not at all.
    pub claim: Millis,
    /// With nobody there, when it is dropped.
    pub until: SteadyMs,
    /// The due entry that looks after that. It may come earlier than `until`, and is set anew then: a ticket that is
    /// polled again and again moves no entry.
    pub due: Option<DueKey<SteadyMs>>,
}

// Neither lies across two lines of memory: who polls a ticket in a long queue waits for each line.
const _: () = assert!(std::mem::size_of::<Place>() <= 64 && std::mem::size_of::<Window>() == 32);

impl Place {
    /// A place where nobody waits yet.
    pub fn new(owner: Rc<[u8]>, limit: Limit, now: Now) -> Place {
        Place {
            owner,
            limit,
            since_us: now.steady_us,
            ticket: None,
            occupant: Occupant::Absent,
        }
    }

    /// For how many microseconds it has been there.
    pub fn waited_us(&self, now: Now) -> u64 {
        now.steady_us.saturating_sub(self.since_us)
    }

    /// How long it is kept while nobody is there for it; none if it is no ticket.
    pub fn claim(&self) -> Option<Millis> {
        self.ticket.as_deref().map(|window| window.claim)
    }

    /// Makes it a ticket, or one that is kept so long.
    pub fn set_claim(&mut self, claim: Millis) {
        self.ticket.get_or_insert_with(Box::default).claim = claim;
    }

    /// Whether nobody waits at it.
    pub fn is_absent(&self) -> bool {
        matches!(self.occupant, Occupant::Absent)
    }

    /// The number of the request that waits at it.
    pub fn request(&self) -> Option<RequestId> {
        match &self.occupant {
            Occupant::Absent => None,
            Occupant::One(request) => Some(request.id),
            Occupant::Part(id) => Some(*id),
        }
    }

    /// The request for one lock that waits at it.
    pub fn one(&self) -> Option<&Request> {
        match &self.occupant {
            Occupant::One(request) => Some(request),
            _ => None,
        }
    }

    /// Whether it is a part of a request for many locks that waits at it.
    pub fn is_part(&self) -> bool {
        matches!(self.occupant, Occupant::Part(_))
    }
}
