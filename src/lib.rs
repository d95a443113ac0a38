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
//! 1. What may change a lock comes in by `server::run`, and goes one way: args → engine → effects → perform → reply.
//! 2. Durable state moves by `dlock_engine::change::Change` only, on the primary, on replicas and from the AOF alike.
//! 3. The engine is told the time, calls nothing but its keyspace, and is a crate that knows of no server (`engine/`).
//! 4. Nothing is decided on a replica, and nothing by a replica's or a client's clock.
//! 5. Nothing is propagated outside of a command unless the server would accept a write (`server::gate`).
//! 6. A callback of the server changes no lock: it notes what has happened (`server::inbox`), and the module's next event acts.
//! 7. What may run more of the module than such a callback comes last: connections are answered, and observers told, with no
//!    state borrowed.
//! 8. The module answers a request once.
//! 9. A panic stops at the callback in which it happens (`server::door`), and nothing is decided after it.
//! 10. All `unsafe` is in `server`, each block with its reason; engine and commands forbid it.
//!
//! | module | what it is |
//! |---|---|
//! | `engine/` | the crate [`dlock_engine`], the lock: holders, queues, deadlines, tokens; pure |
//! | `commands/` | the crate [`dlock_commands`]: the command table, and from words to engine calls to replies; pure |
//! | [`server`] | the only part that knows of Redis |

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
