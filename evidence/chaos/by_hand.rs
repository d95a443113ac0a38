//! A primary and its replicas, promoted and pointed by an operator: no Sentinel watches them. Here a schedule runs step by step,
//! which a Sentinel would correct before its end.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_evidence::group::{Group, Node};
use dlock_harness::until;
use fastrand::Rng;

use crate::control::Planted;
use crate::fault::Fault;
use crate::nodes::{configured, end_quarantine, PATIENCE};
use crate::route::{Pointed, Route};
use crate::run::{Inflicted, Plan, Scene};

/// The servers. `lead` has the primary, as its door's port.
pub struct ByHand {
    group: Group,
    plan: Plan,
    lead: Arc<AtomicU16>,
    /// Whether half of the clients stay with the old primary.
    island: Arc<AtomicBool>,
}

impl ByHand {
    /// Starts all, and returns when the replicas are in sync.
    pub fn start(plan: &Plan) -> ByHand {
        let group = Group::start(plan.replicas + 1, PATIENCE, |one| configured(plan, one));
        group.join();
        end_quarantine(plan, &group.nodes);
        ByHand {
            lead: Arc::new(group.nodes[0].door.port().into()),
            group,
            plan: plan.clone(),
            island: Arc::default(),
        }
    }

    fn primary(&self) -> usize {
        let lead = self.lead.load(Ordering::Relaxed);
        let mut nodes = self.group.nodes.iter();
        nodes
            .position(|node| node.door.port() == lead)
            .expect("the primary is one of the nodes")
    }

    fn await_following(&self, node: &Node, primary: &Node) -> bool {
        until(PATIENCE, || node.follows(primary))
    }

    /// Plays `protocol/schedules/15-chained-later.txt`: the second replica is promoted, the third joins it; the fourth has
    /// confirmed for the old primary, asks the third for a copy, and joins the second. Returns true if every step succeeded.
    fn chain_later(&self, random: &mut Rng) -> bool {
        let old = self.primary();
        let nodes = &self.group.nodes;
        let [second, third, fourth] = self.group.replicas_of(old, random)[..3] else {
            return false;
        };
        let [second, third, fourth] = [second, third, fourth].map(|number| &nodes[number]);
        self.island.store(true, Ordering::Relaxed);
        second.say("REPLICAOF NO ONE");
        third.point(second);
        let joined = self.await_following(third, second);
        self.lead.store(second.door.port(), Ordering::Relaxed);
        // The old primary still has as many replicas as must confirm.
        thread::sleep(Duration::from_millis(random.u64(500..2_000)));
        if self.plan.planted == Some(Planted::ServesCopies) {
            third.say("CONFIG SET dlock.replicas 0");
        }
        fourth.point(third);
        // A small copy, if it is served, arrives within milliseconds.
        thread::sleep(Duration::from_millis(random.u64(100..500)));
        fourth.point(second);
        let joined = joined && self.await_following(fourth, second);
        if self.plan.planted == Some(Planted::ServesCopies) {
            let setting = format!("CONFIG SET dlock.replicas {}", self.plan.replicas);
            third.say(&setting);
        }
        // Time for an owner that would be granted a lock by that to ask for it.
        thread::sleep(Duration::from_millis(random.u64(1_000..3_000)));
        self.island.store(false, Ordering::Relaxed);
        for node in nodes {
            if node.party != second.party && !node.follows(second) {
                node.point(second);
            }
        }
        joined
    }
}

impl Scene for ByHand {
    fn route(&self, on_island: bool, _: Rng) -> Box<dyn Route> {
        Box::new(Pointed {
            lead: self.lead.clone(),
            on_island,
            island: self.island.clone(),
            known: self.lead.load(Ordering::Relaxed),
        })
    }

    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted {
        assert_eq!(fault, Fault::ChainedLater, "nobody watches these servers");
        let played = self.chain_later(random);
        let promoted_at = Instant::now();
        let (new, nodes) = (self.primary(), &self.group.nodes);
        let follows =
            |(at, node): (usize, &Node)| at == new || self.await_following(node, &nodes[new]);
        Inflicted {
            new: Some((promoted_at, new)),
            healed: played && nodes.iter().enumerate().all(follows),
        }
    }

    fn primary_of(&self, _: &str) -> Option<usize> {
        Some(self.primary())
    }

    fn nodes(&mut self) -> &mut [Node] {
        &mut self.group.nodes
    }
}
