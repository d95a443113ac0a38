//! Every command, on a lock that nobody has to wait for: what it replies, what it changes, what it refuses.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_integration::redis::{cmd, Connection, Value};
use dlock_integration::{command, Ask, Grant, Server};

/// Token, holds and milliseconds left of a hold, as DLOCK.HELD says.
type Hold = Option<(u64, u64, u64)>;

fn server() -> (Server, Connection) {
    let server = Server::start();
    let connection = server.connection();
    (server, connection)
}

fn hold(connection: &mut Connection, key: &str, owner: &str) -> Hold {
    connection.ask(&format!("DLOCK.HELD {key} {owner}"))
}

#[test]
fn a_lock_is_taken_and_given_back() {
    let (_server, mut c) = server();
    let (token, holds): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
    assert_eq!(holds, 1);
    assert_eq!(c.ask::<String>("TYPE k"), "dlock-obj");
    assert_eq!(c.try_ask("DLOCK.ACQUIRE k bob 600000"), Ok(Value::Nil));
    assert_eq!(
        hold(&mut c, "k", "alice").map(|hold| (hold.0, hold.1)),
        Some((token, 1))
    );
    assert_eq!(hold(&mut c, "k", "bob"), None);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    let (next, _): Grant = c.ask("DLOCK.ACQUIRE k bob");
    assert!(next > token);
}

#[test]
fn tokens_rise_over_everything_and_follow_the_clock() {
    let (server, mut c) = server();
    let mut other = server.connection_in(3);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock past 1970");
    let now = u64::try_from(now.as_micros()).expect("a year before 500000");
    let mut last = now - 1_000_000;
    for round in 0..50 {
        let (connection, key) = if round % 2 == 0 {
            (&mut c, "even")
        } else {
            (&mut other, "odd")
        };
        let (token, _): Grant = connection.ask(&format!("DLOCK.ACQUIRE {key} alice"));
        assert!(token > last, "token {token} after {last}");
        assert!(token < 1 << 53);
        last = token;
        match round % 4 {
            0 | 1 => connection.run(&format!("DLOCK.RELEASE {key} alice")),
            2 => connection.run("DEL even"),
            _ => connection.run("FLUSHALL"),
        }
    }
    assert!(
        last < now + 3_600_000_000,
        "token {last} is far from the clock, {now}"
    );
}

#[test]
fn an_owner_re_enters() {
    let (_server, mut c) = server();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
    for holds in 2..=5 {
        assert_eq!(
            c.ask::<Grant>("DLOCK.ACQUIRE k alice 600000"),
            (token, holds)
        );
    }
    for left in (0..5).rev() {
        assert_eq!(c.try_ask("DLOCK.ACQUIRE k bob"), Ok(Value::Nil));
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), left);
    }
    assert!(c.refusal("DLOCK.RELEASE k alice").starts_with("NOTHELD "));
}

#[test]
fn re_entry_never_shortens_a_lease() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let ends: u64 = c.ask("PEXPIRETIME k");
    c.run("DLOCK.ACQUIRE k alice 1000");
    assert_eq!(c.ask::<u64>("PEXPIRETIME k"), ends);
    let (_, holds, left) = hold(&mut c, "k", "alice").expect("held");
    assert!(
        holds == 2 && left > 300_000 && left <= 600_000,
        "{left} ms left"
    );
    c.run("DLOCK.ACQUIRE k alice 1200000");
    let (_, _, left) = hold(&mut c, "k", "alice").expect("held");
    assert!(left > 900_000 && left <= 1_200_000, "{left} ms left");
}

#[test]
fn holds_makes_a_request_repeatable() {
    let (_server, mut c) = server();
    let (token, holds): Grant = c.ask("DLOCK.ACQUIRE k alice 600000 HOLDS 1");
    assert_eq!(holds, 1);
    for (asked, holds) in [(1, 1), (3, 3), (3, 3), (2, 3)] {
        let line = format!("DLOCK.ACQUIRE k alice 600000 HOLDS {asked}");
        assert_eq!(c.ask::<Grant>(&line), (token, holds), "{line}");
    }
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE k alice"), (token, 4));
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE new alice HOLDS 5").1, 5);
}

