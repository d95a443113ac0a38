//! One cell of the table: servers, clients, one kind of fault again and again, and the judge.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_evidence::group::{Node, ISLANDERS, MAINLANDERS};
use dlock_harness::{Party, Server, Version};
use fastrand::Rng;

use crate::by_hand::ByHand;
use crate::client::{all_locks, Client, Shared, Way, CLAIM_MS, LEASE_MS};
use crate::cluster::Cluster;
use crate::control::Planted;
use crate::fault::Fault;
use crate::history::{History, Round};
use crate::nodes::{applied, died, gauges, log, set_quarantine};
use crate::route::Route;
use crate::sentinel::Watched;
use crate::setting::Setting;

/// In the middle and after the last round all clients work in peace for this time: then it shows if a client waits for a free
/// lock.
const PEACE: Duration = Duration::from_millis(UNKNOWN_MS + 10_000);

/// How many rounds pass between two pauses without faults.
const ROUNDS_TO_PEACE: usize = 8;

/// The longest time for which holds and tickets may survive unknown after a lossy fault.
const UNKNOWN_MS: u64 = if LEASE_MS > CLAIM_MS {
    LEASE_MS
} else {
    CLAIM_MS
};

/// The parameters of a cell.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: Mode,
    /// The number of replicas of each primary.
    pub replicas: usize,
    pub server: String,
    pub program: OsString,
    pub fault: Fault,
    pub setting: Setting,
    pub seed: u64,
    pub end: Length,
    /// The planted fault of the run itself.
    pub planted: Option<Planted>,
}

/// When a cell ends.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    pub rounds: usize,
    pub at_most: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Sentinel,
    Cluster,
    /// Promoted and pointed by an operator.
    ByHand,
}

impl Plan {
    /// Starts the servers.
    pub fn start(&self) -> Box<dyn Scene> {
        match self.mode {
            Mode::Sentinel => Box::new(Watched::start(self)),
            Mode::Cluster => Box::new(Cluster::start(self)),
            Mode::ByHand => Box::new(ByHand::start(self)),
        }
    }

    /// Returns its name in the table. Two replicas are the usual number under Sentinel, and one in a cluster.
    pub fn mode_name(&self) -> String {
        match (self.mode, self.replicas) {
            (Mode::Sentinel, 2) => "Sentinel".into(),
            (Mode::Sentinel, 1) => "Sentinel, 1 replica".into(),
            (Mode::Sentinel, replicas) => format!("Sentinel, {replicas} replicas"),
            (Mode::ByHand, replicas) => format!("By hand, {replicas} replicas"),
            (Mode::Cluster, 1) => "Cluster".into(),
            (Mode::Cluster, replicas) => format!("Cluster, {replicas} replicas"),
        }
    }

    pub fn version(&self) -> Version {
        Server::builder().program(&self.program).version()
    }

    /// Returns true if the server supports the fault.
    pub fn is_possible(&self) -> bool {
        let version = self.version();
        self.fault != Fault::MoveAtOnce || version.is_redis(8, 4) || version.is_valkey(9, 0)
    }

    /// Returns true if no two owners may believe in a lock. A quarantine alone promises it if the old primary is dead.
    pub fn promises_one_owner(&self) -> bool {
        let outlives = self.setting.quarantine_ms > 0 && self.fault.is_deadly();
        let is_safe = self.setting.is_safe(self.replicas, self.fault.beside());
        self.setting.mistake.is_none() && (is_safe || outlives || self.promises_no_loss())
    }

    /// Returns true if no grant may be lost.
    pub fn promises_no_loss(&self) -> bool {
        !self.fault.is_lossy()
    }

    /// Returns the random numbers of this cell: by its name, so that they do not depend on the other cells.
    fn random(&self) -> Rng {
        // FNV-1a, which does not change between versions of the compiler.
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let seed = self.name().bytes().fold(0xcbf2_9ce4_8422_2325, add);
        Rng::with_seed(seed ^ self.seed)
    }

    pub fn name(&self) -> String {
        format!(
            "{} | {} | {} | {}",
            self.server,
            self.mode_name(),
            self.fault.name(),
            self.setting.name
        )
    }
}

/// The servers of a cell.
pub trait Scene {
    /// Returns a client's way to the servers.
    fn route(&self, on_island: bool, random: Rng) -> Box<dyn Route>;
    /// Causes one fault, from its beginning until all is well again. Returns whether another server was primary in the end.
    fn inflict(&mut self, fault: Fault, random: &mut Rng) -> Inflicted;
    /// Returns the lock's primary, if the servers agree on one.
    fn primary_of(&self, lock: &str) -> Option<usize>;
    fn nodes(&mut self) -> &mut [Node];
}

