//! A primary, its replica, the link between them, connections, and a clock that only the test moves.

use crate::client::Client;
use crate::commands::Reply;
use crate::engine::change::{self, Change, End};
use crate::engine::line::RequestId;
use crate::engine::{
    Answer, Ask, Engine, Event, Message, Millis, Name, NameRef, Now, Outcome, Policy, Token, Wait,
};
use crate::error::Error;
use crate::faults::Fault;
use crate::keys::Value;
use crate::server::Server;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::rc::Rc;

/// When the world begins, in milliseconds of the unix epoch: small, so that numbers in failures can be read.
pub const BEGIN_MS: Millis = 1_000_000_000;

/// More rounds than this at one moment, or ticks on the way to another, and the engine spins.
const PATIENCE: usize = 100_000;

#[derive(Debug)]
pub struct World {
    pub now: Now,
    pub primary: Server,
    pub replica: Server,
    /// What the primary has sent and the replica has not yet.
    pub link: VecDeque<Op>,
    /// Whether the replica lags: then the link is worked off by `sync` only.
    pub lag: bool,
    /// Whether the primary would accept a write now: not while it is paused.
    pub writable: bool,
    /// The requests that wait, as their connections know them.
    pub waits: BTreeMap<RequestId, Waiting>,
    /// The requests that wait by a channel.
    pub noted: Vec<Noted>,
    /// Connections that have ended.
    ended: BTreeSet<u64>,
    /// Connections that are gone without the server's notice: nothing reaches them.
    pub cut: BTreeSet<u64>,
    /// What connections were told since it was last read.
    pub news: Vec<News>,
    /// What channels were told since it was last read.
    pub messages: Vec<Message>,
    /// What observers were told since it was last read.
    pub events: Vec<(Name, Event)>,
    /// The grants since it was last read.
    pub grants: Vec<(Name, Vec<u8>, Token)>,
    /// A fault that is planted in this fixture, to see that it is found.
    pub fault: Option<Fault>,
    /// Every lock that there ever was.
    pub known: BTreeSet<Name>,
    /// The highest token of all grants.
    pub last_token: Token,
    /// The highest token that the replica has seen.
    replica_knows: Token,
    tokens: HashSet<Token>,
}

/// A request that waits.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub client: u64,
    /// The locks that it waits for: one, or those of a request for many in their order.
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub until: Option<Millis>,
}

/// A request that waits by a channel.
#[derive(Debug, Clone)]
pub struct Noted {
    pub client: u64,
    pub channel: Vec<u8>,
    pub name: Name,
    pub owner: Vec<u8>,
    pub until: Option<Millis>,
}

/// The answer to a request that waited.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    pub at: Millis,
    pub id: RequestId,
    pub client: u64,
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub outcome: Outcome,
}

/// What goes from a primary to its replica: decisions, and commands that are none of the module's.
#[derive(Debug, Clone)]
pub enum Op {
    Effect(Name, Vec<u8>),
    Del(Name),
    Rename(Name, Name),
    Overwrite(Name),
    Flush(Option<u32>),
    Swap(u32, u32),
    Restore(Name, Vec<u8>),
}

pub fn name(db: u32, key: &str) -> Name {
    Name {
        db,
        key: Rc::from(key.as_bytes()),
    }
}

impl World {
    pub fn new(policy: Policy) -> World {
        World {
            now: Now {
                us: BEGIN_MS * 1000,
            },
            primary: Server::new(true, policy.clone()),
            replica: Server::new(false, policy),
            link: VecDeque::new(),
            lag: false,
            writable: true,
            waits: BTreeMap::new(),
            noted: Vec::new(),
            ended: BTreeSet::new(),
            cut: BTreeSet::new(),
            news: Vec::new(),
            messages: Vec::new(),
            events: Vec::new(),
            grants: Vec::new(),
            fault: None,
            known: BTreeSet::new(),
            last_token: 0,
            replica_knows: 0,
            tokens: HashSet::new(),
        }
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.primary.engine
    }

