//! Input that means harm: whatever the bytes, the server lives, its queues move, and nobody loses a lock.

mod dump;
mod sound;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlock_integration::redis::{cmd, Cmd, Connection, PushKind, Value};
use dlock_integration::{
    await_until, command, kept, reply_of, Ask, Blocked, Grant, Server, Subscriber, Wire, PATIENCE,
};
use dump::{restore, seal, value, Frame};
use fastrand::Rng;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

const HOUR_MS: u64 = 3_600_000;

/// The longest time that may be asked for or configured.
const CENTURY_MS: u64 = 3_155_760_000_000;

fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since.as_micros() as u64
}

/// The server answers, its log tells of no fault, and locks can be taken, waited for and handed over.
#[track_caller]
fn assert_sound(server: &Server, connection: &mut Connection) {
    let (first, _): Grant = connection.ask("DLOCK.ACQUIRE sound alice 600000");
    let bob = Blocked::start(server, "DLOCK.ACQUIRE sound bob 600000 BLOCK 0");
    connection.run("DLOCK.RELEASE sound alice");
    let (second, _): Grant = bob.reply();
    assert!(second > first);
    connection.run("DLOCK.RELEASE sound bob");
    sound::assert_sound(server);
}

/// A lock that alice holds once, with a ticket of bob's and a waiter, carol: nothing in a test may touch it.
struct Guarded {
    before: (String, i64),
    token: u64,
    carol: Blocked,
}

impl Guarded {
    #[track_caller]
    fn new(server: &Server, connection: &mut Connection) -> Guarded {
        let (token, _): Grant = connection.ask("DLOCK.ACQUIRE guarded alice 600000");
        connection.run("DLOCK.FAIRACQUIRE guarded bob CLAIM 600000");
        let carol = Blocked::start(server, "DLOCK.ACQUIRE guarded carol 600000 BLOCK 0");
        let before = kept(connection, "guarded");
        Guarded {
            before,
            token,
            carol,
        }
    }

    #[track_caller]
    fn assert_untouched(&self, connection: &mut Connection) {
        assert_eq!(kept(connection, "guarded"), self.before);
        let held: (u64, u64, u64) = connection.ask("DLOCK.HELD guarded alice");
        assert_eq!((held.0, held.1), (self.token, 1));
        let place: Option<u64> = connection.ask("DLOCK.POSITION guarded carol");
        assert_eq!(place, Some(1));
    }

    /// Untouched, and it works; then all is as in an empty server.
    #[track_caller]
    fn assert_intact(self, server: &Server, connection: &mut Connection) {
        self.assert_untouched(connection);
        assert!(self.carol.is_blocked(server));
        connection.run("DLOCK.RELEASE guarded alice");
        let (next, _): Grant = connection.ask("DLOCK.FAIRACQUIRE guarded bob 600000");
        assert!(next > self.token);
        connection.run("DLOCK.RELEASE guarded bob");
        assert!(self.carol.reply::<Grant>().0 > next);
        connection.run("DLOCK.RELEASE guarded carol");
        assert_sound(server, connection);
    }
}

/// The payload with its checksum put right after a change.
fn resealed(mut payload: Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len().saturating_sub(8));
    seal(payload)
}

/// Windows near the end of the numbers: added to the clock, or made microseconds, they must not come out in the past.
/// Each has a server to itself, with no other time-out that would come first.
#[test]
fn a_restored_claim_window_is_bounded() {
    for claim in [1 << 62, (1 << 63) - 1, 18_446_744_073_709_552] {
        let server = Server::start();
        let mut c = server.connection();
        let frame = Frame::learn(&mut c);
        c.run("CONFIG SET dlock.max-claim-ms 300");
        c.run("CONFIG SET dlock.claim-window-ms 200");
        let payload = frame.around(&value(1, &[], &[(now_us(), claim, 1, b"gone")]));
        restore(&mut c, "k", &payload).expect("a window that is bounded");
        let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
        bob.reply::<Grant>();
        assert_sound(&server, &mut c);
    }
}

/// A number so low that no server has ever given it is refused. The lowest of the others keeps the lock reserved for its
/// window, and no longer.
#[test]
fn a_restored_ticket_number_stands_in_nobodys_way() {
    const LOWEST: u64 = 1 << 40;
    let server = Server::builder()
        .config("dlock.quarantine-ms", 1_500)
        .start();
    let mut c = server.connection();
    let deadline = now_us() / 1_000 + HOUR_MS;
    let (plain, learnt) = (Server::start(), now_us());
    let frame = Frame::learn(&mut plain.connection());
    let with_ticket = |number| {
        let hold = (learnt, deadline, 1, 1, &b"alice"[..]);
        frame.around(&value(1, &[hold], &[(number, 1_000, 1, b"first")]))
    };
    for number in [1, LOWEST - 1] {
        let refused = restore(&mut c, "k", &with_ticket(number));
        assert!(refused.is_err(), "{number}");
    }
    restore(&mut c, "k", &with_ticket(LOWEST)).expect("a number that a server may have given");
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 1000 BLOCK 0");
    bob.reply::<Grant>();
    await_until("the quarantine is over", PATIENCE, || {
        c.try_ask("DLOCK.ACQUIRE probe p 1000")
            .is_ok_and(|reply| matches!(reply, Value::Array(_)))
    });
    c.run("CONFIG SET dlock.quarantine-ms 0");
    assert_sound(&server, &mut c);
}

