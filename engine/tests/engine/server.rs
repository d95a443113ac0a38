//! One server: an engine with a keyspace, run the way the module runs it.

use crate::client::Client;
use crate::keys::{Closed, Keys, Value};
use crate::script::{Act, Key};
use crate::world::Op;
use dlock_commands::error::Error;
use dlock_commands::table::{Access, Spec, COMMANDS};
use dlock_commands::{execute, Call, Reply};
use dlock_engine::lock::Hold;
use dlock_engine::{
    change, codec, End, Engine, HoldRef, Keyspace, Loss, Lost, Name, NameRef, Now, Output, Policy,
    WallMs,
};
use std::collections::{BTreeMap, BTreeSet};

/// A server's data as others see it: each lock's bytes and its TTL.
pub type Data = BTreeMap<Name, Option<(Vec<u8>, Option<WallMs>)>>;

#[derive(Debug, Clone)]
pub struct Server {
    pub engine: Engine,
    pub keys: Keys,
    pub primary: bool,
    /// Whether the engine does not learn that a hold has left its name: a fault.
    pub stays: bool,
    /// Whether the engine does not learn that a value that has left its name lives on: a fault.
    pub fresh_windows: bool,
}

/// Returns the command of this name, with or without `DLOCK.`, in any case.
pub fn command(word: &str) -> Option<&'static Spec> {
    let word = word.to_ascii_lowercase();
    COMMANDS
        .iter()
        .find(|spec| spec.name == word || spec.name.strip_prefix("dlock.") == Some(&word))
}

/// Returns the keys that an act names.
pub fn keys_of(act: &Act) -> Vec<Key> {
    let asked = match act {
        Act::Command(asked) => asked,
        Act::Behind(act) => return keys_of(act),
        Act::Rename(from, to) | Act::Copy(from, to) => return vec![from.clone(), to.clone()],
        Act::Del(one)
        | Act::Set(one)
        | Act::Expire(one, _)
        | Act::Dump(one)
        | Act::Restore(one) => return vec![one.clone()],
        _ => return Vec::new(),
    };
    let words: Vec<&[u8]> = asked.words.iter().map(|word| word.as_bytes()).collect();
    let Some(spec) = command(&asked.words[0]) else {
        return Vec::new();
    };
    let keys = words.get(1..).unwrap_or_default();
    let keys = keys.get(spec.keys(keys)).unwrap_or_default();
    let text = |key: &&[u8]| (asked.db, String::from_utf8_lossy(key).into_owned());
    keys.iter().map(text).collect()
}

impl Server {
    pub fn new(primary: bool, policy: Policy) -> Server {
        let mut engine = Engine::default();
        engine.set_policy(policy);
        Server {
            engine,
            keys: Keys::default(),
            primary,
            stays: false,
            fresh_windows: false,
        }
    }

    /// Changes the policy.
    pub fn set_policy(&mut self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.engine.policy().clone();
        change(&mut policy);
        self.engine.set_policy(policy);
    }

    /// Runs one command, whose first word is its name.
    pub fn run(
        &mut self,
        now: Now,
        db: u32,
        caller: Client,
        words: &[&[u8]],
    ) -> Result<Reply, Error> {
        let (name, words) = words.split_first().expect("a command has a name");
        let spec = command(&String::from_utf8_lossy(name)).expect("a command of the table");
        let primary = self.primary;
        let (engine, keys) = (&mut self.engine, &mut self.keys);
        if spec.access == Access::Write {
            for key in words.get(spec.keys(words)).unwrap_or_default() {
                let name = NameRef { db, key };
                engine.close_if_leaving(keys, name);
            }
        }
        let call = &mut Call {
            engine,
            keys,
            now,
            db,
            caller: &caller,
            default_lease_ms: 30_000,
            primary,
        };
        execute(spec, call, words).map(|reply| match reply {
            // As a client reads it.
            Reply::GrantIn(token, session) => {
                Reply::Array([token.0, session].map(Reply::Integer).to_vec())
            }
            reply => reply,
        })
    }

