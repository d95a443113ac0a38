//! A primary, its replica, the link between them, connections, and a clock that only the test moves.

use crate::client::Client;
use crate::commands::table::Verb;
use crate::commands::Reply;
use crate::engine::change::{self, Change, End};
use crate::engine::line::RequestId;
use crate::engine::lock::Hold;
use crate::engine::{
    Engine, Event, Grant, Limit, Message, Millis, Name, NameRef, Now, Outcome, Policy, Token,
};
use crate::error::Error;
use crate::faults::Fault;
use crate::keys::{Closed, Value};
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
    pub noted: Vec<Waiting>,
    /// Connections that have ended.
    pub ended: BTreeSet<u64>,
    /// The holds that were taken with SESSION, by their tokens.
    pub ties: BTreeMap<Token, Tie>,
    /// Tokens that were brought to a second key.
    pub copied: BTreeSet<Token>,
    /// Who holds what, as of the last event.
    held: BTreeMap<(Name, Vec<u8>), Token>,
    /// Counts the events.
    pub event: u64,
    /// Connections that are gone without the server's notice: nothing reaches them.
    pub cut: BTreeSet<u64>,
    /// What connections were told since it was last read.
    pub news: Vec<News>,
    /// What channels were told, and when, since it was last read.
    pub messages: Vec<(Millis, Message)>,
    /// What observers were told since it was last read.
    pub events: Vec<(Name, Event)>,
    /// The grants since it was last read.
    pub grants: Vec<(Name, Vec<u8>, Token)>,
    /// What was answered with grants since it was last read.
    pub answers: Vec<Answered>,
    /// Answers that told of a grant that was none any more when they were given.
    pub stale: Vec<Answered>,
    /// How many answers have been looked at for that.
    seen: usize,
    /// How holds ended since it was last read, as far as the engine has ended them.
    pub over: Vec<(End, Token)>,
    /// The requests that were refused with DEADLOCK since it was last read, and who waited then.
    pub refused: Vec<(Waiting, Vec<Waiting>)>,
    /// The waits that were ended with DEADLOCK since it was last read.
    pub broken: Vec<Waiting>,
    /// Messages that nobody waited for, since it was last read.
    pub unasked: Vec<Message>,
    /// Whether the last event was a look for circles.
    pub looked: bool,
    /// Whether the operator wants deadlocks to be detected.
    pub detection: bool,
    /// How many locks one step of a settlement comes to.
    pub step: usize,
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

/// A request that waits, or would.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub client: u64,
    /// The locks that it waits for: one, or those of a request for many in their order.
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub limit: Limit,
    pub until: Option<Millis>,
    pub session: bool,
    /// The channel that it waits by.
    pub channel: Option<Vec<u8>>,
    /// The event in which it began to wait.
    pub event: u64,
}

/// An answer that tells of grants.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Whether it did not have to wait.
    pub at_once: bool,
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub tokens: Vec<Token>,
}

