//! The end of parties: of the holds that end with them, and of the requests of sessions.

use crate::holds::{Tie, TieId};
use crate::keyspace::{exists, Keyspace};
use crate::lock::{End, Hold};
use crate::log::How;
use crate::outbox::Outcome;
use crate::rules::requests::hold::held;
use crate::state::{Ending, Engine, Fate};
use crate::types::{ClientId, Now, Party, RequestId};
use std::collections::BTreeMap;

/// The most holds and places of ended parties that one settlement clears away.
const CLEARED_A_STEP: usize = 1024;

impl Engine {
    /// Notes that a connection has ended: its ties are cleared away as soon as changes are possible. The request that blocked it ends
    /// by [`Engine::leave`]. The sessions that it kept are no longer alive.
    pub fn on_disconnect(&mut self, client: ClientId, now: Now) {
        let party = Party::Connection(client);
        match self.holds.ties.next_of(party, None) {
            Some(_) => self.end_party(party, Fate::Closes),
            None => self.holds.ties.forget(party),
        }
        for session in self.holds.sessions.kept_by(client) {
            self.no_longer_alive(session, now);
        }
    }

    /// Notes that a party has ended. What belonged to it is cleared away in steps.
    pub(in crate::rules) fn end_party(&mut self, party: Party, fate: Fate) {
        self.holds.ties.order_all(party);
        self.ended.insert(party, Ending { after: None, fate });
    }

    /// Clears away one step of the holds and places of parties that have ended. Returns true if something is left that could
    /// continue at once.
    pub(in crate::rules) fn clear_away(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let mut refused = BTreeMap::new();
        let mut room = CLEARED_A_STEP;
        while let Some((&party, &ending)) = self.ended.first_key_value().filter(|_| room > 0) {
            room -= 1;
            if let Some(id) = self.next_request(party) {
                self.end_wait_later(id, now, Outcome::Gone);
                continue;
            }
            let Some(id) = self.holds.ties.next_of(party, ending.after) else {
                self.ended.remove(&party);
                if self.holds.ties.next_of(party, None).is_some() {
                    let after = None;
                    refused.insert(party, Ending { after, ..ending });
                } else {
                    self.forget_party(party, ending.fate);
                }
                continue;
            };
            let tie = self.holds.ties.get(id);
            let ends = tie.and_then(|tie| Some((tie.clone(), ending.fate.of(tie)?)));
            let Some((tie, end)) = ends else {
                // Its lease runs on to its end.
                self.holds.ties.untie(id);
                continue;
            };
            let name = tie.name();
            if keys.can_write(name) {
                // The end of a hold opens a key and hands a lock over; a place only goes.
                room = room.saturating_sub(3);
                self.end_with_party(keys, now, id, &tie, end);
            } else if !exists(keys, name) {
                // The lock has left with its slot.
                self.holds.ties.untie(id);
            } else {
                // The server accepts no change of it now: it is tried again, after all others.
                let after = Some(id);
                self.ended.insert(party, Ending { after, ..ending });
            }
        }
        let left = !self.ended.is_empty();
        self.ended.append(&mut refused);
        left
    }

    /// Returns the next request of a party that is a session.
    fn next_request(&self, party: Party) -> Option<RequestId> {
        let no = self.holds.sessions.of_party(party)?;
        self.holds.sessions.get(no)?.waits.first().copied()
    }

    fn forget_party(&mut self, party: Party, fate: Fate) {
        self.holds.ties.forget(party);
        let session = self.holds.sessions.of_party(party);
        if let Some(no) = session.filter(|_| fate == Fate::Releases) {
            self.forget_session(no);
        }
    }

    fn end_with_party(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        id: TieId,
        tie: &Tie,
        end: End,
    ) {
        let (name, token) = (tie.name(), id.token);
        let lock = self.queues.id(name);
        if lock.is_none() {
            // With a queue, a settlement would serve it too early (see below).
            let _ = self.settled(keys, now, name);
        }
        self.close_if_leaving(keys, name);
        let entry = keys.entry(name);
        let lives = |hold: Hold| hold.deadline > now.wall();
        if held(entry, tie.owner(), Some(token)).is_ok_and(lives) {
            let how = match end {
                End::Released => How::Session,
                end => How::Ended(end),
            };
            self.holds
                .end(&self.queues, entry, tie.whose(), token, how, now);
            // Its queue is served when all holds of the party have ended: a request for several of them gets them together.
            if let Some(lock) = self.queues.id(name) {
                self.mark(lock);
            }
        }
        self.holds.ties.untie(id);
    }
}

impl Fate {
    /// Returns how a hold of the party ends; none if its lease runs on.
    fn of(self, tie: &Tie) -> Option<End> {
        match self {
            Fate::Closes => tie.ephemeral.then_some(End::Closed),
            Fate::Releases => Some(End::Released),
            Fate::Unties => None,
        }
    }
}