/// Two owners of one mutex are a state that no server makes.
#[test]
fn a_restored_lock_obeys_the_rule_of_granting() {
    let server = Server::start();
    let mut c = server.connection();
    let frame = Frame::learn(&mut c);
    let (now, later) = (now_us(), now_us() / 1_000 + HOUR_MS);
    for limits in [[1, 1], [1, 0], [0, 1]] {
        let payload = frame.around(&value(
            0,
            &[
                (now, later, 1, limits[0], b"alice"),
                (now + 1, later, 1, limits[1], b"bob"),
            ],
            &[],
        ));
        assert!(restore(&mut c, "k", &payload).is_err(), "{limits:?}");
    }
    assert_sound(&server, &mut c);
}

/// Every byte of a payload changed in turn, to a few values, and every length cut off: refused, or a lock that works.
#[test]
fn mutated_payloads_do_no_harm() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    for owner in ["bob", "carol", "dave"] {
        c.run(&format!("DLOCK.FAIRACQUIRE k {owner} CLAIM 600000"));
    }
    let sound: Vec<u8> = c.ask("DUMP k");
    c.run("CONFIG SET dlock.claim-window-ms 1");
    c.run("CONFIG SET dlock.max-claim-ms 1");
    let cut = (0..sound.len() - 8).map(|len| resealed([&sound[..len], &[0; 8][..]].concat()));
    let changed = (0..sound.len() - 10).flat_map(|at| {
        let sound = &sound;
        (0..=255_u8)
            .step_by(7)
            .chain([1, 2, 127, 128, 255])
            .map(move |byte| {
                let mut payload = sound.clone();
                payload[at] = byte;
                resealed(payload)
            })
    });
    let (mut tried, mut taken) = (0, 0);
    for payload in cut.chain(changed) {
        tried += 1;
        if restore(&mut c, "m", &payload).is_err() {
            continue;
        }
        taken += 1;
        // What was accepted can be looked at, waited for, given up, dumped and removed.
        for line in [
            "DLOCK.INFO m",
            "DLOCK.ACQUIRE m eve 1000",
            "DLOCK.FORCERELEASE m",
            "DUMP m",
            "DEL m",
        ] {
            // WRONGTYPE is an answer as well: a changed type byte makes another type.
            let _ = c.try_ask(line);
        }
    }
    assert!(tried > 2_000 && taken > 0, "{tried} tried, {taken} taken");
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_sound(&server, &mut c);
}

/// A lock that somebody waits for has no TTL; wherever it goes, its leases and windows end all the same.
#[test]
fn a_lock_that_went_elsewhere_still_ends() {
    for line in ["SWAPDB 0 1", "MOVE k 1", "RENAME k new"] {
        println!("{line}");
        let server = Server::start();
        let mut c = server.connection();
        c.run("CONFIG SET dlock.claim-window-ms 100");
        c.run("DLOCK.ACQUIRE k alice 300");
        c.run("DLOCK.FAIRACQUIRE k bob CLAIM 300");
        c.run(line);
        await_until("the keys are gone", PATIENCE / 4, || {
            let keyspace = server.info("keyspace");
            keyspace.get("db0").is_none() && keyspace.get("db1").is_none()
        });
    }
}

/// An earlier end of the key stands, whatever else happens to the lock meanwhile.
#[test]
fn an_earlier_expire_is_not_forgotten() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("PEXPIRE k 300");
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let reply = bob.outcome_within(Duration::from_secs(5));
    assert!(matches!(reply, Some(Ok(_))), "{reply:?}");

    c.run("DLOCK.ACQUIRE twice alice 600000 HOLDS 2");
    c.run("PEXPIRE twice 60000");
    c.run("DLOCK.RELEASE twice alice");
    assert!(c.ask::<i64>("PTTL twice") <= 60_000);
}

#[test]
fn an_evicted_lock_is_counted() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("CONFIG SET maxmemory-policy allkeys-random");
    // At once: the server is over its limit for these only.
    let lines = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"];
    let replies = server.wire().batch(lines);
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    await_until("the eviction is counted", PATIENCE / 4, || {
        server.info("dlock").number::<u64>("dlock_evicted_total") == 1
    });
}

/// Bytes that have hurt somebody somewhere: formats, ends of strings and lines, the protocol's own signs, the effects'.
fn nasty() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let texts: [&[u8]; 18] = [
        b"%s%s%s%n%n%d%99999999s",
        b"a\0b",
        b"\0\0\0\0",
        b"two words",
        b"\r\n+OK\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"1 h1 1 1 1 1:a w0",
        b"3:bob",
        b"BLOCK",
        b"**",
        b"-1",
        b"{}",
        b"{k}{k}",
        b"\xff\xfe\xc0\x80\xed\xa0\x80",
        "\u{202e}\u{0}\u{1f512}".as_bytes(),
        b"\\x00\\'\\\"",
        b"__dlock@0__:k",
        b"../../etc/passwd;$(reboot)`id`",
    ];
    names.extend(texts.map(<[u8]>::to_vec));
    names.push((0..=255).collect());
    names.push((0..1024).map(|at| (at * 7) as u8).collect());
    names.push(vec![b'%'; 1023]);
    names
}

fn with(line: &str, words: &[&[u8]]) -> Cmd {
    let mut command = command(line);
    for word in words {
        command.arg(*word);
    }
    command
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
    let names = nasty();
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
    let before: String = c.ask("DEBUG DIGEST");
    server.kill9();
    server.restart();
    let mut c = server.connection();
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), before);
    assert_sound(&server, &mut c);
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
}

