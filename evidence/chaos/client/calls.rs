//! Calls that find their way: they follow MOVED and ASK, and are sent again if they cannot have been carried out.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use super::Client;
use crate::history::{Micros, Unanswered};
use crate::link::{Link, Reply};

/// How much longer an answer may take than its request may wait at the server.
const SLACK: Duration = Duration::from_secs(2);

/// The most times that a call is sent.
const TRIES: usize = 8;

/// The pause between two tries.
const PAUSE_MS: u64 = 100;

impl Client<'_> {
    /// Sends a request about `key` to its server. `block_ms` is how long it may wait there. Returns the answer and its sender.
    pub(super) fn call(&mut self, key: &str, words: &[&str], block_ms: u64) -> (Reply, u16) {
        let bound = Duration::from_millis(block_ms) + SLACK;
        let end = Instant::now() + bound;
        let mut last = (Reply::Unreachable, 0);
        for _ in 0..TRIES {
            if Instant::now() >= end {
                break;
            }
            let Some(port) = self.route.port_of(key) else {
                self.pause(PAUSE_MS);
                continue;
            };
            last = (self.call_at(port, words, bound), port);
            match redirection(&last.0) {
                Some(Redirection::Moved(slot, port)) => self.route.moved(slot, port),
                Some(Redirection::Ask(port)) => {
                    let asking = self.call_at(port, &["ASKING"], bound);
                    if matches!(asking, Reply::Value(_)) {
                        last = (self.call_at(port, words, bound), port);
                    }
                    if redirection(&last.0).is_none() && !is_elsewhere(&last.0) {
                        return last;
                    }
                }
                None if matches!(last.0, Reply::Unreachable) || is_elsewhere(&last.0) => {
                    self.route.forget(port);
                    self.pause(PAUSE_MS);
                }
                None if last.0.is_error("TRYAGAIN") || last.0.is_error("CLUSTERDOWN") => {
                    self.pause(PAUSE_MS);
                }
                None => {
                    if matches!(last.0, Reply::Closed | Reply::NoAnswer) || is_alone(&last.0) {
                        self.route.forget(port);
                    }
                    return last;
                }
            }
        }
        last
    }

    /// Sends a request to this server, and counts the answer.
    pub(super) fn call_at(&mut self, port: u16, words: &[&str], bound: Duration) -> Reply {
        let (party, sent) = (self.party, self.shared.now());
        if let Entry::Vacant(place) = self.links.entry(port) {
            if let Some(link) = Link::connect(party, port) {
                place.insert(link);
            }
        }
        let reply = match self.links.get_mut(&port) {
            Some(link) => link.call(words, bound),
            None => Reply::Unreachable,
        };
        if matches!(reply, Reply::Closed | Reply::NoAnswer) {
            self.given_up.insert(port, self.shared.now());
            self.links.remove(&port);
        }
        let command = words.first().copied().unwrap_or_default();
        self.count(command, reply.kind());
        self.note_unanswered(command, sent, &reply);
        reply
    }

    pub(super) fn note_unanswered(&mut self, command: &str, from: Micros, reply: &Reply) {
        if matches!(reply, Reply::NoAnswer) {
            self.notes.unanswered.push(Unanswered {
                command: command.into(),
                from,
                until: self.shared.now(),
            });
        }
    }

    pub(super) fn count(&mut self, command: &str, kind: &str) {
        let command = command.trim_start_matches("DLOCK.");
        let count = self.notes.answers.entry(format!("{command}: {kind}"));
        *count.or_default() += 1;
    }
}

enum Redirection {
    Moved(usize, u16),
    Ask(u16),
}

/// Reads `MOVED 866 127.0.0.1:7001` and `ASK 866 127.0.0.1:7001`.
fn redirection(reply: &Reply) -> Option<Redirection> {
    let Reply::Error(text) = reply else {
        return None;
    };
    let mut words = text.split(' ');
    let (code, slot, address) = (words.next()?, words.next()?, words.next()?);
    let slot = slot.parse().ok()?;
    let port = address.rsplit(':').next()?.parse().ok()?;
    match code {
        "MOVED" => Some(Redirection::Moved(slot, port)),
        "ASK" => Some(Redirection::Ask(port)),
        _ => None,
    }
}

/// Returns true if the server's replicas do not answer it, or are too few: perhaps another server is primary, and this one does
/// not know yet. (A stopped one is demoted ten seconds after it has resumed.)
fn is_alone(reply: &Reply) -> bool {
    reply.is_error("NOACK") || reply.is_error("NOREPLICAS")
}

/// Returns true if the server is no primary, or not yet one again. The request was not carried out.
fn is_elsewhere(reply: &Reply) -> bool {
    ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN"]
        .iter()
        .any(|code| reply.is_error(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_understood() {
        let error = |text: &str| redirection(&Reply::Error(text.into()));
        assert!(matches!(
            error("MOVED 866 127.0.0.1:7001"),
            Some(Redirection::Moved(866, 7001))
        ));
        assert!(matches!(
            error("ASK 866 127.0.0.1:7001"),
            Some(Redirection::Ask(7001))
        ));
        assert!(error("NOTHELD a does not hold k").is_none());
    }
}
