//! A primary, its replicas, three Sentinels.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::redis::cmd;
use dlock_integration::{Network, Party, Sentinel, Watch, Wire};
use fastrand::Rng;

use crate::client::all_locks;
use crate::client::log_of;
use crate::control::Planted;
use crate::fault::Fault;
use crate::history::{Applied, Left, Log};
use crate::nodes::{died, gauges, settings, until, Node, ISLANDERS, MAINLANDERS, REPL_TIMEOUT};
use crate::route::{ask_sentinel, BySentinel, Route};
use crate::run::{Inflicted, Plan, Scene};
use crate::setting::DOWN_AFTER_MS;

const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// How long a failover may take, and how long the servers may take afterwards to agree again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers and their Sentinels.
pub struct Watched {
    network: Network,
    nodes: Vec<Node>,
    sentinels: Vec<Sentinel>,
    plan: Plan,
    /// Whether a primary is cut off with half of the clients.
    island: Arc<AtomicBool>,
    /// How often clients learned of another primary.
    told: Arc<AtomicUsize>,
    /// When another primary was noticed.
    promoted_at: Option<Instant>,
}

impl Watched {
    /// Starts all, and returns when the Sentinels know each other and the replicas are in sync.
    pub fn start(plan: &Plan) -> Watched {
        let network = Network::new();
        let nodes: Vec<Node> = (0..=plan.replicas as u8)
            .map(|number| Node::start(&network, number, plan, false).0)
            .collect();
        let primary = nodes[0].door.port();
        for node in &nodes[1..] {
            node.say(&format!("REPLICAOF 127.0.0.1 {primary}"));
        }
        let watch = Watch {
            port: primary,
            quorum: QUORUM,
            down_after_ms: DOWN_AFTER_MS,
            program: Some(plan.program.clone()),
        };
        let sentinels: Vec<Sentinel> = (0..SENTINELS).map(|_| Sentinel::start(&watch)).collect();
        let all = Watched {
            network,
            nodes,
            sentinels,
            plan: plan.clone(),
            island: Arc::default(),
            told: Arc::default(),
            promoted_at: None,
        };
        let knows = (SENTINELS - 1, plan.replicas);
        let ready = until(PATIENCE, || {
            all.is_together(primary) && all.sentinels.iter().all(|one| one.knows() == knows)
        });
        assert!(ready, "the Sentinels do not find the servers");
        // On all: a promoted server has its own from its start on where replicas confirm answers.
        for node in &all.nodes {
            node.end_quarantine(&plan.setting);
        }
        all
    }

    /// Returns the primary according to most Sentinels.
    fn primary(&self) -> Option<u16> {
        let said: Vec<u16> = (self.sentinels.iter())
            .filter_map(|sentinel| ask_sentinel(sentinel.port()))
            .collect();
        let most = |port: &&u16| said.iter().filter(|other| other == port).count() >= QUORUM;
        said.iter().find(most).copied()
    }

