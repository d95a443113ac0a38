//! Circles of waiting owners: the engine refuses the request that would close one, and no other, and its search is bounded.

use crate::client::Client;
use crate::deadlock::{closes_a_circle, closes_a_circle_without, play, Clause, Hold, Scene, Wait};
use crate::keys::Value;
use crate::random::{for_some_seeds, Random};
use crate::server::Server;
use crate::snapshot::text;
use crate::world::name;
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::change::Change;
use dlock_engine::{
    lock, ClientId, Limit, Lock, Now, Policy, Receiver, Refusal, Token, WallMs, ONE,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

const NOW: Now = Now {
    us: 2_000_000_000_000_000,
    steady_us: 1_000_000,
};

/// The number of locks that have a queue and many holders each.
const CROWDED: usize = 10_000;

/// The number of holders of each lock.
const HOLDERS: usize = 17;

/// Sends a command. Returns its answer.
fn ask(server: &mut Server, line: &str) -> Result<Reply, Error> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let answer = server.run(NOW, 0, Client::connection(1), &words);
    server.keys.close();
    answer
}

/// Returns a server with locks `k0`, `k1`, …, each with its readers; the first reader is `chain0`, `chain1`, …
fn crowded(policy: Policy) -> Server {
    let mut server = Server::new(true, policy);
    for at in 0..CROWDED {
        let mut value = Lock::default();
        for nth in 0..HOLDERS {
            let owner = match nth {
                0 => format!("chain{at}"),
                nth => format!("reader{nth}"),
            };
            value.apply(&Change::Hold(lock::Hold {
                owner: owner.as_bytes(),
                token: Token(NOW.us + (at * HOLDERS + nth) as u64),
                deadline: WallMs(NOW.us / 1000 + 1_000_000),
                holds: 1,
                limit: Limit::SHARED,
                permits: ONE,
                client: ClientId::NONE,
                fresh: false,
            }));
        }
        let value = Value::Lock(Box::new(value), None);
        server.keys.values.insert(name(0, &format!("k{at}")), value);
    }
    server
}

/// Makes a request wait at each of the locks, without any search.
fn wait_at_each(server: &mut Server, who: impl Fn(usize) -> String, key: impl Fn(usize) -> usize) {
    server.set_policy(|policy| policy.deadlock_detection = false);
    for at in 0..CROWDED {
        let line = format!("ACQUIRE k{} {} BLOCK 0", key(at), who(at));
        assert!(matches!(ask(server, &line), Ok(Reply::Wait(..))));
    }
    server.set_policy(|policy| policy.deadlock_detection = true);
    while server.engine.settle_dirty(&mut server.keys, NOW, CROWDED) {
        server.keys.close();
    }
    server.keys.close();
}

/// However many locks have many holders and waiters, a new waiter searches only its own.
#[test]
fn a_wait_opens_no_other_crowded_lock() {
    let mut server = crowded(Policy::default());
    wait_at_each(&mut server, |at| format!("waiter{at}"), |at| at);
    server.keys.inspected = 0;
    let answer = ask(&mut server, "ACQUIRE k7 newcomer BLOCK 0");
    assert!(matches!(answer, Ok(Reply::Wait(..))), "{answer:?}");
    assert!(server.keys.inspected <= 2, "{}", server.keys.inspected);
    assert_eq!(server.engine.counters().deadlocks_deferred, 0);
}

/// The search follows a chain through all locks until its steps are used up, and then the request waits.
#[test]
fn a_search_takes_no_more_than_its_steps() {
    let policy = Policy::default();
    let steps = policy.deadlock_max_steps;
    let mut server = crowded(policy);
    let next = |at| (at + 1) % CROWDED;
    wait_at_each(&mut server, |at| format!("chain{at}"), next);
    server.keys.inspected = 0;
    let answer = ask(&mut server, "ACQUIRE k0 newcomer BLOCK 0");
    assert!(matches!(answer, Ok(Reply::Wait(..))), "{answer:?}");
    let inspected = server.keys.inspected;
    assert!((2..=steps).contains(&inspected), "{inspected}");
    assert_eq!(server.engine.counters().deadlocks_deferred, 1);
}

