//! Slots that move while their locks have holders and waiters.

use std::thread;
use std::time::Duration;

use dlock_harness::until;
use fastrand::Rng;

use super::{text, Cluster};
use crate::fault::Fault;
use crate::nodes::PATIENCE;

/// Rounds of searching for keys that are left; more than a few are needed only after a fault.
const SWEEPS: usize = 50;

impl Cluster {
    /// Moves a slot from a primary to another one. Returns whether the move was completed.
    pub(super) fn move_slot(
        &self,
        fault: Fault,
        slot: usize,
        from: usize,
        random: &mut Rng,
    ) -> bool {
        let primaries: Vec<usize> = (0..self.group.nodes.len())
            .filter(|number| *number != from && self.group.nodes[*number].is_primary())
            .collect();
        if primaries.is_empty() {
            return false;
        }
        let to = primaries[random.usize(..primaries.len())];
        if fault == Fault::Migrate {
            self.migrate(slot, from, to, random)
        } else {
            self.move_at_once(slot, from, to)
        }
    }

    /// Moves it key by key, as tools for clusters do.
    fn migrate(&self, slot: usize, from: usize, to: usize, random: &mut Rng) -> bool {
        let (source, target) = (&self.group.nodes[from], &self.group.nodes[to]);
        let source_id = text(source, "CLUSTER MYID");
        let target_id = text(target, "CLUSTER MYID");
        target.say(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
        source.say(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
        let mut pause = || thread::sleep(Duration::from_millis(random.u64(0..200)));
        let mut is_empty = false;
        for _ in 0..SWEEPS {
            pause();
            let keys: Vec<String> = source
                .ask(&format!("CLUSTER GETKEYSINSLOT {slot} 100"))
                .unwrap_or_default();
            is_empty = keys.is_empty();
            if is_empty {
                break;
            }
            for key in keys {
                let port = target.server.port();
                source.say(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
                pause();
            }
        }
        let line = format!("CLUSTER SETSLOT {slot} NODE {target_id}");
        target.say(&line);
        source.say(&line);
        is_empty
    }

    /// Moves it in one step, by the server itself.
    fn move_at_once(&self, slot: usize, from: usize, to: usize) -> bool {
        let (source, target) = (&self.group.nodes[from], &self.group.nodes[to]);
        let is_valkey = source.server.version().is_valkey(9, 0);
        let target_id = text(target, "CLUSTER MYID");
        let door = target.door.port();
        // A server has one such move at a time and refuses a second until it has tidied up after the first.
        until(PATIENCE, || {
            if is_valkey {
                source.say(&format!(
                    "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {target_id}"
                ));
            } else {
                target.say(&format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
            }
            until(Duration::from_secs(3), || {
                let table = self.table_of(source);
                table.is_some_and(|table| table.get(slot) == Some(&door))
            })
        })
    }
}
