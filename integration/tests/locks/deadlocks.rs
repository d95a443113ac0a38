//! A wait that could never end is refused, and says why; one that could end is not.

use std::time::Duration;

use dlock_integration::redis::{cmd, Value};
use dlock_integration::{assert_sound, stat, Ask, Blocked, Grant, Server, Wire};

/// So long nothing must come of what cannot be.
const WHILE: Duration = Duration::from_millis(1500);

/// Owners of a long chain.
const CHAIN: usize = 1_000;

/// Each takes its locks, by a connection that is gone then.
/// `a:alice b:bob SHARED`.
#[track_caller]
fn hold(server: &Server, holds: &[&str]) {
    let mut wire = server.wire();
    let id = wire.client_id();
    for hold in holds {
        let (key, owner) = hold.split_once(':').expect("key:owner");
        let (owner, options) = owner.split_once(' ').unwrap_or((owner, ""));
        wire.ask::<Grant>(&format!("DLOCK.ACQUIRE {key} {owner} 600000 {options}"));
    }
    drop(wire);
    server.await_client_gone(id);
}

#[track_caller]
fn wait_for(server: &Server, key: &str, owner: &str) -> Blocked {
    Blocked::start(
        server,
        &format!("DLOCK.ACQUIRE {key} {owner} 600000 BLOCK 0"),
    )
}

/// As it happens: each takes a lock and then waits for the other's, on the one connection that it has.
#[test]
fn two_connections() {
    let server = Server::start();
    let (mut alice, mut bob) = (server.wire(), server.wire());
    alice.ask::<Grant>("DLOCK.ACQUIRE a alice 600000");
    bob.ask::<Grant>("DLOCK.ACQUIRE b bob 600000");
    alice.send("DLOCK.ACQUIRE b alice 600000 BLOCK 0");
    server.await_blocked_clients(1);
    bob.send("DLOCK.ACQUIRE a bob 600000 BLOCK 0");
    assert_eq!(
        bob.read(),
        Err("DEADLOCK waiting would never end: \
             'bob' waits for 'a' held by 'alice', 'alice' waits for 'b' held by 'bob'"
            .to_owned())
    );
    bob.ask::<u64>("DLOCK.RELEASE b bob");
    assert!(matches!(alice.read(), Ok(Value::Array(_))));
}

/// An owner is one actor: while it waits by one connection it gives nothing back by another, for all that is known.
#[test]
fn another_connection_of_the_owner_makes_no_difference() {
    let server = Server::start();
    for holding in ["", "SESSION"] {
        let (mut alice, mut bob) = (server.wire(), server.wire());
        alice.ask::<Grant>(&format!("DLOCK.ACQUIRE a alice 600000 {holding}"));
        bob.ask::<Grant>("DLOCK.ACQUIRE b bob 600000");
        let alice_waits = wait_for(&server, "b", "alice");
        assert_eq!(
            Blocked::send(&server, "DLOCK.ACQUIRE a bob BLOCK 0").refusal(),
            "DEADLOCK waiting would never end: \
             'bob' waits for 'a' held by 'alice', 'alice' waits for 'b' held by 'bob'",
            "{holding}"
        );
        bob.ask::<u64>("DLOCK.RELEASE b bob");
        alice_waits.reply::<Grant>();
        bob.ask::<Value>("FLUSHALL");
    }
}

/// With several waits it acts when all of them are granted: one that is granted holds its lock meanwhile.
#[test]
fn an_owner_that_waits_for_several_locks_acts_when_it_has_them_all() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["a:anna", "b:bob", "c:carol"]);
    let first = wait_for(&server, "a", "dave");
    let second = wait_for(&server, "b", "dave");
    // Anna's lock will be dave's, who then waits for bob.
    let error = c.refusal("DLOCK.ACQUIRE a bob BLOCK 0");
    assert!(
        error.starts_with("DEADLOCK waiting would never end: 'bob' waits for 'a' "),
        "{error}"
    );
    // Carol's own lock is waited for by nobody.
    let carol = wait_for(&server, "a", "carol");
    c.run("DLOCK.RELEASE a anna");
    first.reply::<Grant>();
    c.run("DLOCK.RELEASE b bob");
    second.reply::<Grant>();
    c.run("DLOCK.RELEASE a dave");
    carol.reply::<Grant>();
    assert_eq!(stat(&server, "deadlocks_total"), 1);
}

