//! `DLOCK.GUARD`: a command that runs only while its caller holds the lock, and else as if it were by itself.

use std::fs;
use std::time::{Duration, Instant};

use dlock_integration::redis::{from_redis_value, Connection, Value};
use dlock_integration::{
    at_once, await_until, command, held, is_held, kept, reply_of, Ask, Blocked, Grant, Server,
    Wire, PATIENCE,
};

fn hold(connection: &mut Connection) -> u64 {
    connection.ask::<Grant>("DLOCK.ACQUIRE k alice 600000").0
}

fn guard(token: u64, line: &str) -> String {
    format!("DLOCK.GUARD k {token} {line}")
}

fn get(connection: &mut Connection, key: &str) -> Option<String> {
    connection.ask(&format!("GET {key}"))
}

/// Tries to write `data` under a token that must be dead.
#[track_caller]
fn assert_fenced(connection: &mut Connection, token: u64) {
    let before = get(connection, "data");
    let error = connection.refusal(&guard(token, "SET data stale"));
    assert!(error.starts_with("FENCED "), "{error}");
    assert_eq!(get(connection, "data"), before);
}

/// Refused with this code, and nothing written.
#[track_caller]
fn assert_refused(connection: &mut Connection, line: &str, code: &str) {
    let error = connection.refusal(line);
    assert_eq!(error.split(' ').next(), Some(code), "{line}: {error}");
}

fn error_of(reply: &Result<Value, String>) -> &str {
    match reply {
        Err(error) => error,
        Ok(value) => panic!("an error was expected, not {value:?}"),
    }
}

#[test]
fn a_live_holder_writes() {
    let (_server, mut c, token) = held();
    assert_eq!(c.ask::<String>(&guard(token, "SET data 1")), "OK");
    assert_eq!(c.ask::<u64>(&guard(token, "incr data")), 2);
    assert_eq!(get(&mut c, "data"), Some("2".into()));
    // The holder itself is left as it was.
    let (same, holds, _): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert_eq!((same, holds), (token, 1));
}

#[test]
fn a_dead_token_runs_nothing() {
    let (_server, mut c, token) = held();
    c.run("SET data 1");
    for never in [0, 1, token - 1, token + 1, (1 << 53) - 1] {
        assert_fenced(&mut c, never);
    }
    c.run("DLOCK.RELEASE k alice");
    assert_fenced(&mut c, token);
    let second = hold(&mut c);
    assert_fenced(&mut c, token);
    c.run("DLOCK.FORCERELEASE k");
    assert_fenced(&mut c, second);
    let third = hold(&mut c);
    c.run("DEL k");
    assert_fenced(&mut c, third);
    let fourth = hold(&mut c);
    c.run(&guard(fourth, "SET data 2"));
    // Where there is no lock at all.
    assert_refused(
        &mut c,
        &format!("DLOCK.GUARD other {fourth} SET data 3"),
        "FENCED",
    );
    assert_eq!(get(&mut c, "data"), Some("2".into()));
}

/// Taken away by force and given to another: only that one writes.
#[test]
fn a_stolen_lock_fences_who_had_it() {
    let (server, mut c, alice) = held();
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run("DLOCK.FORCERELEASE k alice");
    let (bob, _): Grant = bob.reply();
    assert_fenced(&mut c, alice);
    c.run(&guard(bob, "SET data bob"));
    assert_eq!(get(&mut c, "data"), Some("bob".into()));
}

/// What the command is for: she reads, is paused longer than her lease, and writes what she thinks is right.
#[test]
fn a_holder_paused_past_its_lease_cannot_write() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("SET data 10");
    let alice = hold(&mut c);
    assert_eq!(c.ask::<u64>(&guard(alice, "GET data")), 10);
    c.run("DLOCK.RENEW k alice 100");
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    // The pause lasts until another has the lock.
    let (bob, _): Grant = bob.reply();
    c.run(&guard(bob, "SET data 9"));
    assert_refused(&mut c, &guard(alice, "SET data 9"), "FENCED");
    c.run(&guard(bob, "SET data 8"));
    assert_eq!(get(&mut c, "data"), Some("8".into()));
}

