//! The services: their start, and their promises.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{await_until, free_port, stat, Ask, Server, ServerBuilder, PATIENCE};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::locks::client::{Address, Kind, Lifetime};
use crate::machine::node::{self, Node};

/// The fate of a grant when something breaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Promise {
    /// It is lost: it is in the memory of one process.
    Memory,
    /// The grant is on the disk of one node before the client receives it.
    Durable,
    /// The grant is on the disk of one node before the client receives it, and every `fsync` of that disk takes a millisecond more.
    DurableSlow,
    /// One replica also has the grant before the client receives it. It survives if that replica becomes the primary.
    Replica,
    /// Most of three nodes have the grant before the client receives it, and only a node with the grant can lead.
    Majority,
}

impl Promise {
    /// All promises, in the order of the report.
    pub const ALL: [Promise; 5] = [
        Promise::Memory,
        Promise::Durable,
        Promise::DurableSlow,
        Promise::Replica,
        Promise::Majority,
    ];

    /// Returns the promise in words.
    pub fn text(self) -> &'static str {
        match self {
            Promise::Memory => "Memory only",
            Promise::Durable => "One durable node",
            Promise::DurableSlow => "One durable node, each fsync 1 ms longer",
            Promise::Replica => "One replica has it, in memory",
            Promise::Majority => "Survives the loss of a node",
        }
    }
}

/// A way to use a service.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Its name in the tables.
    pub name: &'static str,
    /// Its promise.
    pub promise: Promise,
    /// A remark on its figures.
    pub note: &'static str,
    /// Its client.
    pub kind: Kind,
}

const fn plan(name: &'static str, promise: Promise, kind: Kind, note: &'static str) -> Plan {
    Plan {
        name,
        promise,
        note,
        kind,
    }
}

/// All ways.
pub const PLANS: [Plan; 13] = [
    plan("dlock", Promise::Memory, Kind::Dlock, "one thread serves all"),
    plan(
        "PostgreSQL advisory lock",
        Promise::Memory,
        Kind::Postgres,
        "a process for each client, so it uses both cores; the lock ends with the session; no lease, no token",
    ),
    plan("dlock, AOF always", Promise::Durable, Kind::Dlock, "one `fsync` serves all grants of a turn"),
    plan("etcd, its own lock", Promise::Durable, Kind::EtcdRecipe, "uses both cores"),
    plan(
        "etcd, watch at the next revision",
        Promise::Durable,
        Kind::EtcdWatch,
        "uses both cores; more round trips, more work for the client",
    ),
    plan("ZooKeeper", Promise::Durable, Kind::ZooKeeper, "uses both cores; Java, just started"),
    plan("dlock, AOF always", Promise::DurableSlow, Kind::Dlock, "as above"),
    plan("etcd, watch at the next revision", Promise::DurableSlow, Kind::EtcdWatch, "as above"),
    plan("ZooKeeper", Promise::DurableSlow, Kind::ZooKeeper, "as above"),
    plan(
        "dlock, dlock.replicas 1",
        Promise::Replica,
        Kind::DlockReplicas,
        "two nodes; the server answers when the replica has the grant; on five conditions a failover lets nobody in while the lease may run",
    ),
    plan(
        "dlock, a replica and WAIT 1",
        Promise::Replica,
        Kind::DlockWait,
        "two nodes; survives the end of the primary where that replica takes over; no consensus: a failover can still lose a grant",
    ),
    plan(
        "etcd, 3 nodes, watch at the next revision",
        Promise::Majority,
        Kind::EtcdWatch,
        "consensus, durable on two of three; the three share this machine's cores and disk",
    ),
    plan(
        "ZooKeeper, 3 nodes",
        Promise::Majority,
        Kind::ZooKeeper,
        "consensus, durable on two of three; the three share this machine's cores and disk",
    ),
];

/// A running service.
pub struct Service {
    /// The address for its clients.
    pub address: Address,
    servers: Vec<Server>,
    nodes: Vec<Node>,
}

impl Service {
    /// Returns the processes that serve.
    pub fn processes(&self) -> Vec<u32> {
        let servers = self.servers.iter().map(Server::pid);
        servers.chain(self.nodes.iter().map(Node::pid)).collect()
    }
}

impl Plan {
    /// Starts the service, as installed there.
    pub fn start(&self, installed: &Path) -> Result<Service, Failure> {
        let slow = self.promise == Promise::DurableSlow;
        let (port, servers, nodes) = match self.kind {
            Kind::Dlock | Kind::DlockReplicas | Kind::DlockWait => {
                let servers = redis_servers(self)?;
                (servers[0].port(), servers, Vec::new())
            }
            Kind::Postgres => {
                let (port, node) = postgres(installed)?;
                (port, Vec::new(), vec![node])
            }
            Kind::EtcdRecipe | Kind::EtcdWatch => {
                let (port, nodes) = etcd(installed, self.count(), slow)?;
                (port, Vec::new(), nodes)
            }
            Kind::ZooKeeper => {
                let (port, nodes) = zookeeper(installed, self.count(), slow)?;
                (port, Vec::new(), nodes)
            }
        };
        Ok(Service {
            address: Address {
                kind: self.kind,
                port,
            },
            servers,
            nodes,
        })
    }

