//! A running system is updated from an earlier version of the module, as `docs/upgrade.md` says: replicas first, then one of them
//! is promoted, then the old primary. Locks, tokens and queues stay; an earlier token remains valid.
//!
//! `DLOCK_OLD_MODULE` is the earlier module. `make upgrade` builds it from the project's history.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use dlock_harness::workers::{Workers, LEASE_MS, WORKERS};
use dlock_harness::{
    assert_hands_over, assert_sound, await_until, is_held, kept, module_path, position, stat, Ask,
    Blocked, Grant, Server, Wire, PATIENCE,
};

fn old_module() -> PathBuf {
    let path = env::var_os("DLOCK_OLD_MODULE").expect("DLOCK_OLD_MODULE is the earlier module");
    let path = PathBuf::from(path);
    path.canonicalize().expect("DLOCK_OLD_MODULE is there")
}

fn old_server() -> Server {
    let builder = Server::builder().module(old_module());
    builder.config("appendonly", "yes").start()
}

/// Returns the file from which the server has loaded the module. Two modules may have one version number until it is released.
fn loaded(server: &Server) -> PathBuf {
    let log = server.log();
    let mut paths = log.lines().filter_map(|line| {
        let path = line.split_once("Module 'dlock' loaded from ")?;
        Some(PathBuf::from(path.1))
    });
    paths.next_back().expect("the server has loaded it")
}

/// Makes a server load the new module, as an administrator does: the line in its configuration, then a restart.
fn update(server: &mut Server) {
    let (old, new) = (old_module(), module_path());
    let new = new.canonicalize().expect("the module is built");
    let config = fs::read_to_string(server.config_path()).expect("the configuration");
    let old = old.to_str().expect("a path in UTF-8");
    assert!(config.contains(old), "{config}");
    assert_eq!(loaded(server), old_module());
    let config = config.replace(old, new.to_str().expect("a path in UTF-8"));
    fs::write(server.config_path(), config).expect("the configuration can be written");
    // While a server writes its first AOF, it refuses to shut down.
    server.await_aof();
    server.restart();
    assert_eq!(loaded(server), new);
}

/// The keys of locks of every sort.
const KEYS: [&str; 5] = ["sole", "shared", "slots", "queued", "reserved"];

fn make_locks(connection: &mut Wire) -> u64 {
    let (token, _): Grant = connection.ask("DLOCK.ACQUIRE sole alice 600000");
    connection.run("DLOCK.ACQUIRE sole alice 600000");
    connection.run("DLOCK.ACQUIRE shared alice 600000 SHARED");
    connection.run("DLOCK.ACQUIRE shared bob 600000 SHARED HOLDS 3");
    connection.run("DLOCK.ACQUIRE slots alice 600000 LIMIT 2");
    connection.run("DLOCK.ACQUIRE queued alice 600000");
    connection.run("DLOCK.FAIRACQUIRE queued bob 600000 CLAIM 600000");
    connection.run("DLOCK.FAIRACQUIRE queued carol 600000 CLAIM 600000");
    connection.run("DLOCK.ACQUIRE reserved alice 600000");
    connection.run("DLOCK.FAIRACQUIRE reserved bob 600000 CLAIM 600000");
    connection.run("DLOCK.RELEASE reserved alice");
    token
}

/// Asserts that a server with the new module has the decisions of the old one.
#[track_caller]
fn assert_same(one: &Server, other: &Server) {
    let (mut one, mut other) = (one.connection(), other.connection());
    for key in KEYS {
        assert_eq!(kept(&mut one, key), kept(&mut other, key), "{key}");
    }
}

/// Asserts that the locks of [`make_locks`] continue unchanged.
#[track_caller]
fn assert_goes_on(server: &Server, token: u64) {
    let mut connection = server.connection();
    let left: u64 = connection.ask(&format!("DLOCK.RENEW sole alice 600000 TOKEN {token}"));
    assert_eq!(left, 600_000);
    assert!(is_held(&mut connection, "shared", "bob"));
    assert_eq!(position(&mut connection, "queued", "bob"), Some(0));
    assert_eq!(position(&mut connection, "queued", "carol"), Some(1));
    // The tickets are served in their order.
    let bob = Blocked::start(server, "DLOCK.FAIRACQUIRE queued bob 600000 BLOCK 0");
    connection.run("DLOCK.RELEASE queued alice");
    let (next, _): Grant = bob.reply();
    assert!(next > token);
    let nobody: Option<Grant> = connection.ask("DLOCK.ACQUIRE reserved dave 1000");
    assert_eq!(nobody, None);
    let _: Grant = connection.ask("DLOCK.FAIRACQUIRE reserved bob 600000");
    assert_hands_over(server, &mut connection);
}

