//! Locks that somebody waits for: how soon the next one has it, and what a queue costs.

pub(crate) mod deadlock;
pub(crate) mod expiry;
pub(crate) mod fair;
pub(crate) mod handover;
pub(crate) mod lapse;
pub(crate) mod mass;
pub(crate) mod notice;
pub(crate) mod session;
pub(crate) mod ticket;
