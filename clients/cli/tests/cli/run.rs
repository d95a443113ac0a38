//! `dlock run`: its exit codes, its waits, its hold.

use super::*;
use dlock_harness::{free_port, is_held, stat, Grant, Sentinel, ServerBuilder, Watch, PRIMARY};
use nix::sys::wait::{waitid, Id, WaitPidFlag, WaitStatus};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    // One that waits is next, even if it was stopped (Ctrl-Z) and continued: it prints nothing about that.
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
    assert_eq!(stat(&server, "ephemeral"), 0);
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
    let budget = ["run", "-n", "--limit", "16", "--permits"];
    let large = [&budget[..], &["12", "memory", "--", "sleep", "100"]].concat();
    let large = Running::start(&server, &large);
    await_held(&server, "memory");
    for (permits, code) in [("4", 0), ("5", 1), ("0", 64), ("17", 64)] {
        let words = [&budget[..], &[permits, "memory", "--", "true"]].concat();
        let (seen, _, error) = output(&server, &words);
        assert_eq!(seen, code, "{permits}: {error}");
        assert!(code != 64 || error.contains("--permits"), "{error}");
    }
    drop(large);
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

/// Another client takes the lock away: the command gets a signal, and SIGKILL if it ignores that.
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
            (0, "1 hold ended\n".to_owned(), String::new())
        );
        let _: Grant = connection.ask("DLOCK.ACQUIRE job bob 600000");
        let (code, _, error) = run.end();
        assert_eq!(code, 75, "{error}");
        assert!(
            error.starts_with("dlock: job is lost (NOTHELD ")
                && error.ends_with(&format!("): {words} for the command\n")),
            "{error}"
        );
        assert!(is_held(&mut connection, "job", "bob"));
        connection.run("DLOCK.RELEASE job bob");
    }
}

/// The server no longer answers: the lease ends, and the command ends with it.
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

/// The server stalls for longer than the runner waits for an answer, and not for as long as the lease: it still has the hold.
#[test]
fn a_server_that_stalls_costs_no_lock() {
    let server = Server::start();
    let (run, _) = running(&server, &["run", "-l", "60s", "job"], "sleep 8");
    server.freeze();
    std::thread::sleep(Duration::from_millis(4_500));
    server.thaw();
    let (code, _, error) = run.end();
    assert_eq!(code, 0, "{error}");
}

/// The server answers no write for long. The runner looks for its hold by other connections, and by fewer and fewer new ones.
#[test]
fn a_server_that_only_reads_has_few_connections_of_a_run() {
    let server = Server::start();
    let (run, _) = running(&server, &["run", "-l", "120s", "job"], "sleep 45");
    let mut connection = server.connection();
    connection.run("CLIENT PAUSE 40000 WRITE");
    thread::sleep(Duration::from_secs(38));
    let clients: String = connection.ask("CLIENT LIST");
    assert!(clients.lines().count() <= 8, "{clients}");
    let (code, _, error) = run.end();
    assert_eq!(code, 0, "{error}");
}

/// A run by this port. Its command works by now, and ends when the key `go` is set.
fn awaits_go(server: &Server, user: &str, port: u16, lease: &str) -> Running {
    let script = format!(
        "redis-cli -p {0} SET ready 1; until redis-cli -p {0} GET go | grep -q 1; do sleep 0.05; done",
        server.port()
    );
    let url = format!("redis://{user}127.0.0.1:{port}");
    let words = ["run", "-l", lease, "job", "--", "sh", "-c", &script];
    let run = Running::spawn(dlock_at(&url, &words));
    let mut connection = server.connection();
    await_until("the command runs", PATIENCE, || {
        connection.ask::<Option<u8>>("GET ready").is_some()
    });
    run
}

