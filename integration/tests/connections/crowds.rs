//! A thousand connections that ask and die in every possible state, while others work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dlock_harness::redis::Value;
use dlock_harness::{assert_sound, await_until, Ask, Grant, Guarded, Server, Wire, PATIENCE};
use fastrand::Rng;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// Raises the limit of open files as far as the system allows: a thousand connections are many for the usual limit.
fn allow_many_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // If it cannot be raised, connecting will fail.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most);
}

/// A thousand connections ask for a few locks and die at random, in every possible state, while workers take these locks to
/// change the data that they protect. No request waits forever, and never do two owners hold one lock.
#[test]
fn a_thousand_die_while_others_work() {
    const LOCKS: usize = 4;
    const CROWD: usize = 4;
    const EACH: usize = 250;
    const WORKERS: usize = 6;
    const TURNS: usize = 10;
    allow_many_files();
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    // Many connections share the owners of the crowd, and wait for each other; a worker behind them would be refused.
    c.run("CONFIG SET dlock.deadlock-detection no");
    let (work_is_over, full) = (AtomicBool::new(false), AtomicU64::new(0));
    // Before the crowd, so that their ids are low: the operator below spares those.
    let connections: Vec<Wire> = (0..WORKERS).map(|_| server.connection()).collect();
    thread::scope(|scope| {
        for member in 0..CROWD {
            let (server, work_is_over, full) = (&server, &work_is_over, &full);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(member as u64);
                let mut open: Vec<Wire> =
                    (0..EACH).map(|_| ask_and_stay(server, &mut rng)).collect();
                full.fetch_add(1, Ordering::Relaxed);
                while !work_is_over.load(Ordering::Relaxed) {
                    let at = rng.usize(..EACH);
                    open[at] = ask_and_stay(server, &mut rng);
                }
            });
        }
        // An operator who ends connections and waits by their ids.
        let (admin, over) = (&server, &work_is_over);
        scope.spawn(move || {
            let mut rng = Rng::with_seed(99);
            let mut c = admin.connection();
            while !over.load(Ordering::Relaxed) {
                let newest: u64 = admin.connection().client_id();
                let id = newest.saturating_sub(rng.u64(..2_000));
                let line = match rng.u8(..4) {
                    0 => format!("CLIENT KILL ID {id} SKIPME yes"),
                    1 => format!("CLIENT UNBLOCK {id} ERROR"),
                    _ => format!("CLIENT UNBLOCK {id}"),
                };
                // The workers and the guarded lock's waiter connected first: their ids are low.
                if id > 200 {
                    let _ = c.try_ask(&line);
                }
            }
        });
        let workers: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(worker, mut c)| {
                let full = &full;
                scope.spawn(move || {
                    await_until("the crowd is there", PATIENCE, || {
                        full.load(Ordering::Relaxed) == CROWD as u64
                    });
                    for turn in 0..TURNS {
                        work(&mut c, worker, turn % LOCKS);
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // Also after a worker has failed: otherwise the crowd would continue forever.
        work_is_over.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.expect("a worker that was not cheated");
        }
    });
    let counted: u64 = (0..LOCKS)
        .map(|lock| {
            c.ask::<Option<u64>>(&format!("GET count:{lock}"))
                .unwrap_or(0)
        })
        .sum();
    assert_eq!(counted, (WORKERS * TURNS) as u64);
    await_until("only the guarded lock is left", PATIENCE, || {
        let info = server.info("dlock");
        info.number::<u64>("dlock_connections_waiting") == 1
            && info.number::<u64>("dlock_places_queued") == 2
            && info.number::<u64>("dlock_locks") == 1
    });
    server.await_blocked_clients(1);
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// Asks for one of the locks in one of the ways, and does not wait for the answer. A granted one is held for a moment.
fn ask_and_stay(server: &Server, rng: &mut Rng) -> Wire {
    let mut wire = server.connection();
    let key = rng.u8(..4);
    let owner = format!("o{}", rng.u16(..600));
    let lease = rng.u8(1..4);
    let line = match rng.u8(..10) {
        0..=3 => format!("DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK 0"),
        4 => format!(
            "DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK {}",
            rng.u8(1..50)
        ),
        5..=6 => format!("DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} BLOCK 0"),
        7 => format!(
            "DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} BLOCK {} CLAIM {}",
            rng.u8(1..50),
            rng.u8(1..4)
        ),
        8 => format!("DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK 0 SHARED"),
        _ => format!(
            "DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} CLAIM {}",
            rng.u8(1..4)
        ),
    };
    wire.send(&line);
    match rng.u8(..8) {
        // A command behind it on its connection.
        0 => wire.send(&format!("DLOCK.RELEASE lock:{key} {owner}")),
        1 => wire.send(&format!("DLOCK.CANCEL lock:{key} {owner}")),
        2 => wire.close_sending(),
        _ => {}
    }
    wire
}

/// Takes the lock, changes the data that it protects in separate steps, and checks at each that no other owner interferes.
fn work(c: &mut Wire, worker: usize, lock: usize) {
    let (key, owner) = (format!("lock:{lock}"), format!("worker{worker}"));
    let (token, holds): Grant = c.ask(&format!(
        "DLOCK.ACQUIRE {key} {owner} 600000 BLOCK 0 HOLDS 1"
    ));
    assert_eq!(holds, 1);
    let last: Option<u64> = c.ask(&format!("GET token:{lock}"));
    assert!(last < Some(token), "{key}: {token} after {last:?}");
    c.run(&format!("SET token:{lock} {token}"));
    c.run(&format!("SET owner:{lock} {owner}"));
    let count: Option<u64> = c.ask(&format!("GET count:{lock}"));
    c.run(&format!("DLOCK.CHECK {key} {token}"));
    let info: HashMap<String, Value> = c.ask(&format!("DLOCK.INFO {key} COUNT 1"));
    assert_eq!(info["held"], Value::Int(1), "{key}");
    assert_eq!(info["state"], Value::BulkString(b"held".to_vec()), "{key}");
    c.run(&format!("SET count:{lock} {}", count.unwrap_or(0) + 1));
    assert_eq!(c.ask::<String>(&format!("GET owner:{lock}")), owner);
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE {key} {owner} TOKEN {token}")),
        0
    );
}
