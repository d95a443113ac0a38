//! Clients that ask for the lock, and record when they believed that they had it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dlock_harness::belief::{now, overlap, Belief, Micros};
use dlock_harness::redis::Value;
use dlock_harness::{command, reply_of, Wire, PATIENCE};

/// The lock.
pub const LOCK: &str = "lock";

/// How long after a refusal a client asks again.
const PAUSE: Duration = Duration::from_millis(20);

/// The clients' beliefs, and the tokens that they know.
#[derive(Clone, Default)]
pub struct Beliefs {
    all: Arc<Mutex<Vec<Belief>>>,
    tokens: [Arc<AtomicU64>; 2],
}

impl Beliefs {
    fn all(&self) -> Vec<Belief> {
        self.all.lock().expect("no client panics with it").clone()
    }

    /// Adds a belief: from the answer until the client's lease, counted from its request, ends.
    fn begin(&self, client: usize, from: Micros, until: Micros) {
        let mut all = self.all.lock().expect("no client panics with it");
        all.push(Belief::new(LOCK, client.to_string(), from, until));
    }

    /// Ends a client's beliefs at that time.
    pub fn end(&self, client: usize, at: Micros) {
        let (owner, mut all) = (
            client.to_string(),
            self.all.lock().expect("no client panics with it"),
        );
        for belief in all.iter_mut().filter(|belief| belief.owner == owner) {
            belief.until = belief.until.min(at);
        }
    }

    pub fn token(&self, client: usize) -> u64 {
        self.tokens[client].load(Ordering::Relaxed)
    }

    /// Returns when the last of them ends.
    pub fn last_end(&self) -> Option<Micros> {
        self.all().iter().map(|belief| belief.until).max()
    }

    /// Returns how long both believed at one time, if they did.
    pub fn together(&self) -> Option<Duration> {
        let together = Duration::from_micros(overlap(&self.all()).longest);
        (!together.is_zero()).then_some(together)
    }
}

/// A request that a client repeats until it is answered.
pub struct Request {
    pub client: usize,
    pub port: u16,
    pub line: String,
    /// The number of replicas for which it then waits, by WAIT.
    pub wait: u8,
    /// How long it believes in the answer.
    pub length: Duration,
    /// Whether that counts from the answer, not from the request.
    pub from_answer: bool,
}

/// A request that was begun.
#[derive(Default)]
pub struct Asked {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicBool>,
}

impl Asked {
    /// Begins a request, which continues in the background.
    pub fn begin(request: Request, beliefs: &Beliefs) -> Asked {
        let asked = Asked::default();
        let (stop, answered) = (asked.stop.clone(), asked.answered.clone());
        let beliefs = beliefs.clone();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let sent = now();
                match request.once() {
                    Some(Ok(token)) => {
                        if let Some(token) = token {
                            beliefs.tokens[request.client].store(token, Ordering::Relaxed);
                        }
                        let from = now();
                        let counts = if request.from_answer { from } else { sent };
                        let until = counts + request.length.as_micros() as Micros;
                        beliefs.begin(request.client, from, until);
                        answered.store(true, Ordering::Relaxed);
                        return;
                    }
                    Some(Err(_)) => thread::sleep(PAUSE),
                    // The server is gone.
                    None => return,
                }
            }
        });
        asked
    }

    pub fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

/// A client with a new request no longer repeats the old one. A sent request is answered nevertheless.
impl Drop for Asked {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Sends a line; none if the server is gone.
fn send(wire: &mut Wire, line: &str) -> Option<()> {
    wire.send_bytes(&command(line).get_packed_command()).ok()
}

impl Request {
    /// Asks once. Returns the token, if the answer has one, or the refusal; none if nothing more will come.
    fn once(&self) -> Option<Result<Option<u64>, String>> {
        let mut wire = Wire::open(self.port, PATIENCE).ok()?;
        // An answer that waits for replicas comes when they have confirmed it, or never.
        wire.set_read_timeout(None);
        send(&mut wire, &self.line)?;
        let answer = match reply_of(wire.read_value().ok()?) {
            Ok(Value::Array(words)) => match words.first() {
                Some(Value::Int(token)) => Ok(u64::try_from(*token).ok()),
                _ => Err("no token".to_owned()),
            },
            Ok(Value::Int(_)) => Ok(None),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error),
        };
        if self.wait == 0 || answer.is_err() {
            return Some(answer);
        }
        send(&mut wire, &format!("WAIT {} 0", self.wait))?;
        match reply_of(wire.read_value().ok()?) {
            Ok(Value::Int(count)) if count >= i64::from(self.wait) => Some(answer),
            other => Some(Err(format!("{other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two owners are two clients that believe at one time.
    #[test]
    fn two_owners_are_seen() {
        let beliefs = Beliefs::default();
        beliefs.begin(0, 1, 4);
        beliefs.begin(0, 2, 5);
        beliefs.begin(1, 5, 7);
        assert_eq!(beliefs.together(), None);
        beliefs.begin(1, 3, 6);
        assert_eq!(beliefs.together(), Some(Duration::from_micros(2)));
        beliefs.end(0, 3);
        assert_eq!(beliefs.together(), None);
    }
}