/// What clients send stands in errors only so that it can do no harm there: the reply is one line.
#[test]
fn errors_show_words_harmlessly() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let mut wire = server.wire();
    for name in nasty() {
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
    ("DLOCK.INFO guarded COUNT", "COUNT", 0, i64::MAX as u64),
    ("DLOCK.INFO nothing COUNT", "COUNT", 0, i64::MAX as u64),
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
    ("DLOCK.GRAPH COUNT", "COUNT", 1, i64::MAX as u64),
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
    let far = CENTURY_MS - 60_000..=CENTURY_MS;
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
    let frank = Blocked::start(&server, "DLOCK.ACQUIRE k frank BLOCK 100");
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
    assert_sound(&server, &mut c);

    let server = Server::builder()
        .config("dlock.quarantine-ms", CENTURY_MS)
        .start();
    let mut c = server.connection();
    assert!(c.refusal("DLOCK.ACQUIRE k zoe").starts_with("QUARANTINE"));
    let zoe = Blocked::start(&server, "DLOCK.ACQUIRE k zoe BLOCK 0");
    let timed = Blocked::start(&server, "DLOCK.ACQUIRE k timed BLOCK 100");
    assert_eq!(timed.reply::<Value>(), Value::Nil);
    assert!(zoe.is_blocked(&server));
    c.run("CONFIG SET dlock.quarantine-ms 0");
    zoe.reply::<Grant>();
    assert_sound(&server, &mut c);
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
}

/// Every setting that is a number, with its bounds.
const SETTINGS: [(&str, u64, u64); 11] = [
    ("default-lease-ms", 1, CENTURY_MS),
    ("max-lease-ms", 1, CENTURY_MS),
    ("claim-window-ms", 1, CENTURY_MS),
    ("max-claim-ms", 1, CENTURY_MS),
    ("max-hold-ms", 0, CENTURY_MS),
    ("quarantine-ms", 0, CENTURY_MS),
    ("max-queue", 1, 1_000_000_000),
    ("max-places", 1, 1_000_000_000),
    ("max-waiters", 0, 1_000_000_000),
    ("max-holders", 1, 1_000_000_000),
    ("deadlock-max-steps", 1, 1_000_000_000),
];

/// A setting that is refused stays as it was, and the error names it.
#[test]
fn bad_settings_change_nothing() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let all = |c: &mut Connection| -> HashMap<String, String> { c.ask("CONFIG GET dlock.*") };
    let before = all(&mut c);
    assert_eq!(before.len(), SETTINGS.len() + 3, "{before:?}");
    let mut refuse = |name: &str, value: &[u8]| {
        let line = format!("CONFIG SET dlock.{name}");
        let error = c.answer(&with(&line, &[value])).expect_err(name);
        assert!(error.contains(name), "{error}");
        // Together with a good one: neither.
        let both = with(
            "CONFIG SET dlock.max-queue 17",
            &[format!("dlock.{name}").as_bytes(), value],
        );
        if name != "max-queue" {
            c.answer(&both).expect_err(name);
        }
    };
    for (name, least, most) in SETTINGS {
        let below = (least as i64 - 1).to_string();
        let above = (most + 1).to_string();
        for value in [
            below.as_bytes(),
            above.as_bytes(),
            b"",
            b"x",
            b"-",
            b"1.5",
            b"1e3",
            b"yes",
            b"%s%n",
            b"\0",
            b"1\0",
            b"\xff",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"99999999999999999999999999999999",
            b"5 6",
            b"5ms",
        ] {
            refuse(name, value);
        }
    }
    for value in [
        &b""[..],
        b"maybe",
        b"1",
        b"0",
        b"true",
        b"yes no",
        b"%n",
        b"\0",
    ] {
        refuse("grants", value);
    }
    for value in [
        &b""[..],
        b"loud",
        b"0",
        b"1",
        b"auto pubsub",
        b"auto,none",
        b"%s",
        b"pub\0sub",
    ] {
        refuse("notify", value);
    }
    assert!(c.try_ask("CONFIG SET dlock.no-such-thing 1").is_err());
    assert_eq!(all(&mut c), before);
    // The ends of each range are taken, and come back.
    for (name, least, most) in SETTINGS {
        for value in [least, most] {
            c.run(&format!("CONFIG SET dlock.{name} {value}"));
            assert_eq!(all(&mut c)[&format!("dlock.{name}")], value.to_string());
        }
        c.run(&format!(
            "CONFIG SET dlock.{name} {}",
            before[&format!("dlock.{name}")]
        ));
    }
    assert_eq!(all(&mut c), before);
    // A default above what is allowed gives what is allowed.
    c.run("CONFIG SET dlock.default-lease-ms 600000 dlock.max-lease-ms 5000");
    c.run("DLOCK.ACQUIRE k alice");
    assert!(c.ask::<u64>("PTTL k") <= 5_000);
    c.run("CONFIG SET dlock.max-lease-ms 600000");
    guarded.assert_intact(&server, &mut c);
}

