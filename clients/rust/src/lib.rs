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
mod election;
mod error;
mod keep;
mod link;
mod lock;
mod many;
mod quorum;
mod random;
mod release;
mod renewals;
mod request;
mod servers;
mod settings;
mod state;
mod take;

pub use election::Election;
pub use error::{Error, Result};
pub use lock::{Hold, Locks, Request};
pub use many::release_all;
pub use quorum::{Quorum, QuorumHold};
pub use servers::Servers;
pub use settings::{Observer, Settings};

/// The name that [`Election`] had before.
#[deprecated(since = "0.3.1", note = "is called `Election` now")]
pub type Leader = Election;
