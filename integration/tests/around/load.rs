//! Loading into a running server: a refused load leaves nothing behind, and the next one works.

use std::collections::HashMap;

use dlock_harness::redis::Value;
use dlock_harness::{
    await_until, command, module_path, Ask, Blocked, Grant, Server, ServerBuilder, Wire, PATIENCE,
};

/// Every setting with invalid values: one below the least and one above the most for numbers.
const SETTINGS: &[(&str, &[&str])] = &[
    ("default-lease-ms", &["0", "3155760000001"]),
    ("max-lease-ms", &["0", "3155760000001"]),
    ("claim-window-ms", &["0", "3155760000001"]),
    ("max-claim-ms", &["0", "3155760000001"]),
    ("max-hold-ms", &["-1", "3155760000001"]),
    ("max-queue", &["0", "1000000001"]),
    ("max-sessions", &["0", "1000000001"]),
    ("max-places", &["0", "1000000001"]),
    ("max-waiters", &["-1", "1000000001"]),
    ("max-holders", &["0", "1000000001"]),
    ("deadlock-max-steps", &["0", "1000000001"]),
    ("quarantine-ms", &["-1", "3155760000001"]),
    // A valid value needs a quarantine as well.
    ("replicas", &["-1", "101", "1"]),
    ("ack-timeout-ms", &["0", "3155760000001"]),
    ("deadlock-detection", &["maybe", "1"]),
    ("grants", &["maybe", "1"]),
    ("log-max-len", &["-1", "100001"]),
    ("log-slower-than-ms", &["-2", "3155760000001"]),
    ("notify", &["zz", "all", "0"]),
    ("on-panic", &["zz", "no", "1"]),
];

/// Words that no setting accepts.
const NONSENSE: &[&str] = &[
    "",
    "x",
    "1.5",
    "-9223372036854775809",
    "9223372036854775808",
    "%s%n",
];

fn bare() -> ServerBuilder {
    Server::builder().without_module()
}

/// Loads the module with these words after its path. Returns whether the server accepts the load.
#[track_caller]
fn load(c: &mut Wire, words: &[&str]) -> bool {
    let path = module_path().canonicalize().expect("the module is built");
    let path = path.to_str().expect("a path that is text");
    let answer = c.answer(command("MODULE LOADEX").arg(path).arg(words));
    match &answer {
        Ok(reply) => assert_eq!(reply, &Value::Okay, "{words:?}"),
        Err(error) => assert!(
            error.starts_with("ERR Error loading the extension"),
            "{words:?}: {error}"
        ),
    }
    answer.is_ok()
}

#[track_caller]
fn is_loaded(c: &mut Wire) -> bool {
    let modules: Vec<HashMap<String, Value>> = c.ask("MODULE LIST");
    let name = Value::BulkString(b"dlock".to_vec());
    modules.iter().any(|module| module["name"] == name)
}

#[track_caller]
fn assert_nothing_is_left(c: &mut Wire) {
    assert!(!is_loaded(c));
    assert_eq!(c.ask::<Vec<String>>("CONFIG GET dlock.*"), [""; 0]);
    let commands: Vec<String> = c.ask("COMMAND LIST");
    let left: Vec<_> = commands
        .into_iter()
        .filter(|name| name.to_lowercase().starts_with("dlock."))
        .collect();
    assert_eq!(left, [""; 0]);
    assert!(!c.ask::<String>("INFO everything").contains("dlock_"));
}

/// Causes every kind of event that a module may have subscribed to. A subscription that the unload left would call code that is
/// no longer in memory.
#[track_caller]
fn upheaval(server: &Server, replica: &Server) {
    let mut c = server.connection();
    for line in [
        "SET a 1",
        "RENAME a b",
        "MOVE b 2",
        "PEXPIRE a 1",
        "SWAPDB 0 2",
        "PERSIST b",
        "CONFIG SET notify-keyspace-events KEA",
        "CONFIG SET maxmemory-policy allkeys-lru",
        "CONFIG SET maxmemory-policy noeviction",
        "DEBUG RELOAD",
        "FLUSHDB",
        "FLUSHALL ASYNC",
        "SCRIPT FLUSH",
        "BGREWRITEAOF",
    ] {
        // Some find nothing to do, which does not matter.
        let _ = c.try_ask(line);
    }
    server.await_aof();
    replica.replica_of(server);
    replica.promote();
    server.connection().run("REPLICAOF 127.0.0.1 1");
    server.promote();
    let uptime = || server.info("server").number::<u64>("uptime_in_seconds");
    let began = uptime();
    await_until("the server has done its periodic work", PATIENCE, || {
        uptime() > began
    });
}

