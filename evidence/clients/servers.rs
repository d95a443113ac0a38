//! The servers, and what happens to their primary.

use std::fmt;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use dlock_harness::belief::{now, Micros};
use dlock_harness::redis::{FromRedisValue, Value};
use dlock_harness::{
    await_until, cluster, command, planned, stat, Ask, Sentinel, Server, ServerBuilder, Watch, Wire,
};

use crate::LEASE_MS;

/// `down-after-milliseconds` of the Sentinels, `cluster-node-timeout`.
pub const DOWN_AFTER_MS: u64 = 3_000;

const REPLICAS: usize = 2;
const MASTERS: usize = 3;
const SENTINELS: usize = 3;

/// The longest lease, and 5 s.
const QUARANTINE_MS: u64 = LEASE_MS + 5_000;

/// How long the servers may take until they are together, and how long a promotion may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What promotes a replica.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Sentinel,
    Cluster,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Sentinel => "Sentinel",
            Mode::Cluster => "cluster",
        })
    }
}

/// What happens to the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    /// It stalls with its connections open, and comes back when another is the primary.
    Stop,
    Planned,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Kill => "killed",
            Fault::Stop => "stopped",
            Fault::Planned => "planned",
        })
    }
}

/// A primary and its replicas, those that watch it, and the other masters of its cluster.
pub struct Scene {
    primary: Server,
    replicas: Vec<Server>,
    sentinels: Vec<Sentinel>,
    others: Vec<Server>,
}

fn builder() -> ServerBuilder {
    // The quarantine of the first start lasts moments: it is not measured.
    let arguments = ["replicas", &REPLICAS.to_string(), "quarantine-ms", "1"].map(str::to_owned);
    let server = Server::builder().config("repl-diskless-sync-delay", 0);
    arguments
        .iter()
        .fold(server, ServerBuilder::module_argument)
}

impl Scene {
    /// Starts the servers, and returns when all are together.
    pub fn start(mode: Mode) -> Scene {
        let scene = match mode {
            Mode::Sentinel => Scene::under_sentinels(),
            Mode::Cluster => Scene::in_a_cluster(),
        };
        await_until("both replicas count", PATIENCE, || {
            stat(&scene.primary, "replicas_counting") == REPLICAS as u64
                && stat(&scene.primary, "joins_count_late_ms") == 0
        });
        for server in scene.servers() {
            let line = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
            server.connection().run(&line);
        }
        scene
    }

    fn under_sentinels() -> Scene {
        let primary = builder().start();
        let replicas: Vec<Server> = (0..REPLICAS).map(|_| builder().start()).collect();
        for replica in &replicas {
            replica.replica_of(&primary);
        }
        let watch = Watch {
            port: primary.port(),
            quorum: 2,
            down_after_ms: DOWN_AFTER_MS,
            program: None,
        };
        let sentinels: Vec<Sentinel> = (0..SENTINELS).map(|_| Sentinel::start(&watch)).collect();
        await_until("the Sentinels know all", PATIENCE, || {
            sentinels
                .iter()
                .all(|one| one.knows() == (SENTINELS - 1, REPLICAS))
        });
        Scene {
            primary,
            replicas,
            sentinels,
            others: Vec::new(),
        }
    }

    fn in_a_cluster() -> Scene {
        let start = |count: usize| -> Vec<Server> {
            (0..count).map(|_| builder().cluster().start()).collect()
        };
        let (mut masters, mut replicas) = (start(MASTERS), start(MASTERS * REPLICAS));
        cluster::divide_slots(&masters);
        cluster::join(&masters, &replicas);
        for node in masters.iter().chain(&replicas) {
            let line = format!("CONFIG SET cluster-node-timeout {DOWN_AFTER_MS}");
            node.connection().run(&line);
        }
        let primary = masters.remove(0);
        // The first master has every third replica, beginning with the first.
        let second = replicas.remove(MASTERS);
        let first = replicas.remove(0);
        masters.extend(replicas);
        Scene {
            primary,
            replicas: vec![first, second],
            sentinels: Vec::new(),
            others: masters,
        }
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        let own = [&self.primary].into_iter().chain(&self.replicas);
        own.chain(&self.others)
    }

    /// Returns the variable that leads a program to the servers, and its value.
    pub fn way(&self) -> (&'static str, String) {
        let list = |ports: &mut dyn Iterator<Item = u16>| {
            let addresses: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
            addresses.join(",")
        };
        match self.sentinels.is_empty() {
            true => ("DLOCK_CLUSTER", list(&mut self.servers().map(Server::port))),
            false => (
                "DLOCK_SENTINELS",
                list(&mut self.sentinels.iter().map(Sentinel::port)),
            ),
        }
    }

    /// Returns a hash tag whose slot the primary serves.
    pub fn tag(&self) -> String {
        if !self.sentinels.is_empty() {
            return "t0".to_owned();
        }
        let mut primary = self.primary.connection();
        let tags = (0..).map(|number| format!("t{number}"));
        let mut own = tags.filter(|tag| primary.try_ask(&format!("EXISTS {tag}")).is_ok());
        own.next().expect("it serves some slots")
    }

    /// Has another server become the primary. Returns when the fault began, and when the new primary knew its role.
    pub fn inflict(&mut self, fault: Fault) -> (Micros, Micros) {
        let began = now();
        match fault {
            Fault::Kill => self.primary.kill9(),
            Fault::Stop => self.primary.freeze(),
            Fault::Planned => {}
        }
        let promoted = thread::scope(|scope| {
            let watching = scope.spawn(|| await_promotion(&self.replicas));
            if fault == Fault::Planned {
                self.give_away();
            }
            watching.join().expect("a replica is promoted")
        });
        (began, promoted)
    }

    /// Has the primary's role given away without loss, as `docs/cluster.md` says.
    fn give_away(&self) {
        match self.sentinels.first() {
            Some(sentinel) => planned::fail_over(&self.primary, sentinel),
            None => self.replicas[0].connection().run("CLUSTER FAILOVER"),
        }
    }

    /// Has the stopped primary continue, and waits until it knows that it is none.
    pub fn come_back(&self) {
        self.primary.thaw();
        await_until("the old primary follows the new one", PATIENCE, || {
            role(&self.primary).as_deref() == Some("slave")
        });
    }
}

/// Returns when one of them knew that it was the primary.
fn await_promotion(replicas: &[Server]) -> Micros {
    let end = Instant::now() + PATIENCE;
    while !replicas
        .iter()
        .any(|one| role(one).as_deref() == Some("master"))
    {
        assert!(Instant::now() < end, "nobody took over");
        sleep(Duration::from_millis(5));
    }
    now()
}

fn role(server: &Server) -> Option<String> {
    let mut wire = Wire::open(server.port(), Duration::from_secs(2)).ok()?;
    wire.set_read_timeout(Some(Duration::from_secs(2)));
    let words: Vec<Value> = command("ROLE").query(&mut wire).ok()?;
    String::from_redis_value(words.first()?).ok()
}
