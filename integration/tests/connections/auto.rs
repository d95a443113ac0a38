//! RENEW … AUTO with replicas, the AOF, and by masses. `tests/scenarios/auto.txt` and `tests/servers/auto.txt` have the rest.

use std::collections::HashMap;
use std::iter;

use dlock_harness::redis::from_redis_value;
use dlock_harness::{
    assert_sound, await_until, is_held, kept, stat, Ask, Grant, Server, Wire, PATIENCE,
};

/// A lease that the server renews. It does so after a third of it at the latest, so a busy machine may be late by twice that.
const LEASE_MS: u64 = 8_000;

/// The number of holds whose renewals are counted.
const MASS: usize = 20_000;

/// The number of keys in one command.
const AT_ONCE: usize = 1_000;

/// Returns a server where alice holds `k` and has a connection of her own that does nothing else.
fn alice() -> (Server, Wire, Wire, u64) {
    let server = Server::start();
    let c = server.connection();
    let mut alice = server.connection();
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000");
    (server, c, alice, token)
}

/// Makes the server renew alice's hold of `k` from now on. Returns when its lease ends, in unix milliseconds.
#[track_caller]
fn renew(c: &mut Wire, alice: &mut Wire, options: &str) -> u64 {
    let left: u64 = alice.ask(&format!("DLOCK.RENEW k alice {options}"));
    assert!(left > 0);
    end_of(c, "k")
}

/// Returns when a lock's key expires; 0 without a key, or without an expiry.
#[track_caller]
fn end_of(c: &mut Wire, key: &str) -> u64 {
    let end: i64 = c.ask(&format!("PEXPIRETIME {key}"));
    u64::try_from(end).unwrap_or(0)
}

/// Waits until the first lease is over, and asserts that the hold continues with a later end.
#[track_caller]
fn await_another_lease(c: &mut Wire, key: &str, first_end: u64) {
    await_until("the first lease is over, and it is held", PATIENCE, || {
        let end = end_of(c, key);
        assert!(end > 0, "the hold of {key} has ended");
        end > first_end + LEASE_MS
    });
}

#[track_caller]
fn await_no_renewals(server: &Server) {
    await_until("nothing is renewed any more", PATIENCE, || {
        stat(server, "auto_renewed") == 0
    });
}

/// Replicas and the AOF receive the ends of the leases, as of every renewal; the tie belongs to this run and this role.
#[test]
fn renewals_are_replicated_and_saved() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let replica = Server::start();
    replica.replica_of(&server);
    let (mut c, mut r) = (server.connection(), replica.connection());
    let mut alice = server.connection();
    alice.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 0");
    await_another_lease(&mut c, "k", first_end);
    await_until("the replica has the same", PATIENCE, || {
        replica.wait_in_sync(&server);
        kept(&mut c, "k") == kept(&mut r, "k")
    });
    assert!(end_of(&mut r, "k") > first_end + LEASE_MS);
    assert_eq!(stat(&replica, "auto_renewed"), 0);
    // Long, so that it outlives the restart; the server itself renews it once more.
    let end = renew(&mut c, &mut alice, "12000 AUTO 0");
    await_until("the hold was renewed", PATIENCE, || {
        end_of(&mut c, "k") > end
    });
    server.kill9();
    server.restart();
    let mut c = server.connection();
    let after = end_of(&mut c, "k");
    assert!(
        after > end || after == 0 && !is_held(&mut c, "k", "alice"),
        "{end} {after}"
    );
    assert_eq!(stat(&server, "auto_renewed"), 0);
    assert_sound(&server);
    assert_sound(&replica);
}

/// A demoted server renews nothing, and does not begin again when it is promoted.
#[test]
fn a_demotion_ends_it() {
    let (server, mut c, mut alice, _) = alice();
    let other = Server::start();
    other.replica_of(&server);
    alice.ask::<u64>("DLOCK.RENEW k alice 600000 EPHEMERAL AUTO 0");
    other.wait_in_sync(&server);
    other.promote();
    c.run(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    await_no_renewals(&server);
    assert_eq!(stat(&server, "ephemeral"), 0);
    // The client ties the hold again at the new primary.
    let mut again = other.connection();
    assert_eq!(stat(&other, "auto_renewed"), 0);
    again.ask::<u64>("DLOCK.RENEW k alice 600000 EPHEMERAL AUTO 0");
    assert_eq!(stat(&other, "auto_renewed"), 1);
    c.run("REPLICAOF NO ONE");
    alice.close();
    again.close();
    await_until("the hold has ended at the new primary", PATIENCE, || {
        !is_held(&mut other.connection(), "k", "alice")
    });
    assert_eq!(stat(&server, "auto_renewed"), 0);
    assert_sound(&server);
    assert_sound(&other);
}

/// Returns the number of keys for each expiry: the holds that were renewed in one millisecond.
fn renewed_together(wire: &mut Wire) -> HashMap<i64, usize> {
    let lines = (0..MASS).map(|at| format!("PEXPIRETIME mass:{at}"));
    let mut together = HashMap::new();
    for end in wire.pipeline(lines) {
        let end: i64 = from_redis_value(&end).expect("a number");
        assert!(end > 0, "a hold was lost: {end}");
        *together.entry(end).or_insert(0) += 1;
    }
    together
}

/// Twenty thousand holds that were tied at one instant are renewed about once a second: none is lost, and there is no burst.
#[test]
fn a_mass_is_renewed_without_a_burst() {
    let server = Server::start();
    let (mut holds, mut looks) = (server.connection(), server.connection());
    holds.pipeline((0..MASS).map(|at| format!("DLOCK.ACQUIRE mass:{at} alice 600000")));
    // At one instant of the module's clock.
    let renewals = (0..MASS).step_by(AT_ONCE).map(|first| {
        let keys = (first..first + AT_ONCE).map(|at| format!("mass:{at} "));
        let keys: String = keys.collect();
        format!("DLOCK.MRENEW {AT_ONCE} {keys} alice 12000 AUTO 0")
    });
    let begin = iter::once("MULTI".to_owned());
    holds.pipeline(begin.chain(renewals).chain(iter::once("EXEC".to_owned())));
    assert_eq!(stat(&server, "auto_renewed"), MASS as u64);
    // A machine that stalls makes spread renewals due together: one round of several is enough.
    let mut seen = Vec::new();
    let spread = (1..=5).any(|round| {
        await_until("all were renewed", PATIENCE, || {
            stat(&server, "auto_renewals_total") >= (round * MASS) as u64
        });
        let together = renewed_together(&mut looks);
        let most = together.values().max().copied().unwrap_or_default();
        let times = together.len();
        seen.push((most, times));
        most < MASS / 20 && times > MASS / 200
    });
    assert!(spread, "(most in a millisecond, milliseconds): {seen:?}");
    assert_eq!(stat(&server, "auto_renewed"), MASS as u64);
    assert_eq!(stat(&server, "expired_total"), 0);
    holds.close();
    await_no_renewals(&server);
    assert_eq!(stat(&server, "holders"), MASS as u64, "the leases run on");
    assert_sound(&server);
}
