//! Answers that replicas confirm (`dlock.replicas`), on real groups of servers: when they come, what happens without a
//! confirmation, and which replicas count.

use dlock_harness::redis::Value;
use dlock_harness::{
    assert_sound, assert_sound_log, await_until, stat, Ask, Grant, News, Server, ServerBuilder,
    Wire, PATIENCE,
};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than everything that happens in a test.
const LONG_MS: u64 = 600_000;

/// A primary and its replicas, all of which count.
pub(super) struct Group {
    pub(super) primary: Server,
    replicas: Vec<Server>,
}

/// Returns a server that needs `replicas` replicas, with a quarantine of moments.
fn server(replicas: usize) -> ServerBuilder {
    let builder = Server::builder().module_argument("replicas");
    let builder = builder.module_argument(replicas);
    builder
        .module_argument("quarantine-ms")
        .module_argument(200)
}

impl Group {
    pub(super) fn start(replicas: usize) -> Group {
        Group::of(replicas, server(replicas))
    }

    fn of(replicas: usize, server: ServerBuilder) -> Group {
        let start = || server.clone().start();
        let primary = start();
        let replicas: Vec<Server> = (0..replicas).map(|_| start()).collect();
        for replica in &replicas {
            replica.replica_of(&primary);
        }
        let group = Group { primary, replicas };
        group.await_counting(group.replicas.len());
        await_until("the primary's own quarantine is over", PATIENCE, || {
            stat(&group.primary, "closed") == 0 && stat(&group.primary, "joins_count_late_ms") == 0
        });
        for replica in &group.replicas {
            await_until("a replica's own quarantine is over", PATIENCE, || {
                stat(replica, "closed_left_ms") == 0 && stat(replica, "joins_count_late_ms") == 0
            });
        }
        group.set("quarantine-ms", LONG_MS);
        group
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Server> {
        std::iter::once(&self.primary).chain(&self.replicas)
    }

    pub(super) fn set(&self, setting: &str, value: u64) {
        for server in self.all() {
            server
                .connection()
                .run(&format!("CONFIG SET dlock.{setting} {value}"));
        }
    }

    #[track_caller]
    fn await_counting(&self, count: usize) {
        await_counting(&self.primary, count);
    }

    fn freeze(&self) {
        self.replicas.iter().for_each(Server::freeze);
    }

    /// Sets how long an answer waits at least.
    fn set_ack_timeout(&self, ms: u64) {
        let setting = format!("CONFIG SET dlock.ack-timeout-ms {ms}");
        self.primary.connection().run(&setting);
    }

    /// Returns a connection that has sent the line, and waits for replicas to confirm the answer.
    #[track_caller]
    fn unconfirmed(&self, line: &str) -> Wire {
        let before = stat(&self.primary, "confirmations_waiting");
        let mut wire = self.primary.connection();
        wire.send(line);
        await_unconfirmed(&self.primary, before + 1);
        wire
    }

    fn thaw(&self) {
        self.replicas.iter().for_each(Server::thaw);
    }

    fn end(self) {
        self.all().for_each(assert_sound);
    }
}

#[track_caller]
fn await_counting(primary: &Server, count: usize) {
    await_until(&format!("{count} replicas count"), PATIENCE, || {
        stat(primary, "replicas_counting") == count as u64
    });
}

/// Returns the text of the next error.
#[track_caller]
fn refused(wire: &mut Wire, line: &str) -> String {
    wire.send(line);
    match wire.read() {
        Err(error) => error,
        Ok(value) => panic!("{line:?} was answered {value:?}"),
    }
}

const LATE: &str = "replicas have confirmed it in time; it may have taken effect";
const TOO_FEW: &str = " can confirm it; nothing has changed";

#[track_caller]
fn assert_late(error: &str) {
    assert!(
        error.starts_with("NOACK ") && error.ends_with(LATE),
        "{error}"
    );
}

/// Waits until `count` answers wait for their confirmation.
#[track_caller]
fn await_unconfirmed(primary: &Server, count: u64) {
    await_until(&format!("{count} answers wait"), PATIENCE, || {
        stat(primary, "confirmations_waiting") == count
    });
}

/// Waits until the lock `k` has no holder.
#[track_caller]
fn await_given_back(primary: &Server) {
    let mut c = primary.connection();
    await_until("it is given back", PATIENCE, || {
        c.ask::<Option<Value>>("DLOCK.HELD k").is_none()
    });
}

/// With r replicas the answer comes when (r + 1) / 2 of them have confirmed it, and not before.
#[test]
fn an_answer_comes_when_enough_replicas_have_confirmed_it() {
    for (replicas, needed) in [(1, 1), (2, 1), (3, 2)] {
        let group = Group::start(replicas);
        assert_eq!(stat(&group.primary, "replicas_needed"), needed as u64);
        group.freeze();
        let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000 BLOCK 0");
        let mut thawed = group.replicas.iter();
        for replica in thawed.by_ref().take(needed - 1) {
            replica.thaw();
            await_until("it has confirmed", PATIENCE, || {
                let info = group.primary.info("replication");
                let lines = (0..replicas).map(|at| info.text(&format!("slave{at}")));
                let end = format!("offset={}", info.number::<u64>("master_repl_offset"));
                lines.filter(|line| line.contains(&end)).count() >= needed - 1
            });
            assert_eq!(stat(&group.primary, "confirmations_waiting"), 1);
        }
        assert!(!wire.has_something());
        // For all others it is held, and INFO shows the missing confirmation.
        let mut other = group.primary.connection();
        assert_eq!(other.ask::<Option<Grant>>("DLOCK.ACQUIRE k bob"), None);
        assert_eq!(acked(&group.primary, "k"), 0);
        thawed.next().expect("one more").thaw();
        wire.read().expect("a grant");
        assert_eq!(acked(&group.primary, "k"), 1);
        group.thaw();
        group.end();
    }
}

/// Returns whether the only holder is acknowledged, as INFO shows it.
fn acked(server: &Server, key: &str) -> u64 {
    let mut wire = server.connection();
    wire.send(&format!("DLOCK.INFO {key}"));
    let text = format!("{:?}", wire.read().expect("a lock"));
    let at = text.find("acked").expect("the field");
    let rest = &text[at..];
    let digits = rest.chars().skip_while(|c| !c.is_ascii_digit());
    let digits: String = digits.take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A new hold is revoked; a re-entry, an upgrade and a renewal are not undone.
#[test]
fn what_is_not_confirmed_in_time_is_refused() {
    let group = Group::start(1);
    let mut wire = group.primary.connection();
    let (token, _): Grant = wire.ask("DLOCK.ACQUIRE mine alice 30000 SHARED");
    group.freeze();
    group.set_ack_timeout(30);
    for line in [
        "DLOCK.ACQUIRE k alice 30000",
        "DLOCK.ACQUIRE k alice 30000 BLOCK 1",
        "DLOCK.FAIRACQUIRE k alice 30000 CLAIM 1",
        "DLOCK.MACQUIRE 2 k l alice 30000",
    ] {
        assert_late(&refused(&mut wire, line));
        for key in ["k", "l"] {
            await_until("it is given back", PATIENCE, || {
                wire.ask::<Value>(&format!("DLOCK.HELD {key}")) == Value::Nil
            });
        }
    }
    let held = |wire: &mut Wire| wire.ask::<(u64, u64, u64)>("DLOCK.HELD mine alice");
    assert_late(&refused(&mut wire, "DLOCK.ACQUIRE mine alice 30000 SHARED"));
    assert_eq!(held(&mut wire).1, 2);
    assert_late(&refused(&mut wire, "DLOCK.RENEW mine alice 60000"));
    assert!(held(&mut wire).2 > 30_000);
    assert_late(&refused(&mut wire, "DLOCK.MRENEW 1 mine alice 90000"));
    assert!(held(&mut wire).2 > 60_000);
    assert_late(&refused(&mut wire, "DLOCK.ACQUIRE mine alice 30000"));
    let (upgraded, holds, _) = held(&mut wire);
    assert!(upgraded > token && holds == 3, "the upgrade stands");
    group.set_ack_timeout(LONG_MS);
    group.thaw();
    let (_, holds) = wire.ask::<Grant>("DLOCK.ACQUIRE mine alice 30000 HOLDS 1");
    assert_eq!(holds, 3);
    assert!(stat(&group.primary, "unconfirmed_total") >= 8);
    group.end();
}

#[test]
fn giving_back_and_looking_wait_for_nobody() {
    let group = Group::start(1);
    let mut wire = group.primary.connection();
    wire.ask::<Grant>("DLOCK.ACQUIRE k alice 30000 SHARED HOLDS 2");
    group.freeze();
    wire.ask::<(u64, u64, u64)>("DLOCK.HELD k alice");
    assert_eq!(wire.ask::<u64>("DLOCK.RELEASE k alice"), 1);
    assert_eq!(wire.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_eq!(wire.ask::<u64>("DLOCK.FORCERELEASE k"), 0);
    assert_eq!(stat(&group.primary, "confirmations_waiting"), 0);
    group.thaw();
    group.end();
}

/// `BLOCK 0` waits for a hanging replica for as long as that hangs; its hand-over is confirmed like an immediate grant.
#[test]
fn a_wait_without_bound_waits_for_its_confirmation_too() {
    let group = Group::start(1);
    let mut holder = group.primary.connection();
    holder.ask::<Grant>("DLOCK.ACQUIRE k alice 30000");
    let mut waiter = group.primary.connection();
    waiter.send("DLOCK.ACQUIRE k bob 30000 BLOCK 0");
    group.primary.await_blocked_clients(1);
    group.set_ack_timeout(1);
    group.freeze();
    holder.ask::<u64>("DLOCK.RELEASE k alice");
    await_unconfirmed(&group.primary, 1);
    sleep(Duration::from_millis(100));
    assert!(!waiter.has_something());
    group.thaw();
    waiter.read().expect("a grant");
    group.end();
}

/// A server that was busy or suspended when the time of an answer was up: what replicas have sent meanwhile counts.
#[test]
fn a_late_server_reads_confirmations_before_time_is_up() {
    const PATIENCE_MS: u64 = 1_500;
    for stands_still in [true, false] {
        let group = Group::start(1);
        let (primary, replica) = (&group.primary, &group.replicas[0]);
        group.freeze();
        group.set_ack_timeout(PATIENCE_MS);
        let mut answer = group.unconfirmed("DLOCK.ACQUIRE k alice 600000");
        let decided = Instant::now();
        let offset: u64 = primary.info("replication").number("master_repl_offset");
        let mut busy = primary.connection();
        match stands_still {
            true => primary.freeze(),
            false => busy.send(&format!("DEBUG SLEEP {}", 2 * PATIENCE_MS / 1_000)),
        }
        group.thaw();
        await_until("the replica has confirmed it", PATIENCE, || {
            let info = replica.info("replication");
            info.number::<u64>("slave_repl_offset") >= offset
        });
        await_until("its time is up", PATIENCE, || {
            decided.elapsed() > Duration::from_millis(PATIENCE_MS)
        });
        primary.thaw();
        answer.read().expect("a grant");
        group.end();
    }
}

/// A connection that has ended before the confirmation, or that the operator has unblocked, loses the hold.
#[test]
fn an_unconfirmed_hold_of_a_connection_that_ends_is_given_back() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    group.freeze();
    let gone = || {
        await_given_back(&group.primary);
        assert_eq!(stat(&group.primary, "confirmations_waiting"), 0);
    };
    let ask = || {
        let mut wire = group.primary.connection();
        let id = wire.client_id();
        wire.send("DLOCK.ACQUIRE k alice 30000 BLOCK 0");
        await_unconfirmed(&group.primary, 1);
        (wire, id)
    };
    let (wire, _) = ask();
    drop(wire);
    gone();
    let (mut wire, id) = ask();
    c.run(&format!("CLIENT UNBLOCK {id} TIMEOUT"));
    assert_late(&wire.read().expect_err("no grant"));
    gone();
    let (mut wire, id) = ask();
    c.run(&format!("CLIENT UNBLOCK {id} ERROR"));
    let error = wire.read().expect_err("no grant");
    assert!(error.starts_with("UNBLOCKED"), "{error}");
    gone();
    group.thaw();
    group.end();
}

/// A hold that ends before its confirmation is not answered as held; one that a later command has found is not revoked.
#[test]
fn what_others_did_before_the_confirmation_stands() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    group.freeze();
    let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000 BLOCK 0");
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    group.thaw();
    assert_eq!(
        wire.read().expect_err("the hold has ended"),
        "NOACK the hold had ended before replicas confirmed it"
    );
    // A repeated request, and a renewal, before the time is up.
    for line in [
        "DLOCK.ACQUIRE k alice 30000 HOLDS 1 BLOCK 0",
        "DLOCK.RENEW k alice 30000",
    ] {
        group.freeze();
        group.set_ack_timeout(4_000);
        let mut first = group.unconfirmed("DLOCK.ACQUIRE k alice 30000");
        group.set_ack_timeout(LONG_MS);
        let mut second = group.unconfirmed(line);
        assert_late(&first.read().expect_err("too late"));
        group.thaw();
        second.read().expect("confirmed");
        assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD k alice").1, 1);
        c.run("DLOCK.RELEASE k alice");
    }
    group.end();
}

/// With too few replicas the server neither grants nor renews, and everything else continues; waiters are granted when the replicas
/// are back.
#[test]
fn with_too_few_replicas_it_is_as_in_a_quarantine() {
    let mut group = Group::start(1);
    let mut wire = group.primary.connection();
    wire.ask::<Grant>("DLOCK.ACQUIRE mine alice 30000 EPHEMERAL");
    group.replicas[0].kill9();
    group.await_counting(0);
    for line in [
        "DLOCK.ACQUIRE k alice 30000",
        "DLOCK.FAIRACQUIRE k alice 30000",
        "DLOCK.MACQUIRE 2 k l alice 30000",
        "DLOCK.ACQUIRE mine alice 30000",
        "DLOCK.RENEW mine alice 30000",
        "DLOCK.MRENEW 1 mine alice 30000",
    ] {
        let error = refused(&mut wire, line);
        assert!(
            error.starts_with("NOACK 0 of 1 ") && error.ends_with(TOO_FEW),
            "{line}: {error}"
        );
    }
    assert_eq!(stat(&group.primary, "closed_too_few"), 1);
    assert!(stat(&group.primary, "refused_noack_total") >= 6);
    let mut waiter = group.primary.connection();
    waiter.send("DLOCK.ACQUIRE k bob 30000 BLOCK 0");
    group.primary.await_blocked_clients(1);
    assert_eq!(wire.ask::<u64>("DLOCK.RELEASE mine alice"), 0);
    // With one replica it counts at once, however it has joined.
    let again = server(1).start();
    again.replica_of(&group.primary);
    waiter.read().expect("a grant");
    assert_eq!(stat(&group.primary, "replicas_joined_full"), 1);
    assert_sound(&group.primary);
}

/// Where a caller cannot wait, the server makes no decision that would need a confirmation.
#[test]
fn who_cannot_wait_is_refused_and_nothing_has_changed() {
    let group = Group::start(1);
    let mut wire = group.primary.connection();
    let barred = "NOACK the server cannot block this caller until replicas have confirmed it (dlock.replicas); nothing has changed";
    for line in [
        "DLOCK.ACQUIRE k alice 30000",
        "DLOCK.ACQUIRE k alice 30000 BLOCK 0",
        "DLOCK.MACQUIRE 1 k alice",
        "DLOCK.RENEW k alice",
        "DLOCK.MRENEW 1 k alice",
    ] {
        wire.ask::<String>("MULTI");
        wire.ask::<String>(line);
        wire.send("EXEC");
        let answers = format!("{:?}", wire.read());
        assert!(
            answers.contains("NOACK") || answers.contains("NoAck"),
            "{line}: {answers}"
        );
        assert_eq!(wire.ask::<Value>("DLOCK.HELD k"), Value::Nil, "{line}");
    }
    let mut c = group.primary.connection();
    let script = dlock_harness::redis::cmd("EVAL")
        .arg("return redis.pcall('DLOCK.ACQUIRE', KEYS[1], 'alice')['err']")
        .arg(1)
        .arg("k")
        .query::<String>(&mut c)
        .expect("the error's text");
    assert!(script.starts_with(barred), "{script}");
    // Releases work there.
    wire.ask::<Grant>("DLOCK.ACQUIRE k alice 30000");
    wire.ask::<String>("MULTI");
    wire.ask::<String>("DLOCK.RELEASE k alice");
    assert_eq!(wire.ask::<Vec<u64>>("EXEC"), [0]);
    group.end();
}

/// In a pause the time-out is answered, and the hold is revoked afterwards.
#[test]
fn in_a_pause_the_time_out_is_told() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    group.freeze();
    group.set_ack_timeout(3_000);
    let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000");
    c.run("CLIENT PAUSE 600000 WRITE");
    assert_late(&wire.read().expect_err("too late"));
    assert!(c.ask::<Option<Value>>("DLOCK.HELD k").is_some());
    c.run("CLIENT UNPAUSE");
    await_given_back(&group.primary);
    group.thaw();
    group.end();
}

