//! Leases end when they should, whatever the server does meanwhile, and what was refused changed nothing.

use std::time::{Duration, Instant};

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{await_until, Ask, Blocked, Grant, Server, PATIENCE};

/// The server's clock counts whole milliseconds, so a deadline may be up to one early.
const EARLY: Duration = Duration::from_millis(1);

/// A server that never looks for keys that have expired: what ends a lease here is the module.
fn server() -> (Server, Connection) {
    let server = Server::start();
    let mut connection = server.connection();
    connection.run("DEBUG SET-ACTIVE-EXPIRE 0");
    (server, connection)
}

/// It came, and not before its time. How late it may be is for the benchmark to say, on a machine with nothing else to do.
#[track_caller]
fn assert_not_before(begin: Instant, at: Instant, millis: u64) {
    let waited = at - begin;
    let asked = Duration::from_millis(millis);
    assert!(waited + EARLY >= asked, "{waited:?} instead of {asked:?}");
}

/// Runs commands as one transaction; their replies.
#[track_caller]
fn at_once(server: &Server, lines: [&str; 2]) -> Value {
    let [_, _, _, replies] = server.wire().batch(["MULTI", lines[0], lines[1], "EXEC"]);
    replies.expect("a transaction that runs")
}

#[test]
fn an_ended_lease_hands_over() {
    let (server, mut c) = server();
    let begin = Instant::now();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 400");
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_not_before(begin, at, 400);
    let (next, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k bob");
    // A token is the time of its grant in microseconds: bob's lease began when alice's was over.
    assert!(
        next >= token + 399_000 && left > 400_000,
        "{token} {next} {left}"
    );
    assert!(c.refusal("DLOCK.RELEASE k alice").starts_with("NOTHELD "));
    assert!(c.refusal("DLOCK.RENEW k alice").starts_with("NOTHELD "));
    assert!(c
        .refusal(&format!("DLOCK.CHECK k {token}"))
        .starts_with("FENCED "));
}

/// The server's own clock tick is slow here, and there is nothing else to do.
#[test]
fn an_ended_lease_hands_over_on_an_idle_server() {
    let server = Server::builder()
        .config("hz", 1)
        .config("dynamic-hz", "no")
        .start();
    let mut c = server.connection();
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    let begin = Instant::now();
    c.run("DLOCK.ACQUIRE k alice 300");
    let (reply, at) = Blocked::send(&server, "DLOCK.ACQUIRE k bob BLOCK 0").outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_not_before(begin, at, 300);
}

#[test]
fn many_leases_end_one_after_the_other() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let wait = |number| {
        Blocked::start(
            &server,
            &format!("DLOCK.ACQUIRE k owner-{number} 20 BLOCK 0"),
        )
    };
    let waiters: Vec<_> = (0..20).map(wait).collect();
    // All wait before the first lease ends.
    c.run("DLOCK.RENEW k alice 20");
    let tokens: Vec<u64> = waiters.iter().map(|one| one.reply::<Grant>().0).collect();
    // A token is the time of its grant, in microseconds.
    for pair in tokens.windows(2) {
        assert!(pair[1] >= pair[0] + 19_000, "too early: {tokens:?}");
    }
}

#[test]
fn many_locks_end_at_once() {
    let (server, mut c) = server();
    let keys: Vec<String> = (0..200).map(|key| format!("k{key}")).collect();
    let keys = keys.join(" ");
    c.run(&format!("DLOCK.MACQUIRE 200 {keys} alice 600000"));
    let wait = |key| Blocked::send(&server, &format!("DLOCK.ACQUIRE k{key} bob 600000 BLOCK 0"));
    let waiters: Vec<_> = (0..200).map(wait).collect();
    server.await_blocked_clients(200);
    c.run(&format!("DLOCK.MRENEW 200 {keys} alice 50"));
    for waiter in &waiters {
        waiter.reply::<Grant>();
    }
}

#[test]
fn a_lease_ends_with_nobody_there() {
    let (_server, mut c) = server();
    let begin = Instant::now();
    c.run("DLOCK.ACQUIRE k alice 200");
    await_until("the hold has ended", PATIENCE, || {
        c.try_ask("DLOCK.HELD k alice") == Ok(Value::Nil)
    });
    assert_not_before(begin, Instant::now(), 200);
    assert!(c.refusal("DLOCK.RELEASE k alice").starts_with("NOTHELD "));
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE k bob").1, 1);
}

#[test]
fn an_ended_lease_ends_all_counts() {
    let (_server, mut c) = server();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 50 HOLDS 9");
    await_until("the hold has ended", PATIENCE, || {
        c.try_ask("DLOCK.HELD k alice") == Ok(Value::Nil)
    });
    let (next, holds): Grant = c.ask("DLOCK.ACQUIRE k alice");
    assert!(next > token && holds == 1);
}

#[test]
fn renewing_puts_the_end_off() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let begin = Instant::now();
    // In one step: nothing ends in between.
    let replies = at_once(
        &server,
        ["DLOCK.RENEW k alice 200", "DLOCK.RENEW k alice 1200"],
    );
    assert_eq!(
        replies,
        Value::Array(vec![Value::Int(200), Value::Int(1_200)])
    );
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_not_before(begin, at, 1_200);
}

#[test]
fn renewing_can_bring_the_end_forward() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let begin = Instant::now();
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice 100"), 100);
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_not_before(begin, at, 100);
}

