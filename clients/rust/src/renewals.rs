// SPDX-License-Identifier: MIT
//! What is held, and on which link the server renews it: until when it is believed to be held, unrenewed, lost.

use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use crate::error::Error;
use crate::link::{is_not_held, At, Reply, HUNG};
use crate::release::released;
use crate::request::AcquireRequest;
use crate::settings::{now, Settings};
use crate::state::{number, Named, State, Who};

/// After a pause of this process the server is asked for so long what is still held.
const DOUBT: Duration = Duration::from_secs(1);

/// A key and a token: two nodes may give the same token at the same time.
pub(crate) type Id = (Vec<u8>, u64);

/// What a hold and its renewal share.
pub(crate) struct Shared {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) token: u64,
    /// It is given back: nothing is lost any more.
    pub(crate) over: AtomicBool,
    /// Why it was lost.
    pub(crate) lost: watch::Sender<Option<String>>,
}

impl Shared {
    pub(crate) fn new(request: &Arc<AcquireRequest>, token: u64) -> Arc<Shared> {
        let (over, lost) = (AtomicBool::new(false), watch::Sender::new(None));
        Arc::new(Shared { request: request.clone(), token, over, lost })
    }

    pub(crate) fn id(&self) -> Id {
        self.request.id(self.token)
    }

    /// Reports the loss, unless it was given back.
    pub(crate) fn report_lost(&self, reason: String, closed: bool) {
        if self.over.swap(true, Ordering::SeqCst) {
            return;
        }
        let (key, owner) = (String::from_utf8_lossy(&self.request.key), String::from_utf8_lossy(&self.request.owner));
        if closed {
            tracing::debug!("lock {key:?} of {owner:?} is lost: {reason}");
        } else {
            tracing::warn!("lock {key:?} of {owner:?} is lost: {reason}");
        }
        // The clock or the link that reports it is to go on when the program's own code panics.
        let report = || self.request.settings.observer.lost(&self.request.key, &reason);
        if catch_unwind(AssertUnwindSafe(report)).is_err() {
            tracing::error!("the observer has panicked at the loss of lock {key:?}");
        }
        self.lost.send_replace(Some(reason));
    }
}

/// A hold that the server renews for a link.
pub(crate) struct Renewal {
    request: Arc<AcquireRequest>,
    /// Who serves its key, as far as we know.
    pub(crate) node: String,
    /// None: unrenewed.
    link: Option<u64>,
    serial: u64,
    until: Duration,
    /// Its end has passed while this process was stopped: so long an answer is waited for.
    doubted: Option<Duration>,
    /// What the last RENEW was refused with.
    refusal: Option<Error>,
    /// The release is under way.
    ending: bool,
    /// More than one after a re-entry.
    holds: Vec<Weak<Shared>>,
}

/// What we know of a link.
pub(crate) struct LinkState {
    node: String,
    renewals: u64,
    serial: u64,
    /// Renewals with a serial number up to this are believed until then.
    kept: u64,
    believed: Duration,
    /// How many KEEPs in a row have counted more renewals than this client knows of.
    surplus: u32,
    /// It keeps holds that nobody has.
    stale: bool,
    /// One of its holds may not last (dlock.max-hold-ms), and KEEP says the least of all.
    short: bool,
}

/// What a named owner that asks again gets.
pub(crate) enum Reentry {
    Free,
    /// It gives back what it held.
    Ending,
    Held(Arc<Shared>),
    Refused(Error),
}

impl Renewal {
    fn end(&self, links: &HashMap<u64, LinkState>) -> Duration {
        let link = self.link.and_then(|link| links.get(&link)).filter(|link| self.serial <= link.kept);
        link.map_or(self.until, |link| self.until.max(link.believed))
    }

    fn is_live(&self) -> bool {
        self.holds.iter().filter_map(Weak::upgrade).any(|hold| !hold.over.load(Ordering::SeqCst))
    }

    fn detach(&mut self, links: &mut HashMap<u64, LinkState>) {
        self.until = self.end(links);
        if let Some(link) = self.link.take().and_then(|link| links.get_mut(&link)) {
            link.renewals -= 1;
        }
    }

    fn attach(&mut self, links: &mut HashMap<u64, LinkState>, at: &At<'_>, lease: i64) {
        self.until = at.ends(lease, &self.request.settings).max(self.end(links));
        (self.doubted, self.refusal) = (None, None);
        if self.link != Some(at.link) {
            self.detach(links);
        }
        if let Some(link) = links.get_mut(&at.link) {
            link.renewals += u64::from(self.link.is_none());
            link.serial += 1;
            (self.link, self.serial) = (Some(at.link), link.serial);
        }
    }
}

