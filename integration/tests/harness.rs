//! The harness itself, with servers that have no module.

use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use dlock_integration::redis::Value;
use dlock_integration::{await_until, Ask, Blocked, Server, Subscriber, PATIENCE};

fn plain() -> Server {
    Server::builder().without_module().start()
}

/// Is there a process with this id that is not a zombie?
#[cfg(target_os = "linux")]
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn a_server_answers() {
    let server = plain();
    let mut connection = server.connection();
    assert_eq!(connection.ask::<String>("PING"), "PONG");
    assert_eq!(connection.try_ask("GET nothing"), Ok(Value::Nil));
    assert!(connection
        .refusal("NO.SUCH.COMMAND")
        .starts_with("ERR unknown command"));
    assert_eq!(
        server.info("server").number::<u32>("process_id"),
        server.pid()
    );
    let version = server.version();
    assert!(
        version.is_redis(6, 2) || version.is_valkey(8, 0),
        "{version}"
    );
}

#[test]
fn a_server_has_its_own_directory_and_port() {
    let (one, two) = (plain(), plain());
    assert_ne!(one.port(), two.port());
    assert_ne!(one.dir(), two.dir());
    one.connection().run("SET k 1");
    assert_eq!(two.connection().try_ask("GET k"), Ok(Value::Nil));
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_is_gone_when_dropped() {
    let server = plain();
    let (pid, directory) = (server.pid(), server.dir().to_owned());
    assert!(is_alive(pid) && directory.exists());
    drop(server);
    assert!(!is_alive(pid) && !directory.exists());
}

/// A server belongs to whoever holds it, not to the thread that started it.
#[test]
#[cfg(target_os = "linux")]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(plain)
        .join()
        .expect("the thread ends well");
    assert_eq!(server.connection().ask::<String>("PING"), "PONG");
}

/// This test runs its own program again as the process that is killed.
#[test]
#[cfg(target_os = "linux")]
fn a_server_dies_with_a_killed_process() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    const VICTIM: &str = "HARNESS_VICTIM";
    if std::env::var_os(VICTIM).is_some() {
        let server = plain();
        println!("\nserver {}", server.pid());
        // Until killed, or until the bound that every wait has.
        std::thread::sleep(PATIENCE);
        return;
    }
    let mut victim = Command::new(std::env::current_exe().expect("a test has a program"))
        .args([
            "--exact",
            "a_server_dies_with_a_killed_process",
            "--nocapture",
        ])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a test can be run");
    let output = BufReader::new(victim.stdout.take().expect("it is piped"));
    let pid = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("server ")?.parse().ok())
        .expect("the victim says which server it started");
    assert!(is_alive(pid));
    victim.kill().expect("a child can be killed");
    victim.wait().expect("a child can be waited for");
    await_until("the server has died with its parent", PATIENCE, || {
        !is_alive(pid)
    });
}

#[test]
fn a_restart_keeps_port_and_files() {
    let mut server = Server::builder()
        .without_module()
        .config("appendonly", "yes")
        .start();
    let port = server.port();
    server.connection().run("SET k 1");
    server.restart();
    assert_eq!(server.port(), port);
    assert_eq!(server.connection().ask::<u64>("GET k"), 1);
    server.connection().run("INCR k");
    server.kill9();
    server.restart();
    assert_eq!(server.connection().ask::<u64>("GET k"), 2);
}

#[test]
fn a_rewritten_configuration_holds_after_a_restart() {
    let mut server = plain();
    server.connection().run("CONFIG SET maxclients 77");
    server.connection().run("CONFIG REWRITE");
    server.restart();
    assert_eq!(
        server
            .connection()
            .ask::<(String, u64)>("CONFIG GET maxclients")
            .1,
        77
    );
}

#[test]
fn a_replica_is_in_sync() {
    let (primary, replica) = (plain(), plain());
    let mut connection = primary.connection();
    connection.run("SET k 1");
    replica.replica_of(&primary);
    assert_eq!(replica.connection().ask::<u64>("GET k"), 1);
    connection.run("SET k 2");
    replica.wait_in_sync(&primary);
    assert_eq!(replica.connection().ask::<u64>("GET k"), 2);
    assert!(replica
        .connection()
        .refusal("SET k 3")
        .starts_with("READONLY"));
    replica.promote();
    replica.connection().run("SET k 3");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = Server::builder()
        .without_module()
        .config("maxclients", "many")
        .try_start()
        .err();
    let log = error.expect("the configuration is bad").log;
    assert!(log.contains("maxclients"), "{log}");
}