/// The network delivers requests when another connection has the hold. A late one ties the hold to its own connection, whose end would
/// end the hold.
fn late_requests_cost_no_lock(word: &'static str, connections: usize) {
    let server = Server::start();
    let is_cut = Arc::new(AtomicBool::new(word == "DLOCK.FAIRACQUIRE"));
    let (late, renewed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (cut, arrived, renewing) = (is_cut.clone(), late.clone(), renewed.clone());
    let port = stand_in(&server, move |number, request| {
        if number >= connections {
            let count = request.matches("DLOCK.RENEW").count();
            renewing.fetch_add(count, SeqCst);
        } else if request.contains(word) && cut.load(SeqCst) {
            while cut.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            arrived.fetch_add(1, SeqCst);
        }
        None
    });
    let run = awaits_go(&server, "", port, "60s");
    is_cut.store(true, SeqCst);
    await_until("another connection has the hold", PATIENCE, || {
        renewed.load(SeqCst) > 1
    });
    is_cut.store(false, SeqCst);
    await_until("the requests have arrived", PATIENCE, || {
        late.load(SeqCst) == connections
    });
    // The next heartbeat has tied it again. The server ends the connections on which nothing more comes.
    server.connection().run("CONFIG SET timeout 1");
    thread::sleep(Duration::from_secs(3));
    server.connection().run("SET go 1");
    let (code, _, error) = run.end();
    assert_eq!(code, 0, "{error}");
}

#[test]
fn a_late_request_for_the_lock_costs_no_lock() {
    late_requests_cost_no_lock("DLOCK.FAIRACQUIRE", 1);
}

/// That of the first connection, and that of the one on which the hold was looked for.
#[test]
fn late_renewals_cost_no_lock() {
    late_requests_cost_no_lock("DLOCK.RENEW", 2);
}

/// A renewal that finds the hold again is not confirmed in time. It may tie the hold to its connection all the same.
#[test]
fn an_unconfirmed_renewal_costs_no_lock() {
    let member = || {
        let words = ["replicas", "1", "quarantine-ms", "1000"];
        let with = |builder: ServerBuilder, word: &&str| builder.module_argument(word);
        words.iter().fold(Server::builder(), with).start()
    };
    let (server, replica) = (member(), member());
    replica.replica_of(&server);
    replica.wait_in_sync(&server);
    await_until("it grants", PATIENCE, || {
        stat(&server, "replicas_counting") == 1 && stat(&server, "closed") == 0
    });
    // Leases may be as long from now on.
    server
        .connection()
        .run("CONFIG SET dlock.quarantine-ms 600000");
    let is_cut = Arc::new(AtomicBool::new(false));
    let renewed = Arc::new(AtomicUsize::new(0));
    let (cut, renewing) = (is_cut.clone(), renewed.clone());
    let port = stand_in(&server, move |number, request| {
        let is_renewal = request.contains("DLOCK.RENEW");
        while number == 0 && is_renewal && cut.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if number > 0 && is_renewal {
            renewing.fetch_add(1, SeqCst);
        }
        None
    });
    let run = awaits_go(&server, "", port, "60s");
    is_cut.store(true, SeqCst);
    replica.freeze();
    await_until("a renewal is refused", PATIENCE, || {
        renewed.load(SeqCst) > 1
    });
    replica.thaw();
    thread::sleep(Duration::from_secs(1));
    server.connection().run("SET go 1");
    let (code, _, error) = run.end();
    assert_eq!(code, 0, "{error}");
    is_cut.store(false, SeqCst);
}

/// After a stall the server has no room for another client, and still has the hold. (The answer to a password loses its words.)
#[test]
fn a_full_server_costs_no_lock() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.run("ACL SETUSER cron on >secret ~* +@all");
    let (is_cut, is_full) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (cut, full) = (is_cut.clone(), is_full.clone());
    let port = stand_in(&server, move |number, request| {
        while number == 0 && request.contains("DLOCK.RENEW") && cut.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        (number > 0 && request.is_empty()).then(|| {
            full.store(true, SeqCst);
            "-ERR max number of clients reached\r\n".to_owned()
        })
    });
    let run = awaits_go(&server, "cron:secret@", port, "8s");
    is_cut.store(true, SeqCst);
    await_until("a connection is refused", PATIENCE, || is_full.load(SeqCst));
    is_cut.store(false, SeqCst);
    // A lease.
    thread::sleep(Duration::from_secs(8));
    connection.run("SET go 1");
    let (code, _, error) = run.end();
    assert_eq!(code, 0, "{error}");
}

