//! The recipe of docs/quorum.md, as it is measured: a lock over independent masters that know nothing of each other outlives the loss
//! of a minority of them.
//!
//! Every client names the masters in the same order. It waits in the queue of the first and then asks the others
//! without waiting; with a majority it holds the lock. Because all wait in one queue, only the head of that queue asks
//! the others: votes are not split. Two details keep it so:
//!
//! * The others are given back before the first, and their leases end before the first's. The client
//!   that gets the first finds the others free, whether its predecessor has released or died.
//! * The lease at the first is renewed after the wait, since the wait's reply does not say when the grant was made. All
//!   leases are then counted from when their request was sent, so that the client never believes longer than a master.
//!
//! Whoever gives up leaves at every master that was asked: one that did not answer may grant it later, for the whole
//! lease. What is sent to it goes behind the request, on the same connection. It may arrive late, too, so each try has an owner
//! name of its own: what the last one has left gives back nothing of the next one's.
//!
//! A master that forgets its grants (a restart without `appendfsync always`) would vote twice: give it an AOF, or
//! `dlock.quarantine-ms` of the longest lease.

use std::time::{Duration, Instant};

use dlock_integration::Wire;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult};

/// How long a master may take for an answer that waits for nothing. The lease pays for that time, too.
const BOUND: Duration = Duration::from_millis(300);

/// How long a master that did not answer is asked last.
const SILENCE: Duration = Duration::from_secs(1);

/// The leases at the others end so much before the first's.
const EARLIER_MS: u64 = 5;

/// What is taken off each lease for clocks: servers count in whole milliseconds, and none runs faster by more than a
/// hundredth.
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
    /// The connection is still to bring an answer, which came too late for whoever asked.
    owes: bool,
    /// When it did not answer, if it has not since.
    silent: Option<Instant>,
}

/// What came of asking.
#[derive(Debug)]
pub enum Vote {
    /// The lock is held.
    Held(Held),
    /// The time was up while others had it.
    Busy,
    /// Some masters granted it, but no majority. All has been given back.
    Split,
    /// No master was there to wait at.
    Unreachable,
}

/// A hold on a majority.
#[derive(Clone, Debug)]
pub struct Held {
    /// The lock.
    pub lock: String,
    /// The owner at each master.
    pub owner: String,
    /// Until when it is held for sure.
    pub deadline: Instant,
    /// Each master's token, where it granted.
    pub tokens: Vec<Option<u64>>,
    /// Where the queue was.
    first: usize,
}

impl Quorum {
    /// A client whose owners' names begin with this one, which is its own. All clients must give the masters in the same order.
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

    /// The first has granted: asks the others, and counts.
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
            // What this takes is no part of the lease.
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

    /// Gives the lock back at all masters, also at those that did not answer.
    pub fn release(&mut self, held: &Held) {
        self.leave(&held.lock, &held.owner, &self.others_before(held.first));
    }

    /// Gives back what was granted or will be, and leaves the queues.
    fn leave(&mut self, lock: &str, owner: &str, masters: &[usize]) {
        for number in masters {
            let mut last_words = redis::pipe();
            last_words.cmd("DLOCK.CANCEL").arg(lock).arg(owner);
            let release = last_words.cmd("DLOCK.RELEASE");
            release.arg(lock).arg(owner).arg("HOLDS").arg(0);
            self.masters[*number].tell(&last_words, BOUND);
        }
    }

    /// All masters, that one after the others, so that whoever is next there finds the others free.
    fn others_before(&self, first: usize) -> Vec<usize> {
        let others = (0..self.masters.len()).filter(|number| *number != first);
        self.silent_last(others.chain([first]))
    }

    /// Those that were silent a moment ago come last: nobody is kept waiting by one that hangs.
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
    /// A hold that was come by in another way, with the first master's queue of no account.
    pub fn new(lock: &str, owner: &str, deadline: Instant, tokens: Vec<Option<u64>>) -> Held {
        Held {
            lock: lock.to_owned(),
            owner: owner.to_owned(),
            deadline,
            tokens,
            first: 0,
        }
    }

    /// How many masters have granted it.
    pub fn votes(&self) -> usize {
        self.tokens.iter().flatten().count()
    }

    /// The hold is sure for no longer than this lease.
    fn count_lease(&mut self, sent: Instant, lease: Duration) {
        let sure = lease.saturating_sub(ROUNDING + lease / DRIFT);
        self.deadline = self.deadline.min(sent + sure);
    }
}

impl Master {
    fn connect(&mut self) {
        if self.owes {
            // What comes late must not be taken for the next answer; and a wait ends with its connection.
            (self.connection, self.owes) = (None, false);
        }
        if self.connection.is_none() {
            self.connection = Wire::open(self.port, BOUND).ok();
        }
    }

    /// The answer, or `None` when there is none in time or the request is refused.
    fn ask<T: FromRedisValue>(&mut self, request: &Cmd, bound: Duration) -> Option<T> {
        self.connect();
        let answer = self.query(bound, |connection| request.query(connection));
        answer.and_then(Result::ok)
    }

    /// Sends what need not be answered. To one that still owes an answer it goes behind the request, on the same connection:
    /// on another it could overtake the request and find nothing to give back.
    fn tell(&mut self, words: &Pipeline, bound: Duration) {
        if self.owes {
            if let Some(connection) = &mut self.connection {
                // What cannot be sent is as good as unanswered: the lease ends it.
                let _ = connection.send_bytes(&words.get_packed_pipeline());
            }
            (self.connection, self.owes) = (None, false);
        } else {
            self.connect();
            // NOTHELD is as good.
            self.query(bound, |connection| words.query::<()>(connection));
        }
    }

    /// What the server has answered, or `None` when it was silent.
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

/// A lease that ends before one of that length that was asked for so long ago.
fn shorter(lease: Duration, ago: Duration) -> Duration {
    lease.saturating_sub(ago + Duration::from_millis(EARLIER_MS))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
