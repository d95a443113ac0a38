//! The servers, and their faults.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_integration::belief::now;
use dlock_integration::redis::{cmd, Value};
use dlock_integration::{
    command, Door, Info, Network, Party, Sentinel, Server, Watch, Wire, PRIMARY,
};
use fastrand::Rng;

use crate::contestant::{Contestant, Driver, Fault, LEASE_MS};
use crate::seen::Round;

/// `down-after-milliseconds` of the Sentinels, and how many of the three must agree.
pub const DOWN_AFTER_MS: u64 = 3_000;
const QUORUM: usize = 2;
const SENTINELS: usize = 3;
const REPLICAS: usize = 2;

/// The seconds of silence after which a replica and its primary end their link.
pub const REPL_TIMEOUT: u64 = 5;

/// The quarantine of dlock with `dlock.replicas`: the lease, and 5 s.
pub const QUARANTINE_MS: u64 = LEASE_MS + 5_000;

/// How long the clients work after a promotion until the fault ends, or until a dead server is restarted. It is longer than any
/// lease.
pub const AFTER: Duration = Duration::from_secs(15);

/// How long one master of redlock stalls: as long as Sentinel needs to promote.
const STALL: Duration = Duration::from_millis(DOWN_AFTER_MS + 1_500);

/// How long a failover may take, and how long the servers may take afterwards to agree again.
const PATIENCE: Duration = Duration::from_secs(90);

/// The addresses of the groups: the clients of one group are cut off together with a primary.
const GROUPS: [Party; 2] = [Party::new(127, 0, 2, 1), Party::new(127, 0, 2, 2)];

/// The ways of a group of clients to the servers.
#[derive(Clone, Default)]
pub struct Group {
    pub sentinels: Vec<u16>,
    pub masters: Vec<u16>,
    /// From the port that Sentinels announce to the one that this group uses.
    pub ways: HashMap<u16, u16>,
}

struct Node {
    server: Server,
    door: Door,
    party: Party,
}

/// Servers under Sentinel, or three masters that do not know each other, or none.
pub struct Scene {
    contestant: Contestant,
    network: Network,
    nodes: Vec<Node>,
    sentinels: Vec<Sentinel>,
    pub groups: Vec<Group>,
    /// They belong to the network.
    _doors: Vec<Door>,
}

impl Scene {
    /// Starts a contestant's servers, and returns when all are together.
    pub fn start(contestant: Contestant) -> Scene {
        let mut scene = Scene {
            contestant,
            network: Network::new(),
            nodes: Vec::new(),
            sentinels: Vec::new(),
            groups: vec![Group::default(); GROUPS.len()],
            _doors: Vec::new(),
        };
        if matches!(contestant, Contestant::Nothing(_)) {
            return scene;
        }
        for number in 0..=REPLICAS as u8 {
            let node = scene.start_node(number);
            scene.nodes.push(node);
        }
        if contestant.driver() != Driver::Go {
            scene.watch();
        }
        scene.open_ways();
        scene
    }

    fn start_node(&self, number: u8) -> Node {
        let party = Party::new(127, 0, 1, number + 1);
        let door = self.network.door(party);
        let mut builder = Server::builder()
            .config("bind-source-addr", party)
            .config("repl-ping-replica-period", 1)
            .config("repl-timeout", REPL_TIMEOUT)
            .config("replica-announce-ip", "127.0.0.1")
            .config("replica-announce-port", door.port());
        builder = match self.contestant {
            Contestant::Dlock => builder,
            // The quarantine of the first start lasts moments: it is not measured.
            Contestant::DlockReplicas => (builder.module_argument("replicas"))
                .module_argument(REPLICAS)
                .module_argument("quarantine-ms")
                .module_argument(1),
            _ => builder.without_module(),
        };
        let server = builder.start();
        door.lead_to(server.port());
        Node {
            server,
            door,
            party,
        }
    }

