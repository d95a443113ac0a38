// SPDX-License-Identifier: MIT
//! Leader election: whoever holds the lock leads, and its token is the term.

use std::time::Duration;

use redis::{cmd, Value};

use crate::core::unique;
use crate::error::{Error, Result};
use crate::lock::{Hold, Locks};

/// A candidate for one office.
#[derive(Clone, Debug)]
pub struct Leader {
    locks: Locks,
    key: Vec<u8>,
    name: Vec<u8>,
}

/// The office, while it lasts. Dropped or resigned: the next in the queue has it.
#[derive(Debug)]
pub struct Term(Hold);

impl Leader {
    /// A candidate of this name: what others see of the leader. Names of processes must differ.
    pub fn new(locks: &Locks, key: impl AsRef<[u8]>, name: impl AsRef<str>) -> Leader {
        // A process that has died and comes again is another actor.
        let name = format!("{}:{}", name.as_ref(), unique());
        Leader { locks: locks.clone(), key: key.as_ref().to_vec(), name: name.into_bytes() }
    }

    /// Waits in the queue of candidates until this one leads.
    ///
    /// # Errors
    /// As [`Request::lock`](crate::Request::lock).
    pub async fn campaign(&self) -> Result<Term> {
        Ok(Term(self.locks.on(&self.key).owner(&self.name).lock().await?))
    }

    /// The same for no longer than that. `None`: somebody else leads.
    ///
    /// # Errors
    /// As [`Request::try_lock`](crate::Request::try_lock).
    pub async fn campaign_for(&self, timeout: Duration) -> Result<Option<Term>> {
        let taken = self.locks.on(&self.key).owner(&self.name).timeout(timeout).try_lock().await?;
        Ok(taken.map(Term))
    }

    /// Who leads, and its term.
    ///
    /// # Errors
    /// What the server or the connection says.
    pub async fn leader(&self) -> Result<Option<(String, u64)>> {
        let held = self.locks.ask(&self.key, cmd("DLOCK.HELD").arg(&self.key)).await?;
        let Value::Array(held) = held else { return Ok(None) };
        let (Some(Value::Int(token)), Some(Value::BulkString(owner))) = (held.first(), held.get(3)) else {
            return Ok(None);
        };
        let owner = String::from_utf8_lossy(owner);
        let name = owner.rsplit_once(':').map_or(&*owner, |(name, _)| name);
        Ok(Some((name.to_owned(), u64::try_from(*token).unwrap_or_default())))
    }

    /// Waits until somebody else leads than before, or nobody: looks once in every `interval`.
    ///
    /// # Errors
    /// What the server says for good. What passes is asked again.
    pub async fn observe(&self, before: &Option<(String, u64)>, interval: Duration) -> Result<Option<(String, u64)>> {
        loop {
            match self.leader().await {
                Ok(now) if now != *before => return Ok(now),
                Err(error) if !error.passes() => return Err(error),
                _ => tokio::time::sleep(interval).await,
            }
        }
    }
}

impl Term {
    /// The fencing token: every later term has a higher one.
    pub fn number(&self) -> u64 {
        self.0.token()
    }

    /// Whether this one leads, for all that it knows.
    pub fn leads(&self) -> bool {
        !self.0.left().is_zero()
    }

    /// Returns when it leads no more, before the lease ends in the server.
    pub async fn over(&self) -> String {
        self.0.lost().await
    }

    /// A write that only this term can do.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the term is over.
    pub async fn guard(&self, command: &redis::Cmd) -> Result<Value> {
        self.0.guard(command).await
    }

    /// Steps down: the next in the queue leads.
    ///
    /// # Errors
    /// As [`Hold::release`], but for a term that is over already.
    pub async fn resign(self) -> Result<()> {
        match self.0.release().await {
            Err(Error::NotHeld(_)) => Ok(()),
            result => result,
        }
    }
}
