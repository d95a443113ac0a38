//! A client: its requests, its beliefs, its records.

mod calls;
mod hold;
mod session;
mod ways;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock_harness::Party;
use fastrand::Rng;

use crate::history::{History, Micros};
use crate::link::Link;
use crate::route::Route;
use crate::setting::Setting;

pub use hold::{log_of, REPLICATED};
pub use ways::{all_locks, Way, CLAIM_MS, PULSES};

/// All leases, in milliseconds: longer than a failover takes, so that losses show.
pub const LEASE_MS: u64 = 8_000;

/// The state that all clients of a run share.
pub struct Shared {
    pub began: Instant,
    pub stop: AtomicBool,
    pub setting: Setting,
    pub replicas: usize,
    /// Whether half of the grants are believed at once, without a renewal.
    pub believes_grants: bool,
}

impl Shared {
    pub fn now(&self) -> Micros {
        self.at(Instant::now())
    }

    pub fn at(&self, instant: Instant) -> Micros {
        let since = instant.saturating_duration_since(self.began);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    pub fn has_ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A client with a thread of its own.
pub struct Client<'a> {
    pub name: String,
    pub number: usize,
    pub party: Party,
    pub way: Way,
    /// A patient client leaves its request in place for long; others turn elsewhere sooner.
    pub patient: bool,
    pub shared: &'a Shared,
    pub route: Box<dyn Route>,
    pub random: Rng,
    links: HashMap<u16, Link>,
    /// When a link was given up, by port. Its ties ended then.
    given_up: HashMap<u16, Micros>,
    notes: History,
    owners: u64,
}

impl<'a> Client<'a> {
    pub fn new(
        name: String,
        number: usize,
        party: Party,
        way: Way,
        shared: &'a Shared,
        route: Box<dyn Route>,
        random: Rng,
    ) -> Client<'a> {
        Client {
            patient: false,
            name,
            number,
            party,
            way,
            shared,
            route,
            random,
            links: HashMap::new(),
            given_up: HashMap::new(),
            notes: History::default(),
            owners: 0,
        }
    }

    /// Works until all is stopped. Returns its records.
    pub fn run(mut self) -> History {
        while !self.shared.has_ended() {
            self.turn();
            let pause = self.random.u64(2..60);
            self.pause(pause);
        }
        self.notes
    }

    /// Returns a new name: each request is an actor of its own.
    fn fresh_owner(&mut self) -> String {
        self.owners += 1;
        format!("{}-{}", self.name, self.owners)
    }

    fn pause(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    /// Returns how long a blocking request waits.
    fn block_ms(&self) -> u64 {
        if self.patient {
            10_000
        } else {
            3_000
        }
    }
}
