//! Losses of ties, and the heartbeat that reports them (`DLOCK.KEEP`).

use crate::holds::{KeepReply, Loss};
use crate::lock::End;
use crate::refusal::Refusal;
use crate::state::Engine;
use crate::types::{ClientId, Millis, NameRef, Now, Party, RequestId, Token};

/// The most ended ties that one command records.
const ENDED_A_STEP: usize = 4096;

impl Engine {
    /// Counts a hold that has ended with its key, and reports it to its connection.
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

    /// Extends the bounds of a connection's ties to `ms` from now; none becomes shorter. Holds whose lease has ended count as lost,
    /// even if the server has not ended them yet. Returns the number under which the reply waits if replicas must confirm what the
    /// heartbeat prolongs; otherwise [`Engine::keep_reply`] has the reply.
    ///
    /// Errors: `NoAck` if replicas must confirm it and cannot.
    pub fn keep(
        &mut self,
        now: Now,
        client: ClientId,
        ms: Millis,
    ) -> Result<Option<RequestId>, Refusal> {
        self.policy.confirmable(now)?;
        self.end_ties(now, Party::Connection(client));
        self.holds.ties.keep(client, ms, now.steady());
        let prolongs = self.holds.ties.next_of(Party::Connection(client), None);
        let prolongs = prolongs.is_some();
        Ok((self.policy.confirms() && prolongs).then(|| self.confirm_keep(now, client)))
    }

    /// Returns the reply to `DLOCK.KEEP`, and forgets the losses that it reports.
    pub fn keep_reply(&mut self, now: Now, client: ClientId) -> KeepReply {
        self.end_ties(now, Party::Connection(client));
        self.holds.ties.keep_reply(client)
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