/// A connection that is cut: with --no-ephemeral the hold continues on another one, under its token.
#[test]
fn a_cut_connection() {
    let server = Server::start();
    let mut connection = server.connection();
    let script = format!(
        "redis-cli -p {0} SET ready 1; until redis-cli -p {0} GET cut | grep -q 1; do sleep 0.05; done; sleep 5; \
         redis-cli -p {0} DLOCK.CHECK job $DLOCK_TOKEN",
        server.port()
    );
    for (extra, code) in [(None, 75), (Some("--no-ephemeral"), 0)] {
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

/// The server ends the connection, and the hold with it: the command does not work alongside the next holder.
#[test]
fn a_cut_connection_ends_the_command_at_once() {
    let server = Server::start();
    let mut connection = server.connection();
    // The best of some: a busy machine is late now and then.
    let took = (0..8).map(|_| {
        let (run, command) = running(&server, &["run", "job"], "exec sleep 100");
        let began = Instant::now();
        connection.run("CLIENT KILL TYPE normal SKIPME yes");
        await_until("the command has ended", PATIENCE, || {
            kill(command, None).is_err()
        });
        let took = began.elapsed();
        let (code, _, error) = run.end();
        assert!(code == 75 && error.contains("NOTHELD"), "{code} {error}");
        took
    });
    let best = took.min().expect("some");
    assert!(best < Duration::from_millis(100), "{best:?}");
}

/// The user is gone, and its connections and ephemeral holds with it: nobody can look for the hold.
#[test]
fn a_refused_connection_ends_the_command() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.run("ACL SETUSER cron on >secret ~* +@all");
    let url = format!("redis://cron:secret@127.0.0.1:{}", server.port());
    let script = format!("redis-cli -p {} SET ready 1; sleep 100", server.port());
    let words = ["run", "-l", "10min", "job", "--", "sh", "-c", &script];
    let run = Running::spawn(dlock_at(&url, &words));
    await_until("the command runs", PATIENCE, || {
        connection.ask::<Option<u8>>("GET ready").is_some()
    });
    connection.run("ACL DELUSER cron");
    // Long before the end of its lease.
    await_until("it has ended", PATIENCE, || {
        waitid(
            Id::Pid(run.pid()),
            WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT,
        )
        .is_ok_and(|status| status != WaitStatus::StillAlive)
    });
    let (code, _, error) = run.end();
    assert!(
        code == 75 && error.contains("authentication failed"),
        "{code} {error}"
    );
}

/// Connections that say nothing for a second are ended by the server.
#[test]
fn a_server_that_ends_idle_connections() {
    let server = Server::builder().config("timeout", 1).start();
    let script = format!(
        "sleep 3; redis-cli -p {} DLOCK.CHECK job $DLOCK_TOKEN",
        server.port()
    );
    for words in [&["run"] as &[&str], &["run", "--no-ephemeral"]] {
        let words = [words, &["job", "--", "sh", "-c", &script]].concat();
        let ended = output(&server, &words);
        assert_eq!(ended, (0, "OK\n".to_owned(), String::new()));
    }
    assert_eq!(stat(&server, "expired_total"), 0);
}

/// Who is ended in a queue is not waited for by those behind it.
#[test]
fn a_wait_that_is_ended_leaves_its_queue() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: Grant = connection.ask("DLOCK.ACQUIRE job alice 600000");
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        for words in [
            &["run"] as &[&str],
            &["run", "--no-ephemeral", "-w", "1min"],
        ] {
            let words = [words, &["job", "--", "true"]].concat();
            let run = Running::start(&server, &words);
            server.await_blocked_clients(1);
            kill(run.pid(), signal).expect("it runs");
            let ended = run.end();
            let places = stat(&server, "places_queued");
            assert_eq!(ended, (128 + signal as i32, String::new(), String::new()));
            assert_eq!(places, 0, "{signal} {words:?}");
        }
    }
    // Without a server it does not take for ever to leave.
    let run = Running::start(&server, &["run", "job", "--", "true"]);
    server.await_blocked_clients(1);
    server.freeze();
    kill(run.pid(), Signal::SIGTERM).expect("it runs");
    assert_eq!(run.end().0, 143);
    server.thaw();
}

