//! A hundred thousand leases that end within a second, each with somebody who waits for it.
//!
//! They wait by a channel: as many connections would not fit in the server's memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_integration::redis::{self, Connection};
use dlock_integration::Server;

use crate::failure::Failure;
use crate::line::Line;
use crate::notice::{Listener, QUEUED};
use crate::pause::Pauses;
use crate::percentile::Durations;
use crate::way::{Figure, Opened, Way};

const LEASES: usize = 100_000;

/// The first lease ends this long after the first lock was taken: when all wait.
const LEAD: Duration = Duration::from_secs(4);

/// How often that is tried on a machine that is too busy, each time with twice the lead.
const TRIES: u32 = 4;

/// The way.
pub const LAPSES: &str = "100,000 leases end in one second, NOTIFY";

/// A server for it.
pub fn open() -> Opened {
    let server = Server::start();
    Ok(vec![Box::new(Lapses {
        line: Line::wide(server.port())?,
        connection: server.connection(),
        listener: Listener::new(&server, "news")?,
        server,
    })])
}

struct Lapses {
    line: Line,
    connection: Connection,
    listener: Listener,
    server: Server,
}

impl Way for Lapses {
    fn name(&self) -> &str {
        LAPSES
    }

    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        for lead in (0..TRIES).map(|tried| LEAD * 2_u32.pow(tried)) {
            let start = now()?;
            let deadlines = self.take_all(start + lead)?;
            // To queue up takes about as long as to take them all.
            if now()? >= start + lead / 3 {
                self.line.run_each(LEASES, ":#\r\n", |number| {
                    format!("DLOCK.FORCERELEASE lapse:{number}")
                })?;
                continue;
            }
            self.line.run_each(LEASES, QUEUED, |number| {
                format!("DLOCK.ACQUIRE lapse:{number} second-{number} 3600000 NOTIFY news")
            })?;
            let are_in_time = now()? < start + lead;
            let (late, pauses) = self.watch(&deadlines)?;
            self.line.run_each(LEASES, ":0\r\n", |number| {
                format!("DLOCK.RELEASE lapse:{number} second-{number}")
            })?;
            if are_in_time {
                return Ok([late.figures(), pauses.figures()].concat());
            }
        }
        Err("leases ended before all were in line: something else keeps the machine busy".into())
    }
}

impl Lapses {
    /// Takes all locks, the first of them until then; when their leases end, by the server's own word.
    fn take_all(&mut self, first_end: Duration) -> Result<Vec<Duration>, Failure> {
        let lease_ms = |number: usize| {
            let end = first_end + Duration::from_secs(1).mul_f64(number as f64 / LEASES as f64);
            let left = end.saturating_sub(now().unwrap_or(end));
            left.as_millis().max(1)
        };
        self.line.run_each(LEASES, "*2\r\n:#\r\n:1\r\n", |number| {
            let lease_ms = lease_ms(number);
            format!("DLOCK.ACQUIRE lapse:{number} first {lease_ms}")
        })?;
        let mut pipeline = redis::pipe();
        for number in 0..LEASES {
            pipeline.cmd("PEXPIRETIME").arg(format!("lapse:{number}"));
        }
        let deadlines_ms: Vec<u64> = pipeline.query(&mut self.connection)?;
        Ok(deadlines_ms
            .into_iter()
            .map(Duration::from_millis)
            .collect())
    }

    /// Hears of all grants, and how late each was.
    fn watch(&mut self, deadlines: &[Duration]) -> Result<(Durations, Pauses), Failure> {
        let mut late = Durations::new();
        let listener = &mut self.listener;
        let ((), pauses) = Pauses::during(&self.server, || {
            listener.hear(LEASES, |key| {
                let number: Option<usize> = key.strip_prefix("lapse:").and_then(|n| n.parse().ok());
                let deadline = number.and_then(|number| deadlines.get(number));
                let deadline = deadline.ok_or("another lock was granted")?;
                let lateness = now()?.checked_sub(*deadline);
                late.record(
                    lateness
                        .ok_or("a lock was granted before the lease of its holder had ended")?,
                );
                Ok(())
            })
        })?;
        Ok((late, pauses))
    }
}

fn now() -> Result<Duration, Failure> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}