/// Asserts that a load with valid settings takes them, and that the module's own activity works (the timer, the subscriptions).
#[track_caller]
fn assert_works(server: &Server) {
    let mut c = server.connection();
    let words = "CONFIG dlock.max-queue 7 CONFIG dlock.notify none \
        ARGS max-holders 8 grants yes dlock.max-places 9 dlock.deadlock-detection no";
    assert!(load(&mut c, &words.split(' ').collect::<Vec<_>>()));
    assert!(is_loaded(&mut c));
    let settings: HashMap<String, String> = c.ask("CONFIG GET dlock.*");
    for (name, value) in [
        ("dlock.max-queue", "7"),
        ("dlock.notify", "none"),
        ("dlock.max-holders", "8"),
        ("dlock.grants", "yes"),
        // With the prefix as well.
        ("dlock.max-places", "9"),
        ("dlock.deadlock-detection", "no"),
        ("dlock.max-lease-ms", "2592000000"),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    let (first, _): Grant = c.ask("DLOCK.ACQUIRE k alice 50");
    let bob = Blocked::send(server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let (second, _): Grant = bob.reply();
    assert!(second > first);
    let carol = Blocked::start(server, "DLOCK.ACQUIRE k carol 600000 BLOCK 0");
    c.run("DEL k");
    let (third, _): Grant = carol.reply();
    assert!(third > second);
    c.run("FLUSHALL");
}

#[test]
fn no_setting_out_of_range_is_loaded_and_nothing_is_left() {
    let (server, replica) = (bare().start(), bare().start());
    let mut c = server.connection();
    for (name, wrong) in SETTINGS {
        for value in wrong.iter().chain(NONSENSE) {
            let setting = format!("dlock.{name}");
            for words in [
                vec!["CONFIG", &setting, value],
                vec!["ARGS", name, value],
                // Some settings have been applied when a later one is refused.
                vec![
                    "CONFIG",
                    "dlock.default-lease-ms",
                    "1000",
                    "CONFIG",
                    &setting,
                    value,
                    "ARGS",
                    "grants",
                    "no",
                ],
            ] {
                assert!(!load(&mut c, &words), "{words:?}");
                assert!(!is_loaded(&mut c), "{words:?}");
            }
        }
        assert_nothing_is_left(&mut c);
    }
    upheaval(&server, &replica);
    assert_works(&server);
    // The list above is complete.
    let all: HashMap<String, String> = c.ask("CONFIG GET dlock.*");
    let mut all: Vec<_> = all.into_keys().collect();
    let mut tried: Vec<_> = SETTINGS
        .iter()
        .map(|(name, _)| format!("dlock.{name}"))
        .collect();
    all.sort();
    tried.sort();
    assert_eq!(all, tried);
}

/// The server looks for unknown settings only after the load, and it cannot unload a module with a type.
#[test]
fn no_setting_that_there_is_not_is_loaded() {
    let (server, replica) = (bare().start(), bare().start());
    let mut c = server.connection();
    let long = "x".repeat(10_000);
    for words in [
        vec!["CONFIG", "dlock.nosuch", "1"],
        vec!["CONFIG", "dlock.max-queu", "10"],
        vec!["CONFIG", "dlock.", "10"],
        vec!["CONFIG", "dlock", "10"],
        vec!["CONFIG", "", ""],
        vec!["CONFIG", "other.max-queue", "10"],
        vec!["CONFIG", "maxmemory", "1"],
        vec!["CONFIG", "max-queue", "10"],
        vec!["CONFIG", "%s%n", "%s%n"],
        vec!["CONFIG", &long, &long],
        vec![
            "CONFIG",
            "dlock.max-queue",
            "10",
            "CONFIG",
            "dlock.nosuch",
            "1",
        ],
        vec![
            "CONFIG",
            "dlock.nosuch",
            "1",
            "CONFIG",
            "dlock.max-queue",
            "10",
            "ARGS",
            "grants",
            "no",
        ],
        // Arguments come in pairs, and the module knows the first of each.
        vec!["ARGS", "nosuch", "1"],
        vec!["ARGS", "dlock.max-queue", "0"],
        vec!["ARGS", "dlock.dlock.max-queue", "1"],
        vec!["ARGS", "dlock.", "1"],
        vec!["ARGS", "max-queue"],
        vec!["ARGS", "max-queue", "10", "grants"],
        vec!["ARGS", "max-queue", "10", "nosuch", "1"],
        vec!["ARGS", "max-queue", "10", "max-queue", "0"],
        vec!["ARGS", ""],
        vec!["ARGS", "%s%n", "%s%n"],
        vec!["ARGS", &long, &long],
    ] {
        assert!(!load(&mut c, &words), "{words:?}");
        assert_nothing_is_left(&mut c);
    }
    let log = server.log();
    for said in [
        "CONFIG names a setting that dlock does not have",
        "unknown module argument 'nosuch'",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    upheaval(&server, &replica);
    assert_works(&server);
}

/// The module withdraws what it has registered until then: its settings, its type and half of its commands.
#[test]
fn a_command_that_is_somebody_elses_refuses_the_load() {
    for taken in ["dlock.acquire", "dlock.top"] {
        let server = bare()
            .config("rename-command", format!("LOLWUT {taken}"))
            .start();
        let replica = bare().start();
        let mut c = server.connection();
        for _ in 0..3 {
            assert!(!load(&mut c, &[]));
            assert!(!is_loaded(&mut c));
            assert_eq!(c.ask::<Vec<String>>("CONFIG GET dlock.*"), [""; 0]);
            assert!(c
                .try_ask("DLOCK.RELEASE k alice")
                .is_err_and(|error| error.to_lowercase().starts_with("err unknown command")));
        }
        assert!(server.log().contains("dlock cannot be loaded"));
        upheaval(&server, &replica);
    }
}

/// The second load meets this code and this state in memory, and disturbs neither.
#[test]
fn a_second_load_of_a_loaded_module_changes_nothing() {
    let server = Server::builder()
        .module_argument("max-queue")
        .module_argument("5")
        .start();
    let mut c = server.connection();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 100 BLOCK 0");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol 600000 BLOCK 0");
    for words in [
        vec![],
        vec!["CONFIG", "dlock.max-queue", "9"],
        vec!["CONFIG", "dlock.max-queue", "0"],
        vec!["CONFIG", "dlock.nosuch", "0"],
        vec!["ARGS", "grants", "no"],
    ] {
        assert!(!load(&mut c, &words), "{words:?}");
    }
    let settings: HashMap<String, String> = c.ask("CONFIG GET dlock.*");
    assert_eq!(settings["dlock.max-queue"], "5");
    assert_eq!(settings["dlock.grants"], "yes");
    c.run(&format!("DLOCK.RELEASE k alice TOKEN {token}"));
    let _: Grant = bob.reply();
    // The lease ends by the module's own timer.
    let _: Grant = carol.reply();
}

/// The bounds themselves are valid.
#[test]
fn settings_at_their_bounds_are_loaded() {
    const LONGEST_MS: &str = "3155760000000";
    for how in ["CONFIG", "ARGS"] {
        for settings in [
            [("max-lease-ms", LONGEST_MS), ("max-queue", "1")],
            [("max-waiters", "0"), ("max-queue", "1000000000")],
            [("notify", "sharded"), ("grants", "no")],
        ] {
            let server = bare().start();
            let mut c = server.connection();
            let mut words = Vec::new();
            for (name, value) in settings {
                match how {
                    "CONFIG" => words.extend(["CONFIG".into(), format!("dlock.{name}")]),
                    _ => words.push(name.into()),
                }
                words.push(value.to_string());
            }
            let first = (how == "ARGS").then_some(how);
            let words: Vec<&str> = first
                .into_iter()
                .chain(words.iter().map(|word| &**word))
                .collect();
            assert!(load(&mut c, &words), "{words:?}");
            let now: HashMap<String, String> = c.ask("CONFIG GET dlock.*");
            for (name, value) in settings {
                assert_eq!(now[&format!("dlock.{name}")], value, "{name}");
            }
        }
    }
}
