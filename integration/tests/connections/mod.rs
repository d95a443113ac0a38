//! What a hold or a wait has to do with the connection that asked for it.

mod auto;
mod blocked;
mod crowds;
mod keep;
mod leaving;
mod notify;
mod random;
mod sessions;
mod undelivered;
