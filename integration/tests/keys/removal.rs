//! The end of a lock's key is put right, however it was changed, and a lock that is evicted is free. `tests/servers/removal.txt` has
//! all other ways in which a key goes.

use dlock_integration::redis::Value;
use dlock_integration::{await_until, held, wait_as, Ask, Blocked, Grant, Server, Wire, PATIENCE};

/// Ways to give a lock's key another end, each `what: line, line, …`.
const RETIMERS: [&str; 10] = [
    "later: EXPIRE k 1000",
    "later: PEXPIRE k 1000000",
    "later: EXPIREAT k 33000000000",
    "later: PEXPIREAT k 33000000000000",
    "never: PERSIST k",
    "lower case: persist k",
    "in a transaction: MULTI, SET other x, PERSIST k, EXEC",
    "in a transaction in which it is taken: MULTI, DLOCK.RENEW k alice 500000, EXPIRE k 1000, EXEC",
    "in a script: EVAL redis.call('PERSIST',KEYS[1]) 1 k",
    "in a pause: CLIENT PAUSE 100 WRITE, PERSIST k",
];

/// However many other keys there are: nothing that looks through all of them would come by in time.
#[test]
fn the_end_of_a_lock_s_key_is_put_right_in_a_large_keyspace() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DEBUG POPULATE 1000000");
    for line in RETIMERS {
        println!("{line}");
        c.run("DLOCK.ACQUIRE k alice 600000");
        let lines = line.split_once(": ").map_or("", |(_, lines)| lines);
        lines.split(", ").for_each(|line| c.run(line));
        use_if_untold(&server, &mut c, "k");
        await_until("the key's end is the lease's again", PATIENCE, || {
            let left: i64 = c.ask("PTTL k");
            left > 300_000 && left <= 600_000
        });
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    }
    // A lock that comes to another name has the end there that its leases have.
    let mut there = server.connection_in(3);
    for line in ["RENAME k j", "RENAMENX k j", "MOVE k 3"] {
        println!("{line}");
        let (to, key) = match line.starts_with("MOVE") {
            true => (&mut there, "k"),
            false => (&mut c, "j"),
        };
        let mut control = server.connection();
        control.run("DLOCK.ACQUIRE k alice 600000");
        // Who waits has taken the key's end away.
        let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
        assert_eq!(control.ask::<i64>("PTTL k"), -1);
        control.run(line);
        bob.reply::<Grant>();
        use_if_untold(&server, to, key);
        await_until("the key's end is the lease's", PATIENCE, || {
            let left: i64 = to.ask(&format!("PTTL {key}"));
            left > 300_000 && left <= 600_000
        });
        assert_eq!(to.ask::<u64>(&format!("DLOCK.RELEASE {key} alice")), 0);
        assert_eq!(control.ask::<u64>("DLOCK.RELEASE k bob"), 0);
    }
}

/// Where the server does not tell what happens to keys, a lock that nobody waits for is put right at its next use.
#[track_caller]
fn use_if_untold(server: &Server, connection: &mut Wire, key: &str) {
    if !server.version().tells_of_keys() {
        connection.run(&format!("DLOCK.RENEW {key} alice 600000"));
    }
}

/// Whatever the commands are called.
#[test]
fn what_commands_do_under_other_names_is_put_right() {
    let server = Server::builder()
        .config("rename-command", "PERSIST forever")
        .config("rename-command", "RENAME becomes")
        .start();
    let mut c = server.connection();
    c.run("DEBUG POPULATE 1000");
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("FOREVER k");
    use_if_untold(&server, &mut c, "k");
    await_until("the key's end is the lease's again", PATIENCE, || {
        c.ask::<i64>("PTTL k") > 0
    });
    let ticket = c.try_ask("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    assert_eq!(ticket, Ok(Value::Nil));
    c.run("CONFIG SET dlock.max-claim-ms 200");
    c.run("CONFIG SET dlock.claim-window-ms 200");
    c.run("BECOMES k j");
    use_if_untold(&server, &mut c, "j");
    // Who waits keeps the key from having an end.
    await_until("the ticket's window is over", PATIENCE, || {
        c.ask::<i64>("PTTL j") > 0
    });
}

/// Which servers cannot be listened to, and why: one that has been mended is to be taken out here and in the table of servers.
#[test]
fn generic_keyspace_events_are_heard_where_they_move_no_client() {
    let server = Server::start();
    assert_eq!(
        server.log().contains("move clients to another database"),
        !server.version().tells_of_keys()
    );
    // However that is: the module moves none.
    let mut c = server.connection();
    for line in [
        "SET a x",
        "MOVE a 2",
        "SET b x",
        "COPY b c DB 3",
        "COPY b d",
    ] {
        c.run(line);
        let info: String = c.ask("CLIENT INFO");
        assert!(info.contains(" db=0 "), "{line}: {info}");
    }
    // With one database there is none that a client could be moved to.
    let server = Server::builder().config("databases", 1).start();
    assert!(!server.log().contains("move clients to another database"));
}

#[test]
fn eviction_serves_the_queue() {
    let (server, mut alice, token) = held();
    let bob = wait_as(&server, "bob");
    alice.run("CONFIG SET maxmemory-policy allkeys-random");
    // In one batch, so that the server is over its limit for these commands only.
    let lines = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"];
    let replies = server.connection().batch(lines);
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert!(server.info("stats").number::<u64>("evicted_keys") >= 1);
    let (next, _): Grant = bob.reply();
    assert!(next > token);
    assert!(server.info("dlock").number::<u64>("dlock_evicted_total") >= 1);
    assert!(alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
}