/// Waiting answers follow the current setting.
#[test]
fn a_setting_that_changes_is_heeded_by_what_waits() {
    let group = Group::start(3);
    let mut c = group.primary.connection();
    group.freeze();
    let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000 BLOCK 0");
    c.run("CONFIG SET dlock.replicas 0");
    wire.read()
        .expect("a grant: nobody needs to confirm it any more");
    wire.ask::<Grant>("DLOCK.ACQUIRE l alice 30000");
    // A recently started server would wait, so the quarantine is ended first.
    c.run("CONFIG SET dlock.quarantine-ms 1");
    c.run("CONFIG SET dlock.replicas 3");
    c.run(&format!("CONFIG SET dlock.quarantine-ms {LONG_MS}"));
    wire.send("DLOCK.ACQUIRE m alice 30000 BLOCK 0");
    await_unconfirmed(&group.primary, 1);
    group.thaw();
    wire.read().expect("a grant");
    let error = c.refusal("CONFIG SET dlock.quarantine-ms 0");
    assert!(
        error.contains("dlock.replicas needs dlock.quarantine-ms above 0"),
        "{error}"
    );
    group.end();
}

/// Whatever the order in which settings are named: a wrong pair is refused, and what an error has changed is restored.
#[test]
fn settings_are_checked_together() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    let pair = |c: &mut Wire| {
        let value = |c: &mut Wire, name: &str| -> String {
            let (_, value): (String, String) = c.ask(&format!("CONFIG GET dlock.{name}"));
            value
        };
        (value(c, "replicas"), value(c, "quarantine-ms"))
    };
    let before = pair(&mut c);
    for wrong in [
        "dlock.quarantine-ms 0",
        "dlock.quarantine-ms 0 dlock.replicas 2",
        "dlock.replicas 0 dlock.quarantine-ms 0 dlock.ack-timeout-ms -1",
        "dlock.quarantine-ms 0 dlock.replicas 0 dlock.ack-timeout-ms -1",
    ] {
        c.refusal(&format!("CONFIG SET {wrong}"));
        assert_eq!(pair(&mut c), before, "{wrong}");
    }
    c.run("CONFIG SET dlock.quarantine-ms 0 dlock.replicas 0");
    c.run("CONFIG SET dlock.replicas 1 dlock.quarantine-ms 1");
    c.run("CONFIG SET dlock.replicas 0");
    group.end();
}

