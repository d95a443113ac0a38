//! RENEW … AUTO: the server renews a hold by itself as long as the connection is open, and for so long at most as was asked.

use std::collections::HashMap;
use std::iter;

use dlock_integration::redis::{cmd, from_redis_value, Connection, Value};
use dlock_integration::{
    assert_sound, await_until, is_held, kept, stat, wait_as, Ask, Blocked, Grant, Server,
    Subscriber, Wire, PATIENCE,
};

/// A lease that the server is to renew. It does so when a third of it has passed at the latest, so that a busy machine may be
/// late by twice that.
const LEASE_MS: u64 = 8_000;

/// So long that no renewal comes due.
const LONG_MS: u64 = 600_000;

/// Holds of which the renewals are counted.
const MASS: usize = 20_000;

/// Keys of one command.
const AT_ONCE: usize = 1_000;

/// A server where alice holds `k`, by a connection of her own that does nothing else, and what she sends for it to be renewed.
fn alice() -> (Server, Connection, Wire, u64) {
    let server = Server::start();
    let c = server.connection();
    let mut alice = server.wire();
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000");
    (server, c, alice, token)
}

/// The server renews alice's hold of `k` from now on; gives when its lease ends, in unix milliseconds.
#[track_caller]
fn renew(c: &mut Connection, alice: &mut Wire, options: &str) -> u64 {
    let left: u64 = alice.ask(&format!("DLOCK.RENEW k alice {options}"));
    assert!(left > 0);
    end_of(c, "k")
}

/// When a lock's key ends; 0 without a key, or without an end.
#[track_caller]
fn end_of(c: &mut Connection, key: &str) -> u64 {
    let end: i64 = c.ask(&format!("PEXPIRETIME {key}"));
    u64::try_from(end).unwrap_or(0)
}

