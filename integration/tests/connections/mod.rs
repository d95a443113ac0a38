//! Holds and waits, and the connections that asked for them.

mod auto;
mod blocked;
mod crowds;
mod ephemeral;
mod keep;
mod leaving;
mod notify;
mod random;
pub(crate) mod sessions;
mod undelivered;
