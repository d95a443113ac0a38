//! The rule of confirmations (`dlock.replicas`): whose acknowledgement counts and from when, how far the stream is confirmed, and
//! until when a server itself confirms nothing.
//!
//! ```text
//!   INFO, dlock.replicas, role, time ─► Links ──┐
//!                                               ├─► Standing, by the clauses of a Rule
//!   the steps of a schedule ─► the model ───────┘
//! ```
//!
//! The module runs [`Links`]. The model in `protocol/` searches with [`Standing`], in which everything is that a clause changes. So
//! what was searched is what runs. The reasons, and the cases of two owners without each clause, are in `docs/protocol.md`.
//!
//! | the replica | from when on it counts |
//! |---|---|
//! | one that has joined by a *partial* resynchronisation: it needed only the rest of the stream | at once: it has confirmed nothing that this server does not know |
//! | one that has joined by a *full* one | `dlock.quarantine-ms` later: what it confirmed elsewhere, and forgot, has ended by then |
//! | any that joins within that time after a full one, or the start of a primary, here or in the stream | `dlock.quarantine-ms` later |
//! | any replica, if `dlock.replicas` is 1 | at once: no other can have confirmed anything |
//!
//! The server does not say how a replica has joined. It counts the resynchronisations of either kind, and lists a replica that needs
//! everything for a while before it is `online`. A doubtful case counts as full.
//!
//! The rule is a value, and a planted fault is a value without one clause ([`Rule::without`]).
//!
//! With the server's own `min-replicas-to-write` the count of replicas is old after a stall of the process ([`Stalls`]).

#![forbid(unsafe_code)]

mod links;
mod report;
mod rule;
mod stall;
mod standing;

pub use links::{Fields, Links, Status};
pub use report::Line;
pub use rule::Rule;
pub use stall::Stalls;
pub use standing::{Gate, Joined, Standing, Terms, Time};