    /// Applies a primary's decision. Returns the effect for this server's own replicas.
    pub fn follow(&mut self, name: &Name, effect: &[u8], now: Now) -> Vec<u8> {
        // In the form in which the module sends it.
        let words: &[&[u8]] = match change::is_usual_release(effect) {
            true => &[b"apply", &name.key],
            false => &[b"apply", &name.key, effect],
        };
        self.run(now, name.db, Client::primary(), words)
            .expect("a well-formed effect");
        self.keys
            .close()
            .into_iter()
            .flat_map(|closed| closed.effect)
            .collect()
    }

    /// Closes an event. Returns the changes of each lock, and the outputs.
    pub fn work_off(&mut self) -> (Vec<Closed>, Vec<Output>) {
        (self.keys.close(), self.engine.take_outputs())
    }

    /// Returns the value at each key.
    pub fn data(&self) -> Data {
        let seen = |value: &Value| match value {
            Value::Lock(lock, ttl) => Some((codec::encode(lock), *ttl)),
            Value::Other => None,
        };
        self.keys
            .values
            .iter()
            .map(|(name, value)| (name.clone(), seen(value)))
            .collect()
    }

    /// Returns a server that has read this one's RDB file: a fresh process that follows, until it is promoted.
    pub fn reload(&self, now: Now) -> Server {
        let mut fresh = Server::new(false, self.engine.policy().clone());
        for (name, value) in self.data() {
            match value {
                None => drop(fresh.keys.values.insert(name, Value::Other)),
                Some((bytes, ttl)) => fresh.bring(&name, &bytes, ttl, now),
            }
        }
        fresh
    }

    /// Returns a server that has replayed a rewritten AOF of this one.
    pub fn rewrite(&self, now: Now) -> Server {
        let mut fresh = Server::new(false, self.engine.policy().clone());
        for (name, value) in &self.keys.values {
            match value {
                Value::Other => drop(fresh.keys.values.insert(name.clone(), Value::Other)),
                Value::Lock(lock, ttl) => {
                    fresh.follow(name, &change::rebuild(lock), now);
                    // The server itself writes the key's TTL behind it, if there is one.
                    if let (Some(end), Some(Value::Lock(_, its))) =
                        (ttl, fresh.keys.values.get_mut(name))
                    {
                        *its = Some(*end);
                    }
                }
            }
        }
        fresh
    }

    /// Puts an arriving value at a key: from an RDB file, by RESTORE, by full synchronization.
    pub fn bring(&mut self, name: &Name, bytes: &[u8], ttl: Option<WallMs>, now: Now) {
        let lock = codec::decode(bytes).expect("an encoded lock can be decoded");
        // A server that decides loads only values that a user brings.
        let lock = if self.primary {
            lock.marked_restored()
        } else {
            lock
        };
        for hold in lock.holds() {
            self.engine.observe_number(hold.token.0, now);
        }
        for (number, _) in lock.tickets() {
            self.engine.observe_number(number.0, now);
        }
        self.keys
            .values
            .insert(name.clone(), Value::Lock(Box::new(lock), ttl));
        // A server that decides finds the value by itself.
        if !self.primary {
            self.revisit(name, true);
        }
    }

    /// Tells the engine that a value may have come to (`brought`) or gone from a key without its notice.
    fn revisit(&mut self, name: &Name, brought: bool) {
        if !self.primary {
            let entry = self.keys.entry(name.as_ref());
            self.engine.watch_if_needed(name.as_ref(), entry);
            self.keys.close();
        } else if brought {
            self.engine.on_key_changed(name.as_ref());
        } else {
            self.engine.on_key_removed(name.as_ref());
        }
    }

    /// Reports the end of a value and its holds.
    fn lost(&mut self, name: &Name, value: Option<Value>, now: Now) {
        let Some(Value::Lock(lock, _)) = value else {
            return;
        };
        for hold in lock.holds() {
            let end = match hold.deadline <= now.wall() {
                true => End::Expired,
                false => End::Removed,
            };
            let (whose, lost) = gone(name, &hold);
            self.engine.on_hold_removed(whose, end, lost, now);
        }
    }

    /// Reports that a value leaves for another name, with its holds.
    fn leaves(&mut self, name: &Name, value: &Value, now: Now) {
        if let Value::Lock(lock, _) = value {
            for hold in lock.holds().filter(|_| !self.stays) {
                let (whose, lost) = gone(name, &hold);
                self.engine.on_hold_left(whose, lost, Loss::Renamed, now);
            }
        }
        match self.primary && !self.fresh_windows {
            true => self.engine.on_key_moved(name.as_ref()),
            false => self.revisit(name, false),
        }
    }