    /// A connection sends a command.
    pub fn send(&mut self, client: Client, db: u32, words: &[&[u8]]) -> Result<Reply, Error> {
        // A name that is used again is a new connection.
        self.ended.remove(&client.id);
        self.primary.keys.ended.remove(&client.id);
        let answer = self.primary.run(self.now, db, client, words);
        let spec = crate::server::command(&String::from_utf8_lossy(words[0]));
        let spec = spec.expect("a command of the table");
        let keys = spec.keys(&words[1..]);
        let options = words.get(keys.end + 2..).unwrap_or_default();
        let ms =
            said(options, "BLOCK").and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
        let until = ms.filter(|ms| *ms > 0).map(|ms: Millis| self.now.ms() + ms);
        if let (Ok(Reply::Array(_)), Some(channel)) = (&answer, said(options, "NOTIFY")) {
            self.noted.push(Noted {
                client: client.id,
                channel: channel.to_vec(),
                name: NameRef { db, key: words[1] }.keep(),
                owner: words[2].to_vec(),
                until,
            });
        }
        if let Ok(Reply::Wait(id, named)) = &answer {
            let owner = named
                .as_ref()
                .map_or(words[1 + keys.end], |named| named.as_bytes())
                .to_vec();
            let names = words[1..][keys]
                .iter()
                .map(|key| NameRef { db, key }.keep())
                .collect();
            self.waits.insert(
                *id,
                Waiting {
                    client: client.id,
                    names,
                    owner,
                    until,
                },
            );
        }
        self.perform();
        answer
    }

    /// A connection asks for a lock with a limit, which the commands do not offer yet.
    pub fn ask(&mut self, name: &Name, ask: &Ask) -> Result<Answer, Error> {
        let now = self.now;
        let answer = self
            .primary
            .engine
            .acquire(&mut self.primary.keys, now, name.lend(), ask);
        if let Ok(Answer::Waiting(id)) = answer {
            let until = match ask.wait {
                Wait::For(Some(ms)) => Some(now.ms() + ms),
                _ => None,
            };
            let owner = ask.owner.to_vec();
            self.waits.insert(
                id,
                Waiting {
                    client: ask.client,
                    names: vec![name.clone()],
                    owner,
                    until,
                },
            );
        }
        self.perform();
        answer
    }

