//! Times at which the server may change nothing: CLIENT PAUSE, FAILOVER, SHUTDOWN, too few replicas, a failing disk. Everything
//! due meanwhile happens right afterwards, in order, and the server survives.

use std::fs;
use std::time::Duration;

use dlock_harness::redis::Value;
use dlock_harness::{
    assert_sound, assert_sound_log, at_once, await_until, command, fair_as, held, is_held, kept,
    position, stat, wait_as, Ask, Blocked, Grant, Server, Wire, PATIENCE,
};

/// How long a test observes that nothing happens.
const WHILE: Duration = Duration::from_millis(250);

#[track_caller]
fn assert_unanswered(blocked: &Blocked) {
    assert_eq!(blocked.outcome_within(WHILE), None);
}

/// Hundreds of leases and of tickets' windows end during the pause: all of them are over after it, and the waiters are served.
#[test]
fn many_leases_that_end_in_a_pause_are_all_handed_over() {
    let server = Server::start();
    let mut c = server.connection();
    const LOCKS: usize = 300;
    let poll = |lock, claim| format!("DLOCK.FAIRACQUIRE lock{lock} polls CLAIM {claim}");
    for lock in 0..LOCKS {
        c.run(&format!("DLOCK.ACQUIRE lock{lock} alice 600000"));
        c.run(&poll(lock, 600_000));
    }
    let firsts: Vec<Blocked> = (0..LOCKS / 10)
        .map(|lock| {
            Blocked::start(
                &server,
                &format!("DLOCK.ACQUIRE lock{lock} bob 600000 BLOCK 0"),
            )
        })
        .collect();
    // In one step: leases and windows begin to run out when the pause begins.
    let keys: Vec<String> = (0..LOCKS).map(|lock| format!("lock{lock}")).collect();
    let renewal = format!("DLOCK.MRENEW {LOCKS} {} alice 100", keys.join(" "));
    let pause = "CLIENT PAUSE 60000 WRITE".to_owned();
    let lines = ["MULTI".to_owned()]
        .into_iter()
        .chain((0..LOCKS).map(|lock| poll(lock, 100)))
        .chain([renewal, pause, "EXEC".to_owned()]);
    server.connection().pipeline(lines);
    await_over(&mut c, &format!("lock{}", LOCKS - 1));
    assert_unanswered(&firsts[0]);
    c.run("CLIENT UNPAUSE");
    await_until("every lease has ended", PATIENCE, || {
        c.ask::<usize>("DBSIZE") <= LOCKS / 10
    });
    for first in &firsts {
        first.reply::<Grant>();
    }
    assert_sound(&server);
}

/// Waiters of every kind that die, or are unblocked, in the pause in which the lease ends as well.
#[test]
fn the_dead_of_a_pause_do_not_get_the_lock() {
    for mode in ["WRITE", "ALL"] {
        let (server, mut alice, _) = held();
        let waiter = wait_as(&server, "waiter");
        let ticket = fair_as(&server, "ticket");
        let claimed = Blocked::start(
            &server,
            "DLOCK.FAIRACQUIRE k claimed 600000 BLOCK 0 CLAIM 1",
        );
        let killed = fair_as(&server, "killed");
        let lives = wait_as(&server, "lives");
        // One batch, so that no line waits for the end of the pause.
        let lines = [
            "DLOCK.RENEW k alice 300",
            &format!("CLIENT KILL ID {}", killed.client_id()),
            &format!("CLIENT PAUSE 700 {mode}"),
        ];
        let replies = at_once(&server, lines);
        assert_eq!(replies, [Value::Int(300), Value::Int(1), Value::Okay]);
        waiter.kill();
        ticket.kill();
        claimed.kill();
        lives.reply::<Grant>();
        for owner in ["waiter", "ticket", "claimed", "killed"] {
            assert_eq!(position(&mut alice, "k", owner), None, "{mode}: {owner}");
        }
        assert_sound(&server);
    }
}

/// The pause begins in the turn of the server's event loop that also hands over, before the answer is written.
#[test]
fn a_pause_that_begins_with_a_hand_over() {
    for dies in [false, true] {
        for ticket in [false, true] {
            let (server, mut alice, _) = held();
            let bob = if ticket {
                fair_as(&server, "bob")
            } else {
                wait_as(&server, "bob")
            };
            let carol = wait_as(&server, "carol");
            let end = match dies {
                true => format!("CLIENT KILL ID {}", bob.client_id()),
                false => "PING".to_owned(),
            };
            let lines = ["DLOCK.RELEASE k alice", &end, "CLIENT PAUSE 400 WRITE"];
            let replies = server.connection().batch(lines);
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
            if dies {
                // If bob's answer was not delivered, carol gets the lock; otherwise he holds it.
                await_until("one of them holds the lock", PATIENCE, || {
                    is_held(&mut alice, "k", "carol") || is_held(&mut alice, "k", "bob")
                });
                alice.run("CLIENT UNPAUSE");
                alice.try_ask("DLOCK.RELEASE k bob").ok();
                carol.reply::<Grant>();
            } else {
                bob.reply::<Grant>();
                assert!(carol.is_blocked(&server));
            }
            assert_sound(&server);
        }
    }
}

