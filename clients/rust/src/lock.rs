// SPDX-License-Identifier: MIT
//! What a program has in its hands.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::renewals::Shared;
use crate::request::{AcquireRequest, Mode};
use crate::servers::Servers;
use crate::settings::{now, Settings};

/// Locks on one server, a cluster, or a primary with replicas. A clone is the same.
#[derive(Clone)]
pub struct Locks(pub(crate) Arc<Core>);

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    /// Locks with the default [`Settings`]. Connects when it is used.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no server is named.
    pub fn new(servers: impl Into<Servers>) -> Result<Locks> {
        Locks::with(servers, Settings::default())
    }

    /// Locks with settings of one's own.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the setting that cannot be.
    pub fn with(servers: impl Into<Servers>, settings: Settings) -> Result<Locks> {
        Ok(Locks(Arc::new(Core::new(servers.into().checked()?, settings.checked()?))))
    }

    /// A lock to be asked for: exclusive, under an owner's name of its own, without a time-out.
    pub fn on(&self, key: impl AsRef<[u8]>) -> Request {
        Request {
            locks: self.clone(),
            key: key.as_ref().to_vec(),
            owner: None,
            party: None,
            shared: false,
            limit: None,
            permits: None,
            ephemeral: false,
            timeout: None,
        }
    }

    /// Whether anybody holds it.
    ///
    /// # Errors
    /// What the server or the connection says.
    pub async fn is_held(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        Ok(self.ask(key, cmd("DLOCK.HELD").arg(key)).await? != Value::Nil)
    }

    /// The reply to a plain command about a key, from whoever serves it.
    ///
    /// # Errors
    /// What the server or the connection says; [`Error::Invalid`] for a command without words.
    pub async fn ask(&self, key: impl AsRef<[u8]>, command: &Cmd) -> Result<Value> {
        if command.args_iter().next().is_none() {
            return Err(Error::invalid("command", "must not be empty"));
        }
        self.0.ask(key.as_ref(), command.clone()).await
    }

    /// Ends it, for all clones: every call from now on is an error. What is still held is reported lost, and lives on in the
    /// server until its lease.
    pub fn close(&self) {
        self.0.close();
    }
}

/// What is asked for; ends with [`lock`](Request::lock) or [`try_lock`](Request::try_lock).
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until lock() or try_lock()"]
pub struct Request {
    pub(crate) locks: Locks,
    key: Vec<u8>,
    owner: Option<Vec<u8>>,
    /// The whole name of an owner, which nobody has had before.
    party: Option<String>,
    shared: bool,
    limit: Option<u64>,
    permits: Option<u64>,
    ephemeral: bool,
    timeout: Option<Duration>,
}

impl Request {
    /// The longest time to wait.
    pub fn timeout(self, timeout: Duration) -> Request {
        Request { timeout: Some(timeout), ..self }
    }

    /// Names the party that holds the lock; without it each hold is a party of its own. Whoever asks again for a lock under the
    /// name that holds it here re-enters it at once, by a count in this client, and the last release gives it back. Tasks
    /// that wait independently need names of their own. The name is these `Locks`' own: the server shows it as
    /// `host/pid/name#…`, and in another process it is another owner.
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Request {
        Request { owner: Some(owner.as_ref().to_vec()), party: None, ..self }
    }

    /// Names a party that nobody else is.
    pub(crate) fn party(self, party: String) -> Request {
        Request { party: Some(party), ..self }
    }

    /// Together with all others that share: to read.
    pub fn shared(self) -> Request {
        Request { shared: true, ..self }
    }

    /// Lets this many hold the lock at once: a semaphore.
    pub fn limit(self, limit: u64) -> Request {
        Request { limit: Some(limit), ..self }
    }

    /// Takes this many of the limit, all at once, and gives them back together. 1 unless set.
    pub fn permits(self, permits: u64) -> Request {
        Request { permits: Some(permits), ..self }
    }