/// The outcome of a fault.
#[derive(Default)]
pub struct Inflicted {
    /// When another primary was noticed, and which.
    pub new: Option<(Instant, usize)>,
    /// Whether all servers agreed again.
    pub healed: bool,
}

/// Plays a cell. Calls `progress` after every round.
pub fn play(plan: &Plan, scene: &mut dyn Scene, progress: &dyn Fn()) -> History {
    let shared = Shared {
        began: Instant::now(),
        stop: AtomicBool::new(false),
        setting: plan.setting,
        replicas: plan.replicas,
        believes_grants: plan.planted != Some(Planted::OnlyRenewed),
    };
    let mut random = plan.random();
    let clients: Vec<Client> = (Way::CREW.iter().enumerate())
        .map(|(number, (way, patient))| {
            let on_island = number % 2 == 1;
            let party: Party = if on_island { ISLANDERS } else { MAINLANDERS };
            let route = scene.route(on_island, random.fork());
            let name = format!("{way:?}{number}");
            let mut client = Client::new(name, number, party, *way, &shared, route, random.fork());
            client.patient = *patient;
            client
        })
        .collect();
    let mut history = thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || client.run()))
            .collect();
        let mut history = History::default();
        while history.rounds.len() < plan.end.rounds && shared.began.elapsed() < plan.end.at_most {
            thread::sleep(Duration::from_millis(random.u64(800..2_500)));
            let from = shared.now();
            let inflicted = inflict(plan, scene, &mut random);
            let new = inflicted.new;
            let new = new.map(|(at, new)| (shared.at(at), scene.nodes()[new].door.port()));
            let unknown_ms = if plan.fault.is_lossy() {
                UNKNOWN_MS
            } else {
                500
            };
            history.rounds.push(Round {
                name: plan.fault.name().into(),
                from,
                calm: shared.now() + unknown_ms * 1_000,
                lossy: plan.fault.is_lossy(),
                silent: plan.fault.is_silent(),
                promoted: new.is_some(),
                healed: inflicted.healed,
                new,
            });
            progress();
            if !inflicted.healed {
                break;
            }
            if history.rounds.len() % ROUNDS_TO_PEACE == 0 {
                thread::sleep(PEACE);
            }
        }
        thread::sleep(PEACE);
        shared.stop.store(true, Ordering::Relaxed);
        for client in clients {
            merge(
                &mut history,
                client.join().expect("a client does not panic"),
            );
        }
        history
    });
    for lock in all_locks() {
        let primary = scene.primary_of(lock);
        let read = primary.and_then(|primary| log(&scene.nodes()[primary], lock));
        history.logs.extend(read);
    }
    let nodes = scene.nodes();
    history.left = gauges(nodes);
    history.settings = nodes.iter().filter_map(applied).collect();
    history.died = died(nodes);
    history
}

/// Causes one fault, and waits until quarantines are over.
fn inflict(plan: &Plan, scene: &mut dyn Scene, random: &mut Rng) -> Inflicted {
    let has_none = plan.planted == Some(Planted::NoQuarantine);
    if has_none {
        set_quarantine(scene.nodes(), 0);
    }
    let inflicted = scene.inflict(plan.fault, random);
    if !plan.fault.moves() {
        // Where replicas confirm answers, one after a full synchronisation counts late, and so does any other that joins soon
        // after.
        let promoted = inflicted.new.filter(|_| !plan.setting.confirms);
        let since = promoted.map_or_else(Instant::now, |(at, _)| at);
        let quarantine = Duration::from_millis(plan.setting.quarantine_ms);
        thread::sleep(quarantine.saturating_sub(since.elapsed()));
    }
    if has_none {
        set_quarantine(scene.nodes(), plan.setting.quarantine_ms);
    }
    inflicted
}

fn merge(history: &mut History, notes: History) {
    history.beliefs.extend(notes.beliefs);
    history.writes.extend(notes.writes);
    history.waits.extend(notes.waits);
    history.absences.extend(notes.absences);
    history.tickets.extend(notes.tickets);
    history.unanswered.extend(notes.unanswered);
    for (kind, count) in notes.answers {
        *history.answers.entry(kind).or_default() += count;
    }
}
