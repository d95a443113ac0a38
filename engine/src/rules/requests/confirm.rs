//! Answers that replicas confirm before the server sends them (`dlock.replicas`), and the holds that they promise. The caller
//! finds out when they are confirmed. `rules::outside::undelivered` decides about a grant that was not confirmed.

use super::acquire::{Ask, Wait};
use super::hold::held;
use crate::keyspace::Keyspace;
use crate::outbox::{Outcome, Output, Pending, Promise, Receiver};
use crate::state::Engine;
use crate::types::{HoldRef, Millis, NameRef, Now, RequestId, SessionNo};
use std::rc::Rc;

impl Engine {
    /// Queues the reply to an immediate grant until replicas confirm it. Returns the number under which it waits for
    /// them.
    pub(in crate::rules) fn answer_confirmed(
        &mut self,
        now: Now,
        ask: &Ask,
        outcome: Outcome,
        promises: Vec<Promise>,
    ) -> RequestId {
        let until = match ask.wait {
            Wait::No => Some(now.steady()),
            Wait::For(ms) => ms.map(|ms| now.steady().after(ms)),
        };
        let id = self.requests.next_id();
        let session = ask.terms.session;
        let to = session.map_or(Receiver::Connection, Receiver::Session);
        let pending = Pending::new(promises, until);
        self.outbox.push(Output {
            to,
            ..Output::new(id, outcome, pending)
        });
        id
    }

    /// Queues the reply to a renewal of the owner's holds of these locks, in a session or not, until replicas confirm it; `left`
    /// milliseconds are left.
    /// Returns the number under which it waits.
    pub fn confirm_renewal(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
        session: Option<SessionNo>,
        left: Millis,
    ) -> RequestId {
        let owner: Rc<[u8]> = Rc::from(owner);
        let promise = |name: &NameRef| {
            let hold = held(keys.entry(*name), &owner, None).ok()?;
            Some(Promise {
                name: NameRef::to_owned(*name),
                owner: owner.clone(),
                token: hold.token,
                end: hold.deadline,
                is_new: false,
                session: None,
                ticket: None,
            })
        };
        let promises = names.iter().filter_map(promise).collect();
        let session = session.map(|no| self.session_id(no));
        let (id, outcome) = (self.requests.next_id(), Outcome::Renewed(left, session));
        let pending = Pending::new(promises, Some(now.steady()));
        self.outbox.push(Output::new(id, outcome, pending));
        id
    }

    /// Returns true if a hold that an answer promises is still there, and stays.
    pub fn stands(&self, keys: &mut impl Keyspace, now: Now, promise: &Promise) -> bool {
        if self.is_to_be_revoked(promise) {
            return false;
        }
        let entry = keys.entry(promise.name.as_ref());
        let hold = held(entry, &promise.owner, Some(promise.token));
        hold.is_ok_and(|hold| hold.deadline > now.wall())
    }

    /// Notes that replicas have confirmed an answer's promises, after this many microseconds.
    pub fn confirmed(&mut self, promises: &[Promise], took_us: u64) {
        self.holds.counters.confirmations.record(took_us);
        for promise in promises {
            self.holds.unconfirmed.remove(&promise.hold());
            let name = promise.name.as_ref();
            let owner = &*promise.owner;
            let anew = promise.session.is_some();
            self.holds
                .tell_confirmed(HoldRef { name, owner }, promise.token, promise.end, anew);
        }
    }

    /// Notes that replicas have confirmed what the server has renewed.
    pub fn prolonged(&mut self, promises: &[Promise]) {
        for promise in promises {
            let name = promise.name.as_ref();
            let owner = &*promise.owner;
            self.holds
                .confirm_end(HoldRef { name, owner }, promise.token, promise.end);
        }
    }

    /// Counts an answer that replicas have not confirmed. The engine revokes its new holds.
    pub fn not_confirmed(&mut self, promises: Vec<Promise>) {
        self.holds.counters.unconfirmed += 1;
        self.on_undelivered(promises);
    }
}
