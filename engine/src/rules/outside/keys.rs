//! Keys that arrive and leave without a command of the module's, and slots that leave. Such an event may come while nothing may be
//! changed, so it only marks the lock; a settlement makes the changes.

use crate::invariants::broken;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::lock::End;
use crate::log::How;
use crate::outbox::Outcome;
use crate::queue::{LockId, Place};
use crate::refusal::Refusal;
use crate::state::{Engine, Garbage};
use crate::types::{Arrival, ClientId, HoldRef, Millis, NameRef, Now, RequestId, SteadyMs};

/// How long a window that has ended is remembered: a value that has moved is found within a second, and its ticket goes then.
const WINDOW_KEPT_MS: Millis = 2_000;

/// How many places of sessions one settlement removes when their slots have left, about.
pub(in crate::rules) const MOVED_A_STEP: usize = 1024;

impl Engine {
    /// Marks a lock whose value may have been removed or replaced, or may have arrived. Costs one settlement where nobody is queued
    /// and nothing has to be watched.
    pub fn on_key_changed(&mut self, name: NameRef) {
        match self.queues.id(name) {
            Some(lock) => self.mark_stale(lock),
            None => self.arrived.push_back(name.to_owned()),
        }
    }

    /// Marks a lock whose value may have been removed, if it has a queue.
    pub fn on_key_removed(&mut self, name: NameRef) {
        self.mark_stale_name(name);
    }

    fn mark_stale_name(&mut self, name: NameRef) {
        if let Some(lock) = self.queues.id(name) {
            self.mark_stale(lock);
        }
    }

    /// Marks a lock whose value has moved to another name or database. The windows of its absent tickets run on there.
    pub fn on_key_moved(&mut self, name: NameRef) {
        if let Some(lock) = self.queues.id(name) {
            self.note_windows(lock);
            self.mark_stale(lock);
        }
    }

    /// Notes until when the absent tickets of a value that moves are kept. A ticket that a request waits on becomes absent there.
    pub(in crate::rules) fn note_windows(&mut self, lock: LockId) {
        for (number, place) in self.queues.at(lock).in_order() {
            match place.ticket.as_deref() {
                Some(window) if place.is_absent() => self.windows.insert(number, window.until),
                _ => self.windows.remove(&number),
            };
        }
    }

    /// Returns how long a ticket that has come with a value is kept: no longer than it would have been where it came from.
    pub(in crate::rules) fn window_left(
        &mut self,
        number: Arrival,
        claim: Millis,
        now: Now,
    ) -> Millis {
        let window = claim.max(self.policy.claim_window_ms);
        let noted = self.windows.remove(&number);
        noted.map_or(window, |until| until.since(now.steady()).min(window))
    }

    /// Forgets windows that ended a while ago: their tickets have not come to another name.
    pub(in crate::rules) fn forget_windows(&mut self, now: Now) {
        let ended = |until: SteadyMs| until.after(WINDOW_KEPT_MS) <= now.steady();
        self.windows.retain(|_, until| !ended(*until));
    }

    pub(in crate::rules) fn mark_stale(&mut self, lock: LockId) {
        self.mark_stale_value(lock);
        self.mark(lock);
    }

    /// Returns true if anybody is queued for this lock, or it is watched.
    pub fn watches(&self, name: NameRef) -> bool {
        self.queues.id(name).is_some()
    }