#[test]
fn two_owners() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["a:alice", "b:bob"]);
    let alice = wait_for(&server, "b", "alice");
    let digest: String = c.ask("DEBUG DIGEST");
    for line in [
        "DLOCK.ACQUIRE a bob 600000 BLOCK 0",
        "DLOCK.ACQUIRE a bob 600000 BLOCK 50",
        "DLOCK.FAIRACQUIRE a bob 600000 BLOCK 0",
        "DLOCK.FAIRACQUIRE a bob 600000 BLOCK 0 CLAIM 1000",
        "DLOCK.ACQUIRE a bob 600000 NOTIFY news",
        "DLOCK.ACQUIRE a bob 600000 SHARED BLOCK 0",
        "DLOCK.MACQUIRE 2 a c bob 600000 BLOCK 0",
    ] {
        assert_eq!(
            c.refusal(line),
            "DEADLOCK waiting would never end: \
             'bob' waits for 'a' held by 'alice', 'alice' waits for 'b' held by 'bob'",
            "{line}"
        );
    }
    assert_eq!(stat(&server, "deadlocks_total"), 7);
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), digest);
    assert_eq!(c.ask::<Option<u64>>("DLOCK.POSITION a bob"), None);
    // Who does not wait is not refused.
    assert_eq!(c.try_ask("DLOCK.ACQUIRE a bob"), Ok(Value::Nil));
    assert_eq!(c.try_ask("DLOCK.FAIRACQUIRE a bob"), Ok(Value::Nil));
    c.run("DLOCK.CANCEL a bob");
    c.run("DLOCK.RELEASE b bob");
    alice.reply::<Grant>();
    assert_sound(&server);
}

#[test]
fn three_owners_and_a_place_in_a_queue() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["a:alice", "b:bob", "c:carol"]);
    let _alice = wait_for(&server, "b", "alice");
    let _bob = wait_for(&server, "c", "bob");
    // Dave holds nothing that anybody waits for.
    let dave = wait_for(&server, "a", "dave");
    assert_eq!(
        c.refusal("DLOCK.ACQUIRE a carol BLOCK 0"),
        "DEADLOCK waiting would never end: 'carol' waits for 'a' held by 'alice', \
         'alice' waits for 'b' held by 'bob', 'bob' waits for 'c' held by 'carol'"
    );
    assert!(dave.is_blocked(&server));
    assert_eq!(stat(&server, "deadlocks_total"), 1);
}

/// Nobody holds anything that the other waits for but by its place: behind a writer that waits for a reader.
#[test]
fn a_circle_through_a_place_in_the_queue() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["k:reader SHARED", "x:late"]);
    let _reader = wait_for(&server, "x", "reader");
    let _writer = wait_for(&server, "k", "writer");
    let error = c.refusal("DLOCK.ACQUIRE k late 600000 SHARED BLOCK 0");
    assert_eq!(
        error,
        "DEADLOCK waiting would never end: 'late' waits for 'k' behind 'writer', \
         'writer' waits for 'k' held by 'reader', 'reader' waits for 'x' held by 'late'"
    );
    assert_sound(&server);
}

#[test]
fn many_locks_at_once() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["a:alice", "b:bob"]);
    let many = "DLOCK.MACQUIRE 3 x b y alice 600000 BLOCK 0";
    let alice = Blocked::start(&server, many);
    let error = c.refusal("DLOCK.MACQUIRE 2 z a bob BLOCK 0");
    assert_eq!(
        error,
        "DEADLOCK waiting would never end: \
         'bob' waits for 'a' held by 'alice', 'alice' waits for 'b' held by 'bob'"
    );
    // What alice reserves is as good as held by her.
    let error = c.refusal("DLOCK.ACQUIRE x bob BLOCK 0");
    assert!(
        error.starts_with("DEADLOCK ") && error.contains("behind 'alice'"),
        "{error}"
    );
    assert_eq!(c.ask::<u64>("EXISTS z"), 0);
    c.run("DLOCK.RELEASE b bob");
    assert_eq!(alice.reply::<Vec<u64>>().len(), 3);
}

