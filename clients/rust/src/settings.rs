// SPDX-License-Identifier: MIT
//! How long things last, and who is told what happens.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};

/// What happens, for whoever counts it. Write what you need; it is called at once, so it must not block.
#[allow(unused_variables)]
pub trait Observer: Send + Sync {
    /// The lock is taken, and a wait for it begins.
    fn waiting(&self, key: &[u8]) {}
    /// A wait that has begun has ended: with the lock or without.
    fn waited(&self, key: &[u8]) {}
    /// The lock was granted so long after it was asked for.
    fn granted(&self, key: &[u8], after: Duration) {}
    /// It was not: it is taken (`None`), or for this reason.
    fn refused(&self, key: &[u8], after: Duration, error: Option<&Error>) {}
    /// It was given back after so long.
    fn released(&self, key: &[u8], after: Duration) {}
    /// It was held, and is no more.
    fn lost(&self, key: &[u8], reason: &str) {}
}

/// Longer than any program waits: a hundred years. No time so long after now overflows, here or in the server.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

struct Nobody;
impl Observer for Nobody {}

/// How long things last.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// What a lock has left when this program dies or loses the server. 10 s.
    pub lease: Duration,
    /// How long a program that hangs, its connection open, keeps its locks. 60 s.
    pub auto: Duration,
    /// How long a place in the queue is kept while the connection is lost. 5 s.
    pub claim: Duration,
    /// How long we wait for a connection, and for a reply. 3 s.
    pub bound: Duration,
    /// So long before the end of its lease a lock is given up, for clocks that go wrong. 100 ms.
    pub allowance: Duration,
    /// Who is told what happens.
    pub observer: Arc<dyn Observer>,
}

impl Default for Settings {
    fn default() -> Settings {
        let [lease, auto, claim, bound] = [10, 60, 5, 3].map(Duration::from_secs);
        Settings { lease, auto, claim, bound, allowance: Duration::from_millis(100), observer: Arc::new(Nobody) }
    }
}

impl Settings {
    /// The default ones.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Another lease.
    pub fn lease(self, lease: Duration) -> Settings {
        Settings { lease, ..self }
    }

    /// Another bound for programs that hang.
    pub fn auto(self, auto: Duration) -> Settings {
        Settings { auto, ..self }
    }

    /// Another time for which a place is kept.
    pub fn claim(self, claim: Duration) -> Settings {
        Settings { claim, ..self }
    }

    /// Another bound for connections and replies.
    pub fn bound(self, bound: Duration) -> Settings {
        Settings { bound, ..self }
    }

    /// Another allowance for clocks.
    pub fn allowance(self, allowance: Duration) -> Settings {
        Settings { allowance, ..self }
    }

    /// Somebody to be told what happens.
    pub fn observer(self, observer: impl Observer + 'static) -> Settings {
        Settings { observer: Arc::new(observer), ..self }
    }

    pub(crate) fn checked(mut self) -> Result<Settings> {
        for (name, value) in [("lease", self.lease), ("auto", self.auto), ("claim", self.claim), ("bound", self.bound)]
        {
            if value < Duration::from_millis(1) {
                return Err(Error::invalid(name, format!("must be at least 1 ms, not {value:?}")));
            }
        }
        if self.allowance >= self.lease {
            return Err(Error::invalid("allowance", "must be shorter than the lease"));
        }
        for value in [&mut self.lease, &mut self.auto, &mut self.claim, &mut self.bound] {
            *value = (*value).min(FAR);
        }
        self.auto = self.auto.max(self.lease);
        Ok(self)
    }

    /// The lease until whoever has waited has confirmed the grant.
    pub(crate) fn first(&self) -> Duration {
        self.lease.min(Duration::from_secs(3))
    }

    /// What has less left is not renewed: the server does so at two thirds of the lease. Well above an interval, which goes by
    /// before it is looked at again.
    pub(crate) fn near(&self) -> Duration {
        self.lease / 8 * 5
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(1).min(self.lease / 3)
    }
}

/// A clock that goes on while the machine is suspended.
#[cfg(target_os = "linux")]
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// The time since the first look.
#[cfg(not(target_os = "linux"))]
pub(crate) fn now() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    // Not zero: there are times before it.
    FIRST.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(3600)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