/// A lease that has run out is over, though nobody waits and the server has not looked yet.
#[test]
fn an_ended_lease_needs_nobody_to_notice() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    let (alice, _): Grant = c.ask("DLOCK.ACQUIRE k alice 40");
    let begun = Instant::now();
    await_until("the lease is over", PATIENCE, || {
        begun.elapsed() > Duration::from_millis(60)
    });
    assert_fenced(&mut c, alice);
}

/// The write is judged when it runs, not when it arrives.
#[test]
fn a_write_that_the_server_holds_up_past_the_lease_is_fenced() {
    let server = Server::start();
    let mut c = server.connection();
    let alice = hold(&mut c);
    // The lease runs when the pause has begun.
    at_once(
        &server,
        ["DLOCK.RENEW k alice 500", "CLIENT PAUSE 600000 WRITE"],
    );
    let late = Blocked::start(&server, &guard(alice, "SET data stale"));
    await_until("the lease is over", PATIENCE, || {
        !is_held(&mut c, "k", "alice")
    });
    c.run("CLIENT UNPAUSE");
    assert!(late.refusal().starts_with("FENCED "));
    assert_eq!(get(&mut c, "data"), None);
}

/// A release and a write in one batch: nothing can come between them.
#[test]
fn nothing_runs_behind_a_release() {
    let (server, mut c, token) = held();
    let set = guard(token, "SET data 1");
    let late = guard(token, "SET data 2");
    let replies = server.wire().batch([&set, "DLOCK.RELEASE k alice", &late]);
    assert!(replies[0].is_ok() && replies[1].is_ok(), "{replies:?}");
    assert!(error_of(&replies[2]).starts_with("FENCED "));
    assert_eq!(get(&mut c, "data"), Some("1".into()));
}

#[test]
fn each_of_several_holders_has_a_token_that_counts() {
    let server = Server::start();
    let mut c = server.connection();
    let tokens = ["anna", "bert", "carl"].map(|owner| {
        c.ask::<Grant>(&format!("DLOCK.ACQUIRE k {owner} 600000 SHARED"))
            .0
    });
    for token in tokens {
        c.run(&guard(token, "INCR data"));
    }
    c.run("DLOCK.RELEASE k bert");
    c.run("DLOCK.DOWNGRADE k anna SHARED");
    c.run(&guard(tokens[0], "INCR data"));
    assert_fenced(&mut c, tokens[1]);
    c.run(&guard(tokens[2], "INCR data"));
    assert_eq!(get(&mut c, "data"), Some("5".into()));
    // A reader that has become a writer goes on with its new token only.
    c.run("DLOCK.RELEASE k carl");
    let (writes, _): Grant = c.ask("DLOCK.ACQUIRE k anna 600000");
    assert_fenced(&mut c, tokens[0]);
    c.run(&guard(writes, "INCR data"));
}

#[test]
fn bad_arguments_run_nothing() {
    let (_server, mut c, token) = held();
    c.run("SET text x");
    for line in ["DLOCK.GUARD", "DLOCK.GUARD k", "DLOCK.GUARD k 1"] {
        let error = c.refusal(line);
        assert!(
            error
                .to_lowercase()
                .contains("wrong number of arguments for 'dlock.guard'"),
            "{line}: {error}"
        );
    }
    for bad in [
        "-1",
        "x",
        "1.5",
        "9007199254740992",
        "99999999999999999999",
        "+1",
    ] {
        let error = c.refusal(&format!("DLOCK.GUARD k {bad} SET data x"));
        assert!(error.starts_with("ERR token "), "{bad}: {error}");
    }
    assert_refused(
        &mut c,
        &format!("DLOCK.GUARD text {token} SET data x"),
        "WRONGTYPE",
    );
    assert_eq!(get(&mut c, "data"), None);
}

/// A connection of which even the bytes of a reply are compared: client libraries show different replies as the same.
fn wire(server: &Server, protocol: u8) -> Wire {
    let mut wire = server.wire();
    wire.bytes(&[command(&format!("HELLO {protocol}"))]);
    wire
}

