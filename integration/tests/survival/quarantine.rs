//! After a start with `dlock.quarantine-ms` nothing is granted for so long: what waits, what is refused, what goes on.

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{
    assert_sound, await_until, is_held, position, stat, wait_as, Ask, Blocked, Grant, Server,
    Subscriber, PATIENCE,
};

const QUARANTINE_MS: u64 = 600_000;

/// A server that was started anew after these commands, and is in quarantine for longer than any test lasts.
#[track_caller]
fn restarted_after(lines: &[&str]) -> (Server, Connection) {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let mut c = server.connection();
    lines.iter().for_each(|line| c.run(line));
    c.run(&format!("CONFIG SET dlock.quarantine-ms {QUARANTINE_MS}"));
    c.run("CONFIG REWRITE");
    server.kill9();
    server.restart();
    let c = server.connection();
    (server, c)
}

/// The refusal says how many milliseconds are left.
#[track_caller]
fn assert_refused(refusal: &str) {
    let left = refusal
        .strip_prefix(
            "QUARANTINE no grants yet: the quarantine after the start or promotion ends in ",
        )
        .and_then(|rest| rest.strip_suffix(" ms"))
        .and_then(|left| left.parse::<u64>().ok());
    assert!(
        left.is_some_and(|left| left > 0 && left <= QUARANTINE_MS),
        "{refusal}"
    );
}

/// A re-entry never waits: it is refused at once; who has its token renews.
#[test]
fn a_re_entry_is_refused_at_once() {
    let (server, mut c) = restarted_after(&[
        "DLOCK.ACQUIRE k alice 600000",
        "DLOCK.ACQUIRE j alice 600000",
        "DLOCK.ACQUIRE s alice 600000 SHARED",
    ]);
    let digest: String = c.ask("DEBUG DIGEST");
    for line in [
        "DLOCK.ACQUIRE k alice",
        "DLOCK.ACQUIRE k alice BLOCK 0",
        "DLOCK.ACQUIRE k alice 600000 NOTIFY news",
        "DLOCK.ACQUIRE k alice 600000 HOLDS 1 BLOCK 0",
        "DLOCK.ACQUIRE k alice 600000 SHARED BLOCK 0",
        "DLOCK.FAIRACQUIRE k alice 600000 BLOCK 0 CLAIM 1000",
        "DLOCK.FAIRACQUIRE k alice",
        "DLOCK.MACQUIRE 2 k j alice 600000 BLOCK 0",
        "DLOCK.MACQUIRE 2 k j alice",
        // These do not wait.
        "DLOCK.ACQUIRE free bob",
        "DLOCK.ACQUIRE s alice",
        "DLOCK.MACQUIRE 2 k free alice",
    ] {
        assert_refused(&c.refusal(line));
    }
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), digest);
    assert_eq!(stat(&server, "places_queued"), 0);
    // What is held is kept, and given back.
    let mut alice = server.wire();
    assert_eq!(
        alice.ask::<u64>("DLOCK.RENEW k alice 500000 AUTO 0"),
        500_000
    );
    assert_eq!(alice.ask::<u64>("DLOCK.MRENEW 2 k j alice 400000"), 400_000);
    assert_eq!(alice.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_refused(&c.refusal("DLOCK.ACQUIRE k alice"));
    assert_sound(&server);
}

/// Newcomers, upgrades, and requests for many with one such part wait, if they may.
#[test]
fn what_is_not_held_is_waited_for() {
    let (server, mut c) = restarted_after(&[
        "DLOCK.ACQUIRE k alice 600000",
        "DLOCK.ACQUIRE s alice 600000 SHARED",
    ]);
    let waits = [
        "DLOCK.ACQUIRE free bob 600000 BLOCK 0",
        "DLOCK.ACQUIRE s alice 600000 BLOCK 0",
        "DLOCK.MACQUIRE 2 k other alice 600000 BLOCK 0",
    ];
    let waits = waits.map(|line| Blocked::start(&server, line));
    // A newer one of the same owner takes over here, too.
    let newer = Blocked::start(&server, "DLOCK.ACQUIRE free bob 600000 BLOCK 0");
    assert!(waits[0].refusal().starts_with("REPLACED "));
    assert!(waits[1..].iter().all(|wait| wait.is_blocked(&server)));
    c.run("CONFIG SET dlock.quarantine-ms 0");
    newer.reply::<Grant>();
    assert_eq!(waits[1].reply::<Grant>().1, 2);
    assert_eq!(waits[2].reply::<Vec<u64>>().len(), 2);
    assert_sound(&server);
}