    fn count(&self) -> usize {
        match self.promise {
            Promise::Majority => 3,
            _ => 1,
        }
    }

    /// Returns how a client's death is detected.
    pub fn lifetime(&self, lifetime: Lifetime) -> &'static str {
        match (self.kind, lifetime) {
            (Kind::Dlock | Kind::DlockReplicas | Kind::DlockWait, Lifetime::Default) => {
                "lease 30 s"
            }
            (Kind::Dlock | Kind::DlockReplicas | Kind::DlockWait, Lifetime::Short) => "EPHEMERAL",
            (Kind::Postgres, _) => "end of the connection",
            (Kind::EtcdRecipe | Kind::EtcdWatch, Lifetime::Default) => "lease 60 s",
            (Kind::EtcdRecipe | Kind::EtcdWatch, Lifetime::Short) => "lease 2 s",
            (Kind::ZooKeeper, Lifetime::Default) => "session 30 s",
            (Kind::ZooKeeper, Lifetime::Short) => "session 4 s",
        }
    }
}

fn redis_servers(plan: &Plan) -> Result<Vec<Server>, Failure> {
    let promise = plan.promise;
    let confirms = plan.kind == Kind::DlockReplicas;
    let build = || {
        let mut builder = Server::builder();
        if matches!(promise, Promise::Durable | Promise::DurableSlow) {
            builder = builder
                .config("appendonly", "yes")
                .config("appendfsync", "always");
        }
        if confirms {
            // A starting server is quarantined for this time.
            let settings = ["replicas", "1", "quarantine-ms", "200"];
            builder = settings
                .iter()
                .fold(builder, ServerBuilder::module_argument);
        }
        builder
    };
    let mut builder = build();
    let program = tempfile::tempdir()?;
    if promise == Promise::DurableSlow {
        builder = builder.program(slowed_server(program.path())?);
    }
    let primary = builder.start();
    if promise != Promise::Replica {
        return Ok(vec![primary]);
    }
    let replica = build().start();
    replica.replica_of(&primary);
    if confirms {
        await_until("the replica counts", PATIENCE, || {
            stat(&primary, "replicas_counting") == 1 && stat(&primary, "closed") == 0
        });
        // Longer than every lease: confirmations need that.
        primary
            .connection()
            .run("CONFIG SET dlock.quarantine-ms 600000");
    }
    Ok(vec![primary, replica])
}

/// Makes a program that runs the server with slow syncs.
fn slowed_server(directory: &Path) -> Result<std::ffi::OsString, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let server = dlock_harness::server_program();
    let words = crate::machine::disk::slowed(&[server.to_string_lossy().into_owned()]);
    let path = directory.join("slowed-server");
    std::fs::write(
        &path,
        format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")),
    )?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.into())
}