    fn watch(&mut self) {
        let primary = self.nodes[0].door.port();
        for node in &self.nodes[1..] {
            node.say(&format!("REPLICAOF 127.0.0.1 {primary}"));
        }
        let watch = Watch {
            port: primary,
            quorum: QUORUM,
            down_after_ms: DOWN_AFTER_MS,
            program: None,
        };
        self.sentinels = (0..SENTINELS).map(|_| Sentinel::start(&watch)).collect();
        let knows = (SENTINELS - 1, REPLICAS);
        let ready = until(PATIENCE, || {
            self.is_together() && self.sentinels.iter().all(|one| one.knows() == knows)
        });
        assert!(ready, "the Sentinels do not find the servers");
        if self.contestant == Contestant::DlockReplicas {
            for node in &self.nodes {
                node.say(&format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}"));
                node.say("CONFIG REWRITE");
            }
        }
    }

    /// Gives each group of clients entrances of its own to all servers.
    fn open_ways(&mut self) {
        for (group, guests) in self.groups.iter_mut().zip(GROUPS) {
            let mut open = |party: Party, port: u16| {
                let door = self.network.entrance(party, guests);
                door.lead_to(port);
                let at = door.port();
                self._doors.push(door);
                at
            };
            for node in &self.nodes {
                let at = open(node.party, node.server.port());
                group.masters.push(at);
                group.ways.insert(node.door.port(), at);
            }
            for sentinel in &self.sentinels {
                let at = open(Party::LOCALHOST, sentinel.port());
                group.sentinels.push(at);
                group.ways.insert(sentinel.port(), at);
            }
        }
    }

    /// Returns the primary according to most Sentinels.
    fn primary(&self) -> Option<usize> {
        let said: Vec<u16> = (self.sentinels.iter())
            .filter_map(|sentinel| ask_sentinel(sentinel.port()))
            .collect();
        let most = |port: &&u16| said.iter().filter(|other| other == port).count() >= QUORUM;
        let port = said.iter().find(most)?;
        self.nodes.iter().position(|node| node.door.port() == *port)
    }

    /// Returns true if the primary has all others as its replicas, in sync.
    fn is_together(&self) -> bool {
        if self.sentinels.is_empty() {
            return self.nodes.iter().all(|node| node.replication().is_some());
        }
        let Some(primary) = self.primary() else {
            return false;
        };
        let (replicas, port) = (
            REPLICAS.to_string(),
            self.nodes[primary].door.port().to_string(),
        );
        self.nodes.iter().enumerate().all(|(number, node)| {
            let Some(info) = node.replication() else {
                return false;
            };
            if number == primary {
                info.get("role") == Some("master")
                    && info.get("connected_slaves") == Some(&replicas)
            } else {
                info.get("role") == Some("slave")
                    && info.get("master_link_status") == Some("up")
                    && info.get("master_port") == Some(&port)
            }
        })
    }

    fn await_promotion(&self, old: usize) -> bool {
        until(PATIENCE, || self.primary().is_some_and(|new| new != old))
    }

    /// Returns the replicas, in any order.
    fn others(&self, number: usize, random: &mut Rng) -> Vec<usize> {
        let mut others: Vec<usize> = (0..self.nodes.len()).filter(|at| *at != number).collect();
        random.shuffle(&mut others);
        others
    }

    /// Causes one fault, from its beginning until all is well again.
    pub fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Round {
        let number = match self.sentinels.is_empty() {
            true => random.usize(..self.nodes.len()),
            false => self.primary().expect("all were together before"),
        };
        let (from, tilts) = (now(), self.tilts());
        let took_effect = match self.sentinels.is_empty() {
            true => self.inflict_on_master(fault, number),
            false => self.inflict_on_primary(fault, number, random),
        };
        let healed = until(PATIENCE, || self.is_together());
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
        let logs: String = self.sentinels.iter().map(Sentinel::log).collect();
        let count = |mark: &str| logs.matches(mark).count();
        (count(" +tilt "), count(" -tilt "))
    }