#[test]
fn the_server_names_an_owner() {
    let (_server, mut c) = server();
    let (token, holds, owner): (u64, u64, String) = c.ask("DLOCK.ACQUIRE k * 600000");
    assert_eq!(holds, 1);
    assert_version_4_uuid(&owner);
    assert_eq!(
        hold(&mut c, "k", &owner).map(|hold| (hold.0, hold.1)),
        Some((token, 1))
    );
    // Another `*` is another owner.
    assert_eq!(c.try_ask("DLOCK.ACQUIRE k *"), Ok(Value::Nil));
    let (_, _, other): (u64, u64, String) = c.ask("DLOCK.ACQUIRE k2 * BLOCK 0");
    assert_ne!(owner, other);
    assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
    let error = c.refusal("DLOCK.ACQUIRE k * HOLDS 1");
    assert!(
        error.starts_with("ERR ") && error.contains("HOLDS"),
        "{error}"
    );
}

fn assert_version_4_uuid(text: &str) {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    assert_eq!(lengths, [8, 4, 4, 4, 12], "{text}");
    assert!(
        text.chars().all(|c| c == '-' || c.is_ascii_hexdigit()),
        "{text}"
    );
    assert!(
        groups[2].starts_with('4') && groups[3].starts_with(['8', '9', 'a', 'b']),
        "{text}"
    );
}

#[test]
fn release_leaves_what_it_is_told() {
    let (_server, mut c) = server();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 60000 HOLDS 9");
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 8);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice HOLDS 5"), 5);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice HOLDS 5"), 5);
    let error = c.refusal("DLOCK.RELEASE k alice HOLDS 6");
    assert!(
        error.starts_with("ERR ") && error.contains("HOLDS"),
        "{error}"
    );
    assert!(c
        .refusal(&format!("DLOCK.RELEASE k alice TOKEN {}", token + 1))
        .starts_with("NOTHELD "));
    assert!(c
        .refusal(&format!(
            "DLOCK.RELEASE k alice TOKEN {} HOLDS 0",
            token - 1
        ))
        .starts_with("NOTHELD "));
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE k alice TOKEN {token}")),
        4
    );
    assert!(c.refusal("DLOCK.RELEASE k bob").starts_with("NOTHELD "));
    assert_eq!(hold(&mut c, "k", "alice").map(|hold| hold.1), Some(4));
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice HOLDS 0"), 0);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
    assert!(c
        .refusal("DLOCK.RELEASE k alice HOLDS 0")
        .starts_with("NOTHELD "));
}

#[test]
fn renew_sets_the_deadline() {
    let (_server, mut c) = server();
    c.run("CONFIG SET dlock.default-lease-ms 1500000");
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
    for (line, lease) in [
        ("DLOCK.RENEW k alice 6000000".to_owned(), 6_000_000),
        ("DLOCK.RENEW k alice 2000000".to_owned(), 2_000_000),
        ("DLOCK.RENEW k alice".to_owned(), 1_500_000),
        (
            format!("DLOCK.RENEW k alice 4000000 TOKEN {token}"),
            4_000_000,
        ),
        (format!("DLOCK.RENEW k alice TOKEN {token}"), 1_500_000),
    ] {
        assert_eq!(c.ask::<u64>(&line), lease, "{line}");
        let (_, holds, left) = hold(&mut c, "k", "alice").expect("held");
        assert!(
            holds == 1 && left <= lease && left + 300_000 > lease,
            "{line}: {left} ms left"
        );
    }
    assert!(c.refusal("DLOCK.RENEW k bob").starts_with("NOTHELD "));
    assert!(c
        .refusal("DLOCK.RENEW nothing alice")
        .starts_with("NOTHELD "));
    assert!(c
        .refusal(&format!("DLOCK.RENEW k alice TOKEN {}", token + 1))
        .starts_with("NOTHELD "));
}

