//! A server's views of its locks as a whole: STATS, TOP, LIST and the fields of INFO.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dlock_harness::redis::{from_redis_value, FromRedisValue, Value};
use dlock_harness::{at_once, await_until, stat, Ask, Blocked, Grant, Server, Wire, PATIENCE};

/// Returns the gauges of the number of locks and of holds.
fn population(server: &Server) -> (u64, u64) {
    (stat(server, "locks"), stat(server, "holders"))
}

fn stats(c: &mut Wire, line: &str) -> BTreeMap<String, u64> {
    c.ask(line)
}

/// Takes `key` for a holder and makes `waiters` requests wait for it.
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

#[test]
fn stats_are_the_fields_of_info() {
    let server = Server::start();
    let _waiters = crowd(&server, "k", 2);
    let plain = stats(&mut server.connection(), "DLOCK.STATS");
    let named = stats(&mut server.connection_resp3(), "DLOCK.STATS");
    assert_eq!(
        plain.keys().collect::<Vec<_>>(),
        named.keys().collect::<Vec<_>>()
    );
    let info = server.info("dlock");
    for (name, value) in &plain {
        let of_info = info.number::<u64>(&format!("dlock_{name}"));
        match &**name {
            // It rises from one question to the next.
            "oldest_wait_ms" => assert!(of_info >= *value, "{name}"),
            _ => assert_eq!(of_info, *value, "{name}"),
        }
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
    let mut wire = server.connection();
    wire.send("HELLO 3");
    wire.read().expect("a hello");
    wire.send("DLOCK.STATS");
    assert!(wire.read_line().starts_with('%'));
}

#[test]
fn info_has_four_sections() {
    let server = Server::start();
    let mut c = server.connection();
    let fields = |text: String| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(name, _)| name.to_owned()).collect()
    };
    let whole = fields(c.ask("INFO dlock"));
    let mut parts = BTreeSet::new();
    for section in [
        "dlock_locks",
        "dlock_totals",
        "dlock_times",
        "dlock_confirmations",
    ] {
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
fn what_a_flush_frees_later_is_not_what_came_since() {
    let server = Server::start();
    let mut c = server.connection();
    let fill = |c: &mut Wire| {
        for at in 0..300 {
            c.run(&format!("DLOCK.ACQUIRE lock-{at} alice 600000"));
        }
    };
    fill(&mut c);
    c.run("FLUSHALL ASYNC");
    fill(&mut c);
    c.run("DLOCK.FORCERELEASE lock-0");
    assert_eq!(population(&server), (299, 299));
    // One database of several: the others keep theirs, and the rest goes when it is freed.
    server
        .connection_in(5)
        .run("DLOCK.ACQUIRE other alice 600000");
    c.run("FLUSHDB ASYNC");
    await_until("the server has freed them", PATIENCE, || {
        population(&server) == (1, 1)
    });
}

/// A row of LIST.
type Row = HashMap<String, Value>;

/// Returns a field of a row.
fn field<T: FromRedisValue>(row: &Row, name: &str) -> T {
    from_redis_value(&row[name]).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns all pages of a list, and their number. `options` follow the command.
fn pages(c: &mut Wire, options: &str) -> (Vec<Row>, usize) {
    let (mut rows, mut cursor, mut pages) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let (next, page): (String, Vec<Row>) = c.ask(&format!("DLOCK.LIST {cursor} {options}"));
        rows.extend(page);
        pages += 1;
        if next == "0" {
            return (rows, pages);
        }
        cursor = next;
    }
}

/// Returns the listed keys, in order.
fn listed(c: &mut Wire, options: &str) -> Vec<String> {
    let (rows, _) = pages(c, options);
    let mut keys: Vec<String> = rows.iter().map(|row| field(row, "key")).collect();
    keys.sort();
    keys
}

#[test]
fn a_list_has_every_lock_and_nothing_else() {
    let server = Server::start();
    let mut c = server.connection();
    for at in 0..500 {
        c.run(&format!("SET other-{at} x"));
        c.run(&format!("DLOCK.ACQUIRE lock-{at} owner-{} 600000", at % 5));
    }
    server.connection_in(1).run("DLOCK.ACQUIRE elsewhere alice");
    let mut all: Vec<String> = (0..500).map(|at| format!("lock-{at}")).collect();
    all.sort();
    assert_eq!(listed(&mut c, ""), all);
    assert_eq!(listed(&mut c, "MATCH *"), all);
    let (rows, few) = pages(&mut c, "COUNT 1000");
    let (_, many) = pages(&mut c, "COUNT 10");
    assert!(few < 10 && many > 20, "{few} pages, {many} pages");
    for row in &rows {
        let (key, owner): (String, Option<String>) = (field(row, "key"), field(row, "owner"));
        let (holders, queued): (u64, u64) = (field(row, "held"), field(row, "queued"));
        let (lease, session): (Option<u64>, String) = (field(row, "lease-ms"), field(row, "in"));
        let at: usize = key["lock-".len()..].parse().expect("a number");
        assert_eq!(owner, Some(format!("owner-{}", at % 5)));
        assert_eq!((holders, queued, &*session), (1, 0, ""));
        assert!((1..=600_000).contains(&lease.expect("a lease")));
    }
    assert_eq!(listed(&mut c, "OWNER owner-2").len(), 100);
    let teens: Vec<String> = (10..20).map(|at| format!("lock-{at}")).collect();
    assert_eq!(listed(&mut c, "MATCH lock-1?"), teens);
    assert_eq!(listed(&mut c, "CONTENDED"), [""; 0]);
    assert_eq!(listed(&mut server.connection_in(1), ""), ["elsewhere"]);
    // The first page needs no cursor, and a client no connection of its own.
    assert_eq!(
        c.ask::<(String, Vec<Row>)>("DLOCK.LIST COUNT 1000").1.len(),
        500
    );
    let script = "EVAL return{redis.call('DLOCK.LIST','0','COUNT','1000')} 0";
    let nested: Vec<(String, Vec<Row>)> = c.ask(script);
    assert_eq!(nested[0].1.len(), 500);
}

/// Null is the protocol's own.
#[test]
fn a_list_has_the_nulls_of_the_protocol() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE reserved ann 600000");
    c.run("DLOCK.FAIRACQUIRE reserved ben CLAIM 600000");
    c.run("DLOCK.RELEASE reserved ann");
    let mut wire = server.connection();
    for (hello, null) in [("HELLO 2", "$-1"), ("HELLO 3", "_")] {
        wire.send(hello);
        wire.read().expect("a hello");
        wire.send("DLOCK.LIST 0 MATCH reserved COUNT 1000");
        let lines: Vec<String> = (0..31).map(|_| wire.read_line()).collect();
        assert_eq!(
            lines.iter().filter(|line| *line == null).count(),
            3,
            "{lines:?}"
        );
    }
}

