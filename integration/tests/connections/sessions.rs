//! Sessions: users, stalls and pauses, demotions, connections that end, and masses. `tests/servers/sessions.txt` has the rest,
//! `survival` what becomes of them in a cluster and with confirmations.

use dlock_harness::{
    assert_sound, await_until, held, position, stat, Ask, Blocked, News, Queued, Server, Session,
    Wire, PATIENCE,
};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A hold in a session: its token, and the session's id.
pub(crate) type Held = (u64, u64);

#[test]
fn a_session_belongs_to_the_user_that_began_it() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("ACL SETUSER ann on nopass ~* +@all");
    c.run("DLOCK.ACQUIRE k s/1 600000 IN s");
    let mut ann = server.connection();
    ann.run("AUTH ann x");
    let denied = Err("NOPERM another user has begun this session".to_owned());
    for line in [
        "DLOCK.SESSION k s 600000",
        "DLOCK.SESSION k s 0",
        "DLOCK.ACQUIRE l s/2 600000 IN s",
        "DLOCK.RENEW k s/1 600000 IN s",
    ] {
        assert_eq!(ann.try_ask(line), denied, "{line}");
    }
    // A refused command begins none, and a name is free in another database.
    assert_eq!(stat(&server, "sessions"), 1);
    ann.run("SELECT 1");
    ann.ask::<Held>("DLOCK.ACQUIRE l s/2 600000 IN s");
    assert_sound(&server);
}

#[test]
fn a_new_session_beyond_the_cap_is_refused() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("CONFIG SET dlock.max-sessions 2");
    for name in ["a", "b"] {
        c.run(&format!("DLOCK.SESSION k {name} 600000"));
    }
    let full = Err("QUEUEFULL dlock.max-sessions is reached".to_owned());
    assert_eq!(c.try_ask("DLOCK.SESSION k c 600000"), full);
    assert_eq!(c.try_ask("DLOCK.ACQUIRE k c/1 IN c"), full);
    c.run("DLOCK.SESSION k a 0");
    c.run("DLOCK.ACQUIRE k c/1 IN c");
    assert_sound(&server);
}

/// A session ends only where the server accepts a release, also in a cluster, whose servers are asked about the key.
#[test]
fn no_session_ends_where_writes_are_refused() {
    for cluster in [false, true] {
        let builder = Server::builder();
        let server = match cluster {
            true => builder.cluster().start(),
            false => builder.start(),
        };
        if cluster {
            server.serve_all_slots();
        }
        let mut c = server.connection();
        c.ask::<Held>("DLOCK.ACQUIRE k s/1 600000 IN s");
        c.run("CONFIG SET min-replicas-to-write 1");
        let refused = c.refusal("DLOCK.SESSION k s 0");
        assert!(refused.contains("accepts no writes now"), "{refused}");
        assert_eq!(stat(&server, "sessions"), 1);
        c.run("CONFIG SET min-replicas-to-write 0");
        c.run("DLOCK.SESSION k s 0");
        assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    }
}

/// Has a session's only place wait, with its window about to end, while the server does not read.
fn wait_unread(server: &Server, stop: impl Fn(), go_on: impl Fn()) {
    let mut c = server.connection();
    c.run("CONFIG SET dlock.claim-window-ms 1500");
    c.run("DLOCK.ACQUIRE k ann 600000");
    let (mut keeper, mut next) = (server.connection(), server.connection());
    keeper.run("DLOCK.SESSION k s 600000");
    c.run("DLOCK.ACQUIRE k s/1 600000 BLOCK 0 IN s");
    keeper.close();
    await_until("nobody keeps it", PATIENCE, || {
        stat(server, "sessions_not_alive") == 1
    });
    stop();
    next.send("DLOCK.SESSION k s 600000");
    sleep(Duration::from_millis(2_200));
    go_on();
    next.read().expect("it is kept again");
    sleep(Duration::from_millis(50));
    assert_eq!(position(&mut c, "k", "s/1"), Some(0));
    assert_eq!(stat(server, "sessions_not_alive"), 0);
    assert_sound(server);
}

/// After a stall the server reads what had arrived before windows end, also where it reads in other threads.
#[test]
fn a_session_that_was_kept_during_a_stall_loses_no_place() {
    for threads in ["1", "3"] {
        let server = Server::builder().config("io-threads", threads).start();
        wait_unread(&server, || server.freeze(), || server.thaw());
    }
}

#[test]
fn windows_of_sessions_stand_still_in_a_pause() {
    for what in ["WRITE", "ALL"] {
        let server = Server::start();
        let pause = format!("CLIENT PAUSE 2000 {what}");
        wait_unread(&server, || server.connection().run(&pause), || {});
    }
}

/// A pause may end in the middle of an iteration: the server runs what it has kept back in the next one. Monitors are never paused.
#[test]
fn windows_of_sessions_stand_still_in_a_pause_of_a_busy_server() {
    let server = Server::start();
    let mut monitor = server.connection();
    monitor.run("MONITOR");
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while Instant::now() < end {
                monitor.send("PING");
                sleep(Duration::from_micros(20));
            }
        });
        let pause = || server.connection().run("CLIENT PAUSE 2000 ALL");
        wait_unread(&server, pause, || {});
    });
}

