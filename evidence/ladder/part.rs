//! A client's actions. It runs in a process of its own, and reports by lists and counters at the server, where its reports remain
//! when it is killed.

use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{Ask, Wire, PATIENCE};
use serde::{Deserialize, Serialize};

use crate::lock::{served, Given, Lock, Terms, Use, Way};

/// How often a repeating client checks whether it must end.
const LOOK: Duration = Duration::from_millis(50);

/// A client's actions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Part {
    /// It takes the lock and keeps it.
    Keep,
    /// It takes the lock, works, releases and rests, until it must end. It reports the first round.
    Repeat { work_ms: u64, rest_ms: u64 },
    /// It does this a number of times; every so often the work is slow.
    Work {
        times: u64,
        work_ms: u64,
        slow_ms: u64,
        slow_one_in: u64,
    },
    /// It takes the lock, which a thread renews, reads the stock, waits for permission, and writes the stock less one.
    Sell,
    /// It takes the lock, and once more before it releases it.
    Nest,
    /// It takes two locks, in one order or the other, and releases them. Where they are taken one by one, it waits for permission in
    /// between.
    Pair { turned: bool },
}

/// The order to a client's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The server.
    pub port: u16,
    /// Its actions.
    pub part: Part,
    /// Its lock.
    pub terms: Terms,
}

/// Returns the key of an owner's reports.
pub fn says(owner: &str) -> String {
    format!("{owner}:says")
}

/// Returns the key of the permission to continue.
pub fn goes_on(owner: &str) -> String {
    format!("{owner}:goes-on")
}

/// Returns the key of the counters of a lock.
pub fn tally(key: &str) -> String {
    format!("{key}:tally")
}

/// Returns the key that ends the repeating clients.
pub fn end(key: &str) -> String {
    format!("{key}:end")
}

/// Returns the key of the second of two locks.
pub fn second(key: &str) -> String {
    format!("{key}:second")
}

/// Returns the key of the waits for a lock, in microseconds.
pub fn waits(key: &str) -> String {
    format!("{key}:waits")
}

/// Returns the key of the numbers of owners that overtook or preceded each wait.
pub fn passed(key: &str) -> String {
    format!("{key}:passed")
}

/// Returns the key of the stock that a lock protects.
pub fn stock(key: &str) -> String {
    format!("{key}:stock")
}

impl Order {
    /// Carries the order out.
    pub fn carry_out(&self) {
        let mut actor = Actor {
            order: self,
            connection: self.connect(),
            lock: Lock::new(&self.terms),
        };
        let owner = &self.terms.owner;
        actor.connection.run(&format!("CLIENT SETNAME {owner}"));
        actor.play();
    }

    fn connect(&self) -> Wire {
        let connection = Wire::open(self.port, PATIENCE).expect("the server listens");
        connection.set_read_timeout(None);
        connection
    }
}

struct Actor<'a> {
    order: &'a Order,
    connection: Wire,
    lock: Lock,
}