/// Starts PostgreSQL with defaults, except for as many connections as there are waiters.
fn postgres(installed: &Path) -> Result<(u16, Node), Failure> {
    let programs = postgres_programs(installed)?;
    let user = node::somebody_else(&["postgres", "nobody"])?;
    let directory = node::directory()?;
    node::give(directory.path(), user.as_ref())?;
    let data = directory.path().join("data").display().to_string();
    let words =
        |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let initialize = words(&[
        &format!("{programs}/initdb"),
        "-D",
        &data,
        "-A",
        "trust",
        "-U",
        "postgres",
    ]);
    let mut command = node::command(&initialize, user.as_ref())?;
    let output = command.current_dir(directory.path()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let port = free_port();
    let start = words(&[
        &format!("{programs}/postgres"),
        "-D",
        &data,
        "-p",
        &port.to_string(),
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
        "-c",
        "max_connections=1200",
    ]);
    let mut node = Node::start(&start, false, user.as_ref(), port, directory)?;
    node.await_port()?;
    // It listens before it serves.
    thread::sleep(Duration::from_secs(1));
    Ok((port, node))
}

fn postgres_programs(installed: &Path) -> Result<String, Failure> {
    let directory = installed.join("postgres/bin");
    if !directory.join("initdb").exists() {
        return Err("PostgreSQL is not installed".into());
    }
    Ok(directory.canonicalize()?.display().to_string())
}

fn etcd_program(installed: &Path) -> Result<String, Failure> {
    let program = installed.join("etcd").canonicalize();
    let program = program.map_err(|_| "etcd is not installed")?;
    Ok(program.display().to_string())
}

fn etcd(installed: &Path, count: usize, slow: bool) -> Result<(u16, Vec<Node>), Failure> {
    let program = etcd_program(installed)?;
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
    let members: Vec<String> = ports
        .iter()
        .enumerate()
        .map(|(number, (_, peers))| format!("node{number}={}", url(*peers)))
        .collect();
    let mut nodes = Vec::new();
    for (number, (clients, peers)) in ports.iter().enumerate() {
        let directory = node::directory()?;
        let data = directory.path().join("data").display().to_string();
        let (clients_url, peers_url) = (url(*clients), url(*peers));
        let words = [
            &program,
            "--name",
            &format!("node{number}"),
            "--data-dir",
            &data,
            "--listen-client-urls",
            &clients_url,
            "--advertise-client-urls",
            &clients_url,
            "--listen-peer-urls",
            &peers_url,
            "--initial-advertise-peer-urls",
            &peers_url,
            "--initial-cluster",
            &members.join(","),
        ];
        let words = words.map(str::to_owned);
        nodes.push(Node::start(&words, slow, None, *clients, directory)?);
    }
    nodes.iter_mut().try_for_each(Node::await_port)?;
    Ok((ports[0].0, nodes))
}

fn zookeeper(installed: &Path, count: usize, slow: bool) -> Result<(u16, Vec<Node>), Failure> {
    zookeeper_version(installed).ok_or("ZooKeeper is not installed")?;
    let libraries = installed.join("zookeeper/lib").canonicalize()?;
    let libraries = libraries.join("*").display().to_string();
    let ports: Vec<(u16, u16, u16)> = (0..count)
        .map(|_| (free_port(), free_port(), free_port()))
        .collect();
    let members: Vec<String> = ports
        .iter()
        .enumerate()
        .filter(|_| count > 1)
        .map(|(number, (_, peers, election))| {
            format!("server.{}=127.0.0.1:{peers}:{election}\n", number + 1)
        })
        .collect();
    let mut nodes = Vec::new();
    for (number, (clients, ..)) in ports.iter().enumerate() {
        let directory = node::directory()?;
        let path = directory.path();
        std::fs::write(
            path.join("zoo.cfg"),
            format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPortAddress=127.0.0.1\n\
                 clientPort={clients}\nmaxClientCnxns=0\nadmin.enableServer=false\n{}",
                path.display(),
                members.concat(),
            ),
        )?;
        std::fs::write(path.join("myid"), format!("{}\n", number + 1))?;
        // Its own script takes this much.
        let words = [
            "java",
            "-Xmx1000m",
            "-cp",
            &libraries,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &path.join("zoo.cfg").display().to_string(),
        ];
        let words = words.map(str::to_owned);
        nodes.push(Node::start(&words, slow, None, *clients, directory)?);
    }
    nodes.iter_mut().try_for_each(Node::await_port)?;
    Ok((ports[0].0, nodes))
}

/// Returns the first line of a program's version.
fn said(program: &str) -> Result<String, Failure> {
    let output = Command::new(program).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the version, which is in the name of the library.
fn zookeeper_version(installed: &Path) -> Option<String> {
    let libraries = std::fs::read_dir(installed.join("zookeeper/lib")).ok()?;
    let names = libraries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let version = |name: String| {
        let rest = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
        let is_version = rest.starts_with(|char: char| char.is_ascii_digit());
        is_version.then(|| format!("ZooKeeper {rest}"))
    };
    names.filter_map(version).next()
}

/// Returns the server and the compared services with their versions.
pub fn versions(server: &str, installed: &Path) -> Vec<String> {
    let mut versions = vec![server.to_owned()];
    versions.extend(java_versions());
    let programs = [
        postgres_programs(installed).map(|directory| format!("{directory}/postgres")),
        etcd_program(installed),
    ];
    for program in programs.into_iter().flatten() {
        versions.extend(said(&program));
    }
    versions.extend(zookeeper_version(installed));
    versions
}

/// Returns the Java libraries, as requested from Maven.
pub fn java_versions() -> Vec<String> {
    let pom = include_str!("../java/pom.xml");
    let tag = |text: &str, name: &str| -> Option<String> {
        let start = text.split_once(&format!("<{name}>"))?.1;
        Some(start.split_once('<')?.0.to_owned())
    };
    let libraries = pom.split("<dependency>").skip(1);
    libraries
        .filter_map(|library| {
            let (name, version) = (tag(library, "artifactId")?, tag(library, "version")?);
            Some(format!("{name} {version}"))
        })
        .collect()
}

/// Waits until a client can take and release a lock.
pub async fn await_service(address: Address) -> Result<(), Failure> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let tried = tokio::time::timeout(Duration::from_secs(5), async {
            let mut client = address.connect(999_999, Lifetime::Default).await?;
            client.acquire(999_999).await?;
            client.release(999_999).await
        });
        match tried.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if Instant::now() > end => return Err(error),
            Err(_) if Instant::now() > end => return Err("it does not answer".into()),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
