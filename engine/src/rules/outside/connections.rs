//! The end of connections: of the holds that end with them, and of their requests by a channel.

use crate::holds::{Tie, TieId};
use crate::keyspace::{exists, Keyspace};
use crate::lock::{End, Hold};
use crate::outbox::Outcome;
use crate::rules::requests::hold::held;
use crate::state::Engine;
use crate::types::{ClientId, Now};
use std::collections::BTreeMap;

/// The most holds and places of ended connections that one settlement clears away.
const CLEARED_A_STEP: usize = 1024;

impl Engine {
    /// Notes that a connection has ended: its ties and its requests by a channel are cleared away as soon as changes are possible.
    /// The request that blocked it ends by [`Engine::leave`].
    pub fn on_disconnect(&mut self, client: ClientId) {
        let tied = self.holds.ties.next_of(client, None).is_some();
        if tied || self.requests.notified(client).is_some() {
            self.disconnected.insert(client, None);
        } else {
            self.holds.ties.forget(client);
        }
    }

    /// Clears away one step of the holds and places of connections that have ended. Returns true if something is left that could
    /// go on at once.
    pub(in crate::rules) fn clear_away(&mut self, keys: &mut impl Keyspace, now: Now) -> bool {
        let mut refused = BTreeMap::new();
        let mut room = CLEARED_A_STEP;
        while let Some((&client, &after)) = self.disconnected.first_key_value().filter(|_| room > 0)
        {
            room -= 1;
            if let Some(id) = self.requests.notified(client) {
                self.end_wait_later(id, now, Outcome::Gone);
                continue;
            }
            let Some(id) = self.holds.ties.next_of(client, after) else {
                self.disconnected.remove(&client);
                match self.holds.ties.next_of(client, None) {
                    Some(_) => drop(refused.insert(client, None)),
                    None => self.holds.ties.forget(client),
                }
                continue;
            };
            let tie = self.holds.ties.get(id).cloned();
            let Some(tie) = tie.filter(|tie| tie.ephemeral) else {
                // Its lease runs on to its end.
                self.holds.ties.untie(id);
                continue;
            };
            let name = tie.name();
            if keys.can_write(name) {
                // The end of a hold opens a key and hands a lock over; a place only goes.
                room = room.saturating_sub(3);
                self.end_ephemeral(keys, now, id, &tie);
            } else if !exists(keys, name) {
                // The lock has left with its slot.
                self.holds.ties.untie(id);
            } else {
                // The server accepts no change of it now: it is tried again, after all others.
                self.disconnected.insert(client, Some(id));
            }
        }
        let left = !self.disconnected.is_empty();
        self.disconnected.append(&mut refused);
        left
    }

    fn end_ephemeral(&mut self, keys: &mut impl Keyspace, now: Now, id: TieId, tie: &Tie) {
        let (name, token) = (tie.name(), id.token);
        let lock = self.queues.id(name);
        if lock.is_none() {
            drop(self.settled(keys, now, name));
        }
        self.close_if_leaving(keys, name);
        let entry = keys.entry(name);
        let lives = |hold: Hold| hold.deadline > now.wall();
        if held(entry, tie.owner(), Some(token)).is_ok_and(lives) {
            self.holds.end(entry, tie.whose(), token, End::Closed, now);
            // Its queue is served when all holds of the connection have ended: a request for several of them gets them together.
            if let Some(lock) = self.queues.id(name) {
                self.mark(lock);
            }
        }
        self.holds.ties.untie(id);
    }
}
