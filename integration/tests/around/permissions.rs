//! The permissions that the pages promise each user, tried with the rules of the page.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use dlock_harness::redis::{cmd, Value};
use dlock_harness::{await_until, AclRules, Ask, Grant, News, Server, Wire, PATIENCE};

const TROUBLE: &str = include_str!("../../../docs/trouble.md");
const SCRIPT: &str = include_str!("../../../observability/dlock.lua");

/// Returns a server with these rules, given in this order.
fn server_with(rules: &[&str]) -> Server {
    let server = Server::start();
    for rule in rules {
        server.connection().run(rule);
    }
    server
}

/// Returns a connection of a user of the page.
fn user(server: &Server, name: &str) -> Wire {
    server.connection_as(name, AclRules::PASSWORD)
}

/// Returns a connection of a user on which a test reads messages.
fn listener(server: &Server, name: &str) -> Wire {
    let mut wire = server.connection();
    let password = AclRules::PASSWORD;
    wire.ask::<Value>(&format!("HELLO 3 AUTH {name} {password}"));
    wire
}

#[track_caller]
fn is_denied(answer: &Result<Value, String>) -> bool {
    matches!(answer, Err(error) if error.starts_with("NOPERM "))
}

#[track_caller]
fn assert_denied(c: &mut Wire, line: &str) {
    let answer = c.try_ask(line);
    assert!(is_denied(&answer), "{line}: {answer:?}");
}

/// Returns the sources of the clients, without their tests and benchmarks.
fn client_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients")];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            let skipped = ["test", "bench"].iter().any(|part| name.contains(part));
            if skipped || ["node_modules", "target", "spring"].contains(&&*name) {
                continue;
            }
            let source = ["py", "rs", "go", "mjs", "java"];
            if path.is_dir() {
                todo.push(path);
            } else if path
                .extension()
                .is_some_and(|end| source.iter().any(|source| end == *source))
            {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the module's commands in a source, as `DLOCK.RENEW` or, where the source adds the prefix elsewhere, as `RENEW`.
fn commands_in(source: &str, commands: &BTreeSet<String>) -> BTreeSet<String> {
    let quoted = source.split(['"', '\'', '`']);
    let word = |text: &str| {
        let word = text.split(' ').next().unwrap_or_default();
        let name = word.strip_prefix("DLOCK.").unwrap_or(word);
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase());
        is_name.then(|| format!("dlock.{}", name.to_lowercase()))
    };
    let words: BTreeSet<String> = quoted.filter_map(word).collect();
    &words & commands
}

#[test]
fn the_clients_may_send_all_that_they_send() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[]);
    let listed: Vec<String> = server
        .connection()
        .ask("COMMAND LIST FILTERBY MODULE dlock");
    let commands: BTreeSet<String> = listed.into_iter().collect();
    let allowed = |rules: &[&'static str]| -> BTreeSet<&str> {
        let words = rules.iter().flat_map(|rule| rule.split(' '));
        words.filter_map(|word| word.strip_prefix('+')).collect()
    };
    let of_operators = allowed(&[rules.operator]);
    let mut of_programs = allowed(&[rules.plain, rules.clients, rules.guard]);
    // The command line is also an operator's tool.
    let of_people = &of_programs | &of_operators;
    // Who calls `forceUnlock` acts as an operator.
    of_programs.extend(of_operators.get("dlock.forcerelease"));
    let mut sent = BTreeSet::new();
    let sources = client_sources();
    for path in &sources {
        let source = fs::read_to_string(path).expect("a source");
        let allowed = match path.components().any(|part| part.as_os_str() == "cli") {
            true => &of_people,
            false => &of_programs,
        };
        for command in commands_in(&source, &commands) {
            assert!(allowed.contains(&*command), "{}: {command}", path.display());
            sent.insert(command);
        }
    }
    assert!(sources.len() >= 5, "{sources:?}");
    assert!(sent.len() >= 6, "{sent:?}");
}

