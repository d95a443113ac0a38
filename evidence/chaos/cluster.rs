//! Three primaries with replicas, joined to a cluster.

mod moves;

use std::thread;
use std::time::{Duration, Instant};

use dlock_evidence::group::{Group, Node, DOWN_AFTER_MS, ISLANDERS, MAINLANDERS, REPL_TIMEOUT};
use dlock_harness::cluster::equal_part;
use dlock_harness::{until, Door, Network, Party};
use fastrand::Rng;

use crate::client::all_locks;
use crate::fault::Fault;
use crate::nodes::{configured, end_quarantine, PATIENCE};
use crate::route::{slot_of, slots_of, ByCluster, Route};
use crate::run::{Inflicted, Plan, Scene};

const PRIMARIES: usize = 3;

/// A primary votes for another replica of a primary after twice the time-out of the nodes. A failover that is requested sooner
/// gets no votes, and makes the old primary hold its clients for five seconds in vain.
const VOTES_AGAIN: Duration = Duration::from_millis(2 * DOWN_AFTER_MS + 1_000);

/// The nodes.
pub struct Cluster {
    group: Group,
    /// The doors of the cluster bus.
    buses: Vec<Door>,
    plan: Plan,
    /// When a failover was last requested.
    asked_at: Option<Instant>,
}

impl Cluster {
    /// Starts all, and returns when all slots are served and the replicas are in sync.
    pub fn start(plan: &Plan) -> Cluster {
        let network = Network::new();
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for number in 0..(1 + plan.replicas) * PRIMARIES {
            let (node, bus) = Node::start(&network, number, |builder, door| {
                let bus = network.door(Party::new(127, 0, 1, number as u8 + 1));
                let builder = builder
                    .cluster()
                    .config("repl-ping-replica-period", 1)
                    .config("repl-timeout", REPL_TIMEOUT)
                    .config("cluster-node-timeout", DOWN_AFTER_MS)
                    .config("cluster-require-full-coverage", "no")
                    .config("cluster-allow-replica-migration", "no")
                    .config("cluster-announce-ip", "127.0.0.1")
                    .config("cluster-announce-port", door.port())
                    .config("cluster-announce-bus-port", bus.port());
                let server = configured(plan, builder).start();
                bus.lead_to(server.bus_port());
                (server, bus)
            });
            nodes.push(node);
            buses.push(bus);
        }
        let cluster = Cluster {
            group: Group::new(network, nodes, PATIENCE),
            buses,
            plan: plan.clone(),
            asked_at: None,
        };
        cluster.join();
        end_quarantine(plan, &cluster.group.nodes);
        cluster
    }