#[test]
fn check_knows_the_current_token_only() {
    let (_server, mut c) = server();
    let (old, _): Grant = c.ask("DLOCK.ACQUIRE k alice");
    assert_eq!(c.try_ask(&format!("DLOCK.CHECK k {old}")), Ok(Value::Okay));
    c.run("DLOCK.RELEASE k alice");
    assert!(c
        .refusal(&format!("DLOCK.CHECK k {old}"))
        .starts_with("FENCED "));
    let (new, _): Grant = c.ask("DLOCK.ACQUIRE k alice");
    assert!(c
        .refusal(&format!("DLOCK.CHECK k {old}"))
        .starts_with("FENCED "));
    assert_eq!(c.try_ask(&format!("DLOCK.CHECK k {new}")), Ok(Value::Okay));

    let script = "return redis.pcall('DLOCK.CHECK', KEYS[1], ARGV[1])";
    let verdict = c.answer(cmd("EVAL").arg(script).arg(1).arg("k").arg(new));
    assert_eq!(verdict, Ok(Value::Okay));
    let verdict = c.answer(cmd("EVAL").arg(script).arg(1).arg("k").arg(old));
    assert!(verdict.is_err_and(|error| error.starts_with("FENCED ")));
}

#[test]
fn check_guards_a_transaction() {
    let (_server, mut c) = server();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice");
    c.run("MULTI");
    c.run(&format!("DLOCK.CHECK k {token}"));
    c.run("SET data 1");
    assert_eq!(
        c.try_ask("EXEC"),
        Ok(Value::Array(vec![Value::Okay, Value::Okay]))
    );
}

#[test]
fn forced_release_ends_holds() {
    let (_server, mut c) = server();
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 0);
    c.run("DLOCK.ACQUIRE k alice HOLDS 7");
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k bob"), 0);
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k alice"), 1);
    assert!(c.refusal("DLOCK.RELEASE k alice").starts_with("NOTHELD "));
    c.run("DLOCK.ACQUIRE k bob");
    assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}

#[test]
fn who_is_not_queued_has_no_place() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice");
    for owner in ["alice", "bob"] {
        assert_eq!(
            c.try_ask(&format!("DLOCK.POSITION k {owner}")),
            Ok(Value::Nil)
        );
        assert_eq!(c.ask::<u64>(&format!("DLOCK.CANCEL k {owner}")), 0);
    }
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL nothing alice"), 0);
    assert_eq!(c.try_ask("DLOCK.POSITION nothing alice"), Ok(Value::Nil));
}

#[test]
fn info_shows_the_holder() {
    let (server, mut two) = server();
    let mut three = server.connection_resp3();
    let (token, _): Grant = two.ask("DLOCK.ACQUIRE k alice 600000 HOLDS 2");
    assert!(matches!(two.try_ask("DLOCK.INFO k"), Ok(Value::Array(_))));
    assert!(matches!(three.try_ask("DLOCK.INFO k"), Ok(Value::Map(_))));
    for connection in [&mut two, &mut three] {
        let info: HashMap<String, Value> = connection.ask("DLOCK.INFO k");
        assert_eq!(text(&info["state"]), "held");
        assert_eq!(
            (
                number(&info["limit"]),
                number(&info["held"]),
                number(&info["queued"])
            ),
            (1, 1, 0)
        );
        assert_eq!(info["queue"], Value::Array(vec![]));
        let holders: Vec<BTreeMap<String, Value>> =
            dlock_integration::redis::from_redis_value(&info["holders"]).expect("an array of maps");
        let [holder] = holders.as_slice() else {
            panic!("one holder, not {holders:?}")
        };
        assert_eq!(text(&holder["owner"]), "alice");
        assert_eq!(number(&holder["token"]), token);
        assert_eq!(
            (
                number(&holder["holds"]),
                number(&holder["limit"]),
                number(&holder["session"])
            ),
            (2, 1, 0)
        );
        let (left, held) = (number(&holder["lease-ms"]), number(&holder["held-ms"]));
        assert!(left > 300_000 && left <= 600_000, "{left}");
        // One reading of the clock says both.
        assert!(
            (599_999..=600_001).contains(&(left + held)),
            "{left} {held}"
        );
        assert!(holder.contains_key("client"));
    }
    assert_eq!(two.try_ask("DLOCK.INFO nothing"), Ok(Value::Nil));
}