/// A server with a bad argument of the module or a bad line in its file does not start, and says what is wrong.
#[test]
fn bad_arguments_stop_the_load() {
    let check = |builder: dlock_integration::ServerBuilder, word: &str, what: &str| match builder
        .try_start()
    {
        Ok(_) => panic!("{what} should have been refused"),
        Err(error) => {
            let said = error
                .log
                .lines()
                .any(|line| line.contains(word) && !line.starts_with(">>>"));
            assert!(said, "{what}: nothing is said of {word} in\n{}", error.log);
            for fault in ["BUG REPORT", "panicked", "internal fault"] {
                assert!(!error.log.contains(fault), "{what}:\n{}", error.log);
            }
        }
    };
    let argued = |words: &[&str]| {
        words.iter().fold(Server::builder(), |builder, word| {
            builder.module_argument(word)
        })
    };
    for (name, least, most) in SETTINGS {
        let (below, above) = ((least as i64 - 1).to_string(), (most + 1).to_string());
        check(
            argued(&[name, &below]),
            name,
            &format!("argument {name} {below}"),
        );
        check(
            Server::builder().config(&format!("dlock.{name}"), &above),
            name,
            &format!("dlock.{name} {above}"),
        );
    }
    for words in [
        &["max-queue", "x"][..],
        &["max-queue", "99999999999999999999"],
        &["max-queue", "%s%n"],
        &["max-queue"],
        &["max-queue", "5", "max-places"],
        &["max-queue", "5", "max-places", "-5"],
        &["grants", "1"],
        &["notify", "auto,none"],
        &["notify"],
        &["dlock.max-queue", "5"],
        &["MAX_QUEUE", "5"],
        &["%s%s%n", "5"],
    ] {
        let word = if words.len() > 2 { words[2] } else { words[0] };
        check(argued(words), word, &words.join(" "));
    }
    for (name, value) in [("dlock.grants", "maybe"), ("dlock.notify", "loud")] {
        check(Server::builder().config(name, value), name, name);
    }
    // The server's own words, in which the name does not stand.
    check(
        Server::builder().config("dlock.no-such", 1),
        "Module Configuration",
        "dlock.no-such",
    );
}

/// As many files as the system lets this process open: a thousand connections are many for the usual limit.
fn allow_many_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // Where it cannot be raised, connecting will say so.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most);
}

/// A thousand connections that ask for a few locks and die, at random, in every state there is; and workers that take the
/// same locks to change what the locks protect. Nobody waits for ever, and never do two hold one lock.
#[test]
fn a_thousand_die_while_others_work() {
    const LOCKS: usize = 4;
    const CROWD: usize = 4;
    const EACH: usize = 250;
    const WORKERS: usize = 6;
    allow_many_files();
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    // Owners of the crowd are shared by many connections and wait for each other; a worker behind them would be refused.
    c.run("CONFIG SET dlock.deadlock-detection no");
    let (work_is_over, full) = (AtomicBool::new(false), AtomicU64::new(0));
    // Before the crowd, so that their numbers are low: the operator below spares those.
    let connections: Vec<Connection> = (0..WORKERS).map(|_| server.connection()).collect();
    let worked: u64 = thread::scope(|scope| {
        for member in 0..CROWD {
            let (server, work_is_over, full) = (&server, &work_is_over, &full);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(member as u64);
                let mut open: Vec<Wire> =
                    (0..EACH).map(|_| ask_and_stay(server, &mut rng)).collect();
                full.fetch_add(1, Ordering::Relaxed);
                while !work_is_over.load(Ordering::Relaxed) {
                    let at = rng.usize(..EACH);
                    open[at] = ask_and_stay(server, &mut rng);
                }
            });
        }
        // An operator who ends connections and waits by their numbers.
        let (admin, over) = (&server, &work_is_over);
        scope.spawn(move || {
            let mut rng = Rng::with_seed(99);
            let mut c = admin.connection();
            while !over.load(Ordering::Relaxed) {
                let newest: u64 = admin.wire().client_id();
                let id = newest.saturating_sub(rng.u64(..2_000));
                let line = match rng.u8(..4) {
                    0 => format!("CLIENT KILL ID {id} SKIPME yes"),
                    1 => format!("CLIENT UNBLOCK {id} ERROR"),
                    _ => format!("CLIENT UNBLOCK {id}"),
                };
                // The workers and the guarded lock's waiter connected first: their numbers are low.
                if id > 200 {
                    let _ = c.try_ask(&line);
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(5);
        let workers: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(worker, mut c)| {
                let full = &full;
                scope.spawn(move || {
                    await_until("the crowd is there", PATIENCE, || {
                        full.load(Ordering::Relaxed) == CROWD as u64
                    });
                    let mut turns = 0;
                    while Instant::now() < end {
                        work(&mut c, worker, turns as usize % LOCKS);
                        turns += 1;
                    }
                    turns
                })
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // Also when a worker has failed: the crowd would go on for ever.
        work_is_over.store(true, Ordering::Relaxed);
        outcomes
            .into_iter()
            .map(|worked| worked.expect("a worker that was not cheated"))
            .sum()
    });
    let counted: u64 = (0..LOCKS)
        .map(|lock| {
            c.ask::<Option<u64>>(&format!("GET count:{lock}"))
                .unwrap_or(0)
        })
        .sum();
    assert_eq!(counted, worked);
    assert!(worked > 20, "{worked} turns");
    await_until("only the guarded lock is left", PATIENCE, || {
        let info = server.info("dlock");
        info.number::<u64>("dlock_connections_waiting") == 1
            && info.number::<u64>("dlock_places_queued") == 2
            && info.number::<u64>("dlock_locks") == 1
    });
    server.await_blocked_clients(1);
    guarded.assert_intact(&server, &mut c);
}

/// Asks for one of the locks in one of the ways, and does not wait for the answer. Those who get it keep it for a moment.
fn ask_and_stay(server: &Server, rng: &mut Rng) -> Wire {
    let mut wire = server.wire();
    let key = rng.u8(..4);
    let owner = format!("o{}", rng.u16(..600));
    let lease = rng.u8(1..4);
    let line = match rng.u8(..10) {
        0..=3 => format!("DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK 0"),
        4 => format!(
            "DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK {}",
            rng.u8(1..50)
        ),
        5..=6 => format!("DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} BLOCK 0"),
        7 => format!(
            "DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} BLOCK {} CLAIM {}",
            rng.u8(1..50),
            rng.u8(1..4)
        ),
        8 => format!("DLOCK.ACQUIRE lock:{key} {owner} {lease} BLOCK 0 SHARED"),
        _ => format!(
            "DLOCK.FAIRACQUIRE lock:{key} {owner} {lease} CLAIM {}",
            rng.u8(1..4)
        ),
    };
    wire.send(&line);
    match rng.u8(..8) {
        // Something behind it in the same connection.
        0 => wire.send(&format!("DLOCK.RELEASE lock:{key} {owner}")),
        1 => wire.send(&format!("DLOCK.CANCEL lock:{key} {owner}")),
        2 => wire.close_sending(),
        _ => {}
    }
    wire
}

/// One turn: takes the lock, changes what it protects in separate steps, and finds itself alone at each of them.
fn work(c: &mut Connection, worker: usize, lock: usize) {
    let (key, owner) = (format!("lock:{lock}"), format!("worker{worker}"));
    let (token, holds): Grant = c.ask(&format!(
        "DLOCK.ACQUIRE {key} {owner} 600000 BLOCK 0 HOLDS 1"
    ));
    assert_eq!(holds, 1);
    let last: Option<u64> = c.ask(&format!("GET token:{lock}"));
    assert!(last < Some(token), "{key}: {token} after {last:?}");
    c.run(&format!("SET token:{lock} {token}"));
    c.run(&format!("SET owner:{lock} {owner}"));
    let count: Option<u64> = c.ask(&format!("GET count:{lock}"));
    c.run(&format!("DLOCK.CHECK {key} {token}"));
    let info: HashMap<String, Value> = c.ask(&format!("DLOCK.INFO {key} COUNT 1"));
    assert_eq!(info["held"], Value::Int(1), "{key}");
    assert_eq!(info["state"], Value::BulkString(b"held".to_vec()), "{key}");
    c.run(&format!("SET count:{lock} {}", count.unwrap_or(0) + 1));
    assert_eq!(c.ask::<String>(&format!("GET owner:{lock}")), owner);
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE {key} {owner} TOKEN {token}")),
        0
    );
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
}

/// Scripts and functions: they never wait, they decide, and what they free is handed over in the same step.
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
    // The next in line has it before the script goes on.
    let dave = Blocked::start(&server, "DLOCK.ACQUIRE k dave 600000 BLOCK 0");
    let reply = eval(
        "redis.call('DLOCK.RELEASE', KEYS[1], 'carol') \
         return {redis.call('DLOCK.ACQUIRE', KEYS[1], 'carol'), redis.call('DLOCK.HELD', KEYS[1], 'dave')[1]}",
        &[],
    );
    let (third, _): Grant = dave.reply();
    assert!(third > second);
    // A Lua table ends at its first nil: false stands for it.
    assert_eq!(
        reply,
        Ok(Value::Array(vec![Value::Nil, Value::Int(third as i64)]))
    );
    // An error ends the script, and what was done stays.
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
    // Fencing: nothing behind a failed check runs.
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
}

/// While a script runs for too long nothing is decided; when it is killed, what has become due is.
#[test]
fn a_script_that_does_not_end_delays_but_loses_nothing() {
    let server = Server::builder().config("lua-time-limit", 20).start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE short alice 300");
    c.run("DLOCK.ACQUIRE long alice 600000");
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE kept alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE short bob 600000 BLOCK 0");
    let timed = Blocked::start(&server, "DLOCK.ACQUIRE long timed 600000 BLOCK 300");
    let dead = Blocked::start(&server, "DLOCK.ACQUIRE long dead 600000 BLOCK 0");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE long carol 600000 BLOCK 0");
    let mut busy = server.wire();
    busy.send_command(cmd("EVAL").arg("while true do end").arg(0));
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
        since.elapsed() > Duration::from_millis(350)
    });
    c.run("SCRIPT KILL");
    assert!(busy.read().is_err());
    bob.reply::<Grant>();
    assert_eq!(timed.reply::<Value>(), Value::Nil);
    assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD kept alice").0, token);
    c.run("DLOCK.RELEASE long alice");
    carol.reply::<Grant>();
    assert_sound(&server, &mut c);
}

