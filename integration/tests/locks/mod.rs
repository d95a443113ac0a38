//! What clients ask of locks on a running server, and what becomes of a lock when its key does.

mod appearing;
mod basics;
mod conversations;
mod deadlocks;
mod leases;
mod many;
mod masses;
mod removal;
mod replaced;
mod sharing;
mod tickets;
mod waiting;
mod words;
