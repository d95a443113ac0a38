// SPDX-License-Identifier: MIT
//! Election: the candidate that holds the lock leads, and its token is the term.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{cmd, Cmd, Value};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::locks::Locks;
use crate::random::unique;

/// A candidate for one office. Dropped, it has resigned.
pub struct Election {
    locks: Locks,
    key: Vec<u8>,
    me: String,
    hold: Mutex<Option<Arc<Hold>>>,
    /// One at a time.
    campaigning: tokio::sync::Mutex<()>,
    resigned: tokio::sync::Notify,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("me", &self.me).field("term", &self.term()).finish()
    }
}

impl Election {
    /// Returns a candidate of this name, which others see of the leader.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty name.
    pub fn new(locks: &Locks, key: impl AsRef<[u8]>, me: impl Into<String>) -> Result<Election> {
        let (me, key) = (me.into(), key.as_ref().to_vec());
        match (me.is_empty(), key.is_empty()) {
            (true, _) => Err(Error::invalid("me", "must not be empty")),
            (_, true) => Err(Error::invalid("key", "must not be empty")),
            _ => Ok(Election {
                locks: locks.clone(),
                key,
                me,
                hold: Mutex::default(),
                campaigning: tokio::sync::Mutex::default(),
                resigned: tokio::sync::Notify::new(),
            }),
        }
    }

    fn hold(&self) -> Option<Arc<Hold>> {
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.clone().filter(|hold| !hold.left().is_zero())
    }

    fn take(&self) -> Option<Arc<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits in the queue of candidates, and returns the term; `None` when the time is up. A leader gets its term at
    /// once.
    ///
    /// # Errors
    /// As [`Request::lock`](crate::Request::lock).
    pub async fn campaign(&self, wait: Option<Duration>) -> Result<Option<u64>> {
        let _one = self.campaigning.lock().await;
        if let Some(term) = self.term() {
            return Ok(Some(term));
        }
        // After a pause the server may still have the last term: else this candidate would wait for itself.
        if let Some(last) = self.take() {
            last.expire();
        }
        // Of a new name each time: two candidates of one name are two.
        let request = self.locks.on(&self.key).actor(format!("{}#{}", self.me, unique()));
        let taken = match wait {
            None => Some(request.lock().await?),
            Some(wait) => request.wait(wait).try_lock().await?,
        };
        let Some(hold) = taken else { return Ok(None) };
        let term = hold.token();
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hold));
        Ok(Some(term))
    }

    /// Waits until this one leads, does the work, and resigns. Work is dropped when the term is lost. A clone of the hold that outlives
    /// the election keeps the lock.
    ///
    /// # Errors
    /// As [`campaign`](Election::campaign) and [`resign`](Election::resign); [`Error::NotHeld`] if the term is lost before the
    /// work is done.
    pub async fn lead<F: Future>(&self, work: impl FnOnce(Arc<Hold>) -> F) -> Result<F::Output> {
        let _term = Term(self);
        self.campaign(None).await?;
        let hold = self.hold().ok_or_else(|| Error::NotHeld("the term was lost at once".into()))?;
        let done = tokio::select! {
            why = hold.lost() => return Err(Error::NotHeld(why)),
            done = work(hold.clone()) => done,
        };
        self.resign().await?;
        Ok(done)
    }

    /// Reports whether this one leads. Sends nothing: it steps down before the lease ends, also after a pause of the process.
    pub fn is_leader(&self) -> bool {
        self.hold().is_some()
    }

    /// Returns the fencing token while it leads. It rises with each election.
    pub fn term(&self) -> Option<u64> {
        self.hold().map(|hold| hold.token())
    }

    /// Returns when this one leads no more, before the lease ends in the server; at once if it does not.
    pub async fn lost(&self) {
        let resigned = self.resigned.notified();
        tokio::pin!(resigned);
        resigned.as_mut().enable();
        if let Some(hold) = self.hold() {
            tokio::select! {
                _ = hold.lost() => {}
                () = resigned => {}
            }
        }
    }

    /// Runs a write that only this term can do.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another one leads, [`Error::NotHeld`] if this one never has.
    pub async fn guard(&self, command: &Cmd) -> Result<Value> {
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match hold {
            Some(hold) => hold.guard(command).await,
            None => Err(Error::NotHeld(format!("NOTHELD {:?} does not lead", self.me))),
        }
    }

    /// Returns who leads, and its term.
    ///
    /// # Errors
    /// What the server or the connection says.
    pub async fn leader(&self) -> Result<Option<(String, u64)>> {
        let mut held = cmd("DLOCK.HELD");
        held.arg(&self.key);
        let held = self.locks.0.ask(&self.key, held).await?;
        let Value::Array(held) = held else { return Ok(None) };
        let (Some(Value::Int(token)), Some(Value::BulkString(owner))) = (held.first(), held.get(3)) else {
            return Ok(None);
        };
        let owner = String::from_utf8_lossy(owner);
        Ok(Some((name_of(&owner).to_owned(), u64::try_from(*token).unwrap_or_default())))
    }

    /// Returns the leader, or `None`, as soon as that is not the same as `before`. Asks once in every `interval`.
    ///
    /// # Errors
    /// What the server says for good. What passes is asked again.
    pub async fn observe(&self, before: &Option<(String, u64)>, interval: Duration) -> Result<Option<(String, u64)>> {
        loop {
            match self.leader().await {
                Ok(now) if now != *before => return Ok(now),
                Err(error) if !error.is_retryable() => return Err(error),
                _ => tokio::time::sleep(interval).await,
            }
        }
    }

    /// Steps down: the next in the queue leads. What was lost is no error.
    ///
    /// # Errors
    /// As [`Hold::release`], except for a lock that was lost.
    pub async fn resign(&self) -> Result<()> {
        let hold = self.take();
        self.resigned.notify_waiters();
        match hold {
            Some(hold) => match hold.give_back(None).await {
                Err(Error::NotHeld(_)) => Ok(()),
                result => result,
            },
            None => Ok(()),
        }
    }
}

/// Ends the term when it is dropped: the leader resigns, in the background.
struct Term<'a>(&'a Election);

impl Drop for Term<'_> {
    fn drop(&mut self) {
        self.0.take();
        self.0.resigned.notify_waiters();
    }
}

/// Returns the candidate's name in an owner's: `host/pid/session/name#campaign#number`.
fn name_of(owner: &str) -> &str {
    let name = owner.splitn(4, '/').nth(3).unwrap_or(owner);
    name.rsplitn(3, '#').last().unwrap_or(name)
}