/// The first lease is over, and the hold goes on: its end is a lease from now.
#[track_caller]
fn await_another_lease(c: &mut Connection, key: &str, first_end: u64) {
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

#[track_caller]
fn close(server: &Server, mut wire: Wire) {
    let id = wire.client_id();
    wire.close();
    server.await_client_gone(id);
}

/// Fields of the only holder that `DLOCK.INFO` shows.
#[track_caller]
fn ties(c: &mut Connection, key: &str) -> (u64, u64) {
    let lock: HashMap<String, Value> = c.ask(&format!("DLOCK.INFO {key}"));
    let holders: Vec<HashMap<String, Value>> =
        from_redis_value(&lock["holders"]).expect("an array of maps");
    let [holder] = &holders[..] else {
        panic!("{holders:?}")
    };
    let field = |name: &str| from_redis_value(&holder[name]).expect("a number");
    (field("session"), field("auto"))
}

/// As long as the connection is open; then the lease runs on to its end.
#[test]
fn the_server_renews_while_the_connection_is_open() {
    let (server, mut c, mut alice, token) = alice();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    assert_eq!(ties(&mut c, "k"), (0, 0));
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 0");
    assert_eq!(stat(&server, "auto_renewed"), 1);
    assert_eq!(ties(&mut c, "k"), (0, 1));
    await_another_lease(&mut c, "k", first_end);
    assert!(is_held(&mut c, "k", "alice"));
    assert!(stat(&server, "auto_renewals_total") >= 3);
    assert!(stat(&server, "renewals_total") > stat(&server, "auto_renewals_total"));
    // Still the same hold.
    assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
    close(&server, alice);
    await_no_renewals(&server);
    let end = end_of(&mut c, "k");
    assert!(end > 0, "the lease runs on");
    assert_eq!(ends.payload(), format!("expired {token}"));
    let (now_s, now_us): (u64, u64) = c.ask("TIME");
    assert!(now_s * 1_000 + now_us / 1_000 >= end);
    assert_sound(&server);
}

/// Who waits for a lock that is renewed has it when the lease ends that ran when the connection ended.
#[test]
fn who_waits_gets_the_lock_after_the_last_lease() {
    let (server, mut c, mut alice, token) = alice();
    alice.ask::<u64>("DLOCK.RENEW k alice 8000 AUTO 0");
    let bob = wait_as(&server, "bob");
    // A lock that somebody waits for has no end of its own: what is left of the lease says it.
    let renewed = stat(&server, "auto_renewals_total");
    await_until("it was renewed for more than a lease", PATIENCE, || {
        assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
        stat(&server, "auto_renewals_total") >= renewed + 5
    });
    assert!(bob.is_blocked(&server));
    alice.close();
    assert!(bob.reply::<Grant>().0 > token);
    assert_eq!(stat(&server, "expired_total"), 1);
    assert_sound(&server);
}

#[test]
fn with_a_session_the_hold_ends_with_the_connection() {
    let (server, mut c, mut alice, token) = alice();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    renew(&mut c, &mut alice, "600000 SESSION AUTO 0");
    assert_eq!(ties(&mut c, "k"), (1, 1));
    assert_eq!(
        (stat(&server, "sessions"), stat(&server, "auto_renewed")),
        (1, 1)
    );
    let bob = wait_as(&server, "bob");
    alice.close();
    bob.reply::<Grant>();
    assert_eq!(ends.payload(), format!("session {token}"));
    assert_eq!(
        (stat(&server, "sessions"), stat(&server, "auto_renewed")),
        (0, 0)
    );
}

/// For so long from the command on, whatever the connection does.
#[test]
fn it_ends_after_the_time_that_was_asked_for() {
    const FOR_MS: u64 = 5_000;
    let (server, mut c, mut alice, token) = alice();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 5000");
    let mut end = first_end;
    await_until("the time is over", PATIENCE, || {
        end = end.max(end_of(&mut c, "k"));
        stat(&server, "auto_renewed") == 0
    });
    end = end.max(end_of(&mut c, "k"));
    // The command came when the first lease began; a millisecond for each of the two clocks.
    let asked = first_end - LEASE_MS;
    assert!(
        end > first_end && end <= asked + FOR_MS + LEASE_MS + 2,
        "{asked} {end}"
    );
    assert_eq!(ends.payload(), format!("expired {token}"));
    assert_eq!(alice.ask::<String>("PING"), "PONG");
    assert_sound(&server);
}

#[test]
fn the_last_renewal_decides() {
    let (server, mut c, mut alice, token) = alice();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    renew(&mut c, &mut alice, "8000 SESSION AUTO 0");
    // Without AUTO the server renews no more; the session stays.
    renew(&mut c, &mut alice, "600000");
    assert_eq!(ties(&mut c, "k"), (1, 0));
    renew(&mut c, &mut alice, "600000 AUTO 0");
    assert_eq!(ties(&mut c, "k"), (1, 1));
    c.run("DLOCK.RENEW k alice 600000");
    assert_eq!(ties(&mut c, "k"), (1, 0), "whoever sends it");
    // A hold that is not renewed ends, however open its connection.
    c.run("DLOCK.RENEW k alice 300");
    assert_eq!(ends.payload(), format!("expired {token}"));
    assert_eq!(alice.ask::<String>("PING"), "PONG");
    assert_eq!(stat(&server, "sessions"), 0);
}

/// A hold is tied to one connection at most, and as the last command said that tied it.
#[test]
fn the_tie_moves_to_who_asks_last() {
    for (first, second, ends_with_second) in [
        ("SESSION AUTO 0", "AUTO 0", false),
        ("AUTO 0", "SESSION AUTO 0", true),
        ("AUTO 0", "AUTO 0", false),
        ("SESSION", "AUTO 0", false),
    ] {
        let (server, mut c, mut alice, _) = alice();
        renew(&mut c, &mut alice, &format!("600000 {first}"));
        let mut second_wire = server.wire();
        renew(&mut c, &mut second_wire, &format!("600000 {second}"));
        close(&server, alice);
        assert_eq!(stat(&server, "auto_renewed"), 1, "{first}, {second}");
        assert!(is_held(&mut c, "k", "alice"), "{first}, {second}");
        second_wire.close();
        await_no_renewals(&server);
        await_until("a session has ended its hold", PATIENCE, || {
            is_held(&mut c, "k", "alice") != ends_with_second
        });
        assert_sound(&server);
    }
    // A request with SESSION as well.
    let (server, mut c, mut alice, _) = alice();
    renew(&mut c, &mut alice, "600000 AUTO 0");
    let mut other = server.wire();
    other.ask::<Grant>("DLOCK.ACQUIRE k alice 600000 SESSION");
    assert_eq!(ties(&mut c, "k"), (1, 0));
    await_no_renewals(&server);
    close(&server, alice);
    assert!(is_held(&mut c, "k", "alice"));
    other.close();
    await_until("the session has ended", PATIENCE, || {
        !is_held(&mut c, "k", "alice")
    });
}

#[test]
fn many_at_once() {
    let server = Server::start();
    let mut c = server.connection();
    let mut alice = server.wire();
    alice.ask::<Vec<u64>>("DLOCK.MACQUIRE 3 a b k alice 600000");
    // A refused one ties nothing.
    for line in [
        "DLOCK.MRENEW 3 a b free alice 600000 SESSION AUTO 0",
        "DLOCK.RENEW k alice 600000 TOKEN 1 SESSION AUTO 0",
        "DLOCK.RENEW k bob 600000 AUTO 0",
    ] {
        assert!(c.refusal(line).starts_with("NOTHELD"), "{line}");
        assert_eq!(
            (stat(&server, "sessions"), stat(&server, "auto_renewed")),
            (0, 0)
        );
    }
    alice.ask::<u64>("DLOCK.MRENEW 3 a b k alice 8000 AUTO 0");
    assert_eq!(stat(&server, "auto_renewed"), 3);
    let first_end = end_of(&mut c, "k");
    for key in ["a", "b", "k"] {
        await_another_lease(&mut c, key, first_end);
    }
    alice.ask::<u64>("DLOCK.MRENEW 3 a b k alice 600000 SESSION");
    assert_eq!(
        (stat(&server, "sessions"), stat(&server, "auto_renewed")),
        (3, 0)
    );
    close(&server, alice);
    await_until("all have ended", PATIENCE, || {
        ["a", "b", "k"]
            .iter()
            .all(|key| !is_held(&mut c, key, "alice"))
    });
    assert_sound(&server);
}

/// However a hold ends, its renewals end with it.
#[test]
fn nothing_is_renewed_that_has_ended() {
    for line in [
        "DLOCK.RELEASE k alice",
        "DLOCK.FORCERELEASE k",
        "DEL k",
        "UNLINK k",
        "SET k v",
        "FLUSHALL",
        "PEXPIRE k 1",
    ] {
        let (server, mut c, mut alice, _) = alice();
        renew(&mut c, &mut alice, "600000 AUTO 0");
        c.run(line);
        await_no_renewals(&server);
        assert_eq!(alice.ask::<Value>("DLOCK.HELD free alice"), Value::Nil);
        assert_sound(&server);
    }
    // A partial release is none.
    let (server, mut c, mut alice, _) = alice();
    alice.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    renew(&mut c, &mut alice, "600000 AUTO 0");
    alice.ask::<u64>("DLOCK.RELEASE k alice");
    assert_eq!(stat(&server, "auto_renewed"), 1);
}

/// A connection that is blocked is open: the holds that a request counts on are kept for it.
#[test]
fn a_connection_that_waits_is_renewed_for() {
    let (server, mut c, mut alice, token) = alice();
    c.run("DLOCK.ACQUIRE other bob 600000");
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 0");
    alice.send("DLOCK.MACQUIRE 2 k other alice 600000 BLOCK 0");
    server.await_blocked_clients(1);
    await_another_lease(&mut c, "k", first_end);
    c.run("DLOCK.RELEASE other bob");
    let Ok(Value::Array(tokens)) = alice.read() else {
        panic!("no grant")
    };
    assert_eq!(tokens[0], Value::Int(token as i64));
}

/// The length is the lease of that RENEW, or of a longer re-entry since; an upgrade takes the tie along.
#[test]
fn re_entries_and_upgrades_keep_the_tie() {
    let (server, mut c, mut alice, _) = alice();
    renew(&mut c, &mut alice, "8000 AUTO 0");
    alice.ask::<Grant>("DLOCK.ACQUIRE k alice 20000");
    let entered = end_of(&mut c, "k");
    await_until("it is renewed", PATIENCE, || end_of(&mut c, "k") > entered);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left > LEASE_MS, "for the longer lease: {left}");
    c.run("FLUSHALL");
    let token = alice.ask::<Grant>("DLOCK.ACQUIRE k alice 600000 SHARED").0;
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 0");
    let upgraded = alice.ask::<Grant>("DLOCK.ACQUIRE k alice 8000").0;
    assert!(upgraded > token);
    assert_eq!(ties(&mut c, "k"), (0, 1));
    await_another_lease(&mut c, "k", first_end);
    assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {upgraded}")), "OK");
    assert_sound(&server);
}

