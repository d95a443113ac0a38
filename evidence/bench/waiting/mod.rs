//! Locks with waiters: the delay of the next one, and the cost of a queue.

pub(crate) mod deadlock;
pub(crate) mod ephemeral;
pub(crate) mod expiry;
pub(crate) mod fair;
pub(crate) mod handover;
pub(crate) mod lapse;
pub(crate) mod mass;
pub(crate) mod programs;
pub(crate) mod session;
pub(crate) mod ticket;