/// Switched off and on again at a running primary: the connected replica counts as before.
#[test]
fn switched_on_again_it_grants_as_before() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    // Shorter than the primary has been running: it does not wait for the rest.
    c.run("CONFIG SET dlock.quarantine-ms 200");
    for _ in 0..3 {
        c.run("CONFIG SET dlock.replicas 0");
        c.run("CONFIG SET dlock.replicas 1");
        // The module notices the change by itself, before a command does.
        sleep(Duration::from_millis(50));
        let mut wire = group.primary.connection();
        await_until("it grants again", PATIENCE, || {
            wire.send("DLOCK.ACQUIRE k alice 200");
            wire.read().is_ok()
        });
    }
    group.end();
}

/// An ordinary failover: the other replica joins the promoted one by a partial resynchronisation, and counts at once.
#[test]
fn after_a_promotion_grants_go_on_as_soon_as_the_others_have_joined() {
    let mut group = Group::start(2);
    group
        .primary
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE old alice 30000");
    group
        .replicas
        .iter()
        .for_each(|replica| replica.wait_in_sync(&group.primary));
    group.primary.kill9();
    let (new, other) = (&group.replicas[0], &group.replicas[1]);
    new.promote();
    let error = refused(&mut new.connection(), "DLOCK.ACQUIRE k bob 30000");
    assert!(error.ends_with(TOO_FEW), "{error}");
    other.replica_of(new);
    await_counting(new, 1);
    assert_eq!(stat(new, "replicas_joined_partial"), 1);
    new.connection().ask::<Grant>("DLOCK.ACQUIRE k bob 30000");
    // The holds continue, and their owner's renewal is confirmed.
    assert_eq!(
        new.connection()
            .ask::<Option<Grant>>("DLOCK.ACQUIRE old bob"),
        None
    );
    new.connection().ask::<u64>("DLOCK.RENEW old alice 30000");
    assert_sound(new);
    assert_sound(other);
}

