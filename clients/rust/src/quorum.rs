// SPDX-License-Identifier: MIT
//! A lock over several masters that know nothing of each other: its holder is the client that holds it at most of them.
//!
//! All wait in the queue of the first master, and its head asks the others without waiting: votes are not split. Leases
//! at the others are half as long. A client releases them before the first, so the next waiter at the first finds the
//! others free. (The server renews when a third of a lease has passed.)

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Client;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::locks::Locks;
use crate::random::random;
use crate::settings::{now, Settings, FAR};

/// How long a master that did not answer is asked last.
const SILENCE: Duration = Duration::from_secs(1);

/// Locks over several masters. A clone is the same.
#[derive(Clone)]
pub struct Quorum {
    masters: Arc<Vec<Master>>,
    settings: Settings,
}

struct Master {
    locks: Locks,
    /// Until when it is asked last.
    silent: Mutex<Duration>,
}

impl Master {
    fn is_silent(&self) -> bool {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) > now()
    }

    /// One try, or a wait in its queue. A failure returns at once: there are other masters.
    async fn vote(&self, key: &[u8], lease: Duration, wait: Duration) -> Result<Option<Hold>> {
        let vote = self.locks.on(key).lease(lease).wait(wait).vote().try_lock().await;
        if vote.as_ref().is_err_and(|error| !error.is_answer()) {
            *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = now() + SILENCE;
        }
        vote
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quorum")
    }
}

impl Quorum {
    /// Returns locks over these masters, which every program names in the same order. A master may take 300 ms to answer.
    ///
    /// # Errors
    /// As [`Quorum::with_settings`].
    pub fn new(masters: Vec<Client>) -> Result<Quorum> {
        Quorum::with_settings(masters, Settings::default().reply_timeout(Duration::from_millis(300)))
    }

    /// Does what [`Quorum::with_settings`] does.
    ///
    /// # Errors
    /// As there.
    #[deprecated(since = "0.5.0", note = "is called `with_settings` now")]
    pub fn with(masters: Vec<Client>, settings: Settings) -> Result<Quorum> {
        Quorum::with_settings(masters, settings)
    }

    /// Returns locks with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what cannot be.
    pub fn with_settings(masters: Vec<Client>, settings: Settings) -> Result<Quorum> {
        if masters.is_empty() {
            return Err(Error::invalid("masters", "must be at least one"));
        }
        if settings.lease < Duration::from_secs(2) {
            return Err(Error::invalid("lease", "must be at least 2 s"));
        }
        let settings = settings.checked()?;
        let master = |client| {
            // Kept as often as the shorter leases ask for.
            let locks = Locks::with_settings(client, settings.clone().lease(settings.lease / 2))?;
            Ok(Master { locks, silent: Mutex::default() })
        };
        let masters = masters.into_iter().map(master).collect::<Result<_>>()?;
        Ok(Quorum { masters: Arc::new(masters), settings })
    }

