//! What queues: places, the requests that wait at them, and what ends when. None of it is durable but the tickets, of which
//! the lock's value keeps the durable half.

pub mod blocking_holders;
pub mod deadlines;
pub mod place;
pub mod queues;
pub mod requests;
pub mod ties;
pub mod wait_queue;

/// Names a lock that has a wait queue for as long as it has it. A lock's name is looked up once, where an event comes in;
/// from there on it goes by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    index: u32,
    // Tells apart the queues that have had this index one after the other.
    generation: u32,
}