/// An owner may wait for thousands of locks: each wait is a step.
#[test]
fn each_wait_of_an_owner_is_a_step() {
    let mut server = Server::new(true, Policy::default());
    let steps = server.engine.policy().deadlock_max_steps;
    for line in ["ACQUIRE gate alice", "ACQUIRE door newcomer"] {
        assert!(matches!(ask(&mut server, line), Ok(Reply::Grant(..))));
    }
    for at in 0..2 * steps {
        drop(ask(&mut server, &format!("ACQUIRE k{at} bob")));
        drop(ask(&mut server, &format!("ACQUIRE k{at} alice BLOCK 0")));
    }
    server.keys.inspected = 0;
    drop(ask(&mut server, "ACQUIRE gate newcomer BLOCK 0"));
    let inspected = server.keys.inspected;
    assert!((steps / 3..=steps).contains(&inspected), "{inspected}");
    assert_eq!(server.engine.counters().deadlocks_deferred, 1);
    // The owner's own waits do not count.
    drop(ask(&mut server, "ACQUIRE door alice BLOCK 0"));
    assert_eq!(server.engine.counters().deadlocks_deferred, 1);
}

/// With many holders and few waiters the search goes through the waiters, with few holders and many waiters through the holders.
#[test]
fn the_shorter_list_is_looked_through() {
    let mut server = Server::new(true, Policy::default());
    let many = 3 * server.engine.policy().deadlock_max_steps;
    for at in 0..many {
        drop(ask(&mut server, &format!("ACQUIRE book reader{at} SHARED")));
    }
    drop(ask(&mut server, "ACQUIRE door newcomer"));
    drop(ask(&mut server, "ACQUIRE door reader17 BLOCK 0"));
    let refused = |server: &mut Server| {
        let answer = ask(server, "ACQUIRE book newcomer BLOCK 0");
        matches!(answer, Err(Error::Refused(Refusal::Deadlock(_))))
    };
    assert!(refused(&mut server));
    // The owner's own hold as a reader is found, too, and is not in its way.
    drop(ask(&mut server, "ACQUIRE book newcomer SHARED"));
    assert!(refused(&mut server));
    for at in 0..many {
        let line = format!("ACQUIRE door other{at} BLOCK 0");
        drop(ask(&mut server, &line));
    }
    let answer = ask(&mut server, "ACQUIRE door reader18 BLOCK 0");
    assert!(matches!(answer, Ok(Reply::Wait(..))), "{answer:?}");
    assert_eq!(server.engine.counters().deadlocks_deferred, 0);
    // Both lists are long.
    assert!(!refused(&mut server));
    assert_eq!(server.engine.counters().deadlocks_deferred, 1);
}

/// Thousands of readers behind a writer, or waiters of a semaphore, cost no search along the queue.
#[test]
fn a_long_queue_of_one_kind_costs_no_steps() {
    let mut server = Server::new(true, Policy::default());
    for key in ["book", "pool"] {
        drop(ask(&mut server, &format!("ACQUIRE {key} holder LIMIT 1")));
    }
    server.set_policy(|policy| policy.deadlock_max_steps = 2);
    for at in 0..100 {
        for line in ["book reader SHARED", "pool worker LIMIT 5"] {
            let (key, rest) = line.split_once(' ').unwrap();
            let (owner, limit) = rest.split_once(' ').unwrap();
            let line = format!("ACQUIRE {key} {owner}{at} BLOCK 0 {limit}");
            assert!(matches!(ask(&mut server, &line), Ok(Reply::Wait(..))));
        }
    }
    assert_eq!(server.engine.counters().deadlocks_deferred, 0);
}

/// The owners and keys of the random runs.
const OWNERS: [&str; 6] = ["ada", "ben", "cyd", "dan", "eve", "fay"];
const KEYS: [&str; 4] = ["shop", "yard", "mill", "loft"];

/// A waiting request.
struct Waiting {
    owner: String,
    keys: Vec<String>,
    limit: usize,
    many: bool,
}

/// A run of owners with at most one wait each. They take locks alone or together, share, upgrade, take over and release. Limits are
/// 1 or unbounded.
#[derive(Default)]
struct Run {
    waits: BTreeMap<u64, Waiting>,
    /// The number of requests that waited, and of those that were refused.
    waited: usize,
    refused: usize,
}

