// SPDX-License-Identifier: MIT
//! What a client knows: its nodes, their links, what is renewed for them, who waits. All of it is changed where a reply is
//! read, in the order of replies, and nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, watch, Notify};
use tokio::task::JoinHandle;

use crate::error::{Error, Redirect, Result};
use crate::link::Link;
use crate::renewals::{Id, LinkState, Renewal, Shared};
use crate::servers::slot;

/// What is announced of a place in the queue. Number 0: of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Notification {
    pub(crate) word: String,
    pub(crate) token: u64,
    pub(crate) number: u64,
}

/// A key and an owner.
pub(crate) type Who = (Vec<u8>, Vec<u8>);

/// Where notifications are put: by key and owner.
type Waits = HashMap<Vec<u8>, HashMap<Vec<u8>, mpsc::UnboundedSender<Notification>>>;

/// A connection that is there, has failed, or (None) is on its way.
pub(crate) type Opening = watch::Receiver<Option<Result<Arc<Link>>>>;

/// A server that we talk to.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) opening: Option<Opening>,
    pub(crate) subscribe_denied: bool,
    /// What its keeper failed with last, if it did: the reason of a loss.
    pub(crate) trouble: Option<Error>,
    /// Its keeper has something to keep.
    running: bool,
    waits: Waits,
    pub(crate) kick: Arc<Notify>,
    pub(crate) keeper: Option<JoinHandle<()>>,
}

impl Node {
    /// Has the keeper look at once.
    pub(crate) fn wake(&mut self) {
        self.running = true;
        self.kick.notify_one();
    }

    /// The same, if it sleeps. (The others look by themselves once in every interval.)
    pub(crate) fn ensure_running(&mut self) {
        if !self.running {
            self.wake();
        }
    }

    pub(crate) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether others of this program wait for the lock here.
    pub(crate) fn is_crowded(&self, key: &[u8]) -> bool {
        self.waits.contains_key(key)
    }

    pub(crate) fn insert_wait(&mut self, (key, owner): Who, sender: mpsc::UnboundedSender<Notification>) {
        self.waits.entry(key).or_default().insert(owner, sender);
        self.ensure_running();
    }

    pub(crate) fn remove_wait(&mut self, (key, owner): &Who) {
        if let Some(owners) = self.waits.get_mut(key) {
            owners.remove(owner);
            if owners.is_empty() {
                self.waits.remove(key);
            }
        }
    }

    /// A message of our channel.
    pub(crate) fn notify(&self, (key, owner): &Who, notification: Notification) {
        if let Some(sender) = self.waits.get(key).and_then(|owners| owners.get(owner)) {
            let _ = sender.send(notification);
        }
    }

    /// All who wait for such keys ask again.
    pub(crate) fn notify_all(&self, word: &str, which: impl Fn(&[u8]) -> bool) {
        for (_, owners) in self.waits.iter().filter(|(key, _)| which(key)) {
            for sender in owners.values() {
                let _ = sender.send(Notification { word: word.to_owned(), token: 0, number: 0 });
            }
        }
    }
}

/// What an owner that the program has named holds here.
#[derive(Default)]
pub(crate) struct Named {
    /// One request at a time.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    pub(crate) token: Option<u64>,
    /// The names of which a RELEASE is not answered yet. They are not used meanwhile.
    pub(crate) unanswered: HashSet<Vec<u8>>,
}

/// All that a client knows.
pub(crate) struct State {
    pub(crate) closed: bool,
    pub(crate) nodes: HashMap<String, Node>,
    pub(crate) renewals: HashMap<Id, Renewal>,
    pub(crate) links: HashMap<u64, LinkState>,
    pub(crate) named: HashMap<Who, Named>,
    /// Which node serves which slot, as far as errors have told.
    pub(crate) slots: HashMap<u16, String>,
    /// Keys that are at their next node before their slot is.
    pub(crate) asking: HashMap<Vec<u8>, String>,
    /// The nodes that the program has named, and all that have ever answered.
    pub(crate) known: Vec<String>,
    /// Where among them to begin with a slot of which nothing is known.
    first: usize,
    /// The earliest end of all renewals, or earlier.
    pub(crate) alarm: Duration,
    pub(crate) ring: Arc<Notify>,
    pub(crate) clock: Option<JoinHandle<()>>,
    /// The holds whose loss is to be reported, when nobody has locked the state any more.
    pub(crate) lost: Vec<(Arc<Shared>, String)>,
}

impl Default for State {
    fn default() -> State {
        State {
            closed: false,
            nodes: HashMap::new(),
            renewals: HashMap::new(),
            links: HashMap::new(),
            named: HashMap::new(),
            slots: HashMap::new(),
            asking: HashMap::new(),
            known: Vec::new(),
            first: 0,
            alarm: Duration::MAX,
            ring: Arc::default(),
            clock: None,
            lost: Vec::new(),
        }
    }
}

/// The state, and the losses that are to be reported afterwards.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<State>);

impl Shelf {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state: MutexGuard<'_, State> = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut state);
        let (lost, closed) = (std::mem::take(&mut state.lost), state.closed);
        drop(state);
        for (hold, reason) in lost {
            hold.report_lost(reason, closed);
        }
        result
    }
}

impl State {
    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        if !self.nodes.contains_key(name) {
            self.nodes.insert(name.to_owned(), Node::default());
        }
        self.nodes.get_mut(name).unwrap_or_else(|| unreachable!("it is there"))
    }

    /// Returns the node's link, if it lives.
    pub(crate) fn link(&self, name: &str) -> Option<Arc<Link>> {
        self.nodes.get(name)?.link.clone().filter(|link| !link.is_dead())
    }

    /// Returns who serves the key, as far as we know, and whether the key is there before its slot.
    pub(crate) fn route(&self, key: &[u8]) -> (String, bool) {
        if let Some(name) = self.asking.get(key) {
            return (name.clone(), true);
        }
        let known = || self.known.get(self.first % self.known.len().max(1));
        let name = if self.slots.is_empty() { None } else { self.slots.get(&slot(key)) };
        (name.or_else(known).cloned().unwrap_or_default(), false)
    }

    /// Whether a keeper is to say that we live.
    pub(crate) fn has_renewals_or_waits(&mut self, name: &str) -> bool {
        self.node(name).has_waits() || self.renewals.values().any(|renewal| renewal.node == name)
    }

    /// Whether there is something to keep. If not, the node's keeper sleeps until it is woken.
    pub(crate) fn is_running(&mut self, name: &str) -> bool {
        let running = self.has_renewals_or_waits(name);
        self.node(name).running = running;
        running
    }

    /// Another node serves the key's slot, or this key already.
    pub(crate) fn learn(&mut self, key: &[u8], redirect: &Redirect) {
        self.asking.remove(key);
        if redirect.ask {
            self.asking.insert(key.to_vec(), redirect.address.clone());
        } else {
            self.slots.insert(redirect.slot, redirect.address.clone());
        }
    }

    /// This node may serve nothing any more: the next one that we know is asked.
    pub(crate) fn forget_routes(&mut self, name: &str) {
        self.slots.retain(|_, one| one != name);
        self.asking.retain(|_, one| one != name);
        if self.known.get(self.first % self.known.len().max(1)).is_some_and(|first| first == name) {
            self.first += 1;
        }
    }
}

pub(crate) fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
