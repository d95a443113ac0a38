//! Servers that are killed, stopped and cut off: each behind a door, a primary with replicas, and the Sentinels that watch them.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use dlock_harness::redis::{cmd, FromRedisValue, Value};
use dlock_harness::{
    command, until, Door, Info, Network, Party, Sentinel, Server, ServerBuilder, Watch, Wire,
    PRIMARY,
};
use fastrand::Rng;

/// The address of half of the clients: on the island when a primary is cut off.
pub const ISLANDERS: Party = Party::new(127, 0, 2, 1);

/// The address of the other clients.
pub const MAINLANDERS: Party = Party::new(127, 0, 2, 2);

/// `down-after-milliseconds` of the Sentinels, `cluster-node-timeout`.
pub const DOWN_AFTER_MS: u64 = 3_000;

/// The seconds of silence after which a replica and its primary end their link.
pub const REPL_TIMEOUT: u64 = 5;

/// The number of Sentinels, and how many of them must agree.
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// A server behind its door.
pub struct Node {
    pub server: Server,
    pub door: Door,
    pub party: Party,
}

impl Node {
    /// Starts a server with an address of its own. `start` adds to its configuration, and may return more than the server.
    pub fn start<S>(
        network: &Network,
        number: usize,
        start: impl FnOnce(ServerBuilder, &Door) -> (Server, S),
    ) -> (Node, S) {
        let last = u8::try_from(number).expect("a few servers") + 1;
        let party = Party::new(127, 0, 1, last);
        let door = network.door(party);
        let builder = Server::builder().config("bind-source-addr", party);
        let (server, more) = start(builder, &door);
        door.lead_to(server.port());
        let node = Node {
            server,
            door,
            party,
        };
        (node, more)
    }

    /// Opens a connection with a bound, past the door; `None` if the server does not answer.
    pub fn connection(&self) -> Option<Wire> {
        let connection = Wire::open(self.server.port(), Duration::from_secs(2)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(20)));
        Some(connection)
    }

    /// Returns a section of INFO, if the server answers.
    pub fn info(&self, section: &str) -> Option<Info> {
        let text: String = self.ask(&format!("INFO {section}"))?;
        Some(Info::parse(&text))
    }

    /// Sends a line. Returns the answer, if it is one of this type.
    pub fn ask<T: FromRedisValue>(&self, line: &str) -> Option<T> {
        command(line).query(&mut self.connection()?).ok()
    }

    /// Sends a line to the server. Returns the answer's text, or the error's.
    pub fn say(&self, line: &str) -> String {
        let Some(mut connection) = self.connection() else {
            return "no connection".into();
        };
        match command(line).query::<Value>(&mut connection) {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    }

    pub fn is_primary(&self) -> bool {
        let info = self.info("replication");
        info.is_some_and(|info| info.get("role") == Some("master"))
    }

    /// Returns true if it has this number of replicas, in sync.
    fn leads(&self, replicas: usize) -> bool {
        self.info("replication").is_some_and(|info| {
            info.get("role") == Some("master")
                && info.get("connected_slaves") == Some(&replicas.to_string())
        })
    }

    /// Returns true if it is a replica of that server, in sync.
    pub fn follows(&self, primary: &Node) -> bool {
        let port = primary.door.port().to_string();
        self.info("replication").is_some_and(|info| {
            info.get("role") == Some("slave")
                && info.get("master_link_status") == Some("up")
                && info.get("master_port") == Some(&port)
        })
    }

    /// Makes it a replica of that server, as an operator would.
    pub fn point(&self, primary: &Node) {
        let port = primary.door.port();
        self.say(&format!("REPLICAOF 127.0.0.1 {port}"));
    }
}

/// Servers, and the Sentinels that watch them, if there are any.
pub struct Group {
    pub network: Network,
    pub nodes: Vec<Node>,
    pub sentinels: Vec<Sentinel>,
    /// How long a failover may take, and how long the servers may take afterwards to agree again.
    patience: Duration,
}

impl Group {
    /// Starts servers that do not know each other.
    pub fn start(
        count: usize,
        patience: Duration,
        configure: impl Fn(ServerBuilder) -> ServerBuilder,
    ) -> Group {
        let network = Network::new();
        let start = |builder: ServerBuilder, door: &Door| {
            let builder = builder
                .config("repl-ping-replica-period", 1)
                .config("repl-timeout", REPL_TIMEOUT)
                .config("replica-announce-ip", "127.0.0.1")
                .config("replica-announce-port", door.port());
            (configure(builder).start(), ())
        };
        let nodes = (0..count).map(|number| Node::start(&network, number, start).0);
        let nodes = nodes.collect();
        Group::new(network, nodes, patience)
    }

