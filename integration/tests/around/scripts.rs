//! Scripts, functions and transactions, and clients that watch and cache locks: one step is one step.

use std::time::{Duration, Instant};

use dlock_harness::redis::{cmd, PushKind, Value};
use dlock_harness::{
    assert_hands_over, assert_sound, await_until, command, with, Ask, Blocked, Grant, Guarded,
    Server, PATIENCE,
};

/// Scripts and functions never wait; they decide, and a lock that they free is handed over in that step.
#[test]
fn scripts_and_functions_take_and_give_back() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let library = "#!lua name=locks\n\
        redis.register_function('take', function(keys, args) \
            return redis.call('DLOCK.ACQUIRE', keys[1], args[1], '600000', 'BLOCK', '0') end)\n\
        redis.register_function('give', function(keys, args) \
            return redis.call('DLOCK.RELEASE', keys[1], args[1]) end)\n\
        redis.register_function{function_name = 'look', flags = {'no-writes'}, callback = function(keys, args) \
            return redis.call('DLOCK.HELD', keys[1], args[1]) end}\n\
        redis.register_function{function_name = 'lie', flags = {'no-writes'}, callback = function(keys, args) \
            return redis.call('DLOCK.ACQUIRE', keys[1], args[1]) end}";
    c.ask_command::<String>(cmd("FUNCTION").arg("LOAD").arg(library));
    let (token, _): Grant = c.ask("FCALL take 1 k alice");
    assert_eq!(
        c.ask::<Value>("FCALL take 1 k bob"),
        Value::Nil,
        "it does not wait"
    );
    assert_eq!(c.ask::<Option<u64>>("DLOCK.POSITION k bob"), None);
    assert_eq!(c.ask::<(u64, u64, u64)>("FCALL_RO look 1 k alice").0, token);
    for line in [
        "FCALL_RO take 1 k bob",
        "FCALL_RO give 1 k alice",
        "FCALL lie 1 k alice",
    ] {
        c.refusal(line);
    }
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol 600000 BLOCK 0");
    assert_eq!(c.ask::<u64>("FCALL give 1 k alice"), 0);
    let (second, _): Grant = carol.reply();

    let mut eval = |script: &str, words: &[&str]| {
        let mut line = command("EVAL");
        line.arg(script).arg(1).arg("k").arg(words);
        c.answer(&line)
    };
    // The next waiter holds the lock before the script continues.
    let dave = Blocked::start(&server, "DLOCK.ACQUIRE k dave 600000 BLOCK 0");
    let reply = eval(
        "redis.call('DLOCK.RELEASE', KEYS[1], 'carol') \
         return {redis.call('DLOCK.ACQUIRE', KEYS[1], 'carol'), redis.call('DLOCK.HELD', KEYS[1], 'dave')[1]}",
        &[],
    );
    let (third, _): Grant = dave.reply();
    assert!(third > second);
    // A Lua table ends at its first nil, so false stands for it.
    assert_eq!(
        reply,
        Ok(Value::Array(vec![Value::Nil, Value::Int(third as i64)]))
    );
    // An error ends the script, and its earlier changes stay.
    let error = eval(
        "redis.call('DLOCK.ACQUIRE', KEYS[1], 'dave') redis.call('DLOCK.RELEASE', KEYS[1], 'nobody') \
         redis.call('DEL', KEYS[1])",
        &[],
    )
    .expect_err("it fails");
    assert!(error.starts_with("NOTHELD"), "{error}");
    assert_eq!(
        eval("return redis.call('DLOCK.HELD', KEYS[1], 'dave')[2]", &[]),
        Ok(Value::Int(2))
    );
    let caught =
        "local reply = redis.pcall('DLOCK.RELEASE', KEYS[1], 'nobody') return reply['err']";
    match eval(caught, &[]) {
        Ok(Value::BulkString(text)) => assert!(text.starts_with(b"NOTHELD")),
        other => panic!("{other:?}"),
    }
    // Fencing: nothing after a failed check runs.
    let fenced =
        "redis.call('DLOCK.CHECK', KEYS[1], ARGV[1]) return redis.call('SET', 'data', 'x')";
    assert!(eval(fenced, &[&token.to_string()])
        .expect_err("an old token")
        .starts_with("FENCED"));
    assert_eq!(
        eval("return redis.call('EXISTS', 'data')", &[]),
        Ok(Value::Int(0))
    );
    assert!(eval(fenced, &[&third.to_string()]).is_ok());
    // Maps, in both protocols.
    assert_eq!(
        eval("return redis.call('DLOCK.INFO', KEYS[1])[2]", &[]),
        Ok(Value::BulkString(b"held".to_vec()))
    );
    assert_eq!(
        eval(
            "redis.setresp(3) return redis.call('DLOCK.INFO', KEYS[1]).map.state",
            &[]
        ),
        Ok(Value::BulkString(b"held".to_vec()))
    );
    // Ten thousand times in one script, with a queue.
    let erin = Blocked::start(&server, "DLOCK.ACQUIRE k erin 600000 BLOCK 0");
    let many = "for i = 1, 10000 do redis.call('DLOCK.ACQUIRE', KEYS[1] .. i, 'x', '600000') \
                redis.call('DLOCK.RELEASE', KEYS[1] .. i, 'x') end \
                return redis.call('DLOCK.RELEASE', KEYS[1], 'dave', 'HOLDS', '0')";
    assert_eq!(eval(many, &[]), Ok(Value::Int(0)));
    erin.reply::<Grant>();
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// While a script runs for too long nothing is decided; after it is killed, everything due is.
#[test]
fn a_script_that_does_not_end_delays_but_loses_nothing() {
    let server = Server::builder().config("lua-time-limit", 20).start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE short alice 600000");
    c.run("DLOCK.ACQUIRE long alice 600000");
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE kept alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE short bob 600000 BLOCK 0");
    let timed = Blocked::send(&server, "DLOCK.ACQUIRE long timed 600000 BLOCK 1000");
    let dead = Blocked::start(&server, "DLOCK.ACQUIRE long dead 600000 BLOCK 0");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE long carol 600000 BLOCK 0");
    let mut busy = server.connection();
    // No command comes between these: the lease ends while the script runs.
    let renew = command("DLOCK.RENEW short alice 300").get_packed_command();
    let endless = with("EVAL", &[b"while true do end", b"0"]).get_packed_command();
    busy.send_bytes(&[renew, endless].concat())
        .expect("the server reads");
    await_until("the server is busy", PATIENCE, || {
        c.try_ask("PING")
            .is_err_and(|error| error.starts_with("BUSY"))
    });
    let since = Instant::now();
    dead.kill();
    for line in [
        "DLOCK.RELEASE kept alice",
        "DLOCK.ACQUIRE kept alice",
        "DLOCK.HELD kept alice",
    ] {
        assert!(c.refusal(line).starts_with("BUSY"), "{line}");
    }
    await_until("the times are over", PATIENCE, || {
        since.elapsed() > Duration::from_millis(1_100)
    });
    c.run("SCRIPT KILL");
    assert_eq!(busy.read(), Ok(Value::Int(300)));
    assert!(busy.read().is_err());
    bob.reply::<Grant>();
    assert_eq!(timed.reply::<Value>(), Value::Nil);
    assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD kept alice").0, token);
    c.run("DLOCK.RELEASE long alice");
    carol.reply::<Grant>();
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// A client that caches a reply about a lock is notified when it becomes wrong.
#[test]
fn tracking_clients_are_told_of_changes() {
    let server = Server::start();
    let mut c = server.connection();
    let mut wire = server.connection_resp3();
    wire.ask::<()>("CLIENT TRACKING ON");
    let mut bob = None;
    for (prepare, change) in [
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.RELEASE k alice"),
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.RENEW k alice 500000"),
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.FORCERELEASE k"),
        ("DLOCK.ACQUIRE k alice 600000", "DEL k"),
        ("ECHO nothing", "DLOCK.ACQUIRE k alice 600000"),
        // A lease that ends under a waiter: a change by the module itself.
        ("ECHO waited-for", "ECHO nothing"),
    ] {
        c.run(prepare);
        if prepare == "ECHO waited-for" {
            bob = Some(Blocked::start(
                &server,
                "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
            ));
        }
        let mut lines = vec!["DLOCK.HELD k alice", "DLOCK.INFO k", "DLOCK.CHECK k 1"];
        if bob.is_some() {
            // Read before it ends: no command comes between these.
            lines.insert(0, "DLOCK.RENEW k alice 250");
        }
        let bytes: Vec<u8> = lines
            .iter()
            .flat_map(|line| command(line).get_packed_command())
            .collect();
        wire.send_bytes(&bytes).expect("the server reads");
        for _ in lines {
            while matches!(wire.read_value(), Ok(Value::Push { .. })) {}
        }
        c.run(change);
        match wire.read_value() {
            Ok(Value::Push { kind, data }) => {
                assert_eq!(kind, PushKind::Invalidate, "{change}");
                let key = Value::BulkString(b"k".to_vec());
                assert_eq!(data, [Value::Array(vec![key])], "{change}");
            }
            other => panic!("{change}: {other:?}"),
        }
    }
    bob.expect("he waited").reply::<Grant>();
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}
