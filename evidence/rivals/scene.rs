//! The servers, and their faults.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use dlock_evidence::group::{Group, DOWN_AFTER_MS, ISLANDERS, MAINLANDERS};
use dlock_harness::belief::now;
use dlock_harness::{until, Door, Party, Sentinel, ServerBuilder};
use fastrand::Rng;

use crate::contestant::{Contestant, Driver, Fault, LEASE_MS};
use crate::seen::{Round, GROUPS};

const REPLICAS: usize = 2;

/// The quarantine of dlock with `dlock.replicas`: the lease, and 5 s.
pub const QUARANTINE_MS: u64 = LEASE_MS + 5_000;

/// How long the clients work after a promotion until the fault ends, or until a dead server is restarted. It is longer than any
/// lease.
pub const AFTER: Duration = Duration::from_secs(15);

/// How long one master of redlock stalls: as long as Sentinel needs to promote.
pub const STALL: Duration = Duration::from_millis(DOWN_AFTER_MS + 1_500);

/// How long a failover may take, and how long the servers may take afterwards to agree again.
const PATIENCE: Duration = Duration::from_secs(90);

/// The ways of a group of clients to the servers.
#[derive(Clone, Default)]
pub struct Ways {
    pub sentinels: Vec<u16>,
    pub masters: Vec<u16>,
    /// From the port that Sentinels announce to the one that this group uses.
    pub ways: HashMap<u16, u16>,
}

/// Servers under Sentinel, or three masters that do not know each other, or none.
pub struct Scene {
    contestant: Contestant,
    group: Group,
    /// The first group of clients is cut off together with a primary.
    pub clients: [Ways; GROUPS],
    /// They belong to the network.
    _doors: Vec<Door>,
}

impl Scene {
    /// Starts a contestant's servers, and returns when all are together.
    pub fn start(contestant: Contestant) -> Scene {
        let count = match contestant {
            Contestant::Nothing(_) => 0,
            _ => REPLICAS + 1,
        };
        let configure = |builder: ServerBuilder| match contestant {
            Contestant::Dlock => builder,
            // The quarantine of the first start lasts moments: it is not measured.
            Contestant::DlockReplicas => (builder.module_argument("replicas"))
                .module_argument(REPLICAS)
                .module_argument("quarantine-ms")
                .module_argument(1),
            _ => builder.without_module(),
        };
        let mut scene = Scene {
            contestant,
            group: Group::start(count, PATIENCE, configure),
            clients: Default::default(),
            _doors: Vec::new(),
        };
        if count > 0 && contestant.driver() != Driver::Go {
            scene.group.join();
            scene.group.watch(None);
        }
        if contestant == Contestant::DlockReplicas {
            for node in &scene.group.nodes {
                node.say(&format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}"));
                node.say("CONFIG REWRITE");
            }
        }
        scene.open_ways();
        scene
    }

    /// Gives each group of clients entrances of its own to all servers.
    fn open_ways(&mut self) {
        for (clients, guests) in self.clients.iter_mut().zip([ISLANDERS, MAINLANDERS]) {
            let mut open = |party: Party, port: u16| {
                let door = self.group.network.entrance(party, guests);
                door.lead_to(port);
                let at = door.port();
                self._doors.push(door);
                at
            };
            for node in &self.group.nodes {
                let at = open(node.party, node.server.port());
                clients.masters.push(at);
                clients.ways.insert(node.door.port(), at);
            }
            for sentinel in &self.group.sentinels {
                let at = open(Party::LOCALHOST, sentinel.port());
                clients.sentinels.push(at);
                clients.ways.insert(sentinel.port(), at);
            }
        }
    }

    /// Causes one fault, from its beginning until all is well again.
    pub fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Round {
        let (from, tilts) = (now(), self.tilts());
        let (took_effect, healed) = match self.group.sentinels.is_empty() {
            true => {
                let number = random.usize(..self.group.nodes.len());
                self.inflict_on_master(fault, number);
                let all_answer = || {
                    self.group
                        .nodes
                        .iter()
                        .all(|node| node.info("server").is_some())
                };
                (true, until(PATIENCE, all_answer))
            }
            false => {
                let number = self.group.primary().expect("all were together before");
                let promoted = self.inflict_on_primary(fault, number, random);
                (promoted, self.group.heals())
            }
        };
        assert!(healed, "the servers do not find together");
        Round {
            from,
            until: now(),
            took_effect,
            // A Sentinel was in TILT before, or entered it in this round.
            tilted: self.tilts() != tilts || tilts.0 != tilts.1,
        }
    }

    /// Returns how often Sentinels have entered TILT, and how often they have left it.
    fn tilts(&self) -> (usize, usize) {
        let logs: String = self.group.sentinels.iter().map(Sentinel::log).collect();
        let count = |mark: &str| logs.matches(mark).count();
        (count(" +tilt "), count(" -tilt "))
    }

    fn inflict_on_primary(&mut self, fault: Fault, number: usize, random: &mut Rng) -> bool {
        let replicas = self.group.replicas_of(number, random);
        let server = &mut self.group.nodes[number].server;
        match fault {
            Fault::Kill => server.kill9(),
            Fault::Stop => server.freeze(),
            Fault::Stall => {
                server.freeze();
                // As soon as a replica knows that it is the primary: the other one may still follow the old one.
                self.group.await_role(&replicas);
                self.group.nodes[number].server.thaw();
            }
            Fault::Cut => self.group.cut_off(&[number, replicas[0]]),
        }
        let promoted = self.group.await_promotion(number).is_some();
        sleep(AFTER);
        match fault {
            Fault::Kill | Fault::Stop => {
                self.come_back(number);
                if let Some(new) = self.group.primary() {
                    self.group.nodes[number].point(&self.group.nodes[new]);
                }
            }
            Fault::Stall => {}
            Fault::Cut => self.group.network.heal(),
        }
        promoted
    }

    fn inflict_on_master(&mut self, fault: Fault, number: usize) {
        let detection = Duration::from_millis(DOWN_AFTER_MS);
        match fault {
            Fault::Kill => self.group.nodes[number].server.kill9(),
            Fault::Stop => self.group.nodes[number].server.freeze(),
            Fault::Stall => {
                self.group.nodes[number].server.freeze();
                sleep(STALL);
                self.group.nodes[number].server.thaw();
            }
            Fault::Cut => self.group.cut_off(&[number]),
        }
        sleep(detection + AFTER);
        match fault {
            Fault::Kill | Fault::Stop => self.come_back(number),
            Fault::Stall => {}
            Fault::Cut => self.group.network.heal(),
        }
    }

    /// Restarts a server without its data.
    fn come_back(&mut self, number: usize) {
        let server = &mut self.group.nodes[number].server;
        server.kill9();
        server.restart();
    }

    /// Returns how long dlock needs until a replica counts after a full synchronisation: the next fault waits for it.
    pub fn settling(&self) -> Duration {
        match self.contestant {
            Contestant::DlockReplicas => Duration::from_millis(QUARANTINE_MS),
            _ => Duration::ZERO,
        }
    }
}
