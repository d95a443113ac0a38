// SPDX-License-Identifier: MIT
//! What a client knows: its nodes, their links, what is tied to them, who waits. All of it is changed where a reply is
//! read, in the order of replies, and nothing here waits.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::sync::{mpsc, watch, Notify};
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::link::Link;
use crate::settings::{millis, now, Settings};

/// One owner's wish for one lock, as words of commands.
pub(crate) struct Want {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) limit: Vec<String>,
    pub(crate) session: bool,
    pub(crate) settings: Settings,
    /// There are other masters: a failure is told at once.
    pub(crate) vote: bool,
    /// The token and the holds of this owner before: those are not ours to give back.
    outer: Mutex<(u64, u64)>,
}

impl Want {
    pub(crate) fn new(key: Vec<u8>, owner: Vec<u8>, limit: Vec<String>, session: bool, settings: Settings) -> Want {
        Want { key, owner, limit, session, settings, vote: false, outer: Mutex::default() }
    }

    pub(crate) fn for_a_vote(self) -> Want {
        Want { vote: true, ..self }
    }

    pub(crate) fn outer(&self) -> (u64, u64) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn within(&self, token: u64, holds: u64) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner) = (token, holds);
    }

    pub(crate) fn command(&self, name: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(&self.key).arg(&self.owner);
        command
    }

    fn auto<'a>(&self, command: &'a mut Cmd) -> &'a mut Cmd {
        if self.session {
            command.arg("SESSION");
        }
        command.arg("AUTO").arg(millis(self.settings.auto))
    }

    pub(crate) fn take(&self, at_once: bool) -> Cmd {
        let mut command = self.command(if at_once { "DLOCK.ACQUIRE" } else { "DLOCK.FAIRACQUIRE" });
        self.auto(command.arg(millis(self.settings.lease)));
        if !at_once {
            command.arg("CLAIM").arg(millis(self.settings.claim));
        }
        command.arg("HOLDS").arg(self.outer().1 + 1).arg(&self.limit);
        command
    }

    pub(crate) fn wait(&self, how: &[&str], block: Option<Duration>) -> Cmd {
        let mut command = self.command("DLOCK.FAIRACQUIRE");
        command.arg(millis(self.settings.first())).arg(how);
        if let Some(block) = block {
            command.arg("BLOCK").arg(millis(block));
        }
        command.arg("CLAIM").arg(millis(self.settings.claim));
        command.arg("HOLDS").arg(self.outer().1 + 1).arg(&self.limit);
        command
    }

    pub(crate) fn renew(&self, token: u64) -> Cmd {
        let mut command = self.command("DLOCK.RENEW");
        self.auto(command.arg(millis(self.settings.lease)).arg("TOKEN").arg(token));
        command
    }

    pub(crate) fn release(&self, token: u64) -> Cmd {
        let mut command = self.command("DLOCK.RELEASE");
        command.arg("HOLDS").arg(self.outer().1);
        if token > 0 {
            command.arg("TOKEN").arg(token);
        }
        command
    }
}

/// What a hold and its tie share.
pub(crate) struct Shared {
    pub(crate) want: Arc<Want>,
    pub(crate) token: u64,
    /// It is given back: nothing is lost any more.
    pub(crate) over: AtomicBool,
    /// Why it was lost.
    pub(crate) lost: watch::Sender<Option<String>>,
}

/// A hold that a link's server renews for us.
struct Tie {
    want: Arc<Want>,
    link: Option<u64>,
    serial: u64,
    until: Duration,
    holds: Vec<Weak<Shared>>,
}

/// What we know of a link.
pub(crate) struct Book {
    pub(crate) node: String,
    ties: u64,
    serial: u64,
    /// The ties with a serial number so high are believed until then.
    kept: u64,
    believed: Duration,
    pub(crate) surplus: u32,
}

/// What is told of a place in the queue. Number 0: of all of them.
#[derive(Clone, Debug)]
pub(crate) struct News {
    pub(crate) word: String,
    pub(crate) token: u64,
    pub(crate) number: u64,
}

/// A key and an owner.
pub(crate) type Who = (Vec<u8>, Vec<u8>);

/// Where messages are put.
type Waits = HashMap<Who, Vec<mpsc::UnboundedSender<News>>>;

/// A connection that is there, has failed, or (None) is on its way: nobody else waits for it than who wants it.
pub(crate) type Opening = watch::Receiver<Option<Result<Arc<Link>>>>;

/// What is to be given back, until when to try. Token 0: a wait is left.
pub(crate) struct Leave {
    pub(crate) deadline: Duration,
    pub(crate) want: Arc<Want>,
    pub(crate) token: u64,
}

