//! An AOF that is cut at any byte.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use dlock_harness::redis::Value;
use dlock_harness::{Ask, Server, Wire};

const LOCKS: usize = 6;
const OWNERS: usize = 4;
const COMMANDS: usize = 250;

/// Longer than the run: no lease and no claim ends in it.
const LONG_MS: u64 = 600_000;

/// The outcome of the cuts.
pub struct Cuts {
    cuts: usize,
    bytes: usize,
    /// Cuts within the effects of a command.
    within: usize,
    /// Cuts after which the locks would differ from those after the next command.
    told_apart: usize,
    pub wrong: Vec<String>,
}

impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "An AOF of {} bytes was cut at {} of them, {} times within the effects of a command: {} times the locks were not those of \
             the last whole one.",
            self.bytes,
            self.cuts,
            self.within,
            self.wrong.len()
        )
    }
}

/// Returns the holders of each lock with token and count, and the places.
fn picture(c: &mut Wire) -> Vec<Value> {
    let mut all = Vec::new();
    for lock in 0..LOCKS {
        let held: Value = c.ask(&format!("DLOCK.HELD lock:{lock}"));
        all.push(match held {
            // The rest of the lease changes.
            Value::Array(mut fields) if fields.len() == 4 => {
                fields.remove(2);
                Value::Array(fields)
            }
            other => other,
        });
        for owner in 0..OWNERS {
            all.push(c.ask(&format!("DLOCK.POSITION lock:{lock} owner-{owner}")));
        }
    }
    all
}

/// Returns a random command, as clients send it.
fn any(random: &mut fastrand::Rng) -> String {
    let (lock, owner) = (random.usize(..LOCKS), random.usize(..OWNERS));
    let other = (lock + 1) % LOCKS;
    match random.u8(..10) {
        0 | 1 => format!("DLOCK.ACQUIRE lock:{lock} owner-{owner} {LONG_MS}"),
        2 | 3 => format!("DLOCK.FAIRACQUIRE lock:{lock} owner-{owner} {LONG_MS} CLAIM {LONG_MS}"),
        4 => format!("DLOCK.RENEW lock:{lock} owner-{owner} {LONG_MS}"),
        5 => format!("DLOCK.MACQUIRE 2 lock:{lock} lock:{other} owner-{owner} {LONG_MS}"),
        6 => format!("DLOCK.MRELEASE 2 lock:{lock} lock:{other} owner-{owner}"),
        7 => format!("DLOCK.CANCEL lock:{lock} owner-{owner}"),
        _ => format!("DLOCK.RELEASE lock:{lock} owner-{owner} HOLDS 0"),
    }
}

/// Cuts an AOF at `cuts` bytes.
pub fn play(cuts: usize, seed: u64) -> Cuts {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let aof = server.aof();
    let mut c = server.connection();
    // By the size of the AOF: the locks after reading it up to there.
    let mut pictures = vec![(size(&aof), picture(&mut c))];
    for _ in 0..COMMANDS {
        // A refusal changes nothing.
        let _ = c.try_ask(&any(&mut random));
        pictures.push((size(&aof), picture(&mut c)));
    }
    server.kill9();
    let whole = fs::read(&aof).expect("the AOF can be read");
    let mut found = Cuts {
        cuts,
        bytes: whole.len(),
        within: 0,
        told_apart: 0,
        wrong: Vec::new(),
    };
    for _ in 0..cuts {
        let at = random.usize(pictures[0].0..=whole.len());
        fs::write(&aof, &whole[..at]).expect("the AOF can be written");
        server.restart();
        // The last one of a size: those before it had no lasting change.
        let next = pictures.partition_point(|(size, _)| *size <= at);
        let (size, expected) = &pictures[next - 1];
        found.within += usize::from(*size < at);
        let seen = picture(&mut server.connection());
        let is_other = |(_, other): &(usize, Vec<Value>)| *other != seen;
        found.told_apart += usize::from(pictures.get(next).is_some_and(is_other));
        if seen != *expected {
            found
                .wrong
                .push(format!("cut at {at}: {seen:?}, not {expected:?}"));
        }
        server.kill9();
    }
    if found.told_apart == 0 {
        found
            .wrong
            .push("what is cut off makes no difference".to_owned());
    }
    // So that it can end normally.
    fs::write(&aof, &whole).expect("the AOF can be written");
    server.restart();
    found
}

/// Returns how long the AOF is.
pub fn size(aof: &PathBuf) -> usize {
    fs::metadata(aof).expect("it is there").len() as usize
}