/// A demoted server forgets its sessions, and answers who waits for news.
#[test]
fn a_demotion_forgets_sessions() {
    let (server, other) = (Server::start(), Server::start());
    let mut c = server.connection();
    c.ask::<Held>("DLOCK.ACQUIRE k s/1 600000 IN s");
    let (id, last, ..): News = c.ask("DLOCK.SESSION k s 600000");
    let waits = Blocked::start(
        &server,
        &format!("DLOCK.SESSION k s 600000 SEEN {id} {last} BLOCK 60000"),
    );
    server.replica_of(&other);
    let refusal = waits.refusal();
    assert!(refusal.starts_with("UNBLOCKED "), "{refusal}");
    await_until("no session is left", PATIENCE, || {
        stat(&server, "sessions") == 0
    });
    assert_eq!(stat(&server, "auto_renewed"), 0);
    assert_sound(&server);
}

/// A replica gets the releases of a session that ends, also within MULTI.
#[test]
fn the_end_of_a_session_reaches_replicas() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let (mut c, mut there) = (primary.connection(), replica.connection());
    for ends in [
        &["DLOCK.SESSION k s 0"][..],
        &["MULTI", "DLOCK.SESSION k s 0", "EXEC"],
    ] {
        c.ask::<Held>("DLOCK.ACQUIRE k s/1 600000 IN s");
        await_until("the replica has the hold", PATIENCE, || {
            there.ask::<usize>("DBSIZE") == 1
        });
        ends.iter().for_each(|line| c.run(line));
        await_until("the replica has its end", PATIENCE, || {
            there.ask::<usize>("DBSIZE") == 0
        });
    }
    assert_sound(&primary);
    assert_sound(&replica);
}

/// Sends lines, many at a time.
fn send_all(c: &mut Wire, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    for lines in lines.chunks(1_000) {
        c.pipeline(lines.iter().cloned());
    }
}

/// Returns how long 200 SESSION commands take.
fn keep(c: &mut Wire, id: u64, last: u64) -> Duration {
    let began = Instant::now();
    for _ in 0..200 {
        let (_, _, left, rows): News = c.ask(&format!("DLOCK.SESSION k s 600000 SEEN {id} {last}"));
        assert!(left.is_some() && rows.is_empty());
    }
    began.elapsed()
}

/// A SESSION command costs the same with ten holds and with thousands.
#[test]
fn the_cost_of_keeping_does_not_grow_with_the_holds() {
    let (few, many) = (Server::start(), Server::start());
    let kept = |server: &Server, holds: usize| {
        let mut c = server.connection();
        send_all(
            &mut c,
            (0..holds).map(|at| format!("DLOCK.ACQUIRE k{at} s/{at} 600000 IN s")),
        );
        let (id, last, ..): News = c.ask("DLOCK.SESSION k s 600000");
        assert_eq!(last, holds as u64);
        (c, id, last)
    };
    let (mut few, mut many) = (kept(&few, 10), kept(&many, 20_000));
    let (mut shortest_few, mut shortest_many) = (Duration::MAX, Duration::MAX);
    // Other load of the machine lengthens some rounds, and shortens none.
    await_until("both cost the same", PATIENCE, || {
        shortest_few = shortest_few.min(keep(&mut few.0, few.1, few.2));
        shortest_many = shortest_many.min(keep(&mut many.0, many.1, many.2));
        shortest_many < shortest_few * 2
    });
}

/// The end of a session of many holds and waits goes in steps, and leaves nothing.
#[test]
fn a_large_session_ends_in_steps() {
    const EACH: usize = 5_000;
    let server = Server::start();
    let mut c = server.connection();
    c.run("CONFIG SET latency-monitor-threshold 1");
    send_all(
        &mut c,
        (0..EACH).flat_map(|at| {
            [
                format!("DLOCK.ACQUIRE held{at} s/{at} 600000 IN s"),
                format!("DLOCK.ACQUIRE other{at} ann 600000"),
                format!("DLOCK.ACQUIRE other{at} s/w{at} 600000 BLOCK 0 IN s"),
            ]
        }),
    );
    assert_eq!(stat(&server, "places_queued"), EACH as u64);
    c.run("DLOCK.SESSION k s 0");
    await_until("all is over", PATIENCE, || {
        ["sessions", "auto_renewed", "places_queued"]
            .iter()
            .all(|name| stat(&server, name) == 0)
            && stat(&server, "holders") == EACH as u64
    });
    assert_sound(&server);
}

/// The number of waits whose memory is measured.
const WAITS: usize = 100_000;

/// The bytes that one of them may cost.
const BYTES: usize = 450;

/// The bytes that a wait may cost if it is the only one for its lock, with the queue of that lock.
const BYTES_ALONE: usize = 800;

fn used_memory(server: &Server) -> usize {
    server.info("memory").number("used_memory")
}