    fn number_of(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.door.port() == port)
    }

    /// Returns true if this is the primary, and all others are its replicas, in sync.
    fn is_together(&self, primary: u16) -> bool {
        let replicas = self.plan.replicas.to_string();
        self.nodes.iter().all(|node| {
            let Some(info) = node.info("replication") else {
                return false;
            };
            if node.door.port() == primary {
                info.get("role") == Some("master")
                    && info.get("connected_slaves") == Some(&replicas)
            } else {
                info.get("role") == Some("slave")
                    && info.get("master_link_status") == Some("up")
                    && info.get("master_port") == Some(&primary.to_string())
            }
        })
    }

    fn parties_but(&self, numbers: &[usize]) -> Vec<Party> {
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, _)| !numbers.contains(other));
        others.map(|(_, node)| node.party).collect()
    }

    /// Returns all servers but this one, in any order.
    fn replicas_of(&self, number: usize, random: &mut Rng) -> Vec<usize> {
        let all = 0..self.nodes.len();
        let mut replicas: Vec<usize> = all.filter(|other| *other != number).collect();
        random.shuffle(&mut replicas);
        replicas
    }

    fn await_promotion(&mut self, old: u16) -> Option<u16> {
        let mut new = None;
        until(PATIENCE, || {
            new = self.primary().filter(|port| *port != old);
            new.is_some()
        });
        self.promoted_at = new.map(|_| Instant::now());
        new
    }

    /// Cuts these servers and half of the clients off from all others.
    fn cut_off(&self, numbers: &[usize]) {
        let mut island: Vec<Party> = (numbers.iter())
            .map(|number| self.nodes[*number].party)
            .collect();
        island.push(ISLANDERS);
        let mut others = self.parties_but(numbers);
        others.extend([MAINLANDERS, Party::LOCALHOST]);
        self.network.cut(&island, &others);
    }

    /// Waits until one of these reports that it is a primary.
    fn await_role(&self, replicas: &[usize]) {
        until(PATIENCE, || {
            replicas.iter().any(|number| {
                let info = self.nodes[*number].info("replication");
                info.is_some_and(|info| info.get("role") == Some("master"))
            })
        });
    }

    /// Takes the primary away and gives it back. Returns the primary afterwards.
    fn replace(&mut self, fault: Fault, old: u16, number: usize, random: &mut Rng) -> Option<u16> {
        match fault {
            Fault::LagThenKill => {
                let party = self.nodes[number].party;
                self.network.cut(&[party], &self.parties_but(&[number]));
                // Below the time after which the Sentinels would see more than a lag.
                thread::sleep(Duration::from_millis(random.u64(500..2_800)));
                self.nodes[number].server.kill9();
                self.network.lose();
                self.come_back(old, number)
            }
            Fault::Restart => {
                self.nodes[number].server.kill9();
                thread::sleep(Duration::from_millis(random.u64(0..500)));
                self.nodes[number].server.restart();
                None
            }
            Fault::Stop => {
                self.nodes[number].server.freeze();
                let new = self.await_promotion(old);
                thread::sleep(Duration::from_millis(random.u64(200..3_000)));
                self.nodes[number].server.thaw();
                new
            }
            Fault::Stall => {
                let seconds = DOWN_AFTER_MS as f64 / 1_000.0 + 2.0 + 3.0 * random.f64();
                self.nodes[number].say(&format!("DEBUG SLEEP {seconds:.1}"));
                self.await_promotion(old)
            }
            Fault::BriefStop => {
                // While it is stopped its replicas receive nothing from it, and must not give it up for that.
                let replicas = self.replicas_of(number, random);
                for node in &self.nodes {
                    node.say("CONFIG SET repl-timeout 20");
                }
                self.island.store(true, Ordering::Relaxed);
                self.nodes[number].server.freeze();
                self.await_role(&replicas);
                self.nodes[number].server.thaw();
                let new = self.await_promotion(old);
                // Half of the clients learn of it at once, the others stay.
                self.told.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(random.u64(2_000..4_000)));
                self.island.store(false, Ordering::Relaxed);
                for node in &self.nodes {
                    node.say(&format!("CONFIG SET repl-timeout {REPL_TIMEOUT}"));
                }
                new
            }
            Fault::WrongChoice => {
                let replicas = self.replicas_of(number, random);
                for (place, replica) in replicas.iter().enumerate() {
                    let priority = 10 * (place + 1);
                    self.nodes[*replica].say(&format!("CONFIG SET replica-priority {priority}"));
                }
                let preferred = self.nodes[replicas[0]].party;
                self.network.cut(&[self.nodes[number].party], &[preferred]);
                thread::sleep(Duration::from_millis(random.u64(2_500..4_500)));
                self.nodes[number].server.kill9();
                self.network.lose();
                self.come_back(old, number)
            }
            Fault::Partition | Fault::PartitionBeside(_) => {
                let mut island = self.replicas_of(number, random);
                island.truncate(fault.beside());
                island.push(number);
                self.island.store(true, Ordering::Relaxed);
                self.cut_off(&island);
                let new = self.await_promotion(old);
                if fault.beside() > 0 {
                    // The promoted server has time to grant while the old primary still has its replicas.
                    thread::sleep(Duration::from_millis(self.plan.setting.quarantine_ms));
                }
                thread::sleep(Duration::from_millis(random.u64(500..5_000)));
                self.network.heal();
                self.island.store(false, Ordering::Relaxed);
                new
            }
            _ => {
                self.nodes[number].server.kill9();
                self.come_back(old, number)
            }
        }
    }

    /// Waits for the other primary; restarts the dead server, and makes it a replica as an operator would.
    fn come_back(&mut self, old: u16, number: usize) -> Option<u16> {
        let new = self.await_promotion(old);
        self.nodes[number].server.restart();
        if let Some(new) = new {
            self.nodes[number].say(&format!("REPLICAOF 127.0.0.1 {new}"));
        }
        new
    }
}

impl Scene for Watched {
    fn route(&self, on_island: bool, _: Rng) -> Box<dyn Route> {
        Box::new(BySentinel {
            sentinels: self.sentinels.iter().map(Sentinel::port).collect(),
            on_island,
            island: self.island.clone(),
            told: self.told.clone(),
            heard: 0,
            known: None,
        })
    }

    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted {
        let mut begun = None;
        until(PATIENCE, || {
            let primary = self.primary();
            begun = primary.and_then(|old| Some((old, self.number_of(old)?)));
            begun.is_some()
        });
        let Some((old, number)) = begun else {
            return Inflicted {
                new: None,
                healed: false,
            };
        };
        if self.plan.planted == Some(Planted::NoQuarantine) {
            self.nodes.iter().for_each(|node| node.set_quarantine(0));
        }
        let new = self.replace(fault, old, number, random);
        if new.is_none() && fault.replaces() {
            for sentinel in &self.sentinels {
                eprintln!("Nobody was promoted; a Sentinel's log:\n{}", sentinel.log());
            }
        }
        let promoted_at = self.promoted_at.take().unwrap_or_else(Instant::now);
        let healed = until(PATIENCE, || {
            self.primary()
                .is_some_and(|primary| self.is_together(primary))
        });
        let quarantine = Duration::from_millis(self.plan.setting.quarantine_ms);
        // Where replicas confirm answers, one after a full synchronisation counts late, and so does any other that joins soon
        // after.
        let since = match self.plan.setting.confirms {
            true => Instant::now(),
            false => promoted_at,
        };
        thread::sleep(quarantine.saturating_sub(since.elapsed()));
        if self.plan.planted == Some(Planted::NoQuarantine) {
            let quarantine_ms = self.plan.setting.quarantine_ms;
            (self.nodes.iter()).for_each(|node| node.set_quarantine(quarantine_ms));
        }
        Inflicted {
            new: new.map(|port| (promoted_at, port)),
            healed,
        }
    }

    fn logs(&self) -> Vec<Log> {
        let number = self.primary().and_then(|port| self.number_of(port));
        let connection = number.and_then(|number| self.nodes[number].connection());
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

/// Returns the list written under a lock, if it can be read.
pub fn log(connection: &mut Wire, lock: &str) -> Option<Log> {
    let mut request = cmd("LRANGE");
    request.arg(log_of(lock)).arg(0).arg(-1);
    Some(Log {
        lock: lock.into(),
        tokens: request.query(connection).ok()?,
    })
}