    /// Adds a name to `unseen` if this server does not know of the lock there, which it must watch.
    pub fn note_unseen(&self, name: &Name, unseen: &mut BTreeSet<Name>) {
        let lock = self.keys.lock(name);
        if lock.is_some_and(|lock| lock.needs_watch()) && !self.engine.watches(name.as_ref()) {
            unseen.insert(name.clone());
        }
    }

    /// Puts a value at a name that has none, without a report by the server.
    pub fn appear(&mut self, op: &Op, now: Now) {
        match op {
            Op::Rename(from, to) => {
                if let Some(value) = self.keys.values.remove(from) {
                    self.leaves(from, &value, now);
                    self.keys.values.insert(to.clone(), value);
                }
            }
            Op::Overwrite(name) => drop(self.keys.values.insert(name.clone(), Value::Other)),
            other => panic!("every server reports {other:?}"),
        }
    }

    /// Performs an operation that is not the module's, and reports it as the server would.
    pub fn alter(&mut self, op: &Op, now: Now) {
        match op {
            Op::Effect(name, effect) => drop(self.follow(name, effect, now)),
            Op::Del(name) => {
                let value = self.keys.values.remove(name);
                if matches!(value, Some(Value::Lock(..))) {
                    self.lost(name, value, now);
                    self.revisit(name, false);
                }
            }
            Op::Rename(from, to) if from == to => {}
            Op::Rename(from, to) => {
                if let Some(value) = self.keys.values.remove(from) {
                    self.leaves(from, &value, now);
                    let replaced = self.keys.values.insert(to.clone(), value);
                    self.lost(to, replaced, now);
                    self.revisit(to, false);
                }
            }
            Op::Overwrite(name) => {
                let replaced = self.keys.values.insert(name.clone(), Value::Other);
                self.lost(name, replaced, now);
                self.revisit(name, false);
            }
            Op::Flush(db) => {
                self.keys
                    .values
                    .retain(|name, _| db.is_some_and(|db| name.db != db));
                self.engine.on_values_changed(*db);
                self.engine.on_flush(*db, now);
                self.follow_dirty(now);
            }
            Op::Swap(one, other) => self.swap(*one, *other, now),
            Op::Expire(name, end) => {
                if let Some(Value::Lock(_, ttl)) = self.keys.values.get_mut(name) {
                    *ttl = Some(*end);
                }
            }
            Op::Restore(name, bytes) => {
                let replaced = self.keys.values.remove(name);
                self.lost(name, replaced, now);
                self.bring(name, bytes, None, now);
                self.revisit(name, true);
            }
        }
    }

    fn swap(&mut self, one: u32, other: u32, now: Now) {
        let swapped = |name: Name| swapped(name, one, other);
        let values = std::mem::take(&mut self.keys.values);
        let moved = values
            .into_iter()
            .map(|(name, value)| (swapped(name), value));
        self.keys.values = moved.collect();
        self.engine.on_swap(one, other, now);
        self.follow_dirty(now);
    }

    /// Clears away the marked locks on a server that follows; one that decides settles them.
    pub fn follow_dirty(&mut self, now: Now) {
        while !self.primary && self.engine.follow_dirty(&mut self.keys, now, 1) {
            self.keys.close();
        }
        self.keys.close();
    }
}

/// Returns the name of a lock after these databases are swapped.
pub fn swapped(name: Name, one: u32, other: u32) -> Name {
    let db = match name.db {
        db if db == one => other,
        db if db == other => one,
        db => db,
    };
    Name { db, ..name }
}

/// Returns whose hold this is, and what the engine learns of it when it goes with its key.
fn gone<'a>(name: &'a Name, hold: &Hold<'a>) -> (HoldRef<'a>, Lost) {
    let (token, client) = (hold.token, hold.client);
    let owner = hold.owner;
    let name = name.as_ref();
    let lost = Lost {
        token,
        client,
        logged: true,
    };
    (HoldRef { name, owner }, lost)
}
