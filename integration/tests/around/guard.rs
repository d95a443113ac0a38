//! `DLOCK.GUARD`: replies of every shape, scripts, replicas, the AOF and a cluster. `tests/servers/guard.txt` has the rest.

use std::fs;

use dlock_harness::redis::{from_redis_value, Value};
use dlock_harness::{command, held, kept, Ask, Grant, Server, Wire};

fn hold(connection: &mut Wire) -> u64 {
    connection.ask::<Grant>("DLOCK.ACQUIRE k alice 600000").0
}

fn guard(token: u64, line: &str) -> String {
    format!("DLOCK.GUARD k {token} {line}")
}

fn get(connection: &mut Wire, key: &str) -> Option<String> {
    connection.ask(&format!("GET {key}"))
}

/// Asserts that a write under a dead token is refused.
#[track_caller]
fn assert_fenced(connection: &mut Wire, token: u64) {
    let before = get(connection, "data");
    let error = connection.refusal(&guard(token, "SET data stale"));
    assert!(error.starts_with("FENCED "), "{error}");
    assert_eq!(get(connection, "data"), before);
}

/// Asserts that the line is refused with this code and writes nothing.
#[track_caller]
fn assert_refused(connection: &mut Wire, line: &str, code: &str) {
    let error = connection.refusal(line);
    assert_eq!(error.split(' ').next(), Some(code), "{line}: {error}");
}

/// Returns a connection on which even the bytes of a reply are compared: client libraries show different replies alike.
fn wire(server: &Server, protocol: u8) -> Wire {
    let mut wire = server.connection();
    wire.bytes(&[command(&format!("HELLO {protocol}"))]);
    wire
}

fn bytes(wire: &mut Wire, line: &str) -> String {
    String::from_utf8_lossy(&wire.bytes(&[command(line)])).into_owned()
}

/// `guard_replies.rs` compares all commands; this test has the values and arguments that are missing there.
#[test]
fn replies_of_rare_shapes_pass_through() {
    let (server, mut c, token) = held();
    c.run("ZADD zset 1.5 a +inf c -inf d");
    let rare = [
        "ZSCORE zset c",
        "ZMSCORE zset a z d",
        "COMMAND DOCS get",
        "COMMAND INFO get nosuchcommand",
    ];
    for protocol in [2, 3] {
        let mut wire = wire(&server, protocol);
        for line in rare {
            let direct = bytes(&mut wire, line);
            let guarded = bytes(&mut wire, &guard(token, line));
            assert_eq!(direct, guarded, "RESP{protocol}: {line}");
        }
    }
}

#[test]
fn a_long_reply_passes_through() {
    let (server, mut c, token) = held();
    c.answer(command("SETRANGE data 5000000").arg("x"))
        .expect("a length");
    for number in 0..20 {
        let members: Vec<_> = (0..1000)
            .map(|member| format!("{number}-{member}"))
            .collect();
        c.answer(command("RPUSH list").arg(members))
            .expect("a length");
    }
    let mut wire = wire(&server, 3);
    for line in ["GET data", "LRANGE list 0 -1"] {
        let direct = bytes(&mut wire, line);
        assert!(direct == bytes(&mut wire, &guard(token, line)), "{line}");
    }
}

#[test]
fn arguments_may_be_any_bytes() {
    let server = Server::start();
    let mut c = server.connection();
    let bytes = b"\0\r\n\xff$5 %s%n".as_slice();
    let lock = b"lock\0\xfe\r\n".as_slice();
    let mut acquire = command("DLOCK.ACQUIRE");
    let (token, _): Grant = c.ask_command(acquire.arg(lock).arg(bytes).arg(600_000));
    let guarded = |words: &[&[u8]]| {
        let mut guarded = command("DLOCK.GUARD");
        guarded.arg(lock).arg(token);
        for word in words {
            guarded.arg(*word);
        }
        guarded
    };
    assert_eq!(
        c.ask_command::<String>(&guarded(&[b"SET", bytes, bytes])),
        "OK"
    );
    assert_eq!(c.ask_command::<Vec<u8>>(command("GET").arg(bytes)), bytes);
    assert_eq!(c.ask_command::<Vec<u8>>(&guarded(&[b"GET", bytes])), bytes);
    assert_eq!(c.ask_command::<String>(&guarded(&[b"SET", b"", b""])), "OK");
    // No command has such a name, and a name with a zero byte in it is not the part before that byte.
    let long = [b'x'; 10_000];
    for name in [
        b"".as_slice(),
        bytes,
        b"GET\0",
        b"GET\r\n",
        b" GET",
        &long,
        b"%s%n",
    ] {
        let error = c
            .answer(&guarded(&[name, bytes]))
            .expect_err("there is no such command");
        assert!(error.starts_with("ERR "), "{error}");
    }
    assert_eq!(c.ask::<String>("PING"), "PONG");
}

