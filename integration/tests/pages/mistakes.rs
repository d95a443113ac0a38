//! The usual mistakes of `docs/clients.md` that no client can prevent, each with its remedy.

use dlock_harness::redis::Value;
use dlock_harness::{Ask, Grant, Server};

/// `WAIT` covers the writes of its own connection: on another one of a pool, which has written nothing, every replica counts.
#[test]
fn wait_on_another_pooled_connection_proves_nothing() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let (mut one, mut other) = (primary.connection(), primary.connection());
    replica.freeze();
    let _: Grant = one.ask("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(
        other.ask::<i64>("WAIT 1 100"),
        1,
        "the replica lacks the grant"
    );
    assert_eq!(one.ask::<i64>("WAIT 1 100"), 0);
    replica.thaw();
    assert_eq!(one.ask::<i64>("WAIT 1 0"), 1);
    let held: Value = replica.connection().ask("DLOCK.HELD k alice");
    assert_ne!(held, Value::Nil);
}

/// `EXPIRE` answers 1, and the lease is unchanged: only `DLOCK.RENEW` extends it.
#[test]
fn expire_is_no_renewal() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(c.ask::<i64>("EXPIRE k 1000"), 1);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left <= 600_000, "{left} ms left");
    assert_eq!(c.ask::<u64>("DLOCK.RENEW k alice 1000000"), 1_000_000);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left > 600_000, "{left} ms left");
}
