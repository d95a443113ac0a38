//! The key disappears, is overwritten or goes elsewhere: holds end, waiters are served, nobody is forgotten.

use std::time::{Duration, Instant};

use dlock_integration::redis::{cmd, Connection, Value};
use dlock_integration::{
    await_until, command, held, wait_as, Ask, Blocked, Grant, Server, PATIENCE,
};

/// A server where alice holds `k` and bob and carol wait for it.
struct Setup {
    server: Server,
    alice: Connection,
    token: u64,
    bob: Blocked,
    carol: Blocked,
}

impl Setup {
    fn new() -> Setup {
        let (server, alice, token) = held();
        let (bob, carol) = (wait_as(&server, "bob"), wait_as(&server, "carol"));
        Setup {
            server,
            alice,
            token,
            bob,
            carol,
        }
    }

    /// The removal freed the lock: bob has it now, by a new token, then carol, and alice does not.
    #[track_caller]
    fn assert_served_in_order(mut self) {
        let (first, _): Grant = self.bob.reply();
        assert!(first > self.token);
        assert!(self
            .alice
            .refusal("DLOCK.RELEASE k alice")
            .starts_with("NOTHELD "));
        assert!(self.carol.is_blocked(&self.server));
        assert_eq!(self.alice.ask::<u64>("DLOCK.RELEASE k bob"), 0);
        assert!(self.carol.reply::<Grant>().0 > first);
    }

    /// Alice's hold goes on under another name or in another database.
    #[track_caller]
    fn assert_alice_holds(&mut self, db: i64, key: &str) {
        let mut connection = self.server.connection_in(db);
        let held: Option<(u64, u64, u64)> = connection.ask(&format!("DLOCK.HELD {key} alice"));
        assert_eq!(held.map(|hold| (hold.0, hold.1)), Some((self.token, 1)));
        assert_eq!(
            connection.ask::<u64>(&format!("DLOCK.RELEASE {key} alice")),
            0
        );
    }
}

#[test]
fn removing_the_key_serves_the_queue() {
    for line in [
        "DEL k",
        "UNLINK k",
        "EXPIRE k -1",
        "PEXPIRE k 0",
        "EXPIREAT k 1",
        "PEXPIREAT k 1",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FLUSHALL SYNC",
        "FLUSHDB",
        "FLUSHDB ASYNC",
    ] {
        println!("{line}");
        let mut setup = Setup::new();
        setup.alice.run(line);
        setup.assert_served_in_order();
    }
}

#[test]
fn removing_the_key_in_a_transaction_serves_the_queue() {
    let mut setup = Setup::new();
    setup.alice.run("MULTI");
    setup.alice.run("DEL k");
    setup.alice.run("SET other v");
    setup.alice.run("EXEC");
    setup.assert_served_in_order();
}

#[test]
fn removing_the_key_in_a_script_serves_the_queue() {
    let mut setup = Setup::new();
    let script = "return redis.call('DEL', KEYS[1])";
    assert_eq!(
        setup.alice.answer(cmd("EVAL").arg(script).arg(1).arg("k")),
        Ok(Value::Int(1))
    );
    setup.assert_served_in_order();
}

/// Removed and taken again in one step by somebody else: who waits has waited longer.
#[test]
fn removing_the_key_lets_nobody_overtake() {
    let mut setup = Setup::new();
    let script = "redis.call('DEL', KEYS[1]) return redis.call('DLOCK.ACQUIRE', KEYS[1], 'newcomer', '1000')";
    let reply = setup.alice.answer(cmd("EVAL").arg(script).arg(1).arg("k"));
    assert_eq!(reply, Ok(Value::Nil));
    setup.assert_served_in_order();
}

#[test]
fn an_earlier_expire_ends_the_hold_then() {
    let mut setup = Setup::new();
    let sent = Instant::now();
    setup.alice.run("PEXPIRE k 200");
    let (reply, at) = setup.bob.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    // The server's clock counts whole milliseconds.
    let waited = at - sent;
    assert!(waited >= Duration::from_millis(199), "{waited:?}");
    assert!(setup
        .alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
}

#[test]
fn an_earlier_expire_ends_the_hold_without_waiters_too() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("PEXPIRE k 100");
    await_until("the hold has ended", PATIENCE, || {
        c.try_ask("DLOCK.HELD k alice") == Ok(Value::Nil)
    });
    assert!(c.refusal("DLOCK.RELEASE k alice").starts_with("NOTHELD "));
}