/// The module must match the keys of contended locks itself, and does so as the server does.
#[test]
fn a_pattern_means_what_it_means_to_the_server() {
    let server = Server::start();
    let mut c = server.connection();
    for key in [
        "a", "b", "ab", "abc", "a-c", "a*c", "a?c", "a[c", "a]c", "a\\c", "]", "-", "^", "\\",
        "aXbXc", "[ab",
    ] {
        c.run(&format!("DLOCK.ACQUIRE {key} ann 600000"));
        c.run(&format!("DLOCK.FAIRACQUIRE {key} ben CLAIM 600000"));
    }
    let mut differing = BTreeSet::new();
    for pattern in [
        "*", "?", "a*", "*c", "a?c", "a*b*c", "[ab]", "[a-b]*", "[b-a]", "[^a]*", "a[^-]c",
        "a\\*c", "a\\?c", "a[*]c", "a\\[c", "a[]]c", "a[\\]]c", "[]", "[^]", "[", "[ab", "[a",
        "a[", "\\", "\\\\", "a\\\\c", "[a-", "[-]", "[--a]", "**", "*?*?*", "[\\]-a]", "x",
    ] {
        let mut keys: Vec<String> = c.ask(&format!("KEYS {pattern}"));
        keys.sort();
        assert_eq!(
            listed(&mut c, &format!("CONTENDED MATCH {pattern}")),
            keys,
            "{pattern}"
        );
        assert_eq!(
            listed(&mut c, &format!("MATCH {pattern}")),
            keys,
            "{pattern}"
        );
        differing.insert(keys);
    }
    assert!(differing.len() > 15, "{differing:?}");
}