impl Actor<'_> {
    fn play(&mut self) {
        match self.order.part {
            Part::Keep => {
                self.say("asks");
                self.take();
                self.say("held");
                loop {
                    thread::park();
                }
            }
            Part::Repeat { work_ms, rest_ms } => {
                self.repeat(
                    Duration::from_millis(work_ms),
                    Duration::from_millis(rest_ms),
                );
            }
            Part::Work {
                times,
                work_ms,
                slow_ms,
                slow_one_in,
            } => {
                self.say("ready");
                self.await_go();
                for time in 1..=times {
                    let slow = time % slow_one_in == 0;
                    if slow {
                        self.count("slow");
                    }
                    self.work_once(if slow { slow_ms } else { work_ms });
                }
            }
            Part::Sell => self.sell(),
            Part::Nest => self.nest(),
            Part::Pair { turned } => self.pair(turned),
        }
    }

    /// Takes and releases, and checks now and then whether it must end.
    fn repeat(&mut self, work: Duration, rest: Duration) {
        let end = end(&self.order.terms.key);
        let mut looked = None;
        loop {
            self.take();
            thread::sleep(work);
            match self.lock.give(&mut self.connection) {
                Given::Ours => {}
                Given::Stolen => self.count("stolen"),
                Given::Lost => self.count("lost"),
            }
            if looked.is_none() {
                self.say("begun");
            }
            if looked.is_none_or(|looked: Instant| looked.elapsed() > LOOK) {
                if self.connection.ask(&format!("EXISTS {end}")) {
                    return;
                }
                looked = Some(Instant::now());
            }
            thread::sleep(rest);
        }
    }

    /// Takes the lock, and records the grants before it.
    fn take(&mut self) {
        let key = &self.order.terms.key;
        let asked = Instant::now();
        let before = self.lock.take(&mut self.connection);
        let waited = asked.elapsed().as_micros();
        if matches!(self.order.part, Part::Work { .. }) {
            let now: u64 = self.connection.ask(&format!("INCR {}", served(key)));
            let others = now - 1 - before;
            self.connection
                .run(&format!("RPUSH {} {waited}", waits(key)));
            self.connection
                .run(&format!("RPUSH {} {others}", passed(key)));
        }
    }

    fn give(&mut self) {
        match self.lock.give(&mut self.connection) {
            Given::Ours => self.count("ours"),
            Given::Stolen => self.count("stolen"),
            Given::Lost => self.count("lost"),
        }
    }

    fn work_once(&mut self, work_ms: u64) {
        self.take();
        let inside = format!("{}:inside", self.order.terms.key);
        if self.connection.ask::<u64>(&format!("INCR {inside}")) > 1 {
            self.count("together");
        }
        thread::sleep(Duration::from_millis(work_ms));
        self.connection.run(&format!("DECR {inside}"));
        self.give();
    }

    fn sell(&mut self) {
        self.take();
        let stock = stock(&self.order.terms.key);
        let left: i64 = self.connection.ask(&format!("GET {stock}"));
        let (lock, mut connection) = (self.lock.clone(), self.order.connect());
        let interval = Duration::from_millis(self.order.terms.lease_ms / 3);
        thread::spawn(move || {
            while lock.renew(&mut connection) {
                thread::sleep(interval);
            }
        });
        self.say("read");
        self.await_go();
        match self.lock.write(&mut self.connection, &stock, left - 1) {
            true => self.say("wrote"),
            false => self.say("fenced"),
        }
        self.lock.give(&mut self.connection);
    }

    fn nest(&mut self) {
        self.take();
        self.say("held");
        let mut inner = self.lock.inner();
        inner.take(&mut self.connection);
        self.say("inside");
        inner.give(&mut self.connection);
        self.say("left");
        self.await_go();
        self.give();
        self.say("given");
    }

    fn pair(&mut self, turned: bool) {
        let second = self.lock.other(&second(&self.order.terms.key));
        let mut locks = [self.lock.clone(), second];
        if turned {
            locks.reverse();
        }
        let [mut first, mut second] = locks;
        let at_once = self.order.terms.way == Way::Dlock(Use::Many);
        if !at_once {
            first.take(&mut self.connection);
        }
        self.say("ready");
        self.await_go();
        if at_once {
            Lock::take_both(&first, &second, &mut self.connection);
        } else {
            second.take(&mut self.connection);
            second.give(&mut self.connection);
            first.give(&mut self.connection);
        }
        self.say("both");
    }

    fn say(&mut self, what: &str) {
        let list = says(&self.order.terms.owner);
        self.connection.run(&format!("RPUSH {list} {what}"));
    }

    fn await_go(&mut self) {
        let list = goes_on(&self.order.terms.owner);
        self.connection.run(&format!("BLPOP {list} 0"));
    }

    fn count(&mut self, what: &str) {
        let tally = tally(&self.order.terms.key);
        self.connection.run(&format!("HINCRBY {tally} {what} 1"));
    }
}
