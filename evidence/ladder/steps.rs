//! The steps: their clients, and what is counted.

use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::redis::{cmd, ConnectionLike, Value};
use dlock_harness::{await_until, command, Ask, Wire, PATIENCE};
use fastrand::Rng;

use crate::client::Client;
use crate::lock::{queue_of, Terms, Use, Way};
use crate::part::{end, passed, stock, waits, Part};
use crate::stage::{counted, is_stuck, is_taken, Stage};
use crate::watch::Watch;

/// The lease where a step is about something else.
const LEASE_MS: u64 = 30_000;

/// A lease that slow work outlasts.
const SHORT_LEASE_MS: u64 = 50;

/// Work that outlasts the short lease, and a stop that does.
const SLOW_MS: u64 = 120;

/// How long a stuck lock is observed not to be granted.
const WATCH: Duration = Duration::from_millis(300);

/// How long a queue of scripts keeps the place of a client that does not ask. Libraries keep it for 5 seconds to 5 minutes.
const WINDOW_MS: u64 = 3_000;

/// The most tries of a step that needs a server without a stall.
const ROUNDS: u64 = 5;

/// The lock is taken and released, and nothing else happens.
const NO_WORK: Part = Part::Repeat {
    work_ms: 0,
    rest_ms: 0,
};

/// A step of the ladder.
pub struct Step {
    /// The name in the table.
    pub name: &'static str,
    /// The description of the lock made of plain keys.
    pub plain: &'static str,
    /// The description of DLOCK's lock.
    pub dlock: &'static str,
    /// The lock made of plain keys.
    plain_way: Way,
    /// The feature of DLOCK that is used.
    dlock_use: Use,
    /// Whether nothing else may run during the step.
    alone: bool,
    run: fn(&mut Scene) -> Seen,
}

/// The observations on one side of a step.
pub struct Seen {
    /// The number of faults.
    pub wrong: u64,
    /// Whether there was an occasion for a fault.
    pub arose: bool,
    /// The text in the table.
    pub text: String,
}

/// The observations on both sides.
pub struct Outcome {
    /// The step.
    pub step: &'static Step,
    /// With a lock of plain keys.
    pub plain: Seen,
    /// With DLOCK.
    pub dlock: Seen,
}

impl Outcome {
    /// Returns the faults of the outcome: a step that shows nothing, or a failure of DLOCK.
    pub fn faults(&self) -> Vec<&'static str> {
        let mut faults = Vec::new();
        if self.plain.wrong == 0 {
            faults.push("the plain lock has not failed");
        }
        if self.dlock.wrong > 0 {
            faults.push("WRONG");
        }
        if !self.dlock.arose {
            faults.push("there was no occasion for a failure");
        }
        faults
    }
}

/// All steps, in order.
pub const STEPS: [Step; 10] = [
    Step {
        name: "1. The holder is killed",
        plain: "SETNX; DEL",
        dlock: "ACQUIRE … EPHEMERAL",
        plain_way: Way::Setnx,
        dlock_use: Use::Ephemeral,
        alone: false,
        run: holder_is_killed,
    },
    Step {
        name: "2. Clients are killed at any moment",
        plain: "SETNX, then PEXPIRE; DEL",
        dlock: "ACQUIRE … EPHEMERAL",
        plain_way: Way::SetnxExpire,
        dlock_use: Use::Ephemeral,
        alone: false,
        run: killed_at_any_moment,
    },
    Step {
        name: "3. Some work is slower than the lease",
        plain: "SET NX PX; DEL",
        dlock: "ACQUIRE; RELEASE … TOKEN",
        plain_way: Way::SetDel,
        dlock_use: Use::Release,
        alone: false,
        run: slow_work,
    },
    Step {
        name: "4. A client is stopped at any moment",
        plain: "SET NX PX; GET, then DEL",
        dlock: "ACQUIRE; RELEASE … TOKEN",
        plain_way: Way::SetGetDel,
        dlock_use: Use::Release,
        alone: false,
        run: stopped_at_any_moment,
    },
    Step {
        name: "5. All work is slower than the lease",
        plain: "SET NX PX; compare and delete",
        dlock: "RENEW … AUTO",
        plain_way: Way::SetCompare,
        dlock_use: Use::Auto,
        alone: false,
        run: lease_too_short,
    },
    Step {
        name: "6. The holder is stopped, its renewals too",
        plain: "the same, and a thread that renews",
        dlock: "a thread that renews, and GUARD … SET",
        plain_way: Way::SetCompare,
        dlock_use: Use::Guard,
        alone: false,
        run: late_write,
    },
    Step {
        name: "7. Many want it at once",
        plain: "the same, and 50 ms between tries",
        dlock: "ACQUIRE … BLOCK 0",
        plain_way: Way::SetCompare,
        dlock_use: Use::Block,
        alone: true,
        run: crowd,
    },
    Step {
        name: "8. The next in the queue is killed",
        plain: "a queue that scripts keep",
        dlock: "FAIRACQUIRE … BLOCK 0",
        plain_way: Way::ScriptedQueue {
            window_ms: WINDOW_MS,
        },
        dlock_use: Use::Ticket {
            window_ms: WINDOW_MS,
        },
        alone: false,
        run: next_is_killed,
    },
    Step {
        name: "9. A function takes its caller's lock",
        plain: "SET NX PX; compare and delete",
        dlock: "ACQUIRE, by the same owner",
        plain_way: Way::SetCompare,
        dlock_use: Use::Reenter,
        alone: false,
        run: taken_once_more,
    },
    Step {
        name: "10. Two locks, in either order",
        plain: "the same, one after the other",
        dlock: "MACQUIRE 2 …",
        plain_way: Way::SetCompare,
        dlock_use: Use::Many,
        alone: false,
        run: two_locks,
    },
];