#[test]
fn info_bounds_its_arrays() {
    let (_server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice");
    for owner in 0..120 {
        c.run(&format!("DLOCK.FAIRACQUIRE k owner-{owner} CLAIM 600000"));
    }
    for (line, shown) in [
        ("DLOCK.INFO k", 100),
        ("DLOCK.INFO k COUNT 3", 3),
        ("DLOCK.INFO k COUNT 1000", 120),
    ] {
        let info: HashMap<String, Value> = c.ask(line);
        let Value::Array(queue) = &info["queue"] else {
            panic!("an array, not {info:?}")
        };
        assert_eq!(
            (number(&info["queued"]), queue.len()),
            (120, shown),
            "{line}"
        );
    }
}

fn text(value: &Value) -> String {
    dlock_integration::redis::from_redis_value(value).expect("a text")
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).expect("not negative"),
        other => panic!("a number, not {other:?}"),
    }
}

#[test]
fn options_come_in_any_order_and_case() {
    let (_server, mut c) = server();
    for (key, line) in [
        "HOLDS 2 BLOCK 0",
        "block 0 holds 2",
        "5000 Block 0 hOlDs 2",
        "5000 HOLDS 2",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(
            c.ask::<Grant>(&format!("dlock.acquire k{key} alice {line}"))
                .1,
            2,
            "{line}"
        );
    }
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice HOLDS 3");
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE k alice token {token} holds 2")),
        2
    );
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE k alice HOLDS 1 TOKEN {token}")),
        1
    );
}

