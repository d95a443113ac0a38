//! The rule of confirmations, by what a server would show in INFO.
//!
//! | module | contents |
//! |---|---|
//! | `node` | a server as INFO shows it, and what the rule makes of that |
//! | `clauses` | each clause: what holds with it, and fails without it |
//! | `reading` | what is read in INFO: kinds of resynchronisation, reconnections, reset counters |
//! | `refines` | the same against the rule that knows how each has joined, by random events |
//! | `stalls` | stalls of the process, with `min-replicas-to-write` |
//! | `warnings` | what the log says, and how often |

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

mod clauses;
mod node;
mod reading;
mod refines;
mod stalls;
mod warnings;