#[test]
fn no_false_alarm() {
    let server = Server::start();
    let mut c = server.connection();
    // A semaphore of two: that one of its holders waits does not keep the other from giving back.
    hold(&server, &["s:alice LIMIT 2", "s:carol LIMIT 2", "b:bob"]);
    let alice = wait_for(&server, "b", "alice");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE s bob 600000 LIMIT 2 BLOCK 0");
    c.run("DLOCK.RELEASE s carol");
    bob.reply::<Grant>();
    c.run("DLOCK.RELEASE b bob");
    alice.reply::<Grant>();
    c.run("FLUSHALL");

    // Readers hold beside each other, whatever they wait for.
    hold(&server, &["r:alice SHARED", "b:bob"]);
    let alice = wait_for(&server, "b", "alice");
    c.run("DLOCK.ACQUIRE r bob 600000 SHARED");
    c.run("DLOCK.RELEASE b bob");
    alice.reply::<Grant>();
    c.run("FLUSHALL");

    // A polled ticket waits for nothing.
    hold(&server, &["a:alice", "b:bob"]);
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE b alice CLAIM 60000"),
        Ok(Value::Nil)
    );
    let bob = wait_for(&server, "a", "bob");
    c.run("DLOCK.RELEASE a alice");
    bob.reply::<Grant>();
    assert_eq!(stat(&server, "deadlocks_total"), 0);
}

#[test]
fn keys_that_the_caller_may_not_read_are_masked() {
    let server = Server::start();
    let mut c = server.connection();
    hold(&server, &["a:alice", "secret:bob"]);
    let _alice = wait_for(&server, "secret", "alice");
    c.run("ACL SETUSER some on >p ~a ~b +@all");
    c.run("ACL SETUSER writes on >p ~a %W~secret +@all");
    for user in ["some", "writes"] {
        let mut some = server.connection_as(user, "p");
        assert_eq!(
            some.refusal("DLOCK.ACQUIRE a bob BLOCK 0"),
            "DEADLOCK waiting would never end: \
             'bob' waits for 'a' held by 'alice', 'alice' waits for a key held by 'bob'",
            "{user}"
        );
    }
    c.run("ACL SETUSER some %R~secret");
    let error = server
        .connection_as("some", "p")
        .refusal("DLOCK.ACQUIRE a bob BLOCK 0");
    assert!(error.contains("'secret'"), "{error}");
}

#[test]
fn names_are_escaped_and_long_circles_shortened() {
    let server = Server::start();
    let mut c = server.connection();
    let take = |key: &[u8], owner: &[u8]| {
        cmd("DLOCK.ACQUIRE")
            .arg(key)
            .arg(owner)
            .arg(600_000)
            .to_owned()
    };
    let long = [b'o'; 100];
    let mut holds = server.connection();
    holds.ask_command::<Grant>(&take(b"k'\r\n\xff", b"al\0ice"));
    holds.ask_command::<Grant>(&take(b"b", &long));
    drop(holds);
    let mut wait = take(b"b", b"al\0ice");
    let _alice = Blocked::send_on(server.wire(), wait.arg("BLOCK").arg(0), "alice");
    server.await_blocked_clients(1);
    let mut wait = take(b"k'\r\n\xff", &long);
    let error = c.answer(wait.arg("BLOCK").arg(0)).expect_err("a refusal");
    let owner = format!("{}...", "o".repeat(64));
    assert_eq!(
        error,
        format!(
            "DEADLOCK waiting would never end: \
             '{owner}' waits for 'k\\'\\x0d\\x0a\\xff' held by 'al\\x00ice', \
             'al\\x00ice' waits for 'b' held by '{owner}'"
        )
    );
    let (refused, _waits) = chain(&server, 12);
    let error = refused.expect_err("a refusal");
    assert_eq!(error.matches(" waits for ").count(), 8, "{error}");
    assert!(error.ends_with(", and 4 more"), "{error}");
}

/// Owner `n` holds lock `n` and waits for the one before; then the first asks for the last: that is answered. The waits stand
/// as long as their connections.
fn chain(server: &Server, owners: usize) -> (Result<Value, String>, Vec<Wire>) {
    let mut c = server.connection();
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
        let mut wire = server.wire();
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

#[test]
fn switched_off_and_on() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("CONFIG SET dlock.deadlock-detection no");
    hold(&server, &["a:alice", "b:bob"]);
    let alice = wait_for(&server, "b", "alice");
    let bob = wait_for(&server, "a", "bob");
    assert_eq!(bob.outcome_within(WHILE), None);
    assert_eq!(stat(&server, "deadlocks_total"), 0);
    // From now on it is looked for: the youngest is refused.
    c.run("CONFIG SET dlock.deadlock-detection yes");
    let error = bob.refusal();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert!(alice.is_blocked(&server));
    c.run("DLOCK.RELEASE b bob");
    alice.reply::<Grant>();
}

