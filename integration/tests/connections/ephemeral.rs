//! EPHEMERAL: a hold that ends with the connection that asked for it, however the connection ends, and with nothing else.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::redis::{cmd, from_redis_value, FromRedisValue, Value};
use dlock_harness::{
    assert_sound, await_until, is_held, stat, wait_as, Ask, Grant, Server, ServerBuilder, Session,
    Subscriber, Wire, PATIENCE,
};
use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// How long a test observes that nothing happens.
const WHILE: Duration = Duration::from_millis(250);

/// The number of holds that end together.
const MASS: usize = 10_000;

#[track_caller]
fn take(wire: &mut Wire, line: &str) -> u64 {
    wire.ask::<Grant>(&format!("DLOCK.ACQUIRE {line}")).0
}

#[track_caller]
fn await_end(connection: &mut Wire, key: &str, owner: &str) {
    await_until(
        &format!("{owner}'s hold of {key} has ended"),
        PATIENCE,
        || !is_held(connection, key, owner),
    );
}

/// Asserts that the lock is held, and still is after the module has had time to end the hold.
#[track_caller]
fn assert_stays(connection: &mut Wire, key: &str, owner: &str) {
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        assert!(is_held(connection, key, owner), "{owner} held {key}");
        thread::yield_now();
    }
}

/// Returns a field of the only holder that `DLOCK.INFO` shows.
#[track_caller]
fn holder<T: FromRedisValue>(connection: &mut Wire, key: &str, field: &str) -> Option<T> {
    let lock: HashMap<String, Value> = connection.ask(&format!("DLOCK.INFO {key}"));
    let holders: Vec<HashMap<String, Value>> =
        from_redis_value(&lock["holders"]).expect("an array of maps");
    assert_eq!(holders.len(), 1, "{holders:?}");
    let value = holders[0].get(field)?;
    Some(from_redis_value(value).expect("a field of that type"))
}