/// What waits for its own end says so, whatever is between.
#[test]
fn a_run_in_a_run() {
    let (server, other) = (Server::start(), Server::start());
    let nested = |outer: &[&str], inner: &str| {
        let words = [outer, &["--", "sh", "-c", inner]].concat();
        let mut command = dlock(&server, &words);
        command.env("dlock", env!("CARGO_BIN_EXE_dlock"));
        command.env("DLOCK_URL", format!("redis://127.0.0.1:{}", server.port()));
        command.env("OTHER", format!("redis://127.0.0.1:{}", other.port()));
        said(command.output().expect("an end"))
    };
    let says = "dlock: job is held by the dlock run that this one runs under, and would be waited for in vain\n";
    for inner in [
        "$dlock run -qE 9 job -- echo twice",
        "$dlock run -w 1min -E 9 -s job -- echo twice",
        "$dlock run other -- $dlock run -E 9 job -- echo twice",
    ] {
        let ended = nested(&["run", "job"], inner);
        assert_eq!(ended, (9, String::new(), says.to_owned()), "{inner}");
    }
    let full = nested(
        &["run", "--limit", "4", "--permits", "3", "job"],
        "$dlock run -E 9 --limit 8 --permits 2 job -- echo twice",
    );
    assert_eq!(full, (9, String::new(), says.to_owned()));
    for (outer, inner) in [
        (
            &["run", "--limit", "2", "job"] as &[&str],
            "run --limit 2 job",
        ),
        (&["run", "-s", "job"], "run -s job"),
        (&["run", "job"], "run other"),
        (&["run", "job"], "--url $OTHER run job"),
    ] {
        let ended = nested(outer, &format!("$dlock {inner} -- echo twice"));
        assert_eq!(ended, (0, "twice\n".to_owned(), String::new()), "{inner}");
    }
    let (code, _, said) = nested(&["run", "job"], "$dlock run -n job -- echo twice");
    assert!(code == 1 && said.contains("job is held by"), "{said}");
}

/// Names are the bytes of others: they do not move the cursor, nor pretend to be other lines.
#[test]
fn bytes_of_others_are_escaped() {
    let server = Server::start();
    let owner = b"eve\x1b[2J\r\nall \xff \xe2\x80\xae well";
    let port = server.port().to_string();
    let mut take = Command::new("redis-cli");
    take.args(["-p", &port, "DLOCK.ACQUIRE", "job\x1b]0;x\x07"]);
    take.arg(std::os::unix::ffi::OsStrExt::from_bytes(&owner[..]) as &std::ffi::OsStr);
    assert!(take
        .arg("600000")
        .output()
        .expect("redis-cli")
        .status
        .success());
    let shown = r"eve\u{1b}[2J\r\nall \xff \u{202e} well";
    let (_, who, _) = output(&server, &["who", "job\x1b]0;x\x07"]);
    let (_, ls, _) = output(&server, &["ls"]);
    let (_, top, _) = output(&server, &["top", "-n", "1"]);
    let (_, _, run) = output(&server, &["run", "-n", "job\x1b]0;x\x07", "--", "true"]);
    for text in [&who, &ls, &run] {
        assert!(text.contains(shown), "{text}");
        assert!(text.contains(r"job\u{1b}]0;x\u{7}"), "{text}");
    }
    for words in [&["ls", "--json"][..], &["who", "job\x1b]0;x\x07", "--json"]] {
        let (_, document, _) = output(&server, words);
        assert!(document.contains(r"\u202e"), "{document}");
        let read = serde_json::from_str::<serde_json::Value>(&document);
        assert!(read.is_ok(), "{document}");
    }
    for text in [who, ls, top, run] {
        let is_bad = |letter: char| letter.is_control() && letter != '\n';
        assert!(!text.contains(is_bad), "{text:?}");
    }
}

/// The option replaces the variable, for the processes below as well.
#[test]
fn a_variable_that_an_option_replaces_does_not_matter() {
    let server = Server::start();
    let mut run = dlock(&server, &["run", "job", "--", "true"]);
    run.env("DLOCK_URL", "redis://app:se/cret@host");
    let (code, _, error) = said(run.output().expect("an end"));
    assert_eq!(code, 0, "{error}");
}