/// EXEC does not run if the lock has changed since WATCH, whoever changed it; looking at it changes nothing.
#[test]
fn watch_sees_changes_and_nothing_else() {
    let server = Server::start();
    let (mut c, mut other) = (server.connection(), server.connection());
    let mut run = |prepare: &[&str], between: &str| -> bool {
        c.run("FLUSHALL");
        for line in prepare {
            other.run(line);
        }
        c.run("WATCH k");
        let _ = other.try_ask(between);
        c.run("MULTI");
        c.run("SET data x");
        c.ask::<Value>("EXEC") != Value::Nil
    };
    let held = &["DLOCK.ACQUIRE k alice 600000"][..];
    for between in [
        "DLOCK.ACQUIRE k alice 600000",
        "DLOCK.RENEW k alice 500000",
        "DLOCK.RELEASE k alice",
        "DLOCK.FORCERELEASE k",
        "DLOCK.FAIRACQUIRE k bob CLAIM 600000",
        "DEL k",
        "SET k x",
    ] {
        assert!(!run(held, between), "{between}");
    }
    assert!(!run(&[], "DLOCK.ACQUIRE k alice"), "a new lock");
    for between in [
        "DLOCK.ACQUIRE k bob",
        "DLOCK.ACQUIRE k alice 0",
        "DLOCK.ACQUIRE k alice 1 HOLDS 1",
        "DLOCK.RELEASE k bob",
        "DLOCK.RENEW k alice TOKEN 1",
        "DLOCK.HELD k alice",
        "DLOCK.INFO k",
        "DLOCK.POSITION k alice",
        "DLOCK.CHECK k 1",
        "DLOCK.CANCEL k alice",
        "DLOCK.FORCERELEASE k bob",
        "DLOCK.FORCERELEASE other",
        "DLOCK.APPLY k x",
        "DLOCK.RELEASE k alice HOLDS 1",
        "TYPE k",
    ] {
        assert!(run(held, between), "{between}");
    }

    // What the module does by itself is seen as well: a lease that ends.
    c.run("FLUSHALL");
    c.run("DLOCK.ACQUIRE k alice 200");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run("WATCH k");
    bob.reply::<Grant>();
    c.run("MULTI");
    c.run("SET data x");
    assert_eq!(c.ask::<Value>("EXEC"), Value::Nil);
    // And so is a lease that ends with nobody there.
    c.run("DLOCK.ACQUIRE alone alice 50");
    c.run("WATCH alone");
    await_until("it has ended", PATIENCE, || {
        other.ask::<u64>("EXISTS alone") == 0
    });
    c.run("MULTI");
    c.run("SET data x");
    assert_eq!(c.ask::<Value>("EXEC"), Value::Nil);
    // Who waits in the same connection as it watches: the wait is over before EXEC.
    let mut wire = server.wire();
    wire.ask::<()>("WATCH k");
    wire.send("DLOCK.ACQUIRE k carol 600000 BLOCK 0");
    await_until("carol is queued", PATIENCE, || {
        c.ask::<Option<u64>>("DLOCK.POSITION k carol") == Some(0)
    });
    c.run("DLOCK.RELEASE k bob");
    assert!(matches!(wire.read(), Ok(Value::Array(_))));
    wire.ask::<()>("MULTI");
    wire.ask::<()>("SET data x");
    assert_eq!(wire.ask::<Value>("EXEC"), Value::Nil);
    assert_sound(&server, &mut c);
}

