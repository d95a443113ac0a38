//! Holds that have ended or left behind a party's back.

use crate::holds::Loss;
use crate::lock::End;
use crate::state::Engine;
use crate::types::{NameRef, Now, Party, Token};

/// The most ended ties that one command records.
const ENDED_A_STEP: usize = 4096;

impl Engine {
    /// Counts a hold that has ended with its key, and tells its session.
    pub fn on_hold_removed(&mut self, name: NameRef, end: End, token: Token, now: Now) {
        self.holds.lose_by(name, token, end);
        self.holds.counters.gone(end, token, now);
    }

    /// Unties a hold that has left with its key, to another name or with its slot. The hold goes on there.
    pub fn on_hold_left(&mut self, name: NameRef, token: Token, why: Loss, now: Now) {
        if let Some(id) = self.holds.ties.find(name, token) {
            self.holds.lose(id, why, now.wall());
        }
    }

    /// Unties all holds of the locks that have left.
    pub fn on_locks_left(&mut self, left: impl Fn(NameRef) -> bool, why: Loss, now: Now) {
        for id in self.holds.ties.of(left) {
            self.holds.lose(id, why, now.wall());
        }
    }

    /// Records the ties of a party whose leases have ended as lost, about as many as one event should.
    pub(in crate::rules) fn end_ties(&mut self, now: Now, party: Party) {
        self.holds.ties.order(party);
        for _ in 0..ENDED_A_STEP {
            let Some(id) = self.holds.ties.ended(party, now.wall()) else {
                break;
            };
            let Some(tie) = self.holds.ties.get(id) else {
                break;
            };
            let lock = self.queues.id_or_new(tie.name());
            self.holds.lose_as(id, Loss::Expired);
            self.mark(lock);
        }
    }
}