/// A password with characters that a URL gives a meaning to: what is wrong is said, and the password is not.
#[test]
fn a_url_that_cannot_be_read() {
    for (url, shown) in [
        ("redis://app:se#cret@host:6379", "redis://***@host:6379"),
        ("redis://app:se/cret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://app:sec?ret@host:6379", "redis://***@host:6379"),
        ("redis://app:se@c#ret@host:6379", "redis://***@host:6379"),
        ("redis://secret#x@host:6379", "redis://***@host:6379"),
        ("redis://:secret", "redis://***"),
        ("redis://host:99999", "redis://***"),
        ("app:secret@host", "***"),
        ("secret", "***"),
    ] {
        let mut by_environment = Command::new(env!("CARGO_BIN_EXE_dlock"));
        by_environment.args(["who", "job"]).env("DLOCK_URL", url);
        for mut command in [dlock_at(url, &["who", "job"]), by_environment] {
            let (code, _, said) = said(command.output().expect("an end"));
            assert_eq!(code, 64, "{url}: {said}");
            assert!(said.contains(&format!("--url {shown}: ")), "{url}: {said}");
            assert!(said.contains("@ is %40"), "{said}");
            for part in ["secret", "cret", "sec", "ret"] {
                assert!(!said.contains(part), "{url}: {said}");
            }
        }
    }
}

/// A Sentinel promotes a replica: the hold continues there.
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
        info.contains("dlock_ephemeral:1\r")
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

/// A port before the server that takes TLS, from clients with a certificate of the authority. (Builds of servers without TLS have the
/// settings for it, and some of them crash when these are set.)
fn tls_before(server: &Server, [authority, cert, key]: [&str; 3]) -> u16 {
    use rustls::pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer};
    let certificate = |file: &str| CertificateDer::from_pem_file(file).expect("a certificate");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate(authority)).expect("an authority");
    let clients = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(clients.expect("a verifier"))
        .with_single_cert(
            vec![certificate(cert)],
            PrivateKeyDer::from_pem_file(key).expect("a key"),
        );
    let config = Arc::new(config.expect("a certificate and its key"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at, port) = (listener.local_addr().expect("an address"), server.port());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let tls = rustls::ServerConnection::new(config.clone()).expect("a connection");
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
            let tls = rustls::StreamOwned::new(tls, client);
            thread::spawn(move || relay(tls, server));
        }
    });
    at.port()
}

/// Carries bytes to and fro until one of the two ends.
fn relay(
    mut tls: rustls::StreamOwned<rustls::ServerConnection, TcpStream>,
    mut server: TcpStream,
) -> io::Result<()> {
    let turn = Some(Duration::from_millis(1));
    tls.sock.set_read_timeout(turn)?;
    server.set_read_timeout(turn)?;
    while carried(&mut tls, &mut server)? && carried(&mut server, &mut tls)? {}
    Ok(())
}

/// Carries what is there. Returns whether there may be more.
fn carried(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let count = match from.read(&mut buffer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
        read => read?,
    };
    to.write_all(buffer.get(..count).unwrap_or_default())?;
    to.flush()?;
    Ok(count > 0)
}