/// The second failover leaves a server alone, with its own confirmations and those of the first. Replicas that come back have
/// forgotten theirs, and count late: until then no new owner is granted a lock.
#[test]
fn two_failovers_within_a_lease_let_nobody_in_twice() {
    let mut group = Group::start(2);
    let granted = group
        .primary
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE old alice 600000");
    for replica in &group.replicas {
        replica.wait_in_sync(&group.primary);
    }
    group.primary.kill9();
    group.replicas[0].promote();
    group.replicas[1].replica_of(&group.replicas[0]);
    await_counting(&group.replicas[0], 1);
    group.replicas[0]
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE k bob 600000");
    group.replicas[0].kill9();
    let last = &group.replicas[1];
    last.promote();
    group.primary.restart();
    group.primary.replica_of(last);
    await_until("it has joined", PATIENCE, || {
        stat(last, "replicas_joined_full") == 1
    });
    let error = refused(&mut last.connection(), "DLOCK.ACQUIRE other carol 30000");
    assert!(error.ends_with(TOO_FEW), "{error}");
    let mut c = last.connection();
    assert_eq!(
        c.ask::<(u64, u64, u64)>("DLOCK.HELD old alice").0,
        granted.0
    );
    assert!(c.ask::<Option<Value>>("DLOCK.HELD k bob").is_some());
    assert_sound(last);
}

