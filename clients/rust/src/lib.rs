// SPDX-License-Identifier: MIT
//! Locks of the dlock module for Redis and Valkey.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_redis::Locks;
//! use std::time::Duration;
//!
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?)?;
//! let hold = locks.on("stock").wait(Duration::from_secs(5)).lock().await?;
//! let mut set = redis::cmd("SET");
//! set.arg("left").arg(41);
//! tokio::select! {
//!     _ = hold.lost() => println!("another client may hold it now"),
//!     // Runs only while the lock is held under this token: else `Error::Fenced`.
//!     done = hold.guard(&set) => println!("{:?}", done?),
//! }
//! hold.release().await?;
//! # Ok(()) }
//! ```
//!
//! You pass a client as a template, and the redis crate makes the connections: one per node, which all tasks share, and a second
//! one per session. A session is what a server keeps for this client: its holds and its places in queues.
//!
//! A future that is dropped leaves the queue, and a [`Hold`] that is dropped is released. Both happen in the background: call
//! [`release`](Hold::release) before the runtime ends, or the lock stays taken for its lease.

#![warn(missing_debug_implementations)]

mod election;
mod errand;
mod error;
mod fakes;
mod hold;
mod library;
mod locks;
mod quorum;
mod random;
mod session;
mod settings;
mod state;
mod take;

pub use election::Election;
pub use error::{Error, Result};
pub use fakes::FakeLocks;
pub use hold::Hold;
pub use library::Servers;
pub use locks::{release_all, Locks, Request};
pub use quorum::{Quorum, QuorumHold};
/// The version of the redis crate whose types these calls have.
pub use redis;
pub use settings::{Observer, Settings};
