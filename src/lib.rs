//! dlock: a module that makes a Redis or Valkey server a lock server.
//!
//! ```text
//!  ffi::callbacks                       run                                  tell
//!
//!  a command ─────► command ─┐   ┌─ enter::run ──────────────┐   ┌─► keys written, effects replicated
//!                            ├──►│ one state, one clock,     ├───┼─► timer armed
//!  the timer ─────► event ───┘   │ the inbox, engine decides │   ├─► waiting connections answered
//!                                └───────────────▲───────────┘   └─► observers told
//!  server events,                                │
//!  the data type ─► callbacks (only note) ─► inbox
//! ```
//!
//! The rules of this crate:
//!
//! 1. Everything that may change a lock comes in by `run::enter::run`, and goes one way: args → engine → effects → perform → reply.
//! 2. Durable state changes by `dlock_engine::change::Change` only, on the primary, on replicas and from the AOF alike.
//! 3. The engine gets the time as an argument, calls nothing but its keyspace, and is a crate that knows of no server (`engine/`).
//! 4. Nothing is decided on a replica, and nothing by a replica's or a client's clock.
//! 5. Nothing is propagated outside of a command unless the server would accept a write (`node::gate`).
//! 6. A callback of the server changes no lock: it notes what has happened (`inbox`), and the module's next event acts. The moment
//!    before the event loop sleeps is such an event (`run::confirm`).
//! 7. Answers to connections and notifications of observers can call the module back. So they come last, with no state borrowed.
//! 8. The module answers a request once.
//! 9. A panic stops at the callback in which it happens (`ffi::panic`), and nothing is decided after it. Broken
//!    invariants are reported by `broken!`.
//! 10. All `unsafe` is in `ffi` and in `run::keyspace`, each block with its reason. A context is made once, where a callback comes
//!     in (`ffi::callbacks`), and code that has one may use it. Engine and commands forbid `unsafe`.
//!
//! | crate | what it is |
//! |---|---|
//! | `engine/` | [`dlock_engine`], the lock: holders, queues, deadlines, tokens; pure |
//! | `confirm/` | [`dlock_confirm`], the rule of confirmations: whose acknowledgement counts, and from when; pure, and searched by the model |
//! | `commands/` | [`dlock_commands`]: the command table, and from words to engine calls to replies; pure. A crate of its own since this one cannot be linked into tests: its allocator is the server's |
//!
//! This crate is the only part that knows of a server. A room uses those above it, a file in it none that uses it:
//!
//! | room | contents | look here for |
//! |---|---|---|
//! | `version` | the module's version, as a text and as a number | what `MODULE LIST` shows |
//! | `ffi` | all raw calls behind safe types: `Ctx`, `Str`, `Answer`, `User`; `callbacks`, where callbacks come in; the log, caught panics | a function of the server's that the module does not use yet |
//! | `servers` | what exists for one server version only, with the reason and the test that notices its end | every "this version does …" |
//! | `node` | the server's state: role and whether it would accept a write (`gate`), clock, timer, slots, the number of locks (`census`) | why nothing is decided |
//! | `settings` | what the operator configures (`config`), and the engine's policy that follows from it | a new setting |
//! | `replicas` | the connected replicas, for the rule of confirmations ([`dlock_confirm`]) | why an answer waits |
//! | `departed` | where connections came from that have ended | whom the log names |
//! | `inbox` | notices of callbacks, until the module's next event reads them | what RENAME, MOVE, DEL and a flush leave |
//! | `tell` | all output: replies, effects for replicas and the AOF (`replicate`), connections that wait (`blocking`), answers that wait for replicas (`confirm`), observers | how an answer reaches a waiter |
//! | `callbacks` | callbacks of the server: `data_type`, `events`; each only notes, and returns | what the server reports |
//! | `run` | the one way in: `state`, `enter`, `command`, `event`, `notices` (inbox → engine), `confirm` (confirmations of replicas), `keyspace`, `load` | the order of everything |
//!
//! CONTRIBUTING.md says where a lease ends, where RENAME is handled, where a confirmed answer waits, and which files a new option of
//! a command touches.

#![deny(unsafe_code)]
// The two functions that the macro below makes have no documentation, and nothing else can be reached from outside.
#![allow(missing_docs)]

mod callbacks;
mod departed;
#[allow(unsafe_code)]
mod ffi;
mod inbox;
mod node;
mod replicas;
mod run;
mod servers;
mod settings;
mod tell;
mod version;

use run::load::init;

redis_module::redis_module! {
    name: "dlock",
    version: version::NUMBER,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    // The type comes last (`run::load`): a module that has one cannot be unloaded.
    data_types: [],
    init: init,
}
