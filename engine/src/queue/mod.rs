//! Wait queues: places, the requests that wait at them, and deadlines. Only tickets are durable, and the lock's value keeps that
//! half of them.

mod deadlines;
mod place;
mod queues;
mod requests;
mod wait_queue;

pub(crate) use deadlines::Deadlines;
pub(crate) use place::Place;
pub(crate) use queues::WaitQueues;
pub(crate) use requests::{Part, Request, Requests, WaitsAt};
pub(crate) use wait_queue::{Departed, WaitQueue};

use std::num::NonZeroU32;

/// Identifies a lock as long as it has a wait queue. An event looks up a lock's name once, and uses this from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    index: u32,
    // Tells apart the queues that have had this index one after the other. That it is never zero makes a request smaller.
    generation: NonZeroU32,
}