/// Returns a connection of a user who may touch `k` and `data:*`, with more rules.
fn as_user(server: &Server, rules: &str) -> Wire {
    let mut admin = server.connection();
    admin.run(&format!(
        "ACL SETUSER worker reset on >secret ~k ~data:* +@all {rules}"
    ));
    server.connection_as("worker", "secret")
}

/// Keys that a command computes are in no list: the command itself checks the caller.
#[test]
fn the_user_is_known_to_the_command_too() {
    let (server, mut admin, token) = held();
    admin.run("RPUSH data:list 1 2");
    admin.run("MSET secret-1 hidden secret-2 hidden");
    let mut c = as_user(&server, "");
    for line in [
        "SORT data:list GET secret-*",
        "SORT data:list BY secret-* ALPHA",
    ] {
        let direct = c.refusal(line);
        assert_eq!(c.refusal(&guard(token, line)), direct);
    }
}

/// A script gives its caller no further permissions.
#[test]
fn permissions_hold_in_scripts_and_transactions_too() {
    let (server, mut admin, token) = held();
    let mut c = as_user(&server, "-set");
    let script = "return redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], ARGV[2], KEYS[2], 'x')";
    let mut eval = |name: &str, key: &str| {
        let mut eval = command("EVAL");
        eval.arg(script)
            .arg(2)
            .arg("k")
            .arg(key)
            .arg(token)
            .arg(name);
        c.answer(&eval)
    };
    assert_eq!(eval("APPEND", "data:1"), Ok(Value::Int(1)));
    assert!(eval("SET", "data:1").is_err());
    assert!(eval("APPEND", "secret").is_err());
    c.run("MULTI");
    c.run(&guard(token, "SET data:1 y"));
    c.run(&guard(token, "APPEND data:1 y"));
    let Value::Array(replies) = c.ask::<Value>("EXEC") else {
        panic!("no array")
    };
    assert!(matches!(replies[0], Value::ServerError(_)), "{replies:?}");
    assert_eq!(replies[1], Value::Int(2));
    assert_eq!(get(&mut admin, "data:1"), Some("xy".into()));
    assert_eq!(get(&mut admin, "secret"), None);
}

/// A script that may not write cannot by GUARD either; nor can any client at a replica.
#[test]
fn a_script_that_may_not_write_cannot_by_guard() {
    let (primary, mut c, token) = held();
    c.run("SET data 1");
    let replica = Server::start();
    replica.replica_of(&primary);
    let script = |how: &str, inner: &str| {
        let mut eval = command(how);
        eval.arg(format!(
            "return redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], {inner})"
        ));
        eval.arg(2).arg("k").arg("data").arg(token);
        eval
    };
    let mut r = replica.connection();
    for inner in ["'SET', KEYS[2], 'x'", "'GET', KEYS[2]"] {
        for how in ["EVAL", "EVAL_RO"] {
            let refused = r.answer(&script(how, inner));
            assert!(refused.is_err(), "{how} {inner}: {refused:?}");
        }
        let refused = c.answer(&script("EVAL_RO", inner));
        assert!(refused.is_err(), "{inner}: {refused:?}");
    }
    for line in ["MULTI", &guard(token, "SET data 2")] {
        // A replica refuses it while it queues the transaction.
        let _ = r.try_ask(line);
    }
    assert!(r.refusal("EXEC").starts_with("EXECABORT "));
    for connection in [&mut c, &mut r] {
        assert_eq!(get(connection, "data"), Some("1".into()));
    }
    assert_eq!(
        c.ask_command::<String>(&script("EVAL", "'SET', KEYS[2], 'x'")),
        "OK"
    );
    replica.wait_in_sync(&primary);
    assert_eq!(all(&primary), all(&replica));
}

