//! Arguments of every kind: bytes as names, numbers at their bounds and beyond, too few words and too many, and random ones. A
//! wrong one is refused in one line, and changes nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_harness::redis::{cmd, Cmd, Value};
use dlock_harness::{
    assert_hands_over, assert_sound, await_until, awkward, kept, reply_of, with, Ask, Blocked,
    Grant, Guarded, Server, Subscriber, PATIENCE,
};
use fastrand::Rng;

/// The longest time that a command or a setting accepts.
const CENTURY_MS: u64 = 3_155_760_000_000;

fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since.as_micros() as u64
}

/// Every byte and every awkward name as a key and as an owner: taken, waited for, reported, saved, released.
#[test]
fn names_may_be_any_bytes() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("notify-keyspace-events", "KEA")
        .config("loglevel", "debug")
        .start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let subscriber = Subscriber::patterns(&server, &["*"]);
    let names = awkward();
    for name in &names {
        let mut wire = server.connection();
        // `*` is the one owner that is not literal.
        let owner = if name == b"*" { b"+" } else { name.as_slice() };
        let (token, holds): Grant =
            c.ask_command(&with("DLOCK.ACQUIRE", &[name, owner, b"600000"]));
        assert_eq!(holds, 1, "{name:?}");
        let other = [b"x", owner].concat();
        let other = &other[..other.len().min(1024)];
        // Names of 1,024 bytes, cut to length after another first byte, still differ.
        let ticket = with("DLOCK.FAIRACQUIRE", &[name, other, b"CLAIM", b"600000"]);
        assert_eq!(c.answer(&ticket), Ok(Value::Nil), "{name:?}");
        let waiting = with(
            "DLOCK.ACQUIRE",
            &[name, b"waiter", b"600000", b"BLOCK", b"600000"],
        );
        wire.send_command(&waiting);
        await_until("it is queued", PATIENCE, || {
            c.ask_command::<Option<u64>>(&with("DLOCK.POSITION", &[name, b"waiter"])) == Some(1)
        });
        let info: HashMap<String, Value> = c.ask_command(&with("DLOCK.INFO", &[name]));
        let first = |list: &str| match &info[list] {
            Value::Array(items) => match &items[0] {
                Value::Array(fields) => fields[1].clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(first("holders"), Value::BulkString(owner.to_vec()));
        assert_eq!(first("queue"), Value::BulkString(other.to_vec()));
        let held: (u64, u64, u64) = c.ask_command(&with("DLOCK.HELD", &[name, owner]));
        assert_eq!(held.0, token, "{name:?}");
        assert_eq!(
            c.ask_command::<u64>(&with("DLOCK.CANCEL", &[name, other])),
            1
        );
        assert_eq!(
            c.ask_command::<u64>(&with("DLOCK.FORCERELEASE", &[name, owner])),
            1
        );
        assert!(matches!(wire.read(), Ok(Value::Array(_))), "{name:?}");
        assert_eq!(
            c.ask_command::<u64>(&with("DLOCK.RELEASE", &[name, b"waiter"])),
            0
        );
        let (_, _): Grant = c.ask_command(&with("DLOCK.ACQUIRE", &[name, owner, b"600000"]));
    }
    assert!(subscriber.next(PATIENCE).is_some());
    guarded.assert_untouched(&mut c);
    // Saved, loaded, and unchanged.
    let before: String = c.ask("DEBUG DIGEST");
    c.run("DEBUG RELOAD");
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), before);
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
    let before: String = c.ask("DEBUG DIGEST");
    server.kill9();
    server.restart();
    let mut c = server.connection();
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), before);
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// Errors show clients' words in a harmless form: the reply is one line.
#[test]
fn errors_show_words_harmlessly() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let mut wire = server.connection();
    for name in awkward() {
        for line in [
            "DLOCK.ACQUIRE guarded alice",
            "DLOCK.FAIRACQUIRE guarded alice",
            "DLOCK.RENEW guarded alice",
            "DLOCK.RELEASE guarded alice",
            "DLOCK.INFO guarded",
            "DLOCK.DOWNGRADE guarded alice",
        ] {
            wire.send_command(&with(line, &[b"x", &name]));
            wire.send("ECHO next");
            let reply = wire.read_line();
            assert!(reply.starts_with("-ERR "), "{reply}");
            assert!(
                reply.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
                "{reply:?}"
            );
            assert!(reply.len() < 500, "{reply}");
            assert_eq!(
                (wire.read_line(), wire.read_line()),
                ("$4".into(), "next".into())
            );
            // As the first word: an unknown option, or an invalid argument.
            if name.first().is_some_and(|byte| !byte.is_ascii_digit()) {
                wire.send_command(&with(line, &[&name]));
                let reply = wire.read_line();
                assert!(reply.starts_with("-ERR "), "{line} {name:?}: {reply}");
            }
        }
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// The largest accepted numbers: added to the clock and to each other they stay in the future.
#[test]
fn the_largest_numbers_work() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("dlock.max-lease-ms", CENTURY_MS)
        .config("dlock.default-lease-ms", CENTURY_MS)
        .config("dlock.claim-window-ms", CENTURY_MS)
        .config("dlock.max-claim-ms", CENTURY_MS)
        .config("dlock.max-hold-ms", CENTURY_MS)
        .start();
    let mut c = server.connection();
    let far = CENTURY_MS - 600_000..=CENTURY_MS;
    let line = format!(
        "DLOCK.ACQUIRE k alice {CENTURY_MS} BLOCK {CENTURY_MS} HOLDS 4294967295 LIMIT 4294967294"
    );
    let (token, holds): Grant = c.ask(&line);
    assert_eq!(holds, u64::from(u32::MAX));
    assert_eq!(c.ask::<Grant>(&line), (token, holds));
    assert!(far.contains(&c.ask::<u64>("PTTL k")));
    for line in [
        "DLOCK.ACQUIRE k alice",
        "DLOCK.ACQUIRE k alice 1000 LIMIT 4294967294",
    ] {
        assert_eq!(
            c.refusal(line),
            "ERR the hold count must be at most 4294967295: it would overflow"
        );
    }
    let left: u64 = c.ask(&format!("DLOCK.RENEW k alice {CENTURY_MS}"));
    assert!(far.contains(&left), "{left}");
    let bob = Blocked::start(
        &server,
        &format!("DLOCK.ACQUIRE k bob {CENTURY_MS} BLOCK {CENTURY_MS}"),
    );
    let carol = Blocked::start(
        &server,
        &format!("DLOCK.FAIRACQUIRE k carol {CENTURY_MS} BLOCK {CENTURY_MS} CLAIM {CENTURY_MS}"),
    );
    assert_eq!(
        c.try_ask(&format!("DLOCK.FAIRACQUIRE k dave CLAIM {CENTURY_MS}")),
        Ok(Value::Nil)
    );
    assert_eq!(c.try_ask("DLOCK.FAIRACQUIRE k erin"), Ok(Value::Nil));
    // A short wait next to them ends in its time; they do not.
    let frank = Blocked::send(&server, "DLOCK.ACQUIRE k frank BLOCK 100");
    assert_eq!(frank.reply::<Value>(), Value::Nil);
    assert!(bob.is_blocked(&server) && carol.is_blocked(&server));
    assert_eq!(c.ask::<Option<u64>>("DLOCK.POSITION k erin"), Some(3));
    assert_eq!(
        c.ask::<u64>("DLOCK.RELEASE k alice HOLDS 4294967294"),
        4_294_967_294
    );
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice HOLDS 0"), 0);
    bob.reply::<Grant>();
    let before = kept(&mut c, "k");
    server.kill9();
    server.restart();
    let mut c = server.connection();
    // The lock is no longer marked as having a queue.
    assert_eq!(kept(&mut c, "k"), before);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k bob");
    assert!(far.contains(&left), "{left}");
    c.run("DLOCK.RELEASE k bob");
    c.ask::<Grant>("DLOCK.FAIRACQUIRE k carol");
    assert_hands_over(&server, &mut c);
    assert_sound(&server);

    let server = Server::builder()
        .config("dlock.quarantine-ms", CENTURY_MS)
        .start();
    let mut c = server.connection();
    assert!(c.refusal("DLOCK.ACQUIRE k zoe").starts_with("QUARANTINE"));
    let zoe = Blocked::start(&server, "DLOCK.ACQUIRE k zoe BLOCK 0");
    let timed = Blocked::send(&server, "DLOCK.ACQUIRE k timed BLOCK 100");
    assert_eq!(timed.reply::<Value>(), Value::Nil);
    assert!(zoe.is_blocked(&server));
    c.run("CONFIG SET dlock.quarantine-ms 0");
    zoe.reply::<Grant>();
    assert_hands_over(&server, &mut c);
    assert_sound(&server);
}

