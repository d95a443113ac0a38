//! A cluster that grows: the cost of a lock to its master, however many others there are.
//!
//! The locks are at one kind of master, which is alone, or one of several. The others have locks and waiters of their own
//! meanwhile. The figure is that master's CPU time.

use std::rc::Rc;

use dlock_harness::cluster::{divide_slots, equal_part, join};
use dlock_harness::{Ask, Server};

use crate::failure::Failure;
use crate::holding::pair::{self, Pipelined};
use crate::tools::errand;
use crate::tools::line::{Batch, Line};
use crate::tools::locking::{exclusive, DLOCK};
use crate::tools::setting::Stage;
use crate::waiting::handover::{self, Queue};
use crate::waiting::session::{self, Listener};
use crate::way::{way, Figure, Named, Opened, Way};

/// Pairs in a sample.
const PAIRS: usize = 10_000;

/// The number of waiters for the lock that is handed over.
const QUEUED: usize = 100;

/// The number of locks at each other master.
const LOCKS_ELSEWHERE: usize = 10_000;
const WAITS_ELSEWHERE: usize = 1_000;

/// The hash tag of all measured keys.
const TAG: &str = "{growth}";

/// A cluster, and the names of its ways.
struct Size {
    masters: usize,
    /// Whether each master has a replica.
    replicas: bool,
    pair: &'static str,
    handover: &'static str,
}

const ALONE: Size = Size {
    masters: 1,
    replicas: false,
    pair: "pair, 1 master",
    handover: "hand-over, 1 master",
};
const OF_SIX: Size = Size {
    masters: 6,
    replicas: false,
    pair: "pair, 6 masters",
    handover: "hand-over, 6 masters",
};
const WITH_REPLICA: Size = Size {
    masters: 1,
    replicas: true,
    pair: "pair, 1 master + 1 replica",
    handover: "hand-over, 1 master + 1 replica",
};
const OF_THREE_WITH_REPLICAS: Size = Size {
    masters: 3,
    replicas: true,
    pair: "pair, 3 masters + 3 replicas",
    handover: "hand-over, 3 masters + 3 replicas",
};

const SIZES: [Size; 4] = [ALONE, OF_SIX, WITH_REPLICA, OF_THREE_WITH_REPLICAS];

/// Opens all sizes.
pub fn open() -> Opened {
    let mut ways: Vec<Named> = Vec::new();
    for size in SIZES {
        let cluster = Rc::new(Cluster::start(&size)?);
        let pair = pair_of(&cluster.measured)?;
        let key = format!("{TAG}queue");
        let handover = Queue::of(&key, QUEUED, &cluster.measured)?;
        for (name, measured) in [way(size.pair, pair), way(size.handover, handover)] {
            let _cluster = Rc::clone(&cluster);
            ways.push(way(name, Growth { measured, _cluster }));
        }
    }
    Ok(ways)
}

fn pair_of(server: &Rc<Server>) -> Result<Pipelined, Failure> {
    let loaded = exclusive(DLOCK)?.load(server);
    let names = pair::names();
    let locks: Vec<String> = names.iter().map(|name| format!("{TAG}{name}")).collect();
    let stage = Rc::new(Stage::of(server));
    Pipelined::with_locks(&loaded, &locks, stage, PAIRS)
}

/// A way, of which only the CPU time is of interest.
struct Growth {
    measured: Box<dyn Way>,
    _cluster: Rc<Cluster>,
}

impl Way for Growth {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let mut figures = self.measured.sample()?;
        figures.retain(|(name, _)| [pair::CPU, handover::CPU].contains(name));
        Ok(figures)
    }

    fn warm_up(&mut self) -> Result<(), Failure> {
        self.measured.warm_up()
    }
}

/// Nodes that serve all slots together.
struct Cluster {
    /// The master that is measured.
    measured: Rc<Server>,
    _others: Vec<Server>,
    /// They keep the sessions of the others' waits.
    _listeners: Vec<Listener>,
}

impl Cluster {
    fn start(size: &Size) -> Result<Cluster, Failure> {
        let masters: Vec<Server> = (0..size.masters).map(|_| node()).collect();
        divide_slots(&masters);
        let count = if size.replicas { size.masters } else { 0 };
        let replicas: Vec<Server> = (0..count).map(|_| node()).collect();
        join(&masters, &replicas);
        let slot: usize = masters[0]
            .connection()
            .ask(&format!("CLUSTER KEYSLOT {TAG}"));
        let (mut others, mut listeners) = (Vec::new(), Vec::new());
        let mut measured = None;
        for (number, master) in masters.into_iter().enumerate() {
            if equal_part(number, size.masters).contains(&slot) {
                measured = Some(Rc::new(master));
            } else {
                listeners.push(keep_busy(&master)?);
                others.push(master);
            }
        }
        others.extend(replicas);
        Ok(Cluster {
            measured: measured.ok_or("nobody serves the slot")?,
            _others: others,
            _listeners: listeners,
        })
    }
}

fn node() -> Server {
    let builder = Server::builder().cluster();
    builder
        .config("cluster-require-full-coverage", "no")
        .start()
}

/// Gives a master locks that are held, and one with waiters. They wait as long as the listener lives.
fn keep_busy(master: &Server) -> Result<Listener, Failure> {
    let mut connection = master.connection();
    let tag = (0..)
        .map(|number| format!("{{elsewhere:{number}}}"))
        .find(|tag| connection.try_ask(&format!("DLOCK.INFO {tag}")).is_ok())
        .ok_or("no slot")?;
    let mut line = Line::wide(master.port())?;
    let loaded = exclusive(DLOCK)?.load_with_lease(master, 86_400_000);
    line.run(&Batch {
        times: LOCKS_ELSEWHERE,
        reply: loaded.taken.clone(),
        bytes: (0..LOCKS_ELSEWHERE)
            .flat_map(|number| loaded.take(&format!("{tag}held:{number:05}")))
            .collect(),
    })?;
    let owners = errand::owners(WAITS_ELSEWHERE + 1);
    let key = format!("{tag}queue");
    let listener = Listener::new(master, &key);
    session::queue_up(master, &mut line, &key, &owners)?;
    Ok(listener)
}
