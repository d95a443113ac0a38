//! The update of a group, as `docs/upgrade.md` says, while jobs hold locks.

use super::*;
use dlock_harness::{planned, Grant, Sentinel, ServerBuilder, Watch, PRIMARY};

const PAGE: &str = include_str!("../../../../docs/upgrade.md");

/// Three nodes are started again, one after the other, to the letter of the page. A node that is started again needs a full copy, and
/// counts a quarantine later, which is longer than the leases: so an operator who continues too soon loses every hold.
#[test]
fn an_update_of_three_nodes_keeps_all_holds() {
    let member = || {
        let words = ["replicas", "2", "quarantine-ms", "6000"];
        let with = |builder: ServerBuilder, word: &&str| builder.module_argument(word);
        let builder = words.iter().fold(Server::builder(), with);
        builder.config("appendonly", "yes").start()
    };
    let mut nodes = [member(), member(), member()];
    let primary = nodes[0].port();
    for node in &nodes[1..] {
        node.replica_of(&nodes[0]);
        node.connection().run("CONFIG REWRITE");
    }
    let watch = Watch {
        port: primary,
        quorum: 2,
        down_after_ms: 10_000,
        program: None,
    };
    let sentinels = [(); 3].map(|()| Sentinel::start(&watch));
    await_until("the Sentinels know all", PATIENCE, || {
        sentinels.iter().all(|sentinel| sentinel.knows() == (2, 2))
    });
    let at = sentinels.iter();
    let at: Vec<String> = at.map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let at = at.join(",");
    let group = |words: &[&str]| {
        let all = [&["--sentinel", &at, "--primary", PRIMARY], words].concat();
        dlock_at("redis://127.0.0.1:1", &all)
    };
    assert!(PAGE.contains("\n   dlock check --wait "));
    let wait = || {
        let (code, said, told) = said(group(&["check", "--wait"]).output().expect("an end"));
        assert_eq!(code, 0, "{said}{told}");
    };
    wait();
    let jobs = [("tied", "-q"), ("free", "--no-ephemeral")];
    let mut running = Vec::new();
    for (lock, option) in jobs {
        let words = ["run", "-l", "5s", option, lock, "--", "sleep", "600"];
        running.push((lock, Running::spawn(group(&words))));
    }
    let held = |server: &Server, lock: &str| {
        planned::steadily::<Option<(u64, u64, u64, String)>>(server, &format!("DLOCK.HELD {lock}"))
    };
    let mut tokens = Vec::new();
    for (lock, _) in jobs {
        await_until("the job has its lock", PATIENCE, || {
            held(&nodes[0], lock).is_some()
        });
        tokens.push(held(&nodes[0], lock).expect("a holder").0);
    }
    // 1. The replicas, one after the other.
    for node in &mut nodes[1..] {
        node.restart();
        wait();
    }
    // 2. One of them takes over; 3. the old primary.
    planned::fail_over(&nodes[0], &sentinels[0]);
    wait();
    nodes[0].restart();
    wait();
    let primary = nodes
        .iter()
        .find(|node| node.port() == sentinels[0].primary());
    let primary = primary.expect("one of them");
    for ((lock, _), token) in jobs.iter().zip(tokens) {
        let now = held(primary, lock).map(|held| held.0);
        assert_eq!(now, Some(token), "{lock}");
    }
    let _: Grant = planned::steadily(primary, "DLOCK.ACQUIRE other alice 1000");
    for (lock, mut job) in running {
        let job = job.0.as_mut().expect("it was not waited for");
        assert!(job.try_wait().expect("a child").is_none(), "{lock}");
    }
}
