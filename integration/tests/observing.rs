//! What a server shows of its locks as a whole: STATS, TOP, LIST and the fields of INFO.

use std::collections::{BTreeMap, BTreeSet};

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{await_until, command, Ask, Blocked, Grant, Server, PATIENCE};

/// One of the server's numbers now.
fn number(server: &Server, field: &str) -> u64 {
    server.info("dlock").number(&format!("dlock_{field}"))
}

/// The gauges that tell how many locks there are and how many holds.
fn population(server: &Server) -> (u64, u64) {
    (number(server, "locks"), number(server, "holders"))
}

fn stats(c: &mut Connection, line: &str) -> BTreeMap<String, u64> {
    c.ask(line)
}

/// A row of TOP: key, waits, milliseconds in all, the longest, error, database.
type Hot = (String, u64, u64, u64, u64, u64);

/// Takes `key` for a holder and lets so many wait for it.
fn crowd(server: &Server, key: &str, waiters: usize) -> Vec<Blocked> {
    server
        .connection()
        .run(&format!("DLOCK.ACQUIRE {key} holder 600000"));
    (0..waiters)
        .map(|at| {
            let line = format!("DLOCK.ACQUIRE {key} waiter-{at} 600000 BLOCK 0");
            Blocked::start(server, &line)
        })
        .collect()
}

/// The connection of a user who may run everything on keys that begin with `open`, but for what `rules` add.
fn worker(server: &Server, rules: &str) -> Connection {
    let mut admin = server.connection();
    admin.run(&format!(
        "ACL SETUSER worker reset on >secret +@all ~open* {rules}"
    ));
    server.connection_as("worker", "secret")
}

#[test]
fn stats_are_the_fields_of_info() {
    let server = Server::start();
    let _waiters = crowd(&server, "k", 2);
    let plain = stats(&mut server.connection(), "DLOCK.STATS");
    assert_eq!(plain, stats(&mut server.connection_resp3(), "DLOCK.STATS"));
    let info = server.info("dlock");
    for (name, value) in &plain {
        assert_eq!(
            info.number::<u64>(&format!("dlock_{name}")),
            *value,
            "{name}"
        );
    }
    for (name, value) in [
        ("locks", 1),
        ("holders", 1),
        ("places_queued", 2),
        ("connections_waiting", 2),
        ("grants_immediate_total", 1),
        ("waits_total", 0),
    ] {
        assert_eq!(plain[name], value, "{name}");
    }
    // RESP3 has maps.
    let mut wire = server.wire();
    wire.send("HELLO 3");
    wire.read().expect("a hello");
    wire.send("DLOCK.STATS");
    assert!(wire.read_line().starts_with('%'));
}

#[test]
fn info_has_three_sections() {
    let server = Server::start();
    let mut c = server.connection();
    let fields = |text: String| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(name, _)| name.to_owned()).collect()
    };
    let whole = fields(c.ask("INFO dlock"));
    let mut parts = BTreeSet::new();
    for section in ["dlock_locks", "dlock_totals", "dlock_times"] {
        let text: String = c.ask(&format!("INFO {section}"));
        assert_eq!(text.lines().next(), Some(format!("# {section}").as_str()));
        for field in fields(text) {
            assert!(parts.insert(field.clone()), "{field} stands twice");
        }
    }
    assert_eq!(whole, parts);
    assert!(parts.contains("dlock_wait_p99_us") && parts.contains("dlock_fenced_total"));
}

#[test]
fn waits_and_holds_are_timed() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let waiter = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let begun = std::time::Instant::now();
    await_until("bob has waited", PATIENCE, || {
        begun.elapsed().as_millis() >= 20
    });
    c.run("DLOCK.RELEASE k alice");
    waiter.reply::<Grant>();
    let seen = stats(&mut c, "DLOCK.STATS");
    for name in ["wait", "hold"] {
        let percentiles =
            ["p50", "p99", "p999", "max"].map(|part| seen[&format!("{name}_{part}_us")]);
        let longest = percentiles[3];
        assert!((20_000..10_000_000).contains(&longest), "{name}: {seen:?}");
        // There was but one.
        assert_eq!(percentiles, [longest; 4], "{name}");
        assert_eq!(seen[&format!("{name}_us_total")], longest, "{name}");
        assert_eq!(seen[&format!("{name}s_total")], 1, "{name}");
    }
}

