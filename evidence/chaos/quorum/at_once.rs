//! The way with which the recipe is compared: every client asks every master at once, without a queue.

use std::time::{Duration, Instant};

use dlock_harness::Party;
use fastrand::Rng;

use super::in_order::{Held, Vote};
use crate::link::{Link, Reply};

const BOUND: Duration = Duration::from_millis(300);

/// One try.
pub fn acquire(ports: &[u16], owner: &str, lock: &str, lease: Duration, random: &mut Rng) -> Vote {
    let begun = Instant::now();
    let mut order: Vec<usize> = (0..ports.len()).collect();
    random.shuffle(&mut order);
    let lease_ms = lease.as_millis().to_string();
    let mut tokens = vec![None; ports.len()];
    for number in order {
        let words = ["DLOCK.ACQUIRE", lock, owner, &lease_ms, "HOLDS", "1"];
        if let Some([token, _]) = ask(ports[number], &words).integers().as_deref() {
            tokens[number] = Some(*token);
        }
    }
    let votes = tokens.iter().flatten().count();
    if votes > ports.len() / 2 {
        return Vote::Held(Held::new(
            lock,
            owner,
            begun + lease - Duration::from_millis(100),
            tokens,
        ));
    }
    give_back(ports, owner, lock);
    if votes > 0 {
        Vote::Split
    } else {
        Vote::Busy
    }
}

pub fn give_back(ports: &[u16], owner: &str, lock: &str) {
    for port in ports {
        ask(*port, &["DLOCK.RELEASE", lock, owner, "HOLDS", "0"]);
    }
}

fn ask(port: u16, words: &[&str]) -> Reply {
    match Link::connect(Party::LOCALHOST, port) {
        Some(mut link) => link.call(words, BOUND),
        None => Reply::Unreachable,
    }
}
