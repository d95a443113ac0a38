//! Wait queues: places, the requests that wait at them, and deadlines. Only tickets are durable, and the lock's value keeps that
//! half of them.

mod ages;
mod deadlines;
mod place;
mod queues;
mod requests;
mod wait_queue;

pub(crate) use deadlines::{Deadlines, DueKey};
pub(crate) use place::Place;
pub(crate) use queues::WaitQueues;
pub(crate) use requests::{actor, Part, Request, Requests, WaitsAt};
pub use wait_queue::Waiting;
pub(crate) use wait_queue::{Departed, WaitQueue};

use std::num::NonZeroU64;

/// Identifies a lock as long as it has a wait queue, and no other lock ever. An event looks up a lock's name once, and uses this
/// from there on. That it is never zero makes a request smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(NonZeroU64);