/// No lease that the server renews is shorter than a second.
#[test]
fn a_short_lease_is_lengthened() {
    let (server, _, mut alice, _) = alice();
    let left: u64 = alice.ask("DLOCK.RENEW k alice 1 AUTO 0");
    assert_eq!(left, 1_000);
    let left: u64 = alice.ask("DLOCK.MRENEW 1 k alice 1 AUTO 0");
    assert_eq!(left, 1_000);
    let left: u64 = alice.ask("DLOCK.RENEW k alice 600000 AUTO 0");
    assert_eq!(left, LONG_MS);
    assert_sound(&server);
}

/// `dlock.max-hold-ms` bounds it, as every renewal.
#[test]
fn the_longest_hold_bounds_it() {
    const AGE_MS: u64 = 10_000;
    let server = Server::builder()
        .config("dlock.max-hold-ms", AGE_MS)
        .start();
    let mut c = server.connection();
    let mut alice = server.wire();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 8000");
    renew(&mut c, &mut alice, "8000 AUTO 0");
    await_no_renewals(&server);
    assert!(stat(&server, "auto_renewals_total") >= 1);
    // The token says when it was granted, in microseconds.
    assert_eq!(end_of(&mut c, "k"), token / 1_000 + AGE_MS);
    assert_eq!(ends.payload(), format!("expired {token}"));
    assert_eq!(alice.ask::<String>("PING"), "PONG");
}

