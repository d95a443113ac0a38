//! `dlock who`, `ls`, `release` and `top`.

use super::*;
use dlock_harness::{stat, Grant};
use nix::pty::openpty;
use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

#[test]
fn who_and_ls() {
    let server = Server::start();
    let mut connection = server.connection();
    assert_eq!(
        output(&server, &["who", "job"]),
        (1, "job is free\n".to_owned(), String::new())
    );
    assert_eq!(output(&server, &["release", "job"]).0, 1);
    let (token, _): Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    connection.run("DLOCK.FAIRACQUIRE job bob 600000 CLAIM 600000");
    let _: Grant = connection.ask("DLOCK.ACQUIRE other alice 600000");
    let (code, who, _) = output(&server, &["who", "job"]);
    assert_eq!(code, 0);
    assert!(
        who.contains("held by alice for") && who.contains(&format!("token {token}")),
        "{who}"
    );
    assert!(who.contains("1. bob has had a place for"), "{who}");
    assert!(who.contains("nobody is there, kept for"), "{who}");
    let lines = |words: &[&str]| output(&server, words).1.lines().count();
    assert_eq!(
        (lines(&["ls"]), lines(&["ls", "-c"]), lines(&["ls", "o*"])),
        (2, 1, 1)
    );
    assert_eq!(output(&server, &["release", "job", "nobody"]).0, 1);
    let (code, released, _) = output(&server, &["release", "job", "alice"]);
    assert_eq!((code, &*released), (0, "1 hold ended\n"));
}

const PAGE: &str = include_str!("../../../../docs/trouble.md");

/// A line without what differs from run to run: numbers, times, addresses.
fn shape(line: &str) -> String {
    let word = |word: &str| {
        let is_of_a_run = word.starts_with(|c: char| c.is_ascii_digit())
            && !matches!(word.trim_end_matches(','), "1" | "2" | "0");
        match is_of_a_run {
            true => "…".to_owned(),
            false => word.to_owned(),
        }
    };
    let words: Vec<String> = line.split_whitespace().map(word).collect();
    // `1m 12s` are two words, and `2.3s` is one.
    words.join(" ").replace("… …", "…").replace("… …", "…")
}

/// The page's walk from an alert to the decision, with a holder that has died, types what is there and sees what is there.
#[test]
fn the_page_walks_to_the_cause() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut before = server.connection();
    let _: Grant = before.ask("DLOCK.ACQUIRE stock host-7:worker-2 600000");
    connection.run("DLOCK.FORCERELEASE stock");
    let mut gone = server.connection();
    let _: Grant = gone.ask("DLOCK.ACQUIRE stock host-7:worker-3 600000");
    drop(gone);
    let mut waiters = Vec::new();
    for (at, owner) in ["host-2:worker-1", "host-9:worker-4"].iter().enumerate() {
        let mut waiter = server.connection();
        waiter.send(&format!("DLOCK.ACQUIRE stock {owner} BLOCK 0"));
        await_until("it waits", PATIENCE, || {
            stat(&server, "places_queued") == at as u64 + 1
        });
        waiters.push(waiter);
    }
    await_until("the server knows that it has gone", PATIENCE, || {
        output(&server, &["who", "stock"]).1.contains("to end it")
    });
    let section = PAGE
        .split("\n## ")
        .find(|part| part.starts_with("Everything waits"));
    let block = section.and_then(|section| section.split("```text\n").nth(1));
    let block = block.and_then(|block| block.split("```").next());
    let block = block.expect("the page shows what is typed");
    let (mut said, mut typed) = (String::new(), 0);
    for line in block.lines() {
        if let Some(words) = line.strip_prefix("$ dlock ") {
            let words: Vec<&str> = words.split(' ').collect();
            said = output(&server, &words).1;
            typed += 1;
        } else if line != "…" {
            let shown = said.lines().any(|said| shape(said) == shape(line));
            assert!(shown, "{line}\n{said}");
        }
    }
    assert_eq!(typed, 4);
}

/// What was not ordinary, in words; and nothing where nothing was.
#[test]
fn the_log_in_words() {
    let server = Server::start();
    let mut connection = server.connection();
    let nothing = "nothing out of the ordinary has happened, as far as this server remembers\n";
    assert_eq!(output(&server, &["log"]).1, nothing);
    connection.run("DLOCK.ACQUIRE job alice 600000");
    connection.run("DLOCK.ACQUIRE job bob 1000 BLOCK 20");
    connection.refusal("DLOCK.CHECK job 1");
    connection.run("DLOCK.FORCERELEASE job");
    connection.run("DLOCK.ACQUIRE other alice 600000");
    connection.run("DLOCK.FORCERELEASE other");
    let (code, log, _) = output(&server, &["log", "job"]);
    let told: Vec<&str> = log.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!((code, told.len()), (0, 3), "{log}");
    assert!(
        told[0].contains("  job  an operator ended the hold of alice after "),
        "{log}"
    );
    assert!(told[1].ends_with("  job  refused with FENCED"), "{log}");
    assert!(
        told[2].contains("  job  bob waited for ") && told[2].ends_with("its time was up"),
        "{log}"
    );
    assert_eq!(output(&server, &["log", "-n", "1"]).1.lines().count(), 2);
}

