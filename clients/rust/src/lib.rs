// SPDX-License-Identifier: MIT
//! Locks of the dlock module for Redis and Valkey.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_redis::Locks;
//! use std::time::Duration;
//!
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?)?;
//! let hold = locks.on("stock").timeout(Duration::from_secs(5)).lock().await?;
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
//! All tasks share one connection to each node (and one for messages), however many locks they hold and wait for. A future that is dropped leaves
//! the queue; a [`Hold`] that is dropped is given back. Both are done in the background.
//!
//! A time-out is a [`Duration`](std::time::Duration) and nothing else:
//!
//! ```compile_fail
//! # fn example(locks: dlock_redis::Locks) {
//! locks.on("stock").timeout("5s");
//! # }
//! ```

mod core;
mod error;
mod keep;
mod leader;
mod leave;
mod link;
mod lock;
mod many;
mod quorum;
mod random;
mod servers;
mod settings;
mod state;
mod take;
mod ties;
mod want;

pub use error::{Error, Result};
pub use leader::Leader;
pub use lock::{Hold, Locks, Request};
pub use many::release_all;
pub use quorum::{Quorum, QuorumHold};
pub use servers::Servers;
pub use settings::{Observer, Settings};