#[test]
fn errors_name_the_argument_and_change_nothing() {
    let (_server, mut c) = server();
    let digest: String = c.ask("DEBUG DIGEST");
    for verb in ["DLOCK.ACQUIRE", "DLOCK.FAIRACQUIRE"] {
        for (rest, argument) in [
            ("0", "lease-ms"),
            ("-1", "lease-ms"),
            ("2592000001", "lease-ms"),
            ("9223372036854775807", "lease-ms"),
            ("99999999999999999999", "lease-ms"),
            ("BLOCK", "BLOCK"),
            ("BLOCK -1", "BLOCK"),
            ("BLOCK soon", "BLOCK"),
            ("BLOCK 1.5", "BLOCK"),
            ("BLOCK 99999999999999999999", "BLOCK"),
            ("BLOCK 1 BLOCK 1", "BLOCK"),
            ("HOLDS", "HOLDS"),
            ("HOLDS 0", "HOLDS"),
            ("HOLDS -1", "HOLDS"),
            ("HOLDS many", "HOLDS"),
            ("HOLDS 99999999999999999999", "HOLDS"),
            ("HOLDS 1 HOLDS 1", "HOLDS"),
            ("1000 NONSENSE", "NONSENSE"),
            ("1000 TOKEN 5", "TOKEN"),
        ] {
            assert_refused_for(&mut c, &format!("{verb} k alice {rest}"), argument);
        }
    }
    for (line, argument) in [
        ("DLOCK.ACQUIRE k alice CLAIM 1000", "CLAIM"),
        ("DLOCK.FAIRACQUIRE k alice CLAIM", "CLAIM"),
        ("DLOCK.FAIRACQUIRE k alice CLAIM 0", "CLAIM"),
        ("DLOCK.FAIRACQUIRE k alice CLAIM -5", "CLAIM"),
        ("DLOCK.FAIRACQUIRE k alice CLAIM 600001", "CLAIM"),
        ("DLOCK.FAIRACQUIRE k alice CLAIM 1 CLAIM 1", "CLAIM"),
        ("DLOCK.RENEW k alice 0", "lease-ms"),
        ("DLOCK.RENEW k alice 2592000001", "lease-ms"),
        ("DLOCK.RENEW k alice 1000 TOKEN", "TOKEN"),
        ("DLOCK.RENEW k alice 1000 TOKEN x", "TOKEN"),
        ("DLOCK.RENEW k alice 1000 BLOCK 5", "BLOCK"),
        ("DLOCK.RELEASE k alice HOLDS -1", "HOLDS"),
        ("DLOCK.RELEASE k alice HOLDS x", "HOLDS"),
        ("DLOCK.RELEASE k alice TOKEN -1", "TOKEN"),
        ("DLOCK.RELEASE k alice TOKEN 1 TOKEN 1", "TOKEN"),
        ("DLOCK.RELEASE k alice SOON", "SOON"),
        ("DLOCK.CHECK k x", "token"),
        ("DLOCK.CHECK k -1", "token"),
        ("DLOCK.INFO k COUNT", "COUNT"),
        ("DLOCK.INFO k COUNT -1", "COUNT"),
        ("DLOCK.INFO k COUNT x", "COUNT"),
        ("DLOCK.INFO k FOO 1", "FOO"),
    ] {
        assert_refused_for(&mut c, line, argument);
    }
    assert_eq!(c.ask::<String>("DEBUG DIGEST"), digest);
}

#[track_caller]
fn assert_refused_for(connection: &mut Connection, line: &str, argument: &str) {
    let error = connection.refusal(line);
    let named = error.to_lowercase().contains(&argument.to_lowercase());
    assert!(
        error.starts_with("ERR ") && named,
        "{line:?} was refused with {error:?}, without {argument}"
    );
}

#[test]
fn owners_are_bytes_within_bounds() {
    let (_server, mut c) = server();
    let longest = vec![0xff; 1_024];
    for owner in [
        b"\0".as_slice(),
        b"a b\r\n",
        b"%s%n%x",
        b"-1",
        b"BLOCK",
        &longest,
    ] {
        let (token, _): Grant = c.ask_command(command("DLOCK.ACQUIRE k").arg(owner));
        let held: Hold = c.ask_command(command("DLOCK.HELD k").arg(owner));
        assert_eq!(held.map(|hold| hold.0), Some(token));
        assert_eq!(
            c.ask_command::<u64>(command("DLOCK.RELEASE k").arg(owner)),
            0
        );
    }
    for owner in [vec![], vec![b'a'; 1_025]] {
        for verb in [
            "ACQUIRE",
            "FAIRACQUIRE",
            "RENEW",
            "RELEASE",
            "CANCEL",
            "POSITION",
            "HELD",
            "FORCERELEASE",
        ] {
            let error = c.answer(command(&format!("DLOCK.{verb} k")).arg(&owner));
            let error = error.expect_err("an owner has 1 to 1024 bytes");
            assert!(
                error.starts_with("ERR ") && error.contains("owner"),
                "{verb}: {error}"
            );
        }
    }
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}

#[test]
fn keys_are_bytes() {
    let (_server, mut c) = server();
    for key in [b"".as_slice(), b"\0\xff", b"%s%n", b"a b"] {
        let (token, _): Grant = c.ask_command(cmd("DLOCK.ACQUIRE").arg(key).arg("alice"));
        assert_eq!(
            c.answer(cmd("DLOCK.CHECK").arg(key).arg(token)),
            Ok(Value::Okay)
        );
        assert_eq!(
            c.ask_command::<u64>(cmd("DLOCK.RELEASE").arg(key).arg("alice")),
            0
        );
    }
}