    /// A connection ends, and the server notices.
    pub fn dies(&mut self, client: u64) {
        let its: Vec<RequestId> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.client == client)
            .map(|(id, _)| *id)
            .collect();
        for id in its {
            self.waits.remove(&id);
            let now = self.now;
            self.engine().leave(id, now);
        }
        self.cut.remove(&client);
        self.engine().ended(client);
        self.ended.insert(client);
        self.primary.keys.ended.insert(client);
        self.perform();
    }

    /// What the server does once a second.
    pub fn heartbeat(&mut self) {
        let now = self.now;
        if self.writable {
            let Server { engine, keys, .. } = &mut self.primary;
            engine.break_circles(keys, now);
        }
        self.perform();
    }

    /// Time passes on a server that is never late: it wakes whenever it asked for it.
    pub fn pass(&mut self, ms: Millis) {
        let target = self.now.ms() + ms;
        for _ in 0..PATIENCE {
            let due = self.primary.engine.next_wakeup().filter(|at| *at <= target);
            let Some(at) = due.filter(|_| !self.skips_tick()) else {
                self.now.us = self.now.us.max(target * 1000);
                return;
            };
            self.now.us = self.now.us.max(at * 1000);
            self.tick();
        }
        panic!(
            "the engine wants to be woken again and again: {:?}",
            self.primary.engine.next_wakeup()
        );
    }

    /// Time passes on a server that is busy elsewhere and comes to nothing.
    pub fn jump(&mut self, ms: Millis) {
        self.now.us += ms * 1000;
    }

    /// The server looks at what is due.
    pub fn tick(&mut self) {
        let now = self.now;
        while !self.skips_tick() && self.engine().tick(now) {}
        self.perform();
    }

    fn skips_tick(&self) -> bool {
        self.fault == Some(Fault::SkippedTick)
    }

    /// The operator changes the configuration.
    pub fn configure(&mut self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.engine().policy);
        self.engine().mark_all();
        self.engine().suspect_all();
        self.tick();
    }

    /// The server can be written to again.
    pub fn resume(&mut self) {
        self.writable = true;
        self.perform();
    }

    /// Something other than the module works on keys.
    pub fn alter(&mut self, op: Op) {
        self.primary.alter(&op, self.now);
        self.known.extend(self.primary.keys.values.keys().cloned());
        self.link.push_back(op);
        self.perform();
    }

    /// Redis' own expiry: keys whose TTL has run out go.
    pub fn expire_keys(&mut self) {
        let now = self.now.ms();
        let over = |value: &Value| matches!(value, Value::Lock(_, Some(ttl)) if *ttl <= now);
        let gone: Vec<Name> = self
            .primary
            .keys
            .values
            .iter()
            .filter(|(_, value)| over(value))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.alter(Op::Del(name));
        }
    }

    /// The replica takes over what the primary has sent.
    pub fn sync(&mut self) {
        while let Some(op) = self.link.pop_front() {
            match op {
                Op::Effect(name, effect) => {
                    let tokens = granted(&effect).map(|(_, token)| token);
                    self.replica_knows = tokens.fold(self.replica_knows, Token::max);
                    let passed_on = self.replica.follow(&name, &effect, self.now);
                    assert_eq!(
                        passed_on, effect,
                        "a replica's own replicas and AOF get the same bytes"
                    );
                }
                op => self.replica.alter(&op, self.now),
            }
        }
        let (_, wakes) = self.replica.work_off();
        assert_eq!(wakes, [], "a replica answers nobody");
    }

    /// Whether tokens will rise if the replica decides from now on, its clock being so far off: it has seen the last
    /// grant, or its clock is ahead of it. Otherwise they are no promise.
    pub fn replica_may_decide(&self, offset_ms: i64) -> bool {
        let last = self.last_token;
        self.replica_knows >= last || self.now.us.saturating_add_signed(offset_ms * 1000) > last
    }

    /// The primary crashes, with what it had not sent yet; the replica decides from now on, on its own clock.
    pub fn crash(&mut self, offset_ms: i64, quarantine_ms: Millis) {
        self.link.clear();
        let policy = self.primary.engine.policy.clone();
        self.primary = std::mem::replace(&mut self.replica, Server::new(false, policy.clone()));
        self.primary.engine.policy = policy;
        self.now.us = self.now.us.saturating_add_signed(offset_ms * 1000);
        if quarantine_ms > 0 {
            self.engine().policy.quarantine_until = self.now.ms() + quarantine_ms;
        }
        self.take_over();
    }

    /// `FAILOVER`: the replica has everything, and the two change roles.
    pub fn failover(&mut self) {
        self.sync();
        let now = self.now;
        self.engine().demote(now);
        for message in std::mem::take(&mut self.engine().messages) {
            self.hear(message);
        }
        self.primary.primary = false;
        self.replica.engine.policy = self.primary.engine.policy.clone();
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.replica_knows = 0;
        self.begin();
    }

    /// The primary starts again with what its RDB file says.
    pub fn restart(&mut self) {
        self.link.clear();
        self.primary = self.primary.reload(self.now);
        self.take_over();
    }

    /// The primary begins to decide; its replica copies it in full.
    fn take_over(&mut self) {
        self.link.clear();
        self.replica = self.primary.reload(self.now);
        self.replica_knows = 0;
        self.begin();
    }

    fn begin(&mut self) {
        self.primary.primary = true;
        self.engine().promote();
        // The server tells everyone who was blocked that it is over.
        self.waits.clear();
        self.noted.clear();
        self.cut.clear();
        self.perform();
    }

    /// Works off what the engine has decided, and has it settle what is left to settle, if that is possible now.
    pub fn perform(&mut self) {
        let mut stuck = false;
        for _ in 0..PATIENCE {
            let (closed, wakes) = self.primary.work_off();
            for closed in closed {
                self.known.insert(closed.name.clone());
                self.events.extend(
                    closed
                        .events
                        .iter()
                        .map(|event| (closed.name.clone(), *event)),
                );
                self.record(&closed.name, &closed.effect);
                if !closed.effect.is_empty()
                    && !self.loses(Fault::LostEffect, closed.effect != b"1")
                {
                    self.link.push_back(Op::Effect(closed.name, closed.effect));
                }
            }
            for message in std::mem::take(&mut self.primary.engine.messages) {
                self.hear(message);
            }
            let answered = !wakes.is_empty();
            for wake in wakes {
                if !self.loses(Fault::LostWake, true) {
                    self.deliver(wake.id, wake.outcome);
                }
            }
            let left = self.primary.engine.unsettled() && (answered || !stuck);
            if self.writable {
                let ended = &self.ended;
                self.noted.retain(|noted| !ended.contains(&noted.client));
            }
            if !self.writable || !left || self.fault == Some(Fault::SkippedSettlement) {
                if !self.lag {
                    self.sync();
                }
                return;
            }
            let now = self.now;
            // What is left then is of slots that have left, unless an answer brings up something new.
            stuck = !self
                .primary
                .engine
                .settle_dirty(&mut self.primary.keys, now, 16);
        }
        panic!("settlement does not come to an end");
    }

    /// A channel is told how a wait ended.
    fn hear(&mut self, message: Message) {
        let its = |noted: &Noted| {
            *noted.channel == *message.channel
                && noted.name == message.name
                && *noted.owner == *message.owner
        };
        let at = self.noted.iter().position(its);
        self.noted
            .remove(at.expect("a message for a request that waits by this channel"));
        self.messages.push(message);
    }

    fn loses(&mut self, fault: Fault, fits: bool) -> bool {
        let loses = fits && self.fault == Some(fault);
        if loses {
            self.fault = Some(Fault::Done);
        }
        loses
    }

    fn deliver(&mut self, id: RequestId, outcome: Outcome) {
        let wait = self
            .waits
            .remove(&id)
            .expect("an answer for a request that waits");
        let Waiting {
            client,
            names,
            owner,
            ..
        } = wait;
        if !self.cut.contains(&client) {
            let at = self.now.ms();
            self.news.push(News {
                at,
                id,
                client,
                names,
                owner,
                outcome,
            });
            return;
        }
        let grants = match outcome {
            Outcome::Granted(grant) => vec![grant],
            Outcome::GrantedAll(grants) => grants,
            _ => Vec::new(),
        };
        for (name, grant) in names.into_iter().zip(grants) {
            let owner = owner.clone().into_boxed_slice();
            self.engine().undelivered(name, owner, grant);
        }
    }

    /// Notes the grants that an effect tells of.
    fn record(&mut self, name: &Name, effect: &[u8]) {
        for (owner, token) in granted(effect) {
            if self.tokens.insert(token) {
                self.last_token = self.last_token.max(token);
                self.grants.push((name.clone(), owner, token));
            }
        }
    }

    /// The bytes of a lock, as DUMP gives them.
    pub fn dump(&self, name: &Name) -> Option<Vec<u8>> {
        self.primary
            .keys
            .lock(name)
            .map(crate::engine::codec::encode)
    }
}

