//! Answers that replicas confirm before the server sends them (`dlock.replicas`), and the holds that they promise. The caller
//! finds out when they are confirmed. `rules::outside::give_back` decides about a grant that was not confirmed.

use super::acquire::{Ask, Wait};
use super::hold::held;
use crate::keyspace::Keyspace;
use crate::outbox::{Outcome, Output, Pending, Promise};
use crate::state::Engine;
use crate::types::{ClientId, Millis, Name, NameRef, Now, RequestId};
use std::rc::Rc;

impl Engine {
    /// Queues the reply to an immediate grant until replicas confirm it. Returns the number under which it waits for
    /// them.
    pub(in crate::rules) fn answer_confirmed(
        &mut self,
        now: Now,
        ask: &Ask,
        name: &Name,
        outcome: Outcome,
        promises: Vec<Promise>,
    ) -> RequestId {
        let until = match ask.wait {
            Wait::No => Some(now.steady()),
            Wait::For(ms) => ms.map(|ms| now.steady().after(ms)),
        };
        let id = self.requests.next_id(now);
        let channel = ask.channel;
        let channel = channel.map(|channel| self.requests.channel(ask.terms.client, channel));
        let pending = Pending::new(promises, until);
        let owner = Rc::from(ask.owner);
        self.outbox
            .push(Output::new(id, channel, owner, name, outcome, pending));
        id
    }

    /// Queues the reply to a renewal of the owner's holds of these locks until replicas confirm it; `left` milliseconds are left.
    /// Returns the number under which it waits.
    pub fn confirm_renewal(
        &mut self,
        keys: &mut impl Keyspace,
        now: Now,
        names: &[NameRef],
        owner: &[u8],
        left: Millis,
    ) -> RequestId {
        let owner: Rc<[u8]> = Rc::from(owner);
        let promise = |name: &NameRef| {
            Some(Promise {
                name: NameRef::to_owned(*name),
                owner: owner.clone(),
                token: held(keys.entry(*name), &owner, None).ok()?.token,
                ticket: None,
            })
        };
        let promises = names.iter().filter_map(promise).collect();
        self.confirm(now, Outcome::Renewed(left), promises)
    }

    /// Queues the reply to a heartbeat until replicas confirm what it prolongs. Returns the number under which it waits.
    pub(in crate::rules) fn confirm_keep(&mut self, now: Now, client: ClientId) -> RequestId {
        let first_end = self.holds.ties.first_end(client);
        self.confirm(now, Outcome::KeepPending { client, first_end }, Vec::new())
    }

    fn confirm(&mut self, now: Now, outcome: Outcome, promises: Vec<Promise>) -> RequestId {
        let id = self.requests.next_id(now);
        let pending = Pending::new(promises, Some(now.steady()));
        let (nobody, name) = (Rc::from([]), Name::default());
        let output = Output::new(id, None, nobody, &name, outcome, pending);
        self.outbox.push(output);
        id
    }

    /// Returns true if a hold that an answer promises is still there.
    pub fn stands(&self, keys: &mut impl Keyspace, now: Now, promise: &Promise) -> bool {
        let entry = keys.entry(promise.name.as_ref());
        let hold = held(entry, &promise.owner, Some(promise.token));
        hold.is_ok_and(|hold| hold.deadline > now.wall())
    }

    /// Notes that replicas have confirmed an answer's promises, after this many microseconds.
    pub fn confirmed(&mut self, promises: &[Promise], took_us: u64) {
        self.holds.counters.confirmations.record(took_us);
        for promise in promises {
            self.holds.unconfirmed.remove(&promise.hold());
        }
    }

    /// Counts an answer that replicas have not confirmed. Its new holds are given back.
    pub fn not_confirmed(&mut self, promises: Vec<Promise>) {
        self.holds.counters.unconfirmed += 1;
        self.on_undelivered(promises);
    }
}