    fn join(&self) {
        for (number, node) in self.group.nodes.iter().enumerate() {
            node.say(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            if number < PRIMARIES {
                let slots = equal_part(number, PRIMARIES);
                let (first, last) = (slots.start(), slots.end());
                node.say(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
        }
        for (node, bus) in self.group.nodes.iter().zip(&self.buses).skip(1) {
            let (door, bus) = (node.door.port(), bus.port());
            self.group.nodes[0].say(&format!("CLUSTER MEET 127.0.0.1 {door} {bus}"));
        }
        let all_met = until(PATIENCE, || {
            self.group.nodes.iter().all(|node| {
                let known = text(node, "CLUSTER NODES");
                known.lines().count() == self.group.nodes.len() && !known.contains("handshake")
            })
        });
        assert!(all_met, "the nodes do not find each other");
        for (number, replica) in self.group.nodes.iter().enumerate().skip(PRIMARIES) {
            let id = text(&self.group.nodes[number % PRIMARIES], "CLUSTER MYID");
            // A node must know that the other is no replica before it can follow it.
            let follows = until(PATIENCE, || {
                text(replica, &format!("CLUSTER REPLICATE {id}")) == "OK"
            });
            assert!(follows, "a replica does not follow");
        }
        assert!(
            until(PATIENCE, || self.is_together()),
            "the cluster does not come up"
        );
    }

    /// Returns true if all nodes serve, agree on the slots, and each primary has its replicas, in sync.
    fn is_together(&self) -> bool {
        let replicas = self.plan.replicas.to_string();
        let mut tables = self.group.nodes.iter().map(|node| self.table_of(node));
        let first = tables.next().flatten();
        let agree = first.is_some() && tables.all(|table| table == first);
        agree
            && !first.is_some_and(|table| table.contains(&0))
            && self.group.nodes.iter().all(|node| {
                let Some(info) = node.info("replication") else {
                    return false;
                };
                let is_well = if info.get("role") == Some("master") {
                    info.get("connected_slaves") == Some(&replicas)
                } else {
                    info.get("master_link_status") == Some("up")
                };
                is_well && text(node, "CLUSTER INFO").contains("cluster_state:ok")
            })
    }

    /// Returns the door of each slot's primary, as a node reports it.
    fn table_of(&self, node: &Node) -> Option<Vec<u16>> {
        slots_of(Party::LOCALHOST, node.server.port())
    }

    /// Returns the primary of this slot, as all nodes except `but` report it.
    fn primary_of_slot(&self, slot: usize, but: Option<usize>) -> Option<usize> {
        let mut said = None;
        for (number, node) in self.group.nodes.iter().enumerate() {
            if Some(number) == but || node.info("server").is_none() {
                continue;
            }
            let port = self.table_of(node)?.get(slot).copied()?;
            if said.is_some_and(|said| said != port) {
                return None;
            }
            said = Some(port);
        }
        self.group
            .nodes
            .iter()
            .position(|node| Some(node.door.port()) == said)
    }

    fn replica_of(&self, primary: usize) -> Option<usize> {
        let port = self.group.nodes[primary].door.port().to_string();
        self.group.nodes.iter().position(|node| {
            node.info("replication").is_some_and(|info| {
                info.get("role") == Some("slave") && info.get("master_port") == Some(&port)
            })
        })
    }

    fn await_other_primary(&self, slot: usize, old: usize) -> bool {
        self.is_replaced(slot, old, PATIENCE)
    }

    fn is_replaced(&self, slot: usize, old: usize, within: Duration) -> bool {
        until(within, || {
            self.primary_of_slot(slot, Some(old))
                .is_some_and(|new| new != old)
        })
    }

    /// Makes another node the slot's primary. Returns whether it succeeded.
    fn replace(&mut self, fault: Fault, slot: usize, old: usize, random: &mut Rng) -> bool {
        match fault {
            Fault::Failover | Fault::FailoverForce | Fault::FailoverTakeover => {
                let how = match fault {
                    Fault::FailoverForce => " FORCE",
                    Fault::FailoverTakeover => " TAKEOVER",
                    _ => "",
                };
                if let Some(asked_at) = self.asked_at {
                    thread::sleep(VOTES_AGAIN.saturating_sub(asked_at.elapsed()));
                }
                self.asked_at = Some(Instant::now());
                // A replica that gets no votes asks again.
                until(PATIENCE, || {
                    if let Some(replica) = self.replica_of(old) {
                        self.group.nodes[replica].say(&format!("CLUSTER FAILOVER{how}"));
                    }
                    self.is_replaced(slot, old, VOTES_AGAIN)
                })
            }
            Fault::Stop => {
                self.group.nodes[old].server.freeze();
                let promoted = self.await_other_primary(slot, old);
                thread::sleep(Duration::from_millis(random.u64(200..3_000)));
                self.group.nodes[old].server.thaw();
                promoted
            }
            Fault::Partition => {
                self.group.cut_off(&[old]);
                let promoted = self.await_other_primary(slot, old);
                thread::sleep(Duration::from_millis(random.u64(500..5_000)));
                self.group.network.heal();
                promoted
            }
            _ => {
                self.group.nodes[old].server.kill9();
                let promoted = self.await_other_primary(slot, old);
                self.group.nodes[old].server.restart();
                promoted
            }
        }
    }
}

impl Scene for Cluster {
    fn route(&self, on_island: bool, random: Rng) -> Box<dyn Route> {
        let nodes = self
            .group
            .nodes
            .iter()
            .map(|node| node.door.port())
            .collect();
        let party = if on_island { ISLANDERS } else { MAINLANDERS };
        Box::new(ByCluster::new(nodes, party, random))
    }

    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted {
        let locks = all_locks();
        let slot = slot_of(locks[random.usize(..locks.len())]);
        let mut old = None;
        until(PATIENCE, || {
            old = self.primary_of_slot(slot, None);
            old.is_some()
        });
        let Some(old) = old else {
            return Inflicted::default();
        };
        let done = match fault.moves() {
            true => self.move_slot(fault, slot, old, random),
            false => self.replace(fault, slot, old, random),
        };
        let done_at = Instant::now();
        let healed = until(PATIENCE, || self.is_together());
        let new = self.primary_of_slot(slot, None);
        Inflicted {
            new: new
                .filter(|_| done && !fault.moves())
                .map(|new| (done_at, new)),
            healed: healed && done,
        }
    }

    fn primary_of(&self, lock: &str) -> Option<usize> {
        self.primary_of_slot(slot_of(lock), None)
    }

    fn nodes(&mut self) -> &mut [Node] {
        &mut self.group.nodes
    }
}

/// Returns the text of the answer to a line.
fn text(node: &Node, line: &str) -> String {
    node.ask(line).unwrap_or_default()
}