    /// Ends with the connection: for work that dies with this process.
    pub fn ephemeral(self) -> Request {
        Request { ephemeral: true, ..self }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not granted in time; [`Error::Invalid`] for a bad argument; [`Error::Deadlock`],
    /// [`Error::Replaced`] and what else the server says for good.
    pub async fn lock(self) -> Result<Hold> {
        let after = self.timeout.unwrap_or_default();
        self.take(self.timeout).await?.ok_or(Error::Timeout { after, cause: None })
    }

    /// Tries once, or for the time-out that was named. `None`: it is taken.
    ///
    /// # Errors
    /// As [`lock`](Request::lock), but for a lock that is just taken.
    pub async fn try_lock(self) -> Result<Option<Hold>> {
        self.take(Some(self.timeout.unwrap_or_default())).await
    }

    fn mode(&self) -> Result<Mode> {
        let Some(limit) = self.limit else {
            return match self.permits {
                Some(_) => Err(Error::invalid("permits", "must be given with limit")),
                None => Ok(if self.shared { Mode::Shared } else { Mode::Exclusive }),
            };
        };
        if self.shared {
            return Err(Error::invalid("limit", "cannot be beside shared"));
        }
        if limit == 0 {
            return Err(Error::invalid("limit", "must be at least 1, not 0"));
        }
        let permits = self.permits.unwrap_or(1);
        if !(1..=limit).contains(&permits) {
            let problem = format!("must be at least 1, and at most limit, which is {limit}, not {permits}");
            return Err(Error::invalid("permits", problem));
        }
        Ok(Mode::Limit { limit, permits })
    }

    async fn take(&self, timeout: Option<Duration>) -> Result<Option<Hold>> {
        if self.key.is_empty() {
            return Err(Error::invalid("key", "must not be empty"));
        }
        if self.owner.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("owner", "must not be empty"));
        }
        let mode = self.mode()?;
        let core = &self.locks.0;
        let name = self.owner.as_ref().map(|name| [core.process.as_bytes(), name, core.suffix.as_bytes()].concat());
        let party = || self.party.clone().unwrap_or_else(|| core.party()).into_bytes();
        let request = AcquireRequest {
            key: self.key.clone(),
            owner: name.clone().unwrap_or_else(party),
            name,
            mode,
            ephemeral: self.ephemeral,
            settings: core.settings.clone(),
            vote: false,
        };
        let taken = core.take(request, timeout).await?;
        Ok(taken.map(|shared| Hold::new(core, shared)))
    }
}

/// A lock that is held. Give it back by [`release`](Hold::release); dropping it does so too, but tells no error.
#[must_use = "the lock is given back when this is dropped"]
pub struct Hold {
    core: Arc<Core>,
    shared: Arc<Shared>,
    since: Duration,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("key", &String::from_utf8_lossy(self.key())).field("token", &self.token()).finish()
    }
}

impl Hold {
    pub(crate) fn new(core: &Arc<Core>, shared: Arc<Shared>) -> Hold {
        Hold { core: core.clone(), shared, since: now() }
    }

    /// The lock's name.
    pub fn key(&self) -> &[u8] {
        &self.shared.request.key
    }

    /// Returns the owner's name on the server: `host/pid/…`.
    pub fn owner(&self) -> &[u8] {
        &self.shared.request.owner
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.shared.token
    }

    /// Returns when the lock is lost, with the reason, and never if it is not.
    pub async fn lost(&self) -> String {
        let mut lost = self.shared.lost.subscribe();
        let reason = lost.wait_for(Option::is_some).await.map(|reason| reason.clone());
        // The other end lives as long as this hold.
        reason.ok().flatten().unwrap_or_default()
    }

    /// Whether it is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.shared.lost.borrow().is_some()
    }

    /// For so long it is ours for sure, if nothing is heard of the server any more.
    pub fn left(&self) -> Duration {
        if self.is_lost() {
            Duration::ZERO
        } else {
            self.core.shelf.with(|state| state.left(&self.shared.id()))
        }
    }

    /// Runs a command in one step with the look whether the lock is still held under this token. It is sent once; if its
    /// reply is lost it may have run.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it is not held, and the command was not run: then the hold is lost. What the command says.
    pub async fn guard(&self, command: &Cmd) -> Result<Value> {
        let mut guarded = cmd("DLOCK.GUARD");
        guarded.arg(self.key()).arg(self.token());
        for argument in command.args_iter() {
            if let redis::Arg::Simple(bytes) = argument {
                guarded.arg(bytes);
            }
        }
        let result = self.core.ask(self.key(), guarded).await;
        if let Err(Error::Fenced(text)) = &result {
            self.core.shelf.with(|state| state.lose(&self.shared.id(), text));
        }
        result
    }

    /// Gives back what was granted here, and nothing else.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it was lost.
    pub async fn release(self) -> Result<()> {
        self.give_back().await
    }

    pub(crate) async fn give_back(&self) -> Result<()> {
        self.core.release(&self.shared).await?;
        self.core.settings.observer.released(self.key(), now() - self.since);
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.shared.over.swap(true, Ordering::SeqCst) {
            self.core.drop_hold(&self.shared);
        }
    }
}
