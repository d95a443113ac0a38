//! Three primaries with replicas, joined to a cluster.

mod moves;

use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::{command, Door, Network, Party};
use fastrand::Rng;

use crate::client::all_locks;
use crate::control::Planted;
use crate::fault::Fault;
use crate::history::{Applied, Left, Log};
use crate::nodes::{died, gauges, settings, until, Node, ISLANDERS, MAINLANDERS};
use crate::route::{slot_of, slots_of, ByCluster, Route, SLOTS};
use crate::run::{Inflicted, Plan, Scene};
use crate::sentinel::log;
use crate::setting::DOWN_AFTER_MS;

const PRIMARIES: usize = 3;

/// How long a failover or a move may take, and how long the nodes may take afterwards to agree again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A primary votes for another replica of a primary after twice the time-out of the nodes. A failover that is requested sooner
/// gets no votes, and makes the old primary hold its clients for five seconds in vain.
const VOTES_AGAIN: Duration = Duration::from_millis(2 * DOWN_AFTER_MS + 1_000);

/// The nodes.
pub struct Cluster {
    network: Network,
    nodes: Vec<Node>,
    /// The doors of the cluster bus.
    _buses: Vec<Door>,
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
        for number in 0..((1 + plan.replicas) * PRIMARIES) as u8 {
            let (node, bus) = Node::start(&network, number, plan, true);
            let bus = bus.expect("a cluster node has a bus");
            bus.lead_to(node.server.bus_port());
            nodes.push(node);
            buses.push(bus);
        }
        let cluster = Cluster {
            network,
            nodes,
            _buses: buses,
            plan: plan.clone(),
            asked_at: None,
        };
        cluster.join();
        for node in &cluster.nodes {
            node.end_quarantine(&plan.setting);
        }
        cluster
    }

    fn join(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            node.say(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            if number < PRIMARIES {
                let first = number * SLOTS / PRIMARIES;
                let last = (number + 1) * SLOTS / PRIMARIES - 1;
                node.say(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
        }
        for (node, bus) in self.nodes.iter().zip(&self._buses).skip(1) {
            let (door, bus) = (node.door.port(), bus.port());
            self.nodes[0].say(&format!("CLUSTER MEET 127.0.0.1 {door} {bus}"));
        }
        let all_met = until(PATIENCE, || {
            self.nodes.iter().all(|node| {
                let known = node.text("CLUSTER NODES");
                known.lines().count() == self.nodes.len() && !known.contains("handshake")
            })
        });
        assert!(all_met, "the nodes do not find each other");
        for (number, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let id = self.nodes[number % PRIMARIES].text("CLUSTER MYID");
            // A node must know that the other is no replica before it can follow it.
            let follows = until(PATIENCE, || {
                replica.text(&format!("CLUSTER REPLICATE {id}")) == "OK"
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
        let mut tables = self.nodes.iter().map(|node| self.table_of(node));
        let first = tables.next().flatten();
        let agree = first.is_some() && tables.all(|table| table == first);
        agree
            && !first.is_some_and(|table| table.contains(&0))
            && self.nodes.iter().all(|node| {
                let Some(info) = node.info("replication") else {
                    return false;
                };
                let is_well = if info.get("role") == Some("master") {
                    info.get("connected_slaves") == Some(&replicas)
                } else {
                    info.get("master_link_status") == Some("up")
                };
                is_well && node.text("CLUSTER INFO").contains("cluster_state:ok")
            })
    }

    /// Returns the door of each slot's primary, as a node reports it.
    fn table_of(&self, node: &Node) -> Option<Vec<u16>> {
        slots_of(Party::LOCALHOST, node.server.port())
    }

    /// Returns the primary of this slot, as all nodes except `but` report it.
    fn primary_of(&self, slot: usize, but: Option<usize>) -> Option<usize> {
        let mut said = None;
        for (number, node) in self.nodes.iter().enumerate() {
            if Some(number) == but || node.info("server").is_none() {
                continue;
            }
            let port = self.table_of(node)?.get(slot).copied()?;
            if said.is_some_and(|said| said != port) {
                return None;
            }
            said = Some(port);
        }
        self.nodes
            .iter()
            .position(|node| Some(node.door.port()) == said)
    }

    fn replica_of(&self, primary: usize) -> Option<usize> {
        let port = self.nodes[primary].door.port().to_string();
        self.nodes.iter().position(|node| {
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
            self.primary_of(slot, Some(old))
                .is_some_and(|new| new != old)
        })
    }

    fn cut_off(&self, number: usize) {
        let others: Vec<Party> = (self.nodes.iter().enumerate())
            .filter(|(other, _)| *other != number)
            .map(|(_, node)| node.party)
            .chain([MAINLANDERS, Party::LOCALHOST])
            .collect();
        self.network
            .cut(&[self.nodes[number].party, ISLANDERS], &others);
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
                        self.nodes[replica].say(&format!("CLUSTER FAILOVER{how}"));
                    }
                    self.is_replaced(slot, old, VOTES_AGAIN)
                })
            }
            Fault::Stop => {
                self.nodes[old].server.freeze();
                let promoted = self.await_other_primary(slot, old);
                thread::sleep(Duration::from_millis(random.u64(200..3_000)));
                self.nodes[old].server.thaw();
                promoted
            }
            Fault::Partition => {
                self.cut_off(old);
                let promoted = self.await_other_primary(slot, old);
                thread::sleep(Duration::from_millis(random.u64(500..5_000)));
                self.network.heal();
                promoted
            }
            _ => {
                self.nodes[old].server.kill9();
                let promoted = self.await_other_primary(slot, old);
                self.nodes[old].server.restart();
                promoted
            }
        }
    }
}

