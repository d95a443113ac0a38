//! The servers of one language's tests, and the faults that tests can cause.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::machine::patience::{await_every, await_until, PATIENCE};
use crate::servers::cluster::{divide_slots, join};
use crate::servers::server::Server;
use crate::talk::ask::Ask;
use crate::talk::wire::Wire;

/// The number of the cluster's masters, of its replicas, and of the single servers.
const MASTERS: usize = 3;

/// How long a server tries a manual failover before it gives up.
const MANUAL_FAILOVER: Duration = Duration::from_secs(6);

/// A script that writes nothing, so that it can be killed. A failed test does not kill it: it ends after three to twenty seconds.
const LONG_SCRIPT: &str = "for i = 1, 1000000000 do end";

/// The number of keys that the pair's primary loads, with a pause before each: 20 to 30 seconds, unless the test ends it. The
/// keys are in a database of their own.
const BALLAST: usize = 100_000;
const LOAD_DELAY_US: u64 = 200;
const BALLAST_DB: i64 = 15;

/// The pause between two looks at the whole cluster.
const LOOK: Duration = Duration::from_millis(50);

/// The nodes' time-out during a vote.
const VOTING_MS: u64 = 2000;

/// Single servers, a primary with a replica, and a cluster.
pub struct Stage {
    masters: [Server; MASTERS],
    /// A server without the module.
    bare: Server,
    pair: [Server; 2],
    /// The connection whose command keeps the pair's primary from serving others: a script, or a reload.
    occupier: Option<Wire>,
    /// At first the masters, then a replica of each.
    pub cluster: Vec<Server>,
}

impl Stage {
    /// Starts all servers of a stage with this program.
    pub fn start(program: &OsString) -> Stage {
        let builder = || Server::builder().program(program);
        let pair = [builder().start(), builder().start()];
        pair[1].replica_of(&pair[0]);
        let node = || {
            builder()
                .cluster()
                .config("cluster-require-full-coverage", "no")
                // Only the tests decide when a replica takes over: on a busy machine a node may not answer for seconds.
                .config("cluster-replica-no-failover", "yes")
        };
        let cluster: Vec<Server> = (0..2 * MASTERS).map(|_| node().start()).collect();
        let (masters, replicas) = cluster.split_at(MASTERS);
        divide_slots(masters);
        join(masters, replicas);
        await_up(&cluster);
        Stage {
            masters: std::array::from_fn(|_| builder().start()),
            bare: builder().without_module().start(),
            pair,
            occupier: None,
            cluster,
        }
    }

    /// Returns the server's product and version.
    pub fn version(&self) -> String {
        self.masters[0].version().to_string()
    }