/// A hold that was taken with SESSION: by which connections, if several were answered in one event, and in which.
#[derive(Debug, Clone)]
pub struct Tie {
    event: u64,
    pub clients: BTreeSet<u64>,
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
        let detection = policy.deadlock_detection;
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
            ties: BTreeMap::new(),
            copied: BTreeSet::new(),
            held: BTreeMap::new(),
            event: 0,
            cut: BTreeSet::new(),
            news: Vec::new(),
            messages: Vec::new(),
            events: Vec::new(),
            grants: Vec::new(),
            answers: Vec::new(),
            stale: Vec::new(),
            seen: 0,
            over: Vec::new(),
            refused: Vec::new(),
            broken: Vec::new(),
            unasked: Vec::new(),
            looked: false,
            detection,
            step: 16,
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
        self.event += 1;
        self.blindfold();
        let now = self.now.ms();
        let late = self.engine().next_wakeup().is_some_and(|due| due <= now);
        let mut answer = self.primary.run(self.now, db, client, words);
        let Some(asked) = self.asked(client, db, words) else {
            self.perform();
            return answer;
        };
        match &answer {
            Ok(Reply::Wait(id, named)) => {
                let owner = named.as_ref().map(|named| named.as_bytes().to_vec());
                if self.loses(Fault::FalseAlarm, asked.names.len() == 1) {
                    let (id, now) = (*id, self.now);
                    let Server { engine, keys, .. } = &mut self.primary;
                    engine.unblocked(keys, now, id);
                    answer = Err(Error::Deadlock(String::new()));
                    self.refuse(asked);
                } else {
                    let owner = owner.unwrap_or(asked.owner);
                    self.waits.insert(*id, Waiting { owner, ..asked });
                }
            }
            // Only a wait by a channel is answered with a place; many locks have a token each.
            Ok(Reply::Array(_)) if asked.channel.is_some() => self.noted.push(asked),
            Ok(Reply::Array(tokens)) => {
                let number = |token: &Reply| match token {
                    Reply::Integer(token) => *token,
                    other => panic!("a token, not {other:?}"),
                };
                self.granted(&asked, tokens.iter().map(number).collect(), true);
            }
            Ok(Reply::Grant(token, _, named)) => {
                let owner = named.as_ref().map(|named| named.as_bytes().to_vec());
                let owner = owner.unwrap_or_else(|| asked.owner.clone());
                self.granted(&Waiting { owner, ..asked }, vec![*token], true);
            }
            // What is overdue when the command comes is not looked at by it, and stands in the way of others.
            Err(Error::Deadlock(_)) if !late => self.refuse(asked),
            _ => {}
        }
        self.perform();
        answer
    }

    fn refuse(&mut self, asked: Waiting) {
        let waits = self.waits.values().chain(&self.noted);
        self.refused.push((asked, waits.cloned().collect()));
    }

    /// What a command of the ACQUIRE family asks for.
    fn asked(&self, client: Client, db: u32, words: &[&[u8]]) -> Option<Waiting> {
        let spec = crate::server::command(&String::from_utf8_lossy(words[0]))?;
        if !matches!(
            spec.verb,
            Verb::Acquire | Verb::FairAcquire | Verb::AcquireMany
        ) {
            return None;
        }
        let keys = spec.keys(&words[1..]);
        let owner = words[1..].get(keys.end)?.to_vec();
        let options = words[1..].get(keys.end + 1..)?;
        let said = said(options);
        let at = |option: &str| said.iter().find(|(word, _)| word == option);
        let after = |option: &str| at(option)?.1;
        let number = |option: &str| {
            let text = std::str::from_utf8(after(option)?).ok()?;
            text.parse::<u64>().ok()
        };
        let limit = match number("LIMIT") {
            _ if at("SHARED").is_some() => Some(Limit::SHARED),
            Some(n) => Limit::from_wire(n as u32),
            None => Some(Limit::EXCLUSIVE),
        };
        Some(Waiting {
            client: client.id,
            names: words[1..][keys]
                .iter()
                .map(|key| NameRef { db, key }.keep())
                .collect(),
            owner,
            limit: limit?,
            until: number("BLOCK")
                .filter(|ms| *ms > 0)
                .map(|ms| self.now.ms() + ms),
            session: at("SESSION").is_some(),
            channel: after("NOTIFY").map(<[u8]>::to_vec),
            event: self.event,
        })
    }

    /// A request was answered with these tokens.
    fn granted(&mut self, asked: &Waiting, tokens: Vec<Token>, at_once: bool) {
        for token in tokens.iter().filter(|_| asked.session) {
            let event = self.event;
            let tie = self.ties.entry(*token).or_insert_with(|| Tie {
                event,
                clients: BTreeSet::new(),
            });
            if tie.event != event {
                tie.clients.clear();
                tie.event = event;
            }
            tie.clients.insert(asked.client);
        }
        self.answers.push(Answered {
            at_once,
            names: asked.names.clone(),
            owner: asked.owner.clone(),
            tokens,
        });
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
        let tied = |tie: &Tie| tie.clients.contains(&client);
        let noted = self.noted.iter().any(|noted| noted.client == client);
        let fits = !noted && self.ties.values().any(tied) && self.writable;
        if !self.loses(Fault::ForgottenSession, fits) {
            self.engine().ended(client);
        }
        self.ended.insert(client);
        self.primary.keys.ended.insert(client);
        self.perform();
    }

    fn blindfold(&mut self) {
        let sees = self.detection && self.fault != Some(Fault::Blind);
        self.engine().policy.deadlock_detection = sees;
    }

    /// What the server does once a second.
    pub fn heartbeat(&mut self) {
        self.blindfold();
        let now = self.now;
        if self.writable {
            let Server { engine, keys, .. } = &mut self.primary;
            engine.break_circles(keys, now);
            self.end_another();
        }
        self.perform();
        self.looked = self.writable;
    }

    /// Plants a fault: a wait that is in no circle is ended as if it were.
    fn end_another(&mut self) {
        let first = self.waits.keys().next().copied();
        if let Some(id) = first.filter(|_| self.loses(Fault::WrongVictim, first.is_some())) {
            self.end(id);
        }
    }

    /// Plants a fault: a wait is ended that is the oldest of a circle.
    pub fn end_as_oldest(&mut self, id: RequestId) {
        if self.loses(Fault::OldestVictim, self.writable) {
            self.end(id);
        }
    }

    /// A wait is ended as if it were part of a circle.
    fn end(&mut self, id: RequestId) {
        let now = self.now;
        self.engine().leave(id, now);
        self.deliver(id, Outcome::Refused(Error::Deadlock(String::new())));
    }

    /// Plants a fault: who stands before a request for many locks is forgotten.
    fn pass_over(&mut self) {
        let many = self.waits.values().find(|wait| wait.names.len() > 1);
        let before = many.and_then(|many| {
            let passed = |wait: &Waiting| {
                let mut shared = wait.names.iter().filter(|name| many.names.contains(name));
                wait.owner != many.owner && wait.event < many.event && shared.next().is_some()
            };
            let mut waits = self.waits.iter();
            waits.find(|(_, wait)| passed(wait)).map(|(id, _)| *id)
        });
        if let Some(id) = before.filter(|_| self.loses(Fault::PassedOver, before.is_some())) {
            let now = self.now;
            self.engine().leave(id, now);
        }
    }

    /// Plants a fault: a place stays although its request has been told that its time is up.
    fn leave_behind(&mut self, told: &Waiting, outcome: &Outcome) {
        let over = told.names.len() > 1 && *outcome == Outcome::Null;
        if self.loses(Fault::LeftBehind, over) {
            let (name, client) = (&told.names[0], Client::connection(told.client));
            let words: [&[u8]; 5] = [b"ACQUIRE", &name.key, &told.owner, b"NOTIFY", b"nobody"];
            drop(self.primary.run(self.now, name.db, client, &words));
        }
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
        let detection = self.detection;
        let policy = &mut self.engine().policy;
        policy.deadlock_detection = detection;
        change(policy);
        let detection = policy.deadlock_detection;
        self.detection = detection;
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
        if let Op::Restore(_, bytes) = &op {
            // One token at two keys, as is documented: which of the two is meant by the session is anybody's guess.
            let lock =
                crate::engine::codec::decode(bytes).expect("what was encoded can be decoded");
            self.copied.extend(lock.holds().map(|hold| hold.token));
        }
        self.primary.alter(&op, self.now);
        self.held = self.holders();
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
        self.primary.keys.ended = self.ended.clone();
        self.engine().promote();
        // The server tells everyone who was blocked that it is over.
        self.waits.clear();
        self.noted.clear();
        self.cut.clear();
        self.ties.clear();
        self.held = self.holders();
        self.perform();
    }

    fn holders(&self) -> BTreeMap<(Name, Vec<u8>), Token> {
        let values = self.primary.keys.values.iter();
        let locks = values.filter_map(|(name, value)| match value {
            Value::Lock(lock, _) => Some((name, lock)),
            Value::Other => None,
        });
        let holds = locks.flat_map(|(name, lock)| {
            let held = |hold: Hold| ((name.clone(), hold.owner.to_vec()), hold.token);
            lock.holds().map(held).collect::<Vec<_>>()
        });
        holds.collect()
    }

    /// Works off what the engine has decided, and has it settle what is left to settle, if that is possible now.
    pub fn perform(&mut self) {
        let mut stuck = false;
        self.looked = false;
        self.pass_over();
        for _ in 0..PATIENCE {
            self.event += 1;
            let (closed, wakes) = self.primary.work_off();
            for closed in closed {
                self.known.insert(closed.name.clone());
                self.events.extend(
                    closed
                        .events
                        .iter()
                        .map(|event| (closed.name.clone(), *event)),
                );
                let over = closed.events.iter().filter_map(|event| match event {
                    Event::Ended(end, token) => Some((*end, *token)),
                    _ => None,
                });
                self.over.extend(over);
                self.record(&closed);
                if !closed.effect.is_empty()
                    && !self.loses(Fault::LostEffect, closed.effect != b"1")
                {
                    self.link.push_back(Op::Effect(closed.name, closed.effect));
                }
            }
            self.held = self.holders();
            for message in std::mem::take(&mut self.primary.engine.messages) {
                if self.loses(Fault::TwoMessages, true) {
                    self.hear(message.clone());
                }
                if !self.loses(Fault::LostMessage, true) {
                    self.hear(message);
                }
            }
            let answered = !wakes.is_empty();
            for wake in wakes {
                if !self.loses(Fault::LostWake, true) {
                    self.deliver(wake.id, wake.outcome);
                }
            }
            self.verify();
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
                .settle_dirty(&mut self.primary.keys, now, self.step);
        }
        panic!("settlement does not come to an end");
    }

    /// The answers since this was last called.
    pub fn take_answers(&mut self) -> Vec<Answered> {
        self.seen = 0;
        std::mem::take(&mut self.answers)
    }

    /// Looks whether what was answered in this event is so.
    fn verify(&mut self) {
        let seen = std::mem::replace(&mut self.seen, self.answers.len());
        let fresh = &self.answers[seen..];
        let lives = |answer: &Answered, name: &Name, token: &Token| {
            let part = (name.clone(), answer.owner.clone());
            let held = self.held.get(&part);
            // Another request of the same owner may have been granted in the same event, as an upgrade.
            let another = |other: &Answered| {
                let mut parts = other.names.iter().zip(&other.tokens);
                other.owner == answer.owner
                    && parts.any(|(lock, token)| lock == name && held == Some(token))
            };
            held == Some(token)
                || self.over.iter().any(|(_, over)| over == token)
                || fresh.iter().any(another)
        };
        let stale = fresh.iter().filter(|answer| {
            let mut parts = answer.names.iter().zip(&answer.tokens);
            !parts.all(|(name, token)| lives(answer, name, token))
        });
        self.stale.extend(stale.cloned());
    }

    /// A channel is told how a wait ended.
    fn hear(&mut self, message: Message) {
        let late = message.outcome == Outcome::Null;
        let now = self.now.ms();
        let its = |noted: &Waiting| {
            noted.channel.as_deref() == Some(&*message.channel)
                && noted.names[0] == message.name
                && *noted.owner == *message.owner
                && (!late || noted.until.is_some_and(|until| until <= now))
        };
        let Some(at) = self.noted.iter().position(its) else {
            self.unasked.push(message);
            return;
        };
        let noted = self.noted.remove(at);
        match &message.outcome {
            Outcome::Granted(grant) => self.granted(&noted, vec![grant.token], false),
            Outcome::Refused(Error::Deadlock(_)) => self.broken.push(noted),
            _ => {}
        }
        self.messages.push((self.now.ms(), message));
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
        self.leave_behind(&wait, &outcome);
        let grants: Vec<Grant> = match &outcome {
            Outcome::Granted(grant) => vec![*grant],
            Outcome::GrantedAll(grants) => grants.clone(),
            Outcome::Refused(Error::Deadlock(_)) => {
                self.broken.push(wait.clone());
                Vec::new()
            }
            _ => Vec::new(),
        };
        if !grants.is_empty() {
            self.granted(
                &wait,
                grants.iter().map(|grant| grant.token).collect(),
                false,
            );
        }
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
        for (name, grant) in names.into_iter().zip(grants) {
            let owner = owner.clone().into_boxed_slice();
            self.engine().undelivered(name, owner, grant);
        }
    }

    /// Notes the grants that an effect tells of. An owner's new grant that no end went before is an upgrade: the session
    /// goes on.
    fn record(&mut self, closed: &Closed) {
        let ended = |token: Token| {
            let end = |event: &Event| matches!(event, Event::Ended(_, other) if *other == token);
            closed.events.iter().any(end)
        };
        for (owner, token) in granted(&closed.effect) {
            let part = (closed.name.clone(), owner);
            let before = self.held.insert(part.clone(), token);
            if let Some(old) = before.filter(|old| *old != token && !ended(*old)) {
                if self.copied.contains(&old) {
                    self.copied.insert(token);
                }
                if let Some(tie) = self.ties.remove(&old) {
                    self.ties.entry(token).or_insert(tie);
                }
            }
            if self.tokens.insert(token) {
                self.last_token = self.last_token.max(token);
                self.grants.push((part.0, part.1, token));
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

/// The options of a command, in upper case, each with its value if it has one. What follows one that has a value is that, even
/// if it looks like an option: a channel may have any name.
fn said<'a>(options: &[&'a [u8]]) -> Vec<(String, Option<&'a [u8]>)> {
    let mut words = options.iter();
    let mut said = Vec::new();
    while let Some(word) = words.next() {
        let option = String::from_utf8_lossy(word).to_ascii_uppercase();
        let valued = ["BLOCK", "NOTIFY", "HOLDS", "LIMIT", "CLAIM"].contains(&option.as_str());
        let value = words.as_slice().first().copied().filter(|_| valued);
        if value.is_some() {
            words.next();
        }
        said.push((option, value));
    }
    said
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
    /// A value is gone from its key, and its holds with it.
    fn lost(&mut self, value: Option<Value>, now: Now) {
        let Some(Value::Lock(lock, _)) = value else {
            return;
        };
        for hold in lock.holds() {
            self.engine.gone(End::Removed, hold.token, now);
        }
    }

    /// Does what is none of the module's, and tells the engine what the server would.
    fn alter(&mut self, op: &Op, now: Now) {
        match op {
            Op::Effect(name, effect) => drop(self.follow(name, effect, now)),
            Op::Del(name) => {
                let value = self.keys.values.remove(name);
                if matches!(value, Some(Value::Lock(..))) {
                    self.lost(value, now);
                    self.look_again(name, false);
                }
            }
            Op::Rename(from, to) => {
                if let Some(value) = self.keys.values.remove(from) {
                    let replaced = self.keys.values.insert(to.clone(), value);
                    self.lost(replaced.filter(|_| from != to), now);
                    self.look_again(from, false);
                    self.look_again(to, true);
                }
            }
            Op::Overwrite(name) => {
                let replaced = self.keys.values.insert(name.clone(), Value::Other);
                self.lost(replaced, now);
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
                let replaced = self.keys.values.remove(name);
                self.lost(replaced, now);
                self.bring(name, bytes, None, now);
                self.look_again(name, true);
            }
        }
    }
}
