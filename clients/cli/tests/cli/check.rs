//! `dlock check`.

use super::*;
use dlock_harness::redis::cmd;
use dlock_harness::{cluster, Sentinel, ServerBuilder, Version, Watch, PRIMARY};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A server of a group with two replicas, in the recommended setting.
fn member() -> ServerBuilder {
    let words = [
        "replicas",
        "2",
        "quarantine-ms",
        "500",
        "max-lease-ms",
        "400",
        "default-lease-ms",
        "400",
    ];
    let builder = words.iter().fold(Server::builder(), |builder, word| {
        builder.module_argument(word)
    });
    builder.config("appendonly", "yes")
}

/// The lines of a check that are not good, without their marks.
fn complaints(mark: &str, said: &str) -> Vec<String> {
    let lines = said
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(mark));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// What there is to note of every server that is not protected by a password, and of one that is too old.
fn is_expected(note: &str) -> bool {
    note.starts_with("anybody who can connect") || note.contains("is out of support")
}

/// A fault of the server that no group can help: its release lacks a fix.
fn is_of_release(complaint: &str) -> bool {
    complaint.contains("CVE-2026-23479")
}

#[test]
fn check_reads_a_group() {
    let (primary, one, two) = (member().start(), member().start(), member().start());
    for replica in [&one, &two] {
        replica.replica_of(&primary);
        replica.wait_in_sync(&primary);
    }
    let checked = |words: &[&str]| output(&primary, words);
    let bad = |said: &str| {
        let all = complaints("BAD", said).into_iter();
        all.filter(|words| !is_of_release(words))
            .collect::<Vec<_>>()
    };
    await_until("nothing is wrong", PATIENCE, || {
        let (_, said, _) = checked(&["check"]);
        bad(&said).is_empty()
            && complaints("note", &said)
                .iter()
                .all(|note| is_expected(note))
    });
    let (code, good, _) = checked(&["check"]);
    assert_eq!(good.matches("(replica, dlock ").count(), 2, "{good}");
    assert_eq!(complaints("?", &good), [""; 0], "{good}");
    assert_eq!(code, if good.contains("BAD") { 1 } else { 3 }, "{good}");
    assert!(good.ends_with("notes.\n"), "{good}");
    // From a replica it finds the primary.
    assert_eq!(output(&one, &["check"]), (code, good, String::new()));
    for (server, wrong, again, words) in [
        (
            &two,
            "CONFIG SET dlock.quarantine-ms 700",
            "CONFIG SET dlock.quarantine-ms 500",
            "it differs from the primary: dlock.quarantine-ms is 700 here and 500 there",
        ),
        (
            &two,
            "CONFIG SET dlock.max-lease-ms 300",
            "CONFIG SET dlock.max-lease-ms 400",
            "it differs from the primary: dlock.max-lease-ms is 300 here and 400 there",
        ),
        (
            &one,
            "CONFIG SET maxmemory-policy allkeys-lru",
            "CONFIG SET maxmemory-policy noeviction",
            "locks can be evicted",
        ),
        (
            &primary,
            "CONFIG SET dlock.replicas 3",
            "CONFIG SET dlock.replicas 2",
            "dlock.replicas is 3, and 2 are connected",
        ),
    ] {
        let mut connection = server.connection();
        connection.run("CONFIG SET maxmemory 1gb");
        connection.run(wrong);
        let (code, said, _) = checked(&["check"]);
        assert_eq!(code, 1, "{said}");
        assert!(
            bad(&said).iter().any(|bad| bad.contains(words)),
            "{wrong}: {said}"
        );
        connection.run(again);
    }
    let longest = |ms: u64| {
        for server in [&primary, &one, &two] {
            let line = format!("CONFIG SET dlock.max-lease-ms {ms}");
            server.connection().run(&line);
        }
    };
    longest(500);
    let (_, said, _) = checked(&["check"]);
    let notes = complaints("note", &said);
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("a lease can be as long as")),
        "{said}"
    );
    longest(400);
    let sentinel = Sentinel::start(&Watch {
        port: primary.port(),
        quorum: 1,
        down_after_ms: 60_000,
        program: None,
    });
    let at = format!("127.0.0.1:{}", sentinel.port());
    let (code, said, _) = checked(&["--sentinel", &at, "--primary", PRIMARY, "check"]);
    assert!(
        code == 1 && said.contains("1 Sentinel: three or more"),
        "{said}"
    );
}

