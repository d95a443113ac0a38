//! The harness: real servers for tests, one or many a test, and ways to wait for what they do.
//!
//! ```no_run
//! use dlock_integration::{Ask, Blocked, Grant, Server};
//!
//! let server = Server::builder().start();
//! let mut alice = server.connection();
//! let (token, holds): Grant = alice.ask("DLOCK.ACQUIRE stock alice 10000");
//! assert_eq!(holds, 1);
//!
//! // Returns when the server has blocked the client, not when it has answered.
//! let bob = Blocked::start(&server, "DLOCK.ACQUIRE stock bob 10000 BLOCK 0");
//! let left: u64 = alice.ask("DLOCK.RELEASE stock alice");
//! assert_eq!(left, 0);
//! let (next, _): Grant = bob.reply();
//! assert!(next > token);
//! assert!(alice.refusal("DLOCK.RELEASE stock alice").starts_with("NOTHELD"));
//! ```
//!
//! What a test can rely on:
//!
//! * A server has a directory and a port of its own on the loopback interface, and is gone when its
//!   [`Server`] is dropped, or when the test process dies, however it dies (on Linux).
//! * When a test panics, the log of each of its servers is printed.
//! * Nothing waits without a bound. Every wait says what it waited for when it gives up.
//! * No test needs to sleep: [`await_until`] polls a condition, [`Blocked`] and [`Subscriber`] deliver
//!   what the server sends.
//!
//! Which server and which module is said by the environment:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `DLOCK_REDIS_SERVER` | the server's program | `redis-server` in `PATH` |
//! | `DLOCK_MODULE` | the module's library | `release/libdlock.so` in the target directory |
//!
//! | file | what is in it |
//! |---|---|
//! | `builder.rs` | [`ServerBuilder`]: what a server is started with |
//! | `server.rs` | [`Server`]: a running server, its end and its restart |
//! | `cluster.rs` | [`cluster`]: several servers that are one |
//! | `clock.rs` | [`Clock`]: a server by clocks that can step and stand still |
//! | `network.rs` | [`Network`]: doors to servers, and cuts between parties |
//! | `sentinel.rs` | [`Sentinel`]: who promotes a replica |
//! | `rivals.rs` | the rival locks of the benchmark, the ladder and the demonstration |
//! | `rules.rs` | [`AclRules`]: the users of the page on operations |
//! | `daemon.rs` | [`Daemon`]: another program beside it that answers HTTP |
//! | `process.rs` | child processes that do not outlive this one |
//! | `port.rs` | free ports |
//! | `program.rs` | which server program, which module |
//! | `version.rs` | [`Version`] of a server |
//! | `info.rs` | [`Info`]: a section of INFO |
//! | `ask.rs` | [`Ask`]: commands as lines of text |
//! | `awkward.rs` | [`awkward`]: bytes that are hard to handle |
//! | `wire.rs` | [`Wire`]: a connection of which a test sees every byte |
//! | `socket.rs` | what has arrived at a server that does not read |
//! | `blocked.rs` | [`Blocked`]: a command whose reply is awaited |
//! | `subscriber.rs` | [`Subscriber`]: messages in order |
//! | `patience.rs` | [`await_until`] and its bounds |
//! | `workers.rs` | [`workers`]: programs that use locks, and what was wrong in what they saw |
//! | `guarded.rs` | [`Guarded`]: a lock that nothing in a test may touch |
//! | `stage.rs` | [`stage::Stage`]: what the clients of one language are tested with |
//! | `sound.rs` | [`assert_sound`]: a server has no fault of its own |
//! | `dump.rs` | [`dump`]: payloads that no server would write |
//! | `shorthand.rs` | [`held`] and other things that many tests say |

mod ask;
mod awkward;
mod blocked;
mod builder;
#[cfg(target_os = "linux")]
mod clock;
pub mod cluster;
mod daemon;
pub mod dump;
mod guarded;
mod info;
mod network;
mod patience;
mod port;
mod process;
mod program;
pub mod rivals;
mod rules;
mod sentinel;
mod server;
mod shorthand;
mod socket;
mod sound;
pub mod stage;
mod subscriber;
mod version;
mod wire;
pub mod workers;

pub use ask::{command, reply_of, with, Ask, Grant, Queued};
pub use awkward::awkward;
pub use blocked::Blocked;
pub use builder::{ServerBuilder, StartError};
#[cfg(target_os = "linux")]
pub use clock::Clock;
pub use daemon::Daemon;
pub use guarded::Guarded;
pub use info::Info;
pub use network::{Door, Network, Party};
pub use patience::{await_until, PATIENCE};
pub use port::free as free_port;
pub use process::{spawn, stop};
pub use program::{module_path, server_program};
pub use rules::AclRules;
pub use sentinel::{Sentinel, Watch, PRIMARY};
pub use server::Server;
pub use shorthand::{
    assert_hands_over, at_once, fair_as, held, is_held, kept, position, stat, wait_as,
};
pub use sound::{assert_sound, assert_sound_log};
pub use subscriber::{Message, Subscriber};
pub use version::{Product, Version};
pub use wire::{connect, Wire};

pub use redis;