/// All servers lose their power at once. A server that writes each command to its disk has everything that it confirmed, and none
/// grants a lock before the quarantine is over.
#[test]
fn a_power_cut_of_all_loses_no_confirmed_grant() {
    let durable = server(2)
        .config("appendonly", "yes")
        .config("appendfsync", "always");
    let mut group = Group::of(2, durable);
    group
        .primary
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    let mut servers: Vec<&mut Server> = group
        .replicas
        .iter_mut()
        .chain([&mut group.primary])
        .collect();
    for server in &servers {
        server.connection().run("CONFIG REWRITE");
    }
    servers.iter_mut().for_each(|server| server.kill9());
    servers.iter_mut().for_each(|server| server.restart());
    await_until("the replicas have joined", PATIENCE, || {
        stat(&group.primary, "replicas_connected") == 2
    });
    let mut c = group.primary.connection();
    assert!(c.ask::<Option<Value>>("DLOCK.HELD k alice").is_some());
    let error = refused(
        &mut group.primary.connection(),
        "DLOCK.ACQUIRE other bob 30000",
    );
    assert!(
        error.starts_with("NOACK ") || error.starts_with("QUARANTINE "),
        "{error}"
    );
    group.end();
}

/// Without an AOF a replica keeps the file of its last full copy. Restarted from that file it has forgotten what it confirmed since,
/// joins by a partial resynchronisation, and counts at once: a second owner gets the lock. With `rdb-del-sync-files` it has no file,
/// and needs a full copy.
#[test]
fn a_replica_that_keeps_the_file_of_its_full_copy_lets_in_a_second_owner() {
    for (deletes, owners) in [("no", 2), ("yes", 1)] {
        let member = server(2)
            .config("repl-diskless-load", "disabled")
            .config("rdb-del-sync-files", deletes);
        let mut group = Group::of(2, member);
        let (lags, confirms) = (&group.replicas[0], &group.replicas[1]);
        confirms.connection().run("CONFIG REWRITE");
        // The link of one replica is cut, and the other one alone confirms.
        lags.connection().run("REPLICAOF 127.0.0.1 1");
        group.await_counting(1);
        let mut c = group.primary.connection();
        c.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
        group.primary.kill9();
        group.replicas[1].kill9();
        group.replicas[1].restart();
        let new = &group.replicas[0];
        new.promote();
        group.replicas[1].replica_of(new);
        await_until("it has joined", PATIENCE, || {
            stat(new, "replicas_joined_partial") + stat(new, "replicas_joined_full") == 1
        });
        let mut wire = new.connection();
        wire.send("DLOCK.ACQUIRE k bob 600000");
        match (owners, wire.read()) {
            (2, Ok(_)) => assert_eq!(stat(new, "replicas_joined_partial"), 1),
            (1, Err(error)) => assert!(error.ends_with(TOO_FEW), "{error}"),
            (_, answer) => panic!("rdb-del-sync-files {deletes}: {answer:?}"),
        }
        assert_sound(new);
    }
}

/// A replica after a full synchronisation counts late, and so does any other that joins in that time: here, and at a server that
/// is promoted meanwhile.
#[test]
fn after_a_full_joining_whoever_joins_counts_late() {
    let group = Group::start(2);
    let forgets = &group.replicas[0];
    forgets.promote();
    group.await_counting(1);
    forgets.connection().run("SET x y");
    forgets.replica_of(&group.primary);
    // The replica that was connected all the time still counts.
    await_until(
        "the replica has joined by a full synchronisation",
        PATIENCE,
        || {
            stat(&group.primary, "replicas_connected") == 2
                && stat(&group.primary, "replicas_counting") == 1
                && stat(&group.primary, "joins_count_late_ms") > 1_000
        },
    );
    group
        .primary
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE k bob 30000");
    await_until("it was told in the stream", PATIENCE, || {
        stat(&group.replicas[1], "joins_count_late_ms") > 1_000
    });
    // Both join again, by partial resynchronisations.
    group.primary.connection().run("CLIENT KILL TYPE replica");
    await_until("both have joined again", PATIENCE, || {
        stat(&group.primary, "replicas_connected") == 2
            && stat(&group.primary, "replicas_counting") == 0
            && stat(&group.primary, "replicas_joined_full") == 2
    });
    let new = &group.replicas[1];
    new.promote();
    forgets.replica_of(new);
    await_until("it has joined there", PATIENCE, || {
        stat(new, "replicas_joined_full") == 1
    });
    assert_eq!(stat(new, "replicas_counting"), 0);
    group.end();
}

/// A started server confirms nothing before everything that it may have confirmed has ended, and tells its replicas.
#[test]
fn a_start_is_told_and_waited_out() {
    let mut group = Group::start(2);
    let replicas = &group.replicas;
    group.primary.connection().run("CONFIG REWRITE");
    group.primary.stop();
    group.primary.restart();
    group
        .primary
        .connection()
        .run(&format!("CONFIG SET dlock.quarantine-ms {LONG_MS}"));
    for replica in replicas {
        await_until("a replica has heard of it", PATIENCE, || {
            stat(replica, "joins_count_late_ms") > 1_000
        });
    }
    assert_eq!(stat(&group.primary, "replicas_counting"), 0);
    group.end();
}

/// A replica after a full synchronisation confirms nothing for that time, if it is promoted.
#[test]
fn who_has_taken_over_all_data_waits_after_a_promotion() {
    let group = Group::start(2);
    let (taken, other) = (&group.replicas[0], &group.replicas[1]);
    taken.promote();
    taken.connection().run("SET x y");
    taken.replica_of(&group.primary);
    taken.wait_in_sync(&group.primary);
    taken.promote();
    other.replica_of(taken);
    let error = refused(&mut taken.connection(), "DLOCK.ACQUIRE k bob 30000");
    assert!(
        error.contains("quarantine after the start or full resynchronisation"),
        "{error}"
    );
    assert!(stat(taken, "closed_left_ms") > 1_000);
    group.end();
}