impl Run {
    /// Performs one more step. If the request would wait, returns the state in which it waits, its number, and whether it was
    /// refused.
    fn step(&mut self, server: &mut Server, random: &mut Random) -> Option<(Scene, u64, bool)> {
        let owner = random.pick::<&str>(&OWNERS).to_string();
        let older = self.waits.values().find(|wait| wait.owner == owner);
        let held = |key: &&str| {
            let lock = server.keys.lock(&name(0, key));
            lock.is_some_and(|lock| lock.hold(owner.as_bytes()).is_some())
        };
        if random.chance(25) {
            let key = random.pick::<&str>(&KEYS);
            let verb = match (older, random.chance(50)) {
                // A waiting owner gives nothing back.
                (Some(older), _) => format!("CANCEL {} {owner}", older.keys[0]),
                (None, true) => format!("DOWNGRADE {key} {owner} SHARED"),
                (None, false) => format!("RELEASE {key} {owner} HOLDS 0"),
            };
            drop(ask(server, &verb));
            self.hear(server);
            return None;
        }
        let keys: Vec<&str> = match older {
            // The newer request takes over from the older one.
            Some(older) if !older.many && random.chance(50) => vec![&older.keys[0]],
            Some(older) => older.keys.iter().map(String::as_str).collect(),
            None if random.chance(35) => {
                let mut free: Vec<&str> = KEYS.to_vec();
                free.retain(|key| !held(key));
                free.truncate(1 + random.below(3) as usize);
                free
            }
            None => vec![random.pick::<&str>(&KEYS)],
        };
        let many = keys.len() > 1 || older.is_some_and(|older| older.many);
        let limit = if random.chance(50) { 1 } else { usize::MAX };
        let words = match many {
            true => format!("MACQUIRE {} {} {owner}", keys.len(), keys.join(" ")),
            false => format!("ACQUIRE {} {owner}", keys.first()?),
        };
        let shared = if limit == 1 { "" } else { " SHARED" };
        let line = format!("{words} BLOCK 0{shared}");
        let keys = keys.into_iter().map(String::from).collect();
        let asked = Waiting {
            owner,
            keys,
            limit,
            many,
        };
        // A server without detection answers the request as well.
        let mut blind = server.clone();
        blind.set_policy(|policy| policy.deadlock_detection = false);
        let there = ask(&mut blind, &line);
        let here = ask(server, &line);
        let Ok(Reply::Wait(id, _)) = there else {
            assert_eq!(format!("{here:?}"), format!("{there:?}"), "{line}");
            self.hear(server);
            return None;
        };
        let mut then = Run::default();
        for (id, wait) in &self.waits {
            let gone = wait.owner == asked.owner;
            if !gone {
                then.waits.insert(*id, wait.again());
            }
        }
        then.waits.insert(id.0, asked.again());
        then.hear(&mut blind);
        let refused = match &here {
            Ok(Reply::Wait(here, _)) => {
                assert_eq!(*here, id);
                self.waits.retain(|_, wait| wait.owner != asked.owner);
                self.waits.insert(id.0, asked);
                self.waited += 1;
                false
            }
            Err(Error::Refused(Refusal::Deadlock(_))) => {
                self.refused += 1;
                true
            }
            other => panic!("{line}: {other:?}"),
        };
        self.hear(server);
        Some((then.scene(&blind), id.0, refused))
    }

    /// Removes the waits that have their outcome.
    fn hear(&mut self, server: &mut Server) {
        for output in server.engine.take_outputs() {
            if matches!(output.to, Receiver::Connection) {
                self.waits.remove(&output.id.0);
            }
        }
    }

