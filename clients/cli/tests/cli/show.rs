//! `dlock who`, `ls`, `release` and `top`.

use super::*;
use dlock_integration::{stat, Grant};
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
    assert_eq!(output(&server, &["release", "job", "alice"]).0, 0);
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
        assert!(listed.contains(&format!("1 queued{unkept}")), "{listed}");
    }
    let counted = line(&top, "sessions");
    assert_eq!(counted, "1 sessions: 1 not kept; 1 rows not seen");
    connection.run("DLOCK.SESSION job app 600000");
    for words in [&top[..], &["ls"]] {
        let listed = line(words, "held by app/1");
        assert!(listed.ends_with("1 queued, in session app"), "{listed}");
    }
    let counted = line(&top, "sessions");
    assert_eq!(counted, "1 sessions: 0 not kept; 1 rows not seen");
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

/// Whoever waits is shown as waiting, in whatever way: blocked or in a session, with a ticket or without.
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

/// The permits of a holder and of a request are shown where they are several.
#[test]
fn permits_are_shown() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE memory alice 600000 LIMIT 16 PERMITS 8");
    let _: Grant = connection.ask("DLOCK.ACQUIRE memory bob 600000 LIMIT 16");
    connection.run("DLOCK.FAIRACQUIRE memory carol 600000 LIMIT 16 PERMITS 12 CLAIM 600000");
    let mut waiter = server.connection();
    waiter.send("DLOCK.FAIRACQUIRE memory dave 600000 LIMIT 16 PERMITS 3 BLOCK 0");
    await_until("it waits", PATIENCE, || stat(&server, "places_queued") == 2);
    let (_, who, _) = output(&server, &["who", "memory"]);
    let line = |of: &str| {
        let found = who.lines().find(|line| line.contains(of));
        found.expect("everybody is shown").to_owned()
    };
    for (owner, permits) in [
        ("alice", ", 8 permits"),
        ("carol", ", 12 permits"),
        ("dave", ", 3 permits"),
    ] {
        assert!(line(owner).contains(permits), "{who}");
    }
    assert!(!line("bob").contains("permits"), "{who}");
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
        plain.contains("1 locks, 1 holders, 1 queued") && plain.contains("held by alice"),
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
