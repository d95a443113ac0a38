//! dlock: a module that makes a Redis or Valkey server a lock server.
//!
//! ```text
//!  client ──► run::command ─┐                       ┌─► keys written, effects replicated
//!  timer  ──► run::event   ─┼─► run::run ─► engine ─┼─► waiting connections answered
//!  inbox  ──► (callbacks    ┘   one state,  decides └─► observers told, timer armed
//!             only note)        one clock
//! ```
//!
//! What holds throughout:
//!
//! 1. What may change a lock comes in by `run::run`, and goes one way: args → engine → effects → perform → reply.
//! 2. Durable state moves by `dlock_engine::change::Change` only, on the primary, on replicas and from the AOF alike.
//! 3. The engine is told the time, calls nothing but its keyspace, and is a crate that knows of no server (`engine/`).
//! 4. Nothing is decided on a replica, and nothing by a replica's or a client's clock.
//! 5. Nothing is propagated outside of a command unless the server would accept a write (`node::gate`).
//! 6. A callback of the server changes no lock: it notes what has happened (`node::inbox`), and the module's next event acts.
//! 7. What may run more of the module than such a callback comes last: connections are answered, and observers told, with no
//!    state borrowed.
//! 8. The module answers a request once.
//! 9. A panic stops at the callback in which it happens (`ffi::panic`), and nothing is decided after it.
//! 10. All `unsafe` is in `ffi` and in `run::keyspace`, each block with its reason. A context is made once, where a callback comes
//!     in (`ffi::doors`), and whoever has one may use it. Engine and commands forbid `unsafe`.
//!
//! | module | what it is |
//! |---|---|
//! | `engine/` | the crate [`dlock_engine`], the lock: holders, queues, deadlines, tokens; pure |
//! | `commands/` | the crate [`dlock_commands`]: the command table, and from words to engine calls to replies; pure |
//!
//! The rooms of this crate, the only part that knows of a server. A room uses those above it:
//!
//! | room | who lives there |
//! |---|---|
//! | `ffi` | the raw calls of the server, its log, where a panic stops |
//! | `servers` | what exists for one server version only |
//! | `node` | what this server is and has noted: role, clock, slots, settings, timer, inbox |
//! | `tell` | what the outside is told: replies, replicas and the AOF, connections that wait, observers |
//! | `callbacks` | what the server calls: the data type, events; each only notes, and returns |
//! | `run` | the one way in: state, commands, the module's own event, the keyspace |

#![deny(unsafe_code)]
// The two functions that the macro below makes have no documentation, and nothing else can be reached from outside.
#![allow(missing_docs)]

mod callbacks;
#[allow(unsafe_code)]
mod ffi;
mod node;
mod run;
mod servers;
mod tell;

use run::load::init;

redis_module::redis_module! {
    name: "dlock",
    // 0.2.0, as modules count: two digits a part.
    version: 200,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    // The type comes last (`run::load`): a module that has one cannot be unloaded.
    data_types: [],
    init: init,
}
