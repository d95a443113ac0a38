//! The stage of the clients' tests: its commands have done their work when they return, however busy the machine.

use std::time::Duration;

use dlock_harness::stage::Stage;
use dlock_harness::{server_program, Ask, Wire, PATIENCE};

/// A busy machine keeps a node from running for longer than the others wait for it at first. The faults come one after the other,
/// as in the clients' tests: nodes refuse a second vote soon after a first.
#[test]
fn faults_wait_for_nodes_that_were_not_up() {
    let mut stage = Stage::start(&server_program());
    let key = "{a}key";
    let starve = |stage: &Stage| {
        let from = stage.master_of(key).expect("it is served");
        let mut others = (0..stage.cluster.len()).filter(|&node| node != from);
        let other = others.find(|&node| stage.is_master(node));
        let other = &stage.cluster[other.expect("there are three masters")];
        other.freeze();
        std::thread::sleep(Duration::from_secs(3));
        other.thaw();
    };
    let mut served = vec![stage.master_of(key).expect("it is served")];
    for fault in ["move", "failover", "crash"] {
        starve(&stage);
        let done = match fault {
            "move" => stage.move_slot(key),
            "failover" => stage.fail_over(key),
            _ => stage.crash(key),
        };
        done.unwrap_or_else(|why| panic!("{fault}: {why}"));
        served.push(stage.master_of(key).expect("it is served"));
    }
    let changes = served.windows(2).filter(|two| two[0] != two[1]);
    assert_eq!(changes.count(), 3, "{served:?}");
}

#[test]
fn the_primary_of_the_pair_can_be_occupied() {
    let mut stage = Stage::start(&server_program());
    assert!(stage.idle().is_err());
    let error = |address: &str| {
        let port = address
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        let mut connection = Wire::open(port.expect("a port"), PATIENCE).expect("a server");
        connection.try_ask("PING").err().unwrap_or_default()
    };
    let address = stage.busy().expect("a script runs");
    assert!(error(&address).starts_with("BUSY"));
    // A new occupation replaces the old one.
    stage.loading().expect("the server loads");
    assert!(error(&address).starts_with("LOADING"));
    stage.idle().expect("the server has loaded");
    assert_eq!(error(&address), "");
}