#[test]
fn a_replica_lists_what_it_knows() {
    let primary = Server::start();
    let mut p = primary.connection();
    p.run("DLOCK.ACQUIRE plain ann 600000");
    p.run("DLOCK.ACQUIRE contended ann 600000");
    p.run("DLOCK.FAIRACQUIRE contended ben CLAIM 600000");
    let replica = Server::builder()
        .config("replicaof", format!("127.0.0.1 {}", primary.port()))
        .start();
    let mut r = replica.connection();
    await_until("the replica has it all", PATIENCE, || {
        r.try_ask("DBSIZE") == Ok(Value::Int(2))
    });
    assert_eq!(listed(&mut r, ""), ["contended", "plain"]);
    assert_eq!(listed(&mut r, "CONTENDED"), ["contended"]);
    assert_eq!(population(&replica), (2, 2));
    p.run("DLOCK.RELEASE plain ann");
    p.run("DLOCK.ACQUIRE more ann 600000 SHARED");
    p.run("DLOCK.ACQUIRE more ben 600000 SHARED");
    await_until("the replica follows", PATIENCE, || {
        population(&replica) == (2, 3)
    });
}

#[test]
fn the_latency_monitor_shows_a_late_hand_over() {
    let server = Server::start();
    let mut c = server.connection();
    for threshold in [0, 50] {
        c.run(&format!("CONFIG SET latency-monitor-threshold {threshold}"));
        c.run("DLOCK.ACQUIRE k one 600000");
        let waiter = Blocked::start(&server, "DLOCK.ACQUIRE k two 600000 BLOCK 0");
        // The lease ends while the server sleeps: nothing comes between these.
        at_once(&server, ["DLOCK.RENEW k one 100", "DEBUG SLEEP 0.4"]);
        let _: Grant = waiter.reply();
        // The event, when it was, and how long it took; newer servers add sums.
        let latest: Vec<Vec<Value>> = c.ask("LATENCY LATEST");
        if threshold == 0 {
            assert!(latest.is_empty(), "the monitor is off: {latest:?}");
            c.run("DLOCK.RELEASE k two");
            continue;
        }
        let is_late =
            |event: &&Vec<Value>| from_redis_value(&event[0]) == Ok("dlock-late".to_owned());
        let late = latest.iter().find(is_late);
        let late = late.unwrap_or_else(|| panic!("no late end of a lease in {latest:?}"));
        let took: u64 = from_redis_value(&late[2]).expect("milliseconds");
        assert!(took >= 290, "{latest:?}");
    }
}

/// The newest entry of the log, once there is one.
fn logged(server: &Server, key: &str) -> Row {
    let mut newest = None;
    await_until("it is logged", PATIENCE, || {
        let entries: Vec<Row> = server.connection().ask(&format!("DLOCK.LOG KEY {key}"));
        newest = entries.into_iter().next();
        newest.is_some()
    });
    newest.expect("an entry")
}