/// Names a way in which a connection ends, with the function that ends it. The function returns the socket that the test must keep
/// open.
type Way = (&'static str, fn(&Server, Wire) -> Option<Wire>);

const WAYS: [Way; 13] = [
    ("QUIT", |_, mut wire| {
        wire.send("QUIT");
        Some(wire)
    }),
    ("the socket is closed", |_, _| None),
    ("the socket is closed for sending", |_, wire| {
        wire.close_sending();
        Some(wire)
    }),
    ("closed, with CLIENT NO-EVICT on", |_, mut wire| {
        wire.ask::<String>("CLIENT NO-EVICT ON");
        None
    }),
    ("closed in the middle of a command", |_, mut wire| {
        wire.send_bytes(b"*2\r\n$4\r\nECHO\r\n$100\r\nhal")
            .expect("the server reads");
        None
    }),
    ("closed in a transaction", |_, mut wire| {
        wire.ask::<String>("MULTI");
        wire.ask::<String>("DLOCK.RELEASE plain dies");
        None
    }),
    ("closed as a subscriber", |_, mut wire| {
        wire.ask::<Value>("SUBSCRIBE news");
        None
    }),
    ("a protocol error", |_, mut wire| {
        wire.send_bytes(b"*1\r\n$-5\r\n").expect("the server reads");
        Some(wire)
    }),
    ("CLIENT KILL", |server, mut wire| {
        let id = wire.client_id();
        server.connection().run(&format!("CLIENT KILL ID {id}"));
        Some(wire)
    }),
    ("CLIENT KILL of itself", |_, mut wire| {
        let id = wire.client_id();
        wire.send(&format!("CLIENT KILL ID {id} SKIPME no"));
        Some(wire)
    }),
    ("its output buffer is full", |server, mut wire| {
        let mut other = server.connection();
        let limit = "normal 100000 0 0";
        other.ask_command::<String>(
            cmd("CONFIG")
                .arg("SET")
                .arg("client-output-buffer-limit")
                .arg(limit),
        );
        // Of many small parts: newer servers keep one large value out of the buffer.
        let part = format!(" {}", "x".repeat(1_000));
        other.run(&format!("RPUSH big{}", part.repeat(1_000)));
        wire.send("LRANGE big 0 -1");
        Some(wire)
    }),
    ("it is evicted", |server, mut wire| {
        server.connection().run("CONFIG SET maxmemory-clients 5mb");
        let half = [
            b"*2\r\n$4\r\nECHO\r\n$20000000\r\n".as_slice(),
            &[b'x'; 10_000_000],
        ]
        .concat();
        // The server may close it while this is sent.
        let _ = wire.send_bytes(&half);
        Some(wire)
    }),
    ("its user is deleted", |server, mut wire| {
        server
            .connection()
            .run("ACL SETUSER mortal on >secret allkeys allcommands");
        wire.ask::<String>("AUTH mortal secret");
        server.connection().run("ACL DELUSER mortal");
        Some(wire)
    }),
];

/// The next waiter has the lock then, long before the lease is over, and observers are notified. Holds of that owner without
/// EPHEMERAL stay.
#[test]
fn a_hold_ends_with_its_connection_however_that_ends() {
    let server = Server::builder()
        .config("notify-keyspace-events", "KEd")
        .start();
    let mut c = server.connection();
    for (name, end) in WAYS {
        println!("{name}");
        c.run("FLUSHALL");
        let mut dies = server.connection();
        let token = take(&mut dies, "k dies 600000 EPHEMERAL");
        let plain = take(&mut dies, "plain dies 600000");
        take(&mut dies, "k dies 600000");
        let next = wait_as(&server, "next");
        let messages = Subscriber::channels(&server, &["__dlock@0__:k"]);
        let events = Subscriber::channels(&server, &["__keyspace@0__:k"]);
        let left = end(&server, dies);
        next.reply::<Grant>();
        assert_eq!(messages.payload(), format!("closed {token}"), "{name}");
        assert_eq!(events.payload(), "dlock.closed", "{name}");
        assert_eq!(events.payload(), "dlock.acquired", "{name}");
        let check = format!("DLOCK.CHECK plain {plain}");
        assert_eq!(c.ask::<String>(&check), "OK", "{name}");
        drop(left);
        for (setting, value) in [("maxmemory-clients", "0"), ("timeout", "0")] {
            c.run(&format!("CONFIG SET {setting} {value}"));
        }
    }
    let ends = stat(&server, "closed_total");
    assert_eq!(ends, WAYS.len() as u64);
    assert_eq!(stat(&server, "ephemeral"), 0);
    assert_sound(&server);
}

#[test]
fn a_hold_ends_when_the_server_closes_an_idle_connection() {
    let server = Server::start();
    let mut c = server.connection();
    let mut dies = server.connection();
    take(&mut dies, "k dies 600000 EPHEMERAL");
    let next = wait_as(&server, "next");
    c.run("CONFIG SET timeout 1");
    next.reply::<Grant>();
    assert!(dies.read_value().is_err());
}

#[test]
fn the_client_is_shown() {
    let server = Server::start();
    let mut c = server.connection();
    let mut wire = server.connection();
    wire.ask::<String>("CLIENT SETNAME worker");
    let id = wire.client_id();
    take(&mut wire, "k bob 600000");
    assert_eq!(holder::<u64>(&mut c, "k", "ephemeral"), Some(0));
    assert_eq!(holder::<u64>(&mut c, "k", "client"), Some(id));
    take(&mut wire, "k bob 600000 EPHEMERAL");
    assert_eq!(holder::<u64>(&mut c, "k", "ephemeral"), Some(1));
    assert_eq!(holder::<u64>(&mut c, "k", "client"), Some(id));
    let list: String = c.ask(&format!("CLIENT LIST ID {id}"));
    let addr: String = holder(&mut c, "k", "addr").expect("an address");
    assert!(list.contains(&format!("addr={addr} ")), "{addr}: {list}");
    assert_eq!(
        holder::<String>(&mut c, "k", "name").as_deref(),
        Some("worker")
    );

    // A user who may not list clients sees the id only.
    c.run("ACL SETUSER peeps on >p allkeys -@all +dlock.info");
    let mut peeps = server.connection_as("peeps", "p");
    assert_eq!(holder::<u64>(&mut peeps, "k", "client"), Some(id));
    assert_eq!(holder::<String>(&mut peeps, "k", "addr"), None);

    // A plain hold's client that has ended is shown as none.
    take(&mut wire, "plain bob 600000");
    wire.close();
    server.await_client_gone(id);
    assert_eq!(holder::<u64>(&mut c, "plain", "client"), Some(0));
    assert_eq!(holder::<u64>(&mut c, "plain", "ephemeral"), Some(0));
}

/// Opens connections until one has this client id.
fn with_id(server: &Server, id: u64) -> (Wire, Vec<Wire>) {
    let mut others = Vec::new();
    loop {
        let mut wire = server.connection();
        match wire.client_id() {
            found if found == id => return (wire, others),
            found => assert!(found < id, "{found} was given out, but never {id}"),
        }
        others.push(wire);
    }
}

/// A client id of an earlier run belongs to another client in this run.
#[test]
fn a_hold_of_an_earlier_run_lives_until_its_lease() {
    let aof = |builder: ServerBuilder| builder.config("appendonly", "yes");
    let rdb = |builder: ServerBuilder| builder.config("save", "3600 1000000");
    for persistent in [aof, rdb] {
        let mut server = persistent(Server::builder()).start();
        let (mut dies, others) = with_id(&server, 300);
        let token = take(&mut dies, "k bob 600000 EPHEMERAL");
        take(&mut dies, "short bob 3000 EPHEMERAL");
        server.restart();
        drop((dies, others));
        let mut c = server.connection();
        assert!(is_held(&mut c, "k", "bob"));
        let (mut same, others) = with_id(&server, 300);
        assert_eq!(holder::<u64>(&mut c, "k", "ephemeral"), Some(0));
        assert_eq!(holder::<u64>(&mut c, "k", "client"), Some(0));
        // From here on the module subscribes to ended connections.
        take(&mut same, "j bob 600000 EPHEMERAL");
        same.close();
        await_end(&mut c, "j", "bob");
        drop(others);
        assert_stays(&mut c, "k", "bob");
        assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
        await_end(&mut c, "short", "bob");
        assert_sound(&server);
    }
}

#[test]
fn an_ephemeral_hold_does_not_outlive_the_role() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut c = replica.connection();
    let (mut dies, others) = with_id(&primary, 300);
    let token = take(&mut dies, "k bob 600000 EPHEMERAL");
    take(&mut dies, "short bob 2000 EPHEMERAL");
    replica.wait_in_sync(&primary);
    assert_eq!(holder::<u64>(&mut c, "k", "ephemeral"), Some(0));
    replica.promote();
    // The servers swap their roles, with the connection still open.
    primary.replica_of(&replica);
    let (mut same, more) = with_id(&replica, 300);
    assert_eq!(holder::<u64>(&mut c, "k", "client"), Some(0));
    take(&mut same, "j bob 600000 EPHEMERAL");
    same.close();
    await_end(&mut c, "j", "bob");
    dies.close();
    drop((others, more));
    assert_stays(&mut c, "k", "bob");
    await_end(&mut c, "short", "bob");
    // Back again: the tie is gone.
    primary.wait_in_sync(&replica);
    replica.replica_of(&primary);
    primary.promote();
    let mut c = primary.connection();
    assert_stays(&mut c, "k", "bob");
    assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
    assert_sound(&primary);
    assert_sound(&replica);
}

