//! A waiting connection as the server sees it: the callers that may wait, and the key on which they are blocked.

use dlock_harness::redis::{cmd, Value};
use dlock_harness::{
    await_until, command, held, is_held, position, stat, wait_as, Ask, Blocked, Grant, Server,
    Session, Wire, PATIENCE,
};

/// Returns a RESP3 connection with a subscription.
fn subscriber(server: &Server) -> Wire {
    let mut wire = server.connection_resp3();
    wire.ask::<Value>("SUBSCRIBE news");
    wire
}

/// Requests on such a connection. Valkey has blocked none since 8.1.
const REQUESTS: [&str; 6] = [
    "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
    "DLOCK.ACQUIRE k bob 600000 BLOCK 20 EPHEMERAL",
    "DLOCK.FAIRACQUIRE k bob 600000 BLOCK 0 CLAIM 60000",
    "DLOCK.MACQUIRE 2 k free bob 600000 BLOCK 0",
    // These locks are free.
    "DLOCK.ACQUIRE free bob 600000 BLOCK 0",
    "DLOCK.FAIRACQUIRE free * 600000 BLOCK 0",
];

#[test]
fn a_subscriber_that_may_not_wait_is_told_so() {
    let (server, mut c, _) = held();
    if !server.version().is_valkey(8, 1) {
        return;
    }
    let older = wait_as(&server, "bob");
    let mut wire = subscriber(&server);
    for request in REQUESTS {
        wire.send(request);
        let error = wire.read().expect_err("an error, not a null");
        assert_eq!(
            error,
            "ERR BLOCK is not possible here: this server does not block a connection that has subscriptions; \
             use another connection, RESP2, or a session (IN)",
            "{request}"
        );
        // Nothing has changed.
        assert!(older.is_blocked(&server), "{request}");
        assert_eq!(position(&mut c, "k", "bob"), Some(0));
        assert_eq!(c.ask::<u64>("EXISTS free"), 0);
    }
    c.run("DLOCK.RELEASE k alice");
    older.reply::<Grant>();
    // Without subscriptions it may wait like any other.
    wire.ask::<Value>("UNSUBSCRIBE news");
    let line = "DLOCK.ACQUIRE k carol 600000 BLOCK 0";
    let mut carol = Blocked::send_on(wire, &command(line), line);
    carol.await_blocked(&server);
    c.run("DLOCK.RELEASE k bob");
    carol.reply::<Grant>();
}

#[test]
fn a_subscriber_waits_where_it_may() {
    let (server, mut c, token) = held();
    if server.version().is_valkey(8, 1) {
        return;
    }
    let line = "DLOCK.ACQUIRE k bob 600000 BLOCK 0";
    let mut bob = Blocked::send_on(subscriber(&server), &command(line), line);
    bob.await_blocked(&server);
    c.run("DLOCK.RELEASE k alice");
    assert!(bob.reply::<Grant>().0 > token);
}

/// MULTI and scripts behave as if BLOCK were not there, and a wait in a session blocks no connection.
#[test]
fn a_subscriber_may_ask_without_blocking() {
    let (server, mut c, _) = held();
    let mut wire = subscriber(&server);
    let line = "DLOCK.ACQUIRE k bob 600000 BLOCK 0";
    wire.ask::<Value>("MULTI");
    wire.ask::<Value>(line);
    assert_eq!(wire.ask::<Vec<Value>>("EXEC"), [Value::Nil]);
    let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 'bob', 600000, 'BLOCK', 0)";
    wire.send_command(cmd("EVAL").arg(script).arg(1).arg("k"));
    assert_eq!(wire.read(), Ok(Value::Nil));
    let mut session = Session::begin(&server, "k", "s");
    let queued = wire.ask::<Vec<u64>>("DLOCK.ACQUIRE k bob 600000 BLOCK 600000 IN s");
    assert_eq!(queued[..2], [0, 0]);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(session.told(), "granted k bob");
    assert!(is_held(&mut c, "k", "bob"));
}

