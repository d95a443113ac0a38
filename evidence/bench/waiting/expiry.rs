//! Expiry under a waiter: how late the next waiter has the lock.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_harness::{command, Ask, Grant, Server, Wire, PATIENCE};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::percentile::Durations;
use crate::tools::replies::Pattern;
use crate::way::{way, Figure, Opened, Way};

/// The number of locks whose leases end in a sample, each with a waiter.
const LOCKS: u64 = 300;

/// The first lease ends after this time, when all waiters are queued.
const FIRST_MS: u64 = 300;

/// The number of tries on a machine that is too busy.
const TRIES: u32 = 10;

/// The time from one end to the next: no divisor of any regular interval of a server.
const STEP_MS: u64 = 3;

/// Opens a server that has nothing else to do.
pub fn open() -> Opened {
    let server = Server::start();
    let lines = (0..LOCKS)
        .map(|_| Line::narrow(server.port()))
        .collect::<Result<_, _>>()?;
    let expiry = Expiry {
        connection: server.connection(),
        lines,
        server,
    };
    Ok(vec![way("lease ends → waiter", expiry)])
}

struct Expiry {
    connection: Wire,
    lines: Vec<Line>,
    server: Server,
}

impl Way for Expiry {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        for _ in 0..TRIES {
            let deadlines_ms = self.take_all();
            let are_in_time = self.queue_up(&deadlines_ms)?;
            let late = self.watch(&deadlines_ms)?;
            for number in 0..LOCKS {
                let _: u64 = self
                    .connection
                    .ask(&format!("DLOCK.RELEASE expiry:{number} second"));
            }
            if are_in_time {
                return Ok(late.figures());
            }
        }
        Err("leases ended before all were in line: something else keeps the machine busy".into())
    }
}

impl Expiry {
    /// Takes all locks. Returns when their leases end, by the server's own clock: without waiters, that is when the key expires.
    fn take_all(&mut self) -> Vec<u64> {
        (0..LOCKS)
            .map(|number| {
                let lease_ms = FIRST_MS + number * STEP_MS;
                let _: Grant = self
                    .connection
                    .ask(&format!("DLOCK.ACQUIRE expiry:{number} first {lease_ms}"));
                self.connection.ask(&format!("PEXPIRETIME expiry:{number}"))
            })
            .collect()
    }

    /// Queues a waiter for each lock. Returns whether all were queued before the first lease ended.
    fn queue_up(&mut self, deadlines_ms: &[u64]) -> Result<bool, Failure> {
        for (number, line) in self.lines.iter_mut().enumerate() {
            let acquire = format!("DLOCK.ACQUIRE expiry:{number} second 3600000 BLOCK 0");
            line.send(&command(&acquire).get_packed_command())?;
        }
        let first = Duration::from_millis(*deadlines_ms.first().ok_or("there are no locks")?);
        let mut blocked = 0;
        while blocked < self.lines.len() {
            if SystemTime::now().duration_since(UNIX_EPOCH)? >= first {
                return Ok(false);
            }
            blocked = self.server.info("clients").number("blocked_clients");
        }
        Ok(true)
    }

    /// Waits until each waiter has its lock. Returns how late that was.
    fn watch(&mut self, deadlines_ms: &[u64]) -> Result<Durations, Failure> {
        let granted = Pattern::new("*2\r\n:#\r\n:1\r\n");
        let mut late = Durations::new();
        let mut waiting: Vec<(&mut Line, u64)> = self
            .lines
            .iter_mut()
            .zip(deadlines_ms.iter().copied())
            .collect();
        while !waiting.is_empty() {
            let ready = readable(&waiting)?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            for at in ready.into_iter().rev() {
                let (line, deadline_ms) = waiting.remove(at);
                line.expect(&granted, 1)?;
                let lateness = now
                    .checked_sub(Duration::from_millis(deadline_ms))
                    .ok_or("a lock was granted before the lease of its holder had ended")?;
                late.record(lateness);
            }
        }
        Ok(late)
    }
}

/// Returns the lines that have data to read, in order; waits for the first.
fn readable(waiting: &[(&mut Line, u64)]) -> Result<Vec<usize>, Failure> {
    let mut descriptors: Vec<PollFd> = waiting
        .iter()
        .map(|(line, _)| PollFd::new(line.as_fd(), PollFlags::POLLIN))
        .collect();
    let patience = PollTimeout::try_from(PATIENCE)?;
    if poll(&mut descriptors, patience)? == 0 {
        return Err(format!("{} who wait were not granted the lock", waiting.len()).into());
    }
    let is_ready = |descriptor: &PollFd| descriptor.any().unwrap_or(false);
    Ok((0..waiting.len())
        .filter(|&at| is_ready(&descriptors[at]))
        .collect())
}
