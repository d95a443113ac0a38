//! The ways to make a lock.

use std::thread;
use std::time::Duration;

use dlock_harness::redis::{cmd, from_redis_value, Cmd, ConnectionLike, Value};
use dlock_harness::rivals::{COMPARE_AND_DELETE, COMPARE_AND_EXPIRE, TAKE_IN_TURN};
use dlock_harness::{command, Ask, Grant, Wire};
use serde::{Deserialize, Serialize};

/// A lease that outlasts every run.
pub const LONG_MS: u64 = 24 * 3_600_000;

/// How a lock is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// `SETNX`; `DEL`.
    Setnx,
    /// `SETNX`, then `PEXPIRE`; `DEL`.
    SetnxExpire,
    /// `SET NX PX`; `DEL`.
    SetDel,
    /// `SET NX PX`; `GET`, and `DEL` if it is still ours.
    SetGetDel,
    /// `SET NX PX`; a script that deletes the key if it is still ours.
    SetCompare,
    /// A queue kept by scripts. A place is dropped if its client has not asked for this many milliseconds.
    ScriptedQueue { window_ms: u64 },
    /// DLOCK, in one of its ways.
    Dlock(Use),
    /// DLOCK, used wrongly: the fault of the step also happens with it.
    Misused(Use),
}

/// The feature of DLOCK that a step uses, and its misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Use {
    /// The hold ends with the connection. Misused: it does not, and has a long lease.
    Ephemeral,
    /// An owner that has lost the lock learns it at the release. Misused: the release is forced.
    Release,
    /// The server renews the lease. Misused: it is not renewed.
    Auto,
    /// The token is checked at the write. Misused: it is not.
    Guard,
    /// Clients wait in the lock's queue. Misused: they poll.
    Block,
    /// Clients wait by a ticket that ends with the wait. Misused: it is kept for the window of a [`Way::ScriptedQueue`].
    Ticket { window_ms: u64 },
    /// An owner that holds the lock takes it once more. Misused: under another name.
    Reenter,
    /// Several locks are taken in one step. Misused: one after the other, by polling.
    Many,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// It was ours.
    Ours,
    /// It was another owner's, and is taken away.
    Stolen,
    /// It was no longer ours, and nothing was changed.
    Lost,
}

/// A lock, an owner, and the way to take it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// How the lock is made.
    pub way: Way,
    /// The lock.
    pub key: String,
    /// The owner.
    pub owner: String,
    /// The lease.
    pub lease_ms: u64,
    /// The pause between two tries, where there are several.
    pub pause_ms: u64,
}

/// A lock in the hands of one client.
#[derive(Clone)]
pub struct Lock {
    terms: Terms,
    token: u64,
}

/// Returns the key of a scripted queue.
pub fn queue_of(key: &str) -> String {
    format!("{key}:queue")
}

/// Returns the key of the number of times that a lock was taken.
pub fn served(key: &str) -> String {
    format!("{key}:served")
}

impl Lock {
    /// Makes a lock that is not taken yet.
    pub fn new(terms: &Terms) -> Lock {
        Lock {
            terms: terms.clone(),
            token: 0,
        }
    }

    /// Makes the lock that a function takes which the holder calls.
    pub fn inner(&self) -> Lock {
        let mut terms = self.terms.clone();
        if terms.way == Way::Misused(Use::Reenter) {
            terms.owner.push_str("-inner");
        }
        Lock { terms, token: 0 }
    }

    /// Makes the lock with another key.
    pub fn other(&self, key: &str) -> Lock {
        let mut terms = self.terms.clone();
        terms.key = key.to_owned();
        Lock { terms, token: 0 }
    }

    /// Takes two locks of DLOCK in one step, and releases them.
    pub fn take_both(first: &Lock, second: &Lock, connection: &mut Wire) {
        let Terms {
            key,
            owner,
            lease_ms,
            ..
        } = &first.terms;
        let keys = format!("2 {key} {}", second.terms.key);
        connection.run(&format!("DLOCK.MACQUIRE {keys} {owner} {lease_ms} BLOCK 0"));
        connection.run(&format!("DLOCK.MRELEASE {keys} {owner}"));
    }