#[test]
fn a_replica_is_read_only_until_it_is_promoted() {
    let (primary, mut c, token) = held();
    c.run("SET data 1");
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut r = replica.connection();
    assert_refused(&mut r, &guard(token, "SET data 2"), "READONLY");
    assert_eq!(get(&mut r, "data"), Some("1".into()));
    replica.promote();
    r.run(&guard(token, "SET data 2"));
    assert_eq!(get(&mut r, "data"), Some("2".into()));
    assert_eq!(get(&mut c, "data"), Some("1".into()));
}

/// Returns every key, its value and its expiry.
fn all(server: &Server) -> Vec<(i64, String, (String, i64))> {
    let mut all = Vec::new();
    for db in [0, 2] {
        let mut c = server.connection_in(db);
        let mut keys: Vec<String> = c.ask("KEYS *");
        keys.sort();
        for key in keys {
            let kept = kept(&mut c, &key);
            all.push((db, key, kept));
        }
    }
    all
}

/// Writes of every kind under `token`, including some that are replicated in another form.
fn write_all_kinds(c: &mut Wire, token: u64) {
    for line in [
        "SET plain 1",
        "INCRBYFLOAT plain 0.5",
        "SET with-end 1 PX 500000",
        "SET kept 1",
        "EXPIRE kept 500",
        "GETEX kept EX 600",
        "SADD set a b c d e f g h",
        "SPOP set",
        "SPOP set 2",
        "XADD stream * f v",
        "LPUSH list a b c",
        "LPOP list 2",
        "HSET hash a 1",
        "SET gone 1",
        "DEL gone",
        "GET plain",
    ] {
        c.run(&guard(token, line));
    }
}

#[test]
fn a_replica_has_what_was_written() {
    let (primary, mut c, token) = held();
    let replica = Server::start();
    replica.replica_of(&primary);
    write_all_kinds(&mut c, token);
    replica.wait_in_sync(&primary);
    assert_eq!(all(&primary), all(&replica));
    assert!(all(&primary).len() > 6);
    let seen: i64 = c.ask(&guard(token, "DBSIZE"));
    assert_eq!(replica.connection().ask::<i64>("DBSIZE"), seen);
}

/// The AOF has the command as if it had come alone: its reader needs no lock, no token, and no command of this module.
#[test]
fn the_aof_has_the_command_by_itself() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .config("aof-use-rdb-preamble", "no")
        .start();
    let mut c = server.connection();
    let token = hold(&mut c);
    write_all_kinds(&mut c, token);
    c.run("DLOCK.RELEASE k alice");
    assert_fenced(&mut c, token);
    let before = all(&server);
    server.kill9();
    let mut log = String::new();
    for file in fs::read_dir(server.dir().join("appendonlydir")).expect("a directory") {
        let bytes = fs::read(file.expect("a file").path()).expect("a file");
        log += &String::from_utf8_lossy(&bytes);
    }
    assert!(log.contains("plain") && log.contains("with-end"));
    assert!(!log.to_uppercase().contains("GUARD"), "{log}");
    assert!(!log.contains("stale"));
    // Reads are not written to the AOF.
    assert!(!log.contains("\r\nGET\r\n"));
    server.restart();
    assert_eq!(before, all(&server));
}

#[test]
fn a_transaction_guards_each_write() {
    let (primary, mut c, token) = held();
    let replica = Server::start();
    replica.replica_of(&primary);
    for line in [
        "MULTI",
        &guard(token, "SET data 1"),
        &guard(token + 1, "SET data stale"),
        &guard(token, "GET data"),
        "DLOCK.RELEASE k alice",
        &guard(token, "SET data stale"),
    ] {
        c.run(line);
    }
    let Value::Array(replies) = c.ask::<Value>("EXEC") else {
        panic!("no array")
    };
    assert_eq!(replies[0], Value::Okay);
    assert_eq!(replies[2], Value::BulkString(b"1".to_vec()));
    assert_eq!(replies[3], Value::Int(0));
    for fenced in [&replies[1], &replies[4]] {
        let error = dlock_harness::reply_of(fenced.clone()).expect_err("no write");
        assert!(error.starts_with("FENCED "), "{error}");
    }
    replica.wait_in_sync(&primary);
    assert_eq!(get(&mut replica.connection(), "data"), Some("1".into()));
    assert_eq!(all(&primary), all(&replica));
}

