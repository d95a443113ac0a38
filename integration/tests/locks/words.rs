//! Words of commands, whatever they are: bytes as names, numbers at their bounds and beyond, too few words and too many, and any
//! of them at random. What is wrong is refused in one line, and changes nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_integration::redis::{cmd, Cmd, Value};
use dlock_integration::{
    assert_hands_over, assert_sound, await_until, awkward, command, kept, reply_of, with, Ask,
    Blocked, Grant, Guarded, Server, Subscriber, PATIENCE,
};
use fastrand::Rng;

/// The longest time that may be asked for or configured.
const CENTURY_MS: u64 = 3_155_760_000_000;

fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since.as_micros() as u64
}

/// Every byte as a name, and every nasty name, of a key and of an owner: taken, waited for, told of, saved, given back.
#[test]
fn names_may_be_any_bytes() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "no")
        .config("notify-keyspace-events", "KEA")
        .config("loglevel", "debug")
        .start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let subscriber = Subscriber::patterns(&server, &["*"]);
    let names = awkward();
    for name in &names {
        let mut wire = server.wire();
        // `*` is the one owner that is not taken as it stands.
        let owner = if name == b"*" { b"+" } else { name.as_slice() };
        let (token, holds): Grant =
            c.ask_command(&with("DLOCK.ACQUIRE", &[name, owner, b"600000"]));
        assert_eq!(holds, 1, "{name:?}");
        let other = [b"x", owner].concat();
        let other = &other[..other.len().min(1024)];
        // Those of 1,024 bytes would be cut back to the same for another first byte only: they differ.
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
    // Saved, loaded, and there.
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

/// 1 to 1,024 bytes, for every command that takes an owner; keys may be of any length, 0 included.
#[test]
fn owners_have_a_length() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    for length in [0, 1025, 1_000_000] {
        let owner = vec![b'o'; length];
        for (verb, rest) in [
            ("ACQUIRE", ""),
            ("ACQUIRE", "1000 BLOCK 0"),
            ("FAIRACQUIRE", "CLAIM 1000"),
            ("RENEW", ""),
            ("RELEASE", "HOLDS 0"),
            ("FORCERELEASE", ""),
            ("CANCEL", ""),
            ("POSITION", ""),
            ("HELD", ""),
            ("DOWNGRADE", "SHARED"),
        ] {
            for key in ["guarded", "free"] {
                let mut line = command(&format!("DLOCK.{verb} {key}"));
                line.arg(&owner);
                for word in rest.split_whitespace() {
                    line.arg(word);
                }
                let error = c.answer(&line).expect_err(verb);
                assert_eq!(error, "ERR owner must be 1 to 1024 bytes long", "{verb}");
            }
        }
    }
    guarded.assert_untouched(&mut c);
    assert_eq!(c.ask::<u64>("EXISTS free"), 0);
    for length in [0, 1, 1_000_000] {
        let key = vec![b'k'; length];
        c.ask_command::<Grant>(&with("DLOCK.ACQUIRE", &[&key, b"alice"]));
        let mut wire = server.wire();
        wire.send_command(&with("DLOCK.ACQUIRE", &[&key, b"bob", b"BLOCK", b"0"]));
        await_until("it is queued", PATIENCE, || {
            c.ask_command::<Option<u64>>(&with("DLOCK.POSITION", &[&key, b"bob"])) == Some(0)
        });
        c.ask_command::<()>(&with("DEL", &[&key]));
        assert!(matches!(wire.read(), Ok(Value::Array(_))));
        c.ask_command::<()>(&with("DLOCK.RELEASE", &[&key, b"bob"]));
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// What clients send stands in errors only so that it can do no harm there: the reply is one line.
#[test]
fn errors_show_words_harmlessly() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let mut wire = server.wire();
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
            // The same as the first word: an option that there is not, or an argument that it cannot be.
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

/// Every argument that is a number: the line up to it, its name in errors, the least and the most it may be.
const NUMBERS: [(&str, &str, u64, u64); 25] = [
    ("DLOCK.ACQUIRE guarded alice", "lease-ms", 1, 2_592_000_000),
    ("DLOCK.ACQUIRE guarded eve BLOCK", "BLOCK", 0, CENTURY_MS),
    (
        "DLOCK.ACQUIRE guarded alice HOLDS",
        "HOLDS",
        1,
        u32::MAX as u64,
    ),
    (
        "DLOCK.ACQUIRE guarded alice LIMIT",
        "LIMIT",
        1,
        u32::MAX as u64 - 1,
    ),
    (
        "DLOCK.FAIRACQUIRE guarded alice",
        "lease-ms",
        1,
        2_592_000_000,
    ),
    (
        "DLOCK.FAIRACQUIRE guarded eve BLOCK",
        "BLOCK",
        0,
        CENTURY_MS,
    ),
    (
        "DLOCK.FAIRACQUIRE guarded alice HOLDS",
        "HOLDS",
        1,
        u32::MAX as u64,
    ),
    (
        "DLOCK.FAIRACQUIRE guarded alice LIMIT",
        "LIMIT",
        1,
        u32::MAX as u64 - 1,
    ),
    ("DLOCK.FAIRACQUIRE guarded eve CLAIM", "CLAIM", 1, 600_000),
    (
        "DLOCK.DOWNGRADE guarded alice LIMIT",
        "LIMIT",
        1,
        u32::MAX as u64 - 1,
    ),
    ("DLOCK.RENEW guarded alice", "lease-ms", 1, 2_592_000_000),
    ("DLOCK.RENEW guarded alice TOKEN", "TOKEN", 1, (1 << 53) - 1),
    (
        "DLOCK.RELEASE guarded alice HOLDS",
        "HOLDS",
        0,
        u32::MAX as u64,
    ),
    (
        "DLOCK.RELEASE guarded alice TOKEN",
        "TOKEN",
        1,
        (1 << 53) - 1,
    ),
    ("DLOCK.CHECK guarded", "token", 0, (1 << 53) - 1),
    ("DLOCK.INFO guarded COUNT", "COUNT", 0, 5_000),
    ("DLOCK.INFO nothing COUNT", "COUNT", 0, 5_000),
    (
        "DLOCK.MACQUIRE 1 guarded alice",
        "lease-ms",
        1,
        2_592_000_000,
    ),
    ("DLOCK.MACQUIRE 1 guarded eve BLOCK", "BLOCK", 0, CENTURY_MS),
    (
        "DLOCK.MACQUIRE 1 guarded alice HOLDS",
        "HOLDS",
        1,
        u32::MAX as u64,
    ),
    (
        "DLOCK.MACQUIRE 1 guarded alice LIMIT",
        "LIMIT",
        1,
        u32::MAX as u64 - 1,
    ),
    ("DLOCK.MRENEW 1 guarded alice", "lease-ms", 1, 2_592_000_000),
    ("DLOCK.LIST 0 COUNT", "COUNT", 1, i64::MAX as u64),
    ("DLOCK.GRAPH COUNT", "COUNT", 1, 5_000),
    ("DLOCK.TOP COUNT", "COUNT", 1, i64::MAX as u64),
];

#[test]
fn numbers_are_bounded() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let digits = "9".repeat(100_000);
    let bad: [&[u8]; 33] = [
        b"",
        b"-",
        b"+",
        b".",
        b"-0",
        b"-1",
        b"+1",
        b"00",
        b"01",
        b"1.0",
        b"1.",
        b".5",
        b"1e3",
        b"0x10",
        b" 1",
        b"1 ",
        b"1\0",
        b"\x001",
        b"1\n",
        b"--1",
        b"1_000",
        b"1,000",
        b"nan",
        b"inf",
        b"-inf",
        b"%n",
        b"\xff",
        "\u{661}".as_bytes(),
        b"-9223372036854775808",
        b"-9223372036854775809",
        b"9223372036854775808",
        b"18446744073709551615",
        b"18446744073709551616",
    ];
    for (line, name, least, most) in NUMBERS {
        let outside = [
            least.checked_sub(1).map(|below| below.to_string()),
            Some((most + 1).to_string()),
            Some(format!("{most}0")),
            Some(digits.clone()),
            Some(format!("-{digits}")),
        ];
        let outside: Vec<_> = outside
            .into_iter()
            .flatten()
            .map(String::into_bytes)
            .collect();
        for word in bad.iter().copied().chain(outside.iter().map(Vec::as_slice)) {
            let error = c
                .answer(&with(line, &[word]))
                .expect_err(&format!("{line} {}", String::from_utf8_lossy(word)));
            let shown = String::from_utf8_lossy(&word[..word.len().min(30)]).into_owned();
            if name == "lease-ms" && !word.first().is_some_and(|c| b"0123456789-+.".contains(c)) {
                // A word that is no number is an option.
                let unknown = error.starts_with("ERR unknown option");
                assert!(unknown, "{line} {shown}: {error}");
            } else {
                let wanted = format!("ERR {name} must be an integer from {least} to {most}");
                assert_eq!(error, wanted, "{line} {shown}");
            }
        }
        // And left out.
        if name != "lease-ms" {
            c.refusal(line);
        }
        guarded.assert_untouched(&mut c);
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// The largest numbers that are taken: added to the clock and to each other they stay in the future.
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
    // Something short next to them goes off in its time; they do not.
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
    // Who waits no more is no longer said to.
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

/// Too few words, and too many of them.
#[test]
fn the_number_of_words_is_checked() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    for (line, most) in [
        ("DLOCK.ACQUIRE guarded alice", None),
        ("DLOCK.FAIRACQUIRE guarded alice", None),
        ("DLOCK.DOWNGRADE guarded alice SHARED", None),
        ("DLOCK.RENEW guarded alice", None),
        ("DLOCK.RELEASE guarded alice", None),
        ("DLOCK.FORCERELEASE guarded", Some(2)),
        ("DLOCK.CANCEL guarded alice", Some(2)),
        ("DLOCK.POSITION guarded alice", Some(2)),
        ("DLOCK.HELD guarded", Some(2)),
        ("DLOCK.CHECK guarded 1", Some(2)),
        ("DLOCK.GUARD guarded x x", None),
        ("DLOCK.INFO guarded", None),
        ("DLOCK.MACQUIRE 1 guarded alice", None),
        ("DLOCK.MRENEW 1 guarded alice", None),
        ("DLOCK.MRELEASE 1 guarded alice", Some(3)),
        ("DLOCK.LIST", None),
        ("DLOCK.GRAPH", None),
        ("DLOCK.TOP", None),
        ("DLOCK.STATS", None),
        ("DLOCK.HELP", Some(0)),
        ("DLOCK.APPLY guarded", None),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0].to_lowercase();
        let wrong = format!("ERR wrong number of arguments for '{name}' command");
        for count in 1..words.len() {
            assert_eq!(c.refusal(&words[..count].join(" ")), wrong, "{line}");
        }
        for extra in [
            most.map_or(1, |most: usize| most + 2 - words.len()),
            17,
            1_000,
            100_000,
        ] {
            let mut long = command(line);
            for _ in 0..extra {
                long.arg("x");
            }
            let error = c.answer(&long).expect_err(line);
            assert!(error.starts_with("ERR "), "{line}: {error}");
            if most.is_some() {
                assert_eq!(error, wrong, "{line} and {extra} more");
            }
        }
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// Options that are unknown, given twice, or exclude each other: refused wherever they stand, and nothing is queued.
#[test]
fn options_are_given_once() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    for verb in ["ACQUIRE", "FAIRACQUIRE"] {
        for owner in ["alice", "eve"] {
            for rest in [
                "BLOCK 0 BLOCK 0",
                "BLOCK 0 1000",
                "HOLDS 1 HOLDS 1",
                "SHARED SHARED",
                "LIMIT 2 LIMIT 2",
                "SHARED LIMIT 2",
                "LIMIT 2 SHARED",
                "1000 1000",
                "BLOCK 0 HOLDS 1 block 0",
                "TOKEN 1",
                "COUNT 1",
                "BLOCK 0 x",
                "x BLOCK 0",
                "SHARE",
                "SHARED1",
                "BLOCK=0",
                "SESSION SESSION",
                "BLOCK 0 SESSION session",
                "NOTIFY a NOTIFY b",
                "NOTIFY",
                "ABSENT",
                "BLOCK 0 CLAIM",
                "1000 BLOCK 0 CLAIM 5 CLAIM 5",
                "NX",
                "PX 5",
            ] {
                let error = c.refusal(&format!("DLOCK.{verb} guarded {owner} {rest}"));
                assert!(error.starts_with("ERR "), "{verb} {rest}: {error}");
            }
        }
    }
    for line in [
        "DLOCK.ACQUIRE guarded eve BLOCK 0 CLAIM 1000",
        "DLOCK.ACQUIRE guarded * HOLDS 1",
        "DLOCK.ACQUIRE guarded * BLOCK 0 HOLDS 1",
        "DLOCK.RENEW guarded alice TOKEN 1 TOKEN 1",
        "DLOCK.RENEW guarded alice 5 5",
        "DLOCK.RENEW guarded alice HOLDS 1",
        "DLOCK.RENEW guarded alice TOKEN 1 5",
        "DLOCK.RELEASE guarded alice HOLDS 0 HOLDS 0",
        "DLOCK.RELEASE guarded alice HOLDS 0 TOKEN 1 TOKEN 1",
        "DLOCK.RELEASE guarded alice 0",
        "DLOCK.RELEASE guarded alice HOLDS 2",
        "DLOCK.DOWNGRADE guarded alice LIMIT 2 SHARED",
        "DLOCK.DOWNGRADE guarded alice EXCLUSIVE",
        "DLOCK.DOWNGRADE guarded alice LIMIT 0",
        "DLOCK.INFO guarded COUNT 1 COUNT 1",
        "DLOCK.INFO guarded LIMIT 1",
    ] {
        let error = c.refusal(line);
        assert!(error.starts_with("ERR "), "{line}: {error}");
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// A word for a random command: sometimes what belongs there, mostly not.
fn random_word(rng: &mut Rng) -> Vec<u8> {
    const WORDS: [&[u8]; 40] = [
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
        b"SESSION",
        b"NOTIFY",
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
    const VERBS: [&str; 21] = [
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

/// Words at random, by clients that read the replies and by clients that may be blocked and leave.
#[test]
fn random_words_do_no_harm() {
    let server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "no")
        .start();
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
                    let mut wire = server.wire();
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

/// The internal command, in every way that a client has to run commands.
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
    // No token has moved by it.
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
    let mut wire = server.wire();
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
    // A wait, and what stands behind it.
    wire.send_bytes(b"DLOCK.ACQUIRE k bob 600000 BLOCK 0\r\nECHO behind\r\n")
        .expect("the server reads");
    await_until("bob is queued", PATIENCE, || {
        c.ask::<Option<u64>>("DLOCK.POSITION k bob") == Some(0)
    });
    c.run("DLOCK.RELEASE k alice HOLDS 0");
    assert!(matches!(wire.read(), Ok(Value::Array(_))));
    assert_eq!(wire.read(), Ok(Value::BulkString(b"behind".to_vec())));
    // What is no command at all ends the connection, which waited for nothing.
    for bytes in [
        &b"DLOCK.ACQUIRE guarded 'alice\r\n"[..],
        b"*-1000000000\r\n*3\r\n$99999999999\r\n",
        b"*3\r\n$13\r\nDLOCK.ACQUIRE\r\n$-5\r\n",
    ] {
        let mut wire = server.wire();
        wire.send_bytes(bytes).expect("the server reads");
        while wire.read_value().is_ok() {}
    }
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}
