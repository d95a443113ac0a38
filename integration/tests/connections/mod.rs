//! Holds and waits, and the connections that asked for them.

mod auto;
mod blocked;
mod crowds;
mod ephemeral;
mod leaving;
mod random;
pub(crate) mod sessions;
mod undelivered;