/// Returns a word for a random command: sometimes a valid one, mostly not.
fn random_word(rng: &mut Rng) -> Vec<u8> {
    const WORDS: [&[u8]; 41] = [
        b"f0",
        b"f1",
        b"string",
        b"",
        b"alice",
        b"bob",
        b"*",
        b"0",
        b"1",
        b"2",
        b"5",
        b"-1",
        b"100",
        b"600000",
        b"4294967295",
        b"4294967296",
        b"9007199254740992",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"1e9",
        b"BLOCK",
        b"block",
        b"HOLDS",
        b"SHARED",
        b"LIMIT",
        b"CLAIM",
        b"TOKEN",
        b"COUNT",
        b"EPHEMERAL",
        b"IN",
        b"SEEN",
        b"%s%n",
        b"\0",
        b"\r\n",
        b"f0\0",
        b"1 h1 1 1 1 1:a",
        b"w0",
        b"x",
        b"\xff\xff",
        b"{f0}",
        b"f2",
    ];
    match rng.u8(..20) {
        0 => (0..rng.usize(..40)).map(|_| rng.u8(..)).collect(),
        1 => now_us().to_string().into_bytes(),
        _ => WORDS[rng.usize(..WORDS.len())].to_vec(),
    }
}

fn random_command(rng: &mut Rng, may_block: bool) -> Cmd {
    const VERBS: [&str; 22] = [
        "ACQUIRE",
        "FAIRACQUIRE",
        "DOWNGRADE",
        "RENEW",
        "RELEASE",
        "FORCERELEASE",
        "CANCEL",
        "POSITION",
        "HELD",
        "CHECK",
        "GUARD",
        "INFO",
        "MACQUIRE",
        "MRENEW",
        "MRELEASE",
        "LIST",
        "GRAPH",
        "TOP",
        "LOG",
        "STATS",
        "HELP",
        "APPLY",
    ];
    let verb = VERBS[rng.usize(..VERBS.len())];
    let mut command = cmd(&format!("DLOCK.{verb}"));
    let usual = rng.bool();
    if usual {
        if verb.starts_with('M') {
            command.arg(1);
        }
        command.arg(["f0", "f1", "f2"][rng.usize(..3)]);
        command.arg(["alice", "bob", "carol"][rng.usize(..3)]);
    }
    let count = if rng.u8(..50) == 0 {
        rng.usize(..300)
    } else {
        rng.usize(..7)
    };
    for _ in 0..count {
        let word = random_word(rng);
        if may_block || !word.eq_ignore_ascii_case(b"BLOCK") {
            command.arg(word);
        }
    }
    command
}

