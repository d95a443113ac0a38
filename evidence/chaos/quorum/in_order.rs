//! The recipe of docs/cluster.md, as it is measured: a lock over independent masters that do not know each other survives the loss
//! of a minority of them.
//!
//! Every client names the masters in one order. It waits in the queue of the first and then asks the others without waiting; with
//! a majority it holds the lock. Because all wait in one queue, only the head of that queue asks the others: votes are not split.
//! Two details keep it so:
//!
//! * The others are released before the first, and their leases end before the first's. The client that gets the first finds the
//!   others free, whether its predecessor has released or died.
//! * The lease at the first is renewed after the wait, since the wait's reply does not say when the grant was made. All leases
//!   then count from the sending of their request, so that the client never believes longer than a master.
//!
//! A client that gives up leaves at every master that it asked: one that did not answer may grant the request later, for the
//! whole lease. The commands that leave go behind the request, on its connection. They may arrive late, too, so each try has an
//! owner name of its own: the commands of one try cannot release the next.
//!
//! A master that forgets its grants (a restart without `appendfsync always`) would vote twice: give it an AOF, or
//! `dlock.quarantine-ms` of the longest lease.

use std::time::{Duration, Instant};

use dlock_harness::Wire;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult};

/// How long a master may take for an answer that waits for nothing. This time reduces the lease.
const BOUND: Duration = Duration::from_millis(300);

/// How long a master that did not answer is asked last.
const SILENCE: Duration = Duration::from_secs(1);

/// How much earlier than the first's the leases at the others end.
const EARLIER_MS: u64 = 5;

/// The time taken off each lease for clocks: servers count in whole milliseconds, and none runs faster by more than a hundredth.
const ROUNDING: Duration = Duration::from_millis(2);
const DRIFT: u32 = 100;

/// A client of a lock over masters.
pub struct Quorum {
    masters: Vec<Master>,
    name: String,
    tries: u64,
}

struct Master {
    port: u16,
    connection: Option<Wire>,
    /// Whether the connection still owes an answer, which came too late for its request.
    owes: bool,
    /// When it did not answer, if it has not since.
    silent: Option<Instant>,
}

/// The outcome of a request.
#[derive(Debug)]
pub enum Vote {
    /// The lock is held.
    Held(Held),
    /// The time was up while others had the lock.
    Busy,
    /// Some masters granted it, but no majority. All grants have been released.
    Split,
    /// No master was up to wait at.
    Unreachable,
}

/// A hold on a majority.
#[derive(Clone, Debug)]
pub struct Held {
    /// The lock.
    pub lock: String,
    /// The owner at each master.
    pub owner: String,
    /// Until when it is certainly held.
    pub deadline: Instant,
    /// Each master's token, where it granted.
    pub tokens: Vec<Option<u64>>,
    /// The master of the queue.
    first: usize,
}

impl Quorum {
    /// Makes a client whose owners' names begin with `name`, which must be unique. All clients must give the masters in one
    /// order.
    pub fn new(ports: &[u16], name: &str) -> Quorum {
        let masters = ports.iter().map(|port| Master {
            port: *port,
            connection: None,
            owes: false,
            silent: None,
        });
        Quorum {
            masters: masters.collect(),
            name: name.to_owned(),
            tries: 0,
        }
    }

    fn majority(&self) -> usize {
        self.masters.len() / 2 + 1
    }

    /// Waits at most `wait` at the first master, then asks the others.
    pub fn acquire(&mut self, lock: &str, lease: Duration, wait: Duration) -> Vote {
        let end = Instant::now() + wait;
        self.tries += 1;
        let owner = format!("{}:{}", self.name, self.tries);
        let mut asked = Vec::new();
        let mut vote = Vote::Unreachable;
        for number in self.silent_last(0..self.masters.len()) {
            let left = end.saturating_duration_since(Instant::now());
            // `BLOCK 0` would be without bound.
            let block = millis(left).max(1);
            let mut request = request("DLOCK.ACQUIRE", lock, &owner, lease);
            request.arg("BLOCK").arg(block);
            let bound = Duration::from_millis(block) + BOUND;
            asked.push(number);
            match self.masters[number].ask::<Option<(u64, u64)>>(&request, bound) {
                Some(Some((token, _))) => return self.collect(lock, owner, lease, number, token),
                Some(None) => {
                    vote = Vote::Busy;
                    break;
                }
                None => {}
            }
        }
        // One that did not answer may grant it yet.
        self.leave(lock, &owner, &asked);
        vote
    }

    /// Asks the others after the grant of the first, and counts.
    fn collect(
        &mut self,
        lock: &str,
        owner: String,
        lease: Duration,
        first: usize,
        token: u64,
    ) -> Vote {
        let mut held = Held {
            lock: lock.to_owned(),
            owner,
            deadline: Instant::now() + lease,
            tokens: vec![None; self.masters.len()],
            first,
        };
        let begun = Instant::now();
        let mut confirmation = request("DLOCK.RENEW", lock, &held.owner, lease);
        confirmation.arg("TOKEN").arg(token);
        // `dlock.max-hold-ms` may have cut it.
        let left = self.masters[first].ask::<u64>(&confirmation, BOUND);
        let lease = lease.min(left.map_or(lease, Duration::from_millis));
        if left.is_some() {
            held.tokens[first] = Some(token);
            held.count_lease(begun, lease);
        }
        for number in self.silent_last((0..self.masters.len()).filter(|number| *number != first)) {
            // This time must not count for the lease.
            self.masters[number].connect();
            let sent = Instant::now();
            let shorter = shorter(lease, begun.elapsed());
            let request = request("DLOCK.ACQUIRE", lock, &held.owner, shorter);
            let grant = self.masters[number].ask::<Option<(u64, u64)>>(&request, BOUND);
            if let Some(Some((token, _))) = grant {
                held.tokens[number] = Some(token);
                held.count_lease(sent, shorter);
            }
        }
        if held.votes() >= self.majority() && Instant::now() < held.deadline {
            return Vote::Held(held);
        }
        self.release(&held);
        Vote::Split
    }

