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
//!     _ = hold.lost() => println!("somebody else may have it now"),
//!     // Runs only while the lock is held under this token: else `Error::Fenced`.
//!     done = hold.guard(&set) => println!("{:?}", done?),
//! }
//! hold.release().await?;
//! # Ok(()) }
//! ```
//!
//! What the program gives is a template: the redis crate makes the connections. All tasks share one to each node, and a second one
//! for the session in which the server keeps what they hold and wait for. A future that is dropped leaves the queue; a [`Hold`]
//! that is dropped is given back. Both are done in the background.
//!
//! A time-out is a [`Duration`](std::time::Duration) and nothing else:
//!
//! ```compile_fail
//! # fn example(locks: dlock_redis::Locks) {
//! locks.on("stock").wait("5s");
//! # }
//! ```

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
mod take;

pub use election::Election;
pub use error::{Error, Result};
pub use fakes::FakeLocks;
pub use hold::Hold;
pub use library::Servers;
pub use locks::{release_all, Locks, Request};
pub use quorum::{Quorum, QuorumHold};
pub use settings::{Observer, Settings};