#[test]
#[ignore = "make upgrade builds the old module"]
fn replicas_first_then_one_is_promoted_then_the_old_primary() {
    let (mut primary, mut first, mut second) = (old_server(), old_server(), old_server());
    for replica in [&first, &second] {
        replica.replica_of(&primary);
    }
    let mut connection = primary.connection();
    let token = make_locks(&mut connection);

    // 1. The replicas. They load their own files, then follow the primary, which decides as the old version does.
    for replica in [&mut first, &mut second] {
        replica.wait_in_sync(&primary);
        update(replica);
        replica.replica_of(&primary);
        assert_same(&primary, replica);
    }
    connection.run("DLOCK.ACQUIRE slots bob 600000 LIMIT 2");
    connection.run("DLOCK.RELEASE shared bob");
    connection.run("DLOCK.RENEW sole alice 500000");
    connection.run("DLOCK.ACQUIRE gone alice 600000");
    connection.run("DLOCK.RELEASE gone alice");
    for replica in [&first, &second] {
        replica.wait_in_sync(&primary);
        assert_same(&primary, replica);
    }

    // 2. One of them takes over. A planned failover loses nothing: writes wait until all have arrived.
    let failover = format!("FAILOVER TO 127.0.0.1 {}", first.port());
    // The primary refuses it until it knows that its replica is ready.
    await_until("a failover is possible", PATIENCE, || {
        connection.try_ask(&failover).is_ok()
    });
    await_until("the other is primary", PATIENCE, || {
        first.info("replication").text("role") == "master"
    });
    second.replica_of(&first);
    assert_same(&first, &second);

    // 3. The old primary, before anything else: it may not understand the decisions of the new one.
    update(&mut primary);
    primary.replica_of(&first);
    assert_same(&first, &primary);

    assert_goes_on(&first, token);
    for replica in [&primary, &second] {
        replica.wait_in_sync(&first);
        assert_same(&first, replica);
        assert_eq!(loaded(replica), loaded(&first));
    }
}

/// An update while programs work: no lock is granted twice. Then replicas confirm the answers.
#[test]
#[ignore = "make upgrade builds the old module"]
fn programs_go_on_meanwhile() {
    let (mut primary, mut first, mut second) = (old_server(), old_server(), old_server());
    for replica in [&first, &second] {
        replica.replica_of(&primary);
    }
    let workers = Workers::start(primary.port());
    let goes_on = |of: &str| {
        let before = workers.granted();
        await_until(of, PATIENCE, || workers.granted() > before + 3 * WORKERS);
    };
    for replica in [&mut first, &mut second] {
        replica.wait_in_sync(&primary);
        update(replica);
        replica.replica_of(&primary);
        goes_on("grants, one replica is new");
    }
    let mut connection = primary.connection();
    let failover = format!("FAILOVER TO 127.0.0.1 {}", first.port());
    await_until("a failover is possible", PATIENCE, || {
        connection.try_ask(&failover).is_ok()
    });
    await_until("the other is primary", PATIENCE, || {
        first.info("replication").text("role") == "master"
    });
    workers.turn_to(first.port());
    second.replica_of(&first);
    goes_on("grants of the new primary");
    update(&mut primary);
    primary.replica_of(&first);
    goes_on("grants, all are new");
    for server in [&first, &second, &primary] {
        let mut connection = server.connection();
        connection.run(&format!(
            "CONFIG SET dlock.quarantine-ms {}",
            LEASE_MS + 500
        ));
        connection.run("CONFIG SET dlock.replicas 2");
    }
    await_until("answers are confirmed", PATIENCE, || {
        stat(&first, "confirmed_total") > 0
    });
    goes_on("confirmed grants");
    assert_eq!(workers.end(Instant::now()).twice, 0);
    for server in [&first, &second, &primary] {
        assert_sound(server);
    }
}

#[test]
#[ignore = "make upgrade builds the old module"]
fn a_server_alone_is_restarted() {
    let mut server = old_server();
    let token = make_locks(&mut server.connection());
    let before: Vec<_> = {
        let mut connection = server.connection();
        KEYS.map(|key| kept(&mut connection, key)).into()
    };
    update(&mut server);
    let mut connection = server.connection();
    let after: Vec<_> = KEYS.map(|key| kept(&mut connection, key)).into();
    assert_eq!(before, after);
    assert_goes_on(&server, token);
}
