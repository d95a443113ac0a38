//! Planned failovers. No server tells a module that a promotion has lost nothing, so there is a quarantine after each; a planned
//! one can do without.

use dlock_integration::{await_until, Ask, Grant, Server, PATIENCE};

const QUARANTINE_MS: u64 = 600_000;

fn pair() -> (Server, Server) {
    let start = || {
        let builder = Server::builder().module_argument("quarantine-ms");
        builder.module_argument(QUARANTINE_MS).start()
    };
    let (old, new) = (start(), start());
    new.replica_of(&old);
    // Not the quarantine of the start; setting it begins none.
    old.connection().run("CONFIG SET dlock.quarantine-ms 0");
    let line = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
    old.connection().run(&line);
    (old, new)
}

fn hand_over(old: &Server, new: &Server) {
    let line = format!("FAILOVER TO 127.0.0.1 {}", new.port());
    // The primary refuses it until it knows that its replica is ready.
    await_until("a failover is possible", PATIENCE, || {
        old.connection().try_ask(&line).is_ok()
    });
    await_until("the other is primary", PATIENCE, || {
        new.info("replication").text("role") == "master"
            && old.info("replication").text("role") == "slave"
    });
}

#[test]
fn after_a_coordinated_failover_there_is_a_quarantine_as_after_any_other() {
    let (old, new) = pair();
    let (token, _): Grant = old.connection().ask("DLOCK.ACQUIRE k alice 600000");
    hand_over(&old, &new);
    let mut connection = new.connection();
    assert!(connection
        .refusal("DLOCK.ACQUIRE l bob 1000")
        .starts_with("QUARANTINE"));
    let line = format!("DLOCK.RENEW k alice 600000 TOKEN {token}");
    assert_eq!(connection.ask::<u64>(&line), 600_000);
}

#[test]
fn who_plans_a_failover_can_go_without_the_quarantine() {
    let (old, new) = pair();
    let (token, _): Grant = old.connection().ask("DLOCK.ACQUIRE k alice 600000");
    new.connection().run("CONFIG SET dlock.quarantine-ms 0");
    hand_over(&old, &new);
    let mut connection = new.connection();
    let (later, _): Grant = connection.ask("DLOCK.ACQUIRE l bob 1000");
    assert!(later > token);
    let taken: Option<Grant> = connection.ask("DLOCK.ACQUIRE k bob 1000");
    assert_eq!(taken, None);
    let line = format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}");
    connection.run(&line);
    let _: Grant = connection.ask("DLOCK.ACQUIRE m bob 1000");
    // The next unplanned promotion begins one.
    old.wait_in_sync(&new);
    old.promote();
    assert!(old
        .connection()
        .refusal("DLOCK.ACQUIRE n bob 1000")
        .starts_with("QUARANTINE"));
}