impl State {
    /// A link was opened: its node has answered.
    pub(crate) fn opened(&mut self, link: u64, name: &str, subscribe_denied: bool) {
        let none = LinkState {
            node: name.to_owned(),
            renewals: 0,
            serial: 0,
            kept: 0,
            believed: Duration::ZERO,
            surplus: 0,
            stale: false,
            short: false,
        };
        self.links.insert(link, none);
        self.node(name).subscribe_denied = subscribe_denied;
        if !self.known.iter().any(|known| known == name) {
            self.known.push(name.to_owned());
        }
    }

    /// The server has said that it renews this hold for this link. From now on it is kept, even if the caller has not read it yet.
    pub(crate) fn granted(&mut self, request: &Arc<AcquireRequest>, at: &At<'_>, token: u64, lease: i64) {
        if self.closed {
            return;
        }
        let none = || Renewal {
            request: request.clone(),
            node: String::new(),
            link: None,
            serial: 0,
            until: Duration::ZERO,
            doubted: None,
            refusal: None,
            ending: false,
            holds: Vec::new(),
        };
        let renewal = self.renewals.entry(request.id(token)).or_insert_with(none);
        renewal.attach(&mut self.links, at, lease);
        at.node.clone_into(&mut renewal.node);
        self.node(at.node).ensure_running();
    }

    /// The answer to a RENEW of what is held already, if no other node serves it by now.
    pub(crate) fn renewed(&mut self, id: &Id, at: &At<'_>, reply: &Reply) {
        let Some(renewal) = self.renewals.get_mut(id).filter(|renewal| renewal.node == at.node) else { return };
        match reply {
            Ok(Value::Int(lease)) => {
                renewal.attach(&mut self.links, at, *lease);
                let end = renewal.end(&self.links);
                self.arm(end);
            }
            reply if is_not_held(reply) => self.lose(id, "not held any more"),
            Err(error) => {
                let error = Error::from(error.clone());
                if error.is_said() && !error.passes() {
                    renewal.refusal = Some(error);
                }
            }
            Ok(_) => {}
        }
    }

    /// The caller has it now. False if it has ended meanwhile.
    pub(crate) fn adopt(&mut self, hold: &Arc<Shared>) -> bool {
        let Some(renewal) = self.renewals.get_mut(&hold.id()) else { return false };
        renewal.holds.retain(|one| one.strong_count() > 0);
        renewal.holds.push(Arc::downgrade(hold));
        let end = renewal.end(&self.links);
        self.arm(end);
        if let Some(named) = hold.request.who().and_then(|who| self.named.get_mut(&who)) {
            named.token = Some(hold.token);
        }
        true
    }

    fn arm(&mut self, end: Duration) {
        if end < self.alarm {
            self.alarm = end;
            self.ring.notify_one();
        }
    }

    /// A second request of an owner is one more hold of what it holds here, and no command.
    pub(crate) fn reenter(&mut self, request: &AcquireRequest) -> Reentry {
        let token = request.who().and_then(|who| self.named.get(&who)?.token);
        let Some(renewal) = token.and_then(|token| self.renewals.get(&request.id(token))) else { return Reentry::Free };
        if renewal.ending {
            return Reentry::Ending;
        }
        if !renewal.is_live() {
            return Reentry::Free; // what was left is about to end
        }
        let (has, permits) = (renewal.request.mode.permits(), request.mode.permits());
        if request.mode.limit() < renewal.request.mode.limit() {
            return Reentry::Refused(Error::Deadlock(format!(
                "DEADLOCK {:?} holds lock {:?} together with others: release that hold first",
                String::from_utf8_lossy(&request.owner),
                String::from_utf8_lossy(&request.key)
            )));
        }
        if permits > has {
            let problem =
                format!("must be at most {has}, which the owner's hold has, not {permits}: release it, and ask again");
            return Reentry::Refused(Error::invalid("permits", problem));
        }
        let hold = Shared::new(&renewal.request.clone(), token.unwrap_or_default());
        self.adopt(&hold);
        Reentry::Held(hold)
    }

    /// Removes what is given back from its renewal. True if it was the last hold: then the server has to know.
    pub(crate) fn depart(&mut self, hold: &Arc<Shared>) -> bool {
        let Some(renewal) = self.renewals.get_mut(&hold.id()) else { return true };
        renewal.holds.retain(|one| one.strong_count() > 0 && !std::ptr::eq(one.as_ptr(), Arc::as_ptr(hold)));
        renewal.ending = !renewal.is_live();
        renewal.ending
    }

