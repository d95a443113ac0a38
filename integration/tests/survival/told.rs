//! Answered leases: no later, lower setting makes any of them end earlier, whatever happens to the lock. Leases that a user
//! brings by RESTORE are bounded.

use dlock_harness::redis::Value;
use dlock_harness::{assert_sound, is_held, with, Ask, Blocked, Grant, Server, Wire};

/// The answered lease, and the lower one that a setting allows later.
const LEASE_MS: u64 = 600_000;
const LOWERED_MS: u64 = 5_000;

/// Asserts that a lease of ten minutes has most of them left.
#[track_caller]
fn assert_kept(c: &mut Wire, key: &str, token: u64) {
    let (held, _, left): (u64, u64, u64) = c.ask(&format!("DLOCK.HELD {key} ann"));
    assert_eq!(held, token);
    assert!(
        left > LEASE_MS / 2 && left <= LEASE_MS,
        "{key}: {left} ms are left"
    );
}

#[track_caller]
fn acquire(c: &mut Wire, key: &str) -> u64 {
    let (token, _): Grant = c.ask(&format!("DLOCK.ACQUIRE {key} ann {LEASE_MS}"));
    token
}

/// A replica that has a quarantine and is promoted also keeps answered leases.
#[test]
fn a_quarantine_after_a_promotion_cuts_no_lease() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut c = primary.connection();
    let token = acquire(&mut c, "k");
    c.run("DLOCK.FAIRACQUIRE k ben CLAIM 600000");
    replica.wait_in_sync(&primary);
    let mut c = replica.connection();
    c.run("CONFIG SET dlock.quarantine-ms 300");
    replica.promote();
    Blocked::start(&replica, "DLOCK.ACQUIRE free ben 100 BLOCK 0").reply::<Grant>();
    assert_kept(&mut c, "k", token);
    assert_sound(&replica);
}

/// RESTORE by a user: a lock with one holder, with several, with a long name; with waiters or without; and wherever it goes next.
#[test]
fn what_a_user_brings_is_bounded() {
    let (server, replica) = (Server::start(), Server::start());
    replica.replica_of(&server);
    let mut c = server.connection();
    let token = acquire(&mut c, "k");
    let long = "o".repeat(100);
    for line in [
        "shared ann 600000 SHARED",
        "shared ben 600000 SHARED",
        &format!("long {long} 600000"),
    ] {
        c.run(&format!("DLOCK.ACQUIRE {line}"));
    }
    let dumps = ["k", "shared", "long"].map(|key| c.ask::<Vec<u8>>(&format!("DUMP {key}")));
    c.run(&format!("CONFIG SET dlock.max-lease-ms {LOWERED_MS}"));
    for (nth, dump) in dumps.iter().enumerate() {
        let [rest, waited, from, to] =
            ["rest", "waited", "from", "to"].map(|name| format!("{name}{nth}"));
        c.run(&format!("DLOCK.ACQUIRE {waited} x 5000"));
        let waits = Blocked::start(&server, &format!("DLOCK.ACQUIRE {waited} next BLOCK 0"));
        let restore = |key: &str| with("RESTORE", &[key.as_bytes(), b"0", dump, b"REPLACE"]);
        for key in [&rest, &waited] {
            restore(key).exec(&mut c).expect("a healthy value");
        }
        c.run("MULTI");
        restore(&from).exec(&mut c).expect("a healthy value");
        c.run(&format!("RENAME {from} {to}"));
        c.run("EXEC");
        for key in [&rest, &waited, &to] {
            // A use of the lock: where the server does not report a RENAME in MULTI, the module notices it by this.
            c.run(&format!("DLOCK.CANCEL {key} nobody"));
            let held: Vec<Value> = c.ask(&format!("DLOCK.HELD {key}"));
            let bounded =
                |left: &Value| matches!(left, Value::Int(left) if *left <= LOWERED_MS as i64);
            assert!(bounded(&held[2]), "{key}: {held:?}");
            let ttl: i64 = c.ask(&format!("PTTL {key}"));
            assert!(ttl <= LOWERED_MS as i64, "{key}: {ttl}");
        }
        waits.kill();
        c.run(&format!("DEL {waited}"));
    }
    // The answered lease, and the replica's copies.
    assert_kept(&mut c, "k", token);
    replica.wait_in_sync(&server);
    let digest = |server: &Server| server.connection().ask::<String>("DEBUG DIGEST");
    assert_eq!(digest(&server), digest(&replica));
    assert!(is_held(&mut c, "shared", "ben"));
    assert_sound(&server);
}