/// Nothing is renewed in a pause; what is due then is done after it, if the lease still runs.
#[test]
fn a_pause_puts_renewals_off() {
    let (server, mut c, mut alice, token) = alice();
    alice.ask::<u64>("DLOCK.RENEW k alice 20000 AUTO 0");
    c.run("CLIENT PAUSE 60000 WRITE");
    // It is due when a third has passed.
    await_until("a renewal is overdue", PATIENCE, || {
        let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
        left < 13_000
    });
    assert_eq!(stat(&server, "auto_renewals_total"), 0);
    c.run("CLIENT UNPAUSE");
    await_until("it is renewed", PATIENCE, || {
        stat(&server, "auto_renewals_total") >= 1
    });
    assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
    // One that lasts beyond the lease: then the hold has ended, and stays so.
    let bob = wait_as(&server, "bob");
    let renewed = stat(&server, "auto_renewals_total");
    alice.ask::<u64>("DLOCK.RENEW k alice 8000 AUTO 0");
    c.run("CLIENT PAUSE 60000 WRITE");
    await_until("the lease is over", PATIENCE, || {
        !is_held(&mut c, "k", "alice")
    });
    c.run("CLIENT UNPAUSE");
    assert!(bob.reply::<Grant>().0 > token);
    await_no_renewals(&server);
    assert!(
        stat(&server, "auto_renewals_total") <= renewed + 1,
        "one may have come before the pause"
    );
    assert_sound(&server);
}

