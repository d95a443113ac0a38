//! Faults of the harness that no other test would notice, on servers without the module.

use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use dlock_harness::{await_until, stop, Ask, Blocked, Server, Wire, PATIENCE};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

mod stage;

fn plain() -> Server {
    Server::builder().without_module().start()
}

/// Returns true if a process with this id exists and is not a zombie.
#[cfg(target_os = "linux")]
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
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

/// A server belongs to its owner, not to the thread that started it.
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
        // Until killed, or until the bound of every wait.
        std::thread::sleep(PATIENCE);
        return;
    }
    let mut victim = Command::new(std::env::current_exe().expect("a test has a program"))
        .args([
            "--exact",
            "harness::a_server_dies_with_a_killed_process",
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

/// A bounded read ends early when its process is stopped and resumed. The harness must not take that for a server that is gone.
#[test]
fn a_reader_may_be_stopped_meanwhile() {
    use std::process::{Command, Stdio};

    const PORT: &str = "HARNESS_READER_PORT";
    if let Ok(port) = std::env::var(PORT) {
        let mut connection = Wire::open(port.parse().expect("a port"), PATIENCE).expect("a server");
        let popped: (String, String) = connection.ask("BLPOP list 0");
        assert_eq!(popped.1, "said");
        return;
    }
    let server = plain();
    let mut reader = Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", "harness::a_reader_may_be_stopped_meanwhile"])
        .env(PORT, server.port().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a test can be run");
    server.await_blocked_clients(1);
    let pid = Pid::from_raw(reader.id() as i32);
    stop(pid);
    kill(pid, Signal::SIGCONT).expect("it is there");
    server.connection().run("RPUSH list said");
    assert!(reader.wait().expect("a child can be waited for").success());
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
        .args([
            "--exact",
            "harness::a_missing_module_is_named",
            "--nocapture",
        ])
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
