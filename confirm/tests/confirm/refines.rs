//! What is read in INFO, against the rule that knows how each replica has joined: random events by a seed. No replica may count that the
//! rule does not count.

use crate::node::{Node, QUARANTINE};
use dlock_confirm::{Joined, Rule, Standing};
use std::collections::BTreeMap;

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) * n) >> 32
    }
}

/// What the rule knows: from when on each replica that is online counts.
struct Known {
    standing: Standing<u64>,
    counts_from: BTreeMap<u16, u64>,
}

impl Known {
    fn joins(&mut self, node: &Node, port: u16, how: Joined) {
        let (_, from) = self.standing.joins(&node.terms, how, node.now);
        self.counts_from.insert(port, from);
    }
}

/// One event, and a reading after it.
fn step(dice: &mut Dice, node: &mut Node, known: &mut Known) {
    let port = 1 + dice.below(4) as u16;
    let slave = node.slaves.iter().position(|slave| slave.0 == port);
    let online = slave.is_some_and(|at| node.slaves[at].1 == "online");
    match (dice.below(8), slave) {
        (0 | 1, None) => {
            known.joins(node, port, Joined::Partial);
            node.partials += 1;
            node.slaves.push((port, "online", port.into()));
        }
        (2, None) => {
            known.standing.on_full_sync(&node.terms, node.now);
            node.fulls += 1;
            node.slaves.push((port, "wait_bgsave", 0));
        }
        (3 | 4, Some(at)) if !online => {
            known.joins(node, port, Joined::Full);
            node.slaves[at] = (port, "online", port.into());
        }
        (5, Some(at)) => {
            known.counts_from.remove(&port);
            node.slaves.remove(at);
        }
        // Its link ends, and it is back before anything is read.
        (6, Some(_)) if online => {
            known.joins(node, port, Joined::Partial);
            node.partials += 1;
        }
        (7, _) => node.now += 1 + dice.below(QUARANTINE / 2),
        _ => return,
    }
    node.read();
}

#[test]
fn no_replica_counts_that_the_rule_does_not_count() {
    let (mut counted, mut waited) = (0, 0);
    for seed in 1..=60 {
        let mut dice = Dice(seed);
        let mut node = Node::primary(Rule::WHOLE, 4);
        let mut known = Known {
            standing: Standing::default(),
            counts_from: BTreeMap::new(),
        };
        for number in 0..200 {
            step(&mut dice, &mut node, &mut known);
            // Each has acknowledged the number of its port.
            let have = |offset| node.links.have_acknowledged(&node.terms, offset, node.now);
            for port in 1..=4 {
                let counts = have(port) > have(port + 1);
                let from = known.counts_from.get(&(port as u16));
                let may = from.is_some_and(|from| *from <= node.now);
                assert!(may || !counts, "seed {seed}, step {number}, port {port}");
                counted += u64::from(counts);
                waited += u64::from(may && !counts);
            }
        }
    }
    // It is no rule to count nobody.
    assert!(counted > 2 * waited, "{counted} {waited}");
}