/// In a failover the hold continues at the new primary, whenever the connection ends. If the failover is given up, the hold ends
/// with the connection.
#[test]
fn a_failover_leaves_an_ephemeral_hold_to_its_lease() {
    for (held_up, given_up) in [(false, false), (true, false), (true, true)] {
        let (primary, replica) = (Server::start(), Server::start());
        replica.replica_of(&primary);
        let (mut c, mut r) = (primary.connection(), replica.connection());
        let (mut dies, mut stays) = (primary.connection(), primary.connection());
        let token = take(&mut dies, "k bob 600000 EPHEMERAL");
        take(&mut dies, "short bob 3000 EPHEMERAL");
        take(&mut stays, "j bob 600000 EPHEMERAL");
        replica.wait_in_sync(&primary);
        let target = format!("127.0.0.1 {}", replica.port());
        let id = dies.client_id();
        if held_up {
            replica.freeze();
            // A write that the replica does not have yet.
            c.run("SET x 1");
        }
        c.run(&format!("FAILOVER TO {target}"));
        if held_up {
            await_until("the failover waits", PATIENCE, || {
                primary.info("replication").text("master_failover_state") == "waiting-for-sync"
            });
            dies.close();
            primary.await_client_gone(id);
        }
        if given_up {
            c.run("FAILOVER ABORT");
            replica.thaw();
            await_end(&mut c, "k", "bob");
            assert!(is_held(&mut c, "j", "bob"));
            replica.wait_in_sync(&primary);
            assert_sound(&primary);
            continue;
        }
        if held_up {
            replica.thaw();
        }
        await_until("the replica has taken over", PATIENCE, || {
            replica.info("replication").text("role") == "master"
        });
        primary.wait_in_sync(&replica);
        if !held_up {
            dies.close();
            primary.await_client_gone(id);
        }
        stays.close();
        for key in ["k", "j"] {
            assert_stays(&mut c, key, "bob");
            assert!(is_held(&mut r, key, "bob"), "{key}");
            assert_eq!(holder::<u64>(&mut r, key, "ephemeral"), Some(0), "{key}");
        }
        assert_eq!(r.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
        await_end(&mut r, "short", "bob");
        // The hold ends a moment before the server removes the key, and the removal must not fall between two digests.
        await_until("the key is gone", PATIENCE, || {
            r.ask::<u64>("EXISTS short") == 0
        });
        // The next waiter is granted the lock by the new primary.
        let next = wait_as(&replica, "next");
        assert_eq!(r.ask::<u64>("DLOCK.RELEASE k bob HOLDS 0"), 0);
        next.reply::<Grant>();
        primary.wait_in_sync(&replica);
        assert_eq!(
            c.ask::<String>("DEBUG DIGEST"),
            r.ask::<String>("DEBUG DIGEST")
        );
        assert_sound(&primary);
        assert_sound(&replica);
    }
}

/// The end is the primary's decision: replicas and the AOF follow it.
#[test]
fn the_end_of_an_ephemeral_hold_is_replicated_and_saved() {
    let mut primary = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut dies = primary.connection();
    take(&mut dies, "k bob 600000 EPHEMERAL");
    take(&mut dies, "k bob 600000");
    let waits = wait_as(&primary, "next");
    dies.close();
    let (token, _): Grant = waits.reply();
    replica.wait_in_sync(&primary);
    let check = format!("DLOCK.CHECK k {token}");
    assert_eq!(replica.connection().ask::<String>(&check), "OK");
    primary.kill9();
    primary.restart();
    assert_eq!(primary.connection().ask::<String>(&check), "OK");
}

/// Returns a server with room for this mass, whose AOF shows the changes of each step.
fn start_for_a_mass() -> Server {
    Server::builder()
        .config("maxclients", MASS + 100)
        .config("appendonly", "yes")
        .config("auto-aof-rewrite-percentage", 0)
        .start()
}

/// Returns the number of changes in the largest step of the server's AOF: the decisions of one step form one transaction.
fn largest_step(server: &Server) -> usize {
    let text = fs::read(server.aof()).expect("our file");
    let text = String::from_utf8_lossy(&text);
    let (mut step, mut largest) = (0, 0);
    for line in text.lines() {
        match line {
            "MULTI" | "EXEC" => step = 0,
            "DLOCK.APPLY" => step += 1,
            _ => {}
        }
        largest = largest.max(step);
    }
    largest
}

/// Asserts that all the ephemeral holds end in many steps, so that the server answers others in between. The benchmark measures
/// how long these wait.
#[track_caller]
fn assert_ends_in_steps(server: &Server, end: impl FnOnce()) {
    // The file then has only the following changes.
    server.rewrite_aof();
    end();
    await_until("all ephemeral holds have ended", PATIENCE, || {
        stat(server, "ephemeral") == 0
    });
    assert_eq!(stat(server, "closed_total"), MASS as u64);
    let largest = largest_step(server);
    println!("{}: {largest} changes in one step", server.version());
    assert!(
        (1..MASS / 4).contains(&largest),
        "{largest} changes in one step"
    );
    assert_sound(server);
}

/// One connection with an ephemeral hold of each of 10,000 locks, and a waiter on each.
#[test]
fn ten_thousand_ephemeral_holds_of_one_connection_do_not_stall_the_server() {
    let server = start_for_a_mass();
    let mut dies = server.connection();
    let lines = (0..MASS).map(|lock| format!("DLOCK.ACQUIRE k{lock} dies 600000 EPHEMERAL"));
    dies.pipeline(lines);
    let _session = Session::begin(&server, "k0", "next");
    let mut waits = server.connection();
    let lines = (0..MASS).map(|lock| format!("DLOCK.ACQUIRE k{lock} next 600000 BLOCK 0 IN next"));
    waits.pipeline(lines);
    assert_eq!(stat(&server, "ephemeral"), MASS as u64);
    assert_ends_in_steps(&server, || drop(dies));
    let mut c = server.connection();
    for lock in [0, 1, MASS / 2, MASS - 1] {
        assert!(is_held(&mut c, &format!("k{lock}"), "next"));
    }
}

/// Ten thousand ephemeral holds of one connection share one lock, and a writer waits behind them.
#[test]
fn ten_thousand_ephemeral_holds_of_one_lock_do_not_stall_the_server() {
    let server = start_for_a_mass();
    let mut dies = server.connection();
    let lines = (0..MASS).map(|owner| format!("DLOCK.ACQUIRE k {owner} 600000 SHARED EPHEMERAL"));
    dies.pipeline(lines);
    let writer = wait_as(&server, "writer");
    assert_ends_in_steps(&server, || drop(dies));
    writer.reply::<Grant>();
}

/// Ten thousand connections with an ephemeral hold each, closed as by the end of one process.
#[test]
fn ten_thousand_connections_that_end_together_do_not_stall_the_server() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let wanted = MASS as u64 + 2_000;
    if hard < wanted {
        println!("not tested: this process may open {hard} files only");
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard).expect("below the hard limit");
    let server = start_for_a_mass();
    let mut holders: Vec<Wire> = (0..MASS).map(|_| server.connection()).collect();
    for (number, wire) in holders.iter_mut().enumerate() {
        wire.send(&format!("DLOCK.ACQUIRE k{number} dies 600000 EPHEMERAL"));
    }
    for wire in &mut holders {
        assert!(matches!(wire.read(), Ok(Value::Array(_))));
    }
    assert_ends_in_steps(&server, || drop(holders));
    assert_eq!(server.connection().ask::<u64>("DBSIZE"), 0);
}