/// Returns the settings of each way in which this server sends a copy. Without a delay a small one leaves within milliseconds.
fn ways_of_a_copy(server: &Server) -> Vec<Vec<(&'static str, &'static str)>> {
    let at_once = [
        ("repl-diskless-sync", "yes"),
        ("repl-diskless-sync-delay", "0"),
    ];
    let mut ways = vec![at_once.to_vec()];
    // Over a second connection: Redis since 8.0, Valkey since 8.0.
    for channel in ["repl-rdb-channel", "dual-channel-replication-enabled"] {
        let known: Vec<String> = server.connection().ask(&format!("CONFIG GET {channel}"));
        if !known.is_empty() {
            ways.push(at_once.into_iter().chain([(channel, "yes")]).collect());
        }
    }
    ways.push(vec![("repl-diskless-sync", "no")]);
    ways
}

/// Returns how often this server, pointed to a replica, was refused.
fn refusals(server: &Server) -> usize {
    server.log().matches("a replica serves no replicas").count()
}

/// Points a server to a replica, and waits until that has refused it, or it has lost its own data: the lock `k`.
#[track_caller]
fn ask_for_a_copy(server: &Server, replica: &Server) {
    let before = refusals(server);
    let mut c = server.connection();
    c.run(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    await_until("it is refused, or forgets", PATIENCE, || {
        let held = server.connection().try_ask("DLOCK.HELD k");
        refusals(server) > before || matches!(held, Ok(Value::Nil))
    });
}

/// A server that copies a replica may forget its confirmations, and no primary would learn of it. So not a byte of a copy leaves.
#[test]
fn a_replica_serves_no_replicas() {
    let group = Group::start(2);
    let (one, other) = (&group.replicas[0], &group.replicas[1]);
    let stranger = server(1).start();
    for way in ways_of_a_copy(one) {
        for (name, value) in &way {
            for server in [one, &stranger] {
                server
                    .connection()
                    .run(&format!("CONFIG SET {name} {value}"));
            }
        }
        for _ in 0..3 {
            stranger.promote();
            stranger.connection().run("CONFIG SET dlock.replicas 0");
            stranger
                .connection()
                .run("CONFIG SET dlock.quarantine-ms 0");
            stranger
                .connection()
                .ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
            ask_for_a_copy(&stranger, one);
            let mut c = stranger.connection();
            assert!(
                c.ask::<Option<Value>>("DLOCK.HELD k").is_some(),
                "{way:?}: it was sent a copy"
            );
        }
    }
    // The replica does not continue a stream either, though it has the missing part.
    other
        .connection()
        .run(&format!("REPLICAOF 127.0.0.1 {}", one.port()));
    await_until("it is refused", PATIENCE, || refusals(other) > 0);
    let served = one.info("stats");
    assert_eq!(served.number::<u64>("sync_full"), 0);
    assert_eq!(served.number::<u64>("sync_partial_ok"), 0);
    let partials = || {
        let stats = group.primary.info("stats");
        stats.number::<u64>("sync_partial_ok")
    };
    let before = partials();
    other.replica_of(&group.primary);
    assert_eq!(
        partials(),
        before + 1,
        "what is refused forgets nothing of its own"
    );
    group.end();
}

/// Users who may only replicate are refused by the usual answer: after another one they would forget that they can join by a
/// partial resynchronisation.
#[test]
fn a_replica_refuses_users_who_may_only_replicate() {
    let group = Group::start(2);
    let (one, other) = (&group.replicas[0], &group.replicas[1]);
    let rules = "ACL SETUSER copier reset on >secret +psync +replconf +ping";
    one.connection().run(rules);
    let mut c = other.connection();
    c.run("CONFIG SET masteruser copier");
    c.run("CONFIG SET masterauth secret");
    c.run(&format!("REPLICAOF 127.0.0.1 {}", one.port()));
    await_until("it is refused", PATIENCE, || refusals(other) > 0);
    group.end();
}

/// `protocol/schedules/15-chained-later.txt`: the fourth replica has confirmed a grant that it would forget by a copy of the
/// third one.
#[test]
fn a_copy_of_a_replica_lets_in_no_second_owner() {
    let group = Group::start(4);
    let [_, second, third, fourth] = &group.replicas[..] else {
        unreachable!("four were started");
    };
    second.promote();
    for (name, value) in [
        ("repl-diskless-sync", "yes"),
        ("repl-diskless-sync-delay", "0"),
    ] {
        third
            .connection()
            .run(&format!("CONFIG SET {name} {value}"));
    }
    third.replica_of(second);
    group.await_counting(2);
    let mut bob = group.primary.connection();
    bob.ask::<Grant>("DLOCK.ACQUIRE k bob 600000");
    let mut alice = second.connection();
    alice.send("DLOCK.ACQUIRE k alice 600000 BLOCK 0");
    second.await_blocked_clients(1);
    fourth.wait_in_sync(&group.primary);
    ask_for_a_copy(fourth, third);
    fourth.replica_of(second);
    await_until("the new primary has seen it", PATIENCE, || {
        stat(second, "replicas_connected") == 2
    });
    sleep(Duration::from_millis(500));
    assert!(!alice.has_something(), "two believe that they hold it");
    assert!(bob.ask::<Option<Value>>("DLOCK.HELD k bob").is_some());
    group.end();
}

/// The other replica stays with the old primary, as some clusters leave it. It is refused and asks again once a second; the new
/// primary reports that it is missing.
#[test]
fn a_replica_that_stays_with_a_replica_is_refused_and_missed() {
    let group = Group::start(2);
    let (old, new, other) = (&group.primary, &group.replicas[0], &group.replicas[1]);
    assert_eq!(stat(old, "replicas_too_few"), 0);
    new.wait_in_sync(old);
    new.promote();
    old.replica_of(new);
    let began = Instant::now();
    await_until("it has asked several times", PATIENCE, || {
        refusals(other) >= 5
    });
    let asked = old.info("commandstats");
    let asked = asked.text("cmdstat_dlock.sync");
    let calls = asked.strip_prefix("calls=").and_then(|rest| {
        let (calls, _) = rest.split_once(',')?;
        calls.parse::<u64>().ok()
    });
    let most = 3 + 2 * began.elapsed().as_secs();
    assert!(calls.is_some_and(|calls| calls <= most), "{calls:?}");
    let lines = old
        .log()
        .matches("it serves no replicas of its own")
        .count();
    assert!((1..=4).contains(&lines), "{lines} lines");
    let info = old.info("replication");
    assert_eq!(info.number::<u64>("connected_slaves"), 0);
    assert_eq!(stat(new, "replicas_too_few"), 1);
    assert_eq!(stat(old, "replicas_too_few"), 0);
    await_until("the log of the new primary says so", PATIENCE, || {
        let log = new.log();
        log.contains("connected replicas: 1, with dlock.replicas 2")
    });
    other.replica_of(new);
    await_until("it is missed no more", PATIENCE, || {
        stat(new, "replicas_too_few") == 0
            && (new.log()).contains("connected replicas: 2, as dlock.replicas says")
    });
    group.end();
}

/// A coordinated failover asks a replica for a copy, and thereby makes it a primary.
#[test]
fn a_coordinated_failover_passes() {
    let group = Group::start(2);
    let (old, new) = (&group.primary, &group.replicas[0]);
    let line = format!("FAILOVER TO 127.0.0.1 {}", new.port());
    await_until("a failover is possible", PATIENCE, || {
        old.connection().try_ask(&line).is_ok()
    });
    await_until("they have changed places", PATIENCE, || {
        new.info("replication").text("role") == "master"
            && old.info("replication").text("role") == "slave"
    });
    old.wait_in_sync(new);
    group.replicas[1].replica_of(new);
    await_counting(new, 2);
    new.connection().ask::<Grant>("DLOCK.ACQUIRE k bob 30000");
    group.end();
}

/// The server follows the replicas beyond the configured number, and warns of them.
#[test]
fn more_replicas_than_configured_are_counted_and_warned_of() {
    let group = Group::start(2);
    group.set("replicas", 1);
    await_until("two are more than one", PATIENCE, || {
        stat(&group.primary, "replicas_too_many") == 1
    });
    assert_eq!(stat(&group.primary, "replicas_needed"), 1);
    await_until("the log warns", PATIENCE, || {
        group
            .primary
            .log()
            .contains("connected replicas: 2, with dlock.replicas 1")
    });
    group.end();
}

/// One check and one question cover all decisions of an iteration of the event loop, in order.
#[test]
fn two_hundred_connections_are_confirmed_together() {
    let group = Group::start(2);
    let mut wires: Vec<Wire> = (0..200).map(|_| group.primary.connection()).collect();
    group.freeze();
    for (at, wire) in wires.iter_mut().enumerate() {
        wire.send(&format!("DLOCK.ACQUIRE k{at} alice 30000 BLOCK 0"));
    }
    await_unconfirmed(&group.primary, 200);
    let began = Instant::now();
    group.thaw();
    wires
        .iter_mut()
        .for_each(|wire| drop(wire.read().expect("a grant")));
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(stat(&group.primary, "confirmed_total"), 200);
    group.end();
}

/// A replica that cannot apply an effect would still confirm it, so its process ends.
#[test]
fn a_replica_that_cannot_follow_ends() {
    let mut group = Group::start(1);
    group
        .primary
        .connection()
        .run("CONFIG SET dlock.replicas 0");
    // As a later version of the module might write it.
    let mut writable = group.replicas[0].connection();
    writable.run("CONFIG SET replica-read-only no");
    writable.run("SET k x");
    group
        .primary
        .connection()
        .ask::<Grant>("DLOCK.ACQUIRE k alice 30000");
    group.replicas[0].await_exit();
    assert!(group.replicas[0]
        .log()
        .contains("it cannot apply what its primary says"));
    assert_sound_log(&group.primary);
}

/// The confirmations of an earlier primary do not count as new when it is promoted again.
#[test]
fn a_primary_that_comes_back_to_its_place_is_as_any_other() {
    let group = Group::start(2);
    let (first, second, third) = (&group.primary, &group.replicas[0], &group.replicas[1]);
    second.wait_in_sync(first);
    third.wait_in_sync(first);
    for (new, others) in [(second, [first, third]), (first, [second, third])] {
        new.promote();
        for other in others {
            other.replica_of(new);
        }
        for other in others {
            other.wait_in_sync(new);
        }
        await_until("both have joined by partial ones", PATIENCE, || {
            stat(new, "replicas_joined_partial") == 2
        });
        await_counting(new, 2);
    }
    first.connection().ask::<Grant>("DLOCK.ACQUIRE k bob 30000");
    group.end();
}

/// While no confirmation was needed the module did not watch the replicas; and a late one does not count early because another
/// setting would allow it.
#[test]
fn a_changed_setting_lets_nobody_count_early() {
    let group = Group::start(2);
    let (forgets, other) = (&group.replicas[0], &group.replicas[1]);
    let mut c = group.primary.connection();
    let count = |count| await_counting(&group.primary, count);
    let forget = || {
        forgets.promote();
        forgets.connection().run("SET x y");
        forgets.replica_of(&group.primary);
        forgets.wait_in_sync(&group.primary);
    };
    forget();
    count(1);
    // The other one leaves, and only the late one remains.
    other.promote();
    count(0);
    c.run("CONFIG SET dlock.replicas 1");
    sleep(Duration::from_millis(300));
    assert_eq!(stat(&group.primary, "replicas_counting"), 0);
    c.run("CONFIG SET dlock.replicas 0");
    forget();
    c.run("CONFIG SET dlock.replicas 2");
    sleep(Duration::from_millis(300));
    assert_eq!(stat(&group.primary, "replicas_counting"), 0);
    group.end();
}

/// A planned failover is given up, since its replica hangs: the waiting answers come in time, and the holds are revoked afterwards.
#[test]
fn a_failover_that_is_given_up_leaves_nothing() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    group.freeze();
    group.set_ack_timeout(3_000);
    let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000");
    c.run("FAILOVER TIMEOUT 4000");
    assert_late(&wire.read().expect_err("too late"));
    await_given_back(&group.primary);
    group.thaw();
    group.end();
}

