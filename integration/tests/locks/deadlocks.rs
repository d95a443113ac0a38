//! Deadlocks of many owners: a long circle, and an owner with many waits. `tests/servers/deadlocks.txt` has the rest.

use dlock_harness::redis::Value;
use dlock_harness::{assert_sound, stat, Ask, Grant, Server, Wire};

/// The owners of a long chain.
const CHAIN: usize = 1_000;

/// Takes a lock for each owner, on a connection that ends afterwards: `a:alice b:bob SHARED`.
#[track_caller]
fn hold(server: &Server, holds: &[&str]) {
    let mut wire = server.connection();
    let id = wire.client_id();
    for hold in holds {
        let (key, owner) = hold.split_once(':').expect("key:owner");
        let (owner, options) = owner.split_once(' ').unwrap_or((owner, ""));
        wire.ask::<Grant>(&format!("DLOCK.ACQUIRE {key} {owner} 600000 {options}"));
    }
    drop(wire);
    server.await_client_gone(id);
}

/// Makes owner `n` hold lock `n` and wait for the one before; then the first asks for the last. Returns that answer, and the
/// connections of the waits.
fn chain(server: &Server, owners: usize) -> (Result<Value, String>, Vec<Wire>) {
    let mut c = server.connection();
    // A lock and its holder for each owner.
    c.run(&format!(
        "CONFIG SET dlock.deadlock-max-steps {}",
        2 * owners
    ));
    let holds: Vec<String> = (0..owners)
        .map(|at| format!("chain{at}:owner{at}"))
        .collect();
    hold(
        server,
        &holds.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let before: usize = server.info("clients").number("blocked_clients");
    let mut waits = Vec::new();
    for at in 1..owners {
        let mut wire = server.connection();
        wire.send(&format!(
            "DLOCK.ACQUIRE chain{} owner{at} 600000 BLOCK 0",
            at - 1
        ));
        waits.push(wire);
    }
    server.await_blocked_clients(before + owners - 1);
    let last = owners - 1;
    (
        c.try_ask(&format!("DLOCK.ACQUIRE chain{last} owner0 600000 BLOCK 0")),
        waits,
    )
}

#[test]
fn a_circle_of_a_thousand_owners_is_named_in_part() {
    let server = Server::start();
    let (refused, _waits) = chain(&server, CHAIN);
    let error = refused.expect_err("a refusal");
    assert!(
        error.starts_with("DEADLOCK ") && error.ends_with(", and 992 more"),
        "{error}"
    );
    assert_sound(&server);
}

/// An owner may wait for thousands of locks in a session: each further wait takes no more steps than the first.
#[test]
fn who_waits_for_much_is_not_slowed_down() {
    const LOCKS: usize = 5_000;
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.SESSION k0 s 600000");
    for at in 0..LOCKS + 20 {
        c.run(&format!("DLOCK.ACQUIRE k{at} alice 600000"));
    }
    for at in 0..LOCKS {
        c.run(&format!("DLOCK.ACQUIRE k{at} bob 600000 BLOCK 0 IN s"));
    }
    // A lock and its holder: the owner's other waits do not count.
    c.run("CONFIG SET dlock.deadlock-max-steps 2");
    for at in LOCKS..LOCKS + 20 {
        c.run(&format!("DLOCK.ACQUIRE k{at} bob 600000 BLOCK 0 IN s"));
    }
    assert_eq!(stat(&server, "deadlock_checks_deferred_total"), 0);
}