    /// Returns the holders and the waiters.
    fn scene(&self, server: &Server) -> Scene {
        let mut scene = Scene::default();
        let wide = |limit: Limit| match limit.to_wire() {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let mut waits: BTreeMap<u64, Wait> = BTreeMap::new();
        for (id, wait) in &self.waits {
            waits.insert(*id, Wait::new(*id, &wait.owner, wait.many));
        }
        for key in KEYS {
            let name = name(0, key);
            let lock = server.keys.lock(&name);
            for hold in lock.into_iter().flat_map(|lock| lock.holds()) {
                scene.holds.push(Hold {
                    key: key.to_string(),
                    owner: text(hold.owner),
                    limit: wide(hold.limit),
                    permits: 1,
                });
            }
            let view = server.engine.view(lock, NOW, name.as_ref(), usize::MAX);
            let queue = view.into_iter().flat_map(|view| view.queue);
            for (rank, place) in queue.enumerate() {
                let its = |(_, wait): &(&u64, &Waiting)| wait.owner.as_bytes() == place.owner;
                let (id, asked) = self.waits.iter().find(its).expect("a request waits there");
                assert_eq!(asked.limit, wide(place.share.limit));
                let wait = waits.get_mut(id).expect("the same");
                wait.stand(key, rank, (asked.limit, 1));
            }
        }
        scene.waits.extend(waits.into_values());
        scene
    }
}

impl Waiting {
    fn again(&self) -> Waiting {
        Waiting {
            owner: self.owner.clone(),
            keys: self.keys.clone(),
            limit: self.limit,
            many: self.many,
        }
    }
}

/// Errs unless a request was refused exactly when its wait could never end, by playing the scene through.
fn judge(scene: &Scene, id: u64, refused: bool) -> Result<(), String> {
    let left = play(scene.clone());
    let stands = left.waits.iter().any(|wait| wait.id == id);
    // No older wait is stuck: else the engine missed a circle.
    match (left.waits.is_empty(), refused) {
        (true, false) | (false, true) if stands == refused => Ok(()),
        _ => Err(format!("refused: {refused}, stands: {stands}\n{scene:#?}")),
    }
}

/// Runs the requests of a seed. Returns how many of them waited and how many were refused.
fn run(
    seed: u64,
    detection: bool,
    refuses: impl Fn(&Scene, u64, bool) -> bool,
) -> Result<(usize, usize), String> {
    let mut random = Random::new(seed);
    let policy = Policy {
        deadlock_detection: detection,
        ..Policy::default()
    };
    let mut server = Server::new(true, policy);
    let mut run = Run::default();
    for _ in 0..200 {
        if let Some((scene, id, refused)) = run.step(&mut server, &mut random) {
            judge(&scene, id, refuses(&scene, id, refused))?;
        }
    }
    Ok((run.waited, run.refused))
}

/// No circle is missed and no request refused without one, by the engine and by the model's rule.
#[test]
fn what_is_refused_could_never_end_and_nothing_else() {
    let (waited, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for_some_seeds(250, 10_000, |seed| {
        let (waits, refusals) = run(seed, true, |_, _, refused| refused)?;
        waited.fetch_add(waits, Ordering::Relaxed);
        refused.fetch_add(refusals, Ordering::Relaxed);
        run(seed, true, |scene, id, _| closes_a_circle(scene, id)).map(drop)
    });
    let seen = (waited.into_inner(), refused.into_inner());
    println!("waited, refused: {seen:?}");
    assert!(seen.0 >= 10_000 && seen.1 >= 1_000, "{seen:?}");
}

/// Without any of its clauses the rule misses a circle, and so does an engine without detection or without steps. A rule that
/// refuses too much is rejected as well.
#[test]
fn a_circle_that_is_missed_is_seen() {
    let caught = |what: &str, detection: bool, refuses: &dyn Fn(&Scene, u64, bool) -> bool| {
        let found = (1..=100).any(|seed| run(seed, detection, refuses).is_err());
        assert!(found, "{what}");
    };
    for clause in [Clause::Holders, Clause::Many, Clause::Exclusive] {
        let refuses = |scene: &Scene, id, _| closes_a_circle_without(scene, id, Some(clause));
        caught(&format!("{clause:?}"), true, &refuses);
    }
    caught("a blind engine", false, &|_, _, refused| refused);
    caught("every holder is refused", true, &|scene, id, _| {
        let asked = scene.waits.iter().find(|wait| wait.id == id);
        let owner = &asked.expect("it waits").owner;
        scene.holds.iter().any(|hold| hold.owner == *owner)
    });
}
