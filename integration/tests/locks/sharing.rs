//! Locks with several holders: readers and writers, semaphores, upgrade and downgrade.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlock_harness::redis::{from_redis_value, FromRedisValue, Value};
use dlock_harness::{await_until, command, Ask, Blocked, Grant, Server, Wire, PATIENCE};

/// Long enough to play no part.
const LONG: u64 = 600_000;

fn acquire(connection: &mut Wire, owner: &str, sharing: &str) -> Grant {
    connection.ask(&format!("DLOCK.ACQUIRE k {owner} {LONG} {sharing}"))
}

fn release(connection: &mut Wire, owner: &str) -> u64 {
    connection.ask(&format!("DLOCK.RELEASE k {owner}"))
}

/// Returns a field of `DLOCK.INFO`.
fn info<T: FromRedisValue>(connection: &mut Wire, field: &str) -> T {
    let fields: HashMap<String, Value> = connection.ask("DLOCK.INFO k COUNT 5000");
    from_redis_value(&fields[field]).expect("a field of that type")
}

fn as_int(reply: &Result<Value, String>) -> i64 {
    match reply {
        Ok(Value::Int(number)) => *number,
        other => panic!("expected a number, got {other:?}"),
    }
}

/// More readers than one step grants, since a step must not stall the server. The rest come before any newcomer.
#[test]
fn a_mass_of_readers_is_let_in_by_one_release_in_order() {
    const READERS: usize = 600;
    let server = Server::start();
    let mut c = server.connection();
    let (mut before, _) = acquire(&mut c, "writer", "");
    let mut observer = server.connection();
    let mut waiting = Vec::new();
    for number in 0..READERS {
        let line = format!("DLOCK.ACQUIRE k reader-{number} {LONG} SHARED BLOCK 0");
        waiting.push(Blocked::send(&server, &line));
        // Before the next one comes.
        let position = format!("DLOCK.POSITION k reader-{number}");
        await_until("it has its place", PATIENCE, || {
            observer.ask::<Option<usize>>(&position) == Some(number)
        });
    }
    let [released, newcomer] = server.connection().batch([
        "DLOCK.RELEASE k writer",
        &format!("DLOCK.ACQUIRE k newcomer {LONG} SHARED BLOCK 0"),
    ]);
    assert_eq!(as_int(&released), 0);
    for reader in &waiting {
        let (token, holds): Grant = reader.reply();
        assert!(token > before && holds == 1, "{token} after {before}");
        before = token;
    }
    let (newcomer, _): Grant = from_redis_value(&newcomer.expect("a grant")).expect("a grant");
    assert!(newcomer > before);
    assert_eq!(info::<usize>(&mut c, "held"), READERS + 1);
}

/// Many threads check for themselves how many are inside: never more than a limit and, where there are readers, none together
/// with a writer.
#[test]
fn never_more_than_the_limit_are_inside() {
    const ROUNDS: usize = 30;
    const ROOM: usize = 1_000;
    // The requests of each owner in turn, and the share of the room that each takes.
    let modes: [&[(&str, usize)]; 3] = [
        &[("", ROOM)],
        &[("LIMIT 3", ROOM / 3)],
        &[("", ROOM), ("SHARED", 1), ("SHARED", 1)],
    ];
    for modes in modes {
        let server = Server::start();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for customer in 0..10 {
                let (server, inside, most) = (&server, &inside, &most);
                scope.spawn(move || {
                    let mut c = server.connection();
                    let (sharing, weight) = modes[customer % modes.len()];
                    for _ in 0..ROUNDS {
                        c.run(&format!(
                            "DLOCK.ACQUIRE k owner-{customer} {LONG} BLOCK 0 {sharing}"
                        ));
                        let now = inside.fetch_add(weight, Ordering::SeqCst) + weight;
                        most.fetch_max(now, Ordering::SeqCst);
                        assert!(now <= ROOM, "{now} inside, with {sharing:?}");
                        c.run("PING");
                        inside.fetch_sub(weight, Ordering::SeqCst);
                        assert_eq!(release(&mut c, &format!("owner-{customer}")), 0);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!(most > ROOM / 2, "only {most} inside, with {modes:?}");
        assert_eq!(server.connection().ask::<u64>("EXISTS k"), 0);
    }
}

/// Returns the server time for taking and giving back one more shared hold, many times, together with `holders` others.
fn cost(server: &Server, key: &str) -> Duration {
    const PAIRS: usize = 2_000;
    let mut wire = server.connection();
    let pair = [
        command(&format!("DLOCK.ACQUIRE {key} one-more {LONG} SHARED")).get_packed_command(),
        command(&format!("DLOCK.RELEASE {key} one-more")).get_packed_command(),
    ]
    .concat();
    let bytes = pair.repeat(PAIRS);
    let spent = |server: &Server| {
        let cpu = server.info("cpu");
        let seconds: f64 = cpu.number::<f64>("used_cpu_user") + cpu.number::<f64>("used_cpu_sys");
        Duration::from_secs_f64(seconds)
    };
    let before = spent(server);
    wire.send_bytes(&bytes).expect("the server reads");
    for _ in 0..PAIRS {
        assert!(matches!(wire.read(), Ok(Value::Array(_))));
        assert_eq!(wire.read(), Ok(Value::Int(0)));
    }
    spent(server).saturating_sub(before)
}

#[test]
fn many_holders_do_not_make_it_slow() {
    let server = Server::start();
    for (key, holders) in [("few", 10), ("many", 10_000)] {
        let mut wire = server.connection();
        let bytes: Vec<u8> = (0..holders)
            .flat_map(|number| {
                command(&format!("DLOCK.ACQUIRE {key} owner-{number} {LONG} SHARED"))
                    .get_packed_command()
            })
            .collect();
        wire.send_bytes(&bytes).expect("the server reads");
        for _ in 0..holders {
            assert!(matches!(wire.read(), Ok(Value::Array(_))));
        }
    }
    // The best of several, in turns: other load of the machine is not the module's.
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        few = few.min(cost(&server, "few"));
        many = many.min(cost(&server, "many"));
    }
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!("one of 10: {few:?}, one of 10,000: {many:?}, ratio {ratio:.2}");
    // Visiting each holder would make it hundreds; the benchmark measures how much less it is.
    assert!(ratio < 30.0, "{ratio:.2}: {few:?}, {many:?}");
}