/// A server that we talk to.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) opening: Option<Opening>,
    /// We may hear no messages there.
    pub(crate) deaf: bool,
    /// Its keeper has something to keep.
    awake: bool,
    ties: HashMap<u64, Tie>,
    waits: Waits,
    pub(crate) leaving: VecDeque<Leave>,
    pub(crate) kick: Arc<Notify>,
    pub(crate) keeper: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn rouse(&mut self) {
        self.awake = true;
        self.kick.notify_one();
    }

    /// Whether there is nothing to keep. Until it is roused again it sleeps.
    pub(crate) fn dozes(&mut self) -> bool {
        self.awake = !(self.ties.is_empty() && self.waits.is_empty() && self.leaving.is_empty());
        !self.awake
    }

    pub(crate) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    pub(crate) fn has_ties_or_waits(&self) -> bool {
        !(self.ties.is_empty() && self.waits.is_empty())
    }

    pub(crate) fn hear(&mut self, who: Who, sender: mpsc::UnboundedSender<News>) {
        self.waits.entry(who).or_default().push(sender);
        if !self.awake {
            self.rouse();
        }
    }

    pub(crate) fn unhear(&mut self, who: &Who, sender: &mpsc::UnboundedSender<News>) {
        if let Some(senders) = self.waits.get_mut(who) {
            senders.retain(|one| !one.same_channel(sender));
            if senders.is_empty() {
                self.waits.remove(who);
            }
        }
    }

    /// A message of our channel.
    pub(crate) fn heard(&self, who: &Who, news: &News) {
        for sender in self.waits.get(who).into_iter().flatten() {
            let _ = sender.send(news.clone());
        }
    }

    /// All who wait.
    pub(crate) fn tell(&self, word: &str) {
        for sender in self.waits.values().flatten() {
            let _ = sender.send(News { word: word.to_owned(), token: 0, number: 0 });
        }
    }

    pub(crate) fn leaves(&self, key: &[u8], owner: &[u8]) -> bool {
        self.leaving.iter().any(|leave| leave.want.key == key && leave.want.owner == owner)
    }
}

/// All that a client knows.
pub(crate) struct State {
    pub(crate) closed: bool,
    pub(crate) nodes: HashMap<String, Node>,
    pub(crate) books: HashMap<u64, Book>,
    /// Which node serves which slot, as far as errors have told.
    pub(crate) slots: HashMap<u16, String>,
    /// Where to begin with a slot of which nothing is known.
    pub(crate) first: usize,
    /// The earliest end of all ties, or earlier.
    pub(crate) alarm: Duration,
    pub(crate) ring: Arc<Notify>,
    pub(crate) clock: Option<JoinHandle<()>>,
    /// Who is to be told, when nobody holds the state any more.
    lost: Vec<(Arc<Shared>, String)>,
}

impl Default for State {
    fn default() -> State {
        State {
            closed: false,
            nodes: HashMap::new(),
            books: HashMap::new(),
            slots: HashMap::new(),
            first: 0,
            alarm: Duration::MAX,
            ring: Arc::default(),
            clock: None,
            lost: Vec::new(),
        }
    }
}

/// The state, and those who are to be told afterwards.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<State>);

impl Shelf {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state: MutexGuard<'_, State> = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut state);
        let (lost, closed) = (std::mem::take(&mut state.lost), state.closed);
        drop(state);
        for (hold, reason) in lost {
            tell_lost(&hold, reason, closed);
        }
        result
    }
}

fn tell_lost(hold: &Shared, reason: String, closed: bool) {
    if hold.over.swap(true, Ordering::SeqCst) {
        return;
    }
    let (key, owner) = (String::from_utf8_lossy(&hold.want.key), String::from_utf8_lossy(&hold.want.owner));
    if closed {
        tracing::debug!("lock {key:?} of {owner:?} is lost: {reason}");
    } else {
        tracing::warn!("lock {key:?} of {owner:?} is lost: {reason}");
    }
    hold.want.settings.observer.lost(&hold.want.key, &reason);
    hold.lost.send_replace(Some(reason));
}

