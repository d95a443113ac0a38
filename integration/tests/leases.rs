//! Leases end when they should, whatever the server does meanwhile, and what was refused changed nothing.

use std::time::{Duration, Instant};

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{await_until, Ask, Blocked, Grant, Server, PATIENCE};

/// How late a hand-over may be here. The module promises 2 ms on a server that is not busy; a test machine
/// runs other tests, and the benchmark measures it alone. What must not happen is that somebody waits for
/// Redis' own expiry cycle, which takes up to seconds.
const LATE: Duration = Duration::from_millis(150);

/// The server's clock counts whole milliseconds, so a deadline may be up to one early.
const EARLY: Duration = Duration::from_millis(1);

fn server() -> (Server, Connection) {
    let server = Server::start();
    let connection = server.connection();
    (server, connection)
}

#[track_caller]
fn assert_after(begin: Instant, at: Instant, millis: u64) {
    let waited = at - begin;
    let asked = Duration::from_millis(millis);
    assert!(
        waited + EARLY >= asked && waited < asked + LATE,
        "{waited:?} instead of {asked:?}"
    );
}

#[test]
fn an_ended_lease_hands_over() {
    let (server, mut c) = server();
    let begin = Instant::now();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 400");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_after(begin, at, 400);
    let (next, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k bob");
    assert!(next > token && left > 590_000);
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
    let begin = Instant::now();
    c.run("DLOCK.ACQUIRE k alice 300");
    let (reply, at) = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0").outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_after(begin, at, 300);
}

#[test]
fn many_leases_end_one_after_the_other() {
    let (server, mut c) = server();
    let begin = Instant::now();
    c.run("DLOCK.ACQUIRE k alice 1000");
    let wait = |number| {
        Blocked::start(
            &server,
            &format!("DLOCK.ACQUIRE k owner-{number} 20 BLOCK 0"),
        )
    };
    let waiters: Vec<_> = (0..20).map(wait).collect();
    let mut last = 0;
    for (number, waiter) in (0_u64..).zip(&waiters) {
        let (reply, at) = waiter.outcome_at();
        let Ok(Value::Array(grant)) = reply else {
            panic!("{reply:?}")
        };
        let Value::Int(token) = grant[0] else {
            panic!("{grant:?}")
        };
        assert!(token > last);
        last = token;
        assert!(
            at - begin + EARLY >= Duration::from_millis(1_000 + 20 * number),
            "too early"
        );
    }
}

#[test]
fn many_locks_end_at_once() {
    let (server, mut c) = server();
    for key in 0..200 {
        c.run(&format!("DLOCK.ACQUIRE k{key} alice 1500"));
    }
    let wait = |key| Blocked::send(&server, &format!("DLOCK.ACQUIRE k{key} bob 600000 BLOCK 0"));
    let waiters: Vec<_> = (0..200).map(wait).collect();
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
    assert_after(begin, Instant::now(), 200);
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
    c.run("DLOCK.ACQUIRE k alice 600");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let begin = Instant::now();
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice 1200"), 1_200);
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_after(begin, at, 1_200);
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
    assert_after(begin, at, 100);
}

#[test]
fn re_entry_puts_the_end_off() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let begin = Instant::now();
    c.run("DLOCK.ACQUIRE k alice 1000");
    let (reply, at) = bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    assert_after(begin, at, 1_000);
}

#[test]
fn a_partial_release_leaves_the_deadline() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 60000 HOLDS 3");
    let before: (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    c.run("DLOCK.RELEASE k alice");
    let after: (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert_eq!((after.0, after.1), (before.0, 2));
    assert!(after.2 <= before.2 && after.2 + 10_000 > before.2);
}

#[test]
fn pttl_is_the_lease_while_nobody_waits() {
    let (server, mut c) = server();
    let shows = |c: &mut Connection, lease: i64| {
        let left: i64 = c.ask("PTTL k");
        assert!(
            left <= lease && left > lease - 20_000,
            "PTTL is {left}, the lease is {lease}"
        );
    };
    c.run("DLOCK.ACQUIRE k alice 60000");
    shows(&mut c, 60_000);
    c.run("DLOCK.RENEW k alice 90000");
    shows(&mut c, 90_000);
    c.run("DLOCK.RENEW k alice 30000");
    shows(&mut c, 30_000);

    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 70000 BLOCK 0");
    assert_eq!(c.ask::<i64>("PTTL k"), -1);
    bob.kill();
    await_until("bob has left", PATIENCE, || {
        c.try_ask("DLOCK.POSITION k bob") == Ok(Value::Nil)
    });
    shows(&mut c, 30_000);

    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 70000 BLOCK 0");
    c.run("DLOCK.RELEASE k alice");
    bob.reply::<Grant>();
    shows(&mut c, 70_000);
}

#[test]
fn the_default_lease_is_configured() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice");
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left > 20_000 && left <= 30_000, "{left} ms left");
    c.run("CONFIG SET dlock.default-lease-ms 90000");
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice"), 90_000);
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
    c.run("CONFIG SET dlock.max-hold-ms 10000");
    c.run("DLOCK.ACQUIRE k alice 5000");
    let left: u64 = c.ask("DLOCK.RENEW k alice 60000");
    assert!(left <= 10_000 && left > 5_000, "{left} ms left");
    c.run("DLOCK.ACQUIRE k alice 60000");
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left <= 10_000, "{left} ms left");
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