/// A client that keeps what it read of a lock is told when that has become wrong.
#[test]
fn tracking_clients_are_told_of_changes() {
    let server = Server::start();
    let mut c = server.connection();
    let mut wire = server.wire();
    wire.ask::<Value>("HELLO 3");
    wire.ask::<()>("CLIENT TRACKING ON");
    let mut bob = None;
    for (prepare, change) in [
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.RELEASE k alice"),
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.RENEW k alice 500000"),
        ("DLOCK.ACQUIRE k alice 600000", "DLOCK.FORCERELEASE k"),
        ("DLOCK.ACQUIRE k alice 600000", "DEL k"),
        ("ECHO nothing", "DLOCK.ACQUIRE k alice 250"),
        // A lease that ends while somebody waits: the module's own doing.
        ("ECHO waited-for", "ECHO nothing"),
    ] {
        c.run(prepare);
        if prepare == "ECHO waited-for" {
            bob = Some(Blocked::start(
                &server,
                "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
            ));
        }
        for line in ["DLOCK.HELD k alice", "DLOCK.INFO k", "DLOCK.CHECK k 1"] {
            wire.send(line);
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
    assert_sound(&server, &mut c);
}

/// The key goes and is taken anew in one step, while somebody waits: whoever has waited longer has it.
#[test]
fn a_transaction_overtakes_nobody() {
    for remove in [
        "DEL k",
        "UNLINK k",
        "FLUSHDB",
        "FLUSHALL",
        "RENAME k elsewhere",
        "PEXPIRE k -1",
        "PEXPIREAT k 1",
        "MOVE k 1",
        "DLOCK.FORCERELEASE k",
        "DLOCK.RELEASE k alice",
        "SWAPDB 0 1",
    ] {
        for take in [
            "DLOCK.ACQUIRE k eve 600000",
            "DLOCK.FAIRACQUIRE k eve 600000 CLAIM 600000",
            "DLOCK.ACQUIRE k eve 600000 SHARED",
        ] {
            let server = Server::start();
            let mut c = server.connection();
            let (first, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
            let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
            let carol = Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0");
            for line in ["MULTI", remove, take, "DLOCK.HELD k eve"] {
                c.run(line);
            }
            let replies: Vec<Value> = c.ask("EXEC");
            assert_eq!(replies[1..], [Value::Nil, Value::Nil], "{remove}; {take}");
            let (second, _): Grant = bob.reply();
            assert!(
                second > first && carol.is_blocked(&server),
                "{remove}; {take}"
            );
            c.run("DLOCK.RELEASE k bob");
            assert!(carol.reply::<Grant>().0 > second);
            sound::assert_sound(&server);
        }
    }
}

/// What the server itself offers for any key: it tells or refuses, and the lock stays what it is.
#[test]
fn general_commands_do_no_harm() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    for line in [
        "SET string x",
        "RPUSH list 3 1 2",
        "SADD set a",
        "ZADD zset 1 a",
        "HSET hash f v",
    ] {
        c.run(line);
    }
    assert_eq!(c.ask::<String>("TYPE guarded"), "dlock-obj");
    let (_, found): (String, Vec<String>) = c.ask("SCAN 0 COUNT 1000 TYPE dlock-obj");
    assert_eq!(found, ["guarded"]);
    let (_, found): (String, Vec<String>) = c.ask("SCAN 0 COUNT 1000 TYPE string MATCH guarded");
    assert!(found.is_empty());
    assert!(c.ask::<u64>("MEMORY USAGE guarded") > 100);
    assert!(c.ask::<u64>("MEMORY USAGE guarded SAMPLES 0") > 100);
    c.ask::<String>("OBJECT ENCODING guarded");
    for (line, answered) in [
        ("OBJECT REFCOUNT guarded", true),
        ("OBJECT IDLETIME guarded", true),
        ("OBJECT FREQ guarded", false),
        ("DEBUG OBJECT guarded", true),
        ("MEMORY DOCTOR", true),
        ("MEMORY STATS", true),
        ("MEMORY PURGE", true),
        ("TOUCH guarded", true),
        ("EXISTS guarded guarded", true),
        ("PTTL guarded", true),
        ("EXPIRETIME guarded", true),
        ("KEYS *", true),
        ("RANDOMKEY", true),
        ("DBSIZE", true),
        ("DUMP guarded", true),
        ("INFO everything", true),
        ("LATENCY DOCTOR", true),
        ("SLOWLOG GET", true),
        ("CLIENT LIST", true),
        ("COMMAND COUNT", true),
        ("SORT guarded", false),
        ("SORT_RO guarded", false),
        ("SORT list BY guarded", true),
        ("SORT list BY nosort GET guarded GET #", true),
        ("SORT list BY guarded->x GET guarded->x", true),
        ("GET guarded", false),
        ("MGET guarded", true),
        ("GETDEL guarded", false),
        ("GETEX guarded PERSIST", false),
        ("STRLEN guarded", false),
        ("SETNX guarded x", true),
        ("SET guarded x NX", true),
        ("MSETNX guarded x other y", true),
        ("SET guarded x GET", false),
        ("GETSET guarded x", false),
        ("APPEND guarded x", false),
        ("SETRANGE guarded 0 x", false),
        ("SETBIT guarded 1 1", false),
        ("BITCOUNT guarded", false),
        ("BITOP AND target guarded string", false),
        ("INCR guarded", false),
        ("LPUSH guarded x", false),
        ("LMOVE list guarded LEFT LEFT", false),
        ("BLPOP guarded 1", false),
        ("BLMOVE guarded list LEFT LEFT 1", false),
        ("SMOVE set guarded a", false),
        ("SINTER set guarded", false),
        ("SUNIONSTORE target set guarded", false),
        ("ZUNIONSTORE target 2 zset guarded", false),
        ("ZADD guarded 1 a", false),
        ("HSET guarded f v", false),
        ("XADD guarded * f v", false),
        ("XREAD STREAMS guarded 0", false),
        ("XGROUP CREATE guarded g $ MKSTREAM", false),
        ("PFADD guarded x", false),
        ("PFMERGE target guarded", false),
        ("GEOADD guarded 1 1 x", false),
        ("LCS guarded string", false),
        ("COPY guarded target", false),
        ("RENAMENX string guarded", true),
        ("MOVE guarded 0", false),
        ("RESTORE guarded 0 x", false),
        ("MODULE UNLOAD dlock", false),
        ("PERSIST guarded", true),
        ("CLIENT UNBLOCK 999999", true),
    ] {
        assert_eq!(
            c.try_ask(line).is_ok(),
            answered,
            "{line}: {:?}",
            c.try_ask(line)
        );
        guarded.assert_untouched(&mut c);
    }
    assert_eq!(c.ask::<u64>("EXISTS target"), 0);
    c.run("CONFIG SET maxmemory-policy allkeys-lfu");
    c.ask::<u64>("OBJECT FREQ guarded");
    c.run("CONFIG SET maxmemory-policy noeviction");
    let mut other = server.connection();
    other.run("SELECT 5");
    other.run("SET guarded x");
    guarded.assert_untouched(&mut c);
    // The defragmenter looks at every value, where the server has one.
    if c.try_ask("CONFIG SET activedefrag yes").is_ok() {
        c.run("CONFIG SET active-defrag-ignore-bytes 1 active-defrag-threshold-lower 0");
    }
    guarded.assert_intact(&server, &mut c);
}

/// Other commands that write over the key as their target: who waits is told.
#[test]
fn stores_over_a_lock_are_told_of() {
    let server = Server::start();
    let mut c = server.connection();
    for line in [
        "RPUSH list 3 1 2",
        "SADD set a",
        "ZADD zset 1 a",
        "SET string x",
    ] {
        c.run(line);
    }
    for line in [
        "SORT list STORE k",
        "SUNIONSTORE k set",
        "ZRANGESTORE k zset 0 -1",
        "BITOP NOT k string",
        "SET k x",
        "MSET k x",
        "GEOSEARCHSTORE k zset FROMLONLAT 0 0 BYRADIUS 99999 km",
        "COPY string k REPLACE",
        "RENAME copy k",
    ] {
        c.run("COPY string copy REPLACE");
        c.run("DLOCK.ACQUIRE k alice 600000");
        let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
        c.run(line);
        match c.ask::<u64>("EXISTS k") {
            // Nothing to store is a removal.
            0 => drop(bob.reply::<Grant>()),
            _ => assert!(bob.refusal().starts_with("WRONGTYPE"), "{line}"),
        }
        c.run("DEL k");
    }
    assert_sound(&server, &mut c);
}

/// The command within GUARD: whatever it is, the lock and the server come to no harm, and under a wrong token nothing runs.
#[test]
fn guarded_commands_are_bounded() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let token = guarded.token;
    let long = "x".repeat(100_000);
    for inner in [
        "DLOCK.RELEASE guarded alice",
        "dlock.forcerelease guarded",
        "DLOCK.ACQUIRE guarded eve BLOCK 0",
        "DLOCK.APPLY guarded x",
        "DLOCK.GUARD guarded {token} SET data x",
        "DLOCK.HELD guarded alice",
        "DLOCK.nothing",
        "SELECT 1",
        "select 1",
        "MULTI",
        "EXEC",
        "WATCH data",
        "EVAL return{1} 0",
        "FCALL f 0",
        "SUBSCRIBE c",
        "PSUBSCRIBE *",
        "MONITOR",
        "AUTH x",
        "HELLO 3",
        "RESET",
        "QUIT",
        "CLIENT KILL TYPE normal",
        "CLIENT REPLY OFF",
        "CLIENT PAUSE 1",
        "CONFIG SET maxmemory 1",
        "SHUTDOWN NOSAVE",
        "DEBUG SLEEP 0",
        "REPLICAOF 127.0.0.1 1",
        "BGREWRITEAOF",
        "SAVE",
        "SYNC",
        "BLPOP list 1",
        "BLMOVE list list LEFT LEFT 1",
        "BZPOPMIN zset 1",
        "XREAD BLOCK 1 STREAMS s $",
        "WAIT 1 0",
        "ACL WHOAMI",
        "SCRIPT KILL",
        "SET data",
        "SET data x y z",
        "SET",
        "no-such-command",
        "client|list",
        "%s%n",
        &long,
    ] {
        let line =
            format!("DLOCK.GUARD guarded {token} {inner}").replace("{token}", &token.to_string());
        let shown = &line[..line.len().min(80)];
        let error = c.try_ask(&line).expect_err(shown);
        assert!(!error.is_empty() && error.len() < 500, "{shown}: {error}");
        guarded.assert_untouched(&mut c);
    }
    // A name that is no command's: one error, and the next reply is the next command's.
    let mut wire = server.wire();
    for name in nasty() {
        let line = format!("DLOCK.GUARD guarded {token}");
        for words in [&[&name[..]][..], &[&name, b"data", b"x"]] {
            wire.send_command(&with(&line, words));
            wire.send("ECHO next");
            let reply = wire.read_line();
            assert!(reply.starts_with('-'), "{name:?}: {reply}");
            let next = (wire.read_line(), wire.read_line());
            assert_eq!(next, ("$4".into(), "next".into()), "{name:?}");
        }
        c.answer(&with("DLOCK.GUARD", &[&name, b"1", b"SET", b"data", b"x"]))
            .expect_err("no lock");
    }
    for token in [
        "",
        "0",
        "1",
        "-1",
        "x",
        "9007199254740991",
        "9007199254740992",
        "99999999999999999999",
    ] {
        let error = c
            .answer(&with(
                "DLOCK.GUARD guarded",
                &[token.as_bytes(), b"SET", b"data", b"x"],
            ))
            .expect_err(token);
        assert!(
            error.starts_with("FENCED") || error.starts_with("ERR token"),
            "{token}: {error}"
        );
    }
    assert_eq!(c.ask::<u64>("EXISTS data"), 0);
    // The data's own refusals pass through, and what is right runs, in all surroundings.
    c.run("RPUSH list 1");
    assert!(c
        .refusal(&format!("DLOCK.GUARD guarded {token} INCR list"))
        .starts_with("WRONGTYPE"));
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.GUARD guarded {token} INCR n")),
        1
    );
    c.run("MULTI");
    c.run(&format!("DLOCK.GUARD guarded {token} INCR n"));
    c.run("DLOCK.GUARD guarded 1 INCR n");
    let replies: Vec<Value> = c.ask("EXEC");
    assert_eq!(replies[0], Value::Int(2));
    assert!(reply_of(replies[1].clone()).is_err_and(|error| error.starts_with("FENCED")));
    let many: Vec<String> = (0..100_000).map(|at| at.to_string()).collect();
    let mut line = command(&format!("DLOCK.GUARD guarded {token} RPUSH list"));
    line.arg(&many);
    assert_eq!(c.ask_command::<u64>(&line), 100_001);
    // What it does to the lock's own key is what it would do by itself.
    let (own, _): Grant = c.ask("DLOCK.ACQUIRE own alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE own bob 600000 BLOCK 0");
    assert_eq!(c.ask::<u64>(&format!("DLOCK.GUARD own {own} DEL own")), 1);
    let (next, _): Grant = bob.reply();
    assert!(next > own);
    assert!(c
        .refusal(&format!("DLOCK.GUARD own {own} SET data x"))
        .starts_with("FENCED"));
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE own carol 600000 BLOCK 0");
    c.run(&format!("DLOCK.GUARD own {next} SET own x"));
    assert!(carol.refusal().starts_with("WRONGTYPE"));
    guarded.assert_intact(&server, &mut c);
}