    /// Applies what another server has decided on a lock: the primary of this replica, by its stream or the AOF, or, on a primary,
    /// the node that a slot comes from (`primary`). The effect is passed on as it came: this server's own AOF and replicas get the
    /// same bytes. If it `happens_now`, and is not read from an AOF, the engine logs ends of holds that are not ordinary, and learns from
    /// the numbers how far this server's clock is ahead.
    ///
    /// Errors: `WrongType`; `Malformed` and `NewerFormat` for an effect that cannot be read. Nothing has changed then.
    pub fn follow(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        name: NameRef,
        effect: &[u8],
        primary: bool,
        happens_now: bool,
    ) -> Result<(), Refusal> {
        let entry = keys.entry(name);
        if entry.foreign {
            return Err(Refusal::WrongType);
        }
        let (before, last) = (entry.holders() as i64, self.holds.tokens.last());
        // Collected first: the log is in the same table as the token clock, which is borrowed here.
        let mut ended = Vec::new();
        let log = &self.holds.log;
        entry.follow(effect, &mut self.holds.tokens, |owner, token, end| {
            if happens_now && (end != End::Released || log.is_long_hold(token, now)) {
                ended.push((Box::<[u8]>::from(owner), token, end));
            }
        })?;
        for (owner, token, end) in ended {
            let whose = HoldRef {
                name,
                owner: &owner,
            };
            let how = How::Ended(end);
            self.holds
                .log_hold(&self.queues, whose, token, ClientId::NONE, how, now);
        }
        let number = self.holds.tokens.last();
        // An AOF has old numbers, which say nothing about the clocks.
        if number > last && happens_now {
            self.holds.counters.clock_lead.observe(number, now);
        }
        self.holds.counters.held += entry.holders() as i64 - before;
        entry.changed = true;
        entry.effect.extend_from_slice(effect);
        self.watch_if_needed(name, entry);
        if primary {
            // The locks of an arriving slot are settled once it is here.
            self.mark_stale_name(name);
        }
        Ok(())
    }

    /// Begins or ends the watch over a lock that another server's decision has changed, for the time when this server decides itself.
    pub fn watch_if_needed(&mut self, name: NameRef, entry: &Entry<impl Value>) {
        let watch = entry.value().needs_watch() && !entry.value().is_empty();
        match self.queues.id(name) {
            None if watch => {
                let lock = self.queues.id_or_new(name);
                self.mark_stale_value(lock);
            }
            Some(lock) if !watch && self.queues.at(lock).is_empty() => {
                self.queues.remove(lock);
            }
            _ => {}
        }
    }

    /// Drops the locks that have moved to another node from the most contended ones.
    pub fn forget_moved(&mut self, keys: &mut impl Keyspace) {
        self.holds.counters.top.forget(|name| keys.moved(name));
    }

    /// Removes a queue whose places are all absent.
    pub(in crate::rules) fn forget(&mut self, lock: LockId) {
        self.discard(lock, |_, _| true);
        if !self.queues.at(lock).is_empty() {
            return broken!("nobody waits in a queue that is forgotten");
        }
        self.queues.remove(lock);
    }

    /// Removes the absent places that `goes` chooses, as one piece that is freed in steps. Their tickets have gone with the
    /// value.
    pub(in crate::rules) fn discard(
        &mut self,
        lock: LockId,
        goes: impl Fn(Arrival, &Place) -> bool,
    ) {
        let goes = |number, place: &Place| place.is_absent() && goes(number, place);
        let places = self.queues.split_off(lock, goes);
        self.garbage.extend(places.map(Garbage::Places));
    }

    /// Ends waits of sessions while there is room for their places: another node serves the lock's slot. The server itself answers
    /// blocked connections. Returns true if there was too little room, so that more may be left.
    pub(in crate::rules) fn move_away(&mut self, lock: LockId, now: Now, room: &mut usize) -> bool {
        let queue = self.queues.at(lock);
        let ids = queue.in_order().filter_map(|(_, place)| place.request());
        let ids = ids.filter(|id| self.waits_apart(*id)).take(*room);
        for id in ids.collect::<Vec<RequestId>>() {
            if *room == 0 {
                break;
            }
            let places = self.requests.get(id).map_or(0, |its| its.parts().len());
            *room = room.saturating_sub(places);
            self.end_wait_later(id, now, Outcome::Moved);
        }
        *room == 0
    }

    /// Stops this lock's queue while its slot is migrating to another node, or lets it move again.
    pub fn close_if_leaving(&mut self, keys: &mut impl Keyspace, name: NameRef) {
        let queue = self.queues.id(name);
        if let Some(queue) = queue.and_then(|lock| self.queues.get_mut(lock)) {
            queue.closed = !keys.can_grant(name);
        }
    }
}