/// A wait in a session, and every later command.
#[test]
fn a_client_waits_in_its_session_and_keeps_its_lock() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[rules.plain]);
    let mut c = user(&server, "app");
    if server.version().has_redis_api(7, 2) {
        c.run("CLIENT SETINFO lib-name dlock");
    }
    let (held, _): Grant = c.ask("DLOCK.ACQUIRE stock alice");
    c.run("DLOCK.SESSION stock s 30000");
    let _: (u64, u64, u64) = c.ask("DLOCK.FAIRACQUIRE stock bob 30000 BLOCK 5000 IN s");
    c.run(&format!("DLOCK.RELEASE stock alice HOLDS 0 TOKEN {held}"));
    let (_, _, _, rows): News = c.ask("DLOCK.SESSION stock s 30000");
    let [(_, word, .., token, _)] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!(word, "granted");
    c.run(&format!("DLOCK.RENEW stock bob 30000 TOKEN {token} IN s"));
    c.run(&format!("DLOCK.DOWNGRADE stock bob SHARED TOKEN {token}"));
    c.run("DLOCK.POSITION stock bob");
    c.run("DLOCK.CANCEL stock bob");
    c.run(&format!("DLOCK.RELEASE stock bob TOKEN {token}"));
    c.run("DLOCK.SESSION stock s 0");
}

/// In a cluster redis-py asks for the slots.
#[test]
fn a_client_asks_a_cluster_for_its_slots() {
    let rules = AclRules::of_the_page();
    let server = Server::builder().cluster().start();
    server.serve_all_slots();
    server.connection().run(rules.plain);
    server.connection().run(rules.clients);
    let mut c = user(&server, "app");
    for line in [
        "CLUSTER SLOTS",
        "COMMAND",
        "READONLY",
        "READWRITE",
        "ASKING",
    ] {
        let answer = c.try_ask(line);
        assert!(answer.is_ok(), "{line}: {answer:?}");
    }
    assert_denied(&mut c, "CLUSTER FLUSHSLOTS");
}

#[test]
fn a_guarded_write_is_allowed_to_the_data_and_not_to_the_lock() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[rules.plain]);
    let mut c = user(&server, "app");
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE stock alice 600000");
    let decrease = format!("DLOCK.GUARD stock {token} DECR stock:left");
    assert_denied(&mut c, &decrease);
    server.connection().run(rules.guard);
    assert_eq!(c.ask::<i64>(&decrease), -1);
    for command in ["SET stock x", "SET other x", "DEL stock:left", "FLUSHALL"] {
        assert_denied(&mut c, &format!("DLOCK.GUARD stock {token} {command}"));
        assert_denied(&mut c, command);
    }
    assert_eq!(c.ask::<i64>("DLOCK.RELEASE stock alice"), 0);
    assert!(c.refusal(&decrease).starts_with("FENCED "));
}

#[test]
fn unlock_messages_are_heard_by_who_may() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[rules.plain, rules.clients]);
    let mut messages = listener(&server, "app");
    messages.send("SUBSCRIBE __dlock@0__:stock");
    assert!(is_denied(&messages.read()));
    server.connection().run(rules.messages);
    messages.ask::<Value>("SUBSCRIBE __dlock@0__:stock");
    messages.ask::<Value>("PSUBSCRIBE __dlock@*");
    let mut c = user(&server, "app");
    c.run("DLOCK.ACQUIRE stock alice");
    c.run("DLOCK.RELEASE stock alice");
    let message = format!("{:?}", messages.read().expect("a message"));
    assert!(message.contains("released "), "{message}");
}

