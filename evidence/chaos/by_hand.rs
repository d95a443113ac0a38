//! A primary and its replicas, promoted and pointed by an operator: no Sentinel watches them. Here a schedule runs step by step,
//! which a Sentinel would correct before its end.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::Network;
use fastrand::Rng;

use crate::client::all_locks;
use crate::control::Planted;
use crate::fault::Fault;
use crate::history::{Applied, Left, Log};
use crate::nodes::{died, gauges, settings, until, Node};
use crate::route::{Pointed, Route};
use crate::run::{Inflicted, Plan, Scene};
use crate::sentinel::log;

/// How long a replica may take to be in sync.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers. `lead` has the primary, as its door's port.
pub struct ByHand {
    // Its doors close when it is dropped.
    _network: Network,
    nodes: Vec<Node>,
    plan: Plan,
    lead: Arc<AtomicU16>,
    /// Whether half of the clients stay with the old primary.
    island: Arc<AtomicBool>,
}

impl ByHand {
    /// Starts all, and returns when the replicas are in sync.
    pub fn start(plan: &Plan) -> ByHand {
        let network = Network::new();
        let nodes: Vec<Node> = (0..=plan.replicas as u8)
            .map(|number| Node::start(&network, number, plan, false).0)
            .collect();
        let all = ByHand {
            _network: network,
            lead: Arc::new(nodes[0].door.port().into()),
            nodes,
            plan: plan.clone(),
            island: Arc::default(),
        };
        let replicas: Vec<usize> = (1..all.nodes.len()).collect();
        replicas.iter().for_each(|number| all.point(*number, 0));
        let ready = until(PATIENCE, || {
            replicas.iter().all(|number| all.follows(*number, 0))
        });
        assert!(ready, "the replicas do not find their primary");
        for node in &all.nodes {
            node.end_quarantine(&plan.setting);
        }
        all
    }

    fn primary(&self) -> usize {
        let lead = self.lead.load(Ordering::Relaxed);
        let mut nodes = self.nodes.iter();
        nodes
            .position(|node| node.door.port() == lead)
            .expect("the primary is one of the nodes")
    }

    fn point(&self, number: usize, to: usize) {
        let port = self.nodes[to].door.port();
        self.nodes[number].say(&format!("REPLICAOF 127.0.0.1 {port}"));
    }

    /// Returns true if the node is in sync with that primary.
    fn follows(&self, number: usize, primary: usize) -> bool {
        let port = self.nodes[primary].door.port().to_string();
        self.nodes[number].info("replication").is_some_and(|info| {
            info.get("master_link_status") == Some("up") && info.get("master_port") == Some(&port)
        })
    }

    fn await_following(&self, number: usize, primary: usize) -> bool {
        until(PATIENCE, || self.follows(number, primary))
    }

    /// Plays `protocol/schedules/15-chained-later.txt`: the second replica is promoted, the third joins it; the fourth has
    /// confirmed for the old primary, asks the third for a copy, and joins the second. Returns true if every step succeeded.
    fn chain_later(&self, random: &mut Rng) -> bool {
        let old = self.primary();
        let mut replicas: Vec<usize> = (0..self.nodes.len())
            .filter(|number| *number != old)
            .collect();
        random.shuffle(&mut replicas);
        let [second, third, fourth] = replicas[..3] else {
            return false;
        };
        self.island.store(true, Ordering::Relaxed);
        self.nodes[second].say("REPLICAOF NO ONE");
        self.point(third, second);
        let joined = self.await_following(third, second);
        let port = self.nodes[second].door.port();
        self.lead.store(port, Ordering::Relaxed);
        // The old primary still has as many replicas as must confirm.
        thread::sleep(Duration::from_millis(random.u64(500..2_000)));
        if self.plan.planted == Some(Planted::ServesCopies) {
            self.nodes[third].say("CONFIG SET dlock.replicas 0");
        }
        self.point(fourth, third);
        // A small copy, if it is served, arrives within milliseconds.
        thread::sleep(Duration::from_millis(random.u64(100..500)));
        self.point(fourth, second);
        let joined = joined && self.await_following(fourth, second);
        if self.plan.planted == Some(Planted::ServesCopies) {
            let setting = format!("CONFIG SET dlock.replicas {}", self.plan.replicas);
            self.nodes[third].say(&setting);
        }
        // Time for an owner that would be granted a lock by that to ask for it.
        thread::sleep(Duration::from_millis(random.u64(1_000..3_000)));
        self.island.store(false, Ordering::Relaxed);
        for number in 0..self.nodes.len() {
            if number != second && !self.follows(number, second) {
                self.point(number, second);
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
        let new = self.primary();
        let healed = played
            && (0..self.nodes.len()).all(|node| node == new || self.await_following(node, new));
        // A replica after a full synchronisation counts late, and so does any other that joins soon after.
        thread::sleep(Duration::from_millis(self.plan.setting.quarantine_ms));
        Inflicted {
            new: Some((promoted_at, self.nodes[new].door.port())),
            healed,
        }
    }

    fn logs(&self) -> Vec<Log> {
        let connection = self.nodes[self.primary()].connection();
        connection.map_or_else(Vec::new, |mut connection| {
            let logs = all_locks().into_iter();
            logs.filter_map(|lock| log(&mut connection, lock)).collect()
        })
    }

    fn gauges(&self) -> Vec<Left> {
        gauges(&self.nodes)
    }

    fn settings(&self) -> Vec<Applied> {
        settings(&self.nodes)
    }

    fn died(&mut self) -> Vec<String> {
        died(&mut self.nodes)
    }
}
