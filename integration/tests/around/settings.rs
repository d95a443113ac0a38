//! Settings: CONFIG SET and the start refuse invalid values.

use std::collections::HashMap;

use dlock_harness::{assert_sound, with, Ask, Guarded, Server, Wire};

/// The longest time that a command or a setting accepts.
const CENTURY_MS: i64 = 3_155_760_000_000;

/// Every numeric setting, with its bounds.
const SETTINGS: [(&str, i64, i64); 16] = [
    ("default-lease-ms", 1, CENTURY_MS),
    ("max-lease-ms", 1, CENTURY_MS),
    ("claim-window-ms", 1, CENTURY_MS),
    ("max-claim-ms", 1, CENTURY_MS),
    ("max-hold-ms", 0, CENTURY_MS),
    ("log-max-len", 0, 100_000),
    ("log-slower-than-ms", -1, CENTURY_MS),
    ("quarantine-ms", 0, CENTURY_MS),
    ("replicas", 0, 100),
    ("ack-timeout-ms", 1, CENTURY_MS),
    ("max-queue", 1, 1_000_000_000),
    ("max-sessions", 1, 1_000_000_000),
    ("max-places", 1, 1_000_000_000),
    ("max-waiters", 0, 1_000_000_000),
    ("max-holders", 1, 1_000_000_000),
    ("deadlock-max-steps", 1, 1_000_000_000),
];

const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// The page that recommends settings: one without a round trip, one with.
const RECOMMENDS: &str = include_str!("../../../docs/guarantees.md");

/// The reference has every setting with its default and its bounds.
#[test]
fn the_reference_has_every_setting() {
    let server = Server::start();
    let all: HashMap<String, String> = server.connection().ask("CONFIG GET dlock.*");
    for (setting, default) in &all {
        let row = OPERATIONS
            .lines()
            .find(|line| line.starts_with(&format!("| `{setting}` |")))
            .unwrap_or_else(|| panic!("docs/operations.md does not have {setting}"));
        let cells: Vec<&str> = row.split(" | ").collect();
        let documented = cells[1].split(' ').next();
        assert_eq!(documented, Some(default.as_str()), "{row}");
        let known = SETTINGS.iter().find(|known| setting.ends_with(known.0));
        if let Some((_, least, most)) = known {
            assert_eq!(cells[2], format!("{least} – {most}"), "{row}");
        }
    }
    assert_eq!(all.len(), SETTINGS.len() + 4);
}

/// The recommended settings can be pasted into a configuration file: a comment has a line of its own.
#[test]
fn the_recommended_setting_is_one() {
    let server = Server::start();
    let mut c = server.connection();
    let block = RECOMMENDS
        .split("```")
        .find(|block| block.contains("\nmin-"));
    let block = block.and_then(|block| block.strip_prefix("conf\n"));
    let block = block.expect("the recommended setting");
    let lines = block.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        assert!(!value.contains(' '), "{line}");
        c.run(&format!("CONFIG SET {line}"));
        let set: HashMap<String, String> = c.ask(&format!("CONFIG GET {name}"));
        assert_eq!(set[name], value);
    }
}

/// A refused setting stays as it was, and the error names it.
#[test]
fn bad_settings_change_nothing() {
    let server = Server::start();
    let mut c = server.connection();
    let guarded = Guarded::new(&server, &mut c);
    let all = |c: &mut Wire| -> HashMap<String, String> { c.ask("CONFIG GET dlock.*") };
    let before = all(&mut c);
    assert_eq!(before.len(), SETTINGS.len() + 4, "{before:?}");
    let mut refuse = |name: &str, value: &[u8]| {
        let line = format!("CONFIG SET dlock.{name}");
        let error = c.answer(&with(&line, &[value])).expect_err(name);
        assert!(error.contains(name), "{error}");
        // Together with a valid one: neither is set.
        let both = with(
            "CONFIG SET dlock.max-queue 17",
            &[format!("dlock.{name}").as_bytes(), value],
        );
        if name != "max-queue" {
            c.answer(&both).expect_err(name);
        }
    };
    for (name, least, most) in SETTINGS {
        let below = (least - 1).to_string();
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
    // Both ends of each range are accepted, and CONFIG GET returns them.
    for (name, least, most) in SETTINGS {
        if name == "replicas" {
            c.run("CONFIG SET dlock.quarantine-ms 1");
        }
        for value in [least, most] {
            c.run(&format!("CONFIG SET dlock.{name} {value}"));
            assert_eq!(all(&mut c)[&format!("dlock.{name}")], value.to_string());
        }
        c.run(&format!(
            "CONFIG SET dlock.{name} {}",
            before[&format!("dlock.{name}")]
        ));
    }
    c.run("CONFIG SET dlock.quarantine-ms 0");
    assert_eq!(all(&mut c), before);
    // A default above the most is cut to the most.
    c.run("CONFIG SET dlock.default-lease-ms 600000 dlock.max-lease-ms 5000");
    c.run("DLOCK.ACQUIRE k alice");
    assert!(c.ask::<u64>("PTTL k") <= 5_000);
    c.run("CONFIG SET dlock.max-lease-ms 600000");
    guarded.assert_intact(&server, &mut c);
    assert_sound(&server);
}

/// A server with an invalid argument of the module or an invalid line in its file does not start, and logs the fault.
#[test]
fn bad_arguments_stop_the_load() {
    let check =
        |builder: dlock_harness::ServerBuilder, word: &str, what: &str| match builder.try_start() {
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
    // `load.rs` has every setting with invalid values; this test checks that the server logs the fault and ends.
    for words in [
        &["max-queue", "x"][..],
        &["max-queue", "5", "max-places"],
        &["grants", "1"],
        &["%s%s%n", "5"],
    ] {
        let word = if words.len() > 2 { words[2] } else { words[0] };
        check(argued(words), word, &words.join(" "));
    }
    for (name, value) in [("dlock.grants", "maybe"), ("dlock.notify", "loud")] {
        check(Server::builder().config(name, value), name, name);
    }
    // The server's own message, which does not have the name.
    check(
        Server::builder().config("dlock.no-such", 1),
        "Module Configuration",
        "dlock.no-such",
    );
}
