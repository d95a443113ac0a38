// SPDX-License-Identifier: MIT
//! Where a program begins: what it asks for, and how.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{cmd, Value};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::library::{slot, Servers};
use crate::settings::{Settings, FAR, NEVER};
use crate::state::{Client, Terms};

/// Locks on one server, a cluster, or a primary with replicas. A clone is the same.
#[derive(Clone)]
pub struct Locks(pub(crate) Arc<Client>);

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    /// Returns locks with the default [`Settings`]. The first call connects.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no server is named.
    pub fn new(servers: impl Into<Servers>) -> Result<Locks> {
        Locks::with_settings(servers, Settings::default())
    }

    /// Returns locks with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the setting that cannot be.
    pub fn with_settings(servers: impl Into<Servers>, settings: Settings) -> Result<Locks> {
        Ok(Locks(Client::new(servers.into().checked()?, settings.checked()?)))
    }

    /// Does what [`Locks::with_settings`] does.
    ///
    /// # Errors
    /// As there.
    #[deprecated(since = "0.5.0", note = "is called `with_settings` now")]
    pub fn with(servers: impl Into<Servers>, settings: Settings) -> Result<Locks> {
        Locks::with_settings(servers, settings)
    }

    /// Describes a lock. Unless the request says otherwise, it is exclusive and waits without a limit.
    pub fn on(&self, key: impl AsRef<[u8]>) -> Request {
        let terms = Terms {
            keys: vec![key.as_ref().to_vec()],
            lease: self.0.settings.lease,
            max_hold: NEVER,
            actor: None,
            shared: false,
            limit: None,
            permits: None,
            vote: false,
        };
        Request { locks: self.clone(), terms, wait: None }
    }

    /// Takes several locks: all or none of a slot in one step, and slots in one order that is the same for all programs, so that
    /// they never wait in a circle that no server sees. A single server is one slot. Returns the holds in that order, each key once;
    /// release them with [`release_all`].
    ///
    /// # Errors
    /// As [`Request::lock`]; nothing is held then.
    pub async fn many<K: AsRef<[u8]>>(&self, keys: &[K], wait: Option<Duration>) -> Result<Vec<Hold>> {
        let (mut keys, began): (Vec<&[u8]>, _) = (keys.iter().map(AsRef::as_ref).collect(), Instant::now());
        let slot_of = |key: &[u8]| if self.0.library.is_cluster() { slot(key) } else { 0 };
        keys.sort_unstable_by_key(|key| (slot_of(key), *key));
        keys.dedup();
        let mut holds = Vec::new();
        for keys in keys.chunk_by(|one, next| slot_of(one) == slot_of(next)) {
            let mut request = self.on(keys[0]);
            request.terms.keys = keys.iter().map(|key| key.to_vec()).collect();
            request.wait = wait.map(|wait| wait.saturating_sub(began.elapsed()).max(Duration::from_millis(1)));
            // Those that are there already are dropped, which gives them back.
            holds.extend(request.lock_all().await?);
        }
        Ok(holds)
    }

    /// Returns whether the lock is held.
    ///
    /// # Errors
    /// What the server or the connection says.
    pub async fn is_held(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let mut held = cmd("DLOCK.HELD");
        held.arg(key);
        Ok(self.0.ask(key, held).await? != Value::Nil)
    }

    /// Closes these locks and all their clones: every later call returns [`Error::Closed`]. What is still held is reported lost, and
    /// lives on in the server until its lease ends.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Releases all of them, the last one first.
///
/// # Errors
/// The first one, when all are released.
pub async fn release_all(holds: Vec<Hold>) -> Result<()> {
    let mut result = Ok(());
    for hold in holds.into_iter().rev() {
        result = result.and(hold.release().await);
    }
    result
}

