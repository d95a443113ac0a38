//! A hundred thousand leases that end within a second, each with a waiter.
//!
//! They wait in a session: equally many connections would not fit in the server's memory.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlock_harness::Server;

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::pause::Pauses;
use crate::tools::percentile::Durations;
use crate::waiting::session::{Listener, QUEUED};
use crate::way::{way, Figure, Opened, Way};

const LEASES: usize = 100_000;

/// Opens a server for them.
pub fn open() -> Opened {
    let server = Server::start();
    let lapses = Lapses {
        line: Line::wide(server.port())?,
        listener: Listener::new(&server, "lapse"),
        server,
    };
    let name = "100,000 leases end in one second, in a session";
    Ok(vec![way(name, lapses)])
}

struct Lapses {
    line: Line,
    listener: Listener,
    server: Server,
}

impl Way for Lapses {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let start = Instant::now();
        self.line.run_each(LEASES, "*2\r\n:#\r\n:1\r\n", |number| {
            format!("DLOCK.ACQUIRE lapse:{number} first 86400000")
        })?;
        self.line.run_each(LEASES, QUEUED, |number| {
            format!("DLOCK.ACQUIRE lapse:{number} second-{number} 3600000 BLOCK 0 IN bench")
        })?;
        let deadlines = end_within_a_second(&mut self.line, "lapse", LEASES, start.elapsed())?;
        let (late, pauses) = self.watch(&deadlines)?;
        self.line.run_each(LEASES, ":0\r\n", |number| {
            format!("DLOCK.RELEASE lapse:{number} second-{number}")
        })?;
        Ok([late.figures(), pauses.figures()].concat())
    }
}

/// Makes the leases of `first` on the locks end evenly over the second after the `lead`. Returns when they end.
///
/// All waiters are queued already, so the lead can be short, and is known to suffice: renewing all leases takes less time than
/// taking the locks and queueing.
///
/// # Errors
/// If the first lease ends before the last one was renewed.
pub fn end_within_a_second(
    line: &mut Line,
    name: &str,
    count: usize,
    lead: Duration,
) -> Result<Vec<Duration>, Failure> {
    let first_end = now()? + lead;
    let mut deadlines = Vec::with_capacity(count);
    line.run_each(count, ":#\r\n", |number| {
        let end = first_end + Duration::from_secs(1).mul_f64(number as f64 / count as f64);
        let now = now().unwrap_or(end);
        let lease_ms = end.saturating_sub(now).as_millis().max(1) as u64;
        // The server begins to count when it reads this: the lease ends no earlier, except for rounding.
        deadlines.push(now + Duration::from_millis(lease_ms));
        format!("DLOCK.RENEW {name}:{number} first {lease_ms}")
    })?;
    if now()? >= first_end {
        return Err(
            "leases ended before all were renewed: something else keeps the machine busy".into(),
        );
    }
    Ok(deadlines)
}

impl Lapses {
    /// Receives all grants. Returns how late each was.
    fn watch(&mut self, deadlines: &[Duration]) -> Result<(Durations, Pauses), Failure> {
        let mut late = Durations::new();
        let listener = &mut self.listener;
        let ((), pauses) = Pauses::during(&self.server, || {
            listener.hear(LEASES, |key| {
                let number: Option<usize> = key.strip_prefix("lapse:").and_then(|n| n.parse().ok());
                let deadline = number.and_then(|number| deadlines.get(number));
                late.record(lateness(*deadline.ok_or("another lock was granted")?)?);
                Ok(())
            })
        })?;
        Ok((late, pauses))
    }
}

/// A server counts whole milliseconds, and may have read its clock a fraction of one before the request: a lease may end this
/// much earlier than its length after the request.
const ROUNDING: Duration = Duration::from_millis(2);

/// Returns the time since the end of a lease.
///
/// # Errors
/// If that lease cannot have ended yet.
pub fn lateness(deadline: Duration) -> Result<Duration, Failure> {
    let now = now()?;
    if now + ROUNDING < deadline {
        let early = deadline - now;
        return Err(
            format!("a lock was granted {early:?} before the lease of its holder ended").into(),
        );
    }
    Ok(now.saturating_sub(deadline))
}

fn now() -> Result<Duration, Failure> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}
