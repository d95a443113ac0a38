//! Clients' requests for locks on a running server.

mod basics;
mod conversations;
mod deadlocks;
mod leases;
mod many;
mod masses;
mod sharing;
mod tickets;
mod waiting;
mod words;