    /// Returns for how long it is ours for sure.
    pub(crate) fn left(&self, id: &Id) -> Duration {
        self.renewals.get(id).map_or(Duration::ZERO, |renewal| renewal.end(&self.links).saturating_sub(now()))
    }

    /// Reports the loss to whoever holds it, unless it was given back.
    pub(crate) fn lose(&mut self, id: &Id, reason: &str) {
        let Some(mut renewal) = self.renewals.remove(id) else { return };
        renewal.detach(&mut self.links);
        self.lost.extend(renewal.holds.iter().filter_map(Weak::upgrade).map(|hold| (hold, reason.to_owned())));
        if let Some(who) = renewal.request.who() {
            if let Some(named) = self.named.get_mut(&who).filter(|named| named.token == Some(id.1)) {
                named.token = None;
            }
            self.tidy(&who);
        }
    }

    /// Forgets a named owner that neither holds the lock nor asks for it.
    pub(crate) fn tidy(&mut self, who: &Who) {
        let idle =
            |named: &Named| named.token.is_none() && named.unanswered.is_empty() && Arc::strong_count(&named.turn) == 1;
        if self.named.get(who).is_some_and(idle) {
            self.named.remove(who);
        }
    }

    /// The same for all of these.
    pub(crate) fn lose_all(&mut self, reason: &str, which: impl Fn(&Renewal) -> bool) -> usize {
        let ids: Vec<Id> =
            self.renewals.iter().filter(|(_, renewal)| which(renewal)).map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| self.lose(id, reason));
        ids.len()
    }

    /// What an abandoned wait was granted.
    pub(crate) fn forget(&mut self, request: &Arc<AcquireRequest>) {
        self.lose_all("abandoned", |renewal| Arc::ptr_eq(&renewal.request, request));
    }

    /// Loses what has ended by the clock, and sets the alarm anew. An end that is seen late is no loss yet: this process was
    /// stopped, and the server may have renewed the hold meanwhile. Its keeper asks.
    pub(crate) fn expire(&mut self) {
        let at = now();
        let (mut next, mut over, mut doubted) = (Duration::MAX, Vec::new(), Vec::new());
        for (id, renewal) in &mut self.renewals {
            let (end, margin) = (renewal.end(&self.links), renewal.request.settings.clock_margin);
            if end > at {
                next = next.min(end);
            } else if renewal.doubted.is_none() && at - end > margin.max(HUNG) && renewal.is_live() {
                let until = at + DOUBT.min(renewal.request.settings.reply_timeout);
                renewal.doubted = Some(until);
                renewal.detach(&mut self.links);
                doubted.push(renewal.node.clone());
                next = next.min(until);
            } else if let Some(until) = renewal.doubted.filter(|until| *until > at) {
                next = next.min(until);
            } else {
                over.push(id.clone());
            }
        }
        for name in doubted {
            self.node(&name).wake();
        }
        for id in over {
            let Some(renewal) = self.renewals.get(&id) else { continue };
            let (request, node) = (renewal.request.clone(), renewal.node.clone());
            let trouble = self.nodes.get(&node).and_then(|node| node.trouble.as_ref());
            let reason = match renewal.refusal.as_ref().or(trouble) {
                Some(error) => format!("nobody has confirmed it before its end: {error}"),
                None => "nobody has confirmed it before its end".to_owned(),
            };
            self.retire(&request); // without a link, too: the server may hold it for less than a lease
            self.lose(&id, &reason);
            if let Some(link) = self.link(&node) {
                let then = released(&request, id.1, true);
                link.post(request.release(Some(id.1)), self.asking.contains_key(&id.0), Some(then));
            }
        }
        self.alarm = next;
    }

    /// A KEEP was answered.
    pub(crate) fn kept(&mut self, at: &At<'_>, reply: &Value, settings: &Settings) {
        let Value::Array(reply) = reply else { return };
        let [Value::Int(count), left, lost] = reply.as_slice() else { return };
        let count = u64::try_from(*count).unwrap_or_default();
        self.node(at.node).trouble = None;
        let Some(link) = self.links.get_mut(&at.link) else { return };
        if let Value::Int(left) = left {
            let left = Duration::from_millis(u64::try_from(*left).unwrap_or_default());
            (link.believed, link.kept) = ((at.sent + left).saturating_sub(settings.clock_margin), link.serial);
            link.short = left < settings.near();
        }
        let told = if let Value::Array(lost) = lost { Some(lost) } else { None };
        for one in told.into_iter().flatten() {
            let Value::Array(one) = one else { continue };
            let [Value::BulkString(key), token, Value::BulkString(reason)] = one.as_slice() else { continue };
            let (id, reason) = ((key.clone(), number(Some(token))), String::from_utf8_lossy(reason));
            let held = self.renewals.get_mut(&id).filter(|renewal| renewal.link == Some(at.link));
            let Some(renewal) = held else { continue };
            if ["moved", "renamed", "taken", "demoted"].contains(&&*reason) {
                renewal.detach(&mut self.links); // RENEW tells what has become of it
                self.node(at.node).wake();
            } else {
                self.lose(&id, &reason);
            }
        }
        let Some(link) = self.links.get_mut(&at.link) else { return };
        link.surplus = if count > link.renewals { link.surplus + 1 } else { 0 };
        if told.is_none() || count < link.renewals {
            self.detach_all(at.node, at.link);
        }
    }

    /// Whether two KEEPs in a row have counted too many: the link is to be replaced. The next two are awaited then.
    pub(crate) fn has_orphans(&mut self, link: u64) -> bool {
        let Some(link) = self.links.get_mut(&link).filter(|link| link.surplus > 1) else { return false };
        (link.surplus, link.stale) = (0, true);
        true
    }

    /// Whether the link keeps holds that nobody has.
    pub(crate) fn is_stale(&self, link: u64) -> bool {
        self.links.get(&link).is_some_and(|link| link.stale)
    }

    /// All that is renewed for this link is to be renewed anew.
    fn detach_all(&mut self, name: &str, link: u64) {
        for renewal in self.renewals.values_mut().filter(|renewal| renewal.link == Some(link)) {
            renewal.detach(&mut self.links);
        }
        self.node(name).wake();
    }

    /// The link is no more. What was renewed for it alone is lost with it.
    pub(crate) fn died(&mut self, link: u64) {
        let Some(name) = self.links.get(&link).map(|link| link.node.clone()) else { return };
        self.lose_all("closed", |renewal| renewal.link == Some(link) && renewal.request.ephemeral);
        self.detach_all(&name, link);
        self.links.remove(&link);
        let node = self.node(&name);
        if node.link.as_ref().is_some_and(|one| one.id == link) {
            node.link = None;
        }
        node.notify_all("again", |_| true);
    }

    /// Whether each hold is to be asked for its own end.
    pub(crate) fn is_short(&self, link: u64) -> bool {
        self.links.get(&link).is_some_and(|link| link.short)
    }

    /// Returns what is to be renewed for this link: what is not yet, and what ends before `near`. What nobody has any more is
    /// forgotten.
    pub(crate) fn unrenewed(&mut self, name: &str, link: u64, near: Duration) -> Vec<(Id, Arc<AcquireRequest>)> {
        let (mut unrenewed, mut forgotten) = (Vec::new(), Vec::new());
        for (id, renewal) in self.renewals.iter().filter(|(_, renewal)| renewal.node == name) {
            if renewal.link == Some(link) {
                if renewal.end(&self.links) < near {
                    unrenewed.push((id.clone(), renewal.request.clone()));
                }
            } else if renewal.is_live() {
                unrenewed.push((id.clone(), renewal.request.clone()));
            } else if !renewal.ending {
                forgotten.push(id.clone());
            }
        }
        forgotten.iter().for_each(|id| self.lose(id, "abandoned"));
        unrenewed
    }

    /// What another node serves by now is that one's to keep, and waits for it ask again.
    pub(crate) fn reroute(&mut self, name: &str) {
        let held = |(id, renewal): (&Id, &Renewal)| (renewal.node == name).then(|| id.clone());
        let ids: Vec<Id> = self.renewals.iter().filter_map(held).collect();
        for id in ids {
            let (target, _) = self.route(&id.0);
            self.move_renewal(&id, &target);
        }
        if let Some(node) = self.nodes.get(name) {
            node.notify_all("moved", |key| self.route(key).0 != name);
        }
    }

    /// Another node serves it by now, and keeps it.
    pub(crate) fn move_renewal(&mut self, id: &Id, to: &str) {
        let Some(renewal) = self.renewals.get_mut(id).filter(|renewal| renewal.node != to) else { return };
        renewal.detach(&mut self.links);
        to.clone_into(&mut renewal.node);
        self.node(to).wake();
    }

    /// Sends a release on the node's link, if it lives, and waits for nothing. If it does not, the lease ends the hold.
    pub(crate) fn post_release(&mut self, request: &Arc<AcquireRequest>, token: u64) {
        let id = request.id(token);
        let (name, asking) = self.route(&id.0);
        let name = self.renewals.get(&id).map_or(name, |renewal| renewal.node.clone());
        self.retire(request);
        let Some(link) = self.link(&name) else { return self.lose(&id, "released") };
        if link.post(request.release(Some(token)), asking, Some(released(request, token, true))).is_none() {
            self.lose(&id, "released");
        }
    }
}