#[test]
fn a_missing_module_is_named() {
    // The variable belongs to the whole process, so it is set for a second run of this test only.
    const SECOND: &str = "HARNESS_MISSING_MODULE";
    if std::env::var_os(SECOND).is_some() {
        Server::start();
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", "a_missing_module_is_named", "--nocapture"])
        .env(SECOND, "1")
        .env("DLOCK_MODULE", "/nowhere/libdlock.so")
        .output()
        .expect("a test can be run");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("/nowhere/libdlock.so: run `make build`"),
        "{text}"
    );
}

#[test]
fn a_blocked_client_gets_its_reply() {
    let server = plain();
    let blocked = Blocked::start(&server, "BLPOP list 0");
    assert!(blocked.is_blocked(&server));
    server.await_blocked_clients(1);
    server.connection().run("RPUSH list x");
    assert_eq!(
        blocked.reply::<(String, String)>(),
        ("list".into(), "x".into())
    );
    assert!(!blocked.is_blocked(&server));
}

#[test]
fn a_blocked_client_can_be_refused() {
    let server = plain();
    let blocked = Blocked::start(&server, "BLPOP list 0");
    let line = format!("CLIENT UNBLOCK {} ERROR", blocked.client_id());
    assert_eq!(server.connection().ask::<u64>(&line), 1);
    assert!(blocked.refusal().starts_with("UNBLOCKED"));
}

#[test]
fn a_killed_client_is_gone_at_the_server() {
    let server = plain();
    let blocked = Blocked::start(&server, "BLPOP list 0");
    let id = blocked.client_id();
    blocked.kill();
    server.await_blocked_clients(0);
    server.await_client_gone(id);
}

#[test]
fn a_client_killed_by_the_server_has_no_last_words() {
    let server = plain();
    let blocked = Blocked::start(&server, "BLPOP list 0");
    server
        .connection()
        .run(&format!("CLIENT KILL ID {}", blocked.client_id()));
    assert_eq!(blocked.last_words(), []);
}

#[test]
fn a_wait_has_a_bound() {
    let server = plain();
    let blocked = Blocked::start(&server, "BLPOP list 0");
    assert_eq!(blocked.outcome_within(Duration::from_millis(20)), None);
    let never = AssertUnwindSafe(|| await_until("pigs fly", Duration::from_millis(20), || false));
    let panic = catch_unwind(never).expect_err("it never comes true");
    assert!(panic
        .downcast_ref::<String>()
        .expect("a text")
        .contains("pigs fly"));
}

#[test]
fn a_subscriber_gets_messages_in_order() {
    let server = plain();
    let exact = Subscriber::channels(&server, &["news", "weather"]);
    let pattern = Subscriber::patterns(&server, &["n*"]);
    let mut connection = server.connection();
    for (channel, payload) in [("news", "one"), ("weather", "two"), ("news", "three")] {
        connection.run(&format!("PUBLISH {channel} {payload}"));
    }
    assert_eq!(exact.payload(), "one");
    assert_eq!(exact.message().channel, "weather");
    assert_eq!(exact.payload(), "three");
    assert_eq!(
        (pattern.payload(), pattern.payload()),
        ("one".into(), "three".into())
    );
    assert_eq!(exact.next(Duration::from_millis(20)), None);
}

#[test]
fn both_protocols_are_spoken() {
    let server = plain();
    let two: Value = server.connection().ask("CONFIG GET maxclients");
    assert!(matches!(two, Value::Array(_)), "{two:?}");
    let three: Value = server.connection_resp3().ask("CONFIG GET maxclients");
    assert!(matches!(three, Value::Map(_)), "{three:?}");
}

#[test]
fn a_wire_shows_every_byte() {
    let server = plain();
    let mut wire = server.wire();
    wire.send("GET nothing");
    assert_eq!(wire.read_line(), "$-1");
    wire.send("BLPOP nothing 0.01");
    assert_eq!(wire.read_line(), "*-1");
    wire.send("SET k v");
    wire.send("GET k");
    assert_eq!(wire.read(), Ok(Value::Okay));
    assert_eq!(wire.read(), Ok(Value::BulkString(b"v".to_vec())));
    wire.send_bytes(b"PING\r\n").expect("the server reads");
    assert_eq!(wire.read(), Ok(Value::SimpleString("PONG".into())));
}

#[test]
fn a_frozen_server_goes_on_when_thawed() {
    let server = plain();
    let mut wire = server.wire();
    server.freeze();
    wire.send("PING");
    server.thaw();
    assert_eq!(wire.read(), Ok(Value::SimpleString("PONG".into())));
}

#[test]
fn a_cluster_node_serves_its_slots() {
    let server = Server::builder().without_module().cluster().start();
    assert!(server
        .connection()
        .refusal("SET k v")
        .starts_with("CLUSTERDOWN"));
    server.serve_all_slots();
    server.connection().run("SET k v");
}
