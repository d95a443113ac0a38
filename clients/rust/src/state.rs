// SPDX-License-Identifier: MIT
//! What a client knows: its nodes, their links, what is tied to them, who waits. All of it is changed where a reply is
//! read, in the order of replies, and nothing here waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, watch, Notify};
use tokio::task::JoinHandle;

use crate::error::{Redirect, Result};
use crate::link::Link;
use crate::settings::now;
use crate::ties::{Book, Id, Shared, Tie};
use crate::want::Want;

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
#[derive(Clone)]
pub(crate) struct Leave {
    pub(crate) deadline: Duration,
    pub(crate) want: Arc<Want>,
    pub(crate) token: u64,
    /// Its slot is on the way to the node.
    pub(crate) asking: bool,
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

    /// The same, if it sleeps. (The others look by themselves once in every interval.)
    pub(crate) fn wake(&mut self) {
        if !self.awake {
            self.rouse();
        }
    }

    pub(crate) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    pub(crate) fn hear(&mut self, who: Who, sender: mpsc::UnboundedSender<News>) {
        self.waits.entry(who).or_default().push(sender);
        self.wake();
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
    pub(crate) ties: HashMap<Id, Tie>,
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
    pub(crate) lost: Vec<(Arc<Shared>, String)>,
}

impl Default for State {
    fn default() -> State {
        State {
            closed: false,
            nodes: HashMap::new(),
            ties: HashMap::new(),
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
            hold.tell_lost(reason, closed);
        }
        result
    }
}

impl State {
    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.entry(name.to_owned()).or_default()
    }

    /// Whether a keeper is to say that we live.
    pub(crate) fn has_ties_or_waits(&mut self, name: &str) -> bool {
        self.node(name).has_waits() || self.ties.values().any(|tie| tie.node == name)
    }

    /// Whether there is nothing to keep. Until it is roused again the node's keeper sleeps.
    pub(crate) fn dozes(&mut self, name: &str) -> bool {
        let awake = self.has_ties_or_waits(name) || !self.node(name).leaving.is_empty();
        self.node(name).awake = awake;
        !awake
    }

    /// Another node serves the slot, for good or only for once.
    pub(crate) fn learn(&mut self, redirect: &Redirect) {
        if !redirect.ask {
            self.slots.insert(redirect.slot, redirect.address.clone());
        }
    }

    pub(crate) fn leave_later(&mut self, name: &str, want: &Arc<Want>, token: u64) {
        if self.closed {
            return;
        }
        let deadline = now() + want.settings.lease.max(want.settings.claim);
        self.leave_at(name, Leave { deadline, want: want.clone(), token, asking: false });
    }

    /// That node's keeper is to give it back.
    pub(crate) fn leave_at(&mut self, name: &str, leave: Leave) {
        let node = self.node(name);
        node.leaving.push_back(leave);
        node.rouse();
    }
}

pub(crate) fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
