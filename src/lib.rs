//! dlock: a module that makes a Redis or Valkey server a lock server.
//!
//! ```text
//!  client ──► server::command ─┐                       ┌─► keys written, effects replicated
//!  timer  ──► server::event  ──┼─► server::run ─► engine ┼─► waiting connections answered
//!  inbox  ──► (callbacks only  ┘   one state,    decides └─► observers told, timer armed
//!             write down)          one clock
//! ```
//!
//! What holds throughout:
//!
//! 1. One way in: whatever happens comes to `server::run`, and one way through: args → engine → effects → perform → reply.
//! 2. Durable state moves by `engine::change::Change` only, on the primary, on replicas and from the AOF alike.
//! 3. The engine never learns the time by itself, calls nothing out, and contains no `unsafe`.
//! 4. Nothing is decided on a replica, and nothing by a replica's or a client's clock.
//! 5. Nothing is propagated outside of a command unless the server would accept a write (`server::gate`).
//! 6. Callbacks write down what happened (`server::inbox`) and do nothing else.
//! 7. Nothing is lent while the server may call back: connections are answered and observers told last.
//! 8. A connection is answered once: granted, null, or an error.
//!
//! | module | what it is |
//! |---|---|
//! | [`engine`] | the lock: holders, queues, deadlines, tokens; pure |
//! | [`commands`] | the command table, and from words to engine calls to replies; pure |
//! | [`server`] | the only part that knows of Redis |
//! | [`error`] | every error with its text |

mod commands;
mod engine;
mod error;
mod server;

use server::init;

redis_module::redis_module! {
    name: "dlock",
    // 0.2.0, as modules count: two digits a part.
    version: 200,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    // The type comes last (`server::register`): a module that has one cannot be unloaded.
    data_types: [],
    init: init,
}