impl Scene for Cluster {
    fn route(&self, on_island: bool, random: Rng) -> Box<dyn Route> {
        let nodes = self.nodes.iter().map(|node| node.door.port()).collect();
        let party = if on_island { ISLANDERS } else { MAINLANDERS };
        Box::new(ByCluster::new(nodes, party, random))
    }

    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted {
        let locks = all_locks();
        let slot = slot_of(locks[random.usize(..locks.len())]);
        let mut old = None;
        until(PATIENCE, || {
            old = self.primary_of(slot, None);
            old.is_some()
        });
        let Some(old) = old else {
            return Inflicted {
                new: None,
                healed: false,
            };
        };
        if self.plan.planted == Some(Planted::NoQuarantine) {
            self.nodes.iter().for_each(|node| node.set_quarantine(0));
        }
        let moves = matches!(fault, Fault::Migrate | Fault::MoveAtOnce);
        let done = if moves {
            self.move_slot(fault, slot, old, random)
        } else {
            self.replace(fault, slot, old, random)
        };
        let done_at = Instant::now();
        let healed = until(PATIENCE, || self.is_together());
        let mut new = None;
        if !moves {
            let quarantine = Duration::from_millis(self.plan.setting.quarantine_ms);
            let since = match self.plan.setting.confirms {
                true => Instant::now(),
                false => done_at,
            };
            thread::sleep(quarantine.saturating_sub(since.elapsed()));
            let number = self.primary_of(slot, None).filter(|_| done);
            new = number.map(|number| (done_at, self.nodes[number].door.port()));
        }
        if self.plan.planted == Some(Planted::NoQuarantine) {
            let quarantine_ms = self.plan.setting.quarantine_ms;
            (self.nodes.iter()).for_each(|node| node.set_quarantine(quarantine_ms));
        }
        Inflicted {
            new,
            healed: healed && done,
        }
    }

    fn logs(&self) -> Vec<Log> {
        let locks = all_locks().into_iter();
        let logs = locks.filter_map(|lock| {
            let number = self.primary_of(slot_of(lock), None)?;
            log(&mut self.nodes[number].connection()?, lock)
        });
        logs.collect()
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

impl Node {
    /// Returns the text of the answer to a line.
    fn text(&self, line: &str) -> String {
        let connection = self.connection();
        connection
            .and_then(|mut connection| command(line).query(&mut connection).ok())
            .unwrap_or_default()
    }

    /// Returns the list of texts in the answer to a line.
    fn list(&self, line: &str) -> Vec<String> {
        let connection = self.connection();
        connection
            .and_then(|mut connection| command(line).query(&mut connection).ok())
            .unwrap_or_default()
    }
}
