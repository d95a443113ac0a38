//! Log lines about replicas: more or fewer are connected than configured, and others were refused.

use super::links::on;
use crate::ffi::log;
use crate::ffi::memory::MainThread;
use crate::node::gate;
use crate::settings::config;
use dlock_engine::{Millis, SteadyMs};
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests for a resynchronisation that were refused, and links that were closed, since the last log line about them.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Counts a request for a resynchronisation that was refused, or a link that was closed.
pub(super) fn count_refused() {
    REFUSED.fetch_add(1, Ordering::Relaxed);
}

/// The last reports, and when the next ones may follow.
struct Report {
    // The number of connected replicas, compared with the configured one.
    count: Count,
    // When the next line about refused requests may follow.
    refusals: Backoff,
}

static REPORT: MainThread<Report> = MainThread::new(Report {
    count: Count::AsConfigured,
    refusals: Backoff::NEW,
});

/// Logs changes of the number of connected replicas, and refused requests.
pub(super) fn report(connected: usize, now: SteadyMs) {
    let Some(mut report) = REPORT.borrow() else {
        return;
    };
    let refused = REFUSED.load(Ordering::Relaxed);
    if refused > 0 && report.refusals.reports(now) {
        REFUSED.store(0, Ordering::Relaxed);
        log::warning(&format!(
            "this server is a replica: with dlock.replicas it serves no replicas of its own ({refused} refused). Have them follow \
             its primary"
        ));
    }
    report.report_count(connected, now);
}

/// The number of replicas that are connected to a primary, compared with `dlock.replicas`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    AsConfigured,
    // More; the log has said so.
    More,
    // Fewer, since this time.
    Fewer(SteadyMs),
    // Fewer, and the log has said so.
    FewerReported,
}

/// How long fewer replicas must be connected before that is logged: after a failover they come one by one.
const FEWER_MS: Millis = 5_000;

/// Limits log lines about a repeated event: one at once, one a second later, and then after twice as long each time, up to a
/// minute. After a minute of silence it begins anew.
#[derive(Debug)]
struct Backoff {
    next: SteadyMs,
    pause: Millis,
}

impl Backoff {
    const SHORTEST: Millis = 1_000;
    const LONGEST: Millis = 60_000;

    const NEW: Backoff = Backoff {
        next: SteadyMs(0),
        pause: 0,
    };

    /// Returns true if it is reported now.
    fn reports(&mut self, now: SteadyMs) -> bool {
        if now < self.next {
            return false;
        }
        self.pause = match now.since(self.next) > Self::LONGEST {
            true => Self::SHORTEST,
            false => (self.pause * 2).clamp(Self::SHORTEST, Self::LONGEST),
        };
        self.next = now.after(self.pause);
        true
    }
}

impl Report {
    /// Logs more or fewer replicas than configured, once as long as it lasts, and the end of it.
    fn report_count(&mut self, connected: usize, now: SteadyMs) {
        let configured = config::REPLICAS.amount();
        let before = self.count;
        self.count = match before {
            _ if !on() || !gate::primary() => Count::AsConfigured,
            _ if connected > configured => Count::More,
            _ if connected == configured => Count::AsConfigured,
            Count::Fewer(since) if now >= since.after(FEWER_MS) => Count::FewerReported,
            Count::Fewer(_) | Count::FewerReported => before,
            Count::AsConfigured | Count::More => Count::Fewer(now),
        };
        match self.count {
            after if after == before => {}
            Count::More => log::warning(&format!(
                "connected replicas: {connected}, with dlock.replicas {configured}. dlock uses {connected} until there \
                 are fewer. A replica that does not count can be promoted without the grants that others have confirmed"
            )),
            Count::FewerReported => log::warning(&format!(
                "connected replicas: {connected}, with dlock.replicas {configured}. Look for those that are missing: they may be \
                 down, or follow a replica of this server, which serves none"
            )),
            Count::AsConfigured if before == Count::FewerReported && connected == configured => log::notice(&format!(
                "connected replicas: {connected}, as dlock.replicas says"
            )),
            _ => {}
        }
    }
}
