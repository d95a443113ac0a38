//! A take-over is replicated. `tests/scenarios/replaced*.txt` have every kind.

use dlock_harness::{
    assert_sound, await_until, held, kept, position, stat, wait_as, Ask, Blocked, Grant, Server,
    Wire, PATIENCE,
};

const REPLACED: &str = "REPLACED a newer request of the same owner has taken its place";

#[track_caller]
fn positions<const N: usize>(c: &mut Wire, owners: [&str; N]) -> [Option<u64>; N] {
    owners.map(|owner| position(c, "k", owner))
}

/// A ticket stays one, with its window; FAIRACQUIRE makes a place a ticket, and that is replicated in one step.
#[test]
fn a_ticket_is_taken_over_and_made() {
    let (server, mut c, _) = held();
    let replica = Server::start();
    replica.replica_of(&server);
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 0 CLAIM 600000");
    let plain = wait_as(&server, "carol");
    let last = wait_as(&server, "dave");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 SHARED BLOCK 0");
    let carol = Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol BLOCK 0 CLAIM 600000");
    assert_eq!(ticket.refusal(), REPLACED);
    assert_eq!(plain.refusal(), REPLACED);
    replica.wait_in_sync(&server);
    let mut r = replica.connection();
    assert_eq!(kept(&mut r, "k"), kept(&mut c, "k"));
    let owners = ["bob", "carol", "dave"];
    assert_eq!(positions(&mut r, owners), [Some(0), Some(1), None]);
    // Both outlive their connections.
    for wait in [bob, carol] {
        let id = wait.client_id();
        wait.kill();
        server.await_client_gone(id);
    }
    await_until("both are absent", PATIENCE, || {
        stat(&server, "connections_waiting") == 1
    });
    assert_eq!(positions(&mut c, owners), [Some(0), Some(1), Some(2)]);
    c.run("DLOCK.RELEASE k alice");
    assert!(last.is_blocked(&server));
    for owner in ["bob", "carol"] {
        // The absent ticket is the owner's own place, whatever command asks.
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000"));
        c.run(&format!("DLOCK.RELEASE k {owner}"));
    }
    last.reply::<Grant>();
    assert_sound(&server);
    assert_sound(&replica);
}