/// Names with and without a hash tag.
const NAMES: [&[u8]; 12] = [
    b"plain",
    b"{tag}rest",
    b"a}b",
    b"}",
    b"{",
    b"{}",
    b"{}rest",
    b"}{",
    b"{{x}}",
    b"{a}{b}",
    b"\0\r\n}\xff",
    b"a long name, of which a cluster hashes every byte, and which ends with a brace }",
];

/// A node of a cluster redirects the waiters of a slot that it no longer serves, whatever the lock's name, and no others.
#[test]
fn a_slot_takes_its_waiters_along() {
    let server = Server::builder()
        .cluster()
        .config("cluster-require-full-coverage", "no")
        .start();
    server.serve_all_slots();
    let mut c = server.connection();
    let mut slots: Vec<(u64, &[u8], Blocked)> = Vec::new();
    for name in NAMES {
        let slot: u64 = c.ask_command(cmd("CLUSTER").arg("KEYSLOT").arg(name));
        // Two names may share a slot.
        if slots.iter().all(|(other, ..)| *other != slot) {
            let ask = |owner: &str| {
                let mut line = cmd("DLOCK.ACQUIRE");
                line.arg(name).arg(owner).arg(600_000).arg("BLOCK").arg(0);
                line
            };
            c.ask_command::<Grant>(&ask("alice"));
            let line = ask("bob");
            let mut bob =
                Blocked::send_on(server.connection(), &line, &name.escape_ascii().to_string());
            bob.await_blocked(&server);
            slots.push((slot, name, bob));
        }
    }
    while let Some((slot, name, bob)) = slots.pop() {
        c.run(&format!("CLUSTER DELSLOTS {slot}"));
        let error = bob.refusal();
        assert!(error.starts_with("CLUSTERDOWN"), "{error}");
        await_until("its place is gone", PATIENCE, || {
            server
                .info("dlock")
                .number::<usize>("dlock_connections_waiting")
                == slots.len()
        });
        assert!(
            slots.iter().all(|(.., bob)| bob.is_blocked(&server)),
            "{}",
            name.escape_ascii()
        );
    }
}

/// No connection is blocked on the lock's own key: the server would call all of them back when the key appears.
#[test]
fn no_lock_s_key_is_blocked_on() {
    let (server, mut c, _) = held();
    c.run("DLOCK.ACQUIRE other alice 600000");
    let bob = wait_as(&server, "bob");
    let carol = Blocked::start(&server, "DLOCK.MACQUIRE 2 k other carol 600000 BLOCK 0");
    // Counted since Redis 7.2. A standalone server blocks on one key for all locks.
    if server.version().has_redis_api(7, 2) {
        let keys: u64 = server.info("clients").number("total_blocking_keys");
        assert_eq!(keys, 1);
    }
    c.run("DLOCK.FORCERELEASE k");
    bob.reply::<Grant>();
    c.run("DLOCK.RELEASE k bob");
    c.run("DLOCK.FORCERELEASE other");
    assert_eq!(carol.reply::<Vec<u64>>().len(), 2);
}

/// A key appears outside of a command, while connections wait for it, and then these are killed. Redis 7.0 used to call them
/// back, keep the last of them as the current connection, and read it after it was freed: `make memcheck` would notice that here.
#[test]
fn a_key_appears_under_those_who_wait_for_it() {
    let server = Server::start();
    let mut c = server.connection();
    let mut holds = server.connection();
    holds.ask::<Grant>("DLOCK.ACQUIRE other alice 600000 EPHEMERAL");
    let bob = Blocked::start(&server, "DLOCK.MACQUIRE 2 other k bob 600000 BLOCK 0");
    let waits = ["carol", "dave"].map(|owner| wait_as(&server, owner));
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    holds.close();
    assert_eq!(bob.reply::<Vec<u64>>().len(), 2);
    for wait in &waits {
        c.run(&format!("CLIENT KILL ID {}", wait.client_id()));
    }
    // A timed-out wait is the module's own event, and the module then asks the server for its permissions.
    let erin = Blocked::send(&server, "DLOCK.ACQUIRE k erin BLOCK 20");
    assert_eq!(erin.outcome(), Ok(Value::Nil));
    await_until("nobody waits", PATIENCE, || {
        stat(&server, "connections_waiting") == 0
    });
}