#[test]
fn re_entry_puts_the_end_off() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let begin = Instant::now();
    at_once(
        &server,
        ["DLOCK.RENEW k alice 200", "DLOCK.ACQUIRE k alice 1000"],
    );
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_not_before(begin, at, 1_000);
}

#[test]
fn a_partial_release_leaves_the_deadline() {
    let (_server, mut c) = server();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000 HOLDS 3");
    let ends: u64 = c.ask("PEXPIRETIME k");
    c.run("DLOCK.RELEASE k alice");
    let (same, holds, _): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert_eq!((same, holds), (token, 2));
    assert_eq!(c.ask::<u64>("PEXPIRETIME k"), ends);
}

#[test]
fn pttl_is_the_lease_while_nobody_waits() {
    let (server, mut c) = server();
    let shows = |c: &mut Connection, lease: i64| {
        let left: i64 = c.ask("PTTL k");
        assert!(
            left <= lease && left > lease - 300_000,
            "PTTL is {left}, the lease is {lease}"
        );
    };
    c.run("DLOCK.ACQUIRE k alice 600000");
    shows(&mut c, 600_000);
    c.run("DLOCK.RENEW k alice 1200000");
    shows(&mut c, 1_200_000);
    c.run("DLOCK.RENEW k alice 600000");
    shows(&mut c, 600_000);

    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 1800000 BLOCK 0");
    assert_eq!(c.ask::<i64>("PTTL k"), -1);
    bob.kill();
    await_until("bob has left", PATIENCE, || {
        c.try_ask("DLOCK.POSITION k bob") == Ok(Value::Nil)
    });
    shows(&mut c, 600_000);

    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 1800000 BLOCK 0");
    c.run("DLOCK.RELEASE k alice");
    bob.reply::<Grant>();
    shows(&mut c, 1_800_000);
}

#[test]
fn the_default_lease_is_configured() {
    let (_server, mut c) = server();
    // RENEW replies what it has set.
    c.run("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice"), 30_000);
    c.run("CONFIG SET dlock.default-lease-ms 600000");
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice"), 600_000);
    c.run("DLOCK.ACQUIRE other alice");
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD other alice");
    assert!(left > 300_000 && left <= 600_000, "{left} ms left");
}

#[test]
fn the_longest_lease_is_configured() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 2592000000");
    c.run("CONFIG SET dlock.max-lease-ms 60000");
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice 60000"), 60_000);
    for line in [
        "DLOCK.RENEW k alice 60001",
        "DLOCK.ACQUIRE k alice 60001",
        "DLOCK.FAIRACQUIRE k2 alice 60001",
    ] {
        let error = c.refusal(line);
        assert!(
            error.starts_with("ERR ") && error.contains("lease-ms"),
            "{line}: {error}"
        );
    }
}

#[test]
fn one_hold_has_a_greatest_age() {
    let (_server, mut c) = server();
    c.run("CONFIG SET dlock.max-hold-ms 600000");
    c.run("DLOCK.ACQUIRE k alice 300000");
    let left: u64 = c.ask("DLOCK.RENEW k alice 6000000");
    assert!(left <= 600_000 && left > 300_000, "{left} ms left");
    c.run("DLOCK.ACQUIRE k alice 6000000");
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left <= 600_000, "{left} ms left");
}

#[test]
fn keys_of_other_types_are_left_alone() {
    let (_server, mut c) = server();
    c.run("SET k v");
    for line in [
        "DLOCK.ACQUIRE k alice",
        "DLOCK.ACQUIRE k alice BLOCK 0",
        "DLOCK.ACQUIRE k *",
        "DLOCK.FAIRACQUIRE k alice",
        "DLOCK.FAIRACQUIRE k alice BLOCK 0 CLAIM 1000",
        "DLOCK.RENEW k alice",
        "DLOCK.RELEASE k alice",
        "DLOCK.RELEASE k alice HOLDS 0",
        "DLOCK.FORCERELEASE k",
        "DLOCK.CANCEL k alice",
        "DLOCK.POSITION k alice",
        "DLOCK.HELD k alice",
        "DLOCK.CHECK k 1",
        "DLOCK.INFO k",
    ] {
        assert!(c.refusal(line).starts_with("WRONGTYPE "), "{line}");
    }
    assert_eq!(c.ask::<String>("GET k"), "v");
}

/// What takes something is refused when memory is short; what gives back or keeps is not.
#[test]
fn a_full_server_gives_back_and_keeps() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000 HOLDS 2");
    c.run("DLOCK.FAIRACQUIRE k carol CLAIM 600000");
    c.run("DLOCK.ACQUIRE k2 alice 600000");
    c.run("CONFIG SET maxmemory 1");
    for line in [
        "DLOCK.ACQUIRE k alice",
        "DLOCK.ACQUIRE new bob",
        "DLOCK.ACQUIRE k bob BLOCK 0",
        "DLOCK.FAIRACQUIRE k bob",
        "DLOCK.MACQUIRE 2 new k2 alice",
    ] {
        assert!(c.refusal(line).starts_with("OOM "), "{line}");
    }
    assert_eq!(c.ask::<u64>("EXISTS new"), 0);
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice 300000"), 300_000);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 1);
    assert_eq!(c.ask::<Option<u64>>("DLOCK.POSITION k carol"), Some(0));
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k carol"), 1);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k2"), 1);
    c.run("CONFIG SET maxmemory 0");
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE k bob").1, 1);
}

/// A release hands over even when memory is short: the next has waited since it was not.
#[test]
fn a_full_server_hands_over() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run("CONFIG SET maxmemory 1");
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    bob.reply::<Grant>();
}
