//! Leases end in time by a real clock. `tests/scenarios/leases.txt` has them to the millisecond.

use std::time::{Duration, Instant};

use dlock_harness::redis::{self, Value};
use dlock_harness::{command, Ask, Blocked, Grant, Server, Wire};

/// The server's clock counts whole milliseconds, so a deadline may be up to one early.
const EARLY: Duration = Duration::from_millis(1);

/// Returns a server that never searches for expired keys: the module ends the leases here.
fn server() -> (Server, Wire) {
    let server = Server::start();
    let mut connection = server.connection();
    connection.run("DEBUG SET-ACTIVE-EXPIRE 0");
    (server, connection)
}

/// Asserts that the answer came not before its time. The benchmark measures how late it is, on a quiet machine.
#[track_caller]
fn assert_not_before(begin: Instant, at: Instant, millis: u64) {
    let waited = at - begin;
    let asked = Duration::from_millis(millis);
    assert!(waited + EARLY >= asked, "{waited:?} instead of {asked:?}");
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

/// A client that finds that alice's lease has ended finds that bob holds the lock, before the module's timer fires.
#[test]
fn a_lock_that_somebody_waits_for_is_never_seen_free() {
    let (_server, mut c) = server();
    c.run("DLOCK.SESSION k0 s 600000");
    for round in 0..50 {
        c.run(&format!("DLOCK.ACQUIRE k{round} alice 30"));
        c.run(&format!("DLOCK.ACQUIRE k{round} bob 600000 BLOCK 0 IN s"));
        loop {
            let mut both = redis::pipe();
            for owner in ["alice", "bob"] {
                both.add_command(command(&format!("DLOCK.HELD k{round} {owner}")));
            }
            let (alice, bob): (Value, Value) = both.query(&mut c).expect("two replies");
            if alice == Value::Nil {
                assert_ne!(bob, Value::Nil, "the lock is free in round {round}");
                break;
            }
        }
    }
}

/// The server's own clock tick is slow here, and no other event wakes it.
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
