// SPDX-License-Identifier: MIT
//! What is held, and on which link the server renews it: tied, believed for how long, loose, lost.

use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use crate::link::{is_not_held, At, Reply};
use crate::settings::{now, Settings};
use crate::state::{number, State};
use crate::want::Want;

/// A key and a token: two nodes may give the same token at the same time.
pub(crate) type Id = (Vec<u8>, u64);

/// What a hold and its tie share.
pub(crate) struct Shared {
    pub(crate) want: Arc<Want>,
    pub(crate) token: u64,
    /// It is given back: nothing is lost any more.
    pub(crate) over: AtomicBool,
    /// Why it was lost.
    pub(crate) lost: watch::Sender<Option<String>>,
}

impl Shared {
    pub(crate) fn new(want: &Arc<Want>, token: u64) -> Arc<Shared> {
        let (over, lost) = (AtomicBool::new(false), watch::Sender::new(None));
        Arc::new(Shared { want: want.clone(), token, over, lost })
    }

    pub(crate) fn id(&self) -> Id {
        self.want.id(self.token)
    }

    /// Tells whoever has it, unless it was given back.
    pub(crate) fn tell_lost(&self, reason: String, closed: bool) {
        if self.over.swap(true, Ordering::SeqCst) {
            return;
        }
        let (key, owner) = (String::from_utf8_lossy(&self.want.key), String::from_utf8_lossy(&self.want.owner));
        if closed {
            tracing::debug!("lock {key:?} of {owner:?} is lost: {reason}");
        } else {
            tracing::warn!("lock {key:?} of {owner:?} is lost: {reason}");
        }
        // Whoever tells it, the clock or a link, is to go on when the program's own code panics.
        let tell = || self.want.settings.observer.lost(&self.want.key, &reason);
        if catch_unwind(AssertUnwindSafe(tell)).is_err() {
            tracing::error!("the observer has panicked at the loss of lock {key:?}");
        }
        self.lost.send_replace(Some(reason));
    }
}

/// A hold that a link's server renews for us.
pub(crate) struct Tie {
    want: Arc<Want>,
    /// Who serves its key, as far as we know.
    pub(crate) node: String,
    /// Its slot is on the way to that node.
    asking: bool,
    link: Option<u64>,
    serial: u64,
    until: Duration,
    holds: Vec<Weak<Shared>>,
}

/// What we know of a link.
pub(crate) struct Book {
    node: String,
    ties: u64,
    serial: u64,
    /// The ties with a serial number so high are believed until then.
    kept: u64,
    believed: Duration,
    /// So many KEEPs in a row have counted more ties than we know of.
    surplus: u32,
    /// One of its holds may not last (dlock.max-hold-ms), and KEEP says the least of all.
    short: bool,
}

impl Tie {
    fn end(&self, books: &HashMap<u64, Book>) -> Duration {
        let book = self.link.and_then(|link| books.get(&link)).filter(|book| self.serial <= book.kept);
        book.map_or(self.until, |book| self.until.max(book.believed))
    }

    fn detach(&mut self, books: &mut HashMap<u64, Book>) {
        self.until = self.end(books);
        if let Some(book) = self.link.take().and_then(|link| books.get_mut(&link)) {
            book.ties -= 1;
        }
    }

    fn attach(&mut self, books: &mut HashMap<u64, Book>, at: &At, lease: i64) {
        self.until = at.ends(lease, &self.want.settings).max(self.end(books));
        if self.link != Some(at.link) {
            self.detach(books);
        }
        if let Some(book) = books.get_mut(&at.link) {
            book.ties += u64::from(self.link.is_none());
            book.serial += 1;
            (self.link, self.serial) = (Some(at.link), book.serial);
        }
    }
}

impl State {
    pub(crate) fn booked(&mut self, link: u64, node: &str) {
        let book = Book {
            node: node.to_owned(),
            ties: 0,
            serial: 0,
            kept: 0,
            believed: Duration::ZERO,
            surplus: 0,
            short: false,
        };
        self.books.insert(link, book);
    }

