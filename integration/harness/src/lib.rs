//! The harness: real servers for tests, one or several per test, and ways to wait for their actions.
//!
//! ```no_run
//! use dlock_harness::{Ask, Blocked, Grant, Server};
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
//! * Nothing waits without a bound. A wait that gives up names its condition.
//! * No test needs to sleep: [`await_until`] polls a condition, [`Blocked`] and [`Subscriber`] deliver
//!   what the server sends.
//!
//! The environment chooses the server and the module:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `DLOCK_REDIS_SERVER` | the server's program | `redis-server` in `PATH` |
//! | `DLOCK_MODULE` | the module's library | `release/libdlock.so` in the target directory |
//!
//! Each module uses those above it only:
//!
//! | module | contents |
//! |---|---|
//! | `machine/` | parts of every program: [`await_until`] and its bounds, processes that do not outlive this one, free ports, a [`Network`] that can be cut |
//! | `talk/` | [`Ask`]: commands as lines of text; [`Wire`]: a connection of which a test sees every byte; [`Info`] |
//! | `servers/` | [`ServerBuilder`] and [`Server`], its program and [`Version`]; servers with a [`Clock`] of their own; a [`cluster`]; programs that run with a server ([`Sentinel`], [`Daemon`]); where results were [`Made`] |
//! | `material/` | data to send: [`awkward`] bytes, payloads that no server would write ([`dump`]), the scripts of the [`rivals`], the page's [`AclRules`] |
//! | `scenes/` | steps of many tests ([`held`]); waiters ([`Blocked`]), subscribers ([`Subscriber`]) and workers ([`workers`]); each [`belief`] of a client in a lock, and its judge; a [`planned`] failover; checks at the end ([`Guarded`], [`assert_sound`]); the [`stage`] of a language's tests |

mod machine;
mod material;
mod scenes;
mod servers;
mod talk;

pub use machine::network::{Door, Network, Party};
pub use machine::patience::{await_until, until, PATIENCE};
pub use machine::port::free as free_port;
pub use machine::process::{spawn, stop};
pub use material::awkward::awkward;
pub use material::rules::AclRules;
pub use material::{dump, rivals};
pub use scenes::blocked::Blocked;
pub use scenes::guarded::Guarded;
pub use scenes::session::{News, Row, Session};
pub use scenes::shorthand::{
    assert_hands_over, at_once, fair_as, held, is_held, kept, position, stat, wait_as,
};
pub use scenes::sound::{assert_sound, assert_sound_log};
pub use scenes::subscriber::{Message, Subscriber};
pub use scenes::{belief, planned, stage, workers};
pub use servers::builder::{ServerBuilder, StartError};
#[cfg(target_os = "linux")]
pub use servers::clock::Clock;
pub use servers::cluster;
pub use servers::daemon::Daemon;
pub use servers::made::Made;
pub use servers::program::{module_path, server_program};
pub use servers::sentinel::{Sentinel, Watch, PRIMARY};
pub use servers::server::Server;
pub use servers::version::{Product, Version};
pub use talk::ask::{command, reply_of, with, Ask, Grant, Queued};
pub use talk::info::Info;
pub use talk::wire::{connect, Wire};

pub use redis;