#[test]
fn a_script_guards_its_writes() {
    let (primary, mut c, token) = held();
    let replica = Server::start();
    replica.replica_of(&primary);
    let script = "redis.call('SET', KEYS[3], 'before') \
        local reply = redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], 'INCR', KEYS[2]) \
        local dead = redis.pcall('DLOCK.GUARD', KEYS[1], ARGV[1] + 1, 'INCR', KEYS[2]) \
        return {reply, dead.err}";
    let mut eval = command("EVAL");
    eval.arg(script)
        .arg(3)
        .arg("k")
        .arg("data")
        .arg("own")
        .arg(token);
    let (value, error): (u64, String) = c.ask_command(&eval);
    assert_eq!(value, 1);
    assert!(error.starts_with("FENCED "), "{error}");
    // Without pcall the error is the script's.
    c.run("DLOCK.RELEASE k alice");
    assert!(c
        .answer(&eval)
        .expect_err("a dead token")
        .starts_with("FENCED "));
    replica.wait_in_sync(&primary);
    assert_eq!(get(&mut replica.connection(), "data"), Some("1".into()));
    assert_eq!(all(&primary), all(&replica));
}

#[test]
fn the_server_knows_the_keys() {
    let (_server, mut c, _) = held();
    for line in [
        "SET a 1",
        "MSET a 1 b 2 c 3",
        "RENAME a b",
        "ZUNIONSTORE to 2 a b WEIGHTS 1 2",
        "XGROUP CREATE a g 0",
        "SORT a STORE b",
        "DBSIZE",
        "PUBLISH channel x",
        "NOSUCHCOMMAND a b",
        "SET a",
    ] {
        let mut guarded: Vec<String> = c.ask(&format!("COMMAND GETKEYS DLOCK.GUARD k 1 {line}"));
        // The server answers an error where there are no keys.
        let own = c.try_ask(&format!("COMMAND GETKEYS {line}"));
        let mut own: Vec<String> = own.map_or(Vec::new(), |keys| {
            from_redis_value(&keys).expect("an array of texts")
        });
        assert_eq!(guarded.remove(0), "k", "{line}");
        // The order is not specified.
        guarded.sort();
        own.sort();
        assert_eq!(guarded, own, "{line}");
    }
    let flags: Vec<(String, Vec<String>)> =
        c.ask("COMMAND GETKEYSANDFLAGS DLOCK.GUARD k 1 SET a 1");
    assert_eq!(flags[0].1, ["RO", "access"]);
    assert_eq!(flags[1].0, "a");
    assert!(flags[1].1.contains(&"OW".into()), "{flags:?}");
}

#[test]
fn in_a_cluster_all_keys_are_in_the_lock_s_slot() {
    let server = Server::builder().cluster().start();
    server.serve_all_slots();
    let mut c = server.connection();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE {a}lock alice 600000");
    let guarded = |line: &str| format!("DLOCK.GUARD {{a}}lock {token} {line}");
    c.run(&guarded("SET {a}data 1"));
    assert_eq!(c.ask::<u64>(&guarded("EXISTS {a}data {a}more")), 1);
    for line in [
        "SET {b}data 1",
        "GET {b}data",
        "MSET {a}data 2 {b}data 2",
        "RENAME {a}data {b}data",
        "SET data 1",
    ] {
        assert_refused(&mut c, &guarded(line), "CROSSSLOT");
    }
    c.run("MULTI");
    c.run(&guarded("INCR {a}data"));
    assert_refused(&mut c, &guarded("INCR {b}data"), "CROSSSLOT");
    assert_refused(&mut c, "EXEC", "EXECABORT");
    assert_eq!(get(&mut c, "{a}data"), Some("1".into()));
    assert_eq!(get(&mut c, "{b}data"), None);
    // In a script, too, whatever keys it declared.
    let script = "return redis.pcall('DLOCK.GUARD', KEYS[1], ARGV[1], 'INCR', ARGV[2])";
    let mut eval = |key: &str| {
        let mut eval = command("EVAL");
        eval.arg(script).arg(1).arg("{a}lock").arg(token).arg(key);
        c.answer(&eval)
    };
    assert_eq!(eval("{a}data"), Ok(Value::Int(2)));
    assert!(eval("{b}data").is_err());
    assert_eq!(get(&mut c, "{b}data"), None);
}