/// Connections that the server ends because they say nothing take their holds with them.
#[test]
fn check_reads_the_timeout_of_connections() {
    let server = Server::start();
    for (timeout, mark, words) in [
        (
            0,
            "ok",
            "connections that say nothing are kept (timeout is 0)",
        ),
        (2, "BAD", "timeout is 2: between two heartbeats"),
        (
            300,
            "note",
            "timeout is 300: a connection that says nothing for 300 s is ended",
        ),
    ] {
        server
            .connection()
            .run(&format!("CONFIG SET timeout {timeout}"));
        let (_, said, _) = output(&server, &["check"]);
        let lines = complaints(mark, &said);
        assert!(lines.iter().any(|line| line.starts_with(words)), "{said}");
    }
}

/// A user who has just started a pair reads why it grants nothing, and for how long.
#[test]
fn check_says_how_long_nothing_is_granted() {
    let one = |builder: ServerBuilder| {
        let words = ["replicas", "1", "quarantine-ms", "600000"];
        let with = |builder: ServerBuilder, word: &&str| builder.module_argument(word);
        words.iter().fold(builder, with).start()
    };
    let (primary, replica) = (one(Server::builder()), one(Server::builder()));
    replica.replica_of(&primary);
    replica.wait_in_sync(&primary);
    let (_, said, _) = output(&primary, &["check"]);
    assert!(
        said.contains("1 replica is connected, as dlock.replicas says"),
        "{said}"
    );
    let notes = complaints("note", &said);
    let closed: Vec<&String> = notes
        .iter()
        .filter(|note| note.contains("grants nothing"))
        .collect();
    let [closed] = closed.as_slice() else {
        panic!("{said}")
    };
    let left = closed
        .rsplit_once("wait ")
        .and_then(|(_, left)| left.strip_suffix(" s"));
    let left: u64 = left.expect("how long").parse().expect("seconds");
    assert!((1..=600).contains(&left), "{said}");
}

/// Replicas that have just been started count late: that is no fault, and passes.
#[test]
fn check_says_when_replicas_count() {
    let one = |builder: ServerBuilder| {
        let words = ["replicas", "2", "quarantine-ms", "600000"];
        let with = |builder: ServerBuilder, word: &&str| builder.module_argument(word);
        let builder = builder.config("appendonly", "yes");
        words.iter().fold(builder, with).start()
    };
    let [primary, first, second] = [(); 3].map(|()| one(Server::builder()));
    for replica in [&first, &second] {
        replica.replica_of(&primary);
        replica.wait_in_sync(&primary);
    }
    let (code, said, _) = output(&primary, &["check"]);
    let bad = complaints("BAD", &said).into_iter();
    let bad: Vec<String> = bad.filter(|words| !is_of_release(words)).collect();
    assert_eq!(bad, [""; 0], "{said}");
    assert_eq!(code, if said.contains("BAD") { 1 } else { 3 }, "{said}");
    let late =
        "0 replicas count, and 1 must confirm: after a start or a full copy they count late; wait ";
    let notes = complaints("note", &said);
    assert!(notes.iter().any(|note| note.starts_with(late)), "{said}");
}

/// A backlog that a replica outlives only for seconds, at the present rate of writes.
#[test]
fn check_compares_the_backlog_with_the_writes() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    replica.wait_in_sync(&primary);
    let mut connection = primary.connection();
    connection.run("CONFIG SET repl-backlog-size 16384");
    let of = |mark: &str| {
        let (_, said, _) = output(&primary, &["check"]);
        let found = complaints(mark, &said).into_iter();
        let found = found.filter(|line| line.starts_with("repl-backlog-size"));
        found.collect::<Vec<_>>().join("\n")
    };
    assert!(of("ok").ends_with("lasts for a minute or more of what is written"));
    let ends = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ends, value) = (ends.clone(), "x".repeat(1_000));
        thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                connection.run(&format!("SET written {value}"));
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let note = of("note");
    ends.store(true, Ordering::Relaxed);
    writer.join().expect("it has written");
    assert!(note.contains(" s of what is written now"), "{note}");
}

