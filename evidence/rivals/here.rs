//! Clients that are threads of this program: `SET NX PX` with `WAIT`, dlock, and no lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use dlock_evidence::group::ask_sentinel;
use dlock_harness::belief::{now, Belief, End, Micros, MILLISECOND};
use dlock_harness::redis::Value;
use dlock_harness::{command, reply_of, rivals, Wire};
use fastrand::Rng;

use crate::contestant::{Contestant, LEASE_MS, LOCKS, LONG_MS, SHORT_MS, WAIT_MS};
use crate::scene::Ways;
use crate::seen::GROUPS;

/// How long a connection may take, and an answer in addition to the time that the server may wait.
const CONNECTING: Duration = Duration::from_millis(500);
const BOUND: Duration = Duration::from_millis(2_000);

/// How long `WAIT` waits, and how often a client polls a taken lock.
const REPLICA_MS: u64 = 1_000;
const POLL: Duration = Duration::from_millis(20);

/// How long a client rests after an error.
const REST: Duration = Duration::from_millis(50);

/// How long before its end a client takes a lease for ended.
const ALLOWANCE: Micros = 2 * MILLISECOND;

/// The beginnings of answers of a server that is no primary, or may no longer be one.
const ELSEWHERE: [&str; 6] = [
    "READONLY",
    "NOACK",
    "NOREPLICAS",
    "UNBLOCKED",
    "LOADING",
    "MASTERDOWN",
];

/// A client.
pub struct Client<'a> {
    pub contestant: Contestant,
    pub group: (usize, &'a Ways),
    pub name: String,
    pub over: &'a AtomicBool,
    pub granted: &'a [AtomicUsize; GROUPS],
    pub random: Rng,
    pub link: Option<Wire>,
}

impl Client<'_> {
    /// Takes and releases locks until the end. Returns its beliefs.
    pub fn work(mut self) -> Vec<Belief> {
        let mut beliefs = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let lock = self.random.usize(..LOCKS);
            let owner = format!("{}-{}", self.name, beliefs.len());
            let hold_ms = match self.random.u8(..10) {
                0 => self.random.u64(1_000..LONG_MS),
                _ => self.random.u64(1..SHORT_MS),
            };
            let Some(asked) = self.take(lock, &owner) else {
                continue;
            };
            let (from, end) = (now(), asked + LEASE_MS * MILLISECOND - ALLOWANCE);
            self.granted[self.group.0].fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(hold_ms));
            let given_back = now();
            let end_of_hold = match self.give_back(lock, &owner) {
                Some(true) => End::Released,
                Some(false) if given_back < end => End::Lost,
                _ => End::Unknown,
            };
            let until = given_back.min(end).max(from);
            beliefs.push(Belief {
                end: end_of_hold,
                ..Belief::new(lock.to_string(), &*self.name, from, until)
            });
            let pause = self.random.u64(1..SHORT_MS);
            sleep(Duration::from_millis(pause));
        }
        beliefs
    }

    /// Waits for a lock for a while. Returns when the granted request was sent.
    fn take(&mut self, lock: usize, owner: &str) -> Option<Micros> {
        match self.contestant {
            Contestant::SetWait => self.set_and_wait(lock, owner),
            Contestant::Nothing(_) => Some(now()),
            _ => {
                let asked = now();
                let line = format!("DLOCK.ACQUIRE lock:{lock} {owner} {LEASE_MS} BLOCK {WAIT_MS}");
                let reply = self.ask(&line, BOUND + Duration::from_millis(WAIT_MS));
                matches!(reply, Some(Value::Array(_))).then_some(asked)
            }
        }
    }

    fn set_and_wait(&mut self, lock: usize, owner: &str) -> Option<Micros> {
        let until = now() + WAIT_MS * MILLISECOND;
        while now() < until && !self.over.load(Ordering::Relaxed) {
            let asked = now();
            match self.ask(&format!("SET lock:{lock} {owner} NX PX {LEASE_MS}"), BOUND) {
                Some(Value::Okay) => {}
                Some(_) => {
                    sleep(POLL);
                    continue;
                }
                None => return None,
            }
            return match self.ask(&format!("WAIT 1 {REPLICA_MS}"), BOUND) {
                Some(Value::Int(replicas)) if replicas >= 1 => Some(asked),
                _ => {
                    self.give_back(lock, owner);
                    None
                }
            };
        }
        None
    }

    /// Releases a lock. Returns whether the client still had it; none if that is unknown.
    fn give_back(&mut self, lock: usize, owner: &str) -> Option<bool> {
        match self.contestant {
            Contestant::Nothing(_) => Some(true),
            Contestant::SetWait => {
                let mut script = dlock_harness::redis::cmd("EVAL");
                let key = format!("lock:{lock}");
                script.arg(rivals::COMPARE_AND_DELETE).arg(1).arg(key);
                script.arg(owner);
                match self.call(&script.get_packed_command(), BOUND)? {
                    Ok(Value::Int(deleted)) => Some(deleted == 1),
                    _ => None,
                }
            }
            _ => {
                let line = format!("DLOCK.RELEASE lock:{lock} {owner}");
                match self.call(&command(&line).get_packed_command(), BOUND)? {
                    Ok(_) => Some(true),
                    Err(error) if error.starts_with("NOTHELD") => Some(false),
                    Err(_) => None,
                }
            }
        }
    }

    fn ask(&mut self, line: &str, bound: Duration) -> Option<Value> {
        let reply = self.call(&command(line).get_packed_command(), bound);
        if let Some(Ok(value)) = reply {
            return Some(value);
        }
        sleep(REST);
        None
    }

    /// Sends a command to the primary; none without an answer. After that, and after the answer of a server that is no primary,
    /// the next call asks the Sentinels again.
    fn call(&mut self, bytes: &[u8], bound: Duration) -> Option<Result<Value, String>> {
        if self.link.is_none() {
            let sentinels = self.group.1.sentinels.iter();
            let primary = sentinels.copied().find_map(ask_sentinel)?;
            let way = self.group.1.ways.get(&primary)?;
            self.link = Wire::open(*way, CONNECTING).ok();
        }
        let mut link = self.link.take()?;
        link.set_read_timeout(Some(bound));
        link.send_bytes(bytes).ok()?;
        let reply = reply_of(link.read_value().ok()?);
        let is_elsewhere = |error: &String| ELSEWHERE.iter().any(|code| error.starts_with(code));
        if !reply.as_ref().is_err_and(is_elsewhere) {
            self.link = Some(link);
        }
        Some(reply)
    }
}