/// Returns the commands of the page: those that the operator types, and those in its sentences.
fn commands_of(page: &str) -> Vec<&str> {
    let typed = page.lines().filter_map(|line| line.strip_prefix("ops> "));
    let typed = typed.filter(|line| !line.starts_with('('));
    let beginnings = [
        "DLOCK.",
        "INFO ",
        "SUBSCRIBE ",
        "LATENCY ",
        "SLOWLOG ",
        "CONFIG ",
    ];
    let in_sentences = page.split('`').skip(1).step_by(2).filter(|span| {
        let is_command = beginnings.iter().any(|begin| span.starts_with(begin));
        is_command && !span.contains('…')
    });
    typed.chain(in_sentences).collect()
}

/// The operator types every command of the page on troubleshooting.
#[test]
fn the_operator_can_follow_the_page() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[rules.plain, rules.operator]);
    let mut ops = listener(&server, "ops");
    let (mut followed, mut others) = (BTreeSet::new(), BTreeSet::new());
    // The last section is for programs.
    let (for_operators, _) = TROUBLE
        .split_once("\n## Errors\n")
        .expect("the section of errors");
    for line in commands_of(for_operators) {
        ops.send(line);
        let answer = ops.read();
        // A command name in a sentence: the server checks the arity first.
        if matches!(&answer, Err(error) if error.contains("wrong number of arguments")) {
            continue;
        }
        let denied = is_denied(&answer);
        let word = line.split(' ').next().unwrap_or_default();
        let of_others = match word {
            // Commands of an owner.
            "DLOCK.ACQUIRE" | "DLOCK.MACQUIRE" | "DLOCK.RELEASE" | "DLOCK.RENEW" => true,
            // A command of an administrator.
            "CONFIG" => true,
            _ => false,
        };
        assert_eq!(denied, of_others, "{line}");
        let all = if of_others {
            &mut others
        } else {
            &mut followed
        };
        all.insert(word);
    }
    for word in [
        "DLOCK.LIST",
        "DLOCK.INFO",
        "DLOCK.FORCERELEASE",
        "DLOCK.CANCEL",
        "DLOCK.GRAPH",
    ] {
        assert!(followed.contains(word), "{word}: {followed:?}");
    }
    for word in ["DLOCK.TOP", "SUBSCRIBE", "INFO", "LATENCY", "SLOWLOG"] {
        assert!(followed.contains(word), "{word}: {followed:?}");
    }
    assert!(others.contains("CONFIG"), "{others:?}");

    // The connection to ask, and the end of a hold.
    let mut c = user(&server, "app");
    c.run("DLOCK.ACQUIRE stock alice 600000");
    let mut operator = user(&server, "ops");
    let info: HashMap<String, Value> = operator.ask("DLOCK.INFO stock");
    assert!(format!("{:?}", info["holders"]).contains("addr"));
    assert_eq!(operator.ask::<u64>("DLOCK.FORCERELEASE stock alice"), 1);
    await_until("the owner learns of it", PATIENCE, || {
        c.refusal("DLOCK.RENEW stock alice 1000")
            .starts_with("NOTHELD")
    });
    for line in [
        "DEL stock",
        "SET stock x",
        "FLUSHALL",
        "CONFIG GET *",
        "SHUTDOWN NOSAVE",
    ] {
        assert_denied(&mut operator, line);
    }
}

#[test]
fn the_exporters_script_runs_and_no_other_command() {
    let rules = AclRules::of_the_page();
    let server = server_with(&[rules.exporter]);
    let mut c = user(&server, "exporter");
    let told: Vec<String> = c
        .answer(cmd("EVAL").arg(SCRIPT).arg(0))
        .map(|reply| dlock_harness::redis::from_redis_value(&reply).expect("words"))
        .expect("the script runs");
    assert!(told.contains(&"dlock_locks".to_owned()), "{told:?}");
    for line in [
        "DEL k",
        "GET k",
        "CONFIG GET *",
        "DLOCK.FORCERELEASE k",
        "DLOCK.STATS RESET",
    ] {
        assert_denied(&mut c, line);
        let words = line.replace(' ', "','");
        c.refusal(&format!("EVAL return{{redis.call('{words}')}} 0"));
    }
}