/// A GUARD within a GUARD within a GUARD: the keys of all of them are asked for before any of it is refused.
#[test]
fn nested_guards_do_not_exhaust_the_stack() {
    for depth in [2, 1_000, 300_000] {
        for user in [false, true] {
            let server = Server::start();
            let mut c = server.connection();
            let guarded = Guarded::new(&server, &mut c);
            // Of a user whose keys are bounded the server asks which keys a command has.
            c.run("ACL SETUSER app on >secret ~k +dlock.guard +ping");
            let mut line = if user {
                Cmd::new()
            } else {
                command("COMMAND GETKEYS")
            };
            for _ in 0..depth {
                line.arg("DLOCK.GUARD").arg("k").arg("1");
            }
            line.arg("SET").arg("k").arg("v");
            let mut asking = server.wire();
            if user {
                asking.ask::<()>("AUTH app secret");
            }
            // Keys or a refusal: both are an answer.
            asking.send_command(&line);
            let reply = asking.read_value().map(reply_of);
            let answered = match &reply {
                Ok(Ok(_)) => !user,
                Ok(Err(_)) => true,
                Err(_) => false,
            };
            assert!(answered, "{depth} deep, by a bounded user: {user}");
            guarded.assert_intact(&server, &mut c);
        }
    }
}
