//! One owner's place in a wait queue, and the request that waits at it.

use super::deadlines::DueKey;
use crate::lock::Change;
use crate::types::{Arrival, Millis, Now, RequestId, Share, SteadyMs};
use std::rc::Rc;

/// One owner's place in a queue. At most one request waits at it.
///
/// | ticket | waits there | it is | it goes |
/// |---|---|---|---|
/// | no | a request | a waiter | with the request |
/// | yes | a request | a ticket | with the request, unless it is kept for a claim window: then it becomes absent |
/// | yes | nobody | an absent ticket | when its window ends |
/// | no | nobody | – | only within a take-over |
#[derive(Debug, Clone)]
pub struct Place {
    /// Whose place it is.
    pub owner: Rc<[u8]>,
    /// How much is asked for. `WaitQueue::set_share` changes it, and counts.
    pub share: Share,
    /// Since when it is there: microseconds of the steady clock.
    pub since_us: u64,
    /// Whether it is a ticket. Kept apart, as most places are none, and there may be many places.
    pub ticket: Option<Box<Window>>,
    // The request that waits at it (0: nobody), with a bit that says whether that is one for many locks.
    request: u64,
}

/// The bit beside a request's number that says that it is one for many locks. No clock comes to numbers that have it.
const PART: u64 = 1 << 63;

/// How long a ticket is kept while nobody is there for it.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// For how long, from the end of a wait on; 0: not at all.
    pub claim: Millis,
    /// With nobody there, when it is dropped.
    pub until: SteadyMs,
    /// The due entry that looks after that. It may come earlier than `until`, and is set anew then: a ticket that is
    /// polled again and again moves no entry.
    pub due: Option<DueKey<SteadyMs>>,
}

/// No request has this number.
const NOBODY: u64 = 0;

// Neither lies across two lines of memory: who polls a ticket in a long queue waits for each line.
const _: () = assert!(std::mem::size_of::<Place>() <= 48 && std::mem::size_of::<Window>() == 32);

impl Place {
    /// A place where nobody waits yet.
    pub fn new(owner: Rc<[u8]>, share: Share, now: Now) -> Place {
        Place {
            owner,
            share,
            since_us: now.steady_us,
            ticket: None,
            request: NOBODY,
        }
    }

    /// A place that came with its lock's value: it is as old as its number says.
    pub fn brought(owner: Rc<[u8]>, share: Share, number: Arrival, now: Now) -> Place {
        let age = now.us.saturating_sub(number.0);
        Place {
            since_us: now.steady_us.saturating_sub(age),
            ..Place::new(owner, share, now)
        }
    }

    /// Makes it a ticket that is kept so long, until then while nobody is there.
    pub fn keep(&mut self, claim: Millis, until: SteadyMs, due: Option<DueKey<SteadyMs>>) {
        self.ticket = Some(Box::new(Window { claim, until, due }));
    }

    /// Has a request for this lock alone wait at it.
    pub fn occupy(&mut self, request: RequestId) {
        self.request = request.0;
    }

    /// Has a part of a request for many locks wait at it, which is granted only together with the others.
    pub fn occupy_with_part(&mut self, request: RequestId) {
        self.request = request.0 | PART;
    }

    /// Nobody waits at it any more.
    pub fn vacate(&mut self) {
        self.request = NOBODY;
    }

    /// For how many microseconds it has been there.
    pub fn waited_us(&self, now: Now) -> u64 {
        now.steady_us.saturating_sub(self.since_us)
    }

    /// How long it is kept while nobody is there for it; none if it is no ticket.
    pub fn claim(&self) -> Option<Millis> {
        self.ticket.as_deref().map(|window| window.claim)
    }

    /// Its ticket, to be written into the lock's value; none if it is no ticket.
    pub fn as_change(&self, number: Arrival) -> Option<Change<'_>> {
        Some(Change::Ticket {
            number,
            owner: &self.owner,
            share: self.share,
            claim: self.claim()?,
        })
    }

    /// Makes it a ticket, or one that is kept so long.
    pub fn set_claim(&mut self, claim: Millis) {
        self.ticket.get_or_insert_with(Box::default).claim = claim;
    }

    /// Returns true if nobody waits at it.
    pub fn is_absent(&self) -> bool {
        self.request == NOBODY
    }

    /// The number of the request that waits at it.
    pub fn request(&self) -> Option<RequestId> {
        (!self.is_absent()).then_some(RequestId(self.request & !PART))
    }

    /// Returns true if it is a part of a request for many locks that waits at it.
    pub fn is_part(&self) -> bool {
        self.request & PART != 0
    }
}