    fn inflict_on_primary(&mut self, fault: Fault, number: usize, random: &mut Rng) -> bool {
        let others = self.others(number, random);
        match fault {
            Fault::Kill => self.nodes[number].server.kill9(),
            Fault::Stop => self.nodes[number].server.freeze(),
            Fault::Stall => {
                self.nodes[number].server.freeze();
                // As soon as a replica knows that it is the primary: the other one may still follow the old one.
                until(PATIENCE, || {
                    let is_primary = |at: &usize| self.nodes[*at].is_primary();
                    others.iter().any(is_primary)
                });
                self.nodes[number].server.thaw();
            }
            Fault::Cut => self.cut_off(&[number, others[0]]),
        }
        let promoted = self.await_promotion(number);
        sleep(AFTER);
        match fault {
            Fault::Kill | Fault::Stop => {
                self.come_back(number);
                if let Some(new) = self.primary() {
                    let port = self.nodes[new].door.port();
                    self.nodes[number].say(&format!("REPLICAOF 127.0.0.1 {port}"));
                }
            }
            Fault::Stall => {}
            Fault::Cut => self.network.heal(),
        }
        promoted
    }

    fn inflict_on_master(&mut self, fault: Fault, number: usize) -> bool {
        let detection = Duration::from_millis(DOWN_AFTER_MS);
        match fault {
            Fault::Kill => self.nodes[number].server.kill9(),
            Fault::Stop => self.nodes[number].server.freeze(),
            Fault::Stall => {
                self.nodes[number].server.freeze();
                sleep(STALL);
                self.nodes[number].server.thaw();
            }
            Fault::Cut => self.cut_off(&[number]),
        }
        sleep(detection + AFTER);
        match fault {
            Fault::Kill | Fault::Stop => self.come_back(number),
            Fault::Stall => {}
            Fault::Cut => self.network.heal(),
        }
        true
    }

    /// Restarts a server without its data.
    fn come_back(&mut self, number: usize) {
        let server = &mut self.nodes[number].server;
        server.kill9();
        server.restart();
    }

    /// Cuts these servers and the first group of clients off from all others.
    fn cut_off(&self, numbers: &[usize]) {
        let (mut island, mut others) = (vec![GROUPS[0]], vec![GROUPS[1], Party::LOCALHOST]);
        for (number, node) in self.nodes.iter().enumerate() {
            match numbers.contains(&number) {
                true => island.push(node.party),
                false => others.push(node.party),
            }
        }
        self.network.cut(&island, &others);
    }

    /// Returns how long dlock needs until a replica counts after a full synchronisation: the next fault waits for it.
    pub fn settling(&self) -> Duration {
        match self.contestant {
            Contestant::DlockReplicas => Duration::from_millis(QUARANTINE_MS),
            _ => Duration::ZERO,
        }
    }

    /// Returns the versions of the server, and of the module if the server has loaded it.
    pub fn versions(&self) -> (String, Option<String>) {
        let server = &self.nodes[0].server;
        let module = self.contestant.is_ours();
        (
            server.version().to_string(),
            module.then(|| server.module_version()).flatten(),
        )
    }
}

impl Node {
    fn connection(&self) -> Option<Wire> {
        Wire::open(self.server.port(), Duration::from_secs(1)).ok()
    }

    fn replication(&self) -> Option<Info> {
        let mut connection = self.connection()?;
        let text: String = cmd("INFO").arg("replication").query(&mut connection).ok()?;
        Some(Info::parse(&text))
    }

    fn is_primary(&self) -> bool {
        let info = self.replication();
        info.is_some_and(|info| info.get("role") == Some("master"))
    }

    fn say(&self, line: &str) {
        let mut connection = self.connection().expect("the server answers");
        let reply: Result<Value, _> = command(line).query(&mut connection);
        reply.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// Returns the primary according to a Sentinel.
pub fn ask_sentinel(port: u16) -> Option<u16> {
    let mut wire = Wire::open(port, Duration::from_millis(500)).ok()?;
    let mut request = cmd("SENTINEL");
    let request = request.arg("GET-MASTER-ADDR-BY-NAME").arg(PRIMARY);
    let (_, port): (String, u16) = request.query(&mut wire).ok()?;
    Some(port)
}

fn until(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
    true
}
