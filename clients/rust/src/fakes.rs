// SPDX-License-Identifier: MIT
//! A test double: locks of one process, without a server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{Arg, Cmd, Value};
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::library::{Double, Servers, Source};
use crate::locks::Locks;
use crate::settings::{now, Settings, NEVER};
use crate::state::{Client, HoldId};

/// Locks without a server, for unit tests: give the program's code [`locks`](FakeLocks::locks). They are those of one process, and
/// have a fair queue. Guarded commands are noted, and not run: their reply is OK, or what [`reply_with`](FakeLocks::reply_with) says.
#[derive(Clone)]
pub struct FakeLocks {
    locks: Locks,
    server: FakeServer,
}

impl std::fmt::Debug for FakeLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeLocks")
    }
}

impl Default for FakeLocks {
    fn default() -> FakeLocks {
        let server = FakeServer::default();
        let locks = Locks(Client::new(Servers(Source::Fake(Arc::new(server.clone()))), Settings::default()));
        FakeLocks { locks, server }
    }
}

impl FakeLocks {
    /// Returns locks of which nobody holds any.
    pub fn new() -> FakeLocks {
        FakeLocks::default()
    }

    /// What the program works with.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Takes all holds of the lock away, and reports them lost, as after a failure.
    pub fn lose(&self, key: impl AsRef<[u8]>) {
        let is_it = |of: &[u8]| of == key.as_ref();
        self.server.lock().holds.retain(|hold| !is_it(&hold.key));
        self.locks.0.with(|state| {
            let lost: Vec<HoldId> = state.held.keys().filter(|hold| is_it(&hold.key)).cloned().collect();
            lost.iter().for_each(|hold| state.lose(hold, "forced"));
        });
    }

    /// Returns what was guarded while its lock was held: the words of each command.
    pub fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        self.server.lock().commands.clone()
    }

    /// Sets what answers the commands that are guarded from now on.
    pub fn reply_with(&self, reply: impl Fn(&[Vec<u8>]) -> Value + Send + 'static) {
        self.server.lock().reply = Some(Box::new(reply));
    }
}

/// Answers a guarded command, by its words.
type Reply = Box<dyn Fn(&[Vec<u8>]) -> Value + Send>;

/// Answers the commands of this crate, with one session whose id is 1.
#[derive(Clone, Default)]
struct FakeServer(Arc<Mutex<Fake>>);

#[derive(Default)]
struct Fake {
    token: u64,
    holds: Vec<FakeHold>,
    queue: Vec<FakeRequest>,
    rows: Vec<Value>,
    commands: Vec<Vec<Vec<u8>>>,
    reply: Option<Reply>,
}

struct FakeHold {
    key: Vec<u8>,
    owner: Vec<u8>,
    token: u64,
    limit: u64,
    permits: u64,
    /// Of one that is left to its lease.
    end: Duration,
}

#[derive(Clone)]
struct FakeRequest {
    keys: Vec<Vec<u8>>,
    owner: Vec<u8>,
    limit: u64,
    permits: u64,
    end: Duration,
}

fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

fn number(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The words of a command.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn of(command: &Cmd) -> Words {
        let simple = |word: Arg<&[u8]>| if let Arg::Simple(bytes) = word { Some(bytes.to_vec()) } else { None };
        Words(command.args_iter().filter_map(simple).collect())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|word| word == name.as_bytes())
    }

    fn number_at(&self, at: usize) -> u64 {
        self.0.get(at).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.find(name).map(|at| self.number_at(at + 1))
    }
}

impl FakeServer {
    fn lock(&self) -> MutexGuard<'_, Fake> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn reply(self, command: Cmd) -> Result<Value> {
        let words = Words::of(&command);
        let blocks = words.0[0] == b"DLOCK.SESSION";
        let end = now() + Duration::from_millis(words.number("BLOCK").filter(|_| blocks).unwrap_or(0));
        loop {
            let reply = self.lock().answer(&words)?;
            match &reply {
                Value::Array(reply) if blocks && reply[3] == Value::Array(Vec::new()) && now() < end => {
                    sleep(Duration::from_millis(1)).await;
                }
                _ => return Ok(reply),
            }
        }
    }
}

impl Double for FakeServer {
    fn answer(&self, command: Cmd) -> BoxFuture<'static, Result<Value>> {
        self.clone().reply(command).boxed()
    }
}