/// Random words, by clients that read the replies and by clients that may be blocked and leave.
#[test]
fn random_words_do_no_harm() {
    let server = Server::builder().config("appendonly", "yes").start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    c.run("SET string x");
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (server, failed) = (&server, &failed);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed);
                for _ in 0..80 {
                    let mut wire = server.connection();
                    let (may_block, count) = (rng.bool(), rng.usize(1..60));
                    for _ in 0..count {
                        wire.send_command(&random_command(&mut rng, may_block));
                    }
                    if may_block {
                        if rng.bool() {
                            wire.close_sending();
                        }
                        continue;
                    }
                    for _ in 0..count {
                        failed.fetch_add(u64::from(wire.read().is_err()), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(failed.load(Ordering::Relaxed) > 500, "some of it was wrong");
    await_until("nobody waits but carol", PATIENCE, || {
        server
            .info("dlock")
            .number::<u64>("dlock_connections_waiting")
            == 1
    });
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// The internal command, in every way in which a client can run commands.
#[test]
fn the_effect_command_is_not_for_clients() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let library = "#!lua name=l\nredis.register_function('apply', function(keys, args) \
                   return redis.call('DLOCK.APPLY', keys[1], args[1]) end)";
    c.ask_command::<String>(cmd("FUNCTION").arg("LOAD").arg(library));
    let script = "return redis.call('DLOCK.APPLY', KEYS[1], ARGV[1])";
    let caught = "return redis.pcall('DLOCK.APPLY', KEYS[1], ARGV[1])";
    for effect in [
        &b""[..],
        b"1",
        b"1 w0",
        b"1 f1 5:alice",
        b"1 h9007199254740991 9999999999999 1 1 3:eve",
        b"1 h9007199254740991 9999999999999 1 1 3:eve w1 w0",
        b"2",
        b"\xff",
    ] {
        for key in ["guarded", "free", ""] {
            let key = key.as_bytes();
            for line in [
                with("DLOCK.APPLY", &[key, effect]),
                with("dLoCk.ApPlY", &[key, effect]),
                with("EVAL", &[script.as_bytes(), b"1", key, effect]),
                with("EVAL", &[caught.as_bytes(), b"1", key, effect]),
                with("FCALL apply 1", &[key, effect]),
            ] {
                let error = c.answer(&line).expect_err("it is refused");
                assert!(error.contains("DLOCK.APPLY is for"), "{error}");
            }
            c.run("MULTI");
            c.ask_command::<String>(&with("DLOCK.APPLY", &[key, effect]));
            let replies: Vec<Value> = c.ask("EXEC");
            assert!(reply_of(replies[0].clone()).is_err(), "{replies:?}");
        }
    }
    assert_eq!(c.ask::<u64>("EXISTS free"), 0);
    // It has moved no token.
    assert!(c.ask::<Grant>("DLOCK.ACQUIRE now alice").0 <= now_us());
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// Commands as people type them into telnet.
#[test]
fn inline_commands_work() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let mut wire = server.connection();
    let mut say = |bytes: &[u8]| {
        wire.send_bytes(bytes).expect("the server reads");
        wire.read()
    };
    assert!(matches!(
        say(b"DLOCK.ACQUIRE k alice 600000\r\n"),
        Ok(Value::Array(_))
    ));
    assert!(matches!(
        say(b"  dlock.acquire   k  'alice'  \"600000\" \n"),
        Ok(Value::Array(_))
    ));
    assert!(matches!(
        say(b"DLOCK.ACQUIRE \"\\x00\\xff\\n\" \"a\\x00b\" 600000\r\n"),
        Ok(Value::Array(_))
    ));
    let held = with("DLOCK.HELD", &[b"\0\xff\n", b"a\0b"]);
    assert_eq!(c.ask_command::<(u64, u64, u64)>(&held).1, 1);
    for line in [
        &b"DLOCK.ACQUIRE\r\n"[..],
        b"DLOCK.ACQUIRE \"\" \"\"\r\n",
        b"DLOCK.ACQUIRE k alice \"\"\r\n",
        b"DLOCK.ACQUIRE k alice BLOCK\r\n",
        b"DLOCK.APPLY guarded '1 f1 5:alice'\r\n",
    ] {
        assert!(say(line).expect_err("it is wrong").starts_with("ERR "));
    }
    // A wait, and a command behind it.
    wire.send_bytes(b"DLOCK.ACQUIRE k bob 600000 BLOCK 0\r\nECHO behind\r\n")
        .expect("the server reads");
    await_until("bob is queued", PATIENCE, || {
        c.ask::<Option<u64>>("DLOCK.POSITION k bob") == Some(0)
    });
    c.run("DLOCK.RELEASE k alice HOLDS 0");
    assert!(matches!(wire.read(), Ok(Value::Array(_))));
    assert_eq!(wire.read(), Ok(Value::BulkString(b"behind".to_vec())));
    // An invalid line ends the connection, which waited for nothing.
    for bytes in [
        &b"DLOCK.ACQUIRE guarded 'alice\r\n"[..],
        b"*-1000000000\r\n*3\r\n$99999999999\r\n",
        b"*3\r\n$13\r\nDLOCK.ACQUIRE\r\n$-5\r\n",
    ] {
        let mut wire = server.connection();
        wire.send_bytes(bytes).expect("the server reads");
        while wire.read_value().is_ok() {}
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}
