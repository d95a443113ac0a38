//! One server: an engine with a keyspace, run the way the module runs it.

use crate::client::Client;
use crate::commands::table::{Spec, COMMANDS};
use crate::commands::{execute, Call, Defaults, Reply};
use crate::engine::{change, codec, Engine, Keyspace, Millis, Name, Now, Policy, Wake};
use crate::error::Error;
use crate::keys::{Closed, Keys, Value};
use std::collections::BTreeMap;

/// A server's data as others can see it: each lock's bytes and its TTL.
pub type Data = BTreeMap<Name, Option<(Vec<u8>, Option<Millis>)>>;

#[derive(Debug)]
pub struct Server {
    pub engine: Engine,
    pub keys: Keys,
    pub primary: bool,
}

/// The command that goes by this name, with or without `DLOCK.`, in any case.
pub fn command(word: &str) -> Option<&'static Spec> {
    let word = word.to_ascii_lowercase();
    COMMANDS
        .iter()
        .find(|spec| spec.name == word || spec.name.strip_prefix("dlock.") == Some(&word))
}

impl Server {
    pub fn new(primary: bool, policy: Policy) -> Server {
        let mut engine = Engine::default();
        engine.policy = policy;
        Server {
            engine,
            keys: Keys::default(),
            primary,
        }
    }

    /// Runs one command. Takes its words with the command's name.
    pub fn run(
        &mut self,
        now: Now,
        db: u32,
        caller: Client,
        words: &[&[u8]],
    ) -> Result<Reply, Error> {
        let (name, words) = words.split_first().expect("a command has a name");
        let spec = command(&String::from_utf8_lossy(name)).expect("a command of the table");
        let defaults = Defaults { lease_ms: 30_000 };
        let primary = self.primary;
        let (engine, keys) = (&mut self.engine, &mut self.keys);
        execute(
            spec,
            &mut Call {
                engine,
                keys,
                now,
                db,
                caller: &caller,
                defaults: &defaults,
                primary,
            },
            words,
        )
    }

    /// Takes over a primary's decision; gives what is passed on to this server's own replicas.
    pub fn follow(&mut self, name: &Name, effect: &[u8], now: Now) -> Vec<u8> {
        // As the module sends it.
        let words: &[&[u8]] = match change::goes_without_saying(effect) {
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

    /// Works an event off: what was done to which lock, and who is to be answered.
    pub fn work_off(&mut self) -> (Vec<Closed>, Vec<Wake>) {
        (self.keys.close(), std::mem::take(&mut self.engine.wakes))
    }

    /// What stands at each key.
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

    /// A server that has read this one's RDB file: a fresh process that follows, until it is promoted.
    pub fn reload(&self, now: Now) -> Server {
        let mut fresh = Server::new(false, self.engine.policy.clone());
        for (name, value) in self.data() {
            match value {
                None => drop(fresh.keys.values.insert(name, Value::Other)),
                Some((bytes, ttl)) => fresh.bring(&name, &bytes, ttl, now),
            }
        }
        fresh
    }

    /// A server that has replayed a rewritten AOF of this one.
    pub fn rewrite(&self, now: Now) -> Server {
        let mut fresh = Server::new(false, self.engine.policy.clone());
        for (name, value) in &self.keys.values {
            match value {
                Value::Other => drop(fresh.keys.values.insert(name.clone(), Value::Other)),
                Value::Lock(lock, _) => drop(fresh.follow(name, &change::rebuild(lock), now)),
            }
        }
        fresh
    }

    /// A value arrives at a key: from an RDB file, by RESTORE, by full synchronization.
    pub fn bring(&mut self, name: &Name, bytes: &[u8], ttl: Option<Millis>, now: Now) {
        let lock = Box::new(codec::decode(bytes).expect("what was encoded can be decoded"));
        for hold in lock.holds() {
            self.engine.clock.observe(hold.token, now);
        }
        for (number, _) in lock.tickets() {
            self.engine.clock.observe(number, now);
        }
        self.keys
            .values
            .insert(name.clone(), Value::Lock(lock, ttl));
        // A server that decides looks at it by itself.
        if !self.primary {
            self.look_again(name, true);
        }
    }

    /// A value may have come to (`brought`) or gone from a key in a way that the engine has not seen.
    pub fn look_again(&mut self, name: &Name, brought: bool) {
        if !self.primary {
            let entry = self.keys.entry(name.lend());
            self.engine.follow(name.lend(), entry);
            self.keys.close();
        } else if brought {
            self.engine.brought(&mut self.keys, name);
        } else {
            self.engine.stale(name.lend());
        }
    }

    /// Whether the first place that is shown is a holder's who waits for a stricter limit: then the last one's
    /// position does not count it.
    pub fn upgrade_waits(&self, now: Now, name: &Name) -> bool {
        let lock = self.keys.lock(name);
        let view = self.engine.view(lock, now, name.lend(), usize::MAX);
        let queue = view.map(|view| view.queue).unwrap_or_default();
        let rank = |owner: &[u8]| self.engine.position(lock, name.lend(), owner);
        queue
            .last()
            .is_some_and(|last| rank(&last.owner) != Some(queue.len() - 1))
    }
}
