//! The look that finds what the server does not tell: once a second, over all that is waited for or tied here.
//!
//! Every server tells when a value leaves its name; when one comes to a name (RENAME, MOVE, SET) the module listens to none. So
//! what is waited for is looked at where it has no value: the others are as their last settlement left them. What is tied is
//! looked at for its hold and its lease.
//!
//! A look goes in steps, so that it stalls nobody. What it has not found yet the next use of the lock finds.

use crate::holds::Loss;
use crate::keyspace::Keyspace;
use crate::queue::LockId;
use crate::state::{Engine, ScanCursor};
use crate::types::{Now, Token};
use std::ops::Bound::{Excluded, Unbounded};

impl Engine {
    /// Begins a look, if none is under way.
    pub fn begin_look(&mut self) {
        if matches!(self.scan, ScanCursor::Over) && !self.is_idle() {
            self.scan = ScanCursor::Names(Unbounded);
        }
    }

    /// Takes a look at the next of what is waited for or tied, `most` of it. To be called only when this server would accept a
    /// write now. Returns true if something is left.
    pub fn look(&mut self, keys: &mut impl Keyspace, now: Now, most: usize) -> bool {
        for _ in 0..most {
            self.scan = match self.scan {
                ScanCursor::Over => return false,
                ScanCursor::Names(from) => match self.queues.next_awaited(from) {
                    None => ScanCursor::Ties(Token(0)),
                    Some(lock) => {
                        self.look_at_name(keys, lock);
                        ScanCursor::Names(Excluded(lock))
                    }
                },
                ScanCursor::Ties(after) => match self.holds.ties.after(after) {
                    None => ScanCursor::Over,
                    Some((token, _)) => {
                        self.look_at_tie(keys, now, token);
                        ScanCursor::Ties(token)
                    }
                },
            };
        }
        !matches!(self.scan, ScanCursor::Over)
    }

    /// A value may have come to this name.
    fn look_at_name(&mut self, keys: &mut impl Keyspace, lock: LockId) {
        let queue = self.queues.at(lock);
        if !queue.dirty && keys.inspect(queue.name.as_ref(), &mut |_| {}) {
            self.mark_stale(lock);
        }
    }

    /// This hold may be gone from its name, or its lease may be over without the server having removed the key.
    fn look_at_tie(&mut self, keys: &mut impl Keyspace, now: Now, token: Token) {
        let Some(tie) = self.holds.ties.get(token) else {
            return;
        };
        let name = tie.name();
        let mut end = None;
        keys.inspect(name, &mut |lock| {
            let hold = lock.hold(tie.owner()).filter(|hold| hold.token == token);
            end = hold.map(|hold| hold.deadline);
        });
        match end {
            // Not every server tells of the keys that go with a slot.
            None if keys.moved(name) => self.holds.lose(token, Loss::Moved, now.wall()),
            None => self.holds.lose(token, Loss::Removed, now.wall()),
            Some(end) if end <= now.wall() => {
                let lock = self.queues.id_or_new(name);
                self.mark(lock);
            }
            Some(_) => {}
        }
    }
}
