//! `DLOCK.KEEP` and `AUTO` from the grant on: one heartbeat for all holds of a connection, and the losses that it reports. The
//! conversations specify each case; these tests cover faults that only a server can have.

use dlock_integration::{
    assert_sound, await_until, is_held, stat, Ask, Grant, Server, Wire, PATIENCE,
};
use std::time::{Duration, Instant};

/// The answer to `DLOCK.KEEP`: ties, the rest of the first lease, losses.
type Kept = (u64, Option<u64>, Option<Vec<Lost>>);

/// A lock, its token, and why its tie was lost.
type Lost = (String, u64, String);

fn keep(wire: &mut Wire, ms: u64) -> Kept {
    wire.ask(&format!("DLOCK.KEEP {ms}"))
}

/// Sends heartbeats until one reports losses. Returns them.
#[track_caller]
fn await_lost(wire: &mut Wire) -> Vec<Lost> {
    let mut lost = Vec::new();
    await_until("something is lost", PATIENCE, || {
        lost = keep(wire, 600_000).2.expect("all that is lost");
        !lost.is_empty()
    });
    lost
}

fn lost(key: &str, token: u64, why: &str) -> Lost {
    (key.to_string(), token, why.to_string())
}

fn take(wire: &mut Wire, key: &str) -> u64 {
    let grant: Grant = wire.ask(&format!("DLOCK.ACQUIRE {key} alice 600000 AUTO 600000"));
    grant.0
}

/// Beyond the losses that the module keeps it reports once that there were more.
#[test]
fn more_losses_than_are_kept_are_told_as_such() {
    let server = Server::start();
    let mut c = server.connection();
    let mut alice = server.connection();
    for many in [1_024, 1_025] {
        alice.pipeline((0..many).map(|at| format!("DLOCK.ACQUIRE k{at} alice 600000 AUTO 600000")));
        assert_eq!(keep(&mut alice, 600_000).0, many);
        c.run("FLUSHALL");
        let (ties, _, lost) = keep(&mut alice, 600_000);
        assert_eq!(
            (ties, lost.map(|lost| lost.len())),
            (0, (many == 1_024).then_some(1_024))
        );
        assert_eq!(keep(&mut alice, 600_000).2, Some(Vec::new()));
    }
}

/// `RESET` and `HELLO` do not change a connection; a transaction counts as its own.
#[test]
fn a_connection_stays_the_same() {
    let server = Server::start();
    let mut alice = server.connection();
    take(&mut alice, "k");
    alice.ask::<String>("RESET");
    alice.ask::<String>("MULTI");
    alice.ask::<String>("DLOCK.KEEP 600000");
    let told: Vec<Kept> = alice.ask("EXEC");
    assert!(matches!(told[..], [(1, Some(_), Some(_))]), "{told:?}");
    let mut other = server.connection();
    assert_eq!(keep(&mut other, 1), (0, None, Some(Vec::new())));
    alice.close();
    // The losses of an ended connection are reported to none, and the next connection finds none.
    await_until("nothing is renewed", PATIENCE, || {
        stat(&server, "auto_renewed") == 0
    });
    assert_eq!(keep(&mut other, 1), (0, None, Some(Vec::new())));
}

/// A demoted server refuses; losses that it did not report it reports when it decides again.
#[test]
fn a_demoted_server_keeps_what_it_has_to_tell() {
    let (one, two) = (Server::start(), Server::start());
    let mut alice = one.connection();
    let token = take(&mut alice, "k");
    two.replica_of(&one);
    two.wait_in_sync(&one);
    one.replica_of(&two);
    two.promote();
    await_until("it decides no longer", PATIENCE, || {
        stat(&one, "auto_renewed") == 0
    });
    alice.send("DLOCK.KEEP 600000");
    let refused = alice.read().expect_err("a replica keeps nothing");
    assert!(refused.contains("READONLY"), "{refused}");
    one.promote();
    assert_eq!(await_lost(&mut alice), [lost("k", token, "demoted")]);
    assert!(is_held(&mut two.connection(), "k", "alice"));
    assert_sound(&one);
}

/// An upgrade by another connection stands, and has taken the tie, though that connection ends before it is answered.
#[test]
fn an_upgrade_that_nobody_has_heard_of_has_taken_the_tie() {
    let server = Server::start();
    let mut c = server.connection();
    let mut alice = server.connection();
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000 SHARED AUTO 600000");
    c.run("DLOCK.ACQUIRE k bob 600000 SHARED");
    let mut other = server.connection();
    let id = other.client_id();
    other.send("DLOCK.ACQUIRE k alice 600000 AUTO 600000 BLOCK 0");
    server.await_blocked_clients(1);
    // The release and the end of the granted connection come in one iteration of the event loop.
    alice.pipeline([
        "DLOCK.RELEASE k bob".to_string(),
        format!("CLIENT KILL ID {id}"),
    ]);
    let (ties, _, lost) = keep(&mut alice, 600_000);
    assert_eq!(
        (ties, lost),
        (0, Some(vec![self::lost("k", token, "taken")]))
    );
    assert!(is_held(&mut c, "k", "alice"));
    assert_sound(&server);
}

/// An expired lease has ended the hold, whatever the server notices first: that the key is hidden because its time is over, or
/// that a command has removed or renamed it.
#[test]
fn a_lease_that_is_over_has_expired() {
    let server = Server::start();
    let mut c = server.connection();
    let mut alice = server.connection();
    // Such a key stays until it is used.
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    let token = take_for_a_second(&mut alice, "k");
    // By the scan of once a second.
    await_until("its tie has gone", PATIENCE, || {
        stat(&server, "ephemeral") == 0
    });
    assert_eq!(
        keep(&mut alice, 1).2,
        Some(vec![lost("k", token, "expired")])
    );
    for line in [
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
        "RENAME k other",
        "DEL k",
    ] {
        let token = take_for_a_second(&mut alice, "k");
        let over = Instant::now() + Duration::from_millis(1_100);
        server.freeze();
        c.send_to_still(line);
        await_until("the lease is over", PATIENCE, || Instant::now() > over);
        server.thaw();
        // RENAME may find no key any more.
        drop(c.read());
        let told = keep(&mut alice, 1).2;
        assert_eq!(told, Some(vec![lost("k", token, "expired")]), "{line}");
        c.run("FLUSHALL");
    }
}

/// Takes a lock that the server renews for a moment only.
fn take_for_a_second(wire: &mut Wire, key: &str) -> u64 {
    let line = format!("DLOCK.ACQUIRE {key} alice 1000 EPHEMERAL AUTO 1");
    wire.ask::<Grant>(&line).0
}
