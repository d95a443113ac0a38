//! What queues: places, the requests that wait at them, and what ends when. None of it is durable but the tickets, of which
//! the lock's value keeps the durable half.

mod deadlines;
mod place;
mod queues;
mod requests;
mod wait_queue;

pub(crate) use deadlines::{Deadlines, DueKey};
pub(crate) use place::Place;
pub(crate) use queues::WaitQueues;
pub(crate) use requests::{Part, Request, Requests, WaitsAt};
pub(crate) use wait_queue::{Departed, WaitQueue};

use std::num::NonZeroU32;

/// Names a lock that has a wait queue for as long as it has it. A lock's name is looked up once, where an event comes in;
/// from there on it goes by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    index: u32,
    // Tells apart the queues that have had this index one after the other. That it is never zero makes a request smaller.
    generation: NonZeroU32,
}