    /// Returns the environment of the tests; `clients/DESIGN.md` explains each variable.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("DLOCK_SERVER", self.version()),
            ("DLOCK_SINGLE", address(&self.masters[0])),
            ("DLOCK_MASTERS", addresses(&self.masters)),
            ("DLOCK_BARE", address(&self.bare)),
            ("DLOCK_PAIR", addresses(&self.pair)),
            ("DLOCK_CLUSTER", addresses(&self.cluster)),
        ]
    }

    /// Returns the ends of the logs, for the search after a failed test.
    pub fn logs(&self) -> String {
        let servers = self.masters.iter().chain(&self.pair).chain(&self.cluster);
        servers.map(end_of_log).collect()
    }

    /// Moves the slot of a key, with all its keys, to another master. Returns that master's address.
    pub fn move_slot(&self, key: &str) -> Result<String, String> {
        await_up(&self.cluster);
        let from = self.master_of(key)?;
        let masters: Vec<usize> = (0..self.cluster.len())
            .filter(|&i| self.is_master(i))
            .collect();
        let at = masters.iter().position(|&i| i == from).unwrap_or(0);
        let to = masters[(at + 1) % masters.len()];
        let (source, target) = (&self.cluster[from], &self.cluster[to]);
        let (mut c, mut d) = (source.connection(), target.connection());
        let (source_id, target_id): (String, String) =
            (c.ask("CLUSTER MYID"), d.ask("CLUSTER MYID"));
        let slot: u64 = c.ask(&format!("CLUSTER KEYSLOT {key}"));
        d.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
        c.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
        let end = Instant::now() + PATIENCE;
        loop {
            let keys: Vec<String> = c.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            if keys.is_empty() {
                break;
            }
            for key in keys {
                // NOKEY: the key has ended meanwhile. REPLACE: an earlier answer may have been lost.
                let to = target.port();
                let moved = c.try_ask(&format!("MIGRATE 127.0.0.1 {to} {key} 0 5000 REPLACE"));
                if Instant::now() > end {
                    moved?;
                }
            }
        }
        for connection in [&mut d, &mut c] {
            connection.run(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"));
        }
        await_up(&self.cluster);
        Ok(address(target))
    }

    /// Promotes a replica of the master that serves this key. Returns its address.
    pub fn fail_over(&self, key: &str) -> Result<String, String> {
        await_up(&self.cluster);
        let from = self.master_of(key)?;
        let to = self.replica_of(from)?;
        // For twice the nodes' time-out no master votes again for a replica of this master.
        for node in &self.cluster {
            node.connection()
                .run(&format!("CONFIG SET cluster-node-timeout {VOTING_MS}"));
        }
        // On a busy machine the votes may come too late: the replica gives up after five seconds.
        let mut asked: Option<Instant> = None;
        await_until("the replica is promoted", PATIENCE, || {
            if asked.is_none_or(|at| at.elapsed() >= MANUAL_FAILOVER) {
                asked = Some(Instant::now());
                // A replica that has become the master meanwhile refuses this.
                let _ = self.cluster[to].connection().try_ask("CLUSTER FAILOVER");
            }
            self.is_promoted(to)
        });
        self.await_demotion(from);
        for node in &self.cluster {
            node.trust_other_nodes();
        }
        await_up(&self.cluster);
        Ok(address(&self.cluster[to]))
    }

    /// Kills the master that serves this key. Its replica takes over, and the killed one comes back as its replica.
    pub fn crash(&mut self, key: &str) -> Result<String, String> {
        await_up(&self.cluster);
        let from = self.master_of(key)?;
        let to = self.replica_of(from)?;
        self.cluster[to].wait_in_sync(&self.cluster[from]);
        self.cluster[from].kill9();
        // Without a vote: the masters would refuse a second one soon after a first.
        self.cluster[to]
            .connection()
            .run("CLUSTER FAILOVER TAKEOVER");
        self.await_promotion(to);
        self.cluster[from].restart();
        self.await_demotion(from);
        self.cluster[from].trust_other_nodes();
        await_up(&self.cluster);
        Ok(address(&self.cluster[to]))
    }

    /// Swaps the roles of the pair. Returns the new primary's address.
    pub fn switch(&self) -> Result<String, String> {
        let [from, to] = self.primary_and_replica();
        to.wait_in_sync(from);
        from.connection().run("FAILOVER");
        await_until("the pair has switched", PATIENCE, || {
            is_primary(to) && !is_primary(from)
        });
        from.wait_in_sync(to);
        Ok(address(to))
    }

    /// Runs a script on the pair's primary, which answers `BUSY` from now on. Returns its address.
    pub fn busy(&mut self) -> Result<String, String> {
        self.occupy("BUSY", |observer, script| {
            observer.run("CONFIG SET busy-reply-threshold 1");
            script.send_command(redis::cmd("EVAL").arg(LONG_SCRIPT).arg(0));
        })
    }

    /// Makes the pair's primary load its data once more, slowly: it answers `LOADING` from now on. Returns its address.
    pub fn loading(&mut self) -> Result<String, String> {
        self.occupy("LOADING", |observer, reload| {
            reload.run(&format!("SELECT {BALLAST_DB}"));
            reload.run(&format!("DEBUG POPULATE {BALLAST}"));
            observer.run(&format!("CONFIG SET key-load-delay {LOAD_DELAY_US}"));
            // It answers other clients each time that it has read this many bytes.
            observer.run("CONFIG SET loading-process-events-interval-bytes 1024");
            reload.send_command(redis::cmd("DEBUG").arg("RELOAD"));
        })
    }

    /// Sends a command during which the pair's primary refuses all others with this error.
    fn occupy(
        &mut self,
        error: &str,
        send: impl FnOnce(&mut Wire, &mut Wire),
    ) -> Result<String, String> {
        // A failed test may have left one.
        let _ = self.idle();
        let [primary, _] = self.primary_and_replica();
        let address = address(primary);
        let mut observer = primary.connection();
        let mut occupier = primary.connection();
        send(&mut observer, &mut occupier);
        await_until("the server refuses others", PATIENCE, || {
            refusal(&mut observer).is_some_and(|refused| refused.starts_with(error))
        });
        self.occupier = Some(occupier);
        Ok(address)
    }

    /// Ends the script, or the loading.
    pub fn idle(&mut self) -> Result<String, String> {
        let mut occupier = self.occupier.take().ok_or("nothing occupies the server")?;
        let address = occupier.stream().peer_addr();
        let server = address.map_err(|error| error.to_string())?.to_string();
        let mut observer = self.server_at(&server)?.connection();
        // Each is refused if the other occupies the server.
        let _ = observer.try_ask("SCRIPT KILL");
        let _ = observer.try_ask("CONFIG SET key-load-delay 0");
        await_until("the server answers again", PATIENCE, || {
            refusal(&mut observer).is_none()
        });
        let _ = occupier.read_value();
        occupier.run(&format!("SELECT {BALLAST_DB}"));
        occupier.run("FLUSHDB");
        Ok(server)
    }

    fn primary_and_replica(&self) -> [&Server; 2] {
        let [a, b] = &self.pair;
        if is_primary(a) {
            [a, b]
        } else {
            [b, a]
        }
    }

    /// Stops the process of the server at this address.
    pub fn freeze(&self, address: &str) -> Result<String, String> {
        self.server_at(address)?.freeze();
        Ok(address.to_owned())
    }

    /// Resumes the process of the server at this address.
    pub fn thaw(&self, address: &str) -> Result<String, String> {
        self.server_at(address)?.thaw();
        Ok(address.to_owned())
    }

    fn server_at(&self, at: &str) -> Result<&Server, String> {
        let mut servers = self.masters.iter().chain(&self.pair).chain(&self.cluster);
        let found = servers.find(|server| address(server) == at);
        found.ok_or_else(|| format!("no server of the stage: {at}"))
    }

    /// Returns true if this node of the cluster is a master.
    pub fn is_master(&self, node: usize) -> bool {
        self.cluster[node].info("replication").get("role") == Some("master")
    }

    /// Returns the index of the node of the cluster that serves this key.
    pub fn master_of(&self, key: &str) -> Result<usize, String> {
        (0..self.cluster.len())
            .filter(|&node| self.is_master(node))
            .find(|&node| {
                let mut connection = self.cluster[node].connection();
                connection.try_ask(&format!("EXISTS {key}")).is_ok()
            })
            .ok_or_else(|| format!("no node serves {key}"))
    }

    fn replica_of(&self, master: usize) -> Result<usize, String> {
        let port = self.cluster[master].port().to_string();
        (0..self.cluster.len())
            .find(|&node| {
                let info = self.cluster[node].info("replication");
                info.get("master_port") == Some(&port)
                    && info.get("master_link_status") == Some("up")
            })
            .ok_or_else(|| format!("node {port} has no replica"))
    }

    fn await_promotion(&self, node: usize) {
        await_until("the replica is promoted", PATIENCE, || {
            self.is_promoted(node)
        });
    }

    fn is_promoted(&self, node: usize) -> bool {
        self.is_master(node) && is_up(&mut self.cluster[node].connection())
    }

    fn await_demotion(&self, node: usize) {
        await_until("the old master is a replica", PATIENCE, || {
            let info = self.cluster[node].info("replication");
            info.get("role") == Some("slave") && info.get("master_link_status") == Some("up")
        });
    }
}

