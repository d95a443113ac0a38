//! Waiting by BLOCK in races, or by the real clock.

use std::time::{Duration, Instant};

use dlock_harness::redis::{from_redis_value, Value};
use dlock_harness::{await_until, held, position, Ask, Blocked, Grant, Server, PATIENCE};

#[test]
fn time_is_up_after_the_milliseconds_given() {
    let (server, mut alice, _) = held();
    for block in [1, 20, 130] {
        let line = format!("DLOCK.ACQUIRE k bob BLOCK {block}");
        let sent = Instant::now();
        let (reply, at) = Blocked::send(&server, &line).outcome_at();
        assert_eq!(reply, Ok(Value::Nil));
        let waited = at - sent;
        // The server's clock counts whole milliseconds.
        let asked = Duration::from_millis(block);
        assert!(
            waited + Duration::from_millis(1) >= asked,
            "{line} waited {waited:?}"
        );
        assert_eq!(position(&mut alice, "k", "bob"), None);
    }
}

/// A server that was busy when a lease ended, and when the waits for it did, finds all of that due at once.
#[test]
fn a_late_server_ends_leases_before_waits() {
    let server = Server::start();
    let begun = Instant::now();
    server.connection().run("DLOCK.MACQUIRE 2 a b alice 1000");
    let one = Blocked::start(&server, "DLOCK.ACQUIRE a bob BLOCK 1500");
    let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 b c carl BLOCK 1500");
    let behind = Blocked::start(&server, "DLOCK.ACQUIRE c dora BLOCK 0");
    let all = begun.elapsed() + Duration::from_millis(1500);
    server.freeze();
    await_until("all of them are over", PATIENCE, || begun.elapsed() > all);
    server.thaw();
    assert!(matches!(one.outcome(), Ok(Value::Array(_))));
    assert!(matches!(many.outcome(), Ok(Value::Array(_))));
    server.connection().run("DLOCK.RELEASE c carl");
    assert!(matches!(behind.outcome(), Ok(Value::Array(_))));
}

#[test]
fn commands_behind_a_wait_follow_it() {
    let (server, mut alice, _) = held();
    let mut wire = server.connection();
    wire.send("DLOCK.ACQUIRE k bob BLOCK 0");
    wire.send("DLOCK.RELEASE k bob");
    wire.send("PING");
    await_until("bob waits", PATIENCE, || {
        position(&mut alice, "k", "bob") == Some(0)
    });
    alice.run("DLOCK.RELEASE k alice");
    assert!(matches!(wire.read(), Ok(Value::Array(_))));
    assert_eq!(wire.read(), Ok(Value::Int(0)));
    assert_eq!(wire.read(), Ok(Value::SimpleString("PONG".into())));
}

/// An earlier event of another database's lock does not make the connection wait there.
#[test]
fn a_connection_waits_in_its_own_database() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE here one 600000");
    let mut elsewhere = server.connection_in(1);
    elsewhere.run("DLOCK.ACQUIRE there one 600000");
    // All in one iteration of the event loop: the module learns of both locks' new TTLs as it runs the last line, and visits the
    // other database's lock last.
    let lines = [
        "PEXPIRE here 500000",
        "SELECT 1",
        "PEXPIRE there 500000",
        "SELECT 0",
        "DLOCK.ACQUIRE here two BLOCK 0",
    ];
    let mut wire = server.connection();
    wire.send_bytes((lines.join("\r\n") + "\r\n").as_bytes())
        .expect("the server reads");
    for _ in 1..lines.len() {
        wire.read().expect("an answer");
    }
    server.await_blocked_clients(1);
    c.run("DLOCK.RELEASE here one");
    let grant = wire.read().expect("the lock");
    assert_eq!(from_redis_value::<Grant>(&grant).expect("a grant").1, 1);
    // Freed of the key on which it was blocked: the server checks that when it unblocks the connection.
    assert_eq!(wire.ask::<String>("PING"), "PONG");
}

/// The grant carries the name, which no conversation with a server can know before.
#[test]
fn an_owner_named_by_the_server_can_wait() {
    let (server, mut alice, token) = held();
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k * 600000 BLOCK 0");
    alice.run("DLOCK.RELEASE k alice");
    let (next, holds, owner): (u64, u64, String) = bob.reply();
    assert!(next > token && holds == 1);
    assert_eq!(alice.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
}