/// Measures the memory of a place in a session and, for comparison, of one that blocks a connection.
#[test]
fn a_hundred_thousand_wait_in_one_session() {
    let (server, mut c, _) = held();
    let session = Session::begin(&server, "k", "s");
    let before = used_memory(&server);
    let lines = (0..WAITS).map(|at| format!("DLOCK.ACQUIRE k owner-{at:06} 600000 BLOCK 0 IN s"));
    send_all(&mut c, lines);
    let bytes = (used_memory(&server) - before) / WAITS;
    println!("{}: {bytes} bytes a wait in a session", server.version());
    for at in [0, WAITS / 2, WAITS - 1] {
        let owner = format!("owner-{at:06}");
        assert_eq!(position(&mut c, "k", &owner), Some(at as u64));
    }
    let refused = c.refusal("DLOCK.ACQUIRE k one-too-many BLOCK 0 IN s");
    assert!(
        refused.starts_with("QUEUEFULL dlock.max-queue"),
        "{refused}"
    );
    drop(session);
    c.run("DLOCK.SESSION k s 0");
    await_until("all places are gone", PATIENCE, || {
        stat(&server, "places_queued") == 0
    });
    let kept = used_memory(&server).saturating_sub(before) / WAITS;
    println!("{kept} bytes of each are kept when they are gone");

    const BLOCKED: usize = 500;
    let mut waits: Vec<Wire> = (0..BLOCKED).map(|_| server.connection()).collect();
    for wire in &mut waits {
        wire.ask::<String>("PING");
    }
    let before = used_memory(&server);
    for (at, wire) in waits.iter_mut().enumerate() {
        wire.send(&format!("DLOCK.ACQUIRE k owner-{at:06} 600000 BLOCK 0"));
    }
    server.await_blocked_clients(BLOCKED);
    let blocked = (used_memory(&server) - before) / BLOCKED;
    println!("{blocked} bytes a waiter that blocks its connection");
    assert!(bytes <= BYTES, "{bytes} bytes");
    assert!(blocked > 10 * bytes, "{blocked} bytes");
    assert_sound(&server);
}

/// Measures the memory of one wait on each of many locks, without the locks themselves.
#[test]
fn one_waits_for_each_of_many_locks() {
    const LOCKS: usize = 50_000;
    let server = Server::start();
    let mut c = server.connection();
    let _session = Session::begin(&server, "lock:0", "s");
    let name = |at: usize| format!("00000000-0000-4000-8000-0000{at:08}");
    let lines = (0..LOCKS).map(|at| format!("DLOCK.ACQUIRE lock:{at} {} 600000", name(at)));
    send_all(&mut c, lines);
    let before = used_memory(&server);
    let waits = |at: usize| format!("{} 600000 BLOCK 0 IN s", name(at + LOCKS));
    let lines = (0..LOCKS).map(|at| format!("DLOCK.ACQUIRE lock:{at} {}", waits(at)));
    send_all(&mut c, lines);
    let bytes = (used_memory(&server) - before) / LOCKS;
    println!("{}: {bytes} bytes a lock and its waiter", server.version());
    assert!(bytes <= BYTES_ALONE, "{bytes} bytes");
    assert_sound(&server);
}

#[test]
fn a_thousand_are_handed_the_lock_in_order() {
    const WAITS: u64 = 1_000;
    let (server, mut c, _) = held();
    let mut session = Session::begin(&server, "k", "s");
    for at in 0..WAITS {
        let place: Queued = c.ask(&format!("DLOCK.ACQUIRE k owner-{at} 600000 BLOCK 0 IN s"));
        assert_eq!(place, (0, at, session.id()));
    }
    c.run("DLOCK.RELEASE k alice");
    let mut before = 0;
    for at in 0..WAITS {
        let (_, word, _, owner, token, _) = session.row();
        assert_eq!((&*word, owner), ("granted", format!("owner-{at}")));
        assert!(token > before);
        before = token;
        let release = format!("DLOCK.RELEASE k owner-{at} TOKEN {token}");
        assert_eq!(c.ask::<u64>(&release), 0);
    }
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    assert_sound(&server);
}

/// Many time-outs at one instant are all told, and do not delay the other waits.
#[test]
fn many_times_are_up_together() {
    const WAITS: usize = 2_000;
    let (server, mut c, _) = held();
    let mut session = Session::begin(&server, "k", "s");
    let lines = (0..WAITS).map(|at| format!("DLOCK.ACQUIRE k owner-{at} 600000 BLOCK 300 IN s"));
    send_all(&mut c, lines);
    c.run("DLOCK.ACQUIRE k last 600000 BLOCK 0 IN s");
    let mut told: Vec<String> = (0..WAITS).map(|_| session.told()).collect();
    told.sort();
    let wanted = (0..WAITS).map(|at| format!("timeout k owner-{at}"));
    let mut wanted: Vec<String> = wanted.collect();
    wanted.sort();
    assert_eq!(told, wanted);
    await_until("their places are gone", PATIENCE, || {
        position(&mut c, "k", "last") == Some(0)
    });
    assert_eq!(stat(&server, "timeouts_total"), WAITS as u64);
    assert_sound(&server);
}