/// What is asked for; ends with [`lock`](Request::lock) or [`try_lock`](Request::try_lock).
#[derive(Clone)]
#[must_use = "nothing is asked until lock() or try_lock()"]
pub struct Request {
    locks: Locks,
    terms: Terms,
    wait: Option<Duration>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.terms.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        f.debug_struct("Request").field("keys", &keys).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl Request {
    /// Sets the longest time to wait.
    pub fn wait(self, wait: Duration) -> Request {
        Request { wait: Some(wait), ..self }
    }

    /// Does what [`Request::wait`] does.
    #[deprecated(since = "0.5.0", note = "is called `wait` now")]
    pub fn timeout(self, timeout: Duration) -> Request {
        self.wait(timeout)
    }

    /// Sets how long this lock stays taken after the program dies or loses the server, in place of the [`Settings`]' lease.
    pub fn lease(mut self, lease: Duration) -> Request {
        self.terms.lease = lease;
        self
    }

    /// Sets how long the lock may be held: then the client reports it lost, and releases it.
    pub fn max_hold(mut self, max_hold: Duration) -> Request {
        self.terms.max_hold = max_hold;
        self
    }

    /// Names who takes several locks, as a task with nested locks does. The server sees that two actors wait for each other, and
    /// that one waits for what it holds itself ([`Error::Deadlock`]). The name is these `Locks`' own.
    pub fn actor(mut self, actor: impl AsRef<[u8]>) -> Request {
        self.terms.actor = Some(actor.as_ref().to_vec());
        self
    }

    /// Does what [`Request::actor`] does.
    #[deprecated(since = "0.5.0", note = "is called `actor` now, and locks are not re-entered")]
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Request {
        self.actor(owner)
    }

    /// Changes nothing.
    #[deprecated(since = "0.5.0", note = "has no effect: a dead program's lock is free after its `lease`")]
    pub fn ephemeral(self) -> Request {
        self
    }

    /// Shares the lock with all others that do so: to read.
    pub fn shared(mut self) -> Request {
        self.terms.shared = true;
        self
    }

    /// Lets this many hold the lock at once: a semaphore.
    pub fn limit(mut self, limit: u64) -> Request {
        self.terms.limit = Some(limit);
        self
    }

    /// Takes this many of the limit, all at once, and gives them back together. 1 unless set.
    pub fn permits(mut self, permits: u64) -> Request {
        self.terms.permits = Some(permits);
        self
    }

    /// There are other masters: any failure is returned at once.
    pub(crate) fn vote(mut self) -> Request {
        self.terms.vote = true;
        self
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not granted in time; [`Error::Invalid`] for a bad argument; [`Error::Deadlock`],
    /// [`Error::Replaced`] and every other final refusal of the server.
    pub async fn lock(self) -> Result<Hold> {
        self.lock_all().await?.pop().ok_or(Error::Closed)
    }

    /// Tries once, or for the time that was named. `None`: it is taken.
    ///
    /// # Errors
    /// As [`lock`](Request::lock); a lock that is taken is no error but `None`.
    pub async fn try_lock(self) -> Result<Option<Hold>> {
        let wait = self.wait.unwrap_or_default();
        Ok(self.take(wait).await?.and_then(|mut holds| holds.pop()))
    }

    async fn lock_all(self) -> Result<Vec<Hold>> {
        let after = self.wait.unwrap_or(NEVER);
        self.take(after).await?.ok_or(Error::Timeout { after, cause: None })
    }

    async fn take(self, wait: Duration) -> Result<Option<Vec<Hold>>> {
        let terms = Terms { lease: self.terms.lease.min(FAR), ..self.terms };
        let bad = |argument, why: &str| Err(Error::invalid(argument, why));
        match (terms.limit, terms.permits) {
            (None, Some(_)) => return bad("permits", "must be given with limit"),
            (Some(_), _) if terms.shared => return bad("limit", "cannot be beside shared"),
            (Some(0), _) => return bad("limit", "must be at least 1, not 0"),
            (Some(limit), Some(permits)) if !(1..=limit).contains(&permits) => {
                return bad(
                    "permits",
                    &format!("must be at least 1, and at most limit, which is {limit}, not {permits}"),
                );
            }
            _ => {}
        }
        if terms.keys.iter().any(Vec::is_empty) {
            return bad("key", "must not be empty");
        }
        if terms.actor.as_ref().is_some_and(Vec::is_empty) {
            return bad("actor", "must not be empty");
        }
        if terms.lease <= self.locks.0.settings.clock_margin {
            return bad("lease", "must be longer than the clock's margin");
        }
        if terms.max_hold < Duration::from_millis(1) {
            return bad("max_hold", "must be at least 1 ms");
        }
        self.locks.0.take(terms, wait).await
    }
}