#[test]
fn a_pause_of_a_server_with_an_aof_and_a_replica() {
    let primary = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut c = primary.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = fair_as(&primary, "bob");
    let dies = fair_as(&primary, "dies");
    let carol = wait_as(&primary, "carol");
    at_once(
        &primary,
        ["DLOCK.RENEW k alice 150", "CLIENT PAUSE 60000 WRITE"],
    );
    let offset = |server: &Server| {
        server
            .info("replication")
            .number::<u64>("master_repl_offset")
    };
    replica.wait_in_sync(&primary);
    let before = offset(&primary);
    dies.kill();
    await_over(&mut c, "k");
    assert_unanswered(&bob);
    // A pause also stops the primary's pings, so any sent byte would show.
    assert_eq!(offset(&primary), before);
    c.run("CLIENT UNPAUSE");
    bob.reply::<Grant>();
    await_until("the dead has no place", PATIENCE, || {
        position(&mut c, "k", "dies").is_none()
    });
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k bob"), 0);
    carol.reply::<Grant>();
    replica.wait_in_sync(&primary);
    assert_eq!(
        kept(&mut primary.connection(), "k"),
        kept(&mut replica.connection(), "k")
    );
    assert_sound(&primary);
    assert_sound(&replica);
}

/// A primary with a replica, alice's hold of `k`, and all risks of a failover: waiters that live and die, time-outs, and a hold
/// of `other` whose lease is about to end ([`ENDS`]).
struct Setup {
    primary: Server,
    replica: Server,
    bob: Blocked,
    carol: Blocked,
    dies: Blocked,
    dies_too: Blocked,
    times_out: Blocked,
    other: Blocked,
}

/// Sent right before the command that stops writes: then the lease ends while they are stopped.
const ENDS: &str = "DLOCK.RENEW other alice 300";

fn setup() -> Setup {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut c = primary.connection();
    // For up to a second after a full synchronisation a primary holds the effects back.
    c.run("SET x 0");
    replica.wait_in_sync(&primary);
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE other alice 600000");
    let bob = fair_as(&primary, "bob");
    let dies = fair_as(&primary, "dies");
    let dies_too = wait_as(&primary, "dies-too");
    let carol = wait_as(&primary, "carol");
    let times_out = times_out(&primary, "DLOCK.FAIRACQUIRE");
    let other = Blocked::start(&primary, "DLOCK.ACQUIRE other dave 600000 BLOCK 0");
    replica.wait_in_sync(&primary);
    Setup {
        primary,
        replica,
        bob,
        carol,
        dies,
        dies_too,
        times_out,
        other,
    }
}

/// Starts a waiter for `k` with a short time-out: it has arrived when this returns, and may have given up by then.
#[track_caller]
fn times_out(server: &Server, verb: &str) -> Blocked {
    let waits = Blocked::send(server, &format!("{verb} k times-out BLOCK 900"));
    let mut c = server.connection();
    await_until("it has arrived", PATIENCE, || {
        position(&mut c, "k", "times-out").is_some() || stat(server, "timeouts_total") > 0
    });
    waits
}

/// Waits until alice's lease of this lock has run out, whether or not the server could act on it.
fn await_over(connection: &mut Wire, key: &str) {
    await_until("the lease has run out", PATIENCE, || {
        !is_held(connection, key, "alice")
    });
}

fn await_state(server: &Server, state: &str) {
    await_until(state, PATIENCE, || {
        server.info("replication").text("master_failover_state") == state
    });
}

/// The replica hangs, so the failover waits for it until it is given up.
#[test]
fn a_failover_that_is_given_up() {
    let setup = setup();
    let mut c = setup.primary.connection();
    setup.replica.freeze();
    // A write that the replica does not have yet.
    c.run("SET x 1");
    let target = format!("127.0.0.1 {}", setup.replica.port());
    let failover = format!("FAILOVER TO {target} TIMEOUT 60000");
    at_once(&setup.primary, [ENDS, &failover]);
    await_state(&setup.primary, "waiting-for-sync");
    setup.dies.kill();
    setup.dies_too.kill();
    let mut release = setup.primary.connection();
    release.send("DLOCK.RELEASE k alice");
    assert_eq!(setup.times_out.outcome(), Ok(Value::Nil));
    await_over(&mut c, "other");
    assert_unanswered(&setup.other);
    assert_unanswered(&setup.bob);
    c.run("FAILOVER ABORT");
    assert_eq!(release.read(), Ok(Value::Int(0)));
    setup.bob.reply::<Grant>();
    setup.other.reply::<Grant>();
    await_until("the dead have no place", PATIENCE, || {
        position(&mut c, "k", "carol") == Some(0)
    });
    c.run("DLOCK.RELEASE k bob");
    setup.carol.reply::<Grant>();
    setup.replica.thaw();
    setup.replica.wait_in_sync(&setup.primary);
    assert_sound(&setup.primary);
    assert_sound(&setup.replica);
}

