//! Renewals by the server, for connections that asked for them (`AUTO`) and for sessions.

use crate::holds::{next_renewal, Auto, Loss, Renewal, Tie, TieId};
use crate::keyspace::{exists, Entry, Keyspace, Value};
use crate::lock::Hold;
use crate::outbox::{Outcome, Output, Pending, Promise, Receiver};
use crate::rules::requests::hold::held;
use crate::state::Engine;
use crate::types::{Now, Party};
use std::rc::Rc;

/// The most holds that one settlement renews.
pub(super) const RENEWED_A_STEP: usize = 256;

impl Engine {
    /// Renews one step of the holds whose renewal is due. Returns true if something is left that could continue at once: not after a
    /// step in which the server accepted no change.
    pub(in crate::rules) fn renew_due(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let (mut refused, mut prolonged) = (Vec::new(), Vec::new());
        let mut taken = 0;
        for _ in 0..RENEWED_A_STEP {
            let Some(id) = self.holds.ties.next_due() else {
                break;
            };
            taken += 1;
            let Some(tie) = self.holds.ties.get(id).cloned() else {
                continue;
            };
            let renews = |auto: Auto| auto.is_due(now.steady()) || auto.is_paused();
            if !tie.auto.is_some_and(renews) {
                continue;
            }
            if !self.may_renew(&tie, now) {
                let next = match tie.party {
                    Party::Connection(_) => Renewal::Stopped,
                    Party::Session(_) => Renewal::Paused,
                };
                self.holds.ties.renewed(id, tie.end, next);
            } else if keys.can_write(tie.name()) {
                self.close_if_leaving(keys, tie.name());
                self.renew_for(keys, now, id, &tie);
                prolonged.extend(self.unconfirmed_end(id));
            } else if exists(keys, tie.name()) {
                refused.push(id);
            } else {
                // The lock has left with its slot.
                self.holds.lose(id, Loss::Moved, now.wall());
            }
        }
        let left = self.holds.ties.has_due() && refused.len() < taken;
        self.holds.ties.put_off(refused);
        if !prolonged.is_empty() {
            // An end that has passed needs no confirmation.
            let last = prolonged.iter().map(|promise| promise.end).max();
            let left = last.map_or(0, |end| end.since(now.wall()));
            let pending = Pending::new(prolonged, Some(now.steady().after(left)));
            self.outbox.push(Output {
                to: Receiver::Nobody,
                ..Output::new(self.requests.next_id(), Outcome::Prolonged, pending)
            });
        }
        left
    }

    /// Returns the promise that a renewal makes to the session of a hold, where replicas confirm it.
    fn unconfirmed_end(&self, id: TieId) -> Option<Promise> {
        let tie = self.holds.ties.get(id).filter(|_| self.policy.confirms())?;
        tie.confirmed?;
        Some(Promise {
            name: tie.name().to_owned(),
            owner: Rc::from(tie.owner()),
            token: id.token,
            end: tie.end,
            is_new: false,
            session: None,
            ticket: None,
        })
    }

    /// Returns true if the party of a tie lives: a connection that is open, and whose bound has not passed, or a session.
    fn may_renew(&self, tie: &Tie, now: Now) -> bool {
        match tie.party {
            Party::Connection(_) => {
                !self.holds.ties.is_over(tie, now.steady()) && !self.ended.contains_key(&tie.party)
            }
            Party::Session(_) => {
                let session = self.holds.sessions.of_party(tie.party);
                session.is_some_and(|no| self.holds.sessions.is_alive(no))
            }
        }
    }

    /// Renews a hold that has not ended.
    fn renew_for(&mut self, keys: &mut impl Keyspace, now: Now, id: TieId, tie: &Tie) {
        let name = tie.name();
        let entry = keys.entry(name);
        match held(entry, tie.owner(), Some(id.token)) {
            Err(_) => self.holds.lose(id, Loss::Removed, now.wall()),
            Ok(hold) if hold.deadline < now.wall() => {
                let lock = self.queues.id_or_new(name);
                self.mark(lock);
            }
            Ok(hold) => {
                self.prolong(entry, now, hold, id, tie);
                self.settle_name(keys, now, name);
            }
        }
    }

    /// Renews a hold for its full lease, within the current limits.
    fn prolong(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        hold: Hold,
        id: TieId,
        tie: &Tie,
    ) {
        let (Some(auto), token) = (tie.auto, hold.token) else {
            return;
        };
        let lease = auto.lease.min(self.policy.max_lease_ms);
        let wanted = now.wall().after(lease);
        let bounded = self.policy.bounded(token, wanted);
        let deadline = bounded.max(hold.deadline);
        if deadline != hold.deadline {
            entry.set_hold(Hold {
                owner: tie.owner(),
                deadline,
                ..hold
            });
            self.holds.counters.renewals += 1;
            self.holds.counters.auto_renewals += 1;
        }
        let next = if bounded < wanted {
            // It has reached `max-hold-ms`.
            if let Party::Session(_) = tie.party {
                self.holds.ties.renewed(id, deadline, Renewal::Stopped);
                return self.holds.lose_for(id, Loss::Taken);
            }
            Renewal::Stopped
        } else {
            Renewal::At(next_renewal(token, lease, now))
        };
        self.holds.ties.renewed(id, deadline, next);
    }

    /// Renews a hold whose renewal is due in the very moment in which its lease ends.
    pub(in crate::rules) fn renew_in_time(
        &mut self,
        entry: &mut Entry<impl Value>,
        now: Now,
        id: TieId,
    ) {
        let Some(tie) = self.holds.ties.get(id).cloned() else {
            return;
        };
        let resumed = || self.holds.ties.is_resumed(id);
        let renews = |auto: Auto| auto.is_due(now.steady()) || auto.is_paused() && resumed();
        let due = tie.auto.is_some_and(renews);
        let Ok(hold) = held(entry, tie.owner(), Some(id.token)) else {
            return;
        };
        if due && hold.deadline >= now.wall() && self.may_renew(&tie, now) {
            self.prolong(entry, now, hold, id, &tie);
        }
    }
}