/// Address and name are those of the connection, though it has ended by the time the lease runs out.
#[test]
fn the_log_names_connections_that_have_ended() {
    let server = Server::start();
    // From the first wait on, the module learns which connections end.
    let _waiters = crowd(&server, "busy", 1);
    let mut gone = server.connection();
    gone.run("CLIENT SETNAME stock-keeper");
    let (id, addr) = (gone.client_id(), gone.ask::<String>("CLIENT INFO"));
    let addr = addr.split(' ').find_map(|word| word.strip_prefix("addr="));
    let addr = addr.expect("an address").to_owned();
    gone.run("DLOCK.ACQUIRE stock alice 300");
    drop(gone);
    let _next = Blocked::start(&server, "DLOCK.ACQUIRE stock bob 600000 BLOCK 0");
    let entry = logged(&server, "stock");
    assert_eq!(field::<String>(&entry, "how"), "expired");
    assert_eq!(field::<u64>(&entry, "client"), id);
    assert_eq!(field::<String>(&entry, "addr"), addr);
    assert_eq!(field::<String>(&entry, "name"), "stock-keeper");
    assert_eq!(field::<String>(&entry, "next"), "bob");
}

/// INFO of a lock tells a hold whose connection has ended from one whose connection is not known.
#[test]
fn a_hold_without_its_connection_is_told() {
    let server = Server::start();
    let mut gone = server.connection();
    let id = gone.client_id();
    gone.run("DLOCK.ACQUIRE stock alice 600000");
    let mut c = server.connection();
    let holder = |c: &mut Wire| -> Row {
        let info: HashMap<String, Value> = c.ask("DLOCK.INFO stock");
        from_redis_value::<Vec<Row>>(&info["holders"])
            .expect("holders")
            .remove(0)
    };
    assert_eq!(field::<u64>(&holder(&mut c), "client"), id);
    assert!(!holder(&mut c).contains_key("gone"));
    drop(gone);
    await_until("the connection has ended", PATIENCE, || {
        holder(&mut c).contains_key("gone")
    });
    assert_eq!(field::<u64>(&holder(&mut c), "client"), 0);
}

/// A promoted replica's log has the ends of holds that it saw as a replica, with its own clock's time; a restarted one has nothing of
/// what its AOF says.
#[test]
fn a_replica_logs_what_it_sees() {
    let primary = Server::start();
    let replica = Server::builder().config("appendonly", "yes").start();
    replica.replica_of(&primary);
    let mut p = primary.connection();
    await_until("the replica follows", PATIENCE, || {
        p.run("DLOCK.ACQUIRE seen alice 600000");
        p.run("DLOCK.RELEASE seen alice");
        p.run("DLOCK.ACQUIRE seen alice 600000");
        p.run("DLOCK.FORCERELEASE seen");
        let entries: Vec<Row> = replica.connection().ask("DLOCK.LOG KEY seen");
        !entries.is_empty()
    });
    replica.connection().run("REPLICAOF NO ONE");
    let entries: Vec<Row> = replica.connection().ask("DLOCK.LOG KEY seen COUNT 1000");
    let how = |row| field::<String>(row, "how");
    assert!(
        entries.iter().all(|row| how(row) == "forced"),
        "{entries:?}"
    );
    assert_eq!(field::<String>(&entries[0], "owner"), "alice");
    assert!(field::<u64>(&entries[0], "token") > 0);
}

/// On a server that waits for nothing and watches nothing, the module asks nothing.
#[test]
fn an_idle_server_is_silent() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE stock alice 600000");
    let calls = |c: &mut Wire| -> String {
        let stats: String = c.ask("INFO commandstats");
        let line = stats.lines().find(|line| line.contains("dlock.apply"));
        line.unwrap_or_default().to_owned()
    };
    let before = calls(&mut c);
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    assert_eq!(calls(&mut c), before);
    // While a client waits, it asks.
    let _waiter = Blocked::start(&server, "DLOCK.ACQUIRE stock bob 600000 BLOCK 0");
    await_until("it asks", PATIENCE, || calls(&mut c) != before);
}