/// Beyond the steps the request waits, and that is counted. The check that runs beside has as many: it finds the circle when they
/// suffice.
#[test]
fn the_work_is_bounded() {
    for steps in [1, 2, 5] {
        let server = Server::start();
        let mut c = server.connection();
        c.run(&format!("CONFIG SET dlock.deadlock-max-steps {steps}"));
        hold(&server, &["a:alice", "b:bob"]);
        let alice = wait_for(&server, "b", "alice");
        let bob = wait_for(&server, "a", "bob");
        assert!(stat(&server, "deadlock_checks_deferred_total") >= 1);
        assert_eq!(stat(&server, "deadlocks_total"), 0);
        c.run("CONFIG SET dlock.deadlock-max-steps 10000");
        let error = bob.refusal();
        assert!(error.starts_with("DEADLOCK "), "{error}");
        // By the check: whose keys the others' are is not known there.
        assert!(error.contains("waits for a key"), "{steps}: {error}");
        assert_eq!(stat(&server, "deadlocks_total"), 1);
        c.run("DLOCK.RELEASE b bob");
        alice.reply::<Grant>();
        assert_sound(&server);
    }
}

/// A lock that comes to where somebody waits closes a circle: the check that runs once a second finds it, and the youngest is told.
#[test]
fn a_circle_by_rename() {
    for line in ["RENAME x b", "RESTORE"] {
        let server = Server::start();
        let mut c = server.connection();
        hold(&server, &["a:alice", "b:carol", "x:bob"]);
        let bob = wait_for(&server, "a", "bob");
        let alice = wait_for(&server, "b", "alice");
        assert!(alice.outcome_within(Duration::from_millis(100)).is_none());
        if line == "RESTORE" {
            let dump: Vec<u8> = c.ask("DUMP x");
            c.ask_command::<String>(cmd("RESTORE").arg("b").arg(0).arg(dump).arg("REPLACE"));
        } else {
            c.run(line);
        }
        let error = alice.refusal();
        // Whose keys the others' are is not known by then: only its own is named.
        assert_eq!(
            error,
            "DEADLOCK waiting would never end: \
             'alice' waits for 'b' held by 'bob', 'bob' waits for a key held by 'alice'",
            "{line}"
        );
        assert!(bob.is_blocked(&server));
        c.run("DLOCK.RELEASE a alice");
        bob.reply::<Grant>();
        assert_sound(&server);
    }
}

/// Two who hold a lock together and both want it alone.
#[test]
fn two_upgrades() {
    let server = Server::start();
    let mut c = server.connection();
    for owner in ["alice", "bob"] {
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000 SHARED"));
    }
    let alice = wait_for(&server, "k", "alice");
    assert_eq!(
        c.refusal("DLOCK.ACQUIRE k bob BLOCK 0"),
        "DEADLOCK waiting would never end: \
         'bob' and 'alice' hold the lock, and each waits for the other to release it"
    );
    c.run("DLOCK.RELEASE k bob");
    alice.reply::<Grant>();
}

/// An owner may wait for thousands of locks by a channel: each further wait takes no more steps than the first.
#[test]
fn who_waits_for_much_is_not_slowed_down() {
    const LOCKS: usize = 5_000;
    let server = Server::start();
    let mut c = server.connection();
    for at in 0..LOCKS + 20 {
        c.run(&format!("DLOCK.ACQUIRE k{at} alice 600000"));
    }
    for at in 0..LOCKS {
        c.run(&format!("DLOCK.ACQUIRE k{at} bob 600000 NOTIFY news"));
    }
    // A look that went through all of its waits would be too much work by far.
    c.run("CONFIG SET dlock.deadlock-max-steps 100");
    for at in LOCKS..LOCKS + 20 {
        c.run(&format!("DLOCK.ACQUIRE k{at} bob 600000 NOTIFY news"));
    }
    assert_eq!(stat(&server, "deadlock_checks_deferred_total"), 0);
}
