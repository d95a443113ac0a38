// SPDX-License-Identifier: MIT
//! Locks of several slots or servers at once.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::lock::{Hold, Locks};

impl Locks {
    /// Locks of any slots, in one fixed order under one owner, all within the time. The server sees no circle that
    /// goes over several nodes: it is the order that prevents them. Give them back with [`release_all`].
    ///
    /// # Errors
    /// As [`Request::lock`](crate::Request::lock); nothing is held then.
    pub async fn many<K: AsRef<[u8]>>(&self, keys: &[K], timeout: Option<Duration>) -> Result<Vec<Hold>> {
        let (owner, began) = (self.0.party(), Instant::now());
        let mut keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut holds = Vec::new();
        for key in keys {
            let mut request = self.on(key).party(owner.clone());
            if let Some(timeout) = timeout {
                request = request.timeout(timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1)));
            }
            match request.lock().await {
                Ok(hold) => holds.push(hold),
                Err(error) => {
                    let _ = release_all(holds).await; // the first error is the one to report
                    return Err(error);
                }
            }
        }
        Ok(holds)
    }
}

/// Gives back all of them, the last one first.
///
/// # Errors
/// The first one, when all are given back.
pub async fn release_all(holds: Vec<Hold>) -> Result<()> {
    let mut result = Ok(());
    for hold in holds.into_iter().rev() {
        result = result.and(hold.release().await);
    }
    result
}
