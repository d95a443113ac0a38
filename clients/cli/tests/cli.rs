//! `dlock` as a shell starts it, against real servers.

use dlock_integration::{
    await_until, is_held, stat, stop, Ask, Grant, Sentinel, Server, ServerBuilder, Version, Watch,
    PATIENCE, PRIMARY,
};
use nix::pty::openpty;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// `dlock` with these words, at this server.
fn dlock(server: &Server, words: &[&str]) -> Command {
    dlock_at(&format!("redis://127.0.0.1:{}", server.port()), words)
}

fn dlock_at(url: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.args(["--url", url]);
    command.args(words).stdin(Stdio::null());
    for name in ["DLOCK_URL", "DLOCK_SENTINEL", "REDISCLI_AUTH"] {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end.
fn output(server: &Server, words: &[&str]) -> (i32, String, String) {
    said(dlock(server, words).output().expect("dlock can be started"))
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = output.status.code().expect("dlock has a code of its own");
    (code, text(output.stdout), text(output.stderr))
}

/// A run that goes on. It does not outlive the test.
struct Running(Option<Child>);

impl Running {
    fn start(server: &Server, words: &[&str]) -> Running {
        Running::spawn(dlock(server, words))
    }

    fn spawn(mut command: Command) -> Running {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("dlock can be started")))
    }

    fn pid(&self) -> Pid {
        let child = self.0.as_ref().expect("it was not waited for");
        Pid::from_raw(child.id() as i32)
    }

    fn stop_and_go_on(&self) {
        stop(self.pid());
        kill(self.pid(), Signal::SIGCONT).expect("it is there");
    }

    fn end(mut self) -> (i32, String, String) {
        let child = self.0.take().expect("it was not waited for");
        said(child.wait_with_output().expect("an end"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn await_held(server: &Server, lock: &str) {
    let mut connection = server.connection();
    await_until("it is held", PATIENCE, || {
        holder(&mut connection, lock).is_some()
    });
}

/// Who holds it, and for how many milliseconds more.
fn holder(connection: &mut impl Ask, lock: &str) -> Option<(String, u64)> {
    type Listed = (String, Option<String>, u64, u64, Option<u64>);
    let (_, locks): (String, Vec<Listed>) = connection.ask(&format!("DLOCK.LIST 0 MATCH {lock}"));
    let (_, owner, _, _, left) = locks.into_iter().next()?;
    owner.zip(left)
}

#[test]
fn the_code_is_the_commands_own() {
    let server = Server::start();
    let script = "echo $DLOCK_LOCK; test $(redis-cli -p $PORT DLOCK.GUARD job $DLOCK_TOKEN SET done yes) = OK; exit 7";
    let mut run = dlock(&server, &["run", "job", "--", "sh", "-c", script]);
    let (code, out, error) = said(
        run.env("PORT", server.port().to_string())
            .output()
            .expect("an end"),
    );
    assert_eq!((code, out.as_str(), error.as_str()), (7, "job\n", ""));
    let mut connection = server.connection();
    assert_eq!(connection.ask::<String>("GET done"), "yes");
    assert!(holder(&mut connection, "job").is_none());
    assert_eq!(
        output(&server, &["run", "job", "--", "sh", "-c", "kill -9 $$"]).0,
        137
    );
    assert_eq!(
        output(&server, &["run", "job", "--", "/nobody/knows/this"]).0,
        127
    );
    assert_eq!(output(&server, &["run", "job", "--", "/dev/null"]).0, 126);
    assert!(holder(&mut connection, "job").is_none());
}

#[test]
fn who_finds_it_held_says_by_whom() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    let held = (1, String::new(), "dlock: job is held by alice\n".to_owned());
    assert_eq!(output(&server, &["run", "-n", "job", "--", "true"]), held);
    let began = Instant::now();
    assert_eq!(
        output(&server, &["run", "-w", "300ms", "job", "--", "true"]),
        held
    );
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        output(&server, &["run", "-qn", "-E", "9", "job", "--", "true"]),
        (9, String::new(), String::new())
    );
    // None of them has left a place behind.
    assert_eq!(connection.ask::<u64>("DLOCK.RELEASE job alice"), 0);
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    // One that waits is next, also when it was stopped (Ctrl-Z) and goes on: it has nothing to say of that.
    let waiter = Running::start(&server, &["run", "-w", "1min", "job", "--", "echo", "mine"]);
    server.await_blocked_clients(1);
    waiter.stop_and_go_on();
    connection.run("DLOCK.RELEASE job alice");
    assert_eq!(waiter.end(), (0, "mine\n".to_owned(), String::new()));
}

/// A job that several machines start at the same time, and that one of them is done with before another one's clock has come.
#[test]
fn a_short_job_keeps_its_lock() {
    let server = Server::start();
    let mut connection = server.connection();
    let words = [
        "run",
        "-n",
        "--at-least",
        "5min",
        "job",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    assert_eq!(output(&server, &words).0, 3);
    let (_, left) = holder(&mut connection, "job").expect("it is held");
    assert!((200_000..=300_000).contains(&left), "{left}");
    assert_eq!(output(&server, &words).0, 1);
    assert_eq!(stat(&server, "sessions"), 0);
    assert_eq!(output(&server, &["release", "job"]).0, 0);
    let words = [
        "run",
        "-n",
        "--at-least",
        "1ms",
        "job",
        "--",
        "sleep",
        "0.1",
    ];
    assert_eq!(output(&server, &words).0, 0);
    assert!(holder(&mut connection, "job").is_none());
}

#[test]
fn sharing_and_counting() {
    let server = Server::start();
    let one = Running::start(
        &server,
        &["run", "--limit", "2", "slots", "--", "sleep", "100"],
    );
    await_held(&server, "slots");
    assert_eq!(
        output(
            &server,
            &["run", "-n", "--limit", "2", "slots", "--", "true"]
        )
        .0,
        0
    );
    assert_eq!(output(&server, &["run", "-n", "slots", "--", "true"]).0, 1);
    drop(one);
    let reader = Running::start(&server, &["run", "-s", "data", "--", "sleep", "100"]);
    await_held(&server, "data");
    assert_eq!(
        output(&server, &["run", "-n", "-s", "data", "--", "true"]).0,
        0
    );
    drop(reader);
}

/// Kill -9 of the runner: the lock is free at once, and its command does not work on without it.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_runner_leaves_nothing() {
    let server = Server::start();
    let (run, command) = running(&server, &["run", "job"], "exec sleep 100");
    kill(run.pid(), Signal::SIGKILL).expect("it runs");
    let mut connection = server.connection();
    await_until("the lock is free", PATIENCE, || {
        holder(&mut connection, "job").is_none()
    });
    await_until("the command has ended", PATIENCE, || {
        kill(command, None).is_err()
    });
}

/// `dlock` with these words and this script, which runs by now; and the script's process. (The lock is held a moment before.)
fn running(server: &Server, words: &[&str], script: &str) -> (Running, Pid) {
    let file = tempfile();
    let script = format!("echo $$ > {file}; {script}");
    let run = Running::start(server, &[words, &["--", "sh", "-c", &script]].concat());
    let pid = || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
    await_until("the command runs", PATIENCE, || pid().is_some());
    let command = Pid::from_raw(pid().expect("a number"));
    let _ = std::fs::remove_file(&file);
    (run, command)
}

fn tempfile() -> String {
    let name = format!(
        "dlock-cli-{}-{:?}",
        std::process::id(),
        thread::current().id()
    );
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    std::env::temp_dir().join(name).display().to_string()
}

/// Somebody takes the lock away: the command is told by a signal, and killed if it does not hear.
#[test]
fn a_lost_lock_ends_the_command() {
    let server = Server::start();
    let mut connection = server.connection();
    for (script, words) in [
        ("sleep 100", "SIGTERM"),
        ("trap '' TERM; while :; do sleep 0.1; done", "SIGTERM"),
    ] {
        let words_of = ["run", "-l", "6s", "--kill-after", "200ms", "job"];
        let (run, _) = running(&server, &words_of, script);
        assert_eq!(
            output(&server, &["release", "job"]),
            (0, "1 ended\n".to_owned(), String::new())
        );
        let _: Grant = connection.ask("DLOCK.ACQUIRE job bob 600000");
        let (code, _, error) = run.end();
        assert_eq!(code, 75, "{error}");
        assert_eq!(
            error,
            format!("dlock: job is lost (forced): {words} for the command\n")
        );
        assert!(is_held(&mut connection, "job", "bob"));
        connection.run("DLOCK.RELEASE job bob");
    }
}

/// Nobody answers any more: the lease is over, and the command ends with it.
#[test]
fn a_server_that_hangs_costs_the_lock_in_time() {
    let server = Server::start();
    let (run, _) = running(&server, &["run", "-l", "2s", "job"], "exec sleep 100");
    server.freeze();
    let began = Instant::now();
    let (code, _, error) = run.end();
    assert_eq!(code, 75, "{error}");
    // A lease, and what a very busy machine is late.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    server.thaw();
}

/// A connection that is cut: without a session the hold goes on on another one, under its token.
#[test]
fn a_cut_connection() {
    let server = Server::start();
    let mut connection = server.connection();
    let script = format!(
        "redis-cli -p {0} SET ready 1; until redis-cli -p {0} GET cut | grep -q 1; do sleep 0.05; done; sleep 5; \
         redis-cli -p {0} DLOCK.CHECK job $DLOCK_TOKEN",
        server.port()
    );
    for (extra, code) in [(None, 75), (Some("--no-session"), 0)] {
        connection.run("DEL ready cut");
        let mut words = vec!["run", "-l", "4s"]; // it is over while the command sleeps
        words.extend(extra);
        words.extend(["job", "--", "sh", "-c", &script]);
        let run = Running::start(&server, &words);
        await_until("the command runs", PATIENCE, || {
            connection.ask::<Option<u8>>("GET ready").is_some()
        });
        connection.run("CLIENT KILL TYPE normal SKIPME yes");
        connection.run("SET cut 1");
        let (ended, out, error) = run.end();
        assert_eq!(ended, code, "{out} {error}");
        if code == 0 {
            assert!(out.ends_with("OK\n"), "{out}");
        }
        assert!(holder(&mut connection, "job").is_none());
    }
}

/// A Sentinel promotes a replica: the hold goes on there.
#[test]
fn a_hold_outlives_a_failover() {
    let (mut primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    replica.wait_in_sync(&primary);
    let sentinel = Sentinel::start(&Watch {
        port: primary.port(),
        quorum: 1,
        down_after_ms: 3_000, // a stall of the primary is no fault
        program: None,
    });
    await_until("it knows the replica", PATIENCE, || {
        sentinel.knows() == (0, 1)
    });
    let at = format!("127.0.0.1:{}", sentinel.port());
    let script = format!(
        "until redis-cli -p {} GET go | grep -q 1; do sleep 0.05; done",
        replica.port()
    );
    let words = [
        "--sentinel",
        &at,
        "--primary",
        PRIMARY,
        "run",
        "-l",
        "60s",
        "job",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let run = Running::start(&primary, &words);
    await_held(&primary, "job");
    let (owner, _) = holder(&mut primary.connection(), "job").expect("it is held");
    replica.wait_in_sync(&primary);
    primary.kill9();
    await_until("the replica is primary", PATIENCE, || {
        sentinel.primary() == replica.port()
    });
    let mut connection = replica.connection();
    // It is tied to a connection of the new primary.
    await_until("the hold is found again", PATIENCE, || {
        let info: String = connection.ask("INFO dlock");
        info.contains("dlock_sessions:1\r")
    });
    assert_eq!(holder(&mut connection, "job").expect("it is held").0, owner);
    connection.run("SET go 1");
    assert_eq!(run.end().0, 0);
    assert!(holder(&mut connection, "job").is_none());
}

/// Sentinels ask for the password of the servers, or for none.
#[test]
fn sentinels_with_and_without_a_password() {
    let server = Server::start();
    let sentinel = Sentinel::start(&Watch {
        port: server.port(),
        quorum: 1,
        down_after_ms: 60_000,
        program: None,
    });
    server.connection().run("CONFIG SET requirepass secret");
    let (port, at) = (
        sentinel.port().to_string(),
        format!("127.0.0.1:{}", sentinel.port()),
    );
    let words = ["--sentinel", &at, "--primary", PRIMARY, "who", "job"];
    let who = || {
        let mut command = dlock(&server, &words);
        said(
            command
                .env("REDISCLI_AUTH", "secret")
                .output()
                .expect("it runs"),
        )
    };
    let (code, without, error) = who();
    assert_eq!(code, 1, "{without}{error}");
    let set = Command::new("redis-cli")
        .args([
            "-p",
            &port,
            "ACL",
            "SETUSER",
            "default",
            "resetpass",
            ">secret",
        ])
        .output()
        .expect("redis-cli runs");
    assert_eq!(String::from_utf8_lossy(&set.stdout), "OK\n");
    let (code, with, error) = who();
    assert_eq!((code, with), (1, without), "{error}");
}

/// Certificates of this authority for this machine, as files.
fn certificates(dir: &std::path::Path) -> [String; 3] {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
    let params = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        CertificateParams::new(names).expect("names")
    };
    let (authority_key, key) = (KeyPair::generate(), KeyPair::generate());
    let (authority_key, key) = (authority_key.expect("a key"), key.expect("a key"));
    let mut authority = params(&[]);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let name = &mut authority.distinguished_name;
    name.push(DnType::CommonName, "authority");
    let authority = authority.self_signed(&authority_key).expect("signed");
    let own = params(&["127.0.0.1"]).signed_by(&key, &authority, &authority_key);
    let own = own.expect("signed");
    [
        ("ca.pem", authority.pem()),
        ("cert.pem", own.pem()),
        ("key.pem", key.serialize_pem()),
    ]
    .map(|(name, text)| {
        let file = dir.join(name);
        std::fs::write(&file, text).expect("a file");
        file.display().to_string()
    })
}

/// TLS with a certificate of both sides, and who has none.
#[test]
fn a_hold_by_tls() {
    let server = Server::start();
    let mut connection = server.connection();
    if connection
        .ask::<Vec<String>>("CONFIG GET tls-port")
        .is_empty()
    {
        // A build without TLS: not what distributions have.
        return;
    }
    let [authority, cert, key] = certificates(server.dir());
    let spare = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = spare.local_addr().expect("an address").port();
    drop(spare);
    connection.run(&format!(
        "CONFIG SET tls-ca-cert-file {authority} tls-cert-file {cert} tls-key-file {key} tls-port {port}"
    ));
    let url = format!("rediss://127.0.0.1:{port}");
    let ended = |words: &[&str]| {
        let words = [
            words,
            &["run", "-w", "1min", "job", "--", "sh", "-c", "exit 7"],
        ]
        .concat();
        said(dlock_at(&url, &words).output().expect("an end"))
    };
    let known = ["--cacert", &authority, "--cert", &cert, "--key", &key];
    assert_eq!(ended(&known), (7, String::new(), String::new()));
    // The server asks for a certificate; and whoever trusts nobody but the machine's authorities does not trust it.
    for words in [
        &["--cacert", &*authority] as &[&str],
        &["--cert", &cert, "--key", &key],
    ] {
        let (code, _, error) = ended(words);
        assert_eq!(code, 69, "{words:?}: {error}");
    }
    let (code, _, error) = ended(&["--cacert", "/nobody/has/this"]);
    assert!(code == 64 && error.contains("--cacert"), "{code} {error}");
}

#[test]
fn bad_words_are_named() {
    let server = Server::start();
    for (words, named) in [
        (["run", "-w", "5x", "job", "--", "true"], "--wait"),
        (["run", "-w", "NaN", "job", "--", "true"], "--wait"),
        (["run", "-l", "0.5", "job", "--", "true"], "--lease"),
        (["run", "--limit", "0", "job", "--", "true"], "--limit"),
        (["run", "--signal", "TREM", "job", "--", "true"], "--signal"),
        (
            ["--sentinel", "here", "run", "job", "--", "true"],
            "--sentinel",
        ),
        (["run", "-E", "1", "", "--", "true"], "LOCK"),
    ] {
        let (code, _, error) = output(&server, &words);
        assert!(
            code == 64 && error.contains(named),
            "{words:?}: {code} {error}"
        );
    }
}

/// Busy is not broken: who cannot be asked, and who refuses, is told so, at once where waiting mends nothing.
#[test]
fn what_is_wrong_with_the_server_is_said() {
    let mut server = Server::start();
    let mut connection = server.connection();
    connection.run("ACL SETUSER cron on >secret ~* +ping");
    for (user, error) in [
        ("cron:secret", "NOPERM"),
        ("cron:wrong", "authentication failed"),
        ("nobody:x", "authentication failed"),
    ] {
        let url = format!("redis://{user}@127.0.0.1:{}", server.port());
        let words = ["run", "-w", "60", "job", "--", "true"];
        let (code, _, said) = said(dlock_at(&url, &words).output().expect("an end"));
        assert!(code == 69 && said.contains(error), "{code} {said}");
    }
    let bare = Server::builder().without_module().start();
    let (code, _, said) = output(&bare, &["run", "job", "--", "true"]);
    assert!(
        code == 69 && said.contains("unknown command"),
        "{code} {said}"
    );
    server.kill9();
    for words in [
        ["run", "-n", "job", "--", "true"],
        ["run", "-w0.3", "job", "--", "true"],
    ] {
        let (code, _, said) = output(&server, &words);
        assert!(code == 69 && said.contains("refused"), "{code} {said}");
    }
}

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

/// Whoever waits is shown as waiting, in whatever way: blocked or by NOTIFY, with a ticket or without.
#[test]
fn whoever_waits_is_shown() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    let mut waiters = Vec::new();
    for (at, request) in [
        "ACQUIRE job blocked 600000 BLOCK 0",
        "FAIRACQUIRE job fair 600000 BLOCK 0 CLAIM 5000",
        "ACQUIRE job notify 600000 NOTIFY news",
        "FAIRACQUIRE job fair-notify 600000 NOTIFY news CLAIM 5000",
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
    for (at, owner) in ["blocked", "fair", "notify", "fair-notify"]
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
    assert!(
        top.contains("5 queued; 4 wait: 2 blocked, 2 by NOTIFY"),
        "{top}"
    );
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
    assert!(plain.contains("0 wait: 0 blocked, 0 by NOTIFY"), "{plain}");
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

/// A server of a group with two replicas, in the recommended setting.
fn member() -> ServerBuilder {
    let words = ["replicas", "2", "quarantine-ms", "500"];
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
            "settings or version differ",
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
    let sentinel = Sentinel::start(&Watch {
        port: primary.port(),
        quorum: 1,
        down_after_ms: 60_000,
        program: None,
    });
    let at = format!("127.0.0.1:{}", sentinel.port());
    let (code, said, _) = checked(&["--sentinel", &at, "--primary", PRIMARY, "check"]);
    assert!(
        code == 1 && said.contains("1 Sentinels: three or more"),
        "{said}"
    );
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
        self::said(dlock_at(&url, &["check"]).output().expect("an end")).0,
        69
    );
}

#[allow(dead_code)]
#[path = "../src/patches.rs"]
mod patches;

/// The rows of the page's table: a series, and the release with the fix if there is one.
fn patch_levels() -> Vec<(patches::Product, String, Option<String>)> {
    const INSTALL: &str = include_str!("../../../docs/install.md");
    let table = INSTALL
        .split("| server | fixed in |\n")
        .nth(1)
        .expect("the table");
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let row = |row: &str| {
        let cells = row.trim_matches(['|', ' ']);
        let (server, fixed) = cells.split_once(" | ").expect("two cells");
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
    let module = dlock_integration::module_path()
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
    last.replica_of(&middle);
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
