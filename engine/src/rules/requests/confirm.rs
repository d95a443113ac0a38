//! Answers that replicas confirm before they are told (`dlock.replicas`): what they need, and what becomes of a grant that was
//! not confirmed. When they are confirmed is the caller's to find out.

use super::acquire::{Ask, Wait};
use super::hold::held;
use crate::keyspace::{Entry, Keyspace, Value};
use crate::ledger::Before;
use crate::outbox::{Outcome, Pending, Promise};
use crate::queue::Place;
use crate::state::Engine;
use crate::types::{Arrival, ClientId, Millis, Name, NameRef, Now, RequestId, SteadyMs};
use crate::undo::Undo;
use std::rc::Rc;

impl Engine {
    /// What an immediate grant is about to change, if replicas are to confirm it.
    #[inline]
    pub(in crate::rules) fn before(
        &self,
        entry: &Entry<impl Value>,
        name: NameRef,
        owner: &[u8],
        place: Option<(Arrival, Box<Place>)>,
    ) -> Option<(Name, Rc<[u8]>, Before)> {
        if !self.policy.confirms() {
            return None;
        }
        let (name, owner) = (name.to_owned(), Rc::from(owner));
        let before = self.ledger.before(entry, &name, &owner, place);
        Some((name, owner, before))
    }

    /// Answers a request that was granted at once, when replicas have confirmed that. Returns the number under which it waits for
    /// them.
    pub(in crate::rules) fn answer_confirmed(
        &mut self,
        now: Now,
        ask: &Ask,
        name: &Name,
        outcome: Outcome,
        undo: Vec<Undo>,
    ) -> RequestId {
        let until = match ask.wait {
            Wait::No => Some(now.steady()),
            Wait::For(ms) => ms.map(|ms| now.steady().after(ms)),
        };
        let id = self.requests.fresh(now);
        let channel = ask.channel;
        let channel = channel.map(|channel| self.requests.channel(ask.terms.client, channel));
        let pending = self.unconfirmed(undo, until);
        let whom = (channel, Rc::from(ask.owner));
        self.outbox.tell(id, whom, name, outcome, pending);
        id
    }

    /// What a grant waits for. It is not confirmed yet.
    pub(in crate::rules) fn unconfirmed(
        &mut self,
        undo: Vec<Undo>,
        until: Option<SteadyMs>,
    ) -> Pending {
        if self.policy.confirms() {
            for undo in &undo {
                let unconfirmed = self.ledger.unconfirmed.entry(undo.after.token);
                unconfirmed.or_insert(false);
            }
        }
        Pending {
            undo,
            until,
            ..Pending::default()
        }
    }

    /// Answers a renewal of the owner's holds of these locks, when replicas have confirmed it: so many milliseconds are left.
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
            })
        };
        let promises = names.iter().filter_map(promise).collect();
        self.confirm(now, Outcome::Renewed(left), promises)
    }

    /// Answers a sign of life, when replicas have confirmed what it prolongs.
    pub fn confirm_keep(&mut self, now: Now, client: ClientId) -> RequestId {
        let first_end = self.ledger.ties.first_end(client);
        self.confirm(now, Outcome::Keeps { client, first_end }, Vec::new())
    }

    fn confirm(&mut self, now: Now, outcome: Outcome, promises: Vec<Promise>) -> RequestId {
        let id = self.requests.fresh(now);
        let pending = Pending {
            promises,
            until: Some(now.steady()),
            ..Pending::default()
        };
        let nobody = (None, Rc::from([]));
        self.outbox
            .tell(id, nobody, &Name::default(), outcome, pending);
        id
    }

    /// Returns true if a hold that an answer promises is still there.
    pub fn stands(&self, keys: &mut impl Keyspace, now: Now, promise: &Promise) -> bool {
        let entry = keys.entry(promise.name.as_ref());
        let hold = held(entry, &promise.owner, Some(promise.token));
        hold.is_ok_and(|hold| hold.deadline > now.wall())
    }

    /// Replicas have confirmed these grants. Those that a later command has prolonged stand, also if nobody is told of them.
    pub fn confirmed(&mut self, undo: &mut Vec<Undo>) {
        let unconfirmed = &mut self.ledger.unconfirmed;
        undo.retain(|undo| unconfirmed.remove(&undo.after.token) != Some(true));
    }

    /// They have not, or nobody is there any more who would be told: new holds that no later command has touched are given back as
    /// soon as changes are possible, and nothing else is undone.
    pub fn not_confirmed(&mut self, undo: Vec<Undo>) {
        for mut undo in undo.into_iter().filter(|undo| undo.before.is_none()) {
            let touched = self.ledger.unconfirmed.remove(&undo.after.token);
            if touched != Some(true) {
                undo.only_untouched = true;
                self.undelivered([undo]);
            }
        }
    }
}