fn is_primary(server: &Server) -> bool {
    server.info("replication").get("role") == Some("master")
}

/// Returns the error with which the server answers every command while it is occupied.
fn refusal(connection: &mut Wire) -> Option<String> {
    connection.try_ask("PING").err()
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn addresses(servers: &[Server]) -> String {
    let addresses: Vec<String> = servers.iter().map(address).collect();
    addresses.join(",")
}

fn end_of_log(server: &Server) -> String {
    let log = server.log();
    let lines: Vec<&str> = log.lines().collect();
    let end = &lines[lines.len().saturating_sub(15)..];
    format!("--- {} ---\n{}\n", address(server), end.join("\n"))
}

fn is_up(connection: &mut Wire) -> bool {
    let info: String = connection.ask("CLUSTER INFO");
    ["state:ok", "slots_assigned:16384", "slots_ok:16384"]
        .iter()
        .all(|word| info.contains(&format!("cluster_{word}\r\n")))
}

/// Waits until every node is up and serves, and all agree on the nodes, their replicas and their slots.
fn await_up(nodes: &[Server]) {
    await_every(
        LOOK,
        "every node is up and knows all others",
        PATIENCE,
        || {
            let mut views = nodes.iter().map(|node| {
                let mut connection = node.connection();
                let info = node.info("replication");
                let well = is_up(&mut connection)
                    && (info.get("role") == Some("master")
                        || info.get("master_link_status") == Some("up"));
                well.then(|| view(&connection.ask::<String>("CLUSTER NODES")))
                    .flatten()
            });
            let first = views.next().flatten();
            first.is_some_and(|first| {
                first.len() == nodes.len() && views.all(|view| view.as_ref() == Some(&first))
            })
        },
    );
}

/// Returns each node's id, role, master and slots from `CLUSTER NODES`; none while a node is not well.
fn view(text: &str) -> Option<BTreeSet<String>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [id, _, flags, master, _, _, _, link, slots @ ..] = &words[..] else {
            return None;
        };
        let role = flags
            .split(',')
            .find(|flag| ["master", "slave"].contains(flag))?;
        // All other flags are bad: a failure, a handshake, no address.
        let well = flags
            .split(',')
            .all(|flag| ["myself", role, "nofailover"].contains(&flag));
        // A migrating slot has brackets.
        let settled = !slots.iter().any(|range| range.starts_with('['));
        (well && settled && *link == "connected")
            .then(|| format!("{id} {role} {master} {}", slots.join(" ")))
    };
    text.lines().map(line).collect()
}