/// Valkey has not blocked RESP3 connections with subscriptions since 8.1: there the module makes no decision that would have to
/// wait. The fine print names these servers.
#[test]
fn a_connection_with_subscriptions_is_not_answered_early() {
    let group = Group::start(1);
    let mut wire = group.primary.connection_resp3();
    wire.ask::<Value>("SUBSCRIBE news");
    wire.send("DLOCK.ACQUIRE k alice 30000");
    let answer = wire.read();
    if group.primary.version().is_valkey(8, 1) {
        let error = answer.expect_err("a refusal");
        assert!(
            error.starts_with("NOACK the server cannot block this caller"),
            "{error}"
        );
        let mut c = group.primary.connection();
        assert!(c.ask::<Option<Value>>("DLOCK.HELD k").is_none());
    } else {
        answer.expect("a grant");
        assert_eq!(acked(&group.primary, "k"), 1);
    }
    group.end();
}

/// A hold that is ended by force while its grant waits for replicas was never answered: its connection receives NOACK.
#[test]
fn what_nobody_had_nobody_loses() {
    let group = Group::start(1);
    group.freeze();
    let mut wire = group.unconfirmed("DLOCK.ACQUIRE k alice 30000 AUTO 60000 BLOCK 0");
    let mut c = group.primary.connection();
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    group.thaw();
    let error = wire.read().expect_err("nobody holds it");
    assert!(error.starts_with("NOACK "), "{error}");
    assert_eq!(stat(&group.primary, "auto_renewed"), 0);
    group.end();
}