    /// The server has said that it renews this hold for this link. From now on it is kept, whoever has heard of it.
    pub(crate) fn tie(&mut self, want: &Arc<Want>, at: &At, token: u64, lease: i64) {
        if self.closed {
            return;
        }
        let (outer, _) = want.outer();
        if outer != 0 && outer != token {
            // An upgrade: the outer hold has ended with its token, and all of this is ours.
            self.lose(&want.id(outer), "upgraded");
            want.within(token, 0);
        }
        let none = || Tie {
            want: want.clone(),
            node: String::new(),
            asking: false,
            link: None,
            serial: 0,
            until: Duration::ZERO,
            holds: Vec::new(),
        };
        let tie = self.ties.entry(want.id(token)).or_insert_with(none);
        tie.attach(&mut self.books, at, lease);
        (tie.node, tie.asking) = (at.node.clone(), false);
        self.node(&at.node).wake();
    }

    /// The answer to a RENEW of a tie that is there already, if no other node serves it by now.
    pub(crate) fn renewed(&mut self, id: &Id, at: &At, reply: &Reply) {
        let Some(tie) = self.ties.get_mut(id).filter(|tie| tie.node == at.node) else { return };
        match reply {
            Ok(Value::Int(lease)) => tie.attach(&mut self.books, at, *lease),
            reply if is_not_held(reply) => self.lose(id, "not held any more"),
            _ => {}
        }
    }

    /// Somebody has it now. False if it has ended meanwhile.
    pub(crate) fn adopt(&mut self, hold: &Arc<Shared>) -> bool {
        let Some(tie) = self.ties.get_mut(&hold.id()) else { return false };
        tie.holds.retain(|one| one.strong_count() > 0);
        tie.holds.push(Arc::downgrade(hold));
        let end = tie.end(&self.books);
        if end < self.alarm {
            self.alarm = end;
            self.ring.notify_one();
        }
        true
    }

    /// For so long it is ours for sure.
    pub(crate) fn left(&self, id: &Id) -> Duration {
        self.ties.get(id).map_or(Duration::ZERO, |tie| tie.end(&self.books).saturating_sub(now()))
    }

    /// Whoever has it is told, unless it was given back.
    pub(crate) fn lose(&mut self, id: &Id, reason: &str) {
        let Some(mut tie) = self.ties.remove(id) else { return };
        tie.detach(&mut self.books);
        self.lost.extend(tie.holds.iter().filter_map(Weak::upgrade).map(|hold| (hold, reason.to_owned())));
    }