/// Plays a step on both sides.
pub fn play(step: &'static Step, stage: &Stage) -> Outcome {
    let dlock_way = match stage.is_planted() {
        true => Way::Misused(step.dlock_use),
        false => Way::Dlock(step.dlock_use),
    };
    let number = step.name.split('.').next().unwrap_or_default();
    let side = |side: &str, way| {
        let key = format!("{side}-{number}");
        (step.run)(&mut Scene::new(stage, way, key))
    };
    let (plain, dlock) = if step.alone {
        (side("plain", step.plain_way), side("dlock", dlock_way))
    } else {
        thread::scope(|scope| {
            let plain = scope.spawn(|| side("plain", step.plain_way));
            let dlock = side("dlock", dlock_way);
            (plain.join().expect("a side does not panic"), dlock)
        })
    };
    Outcome { step, plain, dlock }
}

/// One side of a step.
struct Scene<'a> {
    stage: &'a Stage,
    way: Way,
    key: String,
    connection: Wire,
    random: Rng,
    lease_ms: u64,
    pause_ms: u64,
}

impl<'a> Scene<'a> {
    fn new(stage: &'a Stage, way: Way, key: String) -> Scene<'a> {
        Scene {
            stage,
            way,
            key,
            connection: stage.server().connection(),
            random: Rng::with_seed(1),
            lease_ms: LEASE_MS,
            pause_ms: 5,
        }
    }

    /// Returns the terms on which `name` wants the lock of this number.
    fn terms(&self, number: u64, name: impl std::fmt::Display) -> Terms {
        let key = format!("{}-{number}", self.key);
        Terms {
            way: self.way,
            owner: format!("{key}-{name}"),
            key,
            lease_ms: self.lease_ms,
            pause_ms: self.pause_ms,
        }
    }

    fn start(&self, part: Part, terms: &Terms) -> Client {
        Client::start(self.stage, part, terms.clone())
    }

    /// Starts the workers of one lock, lets them all begin at once, and waits for their end.
    fn run_workers(&mut self, number: u64, count: u64, part: Part) -> Terms {
        let mut workers: Vec<Client> = (0..count)
            .map(|worker| self.start(part, &self.terms(number, worker)))
            .collect();
        for worker in &mut workers {
            worker.await_saying("ready");
        }
        workers.iter_mut().for_each(Client::go_on);
        workers.iter_mut().for_each(Client::await_end);
        self.terms(number, "all")
    }

    /// Returns for how long a client is observed that should get what it wants at once: briefly where it never will, and where it will,
    /// as long as a loaded machine may delay it.
    fn patience(&self) -> Duration {
        match self.way {
            Way::Dlock(_) => PATIENCE,
            _ => WATCH,
        }
    }

    fn counted(&mut self, terms: &Terms, what: &str) -> u64 {
        counted(&mut self.connection, &terms.key, what)
    }

    /// Waits until an owner is in the queue, where there is one.
    fn await_place(&mut self, terms: &Terms) {
        let line = match self.way {
            Way::Dlock(_) | Way::Misused(_) => {
                format!("DLOCK.POSITION {} {}", terms.key, terms.owner)
            }
            Way::ScriptedQueue { .. } => format!("LPOS {} {}", queue_of(&terms.key), terms.owner),
            _ => return,
        };
        await_until("the client is in the queue", PATIENCE, || {
            self.connection.ask::<Option<u64>>(&line).is_some()
        });
    }
}

/// Returns true if more tries are needed: `times`, and then until the event has happened (at most thirty times as many).
fn goes_on(tried: u64, times: u64, happened: u64) -> bool {
    tried < times || (happened == 0 && tried < 30 * times)
}

/// Kills a holder, while another client wants the lock.
fn holder_is_killed(scene: &mut Scene) -> Seen {
    let rounds = scene.stage.so_many(5, 2);
    let (mut stuck, mut longest) = (0, Duration::ZERO);
    for round in 0..rounds {
        let (first, second) = (scene.terms(round, "first"), scene.terms(round, "second"));
        let mut holder = scene.start(Part::Keep, &first);
        holder.await_saying("asks");
        holder.await_saying("held");
        let mut next = scene.start(Part::Keep, &second);
        next.await_saying("asks");
        scene.await_place(&second);
        let killed = Instant::now();
        holder.kill9();
        if is_stuck(&mut scene.connection, &first) {
            assert_eq!(next.said_within("held", killed, WATCH), None, "it is free");
            stuck += 1;
        } else {
            let waited = next.said_within("held", killed, PATIENCE);
            longest = longest.max(waited.expect("the next has it"));
        }
    }
    let text = match stuck {
        0 => format!(
            "stuck: 0 of {rounds}\nthe next holds it within {}",
            millis(longest)
        ),
        stuck => format!("stuck for ever: {stuck} of {rounds}"),
    };
    Seen {
        wrong: stuck,
        arose: true,
        text,
    }
}

/// Kills clients that take and release locks all the time.
fn killed_at_any_moment(scene: &mut Scene) -> Seen {
    scene.lease_ms = 1_000;
    let times = scene.stage.so_many(40, 20);
    let (mut killed, mut stuck) = (0, 0);
    let is_to_fail = !matches!(scene.way, Way::Dlock(_));
    while goes_on(killed, times, stuck) && (is_to_fail || killed < times) {
        let terms = scene.terms(killed, "one");
        let mut client = scene.start(NO_WORK, &terms);
        client.await_saying("begun");
        thread::sleep(Duration::from_micros(scene.random.u64(..8_000)));
        client.kill9();
        stuck += u64::from(is_stuck(&mut scene.connection, &terms));
        killed += 1;
    }
    Seen {
        wrong: stuck,
        arose: true,
        text: match stuck {
            0 => format!("stuck: 0 of {killed}"),
            stuck => format!("stuck for ever: {stuck} of {killed}"),
        },
    }
}

/// Makes one piece of work in four take longer than the lease.
fn slow_work(scene: &mut Scene) -> Seen {
    scene.lease_ms = SHORT_LEASE_MS;
    let part = Part::Work {
        times: scene.stage.so_many(12, 4),
        work_ms: 15,
        slow_ms: SLOW_MS,
        slow_one_in: 4,
    };
    let terms = scene.run_workers(0, 4, part);
    let slow = scene.counted(&terms, "slow");
    let lost = scene.counted(&terms, "lost");
    let stolen = scene.counted(&terms, "stolen");
    Seen {
        wrong: stolen,
        arose: slow > 0 && lost + stolen >= slow,
        text: stolen_and_noticed(scene, stolen, lost, &format!("{slow} slow works")),
    }
}

/// Stops one client for longer than its lease, wherever it is.
fn stopped_at_any_moment(scene: &mut Scene) -> Seen {
    scene.lease_ms = SHORT_LEASE_MS;
    scene.pause_ms = 30;
    let others = (0..2).map(|other| {
        let part = Part::Repeat {
            work_ms: 30,
            rest_ms: 30,
        };
        scene.start(part, &scene.terms(0, other))
    });
    let mut clients: Vec<Client> = others.collect();
    // It leaves the others little time between two tries: it should have the lock when it is stopped.
    scene.pause_ms = 5;
    clients.push(scene.start(NO_WORK, &scene.terms(0, "victim")));
    for client in &mut clients {
        client.await_saying("begun");
    }
    let terms = scene.terms(0, "all");
    let times = scene.stage.so_many(20, 6);
    let (mut stops, mut late) = (0, 0);
    while goes_on(stops, times, late) {
        // The others work for a part of it.
        thread::sleep(Duration::from_micros(scene.random.u64(10_000..60_000)));
        let victim = clients.last().expect("the victim is the last");
        victim.stop();
        thread::sleep(Duration::from_millis(SLOW_MS));
        victim.run_on();
        stops += 1;
        late = match scene.way {
            Way::Dlock(_) => scene.counted(&terms, "lost"),
            _ => scene.counted(&terms, "stolen"),
        };
    }
    scene.connection.run(&format!("SET {} 1", end(&terms.key)));
    clients.iter_mut().for_each(Client::await_end);
    let stolen = scene.counted(&terms, "stolen");
    let lost = scene.counted(&terms, "lost");
    Seen {
        wrong: stolen,
        arose: stolen + lost > 0,
        text: stolen_and_noticed(scene, stolen, lost, &format!("{stops} stops")),
    }
}

fn stolen_and_noticed(scene: &Scene, stolen: u64, lost: u64, of: &str) -> String {
    match scene.way {
        Way::Dlock(_) | Way::Misused(_) => {
            format!("locks stolen: {stolen} in {of}\nNOTHELD replies: {lost}")
        }
        _ => format!("locks stolen: {stolen} in {of}"),
    }
}

/// Makes each client work for longer than its lease. A server that stalls cannot renew a lease: then the step is repeated.
fn lease_too_short(scene: &mut Scene) -> Seen {
    // The shortest lease that the server renews is 1,000 ms.
    scene.lease_ms = 1_500;
    let part = Part::Work {
        times: 1,
        work_ms: 2_000,
        slow_ms: 0,
        slow_one_in: u64::MAX,
    };
    let clients = 3;
    let mut round = 0;
    loop {
        let watch = Watch::start(scene.stage.server());
        let terms = scene.run_workers(round, clients, part);
        let stood_still = watch.stop() > Duration::from_millis(scene.lease_ms / 3);
        round += 1;
        let together = scene.counted(&terms, "together");
        let kept = scene.counted(&terms, "ours");
        if stood_still && round < ROUNDS {
            continue;
        }
        return Seen {
            wrong: together,
            arose: kept == clients || together > 0,
            text: format!("two inside: {together} of {clients} times"),
        };
    }
}

/// Makes a client read, stops it until another has had the lock, and lets it write.
fn late_write(scene: &mut Scene) -> Seen {
    scene.lease_ms = 1_000;
    let rounds = scene.stage.so_many(5, 2);
    let mut stopped: Vec<Client> = (0..rounds)
        .map(|round| {
            let terms = scene.terms(round, "first");
            scene
                .connection
                .run(&format!("SET {} 100", stock(&terms.key)));
            scene.start(Part::Sell, &terms)
        })
        .collect();
    for first in &mut stopped {
        first.await_saying("read");
        first.stop();
    }
    let mut others: Vec<Client> = (0..rounds)
        .map(|round| scene.start(Part::Sell, &scene.terms(round, "second")))
        .collect();
    for second in &mut others {
        second.await_saying("read");
        second.go_on();
        second.hear();
    }
    let (mut landed, mut fenced) = (0, 0);
    for first in &mut stopped {
        first.go_on();
        first.run_on();
        match first.hear().as_str() {
            "wrote" => landed += 1,
            "fenced" => fenced += 1,
            other => panic!("it says {other:?}"),
        }
    }
    let refused = match fenced {
        0 => String::new(),
        fenced => format!("\nFENCED: {fenced}"),
    };
    Seen {
        wrong: landed,
        arose: landed + fenced == rounds,
        text: format!("late writes landed: {landed} of {rounds}{refused}"),
    }
}

/// Makes clients want the lock all the time.
fn crowd(scene: &mut Scene) -> Seen {
    scene.pause_ms = 50;
    let clients = scene.stage.so_many(10, 5);
    let part = Part::Work {
        times: scene.stage.so_many(20, 10),
        work_ms: 2,
        slow_ms: 0,
        slow_one_in: u64::MAX,
    };
    let terms = scene.run_workers(0, clients, part);
    let mut list = |list: String| -> Vec<u64> {
        let mut numbers: Vec<u64> = scene.connection.ask(&format!("LRANGE {list} 0 -1"));
        numbers.sort_unstable();
        numbers
    };
    let (waits, passed) = (list(waits(&terms.key)), list(passed(&terms.key)));
    // Each of the others may have been before it once.
    let overtaken = passed.iter().filter(|&&others| others >= clients).count();
    let (longest, most) = (last(&waits), last(&passed));
    Seen {
        wrong: overtaken as u64,
        arose: most > 0,
        text: format!(
            "longest wait: {}\nserved before: up to {most}, by {} others",
            millis(Duration::from_micros(longest)),
            clients - 1
        ),
    }
}

fn last(sorted: &[u64]) -> u64 {
    sorted.last().copied().unwrap_or(0)
}

/// Makes two clients wait in a queue, kills the first of them, then releases the lock.
fn next_is_killed(scene: &mut Scene) -> Seen {
    scene.pause_ms = 20;
    let holder = scene.terms(0, "holder");
    let Terms { key, owner, .. } = &holder;
    let (take, give, look) = match scene.way {
        Way::Dlock(_) | Way::Misused(_) => (
            format!("DLOCK.ACQUIRE {key} {owner} {LEASE_MS}"),
            format!("DLOCK.RELEASE {key} {owner}"),
            format!("DLOCK.HELD {key}"),
        ),
        _ => (
            format!("SET {key} {owner} PX {LEASE_MS}"),
            format!("DEL {key}"),
            format!("GET {key}"),
        ),
    };
    scene.connection.run(&take);
    let wait = |scene: &mut Scene, name| {
        let terms = scene.terms(0, name);
        let mut client = scene.start(Part::Keep, &terms);
        client.await_saying("asks");
        scene.await_place(&terms);
        client
    };
    let mut dead = wait(scene, "dead");
    let mut next = wait(scene, "next");
    dead.kill9();
    assert!(is_taken(&mut scene.connection, &holder), "it is held");
    let given = Instant::now();
    let stands_free = give_and_look(&mut scene.connection, &give, &look);
    let waited = next
        .said_within("held", given, PATIENCE)
        .expect("the next has it in the end");
    let text = match stands_free {
        true => format!("the lock is free for {}", millis(waited)),
        false => format!(
            "handed over at once\nthe next knows within {}",
            millis(waited)
        ),
    };
    Seen {
        wrong: u64::from(stands_free),
        arose: true,
        text,
    }
}

/// Makes a holder take the lock once more.
fn taken_once_more(scene: &mut Scene) -> Seen {
    let rounds = scene.stage.so_many(5, 2);
    let (mut stuck, mut kept) = (0, 0);
    for round in 0..rounds {
        let terms = scene.terms(round, "one");
        let mut holder = scene.start(Part::Nest, &terms);
        holder.await_saying("held");
        if holder
            .said_within("inside", Instant::now(), scene.patience())
            .is_none()
        {
            stuck += 1;
            continue;
        }
        holder.await_saying("left");
        kept += u64::from(is_taken(&mut scene.connection, &terms));
        holder.go_on();
        holder.await_saying("given");
        assert!(!is_taken(&mut scene.connection, &terms), "it is free");
    }
    let text = match stuck {
        0 => {
            format!("waits for itself: 0 of {rounds}\nstill held by the caller: {kept} of {rounds}")
        }
        stuck => format!("waits for itself: {stuck} of {rounds}"),
    };
    Seen {
        wrong: rounds - kept,
        arose: true,
        text,
    }
}

/// Makes two clients take two locks, one of them in the other order.
fn two_locks(scene: &mut Scene) -> Seen {
    let rounds = scene.stage.so_many(5, 2);
    let (mut stuck, mut longest) = (0, Duration::ZERO);
    for round in 0..rounds {
        let mut clients = [false, true].map(|turned| {
            let terms = scene.terms(round, if turned { "turned" } else { "straight" });
            scene.start(Part::Pair { turned }, &terms)
        });
        for client in &mut clients {
            client.await_saying("ready");
        }
        let begun = Instant::now();
        clients.iter_mut().for_each(Client::go_on);
        let patience = scene.patience();
        let had = clients
            .each_mut()
            .map(|client| client.said_within("both", begun, patience));
        stuck += u64::from(had.contains(&None));
        longest = longest.max(had.into_iter().flatten().max().unwrap_or_default());
    }
    let text = match stuck {
        0 => format!(
            "stuck: 0 of {rounds}\nboth have had both within {}",
            millis(longest)
        ),
        stuck => format!("stuck until a lease ends: {stuck} of {rounds}"),
    };
    Seen {
        wrong: stuck,
        arose: true,
        text,
    }
}

/// Releases the lock, and returns whether it is free in that step.
fn give_and_look(connection: &mut Wire, give: &str, look: &str) -> bool {
    let mut bytes = cmd("MULTI").get_packed_command();
    for line in [give, look, "EXEC"] {
        bytes.extend(command(line).get_packed_command());
    }
    let replies = connection
        .req_packed_commands(&bytes, 3, 1)
        .expect("the server answers");
    match replies.as_slice() {
        [Value::Array(replies)] => match replies.as_slice() {
            [Value::Int(_), holder] => *holder == Value::Nil,
            other => panic!("{give:?} and {look:?} were answered {other:?}"),
        },
        other => panic!("EXEC was answered {other:?}"),
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.0} ms", (duration.as_secs_f64() * 1_000.0).ceil())
}