/// A request whose hold ends, or arrives, meanwhile.
#[test]
fn holds_that_end_and_arrive() {
    let (server, mut c) = restarted_after(&[
        "DLOCK.ACQUIRE k alice 600000",
        "DLOCK.ACQUIRE s alice 600000 SHARED",
        "DLOCK.ACQUIRE x bob 600000",
    ]);
    let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k other alice 600000 BLOCK 0");
    let upgrade = wait_for(&server, "s", "alice");
    c.run("DLOCK.RELEASE k alice");
    c.run("DLOCK.RELEASE s alice");
    assert!(many.refusal().starts_with("NOTHELD "));
    assert!(upgrade.refusal().starts_with("NOTHELD "));
    // Now it would be a re-entry, and that is refused.
    let bob = wait_for(&server, "k", "bob");
    c.run("RENAME x k");
    assert_refused(&bob.refusal());
    assert!(is_held(&mut c, "k", "bob"));
    assert_eq!(stat(&server, "places_queued"), 0);
    assert_sound(&server);
}

#[track_caller]
fn wait_for(server: &Server, key: &str, owner: &str) -> Blocked {
    Blocked::start(
        server,
        &format!("DLOCK.ACQUIRE {key} {owner} 600000 BLOCK 0"),
    )
}

/// A claim window runs as ever: an abandoned ticket holds nobody up beyond it.
#[test]
fn claim_windows_run() {
    let (server, mut c) = restarted_after(&[
        "CONFIG SET dlock.claim-window-ms 300",
        "DLOCK.ACQUIRE k alice 600000",
        "DLOCK.FAIRACQUIRE k bob 600000 CLAIM 200",
        "DLOCK.FAIRACQUIRE k carol 600000 CLAIM 600000",
    ]);
    let dave = wait_as(&server, "dave");
    await_until("bob's window is over", PATIENCE, || {
        position(&mut c, "k", "bob").is_none()
    });
    assert_eq!(position(&mut c, "k", "carol"), Some(0));
    // The owner of a ticket keeps it by polling.
    let poll = c.try_ask("DLOCK.FAIRACQUIRE k carol CLAIM 600000");
    assert_eq!(poll, Ok(Value::Nil));
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k carol"), 1);
    c.run("DLOCK.RELEASE k alice");
    assert!(dave.is_blocked(&server));
    c.run("CONFIG SET dlock.quarantine-ms 0");
    dave.reply::<Grant>();
    assert_sound(&server);
}

/// The server renews for those who tie their holds anew, and what ends meanwhile is told.
#[test]
fn leases_end_and_are_renewed() {
    let (server, mut c) =
        restarted_after(&["DLOCK.ACQUIRE k alice 600000", "DLOCK.ACQUIRE j bob 600000"]);
    let ends = Subscriber::channels(&server, &["__dlock@0__:k", "__dlock@0__:j"]);
    let mut alice = server.wire();
    alice.ask::<u64>("DLOCK.RENEW k alice 4000 AUTO 0");
    let first: u64 = c.ask("PEXPIRETIME k");
    c.run("DLOCK.RENEW j bob 1");
    let expired = ends.message();
    assert_eq!(expired.channel, "__dlock@0__:j");
    await_until("the first lease is over", PATIENCE, || {
        c.ask::<i64>("PEXPIRETIME k") > first as i64 + 4_000
    });
    assert!(is_held(&mut c, "k", "alice"));
    assert_sound(&server);
}