    /// The same for all of these.
    pub(crate) fn lose_all(&mut self, reason: &str, which: impl Fn(&Tie) -> bool) -> usize {
        let ids: Vec<Id> = self.ties.iter().filter(|(_, tie)| which(tie)).map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| self.lose(id, reason));
        ids.len()
    }

    /// What a wait was granted, and nobody has heard of.
    pub(crate) fn forget(&mut self, want: &Arc<Want>) {
        self.lose_all("left", |tie| Arc::ptr_eq(&tie.want, want));
    }

    /// Tells what has ended by the clock, and sets the alarm anew.
    pub(crate) fn expire(&mut self) {
        let (mut at, mut over) = (Duration::MAX, Vec::new());
        for (id, tie) in &self.ties {
            let end = tie.end(&self.books);
            if end <= now() {
                over.push((id.clone(), tie.node.clone(), tie.want.clone()));
            } else {
                at = at.min(end);
            }
        }
        for (id, node, want) in over {
            self.lose(&id, "nobody has confirmed it before its end");
            self.leave_later(&node, &want, id.1);
        }
        self.alarm = at;
    }

    /// A KEEP was answered.
    pub(crate) fn kept(&mut self, at: &At, reply: &Value, settings: &Settings) {
        let Value::Array(reply) = reply else { return };
        let [Value::Int(ties), left, lost] = reply.as_slice() else { return };
        let ties = u64::try_from(*ties).unwrap_or_default();
        let Some(book) = self.books.get_mut(&at.link) else { return };
        if let Value::Int(left) = left {
            let left = Duration::from_millis(u64::try_from(*left).unwrap_or_default());
            (book.believed, book.kept) = ((at.sent + left).saturating_sub(settings.allowance), book.serial);
            book.short = left < settings.near();
        }
        let told = if let Value::Array(lost) = lost { Some(lost) } else { None };
        for one in told.into_iter().flatten() {
            let Value::Array(one) = one else { continue };
            let [Value::BulkString(key), token, Value::BulkString(reason)] = one.as_slice() else { continue };
            let (id, reason) = ((key.clone(), number(Some(token))), String::from_utf8_lossy(reason));
            let Some(tie) = self.ties.get_mut(&id).filter(|tie| tie.link == Some(at.link)) else { continue };
            if ["moved", "renamed", "taken", "demoted"].contains(&&*reason) {
                tie.detach(&mut self.books); // RENEW tells what has become of it
                self.node(&at.node).rouse();
            } else {
                self.lose(&id, &reason);
            }
        }
        let Some(book) = self.books.get_mut(&at.link) else { return };
        book.surplus = if ties > book.ties { book.surplus + 1 } else { 0 };
        if told.is_none() || ties < book.ties {
            self.loosen(&at.node, at.link);
        }
    }

    /// Whether two KEEPs in a row have counted too many. After that the next two are awaited.
    pub(crate) fn has_orphans(&mut self, link: u64) -> bool {
        let Some(book) = self.books.get_mut(&link).filter(|book| book.surplus > 1) else { return false };
        book.surplus = 0;
        true
    }

    /// All that is tied to this link is to be tied anew.
    fn loosen(&mut self, name: &str, link: u64) {
        for tie in self.ties.values_mut().filter(|tie| tie.link == Some(link)) {
            tie.detach(&mut self.books);
        }
        self.node(name).rouse();
    }

    /// The link is no more. What was tied to it alone is lost with it.
    pub(crate) fn died(&mut self, link: u64) {
        let Some(name) = self.books.get(&link).map(|book| book.node.clone()) else { return };
        self.lose_all("session", |tie| tie.link == Some(link) && tie.want.session);
        self.loosen(&name, link);
        self.books.remove(&link);
        let node = self.node(&name);
        if node.link.as_ref().is_some_and(|one| one.id == link) {
            node.link = None;
        }
        node.tell("again");
    }

    /// Whether each hold is to be asked for its own end.
    pub(crate) fn is_short(&self, link: u64) -> bool {
        self.books.get(&link).is_some_and(|book| book.short)
    }

    /// What is to be tied to this link, and whether its slot is on the way: what is not yet, and what ends before `near`.
    /// What nobody has any more is forgotten.
    pub(crate) fn loose(&mut self, name: &str, link: u64, near: Duration) -> Vec<(Id, Arc<Want>, bool)> {
        let mut loose = Vec::new();
        self.ties.retain(|id, tie| {
            if tie.node != name {
                return true;
            }
            if tie.link == Some(link) {
                if tie.end(&self.books) < near {
                    loose.push((id.clone(), tie.want.clone(), tie.asking));
                }
                return true;
            }
            let had = tie.holds.iter().any(|hold| hold.strong_count() > 0);
            if had {
                loose.push((id.clone(), tie.want.clone(), tie.asking));
            } else {
                tie.detach(&mut self.books);
            }
            had
        });
        loose
    }

    /// Another node serves it by now, and keeps it.
    pub(crate) fn move_tie(&mut self, id: &Id, to: &str, asking: bool) {
        let Some(tie) = self.ties.get_mut(id) else { return };
        tie.asking = asking;
        if tie.node != to {
            tie.detach(&mut self.books);
            tie.node = to.to_owned();
            self.node(to).rouse();
        }
    }
}