fn bytes(wire: &mut Wire, line: &str) -> String {
    String::from_utf8_lossy(&wire.bytes(&[command(line)])).into_owned()
}

#[test]
fn replies_of_every_shape_pass_through() {
    let (server, mut c, token) = held();
    for line in [
        "SET text hello",
        "SET other helloworld",
        "SET empty x",
        "SETRANGE empty 0 y",
        "RPUSH list a b c",
        "HSET hash a 1 b 2",
        "ZADD zset 1.5 a 2 b +inf c -inf d",
        "SADD set only",
        "XADD stream 1-1 f v g w",
        "XGROUP CREATE stream group 0",
        "GEOADD places 13.361389 38.115556 palermo",
        "PFADD log a b c",
    ] {
        c.run(line);
    }
    let lines = [
        // Statuses, bulks, nulls.
        "SET text hello",
        "GET text",
        "GET nothing",
        "SET text x NX",
        "SET text hello GET",
        "TYPE list",
        "PING",
        "PING hello",
        "ECHO hello",
        "GETRANGE text 3 1",
        "INCRBYFLOAT float 0",
        "HINCRBYFLOAT hash a 0",
        // Integers.
        "EXISTS text text nothing",
        "STRLEN nothing",
        "LLEN list",
        "PTTL text",
        "SISMEMBER set only",
        "PFCOUNT log",
        "HSETNX hash a 1",
        "EXPIRE nothing 10",
        // Arrays, nested, empty, null, and with nulls in them.
        "LRANGE list 0 -1",
        "LRANGE nothing 0 -1",
        "LPOP nothing 2",
        "LPOP nothing",
        "LPOS list z",
        "LPOS list b COUNT 0",
        "MGET text nothing other list",
        "HMGET hash a z",
        "SORT list ALPHA DESC",
        "XRANGE stream - +",
        "XPENDING stream group",
        "GEOPOS places palermo nowhere",
        "GEOSEARCH places FROMMEMBER palermo BYRADIUS 1 km WITHCOORD WITHDIST",
        "SCAN 0 MATCH nothing",
        "COMMAND INFO get nosuchcommand",
        "COMMAND GETKEYS GET a",
        // Maps, sets, doubles, and what RESP2 makes of them.
        "HGETALL hash",
        "HGETALL nothing",
        "SMEMBERS set",
        "SMEMBERS nothing",
        "SPOP nothing 3",
        "ZSCORE zset a",
        "ZSCORE zset c",
        "ZSCORE zset d",
        "ZSCORE zset z",
        "ZMSCORE zset a z c",
        "ZRANGE zset 0 -1 WITHSCORES",
        "ZINCRBY zset 0 a",
        "ZADD zset INCR 0 a",
        "ZADD zset NX INCR 0 a",
        "ZPOPMIN nothing",
        "ZRANDMEMBER nothing",
        "HRANDFIELD nothing 2 WITHVALUES",
        "LCS text other IDX",
        "XINFO STREAM stream FULL",
        "XINFO GROUPS stream",
        "COMMAND DOCS get",
        // Errors of the command itself.
        "GET list",
        "LPUSH text x",
        "INCR text",
        "HINCRBY hash a x",
        "XGROUP CREATE stream group 0",
        "SET text",
        "SET text x NX XX",
        "OBJECT ENCODING nothing",
        "OBJECT NOSUCH text",
        "LSET nothing 0 x",
        "ZADD zset NX XX 1 a",
    ];
    for protocol in [2, 3] {
        let mut wire = wire(&server, protocol);
        for line in lines {
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
    // No command has such a name, and one with a zero byte in it is not the one before that byte.
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

#[test]
fn the_server_says_what_is_wrong_with_the_command() {
    let (_server, mut c, token) = held();
    let unknown = c.refusal(&guard(token, "NOSUCHCOMMAND a b"));
    assert!(
        unknown.starts_with("ERR ") && unknown.to_lowercase().contains("unknown"),
        "{unknown}"
    );
    for line in ["SET data", "GET data data", "OBJECT"] {
        let error = c.refusal(&guard(token, line));
        assert!(
            error.starts_with("ERR ") && error.to_lowercase().contains("wrong number of arguments"),
            "{line}: {error}"
        );
    }
}

/// What blocks, what is about the connection and not about data, what is not for scripts, and the module's own.
#[test]
fn commands_that_are_not_for_guard_are_refused() {
    let server = Server::builder().config("databases", 4).start();
    let mut c = server.connection();
    let token = hold(&mut c);
    c.run("RPUSH list a b c");
    c.run("XADD stream 1-1 f v");
    c.run("ZADD zset 1 a");
    for line in [
        "BLPOP list 0",
        "BLPOP nothing 0",
        "BRPOPLPUSH list other 0",
        "BLMOVE list other LEFT LEFT 0",
        "BLMPOP 0 1 list LEFT",
        "BZPOPMIN zset 0",
        "XREAD BLOCK 0 STREAMS stream $",
        "WAIT 0 0",
        "SELECT 1",
        "select 1",
        "MULTI",
        "EXEC",
        "DISCARD",
        "WATCH data",
        "UNWATCH",
        "SUBSCRIBE channel",
        "PSUBSCRIBE *",
        "SSUBSCRIBE channel",
        "UNSUBSCRIBE",
        "MONITOR",
        "AUTH x",
        "HELLO 3",
        "RESET",
        "CLIENT ID",
        "CLIENT REPLY OFF",
        "CLIENT KILL TYPE normal",
        "CONFIG SET maxmemory 1",
        "DEBUG SLEEP 0",
        "SHUTDOWN NOSAVE",
        "REPLICAOF 127.0.0.1 1",
        "FAILOVER",
        "SYNC",
        "PSYNC ? -1",
        "SAVE",
        "BGSAVE",
        "MODULE LIST",
        "ACL WHOAMI",
        "EVAL return(1) 0",
        "EVALSHA 0000000000000000000000000000000000000000 0",
        "FCALL f 0",
        "SCRIPT FLUSH",
        "DLOCK.ACQUIRE other alice",
        "dlock.acquire other alice BLOCK 0",
        "DLOCK.RELEASE k alice",
        "DLOCK.RENEW k alice",
        "DLOCK.CHECK k 1",
        "DLOCK.APPLY k x",
        "DLOCK.HELP",
        "DLOCK.NOSUCH k",
    ] {
        assert_refused(&mut c, &guard(token, line), "ERR");
        // The very connection goes on as it was.
        assert_eq!(c.ask::<String>("PING"), "PONG", "{line}");
    }
    let nested = guard(token, &guard(token, "SET data x"));
    assert_refused(&mut c, &nested, "ERR");
    assert_eq!(c.ask::<u64>("LLEN list"), 3);
    assert_eq!(c.ask::<u64>("DBSIZE"), 4);
    let (_, maxmemory): (String, u64) = c.ask("CONFIG GET maxmemory");
    assert_eq!(maxmemory, 0);
    c.run(&guard(token, "SET data 1"));
    assert_eq!(get(&mut c, "data"), Some("1".into()));
}

/// The connection of a user who may touch `k` and `data:*`, with more rules.
fn as_user(server: &Server, rules: &str) -> Connection {
    let mut admin = server.connection();
    admin.run(&format!(
        "ACL SETUSER worker reset on >secret ~k ~data:* +@all {rules}"
    ));
    server.connection_as("worker", "secret")
}

#[test]
fn the_user_must_be_allowed_to_run_the_command() {
    let (server, mut admin, token) = held();
    let mut c = as_user(&server, "-set -xgroup|create");
    assert_eq!(c.ask::<u64>(&guard(token, "APPEND data:1 x")), 1);
    assert_refused(&mut c, &guard(token, "SET data:1 y"), "NOPERM");
    assert_refused(&mut c, &guard(token, "sEt data:1 y"), "NOPERM");
    assert_refused(
        &mut c,
        &guard(token, "XGROUP CREATE data:s g 0 MKSTREAM"),
        "NOPERM",
    );
    assert_eq!(get(&mut admin, "data:1"), Some("x".into()));
    assert_eq!(admin.ask::<u64>("DBSIZE"), 2);
    // What a user may do is asked each time.
    admin.run("ACL SETUSER worker +set -append");
    c.run(&guard(token, "SET data:1 y"));
    assert_refused(&mut c, &guard(token, "APPEND data:1 x"), "NOPERM");
    admin.run("ACL SETUSER worker -dlock.guard");
    assert_refused(&mut c, &guard(token, "SET data:1 z"), "NOPERM");
    assert_eq!(get(&mut admin, "data:1"), Some("y".into()));
}

#[test]
fn the_user_must_be_allowed_all_keys() {
    let (server, mut admin, token) = held();
    let (other, _): Grant = admin.ask("DLOCK.ACQUIRE private alice 600000");
    admin.run("MSET secret 1 data:1 2");
    let mut c = as_user(&server, "");
    c.run(&guard(token, "SET data:1 x"));
    for line in [
        "SET secret x",
        "GET secret",
        "DEL secret",
        "MSET data:1 x secret x",
        "RENAME secret data:2",
        "COPY data:1 secret",
        "SUNIONSTORE data:2 2 data:1 secret",
        "ZUNIONSTORE data:2 1 secret",
        "SORT data:3 STORE secret",
    ] {
        assert_refused(&mut c, &guard(token, line), "NOPERM");
    }
    // The lock itself is a key that the user must be allowed.
    let line = format!("DLOCK.GUARD private {other} SET data:1 y");
    assert_refused(&mut c, &line, "NOPERM");
    assert_eq!(get(&mut admin, "secret"), Some("1".into()));
    assert_eq!(get(&mut admin, "data:1"), Some("x".into()));
    assert_eq!(admin.ask::<u64>("DBSIZE"), 4);
}

/// The lock is only read; the data is read or written as the command itself does.
#[test]
fn read_and_write_permissions_are_told_apart() {
    let (server, mut admin, token) = held();
    admin.run("MSET data:1 1 log 1");
    let mut c = as_user(&server, "resetkeys %R~k %R~data:* %W~log");
    assert_eq!(c.ask::<String>(&guard(token, "GET data:1")), "1");
    c.run(&guard(token, "SET log 2"));
    assert_refused(&mut c, &guard(token, "SET data:1 2"), "NOPERM");
    assert_refused(&mut c, &guard(token, "GET log"), "NOPERM");
    assert_refused(&mut c, &guard(token, "COPY log data:1 REPLACE"), "NOPERM");
    c.run(&guard(token, "COPY data:1 log REPLACE"));
    assert_eq!(get(&mut admin, "data:1"), Some("1".into()));
    assert_eq!(get(&mut admin, "log"), Some("1".into()));
}

/// Keys that a command makes up as it goes are in no list: the command itself looks at who calls.
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

#[test]
fn the_user_must_be_allowed_the_channel() {
    let (server, _admin, token) = held();
    let mut c = as_user(&server, "resetchannels &public");
    assert_eq!(c.ask::<u64>(&guard(token, "PUBLISH public x")), 0);
    assert_refused(&mut c, &guard(token, "PUBLISH private x"), "NOPERM");
}

/// A script does not lend its caller what the caller has not.
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

#[test]
fn without_memory_only_what_takes_none_runs() {
    let (_server, mut c, token) = held();
    c.run("MSET data 1 more 2");
    c.run("CONFIG SET maxmemory 1");
    assert_refused(&mut c, &guard(token, "SET data 2"), "OOM");
    assert_refused(&mut c, &guard(token, "LPUSH list x"), "OOM");
    assert_eq!(c.ask::<String>(&guard(token, "GET data")), "1");
    assert_eq!(c.ask::<u64>(&guard(token, "DEL more")), 1);
    c.run("CONFIG SET maxmemory 0");
    assert_eq!(c.ask::<u64>("EXISTS list"), 0);
    c.run(&guard(token, "SET data 2"));
}

/// A script that was begun without memory can write no more by GUARD than by itself.
#[test]
fn without_memory_a_script_is_refused_too() {
    let (_server, mut c, token) = held();
    c.run("CONFIG SET maxmemory 1");
    let mut eval = command("EVAL");
    eval.arg("return redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], 'SET', KEYS[2], 'x')");
    eval.arg(2).arg("k").arg("data").arg(token);
    let error = c.answer(&eval).expect_err("no memory");
    assert!(error.starts_with("OOM "), "{error}");
    c.run("CONFIG SET maxmemory 0");
    assert_eq!(get(&mut c, "data"), None);
}

/// Memory has run out since the transaction was put together: what takes some is refused, and the rest goes on.
#[test]
fn without_memory_a_transaction_goes_on_with_what_takes_none() {
    let (server, mut c, token) = held();
    c.run("MSET data 1 more 2");
    for line in [
        "MULTI",
        &guard(token, "SET data 2"),
        &guard(token, "DEL more"),
        &guard(token, "GET data"),
        "DLOCK.RELEASE k alice",
        &guard(token, "DEL data"),
    ] {
        c.run(line);
    }
    server.connection().run("CONFIG SET maxmemory 1");
    let replies: Vec<Value> = c.ask("EXEC");
    let replies: Vec<_> = replies.into_iter().map(reply_of).collect();
    assert!(error_of(&replies[0]).starts_with("OOM "), "{replies:?}");
    assert_eq!(replies[1], Ok(Value::Int(1)));
    assert_eq!(replies[2], Ok(Value::BulkString(b"1".to_vec())));
    assert_eq!(replies[3], Ok(Value::Int(0)));
    assert!(error_of(&replies[4]).starts_with("FENCED "), "{replies:?}");
    assert_eq!(get(&mut c, "data"), Some("1".into()));
    assert_eq!(get(&mut c, "more"), None);
}

/// A script that may not write cannot by GUARD either; nor can anybody at a replica.
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
        // A replica refuses it as the transaction is put together.
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

#[test]
fn too_few_replicas_refuse_writes() {
    let (_server, mut c, token) = held();
    c.run("CONFIG SET min-replicas-to-write 1");
    assert_refused(&mut c, &guard(token, "SET data 1"), "NOREPLICAS");
    let mut eval = command("EVAL");
    eval.arg("return redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], 'SET', KEYS[2], 'x')");
    eval.arg(2).arg("k").arg("data").arg(token);
    let error = c.answer(&eval).expect_err("too few replicas");
    assert!(error.starts_with("NOREPLICAS "), "{error}");
    // Put together while it would have been right.
    c.run("CONFIG SET min-replicas-to-write 0");
    c.run("MULTI");
    c.run("CONFIG SET min-replicas-to-write 1");
    c.run(&guard(token, "SET data 1"));
    let replies: Vec<Value> = c.ask("EXEC");
    let refused = reply_of(replies[1].clone());
    assert!(error_of(&refused).starts_with("NOREPLICAS "), "{refused:?}");
    c.run("CONFIG SET min-replicas-to-write 0");
    assert_eq!(get(&mut c, "data"), None);
    c.run(&guard(token, "SET data 1"));
}

/// Every key, its value and its end.
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

/// Writes of every kind under `token`, among them such as are not replicated as they were said.
fn write_all_kinds(c: &mut Connection, token: u64) {
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

/// As if the command had come by itself: who reads the AOF needs no lock, no token, and not this module's word.
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
    // Reads are not written down.
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
        let error = dlock_integration::reply_of(fenced.clone()).expect_err("no write");
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
    // Uncaught, the error is the script's.
    c.run("DLOCK.RELEASE k alice");
    assert!(c
        .answer(&eval)
        .expect_err("a dead token")
        .starts_with("FENCED "));
    replica.wait_in_sync(&primary);
    assert_eq!(get(&mut replica.connection(), "data"), Some("1".into()));
    assert_eq!(all(&primary), all(&replica));
}

/// In a script, too, a reply is what it would be without GUARD, in both protocols that scripts know.
#[test]
fn replies_to_scripts_pass_through() {
    let (_server, mut c, token) = held();
    c.run("HSET hash a 1");
    c.run("ZADD zset 1.5 a");
    c.run("SADD set only");
    c.run("RPUSH list a b");
    let script = "redis.setresp(tonumber(ARGV[2])) \
        local line = {unpack(ARGV, 3)} \
        local direct = redis.pcall(unpack(line)) \
        local guarded = redis.pcall('DLOCK.GUARD', KEYS[1], ARGV[1], unpack(line)) \
        return {cjson.encode(direct), cjson.encode(guarded)}";
    for protocol in [2, 3] {
        for line in [
            "HGETALL hash",
            "ZSCORE zset a",
            "ZSCORE zset none",
            "SMEMBERS set",
            "LRANGE list 0 -1",
            "GET nothing",
            "SET text x",
            "EXISTS hash",
            "GET list",
        ] {
            let mut eval = command("EVAL");
            eval.arg(script).arg(1).arg("k").arg(token).arg(protocol);
            for word in line.split(' ') {
                eval.arg(word);
            }
            let (direct, guarded): (String, String) = c.ask_command(&eval);
            assert_eq!(direct, guarded, "RESP{protocol}: {line}");
        }
    }
}

#[test]
fn it_writes_in_the_caller_s_database() {
    let (primary, mut c, zero) = held();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut two = primary.connection_in(2);
    let token = hold(&mut two);
    two.run(&guard(token, "SET data two"));
    c.run(&guard(zero, "SET data zero"));
    // Each database has its own locks.
    assert_fenced(&mut c, token);
    assert_fenced(&mut two, zero);
    assert_eq!(get(&mut two, "data"), Some("two".into()));
    assert_eq!(get(&mut c, "data"), Some("zero".into()));
    replica.wait_in_sync(&primary);
    assert_eq!(all(&primary), all(&replica));
}

/// Who waits for the data, watches it or listens for it notices no difference.
#[test]
fn others_notice_a_guarded_write() {
    let (server, mut c, token) = held();
    let waits = Blocked::start(&server, "BLPOP list 0");
    assert_eq!(c.ask::<u64>(&guard(token, "RPUSH list x")), 1);
    assert_eq!(waits.reply::<(String, String)>().1, "x");
    let mut watches = server.connection();
    watches.run("WATCH data");
    c.run(&guard(token, "SET data 1"));
    watches.run("MULTI");
    watches.run("SET data 2");
    assert_eq!(watches.ask::<Value>("EXEC"), Value::Nil);
    // A write that was fenced has touched nothing.
    watches.run("WATCH data");
    assert_fenced(&mut c, token + 1);
    watches.run("MULTI");
    watches.run("SET data 3");
    assert_ne!(watches.ask::<Value>("EXEC"), Value::Nil);
    assert_eq!(get(&mut c, "data"), Some("3".into()));
}

/// The command may even be about the lock itself.
#[test]
fn a_lock_that_a_guarded_command_removes_goes_to_the_next() {
    for remove in [
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "PEXPIREAT k 1",
        "SWAPDB 0 1",
    ] {
        let (server, mut c, token) = held();
        let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
        c.run(&guard(token, remove));
        let (next, _): Grant = bob.reply();
        assert!(next > token, "{remove}");
        assert_fenced(&mut c, token);
    }
    let (server, mut c, token) = held();
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run(&guard(token, "SET k text"));
    assert!(bob.refusal().starts_with("WRONGTYPE "));
    assert_refused(&mut c, &guard(token, "SET data x"), "WRONGTYPE");
    // A lock under another name is still the same lock.
    c.run("DEL k");
    let token = hold(&mut c);
    c.run(&guard(token, "RENAME k moved"));
    assert_fenced(&mut c, token);
    c.run(&format!("DLOCK.GUARD moved {token} SET data 1"));
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
        // The server answers an error where there are none.
        let own = c.try_ask(&format!("COMMAND GETKEYS {line}"));
        let mut own: Vec<String> = own.map_or(Vec::new(), |keys| {
            from_redis_value(&keys).expect("an array of texts")
        });
        assert_eq!(guarded.remove(0), "k", "{line}");
        // In which order is nowhere promised.
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
    // In a script, too, whatever it said about its keys.
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