/// Without an AOF, a server begins from the file that a full copy or a person has left. Then it has forgotten what it confirmed.
#[test]
fn check_finds_what_a_replica_would_begin_from() {
    let member = || member().config("appendonly", "no");
    let server = member().config("rdb-del-sync-files", "no").start();
    let mut connection = server.connection();
    let of = |mark: &str| {
        let (_, said, _) = output(&server, &["check"]);
        complaints(mark, &said).join("\n")
    };
    assert!(of("BAD").contains("Set appendonly yes, or rdb-del-sync-files yes"));
    connection.run("CONFIG SET rdb-del-sync-files yes");
    assert!(!of("BAD").contains("appendonly"), "{}", of("BAD"));
    assert!(of("note").contains("needs a full copy"));
    connection.run("SAVE");
    assert!(of("BAD").contains("dump.rdb is there"), "{}", of("BAD"));
    connection.ask_command::<()>(cmd("CONFIG").arg("SET").arg("save").arg("900 1"));
    assert!(of("BAD").contains("save without appendonly"));
    connection.run("CONFIG SET appendonly yes");
    assert!(of("ok").contains("appendonly is on"));
    // Without confirmations nothing is forgotten that a quarantine does not cover.
    let server = Server::start();
    let (_, said, _) = output(&server, &["check"]);
    assert!(
        !complaints("BAD", &said).join(" ").contains("appendonly"),
        "{said}"
    );
}