/// TLS with a certificate of both sides, and who has none.
#[test]
fn a_hold_by_tls() {
    let server = Server::start();
    let [authority, cert, key] = certificates(server.dir());
    let port = tls_before(&server, [&authority, &cert, &key]);
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
        (["run", "--permits", "2", "job", "--", "true"], "--limit"),
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

/// Busy is not broken: the program reports a server that it cannot ask or that refuses, at once where waiting repairs nothing.
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
        code == 69 && said.contains("the module dlock is not loaded there"),
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

/// A label names nobody: two runs that have the same one exclude each other.
#[test]
fn a_label_is_no_owner() {
    let server = Server::start();
    let mut connection = server.connection();
    for option in ["--label", "--owner"] {
        let words = ["run", option, "nightly", "job", "--", "sleep", "100"];
        let run = Running::start(&server, &words);
        await_held(&server, "job");
        let (owner, _) = holder(&mut connection, "job").expect("it is held");
        let host = nix::unistd::gethostname().expect("a name");
        let start = format!("{}/{}/nightly/", host.to_string_lossy(), run.pid());
        assert!(owner.starts_with(&start), "{owner}");
        let words = ["run", "-n", option, "nightly", "job", "--", "true"];
        let (code, _, said) = output(&server, &words);
        assert_eq!(
            (code, said),
            (1, format!("dlock: job is held by {owner}\n"))
        );
        drop(run);
    }
    let long = "x".repeat(600);
    assert_eq!(
        output(&server, &["run", "--label", &long, "job", "--", "true"]).0,
        64
    );
}

/// The time-out holds for everything, whatever the server does; a try says at once what is wrong.
#[test]
fn a_bound_is_a_bound() {
    let server = Server::start();
    let closed = format!("redis://127.0.0.1:{}", free_port());
    let timed = |mut command: Command| {
        let began = Instant::now();
        let said = said(command.output().expect("an end"));
        (said, began.elapsed())
    };
    let ((code, _, said), took) = timed(dlock_at(&closed, &["run", "-n", "job", "--", "true"]));
    assert!(code == 69 && said.contains("refused"), "{said}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    let ((code, _, said), took) =
        timed(dlock_at(&closed, &["run", "-w", "1s", "job", "--", "true"]));
    assert!(code == 69 && said.contains("refused"), "{said}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    server.freeze();
    for words in [
        ["run", "-w", "1s", "job", "--", "true"],
        ["run", "-w", "1500ms", "job", "--", "true"],
    ] {
        let ((code, _, said), took) = timed(dlock(&server, &words));
        assert!(code == 69 && said.contains("no answer within"), "{said}");
        assert!(!said.contains("os error"), "{said}");
        assert!(took < Duration::from_millis(2_700), "{took:?}: {said}");
    }
    server.thaw();
}

/// What an unbounded wait waits for is said: a server that is not there, and one that grants nothing for now.
#[test]
fn a_wait_says_why() {
    let mut server = Server::builder()
        .module_argument("quarantine-ms")
        .module_argument("3000")
        .start();
    server.kill9();
    let run = Running::start(&server, &["run", "-l", "2s", "job", "--", "true"]);
    let quiet = Running::start(&server, &["run", "-q", "-l", "2s", "other", "--", "true"]);
    thread::sleep(Duration::from_millis(300));
    server.restart();
    let (code, _, said) = run.end();
    assert!(
        code == 0 && said.contains("still waiting for job: ") && said.contains("refused"),
        "{said}"
    );
    assert_eq!(quiet.end(), (0, String::new(), String::new()));
    server.restart();
    let (code, _, said) = output(&server, &["run", "-l", "2s", "job", "--", "true"]);
    assert!(code == 0 && said.contains("(QUARANTINE)"), "{code} {said}");
}

/// A server in front of another one: a new connection, and each of its requests, gets an answer of its own, or that of the other.
/// With an empty one the request is done, and the connection ends.
fn stand_in(
    server: &Server,
    answer: impl Fn(usize, &str) -> Option<String> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, to) = (
        listener.local_addr().expect("an address").port(),
        server.port(),
    );
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let answer = answer.clone();
            thread::spawn(move || stand_between(client, to, |request| answer(number, request)));
        }
    });
    port
}

fn stand_between(
    mut client: TcpStream,
    to: u16,
    answer: impl Fn(&str) -> Option<String>,
) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", to))?;
    let mut replies = server.try_clone()?;
    let mut sink = client.try_clone()?;
    thread::spawn(move || io::copy(&mut replies, &mut sink));
    if let Some(greeting) = answer("") {
        return client.write_all(greeting.as_bytes());
    }
    let mut buffer = [0; 4096];
    loop {
        let count = client.read(&mut buffer)?;
        let request = buffer.get(..count).unwrap_or_default();
        match answer(&String::from_utf8_lossy(request)) {
            _ if request.is_empty() => return server.shutdown(std::net::Shutdown::Both),
            None => server.write_all(request)?,
            Some(end) if end.is_empty() => {
                client.shutdown(std::net::Shutdown::Both)?;
                return server.write_all(request);
            }
            Some(text) => client.write_all(text.as_bytes())?,
        }
    }
}

/// The end of its connection would end the hold: that stays until the hold is released, or left to its lease.
#[test]
fn a_hold_is_given_back_slowly() {
    let server = Server::start();
    let mut connection = server.connection();
    let port = stand_in(&server, |number, request| {
        if number > 0 && request.is_empty() {
            thread::sleep(Duration::from_secs(1));
        }
        None
    });
    for least in [&[][..], &["--at-least", "5min"]] {
        let words = [&["run", "-n"], least, &["job", "--", "true"]].concat();
        let ended = dlock_at(&format!("redis://127.0.0.1:{port}"), &words).output();
        assert_eq!(
            said(ended.expect("an end")),
            (0, String::new(), String::new())
        );
        assert_eq!(holder(&mut connection, "job").is_some(), !least.is_empty());
    }
}