#[test]
fn a_later_expire_has_no_effect() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("EXPIRE k 1000");
    use_if_untold(&server, &mut c, "k");
    await_until("the time to live is the lease again", PATIENCE, || {
        c.ask::<i64>("PTTL k") <= 600_000
    });
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left > 300_000 && left <= 600_000, "{left} ms left");
}

#[test]
fn persist_has_no_effect() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("PERSIST k");
    use_if_untold(&server, &mut c, "k");
    await_until("the time to live is the lease again", PATIENCE, || {
        let left: i64 = c.ask("PTTL k");
        left > 300_000 && left <= 600_000
    });
}

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
fn use_if_untold(server: &Server, connection: &mut Connection, key: &str) {
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
fn persist_does_not_keep_a_hold() {
    let server = Server::start();
    let mut c = server.connection();
    // Redis itself ends nothing here.
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    c.run("DLOCK.ACQUIRE k alice 300");
    c.run("PERSIST k");
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    bob.reply::<Grant>();
}

#[test]
fn overwriting_the_key_tells_who_waits() {
    for line in [
        "SET k v",
        "RENAME s k",
        "SUNIONSTORE k set",
        "COPY s k REPLACE",
    ] {
        println!("{line}");
        let mut setup = Setup::new();
        setup.alice.run("SADD set member");
        setup.alice.run("SET s v");
        setup.alice.run(line);
        assert!(setup.bob.refusal().starts_with("WRONGTYPE "));
        assert!(setup.carol.refusal().starts_with("WRONGTYPE "));
        assert!(setup
            .alice
            .refusal("DLOCK.RELEASE k alice")
            .starts_with("WRONGTYPE "));
        assert_ne!(setup.alice.ask::<String>("TYPE k"), "dlock-obj");
    }
}

#[test]
fn a_lock_restored_over_the_key_is_waited_for() {
    let mut setup = Setup::new();
    let (token, _): Grant = setup.alice.ask("DLOCK.ACQUIRE other dave 600000");
    let payload: Vec<u8> = setup.alice.ask("DUMP other");
    setup
        .alice
        .ask_command::<()>(command("RESTORE k 0").arg(payload).arg("REPLACE"));
    assert!(setup
        .alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
    assert_eq!(
        setup.alice.try_ask(&format!("DLOCK.CHECK k {token}")),
        Ok(Value::Okay)
    );
    assert!(setup.bob.is_blocked(&setup.server));
    assert_eq!(setup.alice.ask::<u64>("DLOCK.RELEASE k dave"), 0);
    setup.assert_served_in_order();
}

#[test]
fn a_string_restored_over_the_key_tells_who_waits() {
    let mut setup = Setup::new();
    setup.alice.run("SET s v");
    let payload: Vec<u8> = setup.alice.ask("DUMP s");
    setup
        .alice
        .ask_command::<()>(command("RESTORE k 0").arg(payload).arg("REPLACE"));
    assert!(setup.bob.refusal().starts_with("WRONGTYPE "));
}

#[test]
fn a_renamed_lock_takes_its_holder_along() {
    for line in ["RENAME k new", "RENAMENX k new"] {
        let mut setup = Setup::new();
        setup.alice.run(line);
        setup.assert_alice_holds(0, "new");
        // Who waits stays at the old name, and there the lock is free.
        setup.assert_served_in_order();
    }
}

#[test]
fn a_renamed_lock_takes_its_tickets_along() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    c.run("DLOCK.FAIRACQUIRE k carol CLAIM 600000");
    c.run("RENAME k new");
    let positions: Vec<Option<u64>> = ["new bob", "new carol", "k bob"]
        .iter()
        .map(|place| c.ask(&format!("DLOCK.POSITION {place}")))
        .collect();
    assert_eq!(positions, [Some(0), Some(1), None]);
    c.run("DLOCK.RELEASE new alice");
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE new carol CLAIM 600000"),
        Ok(Value::Nil)
    );
    assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE new bob").1, 1);
}

