//! Sessions: users, stalls and pauses, demotions, connections that end, and masses. `tests/servers/sessions.txt` has the rest,
//! `survival` what becomes of them in a cluster and with confirmations.

use dlock_integration::{
    assert_sound, await_until, position, stat, Ask, Blocked, Server, Wire, PATIENCE,
};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A row: its number, the word, the key, the owner, the token, and the milliseconds that are left.
pub(crate) type Row = (u64, String, String, String, u64, u64);

/// The reply of `DLOCK.SESSION`: the id, the last row's number, the milliseconds that are left, the rows.
pub(crate) type News = (u64, u64, Option<u64>, Vec<Row>);

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

/// Has a session's only place wait, with its window about to end, while the server does not read.
fn wait_unread(server: &Server, stop: impl Fn(), go_on: impl Fn()) {
    let mut c = server.connection();
    c.run("CONFIG SET dlock.claim-window-ms 500");
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
    sleep(Duration::from_millis(1_200));
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
        let pause = format!("CLIENT PAUSE 1000 {what}");
        wait_unread(&server, || server.connection().run(&pause), || {});
    }
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