#[test]
fn a_failover_with_waiters() {
    for held_up in [false, true] {
        let setup = setup();
        let mut c = setup.primary.connection();
        let target = format!("127.0.0.1 {}", setup.replica.port());
        if held_up {
            setup.replica.freeze();
            c.run("SET x 1");
        }
        at_once(&setup.primary, [ENDS, &format!("FAILOVER TO {target}")]);
        if held_up {
            await_state(&setup.primary, "waiting-for-sync");
            setup.dies.kill();
            setup.dies_too.kill();
            assert_eq!(setup.times_out.outcome(), Ok(Value::Nil));
            await_over(&mut c, "other");
            assert_unanswered(&setup.other);
            setup.replica.thaw();
        } else {
            drop((setup.dies, setup.dies_too));
        }
        await_until("the replica has taken over", PATIENCE, || {
            setup.replica.info("replication").text("role") == "master"
        });
        for blocked in [&setup.bob, &setup.carol, &setup.other] {
            let words = blocked.last_words();
            assert!(
                matches!(&words[..], [Err(error)] if error.starts_with("UNBLOCKED")),
                "{words:?}"
            );
        }
        setup.primary.wait_in_sync(&setup.replica);
        // The new primary continues with its own data: the ticket stands, the lease that has run out is over.
        let mut r = setup.replica.connection();
        assert_eq!(position(&mut r, "k", "bob"), Some(0));
        await_over(&mut r, "other");
        let dave = Blocked::send(&setup.replica, "DLOCK.ACQUIRE other dave 600000 BLOCK 0");
        dave.reply::<Grant>();
        let bob = fair_as(&setup.replica, "bob");
        r.run("DLOCK.RELEASE k alice");
        bob.reply::<Grant>();
        setup.primary.wait_in_sync(&setup.replica);
        assert_sound(&setup.primary);
        assert_sound(&setup.replica);
    }
}

/// Shuts the primary down while its replica lags, so that it waits. Returns a connection to it, and the waiting one.
fn shut_down(setup: &Setup) -> (Wire, Wire) {
    let mut c = setup.primary.connection();
    c.run("CONFIG SET shutdown-timeout 60");
    setup.replica.freeze();
    c.run("SET x 1");
    let mut control = setup.primary.connection();
    let lines = [ENDS, "SHUTDOWN NOSAVE"];
    let bytes = lines
        .iter()
        .flat_map(|line| command(line).get_packed_command());
    let bytes: Vec<u8> = bytes.collect();
    control.send_bytes(&bytes).expect("the server reads");
    await_until("the shutdown waits", PATIENCE, || {
        setup
            .primary
            .log()
            .contains("Waiting for replicas before shutting down")
    });
    (c, control)
}

/// SHUTDOWN waits for a replica that lags, like a pause; then the waiters go, and their tickets stay.
#[test]
fn a_shutdown_that_waits_for_a_replica() {
    let mut setup = setup();
    let (mut c, _control) = shut_down(&setup);
    setup.dies.kill();
    setup.dies_too.kill();
    assert_eq!(setup.times_out.outcome(), Ok(Value::Nil));
    await_over(&mut c, "other");
    assert_unanswered(&setup.other);
    setup.replica.thaw();
    let status = setup.primary.await_exit();
    assert!(status.success(), "{status}");
    assert_eq!(setup.bob.last_words(), []);
    assert_sound_log(&setup.primary);
    let mut r = setup.replica.connection();
    assert_eq!(position(&mut r, "k", "bob"), Some(0));
    assert_sound(&setup.replica);
}

#[test]
fn a_shutdown_that_is_given_up() {
    let setup = setup();
    let (mut c, _control) = shut_down(&setup);
    setup.dies.kill();
    setup.dies_too.kill();
    await_over(&mut c, "other");
    assert_unanswered(&setup.other);
    c.run("SHUTDOWN ABORT");
    setup.other.reply::<Grant>();
    await_until("the dead have no place", PATIENCE, || {
        position(&mut c, "k", "carol") == Some(1)
    });
    c.run("DLOCK.RELEASE k alice");
    setup.bob.reply::<Grant>();
    setup.replica.thaw();
    setup.replica.wait_in_sync(&setup.primary);
    assert_sound(&setup.primary);
    assert_sound(&setup.replica);
}

