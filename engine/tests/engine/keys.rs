//! A keyspace: the value at each key, and the entries that an event has opened.

use dlock_engine::{Entry, Event, Keyspace, Lock, Name, NameRef, WallMs};
use std::collections::{BTreeMap, BTreeSet};

/// The value at a key.
#[derive(Debug, Clone)]
pub enum Value {
    /// A lock, and when the key expires.
    Lock(Box<Lock>, Option<WallMs>),
    /// A value of another type, a string for instance.
    Other,
}

/// All keys of all databases.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    pub values: BTreeMap<Name, Value>,
    /// Locks whose slot has left this node.
    pub away: BTreeSet<Name>,
    /// Locks whose slot migrates to another node: this one serves them as long as it has the key.
    pub leaving: BTreeSet<Name>,
    /// Whether a renewal checks what a grant checks: a fault.
    pub one_question: bool,
    /// Whether there are neither replicas nor an AOF.
    pub alone: bool,
    /// Whether the engine does not learn that a lock existed already: a fault.
    pub blind: bool,
    /// How often a lock was read without being opened for a change.
    pub inspected: usize,
    /// Whether a key keeps its TTL when the lock is written to: a fault.
    pub ttl_sticks: bool,
    open: Vec<Opened>,
}

#[derive(Debug, Clone)]
struct Opened {
    name: Name,
    entry: Entry<Box<Lock>>,
    ttl: Option<WallMs>,
}

/// The changes that an event made to one lock.
#[derive(Debug)]
pub struct Closed {
    pub name: Name,
    pub effect: Vec<u8>,
    pub events: Vec<Event>,
}

impl Keyspace for Keys {
    type Value = Box<Lock>;

    fn entry(&mut self, name: NameRef) -> &mut Entry<Box<Lock>> {
        let at = match self
            .open
            .iter()
            .position(|opened| opened.name.as_ref() == name)
        {
            Some(at) => at,
            None => {
                let name = name.to_owned();
                let mut entry = Entry {
                    replicate: !self.alone,
                    ..Entry::default()
                };
                let mut ttl = None;
                match self.values.remove(&name) {
                    Some(Value::Lock(lock, at)) => {
                        (entry.lock, ttl) = (Some(lock), at);
                        entry.unseen = !self.blind;
                    }
                    Some(Value::Other) => entry.foreign = true,
                    None => {}
                }
                self.open.push(Opened { name, entry, ttl });
                self.open.len() - 1
            }
        };
        &mut self.open[at].entry
    }

    fn can_grant(&mut self, name: NameRef) -> bool {
        let mut others = self.away.iter().chain(&self.leaving);
        others.all(|other| other.as_ref() != name)
    }

    fn can_write(&mut self, name: NameRef) -> bool {
        let is = |other: &Name| other.as_ref() == name;
        match self.leaving.iter().any(is) && !self.one_question {
            true => self.entry(name).lock.is_some(),
            false => self.can_grant(name),
        }
    }

    fn moved(&mut self, name: NameRef) -> bool {
        self.away.iter().any(|away| away.as_ref() == name)
    }

    fn inspect(&mut self, name: NameRef, see: &mut dyn FnMut(&Lock)) -> bool {
        self.inspected += 1;
        let entry = self.entry(name);
        if let Some(lock) = &entry.lock {
            see(lock);
        }
        entry.foreign || entry.lock.is_some()
    }
}

impl Keys {
    /// Closes the opened entries: deletes those that became empty, and gives changed ones their TTL.
    pub fn close(&mut self) -> Vec<Closed> {
        let mut closed = Vec::new();
        for Opened { name, entry, ttl } in std::mem::take(&mut self.open) {
            let Entry {
                lock,
                foreign,
                unseen: _,
                changed,
                replicate,
                effect,
                events,
            } = entry;
            assert_eq!(
                !effect.is_empty(),
                changed && replicate,
                "an effect means a change"
            );
            if foreign {
                assert!(
                    lock.is_none() && !changed,
                    "the engine wrote to a key of another type"
                );
                self.values.insert(name.clone(), Value::Other);
            } else if let Some(lock) = lock.filter(|lock| !lock.is_empty()) {
                let ttl = match changed && !self.ttl_sticks {
                    true => lock.key_expiry(),
                    false => ttl,
                };
                self.values.insert(name.clone(), Value::Lock(lock, ttl));
            }
            closed.push(Closed {
                name,
                effect,
                events,
            });
        }
        closed
    }

    /// Returns the lock at a key.
    pub fn lock(&self, name: &Name) -> Option<&Lock> {
        match self.values.get(name) {
            Some(Value::Lock(lock, _)) => Some(lock),
            _ => None,
        }
    }
}
