//! Tests of the engine and the commands alone: no server, and no clock but the tests' own.
//!
//! Neither crate depends on the module, which knows of a server.
//!
//! | file | contents |
//! |---|---|
//! | `scenarios` | the conversations in `tests/scenarios/*.txt`, word for word |
//! | `comparison` | the engine against a naive `model`, with random commands and times |
//! | `exploration` | the engine against the `model`, with every sequence of a small set of events |
//! | `simulation` | primary, replica, crash and promotion by a seed; `invariants` after each step |
//! | `deadlock` | the definition of a wait that can never end |
//! | `circles` | that the engine refuses those waits and no others, and the cost of the search |
//! | `faults` | a planted fault for each of these checks, which the check must reject |
//! | `invariants_broken` | that the engine's own assertions stop a test |
//! | `parsing` | that the words of every command are read as the table says |
//! | `arriving` | values that arrive at names with waiters |
//! | `bytes`, `arguments` | hostile stored values, effects and arguments |
//! | `hostile` | stored values, effects and arguments of any bytes, which `fuzz/` runs as well |
//! | `slots` | locks whose slot has left this node |
//! | `client`, `keys`, `server`, `world` | a caller; a keyspace; a server; a primary, its replica and their connections |
//! | `pair`, `generator`, `random`, `snapshot` | the engine together with the model; random commands; random numbers; what a world shows at one instant |
//! | `responder`, `settings` | the engine's side of a conversation, and the settings that it changes |
//! | `sessions` | sessions: the engine against a model of them, and programs that rely on them |
//! | `ties` | the ties in an engine, and that a command changes none at a key that it does not name |
//! | `unheard` | answers that replicas do not confirm |
//! | `hash_slots` | the hash slot of a key; a node's slots, and those that have left it |
//! | `counting` | counters, percentiles, the most contended locks |
//! | `masses` | events that concern all locks, settled in steps |
//! | `listing` | DLOCK.LIST: rows, scans, patterns |
//! | `reference` | the command table, and that the reference in `docs/` agrees with it |

// Tests may panic: that is how they fail.
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
mod generator;
mod hash_slots;
pub mod hostile;
mod invariants;
mod invariants_broken;
mod keys;
mod listing;
mod masses;
mod model;
mod pair;
mod parsing;
mod random;
mod reference;
mod responder;
mod scenarios;
mod server;
mod sessions;
mod settings;
mod simulation;
mod slots;
mod snapshot;
mod ties;
mod unheard;
mod world;

#[test]
fn the_table_has_every_file() {
    let source = include_str!("main.rs");
    let (table, code) = source.split_once("// Tests may panic").expect("the table");
    let modules = code.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let missing: Vec<&str> = modules
        .filter(|module| !table.contains(&format!("`{module}`")))
        .collect();
    assert!(missing.is_empty(), "the table lacks {missing:?}");
}