    /// Waits for the lock at a majority of the masters.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is taken, or its votes were split, until the time is up. [`Error::Unreachable`] if no
    /// majority could vote. In either case nothing is left behind.
    pub async fn lock(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<QuorumHold> {
        let taken = self.try_lock(key, timeout).await?;
        taken.ok_or(Error::Timeout { after: timeout, cause: None })
    }

    /// Waits as [`lock`](Quorum::lock) does, but returns `None` when the time is up.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no majority could vote, [`Error::Invalid`] for a bad argument.
    pub async fn try_lock(&self, key: impl AsRef<[u8]>, timeout: Duration) -> Result<Option<QuorumHold>> {
        let key = key.as_ref();
        if key.is_empty() {
            return Err(Error::invalid("key", "must not be empty"));
        }
        let end = now() + timeout.min(FAR);
        loop {
            let mut errors = Vec::new();
            if let Some(hold) = self.votes(key, end, &mut errors).await {
                return Ok(Some(hold));
            }
            // Or those who have split the votes would do it again.
            let pause = Duration::from_millis(20 + random() % 180);
            if now() + pause >= end {
                if 2 * errors.len() >= self.masters.len() {
                    return Err(Error::Unreachable(errors.join("; ")));
                }
                return Ok(None);
            }
            sleep(pause).await;
        }
    }

    /// One round.
    async fn votes(&self, key: &[u8], end: Duration, errors: &mut Vec<String>) -> Option<QuorumHold> {
        let lease = self.settings.lease;
        let all: Vec<&Master> = self.masters.iter().collect();
        let (silent, there): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|at| all[*at].is_silent());
        for first in [&*there, &*silent].concat() {
            let granted = match all[first].vote(key, lease, end.saturating_sub(now())).await {
                Ok(granted) => granted?,
                Err(error) => {
                    errors.push(error.to_string());
                    continue;
                }
            };
            let mut hold = QuorumHold { votes: all.iter().map(|_| None).collect(), first };
            hold.votes[first] = Some(granted);
            let all = &all;
            // The silent ones only if there is no majority without them: they would keep it waiting.
            let enough = there.len() >= hold.majority();
            let others = (0..all.len()).filter(|at| *at != first && (there.contains(at) || !enough));
            let asked = others.map(|at| async move { (at, all[at].vote(key, lease / 2, Duration::ZERO).await) });
            for (at, vote) in join_all(asked).await {
                match vote {
                    Ok(vote) => hold.votes[at] = vote,
                    Err(error) => errors.push(error.to_string()),
                }
            }
            if !hold.is_lost() {
                return Some(hold);
            }
            let _ = hold.release().await; // what it cannot release now, it releases in the background
            return None;
        }
        None
    }

    /// Closes the locks of all masters, as [`Locks::close`].
    pub fn close(&self) {
        self.masters.iter().for_each(|master| master.locks.close());
    }
}

/// A lock that is held at a majority of the masters, and kept there.
#[must_use = "the lock is released when this is dropped"]
#[derive(Debug)]
pub struct QuorumHold {
    votes: Vec<Option<Hold>>,
    first: usize,
}

impl QuorumHold {
    fn majority(&self) -> usize {
        self.votes.len() / 2 + 1
    }

    /// The hold at this master, if it granted the lock: for its token, which can be compared with those of this master
    /// only, and for guarded writes there.
    pub fn at(&self, master: usize) -> Option<&Hold> {
        self.votes.get(master)?.as_ref()
    }

    /// Returns how long a majority is certainly held, even if no server answers again.
    pub fn left(&self) -> Duration {
        let mut left: Vec<Duration> = self.votes.iter().flatten().map(Hold::left).collect();
        left.sort_unstable();
        left.len().checked_sub(self.majority()).and_then(|at| left.get(at).copied()).unwrap_or_default()
    }

    /// Reports whether it is no longer held at a majority.
    pub fn is_lost(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns when it is no longer held at a majority, and never while it is.
    pub async fn lost(&self) {
        let mut losses: FuturesUnordered<_> = self.votes.iter().flatten().map(Hold::lost).collect();
        while losses.len() >= self.majority() {
            losses.next().await;
        }
    }

    /// Releases it at all masters.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was no longer held at a majority.
    pub async fn release(mut self) -> Result<()> {
        let held = !self.is_lost();
        let first = self.votes.get_mut(self.first).and_then(Option::take);
        // A master that does not answer gets the release in the background; its lease ends.
        join_all(self.votes.drain(..).flatten().map(Hold::release)).await;
        if let Some(first) = first {
            let _ = first.release().await;
        }
        if held {
            Ok(())
        } else {
            Err(Error::NotHeld("NOTHELD no majority of the masters holds it any more".into()))
        }
    }
}

impl Drop for QuorumHold {
    /// The first at last.
    fn drop(&mut self) {
        let first = self.votes.get_mut(self.first).and_then(Option::take);
        self.votes.clear();
        drop(first);
    }
}