    /// Releases the lock at all masters, also at those that did not answer.
    pub fn release(&mut self, held: &Held) {
        self.leave(&held.lock, &held.owner, &self.others_before(held.first));
    }

    /// Releases present and future grants, and leaves the queues.
    fn leave(&mut self, lock: &str, owner: &str, masters: &[usize]) {
        for number in masters {
            let mut last_words = redis::pipe();
            last_words.cmd("DLOCK.CANCEL").arg(lock).arg(owner);
            let release = last_words.cmd("DLOCK.RELEASE");
            release.arg(lock).arg(owner).arg("HOLDS").arg(0);
            self.masters[*number].tell(&last_words, BOUND);
        }
    }

    /// Returns all masters, with `first` at the end, so that its next holder finds the others free.
    fn others_before(&self, first: usize) -> Vec<usize> {
        let others = (0..self.masters.len()).filter(|number| *number != first);
        self.silent_last(others.chain([first]))
    }

    /// Returns the masters with recently silent ones last: one that hangs keeps no client waiting.
    fn silent_last(&self, masters: impl Iterator<Item = usize>) -> Vec<usize> {
        let is_silent = |number: &usize| {
            let since = self.masters[*number].silent;
            since.is_some_and(|since| since.elapsed() < SILENCE)
        };
        let (silent, others): (Vec<usize>, Vec<usize>) = masters.partition(is_silent);
        [others, silent].concat()
    }
}

impl Held {
    /// Makes a hold that was obtained in another way, without the queue of a first master.
    pub fn new(lock: &str, owner: &str, deadline: Instant, tokens: Vec<Option<u64>>) -> Held {
        Held {
            lock: lock.to_owned(),
            owner: owner.to_owned(),
            deadline,
            tokens,
            first: 0,
        }
    }

    /// Returns the number of masters that granted it.
    pub fn votes(&self) -> usize {
        self.tokens.iter().flatten().count()
    }

    /// Bounds the time for which the hold is certain by this lease.
    fn count_lease(&mut self, sent: Instant, lease: Duration) {
        let sure = lease.saturating_sub(ROUNDING + lease / DRIFT);
        self.deadline = self.deadline.min(sent + sure);
    }
}

impl Master {
    fn connect(&mut self) {
        if self.owes {
            // A late answer must not be taken for the next one; and a wait ends with its connection.
            (self.connection, self.owes) = (None, false);
        }
        if self.connection.is_none() {
            self.connection = Wire::open(self.port, BOUND).ok();
        }
    }

    /// Returns the answer, or `None` if none comes in time or the request is refused.
    fn ask<T: FromRedisValue>(&mut self, request: &Cmd, bound: Duration) -> Option<T> {
        self.connect();
        let answer = self.query(bound, |connection| request.query(connection));
        answer.and_then(Result::ok)
    }

    /// Sends commands whose answers do not matter. To a master that still owes an answer they go behind the request, on its
    /// connection: on another they could overtake the request and find nothing to release.
    fn tell(&mut self, words: &Pipeline, bound: Duration) {
        if self.owes {
            if let Some(connection) = &mut self.connection {
                // A failed send is as good as no answer: the lease ends the hold.
                let _ = connection.send_bytes(&words.get_packed_pipeline());
            }
            (self.connection, self.owes) = (None, false);
        } else {
            self.connect();
            // NOTHELD is as good.
            self.query(bound, |connection| words.query::<()>(connection));
        }
    }

    /// Returns the server's answer, or `None` if it was silent.
    fn query<T>(
        &mut self,
        bound: Duration,
        query: impl FnOnce(&mut Wire) -> RedisResult<T>,
    ) -> Option<RedisResult<T>> {
        let connection = self.connection.as_mut();
        let answer = connection.map(|connection| {
            connection.set_read_timeout(Some(bound));
            query(connection)
        });
        match &answer {
            Some(Err(error)) if error.is_timeout() => self.owes = true,
            Some(Err(error)) if error.is_io_error() => self.connection = None,
            Some(_) => {
                self.silent = None;
                return answer;
            }
            None => {}
        }
        self.silent = Some(Instant::now());
        None
    }
}

fn request(name: &str, lock: &str, owner: &str, lease: Duration) -> Cmd {
    let mut request = redis::cmd(name);
    request.arg(lock).arg(owner).arg(millis(lease).max(1));
    request
}

/// Returns a lease that ends before one of this length that was requested `ago`.
fn shorter(lease: Duration, ago: Duration) -> Duration {
    lease.saturating_sub(ago + Duration::from_millis(EARLIER_MS))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
