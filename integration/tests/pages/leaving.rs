//! The steps of `docs/upgrade.md`, typed literally, leave a server that starts without the module and has all other keys.

use std::fs;

use dlock_harness::redis::{cmd, Value};
use dlock_harness::{await_until, module_path, planned, Ask, Sentinel, Server, Watch, PATIENCE};

const PAGE: &str = include_str!("../../../docs/upgrade.md");

/// Returns the commands of a step.
fn typed(step: usize) -> Vec<&'static str> {
    let (_, rest) = PAGE
        .split_once(&format!("\n**{step}. "))
        .unwrap_or_else(|| panic!("there is no step {step}"));
    let text = rest.split("\n**").next().unwrap_or_default();
    text.lines()
        .filter_map(|line| line.strip_prefix("ops> "))
        .collect()
}

/// Returns a server whose own file loads the module, with locks, a ticket, and data, in an AOF and an RDB file.
fn in_use() -> Server {
    let module = module_path().canonicalize().expect("the module is built");
    let server = Server::builder()
        .without_module()
        .config("loadmodule", format!("\"{}\"", module.display()))
        .config("dlock.default-lease-ms", 20_000)
        .config("appendonly", "yes")
        .config("save", "900 1")
        .start();
    let mut c = server.connection();
    c.run("SET data kept");
    c.run("DLOCK.ACQUIRE held alice 600000");
    c.run("DLOCK.ACQUIRE crashed carol 600000");
    c.run("DLOCK.FAIRACQUIRE crashed bob CLAIM 600000");
    server
}

/// Removes the lines that step 5 names from the server's file.
fn remove_the_lines(server: &Server) {
    let file = server.config_path();
    let text = fs::read_to_string(&file).expect("the server's file");
    let is_ours = |line: &&str| line.starts_with("dlock.") || line.starts_with("loadmodule ");
    let (ours, others): (Vec<&str>, Vec<&str>) = text.lines().partition(is_ours);
    // A file that was rewritten has the setting of step 1 as well.
    assert!(ours.len() >= 2, "{ours:?}");
    fs::write(&file, others.join("\n") + "\n").expect("the file can be written to");
}

fn locks(server: &Server) -> Vec<String> {
    let [scan] = typed(3)[..] else {
        panic!("step 3 types one line");
    };
    let (cursor, keys): (String, Vec<String>) = server.connection().ask(scan);
    assert_eq!(cursor, "0");
    keys
}

#[test]
fn the_steps_leave_a_server_without_the_module() {
    let mut server = in_use();
    let mut c = server.connection();
    for line in typed(1) {
        c.run(line);
    }
    let refused = c.refusal("DLOCK.ACQUIRE other dave 1000");
    assert!(refused.starts_with("QUARANTINE "), "{refused}");
    c.run("DLOCK.RELEASE held alice");
    let [list] = typed(2)[..] else {
        panic!("step 2 types one line");
    };
    let (_, listed): (String, Vec<Value>) = c.ask(list);
    assert_eq!(listed.len(), 1, "one owner never ends: {listed:?}");
    assert_eq!(locks(&server), ["crashed"]);
    assert!(PAGE.contains("delete each key that it names with `UNLINK`"));
    for key in locks(&server) {
        c.ask_command::<i64>(cmd("UNLINK").arg(key));
    }
    assert_eq!(locks(&server), [""; 0]);
    for line in typed(4) {
        c.run(line);
        server.await_aof();
    }
    remove_the_lines(&server);
    server.restart();
    let mut c = server.connection();
    let error = c.refusal("DLOCK.HELP");
    assert!(error.contains("unknown command"), "{error}");
    assert_eq!(c.ask::<String>("GET data"), "kept");
    // The RDB file alone suffices.
    server.stop();
    let file = server.config_path();
    let text = fs::read_to_string(&file).expect("the server's file");
    let text = text.replace("appendonly yes", "appendonly no");
    fs::write(&file, text).expect("the file can be written to");
    server.restart();
    assert_eq!(server.connection().ask::<String>("GET data"), "kept");
}

/// Three nodes under Sentinels. Each is stopped before its lines are removed: Sentinel makes the old primary write them back.
#[test]
fn the_steps_leave_three_nodes_without_the_module() {
    let mut nodes = [(); 3].map(|()| in_use());
    for node in &nodes[1..] {
        node.replica_of(&nodes[0]);
        node.connection().run("CONFIG REWRITE");
    }
    let watch = Watch {
        port: nodes[0].port(),
        quorum: 2,
        down_after_ms: 10_000,
        program: None,
    };
    let sentinels = [(); 3].map(|()| Sentinel::start(&watch));
    await_until("the Sentinels know all", PATIENCE, || {
        sentinels.iter().all(|sentinel| sentinel.knows() == (2, 2))
    });
    let mut c = nodes[0].connection();
    for line in typed(1) {
        c.run(line);
    }
    for key in locks(&nodes[0]) {
        c.ask_command::<i64>(cmd("UNLINK").arg(key));
    }
    for node in &nodes {
        node.await_aof();
        for line in typed(4) {
            node.connection().run(line);
            node.await_aof();
        }
    }
    for node in &mut nodes[1..] {
        node.stop();
        remove_the_lines(node);
        node.restart();
        await_until("it follows the primary", PATIENCE, || {
            node.info("replication").get("master_link_status") == Some("up")
        });
    }
    let old = &mut nodes[0];
    remove_the_lines(old);
    planned::fail_over(old, &sentinels[0]);
    await_until("the lines are there again", PATIENCE, || {
        let text = fs::read_to_string(old.config_path()).expect("the server's file");
        text.contains("\nloadmodule ") && text.contains("\nreplicaof ")
    });
    old.stop();
    remove_the_lines(old);
    old.restart();
    assert!(PAGE.contains("\nredis-cli MODULE LIST\n"));
    for node in &nodes {
        let modules: Value = planned::steadily(node, "MODULE LIST");
        assert!(!format!("{modules:?}").contains("dlock"), "{modules:?}");
        assert_eq!(planned::steadily::<String>(node, "GET data"), "kept");
    }
    assert_eq!(nodes.iter().filter(|node| is_primary(node)).count(), 1);
}

fn is_primary(server: &Server) -> bool {
    planned::steadily::<String>(server, "INFO replication").contains("role:master")
}

/// Step 3 is needed.
#[test]
fn a_lock_that_is_left_keeps_the_server_from_starting() {
    let mut server = in_use();
    let mut c = server.connection();
    for step in [1, 2, 4] {
        for line in typed(step) {
            c.run(line);
            server.await_aof();
        }
    }
    remove_the_lines(&server);
    server.stop();
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.restart()));
    assert!(started.is_err());
    await_until("the log says why", PATIENCE, || {
        let log = server.log();
        log.contains("dlock-obj") || log.contains("module")
    });
}