    /// Takes the lock, however long it takes. Returns how many grants there had been when the server read the first try.
    pub fn take(&mut self, connection: &mut Wire) -> u64 {
        let try_it = self.acquire();
        // Both in one packet: no grant can come in between.
        let mut bytes = cmd("GET").arg(served(&self.terms.key)).get_packed_command();
        bytes.extend(try_it.get_packed_command());
        let mut replies = connection
            .req_packed_commands(&bytes, 0, 2)
            .expect("the server answers");
        let mut reply = replies.pop().expect("two replies");
        let before: Option<u64> = replies
            .pop()
            .map(|count| from_redis_value(&count).expect("a number, or nothing"))
            .expect("two replies");
        while !self.is_taken(&reply) {
            thread::sleep(Duration::from_millis(self.terms.pause_ms));
            reply = connection.ask_command(&try_it);
        }
        self.after_taking(connection);
        before.unwrap_or(0)
    }

    fn acquire(&self) -> Cmd {
        let Terms {
            key,
            owner,
            lease_ms,
            ..
        } = &self.terms;
        match self.terms.way {
            Way::Setnx | Way::SetnxExpire => command(&format!("SETNX {key} {owner}")),
            Way::SetDel | Way::SetGetDel | Way::SetCompare => {
                command(&format!("SET {key} {owner} NX PX {lease_ms}"))
            }
            Way::ScriptedQueue { window_ms } => {
                let mut eval = cmd("EVAL");
                eval.arg(TAKE_IN_TURN).arg(3).arg(key);
                eval.arg(queue_of(key)).arg(format!("{key}:until"));
                eval.arg(owner).arg(lease_ms).arg(window_ms);
                eval
            }
            Way::Dlock(Use::Ephemeral) => command(&format!(
                "DLOCK.ACQUIRE {key} {owner} {lease_ms} BLOCK 0 EPHEMERAL"
            )),
            Way::Misused(Use::Ephemeral) => {
                command(&format!("DLOCK.ACQUIRE {key} {owner} {LONG_MS} BLOCK 0"))
            }
            Way::Dlock(Use::Ticket { .. }) => command(&format!(
                "DLOCK.FAIRACQUIRE {key} {owner} {lease_ms} BLOCK 0"
            )),
            Way::Misused(Use::Ticket { window_ms }) => command(&format!(
                "DLOCK.FAIRACQUIRE {key} {owner} {lease_ms} BLOCK 0 CLAIM {window_ms}"
            )),
            Way::Misused(Use::Block | Use::Many) => {
                command(&format!("DLOCK.ACQUIRE {key} {owner} {lease_ms}"))
            }
            Way::Dlock(_) | Way::Misused(_) => {
                command(&format!("DLOCK.ACQUIRE {key} {owner} {lease_ms} BLOCK 0"))
            }
        }
    }

    /// Returns whether a try succeeded. Keeps the token.
    fn is_taken(&mut self, reply: &Value) -> bool {
        match reply {
            Value::Okay | Value::Int(1) => true,
            Value::Nil | Value::Int(0) => false,
            reply => {
                let (token, _): Grant = from_redis_value(reply).expect("a grant");
                self.token = token;
                true
            }
        }
    }

    fn after_taking(&self, connection: &mut Wire) {
        let Terms {
            key,
            owner,
            lease_ms,
            ..
        } = &self.terms;
        match self.terms.way {
            Way::SetnxExpire => connection.run(&format!("PEXPIRE {key} {lease_ms}")),
            Way::Dlock(Use::Auto) => {
                let token = self.token;
                // If the lease is over already, the release reports it.
                let _ = connection.try_ask(&format!(
                    "DLOCK.RENEW {key} {owner} {lease_ms} TOKEN {token} AUTO 0"
                ));
            }
            _ => {}
        }
    }

