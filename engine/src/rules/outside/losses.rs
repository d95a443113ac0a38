//! Holds that have ended or left behind a party's back.

use crate::holds::Loss;
use crate::lock::End;
use crate::log::How;
use crate::state::Engine;
use crate::types::{ClientId, HoldRef, NameRef, Now, Party, Token};

/// The most ended ties that one command records.
const ENDED_A_STEP: usize = 4096;

/// A hold that has gone with its key.
#[derive(Debug, Clone, Copy)]
pub struct Lost {
    /// Its token.
    pub token: Token,
    /// The connection that last took or entered it.
    pub client: ClientId,
    /// Whether it is logged: of a mass, only as many as the log keeps.
    pub logged: bool,
}

impl Engine {
    /// Counts a hold that has ended with its key, logs it, and tells its session.
    pub fn on_hold_removed(&mut self, whose: HoldRef, end: End, lost: Lost, now: Now) {
        let token = lost.token;
        if lost.logged {
            let how = How::Ended(end);
            self.holds
                .log_hold(&self.queues, whose, token, lost.client, how, now);
        }
        self.holds.lose_at_end(whose.name, token, end);
        self.holds.counters.gone(end, token, now);
    }

    /// Removes the tie of a hold that has left with its key, to another name or with its slot. The hold continues there.
    pub fn on_hold_left(&mut self, whose: HoldRef, lost: Lost, why: Loss, now: Now) {
        let token = lost.token;
        if why == Loss::Renamed && lost.logged {
            let how = How::Renamed;
            self.holds
                .log_hold(&self.queues, whose, token, lost.client, how, now);
        }
        if let Some(id) = self.holds.ties.find(whose.name, token) {
            self.holds.lose(id, why, now.wall());
        }
    }

    /// Removes the ties of all holds of the locks that have left.
    pub fn on_locks_left(&mut self, left: impl Fn(NameRef) -> bool, why: Loss, now: Now) {
        for id in self.holds.ties.of(left) {
            self.holds.lose(id, why, now.wall());
        }
    }

    /// Records the ties of a party whose leases have ended as lost, about as many as one event should.
    pub(in crate::rules) fn end_ties(&mut self, now: Now, party: Party) {
        self.holds.ties.order_all(party);
        for _ in 0..ENDED_A_STEP {
            let Some(id) = self.holds.ties.ended(party, now.wall()) else {
                break;
            };
            let Some(tie) = self.holds.ties.get(id) else {
                break;
            };
            let lock = self.queues.id_or_new(tie.name());
            self.holds.lose_for(id, Loss::Expired);
            self.mark(lock);
        }
    }
}
