//! WAIT: whether a replica certainly has a grant. It counts the replicas that have the last write of its own connection.

use dlock_harness::{assert_sound, Ask, Grant, Queued, Server, Session, Wire};

/// A replica that no longer receives anything, and its primary, which does not know that yet.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    fn start() -> Pair {
        let (primary, replica) = (Server::start(), Server::start());
        replica.replica_of(&primary);
        Pair { primary, replica }
    }

    /// Makes the replica acknowledge nothing from now on.
    fn stop(&self) {
        self.replica.wait_in_sync(&self.primary);
        // The replica has acknowledged this as well.
        let mut wire = self.primary.connection();
        wire.ask::<String>("SET said x");
        assert_eq!(wire.ask::<u64>("WAIT 1 0"), 1);
        self.replica.freeze();
    }

    fn end(self) {
        self.replica.thaw();
        self.replica.wait_in_sync(&self.primary);
        assert_sound(&self.primary);
        assert_sound(&self.replica);
    }
}

/// Returns the number of replicas that have this connection's last write.
fn acknowledged(wire: &mut Wire) -> u64 {
    wire.ask("WAIT 1 200")
}

#[test]
fn wait_covers_a_grant_and_a_renewal() {
    let pair = Pair::start();
    pair.stop();
    // A connection that has written nothing waits for nothing: otherwise the rest would show nothing.
    assert_eq!(acknowledged(&mut pair.primary.connection()), 1);
    let mut wire = pair.primary.connection();
    let (token, _): Grant = wire.ask("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(acknowledged(&mut wire), 0);
    let mut other = pair.primary.connection();
    other.ask::<u64>(&format!("DLOCK.RENEW k alice 600000 TOKEN {token}"));
    assert_eq!(acknowledged(&mut other), 0);
    pair.end();
}

#[test]
fn wait_covers_a_grant_that_was_waited_for() {
    let pair = Pair::start();
    let mut holder = pair.primary.connection();
    holder.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    pair.stop();
    let mut waiter = pair.primary.connection();
    waiter.send("DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    pair.primary.await_blocked_clients(1);
    holder.ask::<u64>("DLOCK.RELEASE k alice");
    waiter.read().expect("a grant");
    assert_eq!(acknowledged(&mut waiter), 0);
    pair.end();
}

/// The connection of a wait in a session has written nothing when the row comes. So it renews.
#[test]
fn wait_covers_a_grant_in_a_session_after_a_renewal() {
    let pair = Pair::start();
    let mut holder = pair.primary.connection();
    holder.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    let mut waiter = pair.primary.connection();
    let mut session = Session::begin(&pair.primary, "k", "s");
    waiter.ask::<Queued>("DLOCK.ACQUIRE k bob 600000 BLOCK 0 IN s");
    pair.stop();
    holder.ask::<u64>("DLOCK.RELEASE k alice");
    assert_eq!(session.told(), "granted k bob");
    assert_eq!(acknowledged(&mut waiter), 1);
    waiter.ask::<Vec<u64>>("DLOCK.RENEW k bob 600000 IN s");
    assert_eq!(acknowledged(&mut waiter), 0);
    pair.end();
}

/// A renewal that cannot move the deadline, as one within the millisecond of the grant, is written nevertheless.
#[test]
fn wait_covers_a_renewal_that_changes_no_deadline() {
    let pair = Pair::start();
    let mut wire = pair.primary.connection();
    wire.ask::<String>("CONFIG SET dlock.max-hold-ms 600000");
    let (token, _): Grant = wire.ask("DLOCK.ACQUIRE k alice 600000");
    let end: u64 = wire.ask("PEXPIRETIME k");
    pair.stop();
    for line in [
        format!("DLOCK.RENEW k alice 600000 TOKEN {token}"),
        "DLOCK.MRENEW 1 k alice 600000".to_owned(),
        "DLOCK.RENEW k alice 600000 EPHEMERAL".to_owned(),
    ] {
        let mut other = pair.primary.connection();
        let left: u64 = other.ask(&line);
        assert!(left > 0);
        assert_eq!(wire.ask::<u64>("PEXPIRETIME k"), end, "{line}");
        assert_eq!(acknowledged(&mut other), 0, "{line}");
    }
    pair.end();
}