#[test]
fn a_reset_is_for_those_who_may_reset_the_server() {
    let server = Server::start();
    let mut c = server.connection();
    let _waiters = crowd(&server, "open", 1);
    let mut plain = worker(&server, "-config|resetstat");
    let before = stats(&mut plain, "DLOCK.STATS");
    assert_eq!(
        plain.refusal("DLOCK.STATS RESET"),
        "NOPERM the user may not run 'dlock.stats reset' with these arguments"
    );
    assert_eq!(stats(&mut plain, "DLOCK.STATS"), before);
    assert_eq!(stats(&mut c, "DLOCK.STATS RESET"), before);
    let left: BTreeMap<String, u64> = stats(&mut c, "DLOCK.STATS")
        .into_iter()
        .filter(|(_, value)| *value > 0)
        .collect();
    let now = ["connections_waiting", "holders", "locks", "places_queued"];
    assert_eq!(left, now.map(|name| (name.to_owned(), 1)).into());
    assert_eq!(c.ask::<Vec<Value>>("DLOCK.TOP"), []);
    let mut ops = worker(&server, "");
    stats(&mut ops, "DLOCK.STATS reset");
}

/// However locks come and go, the server counts those that there are.
#[test]
fn locks_and_holds_are_counted_whatever_becomes_of_them() {
    let server = Server::start();
    let mut c = server.connection();
    let is = |locks, holds, after: &str| assert_eq!(population(&server), (locks, holds), "{after}");
    is(0, 0, "start");
    for key in ["a", "b", "c", "d", "e"] {
        c.run(&format!("DLOCK.ACQUIRE {key} alice 600000"));
    }
    is(5, 5, "ACQUIRE");
    for owner in ["x", "y", "z"] {
        c.run(&format!("DLOCK.ACQUIRE shared {owner} 600000 SHARED"));
    }
    is(6, 8, "SHARED");
    c.run("DLOCK.ACQUIRE shared x 600000 SHARED");
    c.run("DLOCK.RENEW shared y 600000");
    is(6, 8, "a re-entry");
    c.run("DLOCK.RELEASE shared y");
    is(6, 7, "RELEASE");
    c.run("RENAME a renamed");
    c.run("MOVE renamed 3");
    is(6, 7, "RENAME, MOVE");
    c.run("DEL b");
    is(5, 6, "DEL");
    c.run("SET c other");
    is(4, 5, "SET");
    let dump: Vec<u8> = c.ask("DUMP shared");
    c.run("DEL shared");
    is(3, 3, "DEL of a shared one");
    c.ask_command::<()>(command("RESTORE shared 600000").arg(&dump));
    is(4, 5, "RESTORE");
    c.ask_command::<()>(command("RESTORE shared 600000").arg(&dump).arg("REPLACE"));
    is(4, 5, "RESTORE REPLACE");
    assert!(c
        .answer(command("RESTORE shared 600000").arg(&dump))
        .is_err());
    assert!(c
        .answer(command("RESTORE broken 600000").arg(&dump[..dump.len() - 1]))
        .is_err());
    is(4, 5, "RESTORE refused");
    c.run("DEBUG RELOAD");
    is(4, 5, "DEBUG RELOAD");
    c.run("PEXPIRE d 1");
    await_until("the server has expired it", PATIENCE, || {
        population(&server) == (3, 4)
    });
    c.run("DLOCK.FORCERELEASE shared");
    is(2, 2, "FORCERELEASE");
    c.run("SWAPDB 0 3");
    is(2, 2, "SWAPDB");
    c.run("DLOCK.ACQUIRE fresh alice 600000");
    c.run("FLUSHALL ASYNC");
    is(0, 0, "FLUSHALL ASYNC");
    c.run("DLOCK.ACQUIRE k alice 600000");
    is(1, 1, "after the flush");
    c.run("DLOCK.RELEASE k alice");
    is(0, 0, "RELEASE after the flush");
}

#[test]
fn a_flush_of_any_kind_leaves_none() {
    let server = Server::start();
    let mut c = server.connection();
    let fill = |c: &mut Connection| {
        for at in 0..300 {
            c.run(&format!("DLOCK.ACQUIRE lock-{at} alice 600000"));
        }
    };
    for flush in [
        "FLUSHALL SYNC",
        "FLUSHALL ASYNC",
        "FLUSHDB SYNC",
        "FLUSHDB ASYNC",
    ] {
        fill(&mut c);
        assert_eq!(population(&server), (300, 300), "{flush}");
        c.run(flush);
        assert_eq!(population(&server), (0, 0), "{flush}");
    }
    // What is freed in the background is not what came since.
    fill(&mut c);
    c.run("FLUSHALL ASYNC");
    fill(&mut c);
    c.run("DLOCK.FORCERELEASE lock-0");
    assert_eq!(population(&server), (299, 299));
    // One database of several: what is in the others stays, and the rest goes when it is freed.
    server
        .connection_in(5)
        .run("DLOCK.ACQUIRE other alice 600000");
    c.run("FLUSHDB ASYNC");
    await_until("the server has freed them", PATIENCE, || {
        population(&server) == (1, 1)
    });
}

