//! The replica of a node (`dlock.replicas` 1): what it has not read yet, and the answers that wait until it has.

use super::node::Node;
use crate::client::Client;
use crate::server::Server;
use crate::world::Op;
use dlock_commands::Reply;
use dlock_engine::{Millis, Now, Output, Policy, SteadyMs};
use std::collections::VecDeque;

/// How long an answer waits for its confirmation at least: `dlock.ack-timeout-ms`.
const ACK_TIMEOUT_MS: Millis = 1_000;

#[derive(Debug, Clone)]
pub struct Replica {
    pub server: Server,
    /// Whether it confirms what it has not read: a fault.
    pub lies: bool,
    link: VecDeque<Op>,
    /// How much it was sent, and how much of it the primary knows to be read.
    sent: usize,
    confirmed: usize,
    waiting: Vec<Waiting>,
}

/// An answer that waits.
#[derive(Debug, Clone)]
struct Waiting {
    needs: usize,
    until: Option<SteadyMs>,
    output: Output,
}

impl Replica {
    /// Returns a replica that has copied this server.
    pub fn of(server: &Server, now: Now) -> Replica {
        Replica {
            server: server.reload(now),
            lies: false,
            link: VecDeque::new(),
            sent: 0,
            confirmed: 0,
            waiting: Vec::new(),
        }
    }

    /// Follows a server from its beginning.
    pub fn begin(&mut self, server: &Server, now: Now) {
        self.copy(server, now);
        self.waiting.clear();
    }

    /// Copies a server whose keys have come or gone with their slot. The answers still wait.
    pub fn copy(&mut self, server: &Server, now: Now) {
        self.server = server.reload(now);
        self.link.clear();
    }

    pub fn send(&mut self, op: Op) {
        self.sent += 1;
        self.link.push_back(op);
    }

    /// Keeps an answer until everything that was sent until now is confirmed.
    pub fn keep(&mut self, output: Output, now: Now) {
        let least = now.steady().after(ACK_TIMEOUT_MS);
        self.waiting.push(Waiting {
            needs: self.sent,
            until: output.pending.until.map(|until| until.max(least)),
            output,
        });
    }

    /// Confirms what it has read, and reads the rest, if its link works. Returns the answers that wait no longer, and whether they are
    /// confirmed.
    pub fn read(&mut self, works: bool, now: Now) -> Vec<(Output, bool)> {
        if self.lies {
            self.confirmed = self.sent;
        }
        if works {
            self.confirmed = self.sent - self.link.len();
            for op in self.link.drain(..) {
                self.server.alter(&op, now);
            }
        }
        let up = |its: &Waiting| its.until.is_some_and(|until| until <= now.steady());
        let ends = |its: &Waiting| its.needs <= self.confirmed || up(its);
        let all = std::mem::take(&mut self.waiting);
        let (over, waiting): (Vec<Waiting>, _) = all.into_iter().partition(ends);
        self.waiting = waiting;
        let told = |its: Waiting| (its.output, its.needs <= self.confirmed);
        over.into_iter().map(told).collect()
    }
}

#[test]
fn a_failover_leaves_what_left_ms_said() {
    let mut node = Node::new(Policy {
        replicas_needed: 1,
        replicas_counting: 1,
        ..Policy::default()
    });
    let ask = |node: &mut Node, words| match node.send(Client::connection(1), words) {
        Some(Ok(Reply::Array(parts))) => parts[2].clone(),
        other => panic!("{words}: {other:?}"),
    };
    ask(&mut node, "SESSION k s 60000");
    ask(&mut node, "ACQUIRE k s/1 3000 IN s");
    node.settle();
    node.replicate(true);
    node.replicate(true);
    // The server renews the hold, and no replica reads that.
    node.pass(2_000);
    assert_ne!(ask(&mut node, "HELD k s/1"), Reply::Integer(1_000));
    let left = ask(&mut node, "SESSION k s 60000");
    node.fail_over(0);
    assert_eq!(left, Reply::Integer(1_000));
    assert_eq!(ask(&mut node, "HELD k s/1"), left);
}
