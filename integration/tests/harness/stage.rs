//! The stage of the clients' tests: what is done to its cluster is done, whatever the machine does meanwhile.

use std::time::Duration;

use dlock_integration::server_program;
use dlock_integration::stage::Stage;

#[test]
fn a_move_waits_for_nodes_that_were_not_up() {
    assert_waits_for_the_starved(|stage, key| stage.move_slot(key));
}

#[test]
fn a_failover_waits_for_nodes_that_were_not_up() {
    assert_waits_for_the_starved(|stage, key| stage.fail_over(key));
}

#[test]
fn a_crash_waits_for_nodes_that_were_not_up() {
    assert_waits_for_the_starved(|stage, key| stage.crash(key));
}

/// A fault does what it is there for after what a busy machine does to a node: nobody lets it run, for longer than the others wait
/// for it at first.
fn assert_waits_for_the_starved(fault: fn(&mut Stage, &str) -> Result<String, String>) {
    let mut stage = Stage::start(&server_program());
    let key = "{a}key";
    let from = stage.master_of(key).expect("it is served");
    let other = (0..stage.cluster.len()).find(|&node| node != from && stage.is_master(node));
    let other = &stage.cluster[other.expect("there are three masters")];
    other.freeze();
    std::thread::sleep(Duration::from_secs(3));
    other.thaw();
    fault(&mut stage, key).expect("it is carried out");
    assert_ne!(stage.master_of(key).expect("it is served"), from);
}
