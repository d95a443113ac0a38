// SPDX-License-Identifier: MIT
//! How long things last, and the observer of what happens.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};

/// What happens, for whoever counts it. Write what you need; it is called at once, so it must not block. Each hold is granted
/// once, and released or lost once.
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
    /// It was released after so long.
    fn released(&self, key: &[u8], after: Duration) {}
    /// It was held, and is no more.
    fn lost(&self, key: &[u8], reason: &str) {}
}

/// Longer than any program waits: a hundred years. No time so long after now overflows, here or in the server.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Later than everything.
pub(crate) const NEVER: Duration = Duration::MAX;

struct Nobody;
impl Observer for Nobody {}

/// What has happened to a hold, to be reported by whoever has no guard: the program's own functions may block.
pub(crate) enum Event {
    Granted { key: Vec<u8>, after: Duration },
    Released { key: Vec<u8>, after: Duration },
    Lost { key: Vec<u8>, token: u64, owner: Vec<u8>, reason: String },
}

impl dyn Observer {
    /// Reports it. A fault of the program's own stops nothing here.
    pub(crate) fn report(&self, event: &Event) {
        if let Event::Lost { key, token, owner, reason } = event {
            let (key, owner) = (String::from_utf8_lossy(key), String::from_utf8_lossy(owner));
            tracing::warn!(key = &*key, owner = &*owner, token, reason, "a lock is lost");
        }
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| match event {
            Event::Granted { key, after } => self.granted(key, *after),
            Event::Released { key, after } => self.released(key, *after),
            Event::Lost { key, reason, .. } => self.lost(key, reason),
        }));
        if told.is_err() {
            tracing::error!("the observer has panicked");
        }
    }
}

/// How long things last.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// How long a lock stays taken after this program dies or loses the server. Default: 10 s.
    pub lease: Duration,
    /// How long a program that hangs, its connection open, keeps its locks. Default: 30 s.
    pub hang_timeout: Duration,
    /// How long a connect or a reply may take. Default: 3 s.
    pub reply_timeout: Duration,
    /// How long before the end of a lease the client stops believing in it. Default: 100 ms.
    pub clock_margin: Duration,
    /// Receives each event.
    pub observer: Arc<dyn Observer>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("lease", &self.lease)
            .field("hang_timeout", &self.hang_timeout)
            .field("reply_timeout", &self.reply_timeout)
            .field("clock_margin", &self.clock_margin)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let [lease, hang_timeout, reply_timeout] = [10, 30, 3].map(Duration::from_secs);
        let (clock_margin, observer) = (Duration::from_millis(100), Arc::new(Nobody));
        Settings { lease, hang_timeout, reply_timeout, clock_margin, observer }
    }
}

impl Settings {
    /// Returns the default settings.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Sets the lease.
    pub fn lease(self, lease: Duration) -> Settings {
        Settings { lease, ..self }
    }

    /// Sets how long a program that hangs keeps its locks.
    pub fn hang_timeout(self, hang_timeout: Duration) -> Settings {
        Settings { hang_timeout, ..self }
    }

    /// Changes nothing.
    #[deprecated(since = "0.5.0", note = "is the server's `dlock.claim-window-ms` now")]
    pub fn queue_grace(self, _: Duration) -> Settings {
        self
    }

    /// Sets how long a connect or a reply may take.
    pub fn reply_timeout(self, reply_timeout: Duration) -> Settings {
        Settings { reply_timeout, ..self }
    }

    /// Sets how long before the end of a lease the client stops believing in it.
    pub fn clock_margin(self, clock_margin: Duration) -> Settings {
        Settings { clock_margin, ..self }
    }

    /// Sets the observer.
    pub fn observer(self, observer: impl Observer + 'static) -> Settings {
        Settings { observer: Arc::new(observer), ..self }
    }

    pub(crate) fn checked(mut self) -> Result<Settings> {
        let times = [
            ("lease", &mut self.lease),
            ("hang_timeout", &mut self.hang_timeout),
            ("reply_timeout", &mut self.reply_timeout),
        ];
        for (name, value) in times {
            if *value < Duration::from_millis(1) {
                return Err(Error::invalid(name, format!("must be at least 1 ms, not {value:?}")));
            }
            *value = (*value).min(FAR);
        }
        if self.clock_margin >= self.lease {
            return Err(Error::invalid("clock_margin", "must be shorter than the lease"));
        }
        self.hang_timeout = self.hang_timeout.max(self.lease);
        Ok(self)
    }
}

/// Returns the time of a clock that continues while the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(crate) fn now() -> Duration {
    use rustix::time::{clock_gettime, ClockId};
    // Darwin's monotonic clock continues, and Linux's stalls.
    #[cfg(target_vendor = "apple")]
    let time = clock_gettime(ClockId::Monotonic);
    #[cfg(not(target_vendor = "apple"))]
    let time = clock_gettime(ClockId::Boottime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// Returns the time since the first call, and an hour: there are times before it.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(crate) fn now() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(3600)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