/// A lock renamed to a name where somebody waits: that lock's holder is gone, and they wait for the new one.
#[test]
fn a_lock_renamed_over_another_is_waited_for() {
    let mut setup = Setup::new();
    let (token, _): Grant = setup.alice.ask("DLOCK.ACQUIRE other dave 600000");
    setup.alice.run("RENAME other k");
    assert!(setup
        .alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
    assert_eq!(
        setup.alice.try_ask(&format!("DLOCK.CHECK k {token}")),
        Ok(Value::Okay)
    );
    assert!(setup.bob.is_blocked(&setup.server));
    assert_eq!(setup.alice.ask::<u64>("DLOCK.RELEASE k dave"), 0);
    setup.assert_served_in_order();
}

/// There and back in one step: nothing has happened.
#[test]
fn a_lock_renamed_and_back_is_as_before() {
    let mut setup = Setup::new();
    setup.alice.run("MULTI");
    setup.alice.run("RENAME k new");
    setup.alice.run("RENAME new k");
    setup.alice.run("EXEC");
    assert!(setup.bob.is_blocked(&setup.server));
    setup.assert_alice_holds(0, "k");
    setup.bob.reply::<Grant>();
}

#[test]
fn a_moved_lock_takes_its_holder_along() {
    let mut setup = Setup::new();
    assert_eq!(setup.alice.ask::<u64>("MOVE k 1"), 1);
    setup.assert_alice_holds(1, "k");
    setup.assert_served_in_order();
}

#[test]
fn swapped_databases_swap_their_locks() {
    let mut setup = Setup::new();
    setup.alice.run("SWAPDB 0 1");
    // The connection is in database 0, as before; the lock is not.
    setup.assert_alice_holds(1, "k");
    setup.assert_served_in_order();
}

#[test]
fn a_lock_swapped_in_is_waited_for() {
    let mut setup = Setup::new();
    let (token, _): Grant = setup
        .server
        .connection_in(1)
        .ask("DLOCK.ACQUIRE k dave 600000");
    setup.alice.run("SWAPDB 0 1");
    assert_eq!(
        setup.alice.try_ask(&format!("DLOCK.CHECK k {token}")),
        Ok(Value::Okay)
    );
    assert!(setup.bob.is_blocked(&setup.server));
    setup.assert_alice_holds(1, "k");
    assert_eq!(setup.alice.ask::<u64>("DLOCK.RELEASE k dave"), 0);
    setup.assert_served_in_order();
}

/// A flush of one database does not touch the locks of another.
#[test]
fn a_flush_elsewhere_has_no_effect() {
    let mut setup = Setup::new();
    setup.server.connection_in(1).run("FLUSHDB");
    assert!(setup.bob.is_blocked(&setup.server));
    setup.assert_alice_holds(0, "k");
    setup.bob.reply::<Grant>();
}

#[test]
fn eviction_serves_the_queue() {
    let mut setup = Setup::new();
    setup
        .alice
        .run("CONFIG SET maxmemory-policy allkeys-random");
    // In one batch, so that the server is over its limit for these commands only.
    let lines = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"];
    let replies = setup.server.wire().batch(lines);
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert!(setup.server.info("stats").number::<u64>("evicted_keys") >= 1);
    let (token, _): Grant = setup.bob.reply();
    assert!(token > setup.token);
    assert!(setup
        .alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
}

/// It would hand one token to two keys.
#[test]
fn copy_is_refused() {
    let mut setup = Setup::new();
    for line in ["COPY k new", "COPY k new REPLACE", "COPY k new DB 1"] {
        setup.alice.refusal(line);
    }
    assert_eq!(setup.alice.ask::<u64>("EXISTS new"), 0);
    assert!(setup.bob.is_blocked(&setup.server));
}

/// What other commands may not do to a lock.
#[test]
fn commands_of_other_types_are_refused() {
    let mut setup = Setup::new();
    for line in ["GET k", "APPEND k x", "LPUSH k x", "HSET k f v", "INCR k"] {
        assert!(
            setup.alice.refusal(line).starts_with("WRONGTYPE "),
            "{line}"
        );
    }
    assert!(setup.bob.is_blocked(&setup.server));
    setup.assert_alice_holds(0, "k");
}

/// A holder whose lock was removed and who comes again queues like everybody.
#[test]
fn the_old_holder_queues_again() {
    let mut setup = Setup::new();
    setup.alice.run("DEL k");
    assert_eq!(setup.alice.try_ask("DLOCK.ACQUIRE k alice"), Ok(Value::Nil));
    let again = Blocked::start(&setup.server, "DLOCK.ACQUIRE k alice BLOCK 0");
    assert_eq!(
        setup.alice.ask::<Option<u64>>("DLOCK.POSITION k alice"),
        Some(1)
    );
    setup.assert_served_in_order();
    drop(again);
}