/// Its connection ends with the server, as in an update, and the hold with it: nothing is left to release.
#[test]
fn a_hold_ends_before_it_is_given_back() {
    let server = Server::start();
    let kill = format!(
        "redis-cli -p {0} CLIENT LIST | sed -n 's/^id=\\([0-9]*\\) .* cmd=dlock.*/\\1/p' | xargs redis-cli -p {0} CLIENT KILL ID",
        server.port()
    );
    let port = stand_in(&server, move |_, request| {
        if request.contains("DLOCK.RELEASE") {
            let killed = Command::new("sh").args(["-c", &kill]).output();
            assert_eq!(killed.expect("an end").stdout, b"1\n");
        }
        None
    });
    let words = ["run", "job", "--", "sh", "-c", "exit 3"];
    let ended = dlock_at(&format!("redis://127.0.0.1:{port}"), &words).output();
    assert_eq!(
        said(ended.expect("an end")),
        (3, String::new(), String::new())
    );
}

/// A slot is on its way for longer than the lease: its lock is taken, kept and released where the key is.
#[test]
fn a_slot_that_is_on_its_way() {
    let server = Server::start();
    let is_asked = AtomicBool::new(false);
    let target = stand_in(&server, move |_, request| {
        if request.contains("ASKING") {
            is_asked.store(true, SeqCst);
            return Some("+OK\r\n".to_owned());
        }
        let is_asked = is_asked.swap(false, SeqCst);
        (request.contains("DLOCK.") && !is_asked).then(|| "-MOVED 1 127.0.0.1:1\r\n".to_owned())
    });
    let source = stand_in(&server, move |_, request| {
        request
            .contains("DLOCK.")
            .then(|| format!("-ASK 1 127.0.0.1:{target}\r\n"))
    });
    let words = ["run", "-w", "20s", "-l", "1s", "job", "--", "sleep", "3"];
    let ended = dlock_at(&format!("redis://127.0.0.1:{source}"), &words).output();
    assert_eq!(
        said(ended.expect("an end")),
        (0, String::new(), String::new())
    );
    assert!(holder(&mut server.connection(), "job").is_none());
}

/// A server that has no room for another client for a moment is waited for. (The answer to a password loses its words.)
#[test]
fn a_full_server_is_waited_for() {
    let server = Server::start();
    for database in ["/1", ""] {
        let port = stand_in(&server, |number, request| {
            (number == 0 && request.is_empty())
                .then(|| "-ERR max number of clients reached\r\n".to_owned())
        });
        let url = format!("redis://127.0.0.1:{port}{database}");
        let ended = dlock_at(&url, &["run", "job", "--", "true"]).output();
        let (code, _, error) = said(ended.expect("an end"));
        assert_eq!(code, 0, "{error}");
    }
}

/// One Sentinel is down, and another one is none: the first may come back.
#[test]
fn a_sentinel_that_is_down_may_come_back() {
    let server = Server::start();
    let closed = format!("127.0.0.1:{}", free_port());
    let none = format!("127.0.0.1:{}", server.port());
    let words = [
        "--sentinel",
        &closed,
        "--sentinel",
        &none,
        "run",
        "-w",
        "1s",
        "job",
        "--",
        "true",
    ];
    let (code, _, error) = output(&server, &words);
    assert!(
        code == 69 && error.contains("still waiting"),
        "{code} {error}"
    );
}

/// The answer to a try is lost, and the lock would stay taken for its lease.
#[test]
fn a_try_whose_answer_is_lost_is_taken_back() {
    let server = Server::start();
    let port = stand_in(&server, |number, request| {
        let is_it = number == 0 && request.contains("DLOCK.ACQUIRE");
        is_it.then(String::new)
    });
    let words = [
        "run",
        "-n",
        "--no-ephemeral",
        "-l",
        "10min",
        "job",
        "--",
        "true",
    ];
    let mut connection = server.connection();
    let url = format!("redis://127.0.0.1:{port}");
    let (code, _, error) = said(dlock_at(&url, &words).output().expect("an end"));
    assert_eq!(code, 69, "{error}");
    assert!(holder(&mut connection, "job").is_none());
}
