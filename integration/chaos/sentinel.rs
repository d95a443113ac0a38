//! A primary, two replicas, three Sentinels.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_integration::redis::{cmd, Connection};
use dlock_integration::{Network, Party, Sentinel, Watch};
use fastrand::Rng;

use crate::client::all_locks;
use crate::client::log_of;
use crate::fault::Fault;
use crate::history::{Left, Log};
use crate::nodes::{died, gauges, until, Node, ISLANDERS, MAINLANDERS};
use crate::route::{ask_sentinel, BySentinel, Route};
use crate::run::{Inflicted, Scene};
use crate::setting::{Setting, DOWN_AFTER_MS, QUARANTINE_MS};

const SERVERS: u8 = 3;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// So long a failover may take, and so long it may take until all have found together again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers and who watches them.
pub struct Watched {
    network: Network,
    nodes: Vec<Node>,
    sentinels: Vec<Sentinel>,
    setting: Setting,
    /// Is a primary cut off with half of the clients?
    island: Arc<AtomicBool>,
}

impl Watched {
    /// Starts all, and returns when the Sentinels know each other and the replicas are in sync.
    pub fn start(program: &OsString, setting: &Setting) -> Watched {
        let network = Network::new();
        let nodes: Vec<Node> = (0..SERVERS)
            .map(|number| Node::start(&network, number, program, setting, false).0)
            .collect();
        let primary = nodes[0].door.port();
        for node in &nodes[1..] {
            node.say(&format!("REPLICAOF 127.0.0.1 {primary}"));
        }
        let watch = Watch {
            port: primary,
            quorum: QUORUM,
            down_after_ms: DOWN_AFTER_MS,
            program: Some(program.clone()),
        };
        let sentinels: Vec<Sentinel> = (0..SENTINELS).map(|_| Sentinel::start(&watch)).collect();
        let all = Watched {
            network,
            nodes,
            sentinels,
            setting: *setting,
            island: Arc::default(),
        };
        let knows = (SENTINELS - 1, usize::from(SERVERS) - 1);
        let ready = until(PATIENCE, || {
            all.is_together(primary) && all.sentinels.iter().all(|one| one.knows() == knows)
        });
        assert!(ready, "the Sentinels do not find the servers");
        all.nodes[0].end_quarantine(setting);
        all
    }

    /// Where most Sentinels say that the primary is.
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

    /// Is this the primary, and are both others its replicas, in sync?
    fn is_together(&self, primary: u16) -> bool {
        self.nodes.iter().all(|node| {
            let Some(info) = node.info("replication") else {
                return false;
            };
            if node.door.port() == primary {
                info.get("role") == Some("master") && info.get("connected_slaves") == Some("2")
            } else {
                info.get("role") == Some("slave")
                    && info.get("master_link_status") == Some("up")
                    && info.get("master_port") == Some(&primary.to_string())
            }
        })
    }

    fn parties_but(&self, number: usize) -> Vec<Party> {
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, _)| *other != number);
        others.map(|(_, node)| node.party).collect()
    }

    fn await_promotion(&self, old: u16) -> Option<u16> {
        let mut new = None;
        until(PATIENCE, || {
            new = self.primary().filter(|port| *port != old);
            new.is_some()
        });
        new
    }

    fn cut_off(&self, number: usize) {
        let party = self.nodes[number].party;
        let others = self.parties_but(number);
        self.network.cut(&[party, ISLANDERS], &others);
        self.network
            .cut(&[party, ISLANDERS], &[MAINLANDERS, Party::LOCALHOST]);
    }

    /// Takes the primary away and gives it back; where the primary is then.
    fn replace(&mut self, fault: Fault, old: u16, number: usize, random: &mut Rng) -> Option<u16> {
        match fault {
            Fault::LagThenKill => {
                let party = self.nodes[number].party;
                self.network.cut(&[party], &self.parties_but(number));
                // Below the time after which the Sentinels would see more than a lag.
                thread::sleep(Duration::from_millis(random.u64(500..2_800)));
                self.nodes[number].server.kill9();
                self.network.lose();
                self.come_back(old, number)
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
            Fault::Partition => {
                self.island.store(true, Ordering::Relaxed);
                self.cut_off(number);
                let new = self.await_promotion(old);
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

    /// Waits for the other primary; starts the dead server again, and makes it a replica as an operator would.
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
                promoted: false,
                healed: false,
            };
        };
        let new = self.replace(fault, old, number, random);
        if new.is_none() {
            for sentinel in &self.sentinels {
                eprintln!("Nobody was promoted; a Sentinel's log:\n{}", sentinel.log());
            }
        }
        let promoted_at = Instant::now();
        let healed = until(PATIENCE, || {
            self.primary()
                .is_some_and(|primary| self.is_together(primary))
        });
        if self.setting.quarantine {
            let quarantine = Duration::from_millis(QUARANTINE_MS);
            thread::sleep(quarantine.saturating_sub(promoted_at.elapsed()));
        }
        Inflicted {
            promoted: new.is_some(),
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

    fn died(&mut self) -> Vec<String> {
        died(&mut self.nodes)
    }
}

/// What was written under a lock, if it can be read.
pub fn log(connection: &mut Connection, lock: &str) -> Option<Log> {
    let mut request = cmd("LRANGE");
    request.arg(log_of(lock)).arg(0).arg(-1);
    Some(Log {
        lock: lock.into(),
        tokens: request.query(connection).ok()?,
    })
}
