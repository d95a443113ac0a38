//! One owner's place in a wait queue, and the request that waits at it.

use super::deadlines::DueKey;
use crate::lock::Change;
use crate::types::{Arrival, Millis, Now, RequestId, Share, SteadyMs};
use std::num::NonZeroU64;
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
    /// When it was made: microseconds of the steady clock.
    pub since_us: u64,
    /// The claim window of a ticket. Boxed, since most places have none, and there may be many places.
    pub ticket: Option<Box<Window>>,
    // The request that waits at it. That it is never zero makes a place smaller.
    request: Option<NonZeroU64>,
}

/// The claim window of a ticket: how long it is kept while no connection waits on it.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Its length, from the end of a wait on; 0: the ticket is not kept.
    pub claim: Millis,
    /// When the ticket is dropped if nobody waits on it by then.
    pub until: SteadyMs,
    /// The due entry that looks after that. It may come earlier than `until`, and is set again then: a ticket that is
    /// polled again and again moves no entry.
    pub due: Option<DueKey<SteadyMs>>,
}

// Neither spans two cache lines: a poll of a ticket in a long queue waits for each line.
const _: () = assert!(std::mem::size_of::<Place>() <= 48 && std::mem::size_of::<Window>() == 32);

impl Place {
    /// Makes a place where nobody waits yet.
    pub fn new(owner: Rc<[u8]>, share: Share, now: Now) -> Place {
        Place {
            owner,
            share,
            since_us: now.steady_us,
            ticket: None,
            request: None,
        }
    }

    /// Makes a place for a ticket that came with its lock's value: it is as old as its number says.
    pub fn brought(owner: Rc<[u8]>, share: Share, number: Arrival, now: Now) -> Place {
        let age = now.us.saturating_sub(number.0);
        Place {
            since_us: now.steady_us.saturating_sub(age),
            ..Place::new(owner, share, now)
        }
    }

    /// Makes it an absent ticket, with this window.
    pub fn keep(&mut self, claim: Millis, until: SteadyMs, due: Option<DueKey<SteadyMs>>) {
        self.ticket = Some(Box::new(Window { claim, until, due }));
    }

    /// Puts a request at it.
    pub fn occupy(&mut self, request: RequestId) {
        self.request = NonZeroU64::new(request.0);
    }

    /// Notes that nobody waits at it any longer.
    pub fn vacate(&mut self) {
        self.request = None;
    }

    /// Returns for how many microseconds it has existed.
    pub fn waited_us(&self, now: Now) -> u64 {
        now.steady_us.saturating_sub(self.since_us)
    }

    /// Returns its claim window's length; none if it is not a ticket.
    pub fn claim(&self) -> Option<Millis> {
        self.ticket.as_deref().map(|window| window.claim)
    }

    /// Returns the change that writes it into the lock's value; none if it is not a ticket.
    pub fn as_change(&self, number: Arrival) -> Option<Change<'_>> {
        Some(Change::Ticket {
            number,
            owner: &self.owner,
            share: self.share,
            claim: self.claim()?,
        })
    }

    /// Makes it a ticket with a claim window of this length.
    pub fn set_claim(&mut self, claim: Millis) {
        self.ticket.get_or_insert_with(Box::default).claim = claim;
    }

    /// Returns true if nobody waits at it.
    pub fn is_absent(&self) -> bool {
        self.request.is_none()
    }

    /// Returns the request that waits at it.
    pub fn request(&self) -> Option<RequestId> {
        self.request.map(|id| RequestId(id.get()))
    }
}