/// A request in a session waits for no confirmation: its row comes with that. What its program may count on is what replicas have
/// confirmed.
#[test]
fn a_session_counts_on_confirmed_ends() {
    let group = Group::start(1);
    let mut c = group.primary.connection();
    let (_, _, id): (u64, u64, u64) = c.ask("DLOCK.ACQUIRE k s/1 60000 IN s");
    let keep = |c: &mut Wire, seen: u64| {
        c.ask::<News>(&format!("DLOCK.SESSION k s 600000 SEEN {id} {seen}"))
    };
    await_until("its row has come", PATIENCE, || keep(&mut c, 0).1 == 1);
    let (_, _, left, rows) = keep(&mut c, 0);
    let row = &rows[0];
    assert_eq!((row.1.as_str(), row.3.as_str()), ("granted", "s/1"));
    assert!(
        left.is_some_and(|left| left > 59_000) && row.5 > 59_000,
        "{left:?}, {row:?}"
    );
    // Asked again, the server sends its row again.
    c.ask::<(u64, u64, u64)>("DLOCK.ACQUIRE k s/1 60000 IN s");
    await_until("its row has come again", PATIENCE, || {
        keep(&mut c, 1).1 == 2
    });
    // The server renews a hold of three seconds: its program counts on that once it is confirmed.
    c.ask::<(u64, u64, u64)>("DLOCK.ACQUIRE short s/2 3000 IN s");
    await_until("its row has come", PATIENCE, || keep(&mut c, 2).1 == 3);
    let renewed = stat(&group.primary, "auto_renewals_total");
    await_until("it is renewed, and that is confirmed", PATIENCE, || {
        stat(&group.primary, "auto_renewals_total") > renewed
            && keep(&mut c, 3).2.is_some_and(|left| left > 2_500)
    });
    group.freeze();
    sleep(Duration::from_millis(3_500));
    let (_, _, left, _) = keep(&mut c, 3);
    assert_eq!(left, Some(0), "nobody has confirmed a later end");
    let here: Vec<u64> = c.ask("DLOCK.HELD short s/2");
    assert!(here[2] > 0, "the server goes on with its renewals");
    // Those that nobody has confirmed end with the leases that they have prolonged, and take nothing with them.
    let renewed = stat(&group.primary, "auto_renewals_total");
    await_until(
        "it has renewed the hold for two leases more",
        PATIENCE,
        || stat(&group.primary, "auto_renewals_total") >= renewed + 8,
    );
    assert_eq!(c.ask::<Vec<u64>>("DLOCK.HELD short s/2")[0], here[0]);
    assert!(stat(&group.primary, "confirmations_waiting") < 8);
    // Nobody learns of what is granted now, and the server gives it back.
    group.set_ack_timeout(300);
    c.ask::<(u64, u64, u64)>("DLOCK.ACQUIRE new s/3 60000 IN s");
    await_until(
        "its program learns that it must ask again",
        PATIENCE,
        || {
            let rows = keep(&mut c, 3).3;
            rows.iter()
                .any(|row| (row.1.as_str(), row.2.as_str()) == ("again", "new"))
        },
    );
    await_until("it is given back", PATIENCE, || {
        c.ask::<Option<Vec<u64>>>("DLOCK.HELD new").is_none()
    });
    group.thaw();
    await_until("the later ends are confirmed", PATIENCE, || {
        keep(&mut c, 3).2.is_some_and(|left| left > 0)
    });
    group.end();
}