    /// Renews the lease, like a client's own renewal thread. Returns whether it was still ours.
    pub fn renew(&self, connection: &mut Wire) -> bool {
        let Terms {
            key,
            owner,
            lease_ms,
            ..
        } = &self.terms;
        match self.terms.way {
            Way::Dlock(_) | Way::Misused(_) => {
                let token = self.token;
                let line = format!("DLOCK.RENEW {key} {owner} {lease_ms} TOKEN {token}");
                connection.try_ask(&line).is_ok()
            }
            _ => {
                let mut eval = cmd("EVAL");
                eval.arg(COMPARE_AND_EXPIRE).arg(1).arg(key);
                eval.arg(owner).arg(lease_ms);
                connection.ask_command(&eval)
            }
        }
    }

    /// Writes the data that the lock protects. Returns whether the server accepted it.
    pub fn write(&self, connection: &mut Wire, key: &str, value: i64) -> bool {
        match self.terms.way {
            Way::Dlock(Use::Guard) => {
                let (lock, token) = (&self.terms.key, self.token);
                let line = format!("DLOCK.GUARD {lock} {token} SET {key} {value}");
                match connection.try_ask(&line) {
                    Ok(_) => true,
                    Err(error) if error.starts_with("FENCED") => false,
                    Err(error) => panic!("{line:?} was refused: {error}"),
                }
            }
            _ => {
                connection.run(&format!("SET {key} {value}"));
                true
            }
        }
    }

    /// Releases the lock.
    pub fn give(&self, connection: &mut Wire) -> Given {
        let Terms { key, owner, .. } = &self.terms;
        match self.terms.way {
            Way::Setnx | Way::SetnxExpire | Way::SetDel => self.delete(connection),
            Way::SetGetDel => {
                let holder: Option<String> = connection.ask(&format!("GET {key}"));
                if holder.as_ref() == Some(owner) {
                    self.delete(connection)
                } else {
                    Given::Lost
                }
            }
            Way::SetCompare | Way::ScriptedQueue { .. } => {
                let mut eval = cmd("EVAL");
                eval.arg(COMPARE_AND_DELETE).arg(1).arg(key).arg(owner);
                match connection.ask_command(&eval) {
                    true => Given::Ours,
                    false => Given::Lost,
                }
            }
            Way::Misused(Use::Release) => {
                self.release(connection, &format!("DLOCK.FORCERELEASE {key}"))
            }
            Way::Dlock(_) | Way::Misused(_) => {
                let token = self.token;
                let line = format!("DLOCK.RELEASE {key} {owner} TOKEN {token}");
                self.release(connection, &line)
            }
        }
    }

    /// Releases by `DEL`: by `GETDEL` here, which also shows the owner.
    fn delete(&self, connection: &mut Wire) -> Given {
        let holder: Option<String> = connection.ask(&format!("GETDEL {}", self.terms.key));
        match holder {
            Some(holder) if holder == self.terms.owner => Given::Ours,
            Some(_) => Given::Stolen,
            None => Given::Lost,
        }
    }

    /// Releases a lock of DLOCK, and reads its owner in one step.
    fn release(&self, connection: &mut Wire, release: &str) -> Given {
        let lines = [
            "MULTI",
            &format!("DLOCK.HELD {}", self.terms.key),
            release,
            "EXEC",
        ];
        let bytes: Vec<u8> = lines
            .iter()
            .flat_map(|line| command(line).get_packed_command())
            .collect();
        let mut replies = connection
            .req_packed_commands(&bytes, lines.len() - 1, 1)
            .expect("the server answers");
        let Some(Value::Array(replies)) = replies.pop() else {
            panic!("EXEC has not run {release:?}");
        };
        let [held, released] = replies.as_slice() else {
            panic!("EXEC has answered {replies:?}");
        };
        let held: Option<(u64, u64, u64, String)> = from_redis_value(held).expect("a hold");
        match (held, released) {
            (_, Value::ServerError(_)) | (None, _) => Given::Lost,
            (Some((_, _, _, holder)), _) if holder == self.terms.owner => Given::Ours,
            _ => Given::Stolen,
        }
    }
}
