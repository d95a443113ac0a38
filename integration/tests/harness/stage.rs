//! The stage of the clients' tests: what is done to its cluster is done, whatever the machine does meanwhile.

use std::time::Duration;

use dlock_integration::server_program;
use dlock_integration::stage::Stage;

/// What a busy machine does to a node: nobody lets it run, for longer than the others wait for it at first. One fault after the
/// other, as the clients' tests have them: nodes refuse a second vote soon after a first.
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