/// The names of `--json` are those of the server and of the command line's page.
#[test]
fn json_has_the_names_of_the_page() {
    let server = Server::start();
    let mut connection = server.connection();
    let document = |words: &[&str]| -> serde_json::Value {
        let (_, said, told) = output(&server, &[words, &["--json"]].concat());
        serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {said}{told}"))
    };
    assert_eq!(document(&["who", "job"])["state"], "free");
    assert_eq!(document(&["log"]), serde_json::json!([]));
    connection.run("DLOCK.ACQUIRE job alice 600000");
    connection.run("DLOCK.FAIRACQUIRE job bob 600000 CLAIM 600000");
    let who = document(&["who", "job"]);
    assert_eq!(
        (&who["lock"], &who["state"]),
        (&"job".into(), &"held".into())
    );
    assert_eq!(who["holders"][0]["owner"], "alice");
    assert_eq!(who["queue"][0]["kind"], "absent");
    let ls = document(&["ls"]);
    assert_eq!(
        (&ls[0]["key"], &ls[0]["queued"]),
        (&"job".into(), &1.into())
    );
    let top = document(&["top", "-n", "1"]);
    assert_eq!(top["numbers"]["places_queued"], 1);
    assert_eq!(top["queued"][0]["key"], "job");
    assert_eq!(top["hot"][0]["waits"], 1);
    connection.run("DLOCK.FORCERELEASE job");
    assert_eq!(document(&["log", "job"])[0]["how"], "forced");
    let check = document(&["check"]);
    let (code, ..) = output(&server, &["check"]);
    assert_eq!(check["code"], code);
    let results = check["nodes"][0]["results"].as_array().expect("results");
    assert!(
        results.iter().any(|result| result["verdict"] == "note"),
        "{check}"
    );
}

/// A server without the module gets a sentence, whatever is asked.
#[test]
fn without_the_module() {
    let server = Server::builder().without_module().start();
    for words in [
        &["who", "job"][..],
        &["ls"],
        &["top", "-n", "1"],
        &["log"],
        &["release", "job"],
    ] {
        let (code, said, told) = output(&server, words);
        assert_eq!((code, &*said), (69, ""), "{words:?}");
        assert!(
            told.contains("the module dlock is not loaded there"),
            "{words:?}: {told}"
        );
    }
}

/// Each shell completes the words.
#[test]
fn completion_knows_the_words() {
    let server = Server::start();
    for shell in ["bash", "zsh", "fish"] {
        let (code, said, _) = output(&server, &["complete", shell]);
        assert_eq!(code, 0);
        for word in ["who", "log", "json", "sentinel"] {
            assert!(said.contains(word), "{shell}: {word}");
        }
    }
}

/// The session of a holder or of a wait is shown, and whether its program keeps it.
#[test]
fn sessions_are_shown() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.run("DLOCK.ACQUIRE job app/1 600000 IN app");
    connection.run("DLOCK.ACQUIRE job app/2 600000 BLOCK 0 IN app");
    let who = output(&server, &["who", "job"]).1;
    let unkept = ", in session app, which nobody has kept for ";
    let holder = who.lines().nth(1).expect("a holder");
    assert!(holder.contains(unkept), "{who}");
    let place = who.lines().last().expect("a place");
    let waits = "1. app/2 has had a place for";
    assert!(place.contains(waits) && place.contains(unkept), "{who}");
    let line = |words: &[&str], of: &str| {
        let shown = output(&server, words).1;
        let found = shown.lines().find(|line| line.contains(of));
        found.map(str::to_owned).unwrap_or(shown)
    };
    let top = ["top", "-n", "1"];
    for words in [&top[..], &["ls"]] {
        let listed = line(words, "held by app/1");
        assert!(
            listed.contains(unkept) && listed.contains("; 1 queued, the first for"),
            "{listed}"
        );
    }
    let counted = line(&top, "session: ");
    assert_eq!(counted, "1 session: 1 not kept; 1 row not seen");
    connection.run("DLOCK.SESSION job app 600000");
    for words in [&top[..], &["ls"]] {
        let listed = line(words, "held by app/1");
        assert!(listed.contains(", in session app; 1 queued"), "{listed}");
    }
    let counted = line(&top, "session: ");
    assert_eq!(counted, "1 session: 0 not kept; 1 row not seen");
    let who = output(&server, &["who", "job"]).1;
    assert!(
        who.contains("renewed by the server, in session app, token"),
        "{who}"
    );
    assert!(
        who.contains("1. app/2 waits for") && who.contains(", in session app"),
        "{who}"
    );
}

