//! The engine and the commands alone: no server, no clock but the tests' own.
//!
//! Neither crate depends on the one that knows of a server.
//!
//! | file | what it shows |
//! |---|---|
//! | `scenarios` | conversations in `tests/scenarios/*.txt`, word for word |
//! | `comparison` | the engine against a naive `model`, with random commands and times |
//! | `exploration` | the same with every sequence of a few things that can happen |
//! | `simulation` | primary, replica, crash and promotion by a seed; `invariants` after each step |
//! | `deadlock` | which waits could never end, by definition |
//! | `circles` | that the engine refuses those waits and no others, and what the search for them costs |
//! | `faults` | that each of these checks rejects what it is there for |
//! | `invariants_broken` | that the engine's own assertions stop a test |
//! | `parsing` | every command's words are read as the table says |
//! | `arriving` | values that come to names where somebody waits |
//! | `bytes`, `arguments` | hostile stored values, effects and words |
//! | `hostile` | the same, of any bytes: what `fuzz/` runs, too |
//! | `slots` | locks whose slot has left this node |
//! | `hash_slots` | which slot a key is in |
//! | `counting` | numbers, percentiles, the most contended locks |
//! | `masses` | what concerns all locks at once, in steps |
//! | `listing` | DLOCK.LIST: rows, scans, patterns |
//! | `reference` | the command table, and that the reference in `docs/` agrees with it |

// A test stops where something is not as it should be.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

use dlock_conversations::{script, transcript};

mod arguments;
mod arriving;
mod bytes;
mod circles;
mod client;
mod comparison;
mod counting;
mod deadlock;
mod exploration;
mod faults;
mod hash_slots;
pub mod hostile;
mod invariants;
mod invariants_broken;
mod keys;
mod life;
mod listing;
mod masses;
mod model;
mod pair;
mod parsing;
mod picture;
mod random;
mod reference;
mod scenarios;
mod server;
mod settings;
mod sign_of_life;
mod simulation;
mod slots;
mod speech;
mod unheard;
mod wishes;
mod world;