/// It ends when all replicas count, also those that have just been started; until then it prints what is missing.
#[test]
fn check_waits_until_all_replicas_count() {
    let (primary, one) = (member().start(), member().start());
    one.replica_of(&primary);
    let (code, said, told) = output(&primary, &["check", "--wait=300ms"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(" of 2 replicas count"), "{said}");
    assert!(told.contains("gave up"), "{told}");
    let waiting = Running::start(&one, &["check", "--wait"]);
    let two = member().start();
    two.replica_of(&primary);
    let (code, said, _) = waiting.end();
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with("all replicas count\n"), "{said}");
    assert_eq!(dlock_harness::stat(&primary, "replicas_counting"), 2);
    // Counted once, they count at once.
    assert_eq!(
        output(&primary, &["check", "--wait"]).1,
        "all replicas count\n"
    );
    // The operator of docs/operations.md may not read the setting, and INFO tells it all the same.
    primary
        .connection()
        .run("ACL SETUSER ops on >secret -@all +@connection +info");
    let url = format!("redis://ops:secret@127.0.0.1:{}", primary.port());
    let as_ops = |words: &[&str]| super::said(dlock_at(&url, words).output().expect("an end"));
    assert_eq!(as_ops(&["check", "--wait"]).1, "all replicas count\n");
    two.connection().run("REPLICAOF NO ONE");
    await_until("it is gone", PATIENCE, || {
        dlock_harness::stat(&primary, "replicas_connected") == 1
    });
    let (code, said, _) = as_ops(&["check", "--wait=0"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("1 of 2 or more replicas count"), "{said}");
    two.replica_of(&primary);
    assert_eq!(as_ops(&["check", "--wait"]).0, 0);
    // After a full copy a replica counts late.
    for server in [&primary, &two] {
        server
            .connection()
            .run("CONFIG SET dlock.quarantine-ms 600000");
    }
    two.connection().run("REPLICAOF NO ONE");
    two.connection().run("SET x y");
    two.replica_of(&primary);
    let (code, said, _) = output(&primary, &["check", "--wait=0"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("1 of 2 replicas count; a start or a full copy"),
        "{said}"
    );
    // Without confirmations there is nothing to wait for.
    let alone = Server::start();
    let (code, _, told) = output(&alone, &["check", "--wait"]);
    assert_eq!(code, 69, "{told}");
    assert!(told.contains("dlock.replicas is 0"), "{told}");
}

/// Whatever cannot be read is counted, and has an exit code of its own: it is not taken for good.
#[test]
fn check_counts_what_it_cannot_read() {
    let server = Server::builder().config("appendonly", "yes").start();
    let mut connection = server.connection();
    connection.run("ACL SETUSER looker on >secret +ping +info +role +client");
    let url = format!("redis://looker:secret@127.0.0.1:{}", server.port());
    let (code, said, _) = said(dlock_at(&url, &["check"]).output().expect("an end"));
    let unchecked = complaints("?", &said);
    for words in ["MODULE LIST", "CONFIG GET", "ACL LIST", "a failover needs"] {
        assert!(
            unchecked.iter().any(|line| line.contains(words)),
            "{words}: {said}"
        );
    }
    assert!(
        said.ends_with(&format!(
            "{} not checked{}.\n",
            unchecked.len(),
            match complaints("note", &said).len() {
                0 => String::new(),
                1 => ", 1 note".to_owned(),
                notes => format!(", {notes} notes"),
            }
        )) || said.contains("CVE-2026-23479"),
        "{said}"
    );
    assert_eq!(
        code,
        if complaints("BAD", &said).is_empty() {
            2
        } else {
            1
        },
        "{said}"
    );
    // Nothing at all can be read.
    connection.run("ACL SETUSER nobody on >secret +ping");
    let url = format!("redis://nobody:secret@127.0.0.1:{}", server.port());
    assert_eq!(
        super::said(dlock_at(&url, &["check"]).output().expect("an end")).0,
        69
    );
}

#[allow(dead_code)]
#[path = "../../src/patches.rs"]
mod patches;

/// The rows of the page's table: a series, and the release with the fix if there is one.
fn patch_levels() -> Vec<(patches::Product, String, Option<String>)> {
    const INSTALL: &str = include_str!("../../../../docs/install.md");
    let table = INSTALL
        .split("| server | fixed in |\n")
        .nth(1)
        .expect("the table");
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let row = |row: &str| {
        let (server, fixed) = row
            .trim_matches(['|', ' '])
            .split_once(" | ")
            .expect("two cells");
        let (product, series) = server.split_once(' ').expect("a server");
        let product = match product {
            "Redis" => patches::Product::Redis,
            _ => patches::Product::Valkey,
        };
        let fixed = fixed
            .starts_with(&format!("{series}."))
            .then(|| fixed.to_owned());
        (product, series.to_owned(), fixed)
    };
    rows.map(row).collect()
}

#[test]
fn check_knows_the_releases_of_the_page() {
    use patches::{level, Level};
    let rows = patch_levels();
    assert_eq!(rows.len(), 11);
    for (product, series, fixed) in rows {
        let of = |patch: u32| level(product, &format!("{series}.{patch}"));
        let Some(fixed) = fixed else {
            assert!(!matches!(of(99), Level::Fixed | Level::Unknown), "{series}");
            continue;
        };
        let patch: u32 = fixed
            .rsplit('.')
            .next()
            .expect("a number")
            .parse()
            .expect("a number");
        assert_eq!(of(patch), Level::Fixed, "{fixed}");
        assert_eq!(of(patch + 1), Level::Fixed, "{fixed}");
        if let Some(before) = patch.checked_sub(1) {
            assert_eq!(of(before), Level::FixedIn(format!("{product:?} {fixed}")));
        }
    }
    assert_eq!(level(patches::Product::Redis, "8.8.0"), Level::Fixed);
    assert_eq!(level(patches::Product::Valkey, "9.2.0"), Level::Fixed);
    assert_eq!(
        level(patches::Product::Redis, "255.255.255-rc1"),
        Level::Unknown
    );
}

/// The log has the version as a text, `MODULE LIST` as a number. Of a commit the number has five digits.
#[test]
fn check_names_the_version_that_the_module_logs() {
    let server = Server::start();
    let log = server.log();
    let logged = log.lines().find_map(|line| {
        let (_, rest) = line.split_once("dlock ")?;
        rest.strip_suffix(" is ready")
    });
    let logged = logged.expect("the module's first line");
    let logged = match logged.split_once('+') {
        Some((version, commit)) => format!("{version}+{}", &commit[..5]),
        // A build of a tree that is not released, without a commit.
        None if logged.contains('-') => format!("{logged}+00000"),
        None => logged.to_owned(),
    };
    let (_, said, _) = output(&server, &["check"]);
    assert!(
        said.contains(&format!("(primary, dlock {logged})")),
        "{said}"
    );
}

/// The server that runs is one of them, whichever it is.
#[test]
fn check_judges_the_release_of_a_server() {
    let server = Server::start();
    let Version {
        major,
        minor,
        patch,
        ..
    } = server.version();
    let series = format!("{major}.{minor}");
    let name = format!("{:?}", server.version().product);
    let (_, _, fixed) = patch_levels()
        .into_iter()
        .find(|(product, of, _)| format!("{product:?}") == name && *of == series)
        .expect("a row of the page");
    let (_, said, _) = output(&server, &["check"]);
    let has = fixed.as_ref().is_some_and(|fixed| {
        patch
            >= fixed
                .rsplit('.')
                .next()
                .expect("a number")
                .parse()
                .expect("a number")
    });
    let expected = match (has, fixed, series.as_str()) {
        (true, _, _) => format!("ok    {name} {series}.{patch} has the fix of CVE-2026-23479"),
        (false, Some(fixed), _) => format!("CVE-2026-23479): {name} {fixed} has the fix."),
        (false, None, "7.0") => format!("note  {name} {series}.{patch} is out of support"),
        (false, None, _) => "CVE-2026-23479): Redis 8.2.6 has the fix.".to_owned(),
    };
    assert!(said.contains(&expected), "{expected}: {said}");
}

/// One line in the server's own file loads the module. Two of them, or one in an included file, keep the server from starting.
#[test]
fn check_reads_the_lines_that_load_the_module() {
    let own = Server::start();
    let directory = own.dir().join("snippets");
    std::fs::create_dir(&directory).expect("a directory");
    let snippet = directory.join("dlock.conf");
    let module = dlock_harness::module_path()
        .canonicalize()
        .expect("the module");
    let line = format!("loadmodule \"{}\"\n", module.display());
    std::fs::write(&snippet, &line).expect("a file");
    let complains = |server: &Server, mark: &str, words: &str| {
        let (_, said, _) = output(server, &["check"]);
        let all = complaints(mark, &said);
        assert!(
            all.iter().any(|line| line.contains(words)),
            "{words}: {said}"
        );
    };
    complains(&own, "ok", "loads the module once");
    own.connection().run("CONFIG REWRITE");
    complains(&own, "ok", "loads the module once");
    let include = |path: &str| {
        Server::builder()
            .without_module()
            .config("include", path)
            .start()
    };
    let server = include(&format!("\"{}\"", snippet.display()));
    complains(&server, "BAD", "loads the module by including");
    server.connection().run("CONFIG REWRITE");
    complains(&server, "BAD", "loads the module 2 times");
    let many = include(&format!("\"{}/*.conf\"", directory.display()));
    complains(&many, "?", "by what it includes: include ");
    let late = Server::builder().without_module().start();
    late.connection()
        .run(&format!("MODULE LOAD {}", module.display()));
    complains(&late, "note", "does not load the module");
}

/// A replica that has not got the module acknowledges what it does not keep.
#[test]
fn check_looks_into_each_replica() {
    let primary = member().start();
    let bare = Server::builder().without_module().start();
    // The primary tells an address where nobody is.
    let hidden = member().config("replica-announce-port", "1").start();
    for replica in [&bare, &hidden] {
        replica.replica_of(&primary);
        replica.wait_in_sync(&primary);
    }
    let (code, said, _) = output(&primary, &["check"]);
    assert_eq!(code, 1, "{said}");
    let bad = complaints("BAD", &said);
    assert!(
        bad.iter()
            .any(|bad| bad.contains("confirms what it does not keep")),
        "{said}"
    );
    assert!(said.contains("(replica, without dlock)"), "{said}");
    assert!(
        complaints("?", &said)
            .iter()
            .any(|line| line.contains("127.0.0.1:1")),
        "{said}"
    );
}

/// A replica behind a replica: its primary shows nothing of it, and where `dlock.replicas` is set the link is ended at once.
#[test]
fn check_finds_replicas_behind_replicas() {
    let [primary, middle, last] = [(); 3].map(|()| Server::start());
    middle.replica_of(&primary);
    middle.wait_in_sync(&primary);
    last.replica_of(&middle);
    last.wait_in_sync(&middle);
    let (_, said, _) = output(&primary, &["check"]);
    assert!(
        said.contains(&format!("127.0.0.1:{} (replica of a replica)", last.port())),
        "{said}"
    );
    assert!(
        complaints("note", &said)
            .iter()
            .any(|note| note.contains("chained")),
        "{said}"
    );
    // Asked itself, it leads to the primary, and says by which way.
    let (code, said, _) = output(&last, &["check"]);
    let chained = format!("chained: it replicates from 127.0.0.1:{}", middle.port());
    assert!(
        complaints("BAD", &said)
            .iter()
            .any(|bad| bad.starts_with(&chained)),
        "{said}"
    );
    assert_eq!(code, 1);

    let [primary, middle, last] = [(); 3].map(|()| member().start());
    for replica in [&middle, &last] {
        replica.replica_of(&primary);
        replica.wait_in_sync(&primary);
    }
    let sentinel = Sentinel::start(&Watch {
        port: primary.port(),
        quorum: 1,
        down_after_ms: 60_000,
        program: None,
    });
    await_until("it knows both", PATIENCE, || sentinel.knows() == (0, 2));
    // The replica refuses it, so the two are never in sync.
    last.connection()
        .run(&format!("REPLICAOF 127.0.0.1 {}", middle.port()));
    let at = format!("127.0.0.1:{}", sentinel.port());
    let checked = || {
        output(
            &primary,
            &["--sentinel", &at, "--primary", PRIMARY, "check"],
        )
        .1
    };
    let chained = format!("chained: it replicates from 127.0.0.1:{}", middle.port());
    await_until("the chain is seen", PATIENCE, || {
        complaints("BAD", &checked())
            .iter()
            .any(|bad| bad.starts_with(&chained))
    });
}

/// It has never met another node, and does not know its own host.
#[test]
fn check_reads_a_cluster_of_one_node() {
    let node = member().cluster().start();
    node.serve_all_slots();
    let nodes: String = node.connection().ask("CLUSTER NODES");
    assert!(nodes.contains(" :"), "{nodes}");
    let (code, said, error) = output(&node, &["check"]);
    assert_eq!((code, error.as_str()), (1, ""), "{said}");
    let primary = format!("127.0.0.1:{} (primary, dlock ", node.port());
    assert!(said.starts_with(&primary), "{said}");
    let (code, said, error) = output(&node, &["check", "--wait=0"]);
    assert_eq!(code, 1, "{said} {error}");
    assert!(said.contains("0 of 2 replicas count"), "{said}");
}

/// The slots of a primary that has failed are served by nobody until a replica takes over.
#[test]
fn check_reports_a_failed_primary_of_a_cluster() {
    let node = || member().cluster().start();
    let mut nodes = vec![node(), node(), node()];
    cluster::divide_slots(&nodes);
    cluster::join(&nodes, &[]);
    let last = nodes.pop().expect("three");
    let at = format!("127.0.0.1:{}", last.port());
    for node in &nodes {
        node.connection()
            .run("CONFIG SET cluster-node-timeout 1000");
    }
    drop(last);
    await_until("the others know it", PATIENCE, || {
        let nodes: String = nodes[0].connection().ask("CLUSTER NODES");
        nodes.contains("master,fail ")
    });
    let (code, said, _) = output(&nodes[0], &["check"]);
    assert_eq!(code, 1, "{said}");
    let failed = "BAD   the cluster says that it has failed, and nobody serves its slots";
    assert!(
        said.contains(&format!("{at} (primary)\n  {failed}")),
        "{said}"
    );
    let (code, said, _) = output(&nodes[0], &["check", "--wait=1s"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("{at}: the cluster says")), "{said}");
}