    /// Makes a group of servers that run already.
    pub fn new(network: Network, nodes: Vec<Node>, patience: Duration) -> Group {
        Group {
            network,
            nodes,
            sentinels: Vec::new(),
            patience,
        }
    }

    /// Makes the first the primary of all others, and returns when they are in sync.
    pub fn join(&self) {
        for node in &self.nodes[1..] {
            node.point(&self.nodes[0]);
        }
        let ready = until(self.patience, || self.is_together(0));
        assert!(ready, "the replicas do not find their primary");
    }

    /// Starts Sentinels, and returns when they know each other and all servers.
    pub fn watch(&mut self, program: Option<OsString>) {
        let watch = Watch {
            port: self.nodes[0].door.port(),
            quorum: QUORUM,
            down_after_ms: DOWN_AFTER_MS,
            program,
        };
        self.sentinels = (0..SENTINELS).map(|_| Sentinel::start(&watch)).collect();
        let knows = (SENTINELS - 1, self.nodes.len() - 1);
        let ready = until(self.patience, || {
            self.sentinels.iter().all(|one| one.knows() == knows)
        });
        assert!(ready, "the Sentinels do not find the servers");
    }

    /// Returns the primary according to most Sentinels.
    pub fn primary(&self) -> Option<usize> {
        let sentinels = self.sentinels.iter();
        let said: Vec<u16> = sentinels
            .filter_map(|sentinel| ask_sentinel(sentinel.port()))
            .collect();
        let most = |port: &&u16| said.iter().filter(|other| other == port).count() >= QUORUM;
        let port = said.iter().find(most)?;
        self.nodes.iter().position(|node| node.door.port() == *port)
    }

    /// Returns true if this is the primary, and all others are its replicas, in sync.
    pub fn is_together(&self, primary: usize) -> bool {
        self.nodes[primary].leads(self.nodes.len() - 1)
            && (self.others(primary)).all(|other| self.nodes[other].follows(&self.nodes[primary]))
    }

    /// Waits until the Sentinels have a primary that has all others. Returns whether they have.
    pub fn heals(&self) -> bool {
        until(self.patience, || {
            let primary = self.primary();
            primary.is_some_and(|primary| self.is_together(primary))
        })
    }

    fn others(&self, but: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |number| *number != but)
    }

    /// Returns all servers but this one, in any order.
    pub fn replicas_of(&self, number: usize, random: &mut Rng) -> Vec<usize> {
        let mut replicas: Vec<usize> = self.others(number).collect();
        random.shuffle(&mut replicas);
        replicas
    }

    /// Waits until the Sentinels have another primary. Returns it, and when it was noticed.
    pub fn await_promotion(&self, old: usize) -> Option<(Instant, usize)> {
        let mut new = None;
        until(self.patience, || {
            new = self.primary().filter(|number| *number != old);
            new.is_some()
        });
        Some((Instant::now(), new?))
    }

    /// Waits until one of these reports that it is a primary.
    pub fn await_role(&self, replicas: &[usize]) {
        until(self.patience, || {
            let mut replicas = replicas.iter();
            replicas.any(|number| self.nodes[*number].is_primary())
        });
    }

    /// Cuts these servers and half of the clients off from all others.
    pub fn cut_off(&self, numbers: &[usize]) {
        let (mut island, mut others) = (vec![ISLANDERS], vec![MAINLANDERS, Party::LOCALHOST]);
        for (number, node) in self.nodes.iter().enumerate() {
            match numbers.contains(&number) {
                true => island.push(node.party),
                false => others.push(node.party),
            }
        }
        self.network.cut(&island, &others);
    }
}

/// Returns the port of the primary's door according to a Sentinel.
pub fn ask_sentinel(port: u16) -> Option<u16> {
    let mut wire = Wire::open(port, Duration::from_millis(500)).ok()?;
    let mut request = cmd("SENTINEL");
    let request = request.arg("GET-MASTER-ADDR-BY-NAME").arg(PRIMARY);
    let (_, port): (String, u16) = request.query(&mut wire).ok()?;
    Some(port)
}
