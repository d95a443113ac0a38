//! Properties of commands that a conversation cannot show: tokens that follow the clock, owners that the server names, the two
//! protocols.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_harness::redis::Value;
use dlock_harness::{Ask, Grant, Server, Wire};

/// Token, holds and milliseconds left of a hold, as DLOCK.HELD answers.
type Hold = Option<(u64, u64, u64)>;

fn server() -> (Server, Wire) {
    let server = Server::start();
    let connection = server.connection();
    (server, connection)
}

fn hold(connection: &mut Wire, key: &str, owner: &str) -> Hold {
    connection.ask(&format!("DLOCK.HELD {key} {owner}"))
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
fn the_server_names_an_owner() {
    let (_server, mut c) = server();
    let (token, holds, owner): (u64, u64, String) = c.ask("DLOCK.ACQUIRE k * 600000");
    assert_eq!(holds, 1);
    assert_version_4_uuid(&owner);
    assert_eq!(
        hold(&mut c, "k", &owner).map(|hold| (hold.0, hold.1)),
        Some((token, 1))
    );
    // Each `*` is another owner.
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

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).expect("not negative"),
        other => panic!("expected a number, got {other:?}"),
    }
}

/// A null array where the other reply is an array or a map, otherwise a null bulk; in RESP3 the null.
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
        let mut two = server.connection();
        two.send(line);
        assert_eq!(two.read_line(), null, "{line}");
        let mut three = server.connection_resp3();
        three.send(line);
        assert_eq!(three.read_line(), "_", "{line}");
    }
}
