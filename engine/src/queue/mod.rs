//! Wait queues: places, the requests that wait at them, and deadlines. Of all this only tickets are durable: the lock's value has
//! their numbers, owners, limits, permits and claims.

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

/// Identifies a lock as long as it has a wait queue; its next queue has another number. Code that has looked up a lock's name passes
/// this on, so that the name is hashed less often. It is never zero, which makes a request smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(NonZeroU64);