/// A null array where an array or a map is the other reply, else a null bulk; in RESP3 the null.
#[test]
fn nulls_are_of_the_right_kind() {
    let (server, mut c) = server();
    c.run("DLOCK.ACQUIRE k alice");
    for (line, null) in [
        ("DLOCK.ACQUIRE k bob", "*-1"),
        ("DLOCK.ACQUIRE k bob BLOCK 1", "*-1"),
        ("DLOCK.FAIRACQUIRE k bob BLOCK 1", "*-1"),
        ("DLOCK.HELD k bob", "*-1"),
        ("DLOCK.HELD nothing", "*-1"),
        ("DLOCK.INFO nothing", "*-1"),
        ("DLOCK.POSITION k bob", "$-1"),
    ] {
        let mut two = server.wire();
        two.send(line);
        assert_eq!(two.read_line(), null, "{line}");
        let mut three = server.wire();
        three.ask::<Value>("HELLO 3");
        three.send(line);
        assert_eq!(three.read_line(), "_", "{line}");
    }
}

/// Both protocols have the same numbers in the same places.
#[test]
fn replies_are_the_same_in_both_protocols() {
    let (server, mut two) = server();
    let mut three = server.connection_resp3();
    let (token, _): Grant = three.ask("DLOCK.ACQUIRE k alice 60000");
    assert_eq!(two.ask::<Grant>("DLOCK.ACQUIRE k alice 60000"), (token, 2));
    assert!(
        matches!(three.try_ask("DLOCK.HELD k alice"), Ok(Value::Array(parts)) if parts.len() == 3)
    );
    assert!(
        matches!(two.try_ask("DLOCK.HELD k alice"), Ok(Value::Array(parts)) if parts.len() == 3)
    );
    assert_eq!(three.ask::<u64>("DLOCK.RELEASE k alice"), 1);
    assert!(three.refusal("DLOCK.RELEASE k bob").starts_with("NOTHELD "));
}

#[test]
fn locks_of_two_databases_are_two_locks() {
    let (server, mut zero) = server();
    let mut one = server.connection_in(1);
    zero.run("DLOCK.ACQUIRE k alice");
    one.run("DLOCK.ACQUIRE k bob");
    assert_eq!(zero.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    assert_eq!(one.ask::<u64>("DLOCK.RELEASE k bob"), 0);
}

/// Who has it, and for how long: the holder whose lease ends last.
#[test]
fn held_names_the_holder() {
    let (server, mut two) = server();
    let mut three = server.connection_resp3();
    type Last = (u64, u64, u64, String);
    let (alice, _): Grant = two.ask("DLOCK.ACQUIRE k alice 600000 SHARED");
    let (bob, _): Grant = two.ask("DLOCK.ACQUIRE k bob 1200000 HOLDS 2 SHARED");
    for c in [&mut two, &mut three] {
        let (token, holds, left, owner): Last = c.ask("DLOCK.HELD k");
        assert_eq!((token, holds, owner.as_str()), (bob, 2, "bob"));
        assert!((600_001..=1_200_000).contains(&left), "{left}");
        assert_eq!(hold(c, "k", "alice").map(|hold| hold.0), Some(alice));
    }
    two.run("DLOCK.RELEASE k bob HOLDS 0");
    for c in [&mut two, &mut three] {
        let (token, holds, _, owner): Last = c.ask("DLOCK.HELD k");
        assert_eq!((token, holds, owner.as_str()), (alice, 1, "alice"));
    }
    two.run("DLOCK.RELEASE k alice");
    for c in [&mut two, &mut three] {
        assert_eq!(c.try_ask("DLOCK.HELD k"), Ok(Value::Nil));
    }
    two.run("SET k x");
    assert!(two.refusal("DLOCK.HELD k").starts_with("WRONGTYPE "));
}