impl Fake {
    fn answer(&mut self, words: &Words) -> Result<Value> {
        self.settle();
        let is_guard = words.0[0] == b"DLOCK.GUARD";
        let token = if is_guard { words.number_at(2) } else { words.number("TOKEN").unwrap_or(0) };
        let key = words.0[1].clone();
        let at = self.holds.iter().position(|hold| hold.key == key && hold.token == token);
        let unheld = || Error::NotHeld("NOTHELD the owner does not hold this lock (under this token)".into());
        let reply = match &*String::from_utf8_lossy(&words.0[0]) {
            "DLOCK.SESSION" => {
                let seen = words.find("SEEN").map_or(0, |at| words.number_at(at + 2));
                let news = self.rows.iter().skip(usize::try_from(seen).unwrap_or(0)).cloned().collect();
                Value::Array(vec![number(1), number(self.rows.len() as u64), number(60_000), Value::Array(news)])
            }
            "DLOCK.CANCEL" => {
                let before = self.queue.len();
                self.queue.retain(|request| request.owner != words.0[2]);
                number((before - self.queue.len()) as u64)
            }
            "DLOCK.HELD" => self.holds.iter().find(|hold| hold.key == key).map_or(Value::Nil, |hold| {
                Value::Array(vec![number(hold.token), number(1), number(0), bulk(&hold.owner)])
            }),
            "DLOCK.GUARD" => {
                at.ok_or_else(|| Error::Fenced("FENCED the lock is not held under this token".into()))?;
                let command = words.0[3..].to_vec();
                let reply = self.reply.as_ref().map_or(Value::Okay, |reply| reply(&command));
                self.commands.push(command);
                reply
            }
            "DLOCK.RELEASE" => {
                self.holds.remove(at.ok_or_else(unheld)?);
                number(0)
            }
            "DLOCK.RENEW" => {
                let (hold, lease) = (&mut self.holds[at.ok_or_else(unheld)?], words.number_at(3));
                if words.find("IN").is_some() {
                    Value::Array(vec![number(lease), number(1)])
                } else {
                    hold.end = now() + Duration::from_millis(lease);
                    number(lease)
                }
            }
            _ => self.acquire(words),
        };
        self.settle();
        Ok(reply)
    }

    fn acquire(&mut self, words: &Words) -> Value {
        let first = if words.0[0] == b"DLOCK.MACQUIRE" { 2 } else { 1 };
        let session = words.find("IN").unwrap_or(4);
        let block = words.number("BLOCK");
        let request = FakeRequest {
            keys: words.0[first..session - 2].to_vec(),
            owner: words.0[session - 2].clone(),
            limit: if words.find("SHARED").is_some() { u64::MAX } else { words.number("LIMIT").unwrap_or(1) },
            permits: words.number("PERMITS").unwrap_or(1),
            end: block.filter(|ms| *ms > 0).map_or(NEVER, |ms| now() + Duration::from_millis(ms)),
        };
        if !self.queue.iter().any(|before| before.meets(&request)) && self.fits(&request) {
            let tokens: Vec<Value> = request.keys.iter().map(|key| number(self.grant(key, &request))).collect();
            let granted = if first == 2 { Value::Array(tokens) } else { tokens[0].clone() };
            return Value::Array(vec![granted, number(1)]);
        }
        if block.is_none() {
            return Value::Nil;
        }
        self.queue.push(request);
        Value::Array(vec![number(0), number(self.queue.len() as u64), number(1)])
    }

    fn fits(&self, request: &FakeRequest) -> bool {
        request.keys.iter().all(|key| {
            let others = || self.holds.iter().filter(|hold| hold.key == *key);
            let limit = others().map(|hold| hold.limit).fold(request.limit, u64::min);
            others().map(|hold| hold.permits).sum::<u64>() + request.permits <= limit
        })
    }

    fn grant(&mut self, key: &[u8], request: &FakeRequest) -> u64 {
        self.token += 1;
        self.holds.push(FakeHold {
            key: key.to_vec(),
            owner: request.owner.clone(),
            token: self.token,
            limit: request.limit,
            permits: request.permits,
            end: NEVER,
        });
        self.token
    }

    /// Ends what has ended, and grants what can be granted, in order.
    fn settle(&mut self) {
        self.holds.retain(|hold| hold.end > now());
        let mut before: Vec<FakeRequest> = Vec::new();
        for request in std::mem::take(&mut self.queue) {
            if !before.iter().any(|one| one.meets(&request)) && self.fits(&request) {
                for key in &request.keys {
                    let token = self.grant(key, &request);
                    self.row("granted", key, &request.owner, token);
                }
            } else if request.end <= now() {
                self.row("timeout", &request.keys[0], &request.owner, 0);
            } else {
                before.push(request);
            }
        }
        self.queue = before;
    }

    fn row(&mut self, word: &str, key: &[u8], owner: &[u8], token: u64) {
        let row = vec![
            number(self.rows.len() as u64 + 1),
            bulk(word.as_bytes()),
            bulk(key),
            bulk(owner),
            number(token),
            number(60_000),
        ];
        self.rows.push(Value::Array(row));
    }
}

impl FakeRequest {
    fn meets(&self, other: &FakeRequest) -> bool {
        self.keys.iter().any(|key| other.keys.contains(key))
    }
}