/// What an option of the ACQUIRE family says, among the words after the owner.
fn said<'a>(options: &[&'a [u8]], option: &str) -> Option<&'a [u8]> {
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        // What follows one of these is its value, even if it looks like an option: a channel may have any name.
        if ["BLOCK", "NOTIFY", "HOLDS", "LIMIT", "CLAIM"]
            .into_iter()
            .any(is)
        {
            let value = words.next().copied();
            if is(option) {
                return value;
            }
        }
    }
    None
}

/// The holds that an effect tells of.
fn granted(effect: &[u8]) -> impl Iterator<Item = (Vec<u8>, Token)> + '_ {
    let changes = match effect {
        [] => Vec::new(),
        _ => change::read(effect).expect("a well-formed effect"),
    };
    changes.into_iter().filter_map(|change| match change {
        Change::Hold(hold) => Some((hold.owner.to_vec(), hold.token)),
        _ => None,
    })
}

impl Server {
    /// Does what is none of the module's, and tells the engine what the server would.
    fn alter(&mut self, op: &Op, now: Now) {
        match op {
            Op::Effect(name, effect) => drop(self.follow(name, effect, now)),
            Op::Del(name) => {
                if let Some(Value::Lock(lock, _)) = self.keys.values.remove(name) {
                    for hold in lock.holds() {
                        self.engine.gone(End::Removed, hold.token, now);
                    }
                    self.look_again(name, false);
                }
            }
            Op::Rename(from, to) => {
                if let Some(value) = self.keys.values.remove(from) {
                    self.keys.values.insert(to.clone(), value);
                    self.look_again(from, false);
                    self.look_again(to, true);
                }
            }
            Op::Overwrite(name) => {
                if let Some(Value::Lock(lock, _)) =
                    self.keys.values.insert(name.clone(), Value::Other)
                {
                    for hold in lock.holds() {
                        self.engine.gone(End::Removed, hold.token, now);
                    }
                }
                self.look_again(name, false);
            }
            Op::Flush(db) => {
                self.keys
                    .values
                    .retain(|name, _| db.is_some_and(|db| name.db != db));
                for name in self.engine.watched(*db) {
                    self.look_again(&name, true);
                }
                self.engine.flushed(*db);
            }
            Op::Swap(one, other) => {
                let swapped = |db: u32| {
                    if db == *one {
                        *other
                    } else if db == *other {
                        *one
                    } else {
                        db
                    }
                };
                let values = std::mem::take(&mut self.keys.values);
                let moved = values.into_iter().map(|(name, value)| {
                    (
                        Name {
                            db: swapped(name.db),
                            ..name
                        },
                        value,
                    )
                });
                self.keys.values = moved.collect();
                self.engine.swapped(*one, *other);
                for db in [*one, *other] {
                    for name in self.engine.watched(Some(db)) {
                        let there = Name {
                            db: swapped(db),
                            key: name.key.clone(),
                        };
                        self.look_again(&name, true);
                        self.look_again(&there, true);
                    }
                }
            }
            Op::Restore(name, bytes) => {
                self.bring(name, bytes, None, now);
                self.look_again(name, true);
            }
        }
    }
}