/// Asserts that a server that refuses writes changes no lock and does everything else.
///
/// `refuse` is the command that makes it refuse writes.
#[track_caller]
fn assert_held_back(server: &Server, code: &str, refuse: &str, accept: impl FnOnce()) {
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE held alice 600000");
    let bob = fair_as(server, "bob");
    let dies = fair_as(server, "dies");
    let times_out = times_out(server, "DLOCK.ACQUIRE");
    let carol = wait_as(server, "carol");
    at_once(server, ["DLOCK.RENEW k alice 300", refuse]);
    assert!(c.refusal("SET x 1").starts_with(code));
    dies.kill();
    assert_eq!(times_out.outcome(), Ok(Value::Nil));
    await_over(&mut c, "k");
    assert_unanswered(&bob);
    assert_eq!(position(&mut c, "k", "bob"), Some(0));
    assert!(c.refusal("DLOCK.ACQUIRE free alice").starts_with(code));
    assert!(c.refusal("DLOCK.RELEASE held alice").starts_with(code));
    assert!(is_held(&mut c, "held", "alice"));
    accept();
    bob.reply::<Grant>();
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k bob"), 0);
    carol.reply::<Grant>();
    assert_sound(server);
}

/// The missing replica comes back.
#[test]
fn a_replica_that_was_missed() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    primary
        .connection()
        .run("CONFIG SET min-replicas-to-write 1");
    await_until("the replica counts", PATIENCE, || {
        primary.connection().try_ask("SET x 1").is_ok()
    });
    replica.promote();
    await_until("the replica is missed", PATIENCE, || {
        let refused = primary.connection().try_ask("SET x 1");
        refused.is_err_and(|error| error.starts_with("NOREPLICAS"))
    });
    primary
        .connection()
        .run("CONFIG SET min-replicas-to-write 0");
    assert_held_back(
        &primary,
        "NOREPLICAS",
        "CONFIG SET min-replicas-to-write 1",
        || {
            replica
                .connection()
                .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        },
    );
    replica.wait_in_sync(&primary);
    assert_eq!(
        kept(&mut primary.connection(), "k"),
        kept(&mut replica.connection(), "k")
    );
    assert_sound(&replica);
}

/// After a stop the server still counts its earlier replica: its own decisions wait until it has counted again.
#[test]
fn a_stop_in_which_the_replica_was_lost() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut c = primary.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let bob = wait_as(&primary, "bob");
    let (mut r, mut stops) = (replica.connection(), primary.connection());
    // Alice's lease runs out while the server is stopped, and the replica is too far behind to count then.
    let lines = [
        "DLOCK.RENEW k alice 300",
        "CONFIG SET min-replicas-max-lag 1",
        "DEBUG SLEEP 5",
    ];
    let bytes: Vec<u8> = lines
        .iter()
        .flat_map(|line| command(line).get_packed_command())
        .collect();
    await_until(
        "the server stood still before it saw the link end",
        PATIENCE,
        || {
            c.run("CONFIG SET min-replicas-to-write 0");
            c.run("CONFIG SET min-replicas-max-lag 600");
            replica.replica_of(&primary);
            c.run("CONFIG SET min-replicas-to-write 1");
            await_until("the replica counts", PATIENCE, || {
                c.try_ask("SET x 1").is_ok()
            });
            stops.send_bytes(&bytes).expect("the server reads");
            r.run("REPLICAOF NO ONE");
            let replies = lines.map(|_| stops.read());
            replies.iter().all(Result::is_ok)
        },
    );
    await_until("the server refuses writes", PATIENCE, || {
        c.try_ask("SET x 1")
            .is_err_and(|error| error.starts_with("NOREPLICAS"))
    });
    assert!(bob.is_blocked(&primary));
    assert!(!is_held(&mut c, "k", "bob"));
    c.run("CONFIG SET min-replicas-to-write 0");
    bob.reply::<Grant>();
    assert_sound(&primary);
}

/// A save fails, since a directory is in the place of the file.
#[test]
fn a_disk_that_fails() {
    let server = Server::builder().config("save", "3600 1000000").start();
    let obstacle = server.dir().join("dump.rdb");
    let save = |status: &str| {
        server.connection().run("BGSAVE");
        await_until("the save has ended", PATIENCE, || {
            let state = server.info("persistence");
            state.number::<u64>("rdb_bgsave_in_progress") == 0
                && state.text("rdb_last_bgsave_status") == status
        });
    };
    fs::create_dir_all(obstacle.join("in-the-way")).expect("the directory can be written to");
    server
        .connection()
        .run("CONFIG SET stop-writes-on-bgsave-error no");
    save("err");
    assert_held_back(
        &server,
        "MISCONF",
        "CONFIG SET stop-writes-on-bgsave-error yes",
        || {
            fs::remove_dir_all(&obstacle).expect("it is there");
            save("ok");
        },
    );
}
