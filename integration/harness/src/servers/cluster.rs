//! Several servers that form one cluster.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::machine::patience::{await_until, PATIENCE};
use crate::servers::server::Server;
use crate::talk::ask::Ask;

/// After how long nodes that do not know each other yet are introduced again: a handshake that takes longer than the servers wait is
/// given up.
const AGAIN: Duration = Duration::from_secs(5);

/// The number of slots of a cluster.
pub const SLOTS: usize = 16_384;

/// Returns the slots of a master's equal part.
pub fn equal_part(number: usize, masters: usize) -> RangeInclusive<usize> {
    number * SLOTS / masters..=(number + 1) * SLOTS / masters - 1
}

/// Divides all slots among masters that do not know each other yet.
#[track_caller]
pub fn divide_slots(masters: &[Server]) {
    for (number, master) in masters.iter().enumerate() {
        let mut connection = master.connection();
        connection.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
        let slots = equal_part(number, masters.len());
        let (first, last) = (slots.start(), slots.end());
        connection.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
    }
}

/// Introduces all nodes to each other, and makes each replica follow the master of its place, or, when all have one, the first again.
/// The masters serve all slots already.
#[track_caller]
pub fn join(masters: &[Server], replicas: &[Server]) {
    let all = || masters.iter().chain(replicas);
    let introduce = || {
        for node in all().skip(1) {
            let (port, bus) = (node.port(), node.bus_port());
            let line = format!("CLUSTER MEET 127.0.0.1 {port} {bus}");
            masters[0].connection().run(&line);
        }
        Instant::now()
    };
    let mut introduced = introduce();
    let count = all().count();
    for node in all() {
        let mut connection = node.connection();
        await_until("the nodes know each other", PATIENCE, || {
            if introduced.elapsed() > AGAIN {
                introduced = introduce();
            }
            let nodes: String = connection.ask("CLUSTER NODES");
            nodes.lines().count() == count && !nodes.contains("handshake")
        });
    }
    for (master, replica) in masters.iter().cycle().zip(replicas) {
        let id: String = master.connection().ask("CLUSTER MYID");
        let line = format!("CLUSTER REPLICATE {id}");
        let mut connection = replica.connection();
        // A node must know that the other is no replica before it can follow it.
        await_until("the replica follows", PATIENCE, || {
            connection.try_ask(&line).is_ok()
        });
        replica.wait_in_sync(master);
    }
    for node in all() {
        let mut connection = node.connection();
        await_until("the cluster is up", PATIENCE, || {
            let info: String = connection.ask("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
        });
        node.trust_other_nodes();
    }
}