/// A waiter is shown as waiting, however it waits: blocked or in a session, with a ticket or without.
#[test]
fn whoever_waits_is_shown() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    let mut waiters = Vec::new();
    connection.run("DLOCK.SESSION job app 600000");
    for (at, request) in [
        "ACQUIRE job blocked 600000 BLOCK 0",
        "FAIRACQUIRE job fair 600000 BLOCK 0 CLAIM 5000",
        "ACQUIRE job session 600000 BLOCK 0 IN app",
        "FAIRACQUIRE job fair-session 600000 BLOCK 0 IN app",
    ]
    .iter()
    .enumerate()
    {
        let mut waiter = server.connection();
        waiter.send(&format!("DLOCK.{request}"));
        await_until("it waits", PATIENCE, || {
            stat(&server, "places_queued") == at as u64 + 1
        });
        waiters.push(waiter);
    }
    connection.run("DLOCK.FAIRACQUIRE job absent 600000 CLAIM 600000");
    let (_, who, _) = output(&server, &["who", "job"]);
    for (at, owner) in ["blocked", "fair", "session", "fair-session"]
        .iter()
        .enumerate()
    {
        assert!(
            who.contains(&format!("{}. {owner} waits for ", at + 1)),
            "{who}"
        );
    }
    assert!(who.contains("5. absent has had a place"), "{who}");
    let (_, top, _) = output(&server, &["top", "-n", "1"]);
    assert!(top.contains("5 queued; 2 connections wait"), "{top}");
}

/// Returns the line about an owner.
fn line_of<'a>(who: &'a str, owner: &str) -> &'a str {
    let found = who.lines().find(|line| line.contains(owner));
    found.expect("everybody is shown")
}

/// The limit and the permits of a holder and of a request are shown: a smaller limit holds up the others.
#[test]
fn limits_and_permits_are_shown() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE memory alice 600000 LIMIT 16 PERMITS 8");
    let _: Grant = connection.ask("DLOCK.ACQUIRE memory bob 600000 LIMIT 16");
    connection.run("DLOCK.FAIRACQUIRE memory carol 600000 LIMIT 16 PERMITS 12 CLAIM 600000");
    let mut waiter = server.connection();
    waiter.send("DLOCK.FAIRACQUIRE memory dave 600000 LIMIT 16 PERMITS 3 BLOCK 0");
    await_until("it waits", PATIENCE, || stat(&server, "places_queued") == 2);
    let (_, who, _) = output(&server, &["who", "memory"]);
    for (owner, share) in [
        ("alice", ", 8 permits of 16"),
        ("bob", ", limit 16,"),
        ("carol", ", 12 permits of 16"),
        ("dave", ", 3 permits of 16"),
    ] {
        assert!(line_of(&who, owner).contains(share), "{who}");
    }
    let _: Grant = connection.ask("DLOCK.ACQUIRE table alice 600000 SHARED");
    connection.run("DLOCK.FAIRACQUIRE table bob 600000 CLAIM 600000");
    let (_, who, _) = output(&server, &["who", "table"]);
    assert!(line_of(&who, "alice").contains(", shared,"), "{who}");
    assert!(!line_of(&who, "bob").contains("limit"), "{who}");
}

/// In a terminal: it shows what is contended, and ends by `q`.
#[test]
fn top_in_a_terminal() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE hot alice 600000");
    connection.run("DLOCK.FAIRACQUIRE hot bob 600000 CLAIM 600000");
    let (_, plain, _) = output(&server, &["top", "-n", "1"]);
    assert!(
        plain.contains("1 lock, 1 holder, 1 queued") && plain.contains("held by alice"),
        "{plain}"
    );
    assert!(plain.contains("0 connections wait"), "{plain}");
    let pty = openpty(None, None).expect("a terminal");
    let end =
        |file: &std::os::fd::OwnedFd| Stdio::from(file.try_clone().expect("a spare descriptor"));
    let mut command = dlock(&server, &["top", "-d", "100ms"]);
    command
        .stdin(end(&pty.slave))
        .stdout(end(&pty.slave))
        .stderr(end(&pty.slave));
    let mut top = command.spawn().expect("dlock can be started");
    drop((command, pty.slave));
    let mut terminal = File::from(pty.master);
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    let began = Instant::now();
    while seen.matches("held by alice").count() < 2 && began.elapsed() < PATIENCE {
        let count = terminal.read(&mut buffer).expect("it shows something");
        let bytes: Vec<u8> = buffer.iter().copied().take(count).collect();
        seen += &String::from_utf8_lossy(&bytes);
    }
    assert!(seen.matches("held by alice").count() >= 2, "{seen}");
    terminal.write_all(b"q").expect("it reads keys");
    // What it still shows has to go somewhere.
    let reader =
        thread::spawn(move || while terminal.read(&mut buffer).is_ok_and(|count| count > 0) {});
    assert!(top.wait().expect("an end").success());
    reader.join().expect("the terminal is closed");
}