#[test]
fn a_restart_counts_what_it_loads() {
    for aof in ["no", "yes"] {
        let mut server = Server::builder()
            .config("appendonly", aof)
            .config("aof-use-rdb-preamble", "no")
            .config("save", "3600 1")
            .start();
        let mut c = server.connection();
        for at in 0..50 {
            c.run(&format!("DLOCK.ACQUIRE lock-{at} alice 600000"));
        }
        c.run("DLOCK.ACQUIRE gone alice 1");
        for owner in ["x", "y", "z"] {
            c.run(&format!("DLOCK.ACQUIRE shared {owner} 600000 SHARED"));
        }
        c.run("DLOCK.RELEASE shared z");
        c.run("DLOCK.FORCERELEASE lock-0");
        await_until("the lease has run out", PATIENCE, || {
            population(&server) == (50, 51)
        });
        server.restart();
        assert_eq!(population(&server), (50, 51), "appendonly {aof}");
        server.connection().run("FLUSHALL ASYNC");
        assert_eq!(population(&server), (0, 0), "appendonly {aof}");
    }
}

#[test]
fn an_evicted_lock_is_held_no_longer() {
    let server = Server::builder()
        .config("maxmemory-policy", "allkeys-random")
        .start();
    let mut c = server.connection();
    for at in 0..100 {
        c.run(&format!("DLOCK.ACQUIRE lock-{at} alice 600000"));
    }
    // Everything has to go, and the next write sees to it.
    c.run("CONFIG SET maxmemory 1");
    assert!(c.refusal("DLOCK.ACQUIRE more alice").starts_with("OOM "));
    c.run("CONFIG SET maxmemory 0");
    let (locks, holds) = population(&server);
    let evicted = number(&server, "evicted_total");
    assert_eq!((locks, holds), (100 - evicted, 100 - evicted));
    assert!(evicted > 0);
}

#[test]
fn top_shows_the_most_contended_locks_first() {
    let server = Server::start();
    let (some, many) = (
        crowd(&server, "open-some", 2),
        crowd(&server, "open-many", 3),
    );
    let hidden = crowd(&server, "hidden", 4);
    server
        .connection_in(2)
        .run("DLOCK.ACQUIRE open-cold alice 600000");
    let elsewhere = server.wire();
    let mut admin = server.connection();
    let rows = |c: &mut Connection, line: &str| c.ask::<Vec<Hot>>(line);
    let keys = |rows: Vec<Hot>| -> Vec<(String, u64)> {
        rows.into_iter().map(|row| (row.0, row.1)).collect()
    };
    let seen = |key: &str, waits| (key.to_owned(), waits);
    assert_eq!(
        keys(rows(&mut admin, "DLOCK.TOP")),
        [
            seen("hidden", 4),
            seen("open-many", 3),
            seen("open-some", 2)
        ]
    );
    assert_eq!(
        keys(rows(&mut admin, "DLOCK.TOP COUNT 1")),
        [seen("hidden", 4)]
    );
    // Who may not read a key does not see it, and sees as many others.
    let mut worker = worker(&server, "");
    assert_eq!(
        keys(rows(&mut worker, "DLOCK.TOP COUNT 1")),
        [seen("open-many", 3)]
    );
    let in_script: Vec<Vec<Hot>> = worker.ask("EVAL return{redis.call('DLOCK.TOP')} 0");
    let in_script = in_script.concat();
    assert_eq!(
        keys(in_script),
        [seen("open-many", 3), seen("open-some", 2)]
    );
    admin.run("ACL SETUSER worker resetkeys %W~*");
    assert_eq!(rows(&mut worker, "DLOCK.TOP"), []);
    admin.run("ACL SETUSER worker %R~open-some");
    assert_eq!(keys(rows(&mut worker, "DLOCK.TOP")), [seen("open-some", 2)]);
    drop((some, many, hidden, elsewhere));
}

#[test]
fn top_tells_databases_apart() {
    let server = Server::start();
    let mut there = server.connection_in(7);
    there.run("DLOCK.ACQUIRE k alice 600000");
    there.run("DLOCK.FAIRACQUIRE k bob 600000");
    let rows: Vec<Hot> = server.connection().ask("DLOCK.TOP");
    assert_eq!(rows, [("k".to_owned(), 1, 0, 0, 0, 7)]);
}
