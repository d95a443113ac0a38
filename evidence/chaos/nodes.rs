//! Servers under Sentinel and in the cluster: their common parts.

use std::time::{Duration, Instant};

use dlock_integration::redis::cmd;
use dlock_integration::{Door, Info, Network, Party, Server, Wire};

use crate::control::Planted;
use crate::history::{Applied, Left};
use crate::run::Plan;
use crate::setting::{Setting, NOTHING};

/// The address of half of the clients: on the island when a primary is cut off.
pub const ISLANDERS: Party = Party::new(127, 0, 2, 1);

/// The address of the other clients.
pub const MAINLANDERS: Party = Party::new(127, 0, 2, 2);

/// The seconds of silence after which a replica and its primary end their link.
pub const REPL_TIMEOUT: u64 = 5;

/// The gauges that must be zero after all clients have ended.
const GAUGES: [&str; 7] = [
    "dlock_locks",
    "dlock_holders",
    "dlock_places_queued",
    "dlock_connections_waiting",
    "dlock_ephemeral",
    "dlock_auto_renewed",
    "dlock_sessions",
];

/// A server behind its door.
pub struct Node {
    pub server: Server,
    pub door: Door,
    pub party: Party,
}

impl Node {
    /// Starts a server at whose doors the others find it.
    pub fn start(
        network: &Network,
        number: u8,
        plan: &Plan,
        is_cluster: bool,
    ) -> (Node, Option<Door>) {
        let party = Party::new(127, 0, 1, number + 1);
        let door = network.door(party);
        let setting = match plan.planted {
            Some(Planted::NoSetting) => NOTHING,
            _ => plan.setting,
        };
        let mut builder = setting
            .apply(Server::builder().program(&plan.program), plan.replicas)
            .config("bind-source-addr", party)
            .config("repl-ping-replica-period", 1)
            .config("repl-timeout", REPL_TIMEOUT)
            .config("hz", 50);
        let mut bus = None;
        if is_cluster {
            let bus_door = network.door(party);
            builder = builder
                .cluster()
                .config("cluster-node-timeout", crate::setting::DOWN_AFTER_MS)
                .config("cluster-require-full-coverage", "no")
                .config("cluster-allow-replica-migration", "no")
                .config("cluster-announce-ip", "127.0.0.1")
                .config("cluster-announce-port", door.port())
                .config("cluster-announce-bus-port", bus_door.port());
            bus = Some(bus_door);
        } else {
            builder = builder
                .config("replica-announce-ip", "127.0.0.1")
                .config("replica-announce-port", door.port());
        }
        let server = builder.start();
        door.lead_to(server.port());
        let node = Node {
            server,
            door,
            party,
        };
        (node, bus)
    }

    /// Opens a connection with a bound, past the door; `None` if the server does not answer.
    pub fn connection(&self) -> Option<Wire> {
        let connection = Wire::open(self.server.port(), Duration::from_secs(2)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(20)));
        Some(connection)
    }

    /// Returns a section of INFO, if the server answers.
    pub fn info(&self, section: &str) -> Option<Info> {
        let text: String = cmd("INFO")
            .arg(section)
            .query(&mut self.connection()?)
            .ok()?;
        Some(Info::parse(&text))
    }

    /// Ends the quarantine of the start, which is not measured.
    pub fn end_quarantine(&self, setting: &Setting) {
        if !setting.confirms {
            self.set_quarantine(0);
        }
        self.set_quarantine(setting.quarantine_ms);
        // It must last beyond a restart.
        self.say("CONFIG REWRITE");
    }

    pub fn set_quarantine(&self, ms: u64) {
        self.say(&format!("CONFIG SET dlock.quarantine-ms {ms}"));
    }

    /// Returns the server's settings; `None` if it does not answer.
    fn applied(&self) -> Option<Applied> {
        let mut connection = self.connection()?;
        let mut number = |name: &str| -> Option<u64> {
            let mut request = cmd("CONFIG");
            let request = request.arg("GET").arg(name);
            let (_, value): (String, u64) = request.query(&mut connection).ok()?;
            Some(value)
        };
        Some(Applied {
            server: self.door.port().to_string(),
            to_write: number("min-replicas-to-write")?,
            max_lag: number("min-replicas-max-lag")?,
            quarantine_ms: number("dlock.quarantine-ms")?,
            replicas: number("dlock.replicas")?,
        })
    }

    /// Sends a line to the server. Returns the answer's text, or the error's.
    pub fn say(&self, line: &str) -> String {
        let Some(mut connection) = self.connection() else {
            return "no connection".into();
        };
        match dlock_integration::command(line)
            .query::<dlock_integration::redis::Value>(&mut connection)
        {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    }
}

/// Waits within the bound. Returns whether the condition came true.
pub fn until(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + bound;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the servers' counts after all clients have ended. The leases of forgotten holds run out meanwhile.
pub fn gauges(nodes: &[Node]) -> Vec<Left> {
    let look = || -> Vec<Left> {
        let mut all = Vec::new();
        for node in nodes {
            let name = node.server.port().to_string();
            match node.info("dlock") {
                Some(info) => all.extend(GAUGES.map(|gauge| Left {
                    server: name.clone(),
                    gauge: gauge.into(),
                    value: info.number(gauge),
                })),
                None => all.push(Left {
                    server: name,
                    gauge: "does not answer".into(),
                    value: 1,
                }),
            }
        }
        all
    };
    let mut left = look();
    until(Duration::from_millis(3 * crate::client::LEASE_MS), || {
        left = look();
        left.iter().all(|left| left.value == 0)
    });
    left
}

/// Returns the servers' settings.
pub fn settings(nodes: &[Node]) -> Vec<Applied> {
    nodes.iter().filter_map(Node::applied).collect()
}

/// Returns the servers that ended by themselves, or logged an internal fault.
pub fn died(nodes: &mut [Node]) -> Vec<String> {
    let mut died = Vec::new();
    for node in nodes {
        let log = node.server.log();
        let mark = ["BUG REPORT", "panicked", "ASSERTION FAILED"]
            .into_iter()
            .find(|mark| log.contains(mark));
        if let Some(mark) = mark {
            died.push(format!("{} ({mark})", node.server.port()));
        } else if !node.server.is_running() {
            died.push(node.server.port().to_string());
        }
    }
    died
}
