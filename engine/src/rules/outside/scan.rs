//! The scan, once a second, over all names with waiters and all tied holds. It finds what the server does not report.
//!
//! Every server reports when a value leaves its name. The module subscribes to no event of a value that arrives at a name (RENAME,
//! MOVE, SET). So the scan opens the awaited names that have no value: the others are as their last settlement left them. Of a tied
//! hold it checks the hold and its lease.
//!
//! A scan runs in steps, so that it stalls nobody. A request that uses a lock before the scan reaches it finds the same.

use crate::holds::{Loss, TieId};
use crate::keyspace::Keyspace;
use crate::queue::LockId;
use crate::state::{Engine, ScanCursor};
use crate::types::Now;
use std::ops::Bound::{Excluded, Unbounded};

impl Engine {
    /// Begins a scan, unless one is running, and frees what is kept of sessions that are over.
    pub fn begin_scan(&mut self) {
        self.drop_spares();
        if matches!(self.scan, ScanCursor::Over) && !self.is_idle() {
            self.scan = ScanCursor::Names(Unbounded);
        }
    }

    /// Scans the next `most` names and ties. Call it only when this server would accept a write now. Returns true if something is
    /// left.
    pub fn scan_step(&mut self, keys: &mut impl Keyspace, now: Now, most: usize) -> bool {
        for _ in 0..most {
            self.scan = match self.scan {
                ScanCursor::Over => return false,
                ScanCursor::Names(from) => match self.queues.next_awaited(from) {
                    None => ScanCursor::Ties(TieId::default()),
                    Some(lock) => {
                        self.scan_name(keys, lock);
                        ScanCursor::Names(Excluded(lock))
                    }
                },
                ScanCursor::Ties(after) => match self.holds.ties.after(after) {
                    None => {
                        self.forget_windows(now);
                        ScanCursor::Over
                    }
                    Some((id, _)) => {
                        self.scan_tie(keys, now, id);
                        ScanCursor::Ties(id)
                    }
                },
            };
        }
        !matches!(self.scan, ScanCursor::Over)
    }

    /// Marks this lock if a value has arrived at its name.
    fn scan_name(&mut self, keys: &mut impl Keyspace, lock: LockId) {
        let queue = self.queues.at(lock);
        if !queue.dirty && keys.inspect(queue.name.as_ref(), &mut |_| {}) {
            self.mark_stale(lock);
        }
    }

    /// Records the loss of a tied hold that has left its name, and marks its lock if the lease is over and the key still there.
    fn scan_tie(&mut self, keys: &mut impl Keyspace, now: Now, id: TieId) {
        let Some(tie) = self.holds.ties.get(id) else {
            return;
        };
        let name = tie.name();
        let mut end = None;
        keys.inspect(name, &mut |lock| {
            let hold = lock.hold(tie.owner()).filter(|hold| hold.token == id.token);
            end = hold.map(|hold| hold.deadline);
        });
        match end {
            // Not every server reports the keys that leave with a slot.
            None if keys.moved(name) => self.holds.lose(id, Loss::Moved, now.wall()),
            None => self.holds.lose(id, Loss::Removed, now.wall()),
            Some(end) if end <= now.wall() => {
                let lock = self.queues.id_or_new(name);
                self.mark(lock);
            }
            Some(_) => {}
        }
    }
}