impl State {
    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.entry(name.to_owned()).or_default()
    }

    pub(crate) fn booked(&mut self, link: &Link, node: &str) {
        let book = Book { node: node.to_owned(), ties: 0, serial: 0, kept: 0, believed: Duration::ZERO, surplus: 0 };
        self.books.insert(link.id, book);
    }

    fn end(books: &HashMap<u64, Book>, tie: &Tie) -> Duration {
        let book = tie.link.and_then(|link| books.get(&link)).filter(|book| tie.serial <= book.kept);
        book.map_or(tie.until, |book| tie.until.max(book.believed))
    }

    fn detach(books: &mut HashMap<u64, Book>, tie: &mut Tie) {
        tie.until = State::end(books, tie);
        if let Some(book) = tie.link.take().and_then(|link| books.get_mut(&link)) {
            book.ties -= 1;
        }
    }

    fn attach(books: &mut HashMap<u64, Book>, tie: &mut Tie, link: u64, until: Duration) {
        tie.until = until.max(State::end(books, tie));
        if tie.link != Some(link) {
            State::detach(books, tie);
        }
        if let Some(book) = books.get_mut(&link) {
            book.ties += u64::from(tie.link.is_none());
            book.serial += 1;
            (tie.link, tie.serial) = (Some(link), book.serial);
        }
    }

    /// The server has said that it renews this hold for this link.
    pub(crate) fn tie(&mut self, want: &Arc<Want>, name: &str, link: u64, token: u64, until: Duration) {
        let (outer, _) = want.outer();
        if outer != 0 && outer != token {
            // An upgrade: the outer hold has ended with its token, and all of this is ours.
            self.lose(name, outer, "upgraded");
            want.within(token, 0);
        }
        let State { nodes, books, .. } = self;
        let node = nodes.entry(name.to_owned()).or_default();
        let none = || Tie { want: want.clone(), link: None, serial: 0, until: Duration::ZERO, holds: Vec::new() };
        State::attach(books, node.ties.entry(token).or_insert_with(none), link, until);
    }

    /// A tie that is there already is believed for longer.
    pub(crate) fn retied(&mut self, name: &str, link: u64, token: u64, until: Duration) {
        let State { nodes, books, .. } = self;
        if let Some(tie) = nodes.get_mut(name).and_then(|node| node.ties.get_mut(&token)) {
            State::attach(books, tie, link, until);
        }
        // The clock may have been set for the end of another link.
        self.ring.notify_one();
    }

    /// Somebody has it now. False if it has ended meanwhile.
    pub(crate) fn adopt(&mut self, token: u64, hold: &Arc<Shared>) -> bool {
        let State { nodes, books, .. } = self;
        let Some(node) = nodes.values_mut().find(|node| node.ties.contains_key(&token)) else { return false };
        if !node.awake {
            node.rouse();
        }
        let Some(tie) = node.ties.get_mut(&token) else { return false };
        tie.holds.retain(|one| one.strong_count() > 0);
        tie.holds.push(Arc::downgrade(hold));
        let end = State::end(books, tie);
        if end < self.alarm {
            self.alarm = end;
            self.ring.notify_one();
        }
        true
    }

    /// For so long it is ours for sure.
    pub(crate) fn left(&self, token: u64) -> Duration {
        let tie = self.nodes.values().find_map(|node| node.ties.get(&token));
        tie.map_or(Duration::ZERO, |tie| State::end(&self.books, tie).saturating_sub(now()))
    }

    /// Whoever has it is told, unless it was given back.
    pub(crate) fn lose(&mut self, name: &str, token: u64, reason: &str) {
        let State { nodes, books, lost, .. } = self;
        let Some(mut tie) = nodes.get_mut(name).and_then(|node| node.ties.remove(&token)) else { return };
        State::detach(books, &mut tie);
        lost.extend(tie.holds.iter().filter_map(Weak::upgrade).map(|hold| (hold, reason.to_owned())));
    }

    /// The same, wherever it is.
    pub(crate) fn lose_anywhere(&mut self, token: u64, reason: &str) {
        let name = self.nodes.iter().find(|(_, node)| node.ties.contains_key(&token)).map(|(name, _)| name.clone());
        if let Some(name) = name {
            self.lose(&name, token, reason);
        }
    }

    /// Tells what has ended by the clock, and sets the alarm anew.
    pub(crate) fn expire(&mut self) {
        let (mut at, mut over) = (Duration::MAX, Vec::new());
        for (name, node) in &self.nodes {
            for (token, tie) in &node.ties {
                let end = State::end(&self.books, tie);
                if end <= now() {
                    over.push((name.clone(), *token, tie.want.clone()));
                } else {
                    at = at.min(end);
                }
            }
        }
        for (name, token, want) in over {
            self.lose(&name, token, "nobody has confirmed it before its end");
            self.leave_later(&name, &want, token);
        }
        self.alarm = at;
    }

    pub(crate) fn leave_later(&mut self, name: &str, want: &Arc<Want>, token: u64) {
        if self.closed {
            return;
        }
        let deadline = now() + want.settings.lease.max(want.settings.claim);
        let node = self.node(name);
        node.leaving.push_back(Leave { deadline, want: want.clone(), token });
        node.rouse();
    }

    /// A KEEP was answered.
    pub(crate) fn kept(&mut self, name: &str, link: u64, sent: Duration, reply: &Value, allowance: Duration) {
        let Value::Array(reply) = reply else { return };
        let [Value::Int(ties), left, lost] = reply.as_slice() else { return };
        let ties = u64::try_from(*ties).unwrap_or_default();
        let Some(book) = self.books.get_mut(&link) else { return };
        if let Value::Int(left) = left {
            let left = Duration::from_millis(u64::try_from(*left).unwrap_or_default());
            (book.believed, book.kept) = ((sent + left).saturating_sub(allowance), book.serial);
        }
        let told = if let Value::Array(lost) = lost { Some(lost) } else { None };
        for one in told.into_iter().flatten() {
            let Value::Array(one) = one else { continue };
            let [_, token, Value::BulkString(reason)] = one.as_slice() else { continue };
            let (token, reason) = (number(Some(token)), String::from_utf8_lossy(reason));
            let State { nodes, books, .. } = self;
            let Some(node) = nodes.get_mut(name) else { continue };
            let Some(tie) = node.ties.get_mut(&token).filter(|tie| tie.link == Some(link)) else { continue };
            if ["moved", "renamed", "taken", "demoted"].contains(&&*reason) {
                State::detach(books, tie); // RENEW tells what has become of it
                node.rouse();
            } else {
                self.lose(name, token, &reason);
            }
        }
        let Some(book) = self.books.get_mut(&link) else { return };
        book.surplus = if ties > book.ties { book.surplus + 1 } else { 0 };
        if told.is_none() || ties < book.ties {
            self.loosen(name, link);
        }
    }

    /// All that is tied to this link is to be tied anew. What was tied to it alone is lost with it (`dead`).
    fn loosen(&mut self, name: &str, link: u64) {
        let State { nodes, books, .. } = self;
        let Some(node) = nodes.get_mut(name) else { return };
        for tie in node.ties.values_mut().filter(|tie| tie.link == Some(link)) {
            State::detach(books, tie);
        }
        node.rouse();
    }

    /// The link is no more.
    pub(crate) fn died(&mut self, link: u64) {
        let Some(name) = self.books.get(&link).map(|book| book.node.clone()) else { return };
        let sessions: Vec<u64> = match self.nodes.get(&name) {
            Some(node) => node
                .ties
                .iter()
                .filter(|(_, tie)| tie.link == Some(link) && tie.want.session)
                .map(|(t, _)| *t)
                .collect(),
            None => Vec::new(),
        };
        for token in sessions {
            self.lose(&name, token, "session");
        }
        self.loosen(&name, link);
        self.books.remove(&link);
        if let Some(node) = self.nodes.get_mut(&name) {
            if node.link.as_ref().is_some_and(|one| one.id == link) {
                node.link = None;
            }
            node.tell("again");
        }
    }

    /// What is to be tied to this link. What nobody has any more is forgotten.
    pub(crate) fn loose(&mut self, name: &str, link: u64) -> Vec<(u64, Arc<Want>)> {
        let State { nodes, books, .. } = self;
        let Some(node) = nodes.get_mut(name) else { return Vec::new() };
        let mut loose = Vec::new();
        node.ties.retain(|token, tie| {
            let here = tie.link == Some(link);
            let had = here || tie.holds.iter().any(|hold| hold.strong_count() > 0);
            if !had {
                State::detach(books, tie);
            } else if !here {
                loose.push((*token, tie.want.clone()));
            }
            had
        });
        loose
    }

    /// All ties of the node, with their keys.
    pub(crate) fn ties(&self, name: &str) -> Vec<(u64, Arc<Want>)> {
        let node = self.nodes.get(name);
        node.into_iter().flat_map(|node| node.ties.iter()).map(|(token, tie)| (*token, tie.want.clone())).collect()
    }

    /// Another node serves it by now, and keeps it.
    pub(crate) fn move_tie(&mut self, from: &str, to: &str, token: u64) {
        if from == to {
            return;
        }
        let State { nodes, books, .. } = self;
        let Some(mut tie) = nodes.get_mut(from).and_then(|node| node.ties.remove(&token)) else { return };
        State::detach(books, &mut tie);
        let node = nodes.entry(to.to_owned()).or_default();
        node.ties.insert(token, tie);
        node.rouse();
    }
}

pub(crate) fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