/// Replicas and the AOF see the ends of the leases, as of every renewal; the tie is of this run and this role.
#[test]
fn renewals_are_replicated_and_saved() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let replica = Server::start();
    replica.replica_of(&server);
    let (mut c, mut r) = (server.connection(), replica.connection());
    let mut alice = server.wire();
    alice.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    let first_end = renew(&mut c, &mut alice, "8000 AUTO 0");
    await_another_lease(&mut c, "k", first_end);
    await_until("the replica has the same", PATIENCE, || {
        replica.wait_in_sync(&server);
        kept(&mut c, "k") == kept(&mut r, "k")
    });
    assert!(end_of(&mut r, "k") > first_end + LEASE_MS);
    assert_eq!(stat(&replica, "auto_renewed"), 0);
    // Long, so that it outlives the restart; renewed once more by the server itself.
    let end = renew(&mut c, &mut alice, "12000 AUTO 0");
    await_until("it was renewed", PATIENCE, || end_of(&mut c, "k") > end);
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

/// Who is demoted renews nothing, and does not begin again when it is promoted.
#[test]
fn a_demotion_ends_it() {
    let (server, mut c, mut alice, _) = alice();
    let other = Server::start();
    other.replica_of(&server);
    alice.ask::<u64>("DLOCK.RENEW k alice 600000 SESSION AUTO 0");
    other.wait_in_sync(&server);
    other.promote();
    c.run(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    await_no_renewals(&server);
    assert_eq!(stat(&server, "sessions"), 0);
    // At the new primary the client ties it anew.
    let mut again = other.wire();
    assert_eq!(stat(&other, "auto_renewed"), 0);
    again.ask::<u64>("DLOCK.RENEW k alice 600000 SESSION AUTO 0");
    assert_eq!(stat(&other, "auto_renewed"), 1);
    c.run("REPLICAOF NO ONE");
    alice.close();
    again.close();
    await_until("the session has ended at the new primary", PATIENCE, || {
        !is_held(&mut other.connection(), "k", "alice")
    });
    assert_eq!(stat(&server, "auto_renewed"), 0);
    assert_sound(&server);
    assert_sound(&other);
}

/// Ways in which alice's lock `k` gets another name or database, in which it then is; or none.
const LEAVES: [(&str, Option<(i64, &str)>); 12] = [
    ("RENAME k j", Some((0, "j"))),
    ("RENAMENX k j", Some((0, "j"))),
    ("MOVE k 3", Some((3, "k"))),
    ("SWAPDB 0 3", Some((3, "k"))),
    ("MULTI, RENAME k j, EXEC", Some((0, "j"))),
    ("MULTI, MOVE k 3, EXEC", Some((3, "k"))),
    (
        "MULTI, MOVE k 3, DLOCK.ACQUIRE k next 600000, EXEC",
        Some((3, "k")),
    ),
    (
        "MULTI, DLOCK.HELD k alice, RENAME k j, EXEC",
        Some((0, "j")),
    ),
    (
        "MULTI, DLOCK.RENEW k alice 8000 TOKEN $ SESSION AUTO 0, MOVE k 3, EXEC",
        Some((3, "k")),
    ),
    ("DLOCK.GUARD k $ RENAME k j", Some((0, "j"))),
    ("DLOCK.GUARD k $ MOVE k 3", Some((3, "k"))),
    ("MULTI, RENAME k j, DEL j, EXEC", None),
];

/// What is tied is a hold under a name: under another one the lease runs on, and nothing is left of the tie.
#[test]
fn a_lock_that_is_renamed_or_moved_loses_its_tie() {
    for (line, place) in LEAVES {
        println!("{line}");
        let (server, mut c, mut alice, token) = alice();
        alice.ask::<u64>("DLOCK.RENEW k alice 60000 SESSION AUTO 0");
        for line in line.replace('$', &token.to_string()).split(", ") {
            c.run(line);
        }
        await_until("nothing is tied", PATIENCE, || {
            (stat(&server, "sessions"), stat(&server, "auto_renewed")) == (0, 0)
        });
        let Some((db, key)) = place else {
            assert_sound(&server);
            continue;
        };
        let mut there = server.connection_in(db);
        assert_eq!(ties(&mut there, key), (0, 0));
        let renewals = stat(&server, "auto_renewals_total");
        close(&server, alice);
        // The lease runs on, to its end; there it can be tied anew.
        assert!(is_held(&mut there, key, "alice"));
        let mut again = server.wire();
        again.ask::<String>(&format!("SELECT {db}"));
        let left: u64 = again.ask(&format!(
            "DLOCK.RENEW {key} alice 4000 TOKEN {token} SESSION AUTO 0"
        ));
        assert_eq!(left, 4_000);
        await_until("it is renewed", PATIENCE, || {
            stat(&server, "auto_renewals_total") > renewals
        });
        again.close();
        await_until("the session has ended", PATIENCE, || {
            !is_held(&mut there, key, "alice")
        });
        await_no_renewals(&server);
        assert_sound(&server);
    }
}

/// The bound is for a connection that says nothing. One that waits cannot say anything.
#[test]
fn the_bound_does_not_run_out_while_the_connection_waits() {
    let (server, mut c, mut alice, _) = alice();
    c.run("DLOCK.ACQUIRE other bob 600000");
    alice.ask::<u64>("DLOCK.RENEW k alice 6000 AUTO 1");
    alice.send("DLOCK.MACQUIRE 2 k other alice 600000 BLOCK 0");
    server.await_blocked_clients(1);
    await_until("it was renewed again and again", PATIENCE, || {
        assert!(is_held(&mut c, "k", "alice"));
        stat(&server, "auto_renewals_total") >= 3
    });
    c.run("DLOCK.CANCEL other alice");
    assert_eq!(alice.read(), Ok(Value::Nil));
    await_no_renewals(&server);
    // It is tied all the same: a hold that is not renewed is one that ends.
    await_until("the lease is over", PATIENCE, || {
        !is_held(&mut c, "k", "alice")
    });
    assert_sound(&server);
}

/// AUTO needs leases of a second. Where they are allowed no longer, it goes on with those that are.
#[test]
fn no_renewal_goes_beyond_the_longest_lease() {
    for setting in ["dlock.max-lease-ms", "dlock.quarantine-ms"] {
        let (server, mut c, mut alice, _) = alice();
        c.run(&format!("CONFIG SET {setting} 999"));
        let must = "ERR AUTO must be left out: it needs leases of 1000 ms, and the longest that is allowed is 999 ms";
        for line in [
            "DLOCK.RENEW k alice 500 AUTO 0",
            "DLOCK.MRENEW 1 k alice 500 SESSION AUTO 0",
        ] {
            assert_eq!(c.refusal(line), must, "{setting}");
        }
        assert_eq!(
            (stat(&server, "sessions"), stat(&server, "auto_renewed")),
            (0, 0)
        );
        c.run(&format!("CONFIG SET {setting} 60000"));
        alice.ask::<u64>("DLOCK.RENEW k alice 8000 AUTO 0");
        c.run(&format!("CONFIG SET {setting} 4000"));
        let renewals = stat(&server, "auto_renewals_total");
        await_until("it was renewed", PATIENCE, || {
            stat(&server, "auto_renewals_total") > renewals
        });
        // It may be a renewal of before, of which more is left.
        await_until("no lease is longer than allowed", PATIENCE, || {
            let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
            left <= 4_000
        });
        assert_sound(&server);
    }
}

#[test]
fn refused_without_a_connection_of_one_s_own() {
    let (server, mut c, mut alice, _) = alice();
    for option in ["SESSION", "AUTO"] {
        let words = if option == "AUTO" {
            "'AUTO', '0'"
        } else {
            "'SESSION'"
        };
        for call in [
            format!("'DLOCK.RENEW', KEYS[1], 'alice', '600000', {words}"),
            format!("'DLOCK.MRENEW', '1', KEYS[1], 'alice', '600000', {words}"),
        ] {
            let script = format!("return redis.pcall({call})");
            let error = c.answer(cmd("EVAL").arg(script).arg(1).arg("k"));
            let error = error.expect_err("a refusal");
            let refusal = format!("ERR {option} needs a client connection");
            assert!(error.starts_with(&refusal), "{error}");
        }
    }
    assert_eq!(
        (stat(&server, "sessions"), stat(&server, "auto_renewed")),
        (0, 0)
    );
    // A transaction is the connection's own.
    for line in ["MULTI", "DLOCK.RENEW k alice 600000 AUTO 0", "EXEC"] {
        alice.ask::<Value>(line);
    }
    assert_eq!(ties(&mut c, "k"), (0, 1));
    close(&server, alice);
    await_no_renewals(&server);
}

#[test]
fn only_numbers_that_may_be() {
    let (_server, mut c, _alice, _) = alice();
    let must = "ERR AUTO must be an integer from 0 to 3155760000000";
    for verb in ["DLOCK.RENEW k alice", "DLOCK.MRENEW 1 k alice"] {
        for number in ["-1", "3155760000001", "9223372036854775808", "x", ""] {
            let line = format!("{verb} 600000 AUTO {number}");
            assert_eq!(c.refusal(&line), must, "{line}");
        }
        let twice = format!("{verb} 600000 AUTO 0 AUTO 0");
        assert_eq!(c.refusal(&twice), "ERR AUTO is given twice");
        assert_eq!(
            c.ask::<u64>(&format!("{verb} 600000 auto 3155760000000")),
            LONG_MS
        );
    }
    // A request asks for it with a bound.
    let error = c.refusal("DLOCK.ACQUIRE free alice 600000 AUTO 0");
    assert_eq!(error, "ERR AUTO must be an integer from 1 to 4294967295");
}

/// How many keys have the same end, for each that has one: the holds that were renewed in one millisecond.
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

/// Twenty thousand holds that were tied in one moment are renewed about once a second: none is lost, and there is no burst.
#[test]
fn a_mass_is_renewed_without_a_burst() {
    let server = Server::start();
    let (mut holds, mut looks) = (server.wire(), server.wire());
    holds.pipeline((0..MASS).map(|at| format!("DLOCK.ACQUIRE mass:{at} alice 600000")));
    // In one moment, by the module's clock.
    let renewals = (0..MASS).step_by(AT_ONCE).map(|first| {
        let keys = (first..first + AT_ONCE).map(|at| format!("mass:{at} "));
        let keys: String = keys.collect();
        format!("DLOCK.MRENEW {AT_ONCE} {keys} alice 12000 AUTO 0")
    });
    let begin = iter::once("MULTI".to_owned());
    holds.pipeline(begin.chain(renewals).chain(iter::once("EXEC".to_owned())));
    assert_eq!(stat(&server, "auto_renewed"), MASS as u64);
    for round in 1..=2 {
        await_until("all were renewed", PATIENCE, || {
            stat(&server, "auto_renewals_total") >= (round * MASS) as u64
        });
        let together = renewed_together(&mut looks);
        let most = together.values().max().copied().unwrap_or_default();
        println!(
            "{}: {most} at most in a millisecond, {} of them",
            server.version(),
            together.len()
        );
        assert!(most < MASS / 20, "{most} in one millisecond");
        let times = together.len();
        assert!(times > MASS / 200, "all in {times} different milliseconds");
    }
    assert_eq!(stat(&server, "auto_renewed"), MASS as u64);
    assert_eq!(stat(&server, "expired_total"), 0);
    holds.close();
    await_no_renewals(&server);
    assert_eq!(stat(&server, "holders"), MASS as u64, "the leases run on");
    assert_sound(&server);
}

/// A wait that nobody reads ends with its short first lease: only who has read the grant has it renewed.
#[test]
fn a_grant_that_nobody_confirms_ends_by_itself() {
    let (server, mut c, mut alice, token) = alice();
    let ends = Subscriber::channels(&server, &["__dlock@0__:k"]);
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 300 BLOCK 0");
    let carol = wait_as(&server, "carol");
    alice.ask::<u64>("DLOCK.RELEASE k alice");
    let (given, _): Grant = bob.reply();
    carol.reply::<Grant>();
    let ended = [ends.payload(), ends.payload()];
    assert_eq!(
        ended,
        [format!("released {token}"), format!("expired {given}")]
    );
    // Too late, and for the wrong hold.
    let late = format!("DLOCK.RENEW k bob 600000 TOKEN {given} AUTO 0");
    assert!(c.refusal(&late).starts_with("NOTHELD"));
    assert_eq!(stat(&server, "auto_renewed"), 0);
}
