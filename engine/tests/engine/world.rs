//! A primary, its replica, the link between them, connections, and clocks that only the test moves.

use crate::client::Client;
use crate::faults::Fault;
use crate::keys::{Closed, Value};
use crate::script::{self, Act};
use crate::server::{self, Server};
use crate::settings;
use crate::ties;
use dlock_commands::error::Error;
use dlock_commands::table::{Access, Verb};
use dlock_commands::Reply;
use dlock_engine::lock::Hold;
use dlock_engine::Refusal;
use dlock_engine::{
    change::{self, Change},
    codec, ClientId, End, Engine, Event, Grant, Keyspace, Limit, Lock, Millis, Name, NameRef, Now,
    Outcome, Output, Permits, Policy, Promise, Receiver, RequestId, SteadyMs, Token, WallMs, ONE,
};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::rc::Rc;

/// When the world begins, in milliseconds of the Unix epoch: small, so that numbers in failures are readable.
pub const BEGIN_MS: Millis = 1_000_000_000;

/// The most rounds at one instant, and the most ticks while time passes. Beyond it the engine spins.
const PATIENCE: usize = 100_000;

#[derive(Debug, Clone)]
pub struct World {
    pub now: Now,
    pub primary: Server,
    pub replica: Server,
    /// The operations that the primary has sent and the replica has not applied yet.
    pub link: VecDeque<Op>,
    /// Whether the replica lags: then only `sync` works off the link.
    pub lag: bool,
    /// Whether the primary accepts writes now: not while it is paused.
    pub writable: bool,
    /// Whether the server removes a key whose TTL has run out only when it comes by it.
    pub late: bool,
    /// The waiting requests, as their connections know them.
    pub waits: BTreeMap<RequestId, Waiting>,
    /// The blocked SESSION commands, with their connections.
    pub keeping: BTreeMap<RequestId, u64>,
    /// The places of requests in sessions that were made, or asked for again, since a test last took this: whether for many locks.
    pub entered: BTreeMap<(Name, Vec<u8>), bool>,
    /// Whether any request was made in a session.
    pub sessions: bool,
    /// Connections that have ended.
    pub ended: BTreeSet<u64>,
    /// Connections that broke without the server noticing: no answer reaches them.
    pub cut: BTreeSet<u64>,
    /// Whether the next command belongs to this iteration of the event loop; and the promises of undelivered answers, which the
    /// server learns at its end.
    pub turn_goes_on: bool,
    pub unheard: Vec<Promise>,
    /// The value of the last dump, for RESTORE.
    dumped: Option<Vec<u8>>,
    /// The number of events.
    pub event: u64,
    /// The outcomes that connections received; a test takes them.
    pub heard: Vec<Heard>,
    /// Outcomes for which no request waited.
    pub unasked: Vec<(RequestId, Outcome)>,
    /// The events that observers received; a test takes them.
    pub events: Vec<(Name, Event)>,
    /// The grants; a test takes them.
    pub grants: Vec<(Name, Vec<u8>, Token)>,
    /// The answers with grants; a test takes them.
    pub answers: Vec<Answered>,
    /// Answers with a grant that had ended when they were given.
    pub stale: Vec<Answered>,
    /// The number of `answers` that `verify` has seen.
    seen: usize,
    /// How holds ended, as far as the engine ended them; a test takes them.
    pub over: Vec<(Name, End, Token)>,
    /// The requests refused with DEADLOCK; a test takes them.
    pub refused: Vec<Waiting>,
    /// Whether only time has passed since a test last took this.
    pub only_time: bool,
    /// Whether a command has asked the server to renew a hold for a limited time.
    pub bounded_auto: bool,
    /// The owners that have renewed: their leases may end earlier than before. A test takes them.
    pub renewed: BTreeSet<Vec<u8>>,
    /// The ends of leases that a step of the wall clock has moved nearer.
    pub stepped: BTreeMap<(Name, Token), WallMs>,
    /// Whether a crash has lost decisions since a test last took this.
    pub lost: bool,
    /// Whether the operator wants deadlock detection.
    pub detection: bool,
    /// The end of the quarantine that the operator set.
    pub quarantine_until: SteadyMs,
    /// The number of locks that one step of a settlement covers.
    pub step: usize,
    /// A planted fault, which the checks must find.
    pub fault: Option<Fault>,
    /// The connections by which owners have sent commands, for a fault that depends on them.
    pub speakers: BTreeSet<(Vec<u8>, u64)>,
    /// Tokens that RESTORE brought: one may stand at two keys.
    pub restored: BTreeSet<Token>,
    /// Tokens of holds whose keys a user gave a TTL.
    pub retimed: BTreeSet<Token>,
    /// Every lock that ever existed.
    pub known: BTreeSet<Name>,
    /// Names that a value has reached unnoticed since the last scan; and those of the replica, since it was the primary.
    pub unseen: BTreeSet<Name>,
    replica_unseen: BTreeSet<Name>,
    /// The keys of the command under way, if it may write.
    used: BTreeSet<Name>,
    /// The highest token of all grants.
    pub last_token: Token,
    /// The highest token that the replica has received.
    replica_knows: Token,
    tokens: HashSet<Token>,
}

/// A request that waits or asks to wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub client: u64,
    /// Whether it asks for many locks.
    pub many: bool,
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub limit: Limit,
    pub permits: Permits,
    pub until: Option<SteadyMs>,
    /// Whether it asks in a session: a row has the outcome, and none of `waits`.
    pub in_session: bool,
    /// The event in which it began to wait.
    pub event: u64,
}

/// An answer with grants.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Whether the request was answered without waiting.
    pub at_once: bool,
    pub names: Vec<Name>,
    pub owner: Vec<u8>,
    pub tokens: Vec<Token>,
}

/// The answer to a request that waited.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    pub at: WallMs,
    pub id: RequestId,
    pub asked: Waiting,
    pub outcome: Outcome,
    /// The connection had broken without the server noticing.
    pub lost: bool,
}

/// An operation that a primary sends to its replica: a decision, or a command of the server itself.
#[derive(Debug, Clone)]
pub enum Op {
    Effect(Name, Vec<u8>),
    Del(Name),
    Rename(Name, Name),
    Overwrite(Name),
    Flush(Option<u32>),
    Swap(u32, u32),
    Restore(Name, Vec<u8>),
    Expire(Name, WallMs),
}

impl Op {
    /// Removes the names whose values a server notices by this operation.
    fn shows(&self, unseen: &mut BTreeSet<Name>) {
        match self {
            Op::Rename(from, to) => unseen.retain(|name| name != from && name != to),
            Op::Effect(one, _) | Op::Del(one) | Op::Overwrite(one) | Op::Restore(one, _) => {
                unseen.remove(one);
            }
            Op::Flush(_) => unseen.clear(),
            Op::Expire(..) => {}
            Op::Swap(one, other) => {
                let swapped = |name: &Name| server::swapped(name.clone(), *one, *other);
                *unseen = unseen.iter().map(swapped).collect();
            }
        }
    }
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
                steady_us: 0,
            },
            primary: Server::new(true, policy.clone()),
            replica: Server::new(false, policy),
            link: VecDeque::new(),
            lag: false,
            writable: true,
            late: false,
            waits: BTreeMap::new(),
            keeping: BTreeMap::new(),
            entered: BTreeMap::new(),
            sessions: false,
            ended: BTreeSet::new(),
            cut: BTreeSet::new(),
            turn_goes_on: false,
            unheard: Vec::new(),
            dumped: None,
            event: 0,
            heard: Vec::new(),
            unasked: Vec::new(),
            events: Vec::new(),
            grants: Vec::new(),
            answers: Vec::new(),
            stale: Vec::new(),
            seen: 0,
            over: Vec::new(),
            refused: Vec::new(),
            only_time: true,
            bounded_auto: false,
            renewed: BTreeSet::new(),
            stepped: BTreeMap::new(),
            lost: false,
            detection,
            quarantine_until: SteadyMs(0),
            step: 16,
            fault: None,
            speakers: BTreeSet::new(),
            restored: BTreeSet::new(),
            retimed: BTreeSet::new(),
            known: BTreeSet::new(),
            unseen: BTreeSet::new(),
            replica_unseen: BTreeSet::new(),
            used: BTreeSet::new(),
            last_token: Token(0),
            replica_knows: Token(0),
            tokens: HashSet::new(),
        }
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.primary.engine
    }

    /// Performs one line of a script. Returns the answer to a command.
    pub fn act(&mut self, act: &Act, tokens: &BTreeMap<u64, u64>) -> Option<Result<Reply, Error>> {
        let name = |(db, key): &script::Key| name(*db, key);
        self.only_time &= matches!(act, Act::Wait(_));
        let keys = &self.primary.keys;
        // The server redirects a command for such a key to the other node.
        let gone = |key: Name| keys.leaving.contains(&key) && !keys.values.contains_key(&key);
        if server::keys_of(act).iter().map(name).any(gone) {
            return None;
        }
        if !matches!(act, Act::Command(_)) && self.turn_goes_on {
            self.end_turn();
            self.perform();
        }
        // Every other command removes it at the latest.
        if self.late && !matches!(act, Act::Command(_) | Act::Wait(_) | Act::Stall(_)) {
            self.expire_keys();
        }
        match act {
            Act::Command(command) => {
                let words: Vec<Vec<u8>> = command
                    .words
                    .iter()
                    .map(|word| script::bytes(word, tokens))
                    .collect();
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                let client = Client {
                    may_wait: command.may_wait,
                    ..Client::connection(command.client)
                };
                self.turn_goes_on = command.pipelined;
                return Some(self.send(client, command.db, &words));
            }
            Act::Wait(ms) => {
                let mut left = *ms;
                while let Some(ttl) = self.next_ttl().filter(|ttl| *ttl < left) {
                    self.pass(ttl);
                    self.expire_keys();
                    left -= ttl;
                }
                self.pass(left);
                if !self.late {
                    self.expire_keys();
                }
            }
            Act::Stall(ms) => self.jump(*ms),
            Act::Clock(ms) => {
                self.now.us = self.now.us.saturating_add_signed(ms * 1000);
                let ties = ties::ties(self).into_iter();
                self.stepped
                    .extend(ties.map(|(hold, tied)| (hold, tied.end)));
                if self.is(Fault::SteadySteps) {
                    self.now.steady_us = self.now.steady_us.saturating_add_signed(ms * 1000);
                }
                if self.is(Fault::QuarantineSteps) {
                    self.primary.set_policy(|policy| {
                        let until = &mut policy.quarantine_until;
                        until.0 = until.0.saturating_add_signed(-ms);
                    });
                }
                self.tick();
                self.expire_keys();
            }
            Act::Heartbeat => self.heartbeat(),
            Act::Dies(client) => self.dies(*client),
            Act::Cut(client) => drop(self.cut.insert(*client)),
            Act::Del(one) => self.alter(Op::Del(name(one))),
            Act::Set(one) => self.alter(Op::Overwrite(name(one))),
            Act::Rename(from, to) => self.rename(name(from), name(to)),
            Act::Behind(act) => match &**act {
                Act::Rename(from, to) => self.behind(Op::Rename(name(from), name(to))),
                Act::Set(one) => self.behind(Op::Overwrite(name(one))),
                other => panic!("every server reports {other:?}"),
            },
            Act::Look => self.look(),
            Act::Expire(one, ms) => {
                let name = name(one);
                let locks = self.primary.keys.lock(&name).into_iter();
                let tokens: Vec<Token> = locks
                    .flat_map(|lock| lock.holds())
                    .map(|hold| hold.token)
                    .collect();
                self.retimed.extend(tokens);
                self.alter(Op::Expire(name, self.now.wall().after(*ms)));
            }
            Act::Copy(from, to) => {
                if let Some(bytes) = self.dump(&name(from)) {
                    self.alter(Op::Restore(name(to), bytes));
                }
            }
            Act::Dump(one) => {
                self.dumped = self.dump(&name(one));
                self.alter(Op::Del(name(one)));
            }
            Act::Restore(one) => {
                if let Some(bytes) = self.dumped.take() {
                    self.alter(Op::Restore(name(one), bytes));
                }
            }
            Act::Flush => self.alter(Op::Flush(None)),
            Act::Swap(one, other) => self.alter(Op::Swap(*one, *other)),
            Act::Migrates(keys) => self.primary.keys.leaving.extend(keys.iter().map(name)),
            Act::Slot { keys, leaves: true } => {
                self.primary.keys.away.extend(keys.iter().map(name))
            }
            Act::Slot { keys, .. } => {
                for key in keys.iter().map(name) {
                    self.primary.keys.away.remove(&key);
                    self.primary.keys.leaving.remove(&key);
                }
                self.perform();
            }
            Act::Pause => self.writable = false,
            Act::Resume => self.resume(),
            Act::Sync => self.sync(),
            Act::Failover => self.failover(),
            Act::Restart => self.restart(),
            Act::Crash { quarantine } => self.crash(0, *quarantine),
            Act::Config(name, value) => {
                let now = self.now.steady();
                if name == "quarantine" {
                    self.quarantine_until = now.after(value.parse().unwrap_or(0));
                }
                let change = |policy: &mut Policy| {
                    assert!(
                        settings::configure(policy, name, value, now),
                        "no option {name}"
                    );
                };
                self.configure(change);
            }
        }
        None
    }

    /// Sends a command on a connection.
    pub fn send(&mut self, client: Client, db: u32, words: &[&[u8]]) -> Result<Reply, Error> {
        // A name that is used again stands for a new connection.
        self.ended.remove(&client.id);
        self.primary.keys.one_question = self.is(Fault::OneQuestion);
        self.event += 1;
        self.primary.keys.blind = self.is(Fault::UseBlind);
        self.primary.keys.ttl_sticks = self.is(Fault::TtlSticks);
        self.prepare();
        let late = self.primary.engine.next_wakeup(self.now) == Some(0);
        self.note_use(db, words);
        self.bounded_auto |= bounds_auto(words);
        let distorted = self.distort(client, db, words);
        let heard: Vec<&[u8]> = distorted.iter().map(Vec::as_slice).collect();
        let mut answer = self.primary.run(self.now, db, client, &heard);
        self.renewed.extend(renews(words));
        match self.asked(client, db, words) {
            Some(asked) if asked.in_session => self.note_in_session(asked, &answer),
            Some(asked) => {
                answer = self.falsify(&asked, answer);
                self.note(asked, &answer, late);
            }
            None => {
                // The only other command that blocks.
                if let Ok(Reply::Wait(id, _)) = &answer {
                    self.keeping.insert(*id, client.id);
                }
            }
        }
        self.perform();
        if !self.turn_goes_on && !self.unheard.is_empty() {
            self.end_turn();
            self.perform();
        }
        self.used.clear();
        answer
    }

    /// Ends the iteration of the event loop: the server learns which of its answers were not delivered.
    fn end_turn(&mut self) {
        self.turn_goes_on = false;
        let unheard = std::mem::take(&mut self.unheard);
        self.hear_nothing(unheard);
    }

    /// Tells the engine that these holds' answers were not delivered.
    fn hear_nothing(&mut self, unheard: Vec<Promise>) {
        self.freshen(&unheard);
        self.engine().on_undelivered(unheard);
    }

    /// Notes the keys of a command that may write: it sees the values there, if it reaches them.
    fn note_use(&mut self, db: u32, words: &[&[u8]]) {
        let spec = crate::server::command(&String::from_utf8_lossy(words[0]));
        if let Some(spec) = spec.filter(|spec| spec.access == Access::Write) {
            let keys = words[1..][spec.keys(&words[1..])].iter();
            self.used = keys.map(|key| NameRef { db, key }.to_owned()).collect();
        }
    }

    /// Notes the answer to a request for locks.
    fn note(&mut self, asked: Waiting, answer: &Result<Reply, Error>, late: bool) {
        let owner = |named: &Option<String>| match named {
            Some(named) => named.as_bytes().to_vec(),
            None => asked.owner.clone(),
        };
        match answer {
            Ok(Reply::Wait(id, named)) => {
                let owner = owner(named);
                self.waits.insert(*id, Waiting { owner, ..asked });
            }
            Ok(Reply::Array(tokens)) => {
                let tokens = tokens.iter().map(|token| Token(number(token))).collect();
                self.granted(&asked, tokens, true);
            }
            Ok(Reply::Grant(token, _, named)) => {
                let owner = owner(named);
                self.granted(&Waiting { owner, ..asked }, vec![*token], true);
            }
            // A command does not process overdue deadlines first, and these may be in the way of others.
            Err(Error::Refused(Refusal::Deadlock(_))) if !late => self.refused.push(asked),
            _ => {}
        }
    }

    /// Notes the answer to a request for locks in a session.
    fn note_in_session(&mut self, asked: Waiting, answer: &Result<Reply, Error>) {
        self.sessions = true;
        let Ok(Reply::Array(parts)) = answer else {
            return;
        };
        match &parts[..] {
            [Reply::Integer(token), _] => self.granted(&asked, vec![Token(*token)], true),
            [Reply::Array(tokens), _] => {
                let tokens = tokens.iter().map(|token| Token(number(token))).collect();
                self.granted(&asked, tokens, true);
            }
            _ => {
                let places = asked.names.iter();
                let places = places.map(|name| ((name.clone(), asked.owner.clone()), asked.many));
                self.entered.extend(places);
            }
        }
    }

    /// Returns true if a connection is blocked.
    pub fn blocks(&self, client: u64) -> bool {
        let mut waits = self.waits.values().map(|wait| wait.client);
        waits.any(|id| id == client) || self.keeping.values().any(|id| *id == client)
    }

    /// Returns the request that a command of the ACQUIRE family makes.
    pub fn asked(&self, client: Client, db: u32, words: &[&[u8]]) -> Option<Waiting> {
        let spec = crate::server::command(&String::from_utf8_lossy(words[0]))?;
        let many = spec.verb == Verb::AcquireMany;
        if !many && !matches!(spec.verb, Verb::Acquire | Verb::FairAcquire) {
            return None;
        }
        let keys = spec.keys(&words[1..]);
        let owner = words[1..].get(keys.end)?.to_vec();
        let said = said(words[1..].get(keys.end + 1..)?);
        let at = |option: &str| said.iter().find(|(word, _)| word == option);
        let after = |option: &str| at(option)?.1;
        let number = |option: &str| {
            std::str::from_utf8(after(option)?)
                .ok()?
                .parse::<u64>()
                .ok()
        };
        let limit = match number("LIMIT") {
            _ if at("SHARED").is_some() => Some(Limit::SHARED),
            Some(n) => Limit::from_wire(n as u32),
            None => Some(Limit::EXCLUSIVE),
        };
        let name = |key: &&[u8]| NameRef { db, key }.to_owned();
        let block = number("BLOCK").filter(|ms| *ms > 0);
        Some(Waiting {
            client: client.id,
            many,
            names: words[1..][keys].iter().map(name).collect(),
            owner,
            limit: limit?,
            permits: number("PERMITS").map_or(Some(ONE), |n| Permits::new(n as u32))?,
            until: block.map(|ms| self.now.steady().after(ms)),
            in_session: at("IN").is_some(),
            event: self.event,
        })
    }

    /// Records that a request was answered with these tokens.
    fn granted(&mut self, asked: &Waiting, tokens: Vec<Token>, at_once: bool) {
        self.answers.push(Answered {
            at_once,
            names: asked.names.clone(),
            owner: asked.owner.clone(),
            tokens,
        });
    }

    /// Ends a connection; the server notices.
    pub fn dies(&mut self, client: u64) {
        let waits = self.waits.iter().filter(|(_, wait)| wait.client == client);
        let keeping = self.keeping.iter().filter(|(_, id)| **id == client);
        let ids = waits.map(|(id, _)| *id).chain(keeping.map(|(id, _)| *id));
        for id in ids.collect::<Vec<_>>() {
            self.waits.remove(&id);
            self.keeping.remove(&id);
            if !self.is(Fault::DeadWaiterStays) {
                let now = self.now;
                self.engine().leave(id, now);
            }
        }
        self.cut.remove(&client);
        if !self.is(Fault::EndUnnoticed) {
            let now = self.now;
            self.engine().on_disconnect(ClientId(client), now);
        }
        self.ended.insert(client);
        self.perform();
    }

    fn prepare(&mut self) {
        let sees = self.detection && !self.is(Fault::Blind);
        if self.engine().policy().deadlock_detection != sees {
            self.primary
                .set_policy(|policy| policy.deadlock_detection = sees);
        }
    }

    /// Does the module's work of once a second.
    pub fn heartbeat(&mut self) {
        self.look();
        self.prepare();
        self.perform();
    }

    /// Lets time pass on a server that is never late: it wakes whenever the engine asked for it.
    pub fn pass(&mut self, ms: Millis) {
        let mut left = ms;
        if self.is(Fault::WaitsUnheard) {
            let blocked: Vec<u64> = self.waits.values().map(|wait| wait.client).collect();
            for client in blocked {
                let ties = &mut self.engine().holds_mut().ties;
                ties.set_waiting(ClientId(client), false, SteadyMs(0));
            }
        }
        for _ in 0..PATIENCE {
            let due = self.primary.engine.next_wakeup(self.now);
            let late = Millis::from(self.is(Fault::LateTick));
            let Some(wait) = due.map(|due| due + late).filter(|due| *due <= left) else {
                return self.jump(left);
            };
            self.jump(wait);
            left -= wait;
            if self.is(Fault::EndsFirst) {
                self.expire_keys();
            }
            self.tick();
        }
        panic!("the engine asks to be woken endlessly");
    }

    /// Lets time pass on a server that is busy and does nothing meanwhile.
    pub fn jump(&mut self, ms: Millis) {
        self.now.us += ms * 1000;
        self.now.steady_us += ms * 1000;
    }

    /// Processes everything that is due.
    pub fn tick(&mut self) {
        let now = self.now;
        if self.is(Fault::TimesOutFirst) {
            self.time_out_first();
        }
        while self.engine().tick(now) {}
        if !self.writable {
            while self.engine().time_out(now) {}
        }
        self.perform();
    }

    /// Changes the configuration as the operator does.
    pub fn configure(&mut self, change: impl FnOnce(&mut Policy)) {
        let (detection, deaf) = (self.detection, self.is(Fault::GrantsOn));
        let (long, most) = (self.is(Fault::LongLeases), Policy::default().max_lease_ms);
        let mut policy = self.engine().policy().clone();
        policy.deadlock_detection = detection;
        change(&mut policy);
        self.detection = policy.deadlock_detection;
        policy.grants |= deaf;
        if long {
            policy.max_lease_ms = most;
        }
        self.engine().set_policy(policy);
        self.tick();
    }

    /// Ends a pause: the server accepts writes again.
    pub fn resume(&mut self) {
        self.writable = true;
        self.perform();
    }

    /// Performs an operation on keys that is not the module's.
    pub fn alter(&mut self, op: Op) {
        if let Op::Restore(_, bytes) = &op {
            let lock = codec::decode(bytes).expect("an encoded lock can be decoded");
            self.restored.extend(lock.holds().map(|hold| hold.token));
        }
        self.mistrust();
        let values = &mut self.primary.keys.values;
        match (self.fault, &op) {
            (Some(Fault::DelUnseen), Op::Del(name)) => drop(values.remove(name)),
            (Some(Fault::ExpireIgnored), Op::Expire(..)) => {}
            (Some(Fault::ExpireObeyed), Op::Expire(name, end)) => {
                let lock = self.primary.keys.entry(name.as_ref());
                let holds = lock.value().holds().filter(|hold| hold.deadline > *end);
                let owners: Vec<Vec<u8>> = holds.map(|hold| hold.owner.to_vec()).collect();
                for owner in owners {
                    let hold = lock.hold(&owner).expect("the hold was just found");
                    lock.set_hold(Hold {
                        owner: &owner,
                        deadline: *end,
                        ..hold
                    });
                }
            }
            (_, Op::Rename(from, to)) if from == to || !values.contains_key(from) => return,
            _ => {
                self.primary.stays = self.fault == Some(Fault::TieStays);
                self.primary.fresh_windows = self.fault == Some(Fault::WindowsAnew);
                self.primary.alter(&op, self.now);
            }
        }
        self.known.extend(self.primary.keys.values.keys().cloned());
        op.shows(&mut self.unseen);
        if let Op::Rename(_, to) = &op {
            self.primary.note_unseen(to, &mut self.unseen);
        }
        self.link.push_back(op);
        self.perform();
    }

    /// Returns the milliseconds until the server removes the first key to which a user gave a TTL.
    fn next_ttl(&self) -> Option<Millis> {
        let retimed = |lock: &Lock| lock.holds().any(|hold| self.retimed.contains(&hold.token));
        let ttl = |value: &Value| match value {
            Value::Lock(lock, ttl) if retimed(lock) => ttl.map(|ttl| ttl.since(self.now.wall())),
            _ => None,
        };
        let values = self.primary.keys.values.values();
        values.filter_map(ttl).filter(|ttl| *ttl > 0).min()
    }

    /// Renames a lock; a command that asks for nothing then uses it at once under its new name.
    pub fn rename(&mut self, from: Name, to: Name) {
        self.behind(Op::Rename(from, to.clone()));
        if self.writable {
            let cancel = [&b"CANCEL"[..], &to.key, b"nobody"];
            drop(self.send(Client::connection(u64::MAX), to.db, &cancel));
        }
    }

    /// Puts a value at a name. The server does not report that if the name had no value.
    fn behind(&mut self, op: Op) {
        let (from, to) = match &op {
            Op::Rename(from, to) => (from, to),
            Op::Overwrite(to) => (to, to),
            _ => return self.alter(op),
        };
        let values = &self.primary.keys.values;
        let replaces = matches!(values.get(to), Some(Value::Lock(..)));
        let told = replaces || !values.contains_key(from) && from != to;
        if told {
            return self.alter(op);
        }
        self.mistrust();
        self.unseen.remove(from);
        self.unseen.insert(to.clone());
        self.primary.stays = self.fault == Some(Fault::TieStays);
        self.primary.fresh_windows = self.fault == Some(Fault::WindowsAnew);
        match (self.fault, &op) {
            (Some(Fault::RenameUnseen), Op::Rename(from, to)) => {
                let values = &mut self.primary.keys.values;
                let value = values.remove(from).expect("the key has a value");
                values.insert(to.clone(), value);
            }
            _ => self.primary.appear(&op, self.now),
        }
        self.known.insert(to.clone());
        self.link.push_back(op);
        self.perform();
    }

    /// Runs the scan of once a second over the locks that have waiters or ties.
    pub fn look(&mut self) {
        if self.writable && !self.is(Fault::NoLook) {
            let Server { engine, keys, .. } = &mut self.primary;
            engine.begin_scan();
            while engine.scan_step(keys, self.now, 1) {}
            // Where no request waits, the next use of the lock finds the value.
            self.unseen.retain(|name| !engine.watches(name.as_ref()));
        }
        self.perform();
    }

    /// Removes the keys whose TTL has run out, as the server does. Not while it is paused.
    pub fn expire_keys(&mut self) {
        let now = self.now.wall();
        let over = |value: &Value| matches!(value, Value::Lock(_, Some(ttl)) if *ttl <= now);
        let values = self
            .primary
            .keys
            .values
            .iter()
            .filter(|(_, value)| over(value));
        let gone: Vec<Name> = values.map(|(name, _)| name.clone()).collect();
        if self.writable {
            gone.into_iter().for_each(|name| self.alter(Op::Del(name)));
        }
    }

    /// Applies on the replica everything that the primary has sent.
    pub fn sync(&mut self) {
        while let Some(op) = self.link.pop_front() {
            op.shows(&mut self.replica_unseen);
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
                op => {
                    self.replica.alter(&op, self.now);
                    if let Op::Rename(_, to) = &op {
                        self.replica.note_unseen(to, &mut self.replica_unseen);
                    }
                }
            }
        }
        let (_, wakes) = self.replica.work_off();
        assert!(wakes.is_empty(), "a replica gives no answers");
    }

    /// Returns true if tokens will rise once the replica decides, with its clock off by `offset_ms`: it has seen the last grant,
    /// or its clock is ahead of it. Otherwise no promise says so.
    pub fn replica_may_decide(&self, offset_ms: i64) -> bool {
        let last = self.last_token;
        self.replica_knows >= last || self.now.us.saturating_add_signed(offset_ms * 1000) > last.0
    }

    /// Crashes the primary, with everything that it had not sent; the replica decides from now on, by its own clock.
    pub fn crash(&mut self, offset_ms: i64, quarantine_ms: Millis) {
        let lost = !self.link.is_empty();
        self.link.clear();
        self.unseen = std::mem::take(&mut self.replica_unseen);
        let policy = self.primary.engine.policy().clone();
        self.primary = std::mem::replace(&mut self.replica, Server::new(false, policy.clone()));
        self.primary.engine.set_policy(policy);
        self.lost |= lost;
        self.now.us = self.now.us.saturating_add_signed(offset_ms * 1000);
        if quarantine_ms > 0 {
            // New leases may be no longer than the quarantine. Leases that were granted continue.
            let until = self.now.steady().after(quarantine_ms);
            self.quarantine_until = until;
            self.primary.set_policy(|policy| {
                policy.max_lease_ms = policy.max_restored_ms.min(quarantine_ms);
                policy.quarantine_until = until;
            });
        }
        self.take_over();
    }

    /// Performs `FAILOVER`: the replica applies everything, and the two change roles.
    pub fn failover(&mut self) {
        self.sync();
        let now = self.now;
        self.engine().demote();
        self.primary.primary = false;
        self.primary.follow_dirty(now);
        self.tell();
        let policy = self.primary.engine.policy().clone();
        self.replica.engine.set_policy(policy);
        std::mem::swap(&mut self.primary, &mut self.replica);
        std::mem::swap(&mut self.unseen, &mut self.replica_unseen);
        self.replica_knows = Token(0);
        self.begin();
    }

    /// Restarts the primary from its RDB file.
    pub fn restart(&mut self) {
        self.link.clear();
        self.primary = self.primary.reload(self.now);
        self.unseen.clear();
        self.take_over();
    }

    /// Makes the primary decide; its replica copies it in full.
    fn take_over(&mut self) {
        self.link.clear();
        self.replica = self.primary.reload(self.now);
        self.replica_unseen.clear();
        self.replica_knows = Token(0);
        self.begin();
    }

    fn begin(&mut self) {
        self.primary.primary = true;
        // Only the old primary knew where a slot goes.
        self.primary.keys.leaving.clear();
        self.replica.keys.leaving.clear();
        self.mistrust();
        self.engine().promote();
        // The server ends every blocked wait.
        self.waits.clear();
        self.keeping.clear();
        self.cut.clear();
        self.perform();
    }

    /// Performs the engine's outputs, and lets it settle what is left, if the server accepts writes.
    pub fn perform(&mut self) {
        let mut stuck = false;
        for _ in 0..PATIENCE {
            self.event += 1;
            for closed in self.primary.keys.close() {
                self.work_off(closed);
            }
            let answered = self.tell();
            self.verify();
            let left = self.primary.engine.unsettled() && (answered || !stuck);
            if !self.writable || !left || self.is(Fault::Unsettled) {
                if !self.lag {
                    self.sync();
                }
                return;
            }
            let (now, step) = (self.now, self.step);
            let Server { engine, keys, .. } = &mut self.primary;
            // The rest then belongs to slots that have left, unless an answer adds something.
            stuck = !engine.settle_dirty(keys, now, step);
        }
        panic!("settlement does not end");
    }

    /// Performs the changes of one lock.
    fn work_off(&mut self, closed: Closed) {
        if self.used.contains(&closed.name) {
            self.unseen.remove(&closed.name);
        }
        for event in &closed.events {
            self.events.push((closed.name.clone(), *event));
            if let Event::Ended(end, token) = event {
                self.over.push((closed.name.clone(), *end, *token));
            }
        }
        for (owner, token) in granted(&closed.effect) {
            if self.tokens.insert(token) {
                self.last_token = self.last_token.max(token);
                self.grants.push((closed.name.clone(), owner, token));
            }
        }
        self.known.insert(closed.name.clone());
        if !closed.effect.is_empty() && !self.is(Fault::LostEffect) {
            self.link.push_back(Op::Effect(closed.name, closed.effect));
        }
    }

    /// Delivers outcomes to connections. Returns whether any received one.
    fn tell(&mut self) -> bool {
        self.primary.engine.tell_sessions(self.now);
        let outputs = self.primary.engine.take_outputs().into_iter();
        let outputs = outputs.filter(|output| matches!(output.to, Receiver::Connection));
        let wakes: Vec<Output> = outputs.collect();
        let answered = !wakes.is_empty();
        for wake in wakes {
            let mut promises = wake.pending.promises;
            for (id, outcome) in self.garble(wake.id, wake.outcome) {
                self.deliver(id, outcome, std::mem::take(&mut promises));
            }
        }
        answered
    }

    fn deliver(&mut self, id: RequestId, outcome: Outcome, promises: Vec<Promise>) {
        if self.keeping.remove(&id).is_some() {
            return;
        }
        let Some(asked) = self.waits.remove(&id) else {
            return self.unasked.push((id, outcome));
        };
        let grants: Vec<Grant> = match &outcome {
            Outcome::Granted(grant) => vec![*grant],
            Outcome::GrantedAll(grants) => grants.clone(),
            _ => Vec::new(),
        };
        if !grants.is_empty() {
            self.granted(
                &asked,
                grants.iter().map(|grant| grant.token).collect(),
                false,
            );
        }
        let lost = self.cut.contains(&asked.client);
        if lost {
            let unheard = self.unheard_of(promises);
            match self.turn_goes_on {
                true => self.unheard.extend(unheard),
                false => self.hear_nothing(unheard),
            }
        }
        let at = self.now.wall();
        self.heard.push(Heard {
            at,
            id,
            asked,
            outcome,
            lost,
        });
    }

    /// Returns the answers since the last call.
    pub fn take_answers(&mut self) -> Vec<Answered> {
        self.seen = 0;
        std::mem::take(&mut self.answers)
    }

    /// Checks that the grants answered in this event are held.
    fn verify(&mut self) {
        let seen = std::mem::replace(&mut self.seen, self.answers.len());
        let fresh = &self.answers[seen..];
        let lives = |answer: &Answered, name: &Name, token: &Token| {
            let held = self
                .primary
                .keys
                .lock(name)
                .and_then(|lock| lock.hold(&answer.owner));
            let held = held.map(|hold| hold.token);
            // Another request of this owner may have been granted in this event, as an upgrade.
            let another = |other: &Answered| {
                let mut parts = other.names.iter().zip(&other.tokens);
                other.owner == answer.owner
                    && parts.any(|(lock, token)| lock == name && held == Some(*token))
            };
            let mut over = self.over.iter();
            let over = over.any(|(lock, _, over)| (lock, over) == (name, token));
            held == Some(*token) || over || fresh.iter().any(another)
        };
        let stale = fresh.iter().filter(|answer| {
            let mut parts = answer.names.iter().zip(&answer.tokens);
            !parts.all(|(name, token)| lives(answer, name, token))
        });
        self.stale.extend(stale.cloned());
    }

    /// Returns the bytes of a lock, as DUMP gives them.
    pub fn dump(&self, name: &Name) -> Option<Vec<u8>> {
        self.primary.keys.lock(name).map(codec::encode)
    }
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("expected a number, got {other:?}"),
    }
}

/// Returns the owner whose hold a command renews.
fn renews(words: &[&[u8]]) -> Option<Vec<u8>> {
    let spec = crate::server::command(&String::from_utf8_lossy(words[0]))?;
    let renews = matches!(spec.verb, Verb::Renew | Verb::RenewMany);
    let owner = words[1..].get(spec.keys(&words[1..]).end)?;
    renews.then(|| owner.to_vec())
}

/// Returns true if a command limits how long the server renews a hold: by its own time, or by that of a session.
fn bounds_auto(words: &[&[u8]]) -> bool {
    let mut pairs = words.windows(2);
    pairs.any(|pair| {
        let auto = pair[0].eq_ignore_ascii_case(b"AUTO") && pair[1] != b"0";
        auto || pair[0].eq_ignore_ascii_case(b"IN")
    })
}

/// Returns the options of a command in upper case, each with its value if it takes one.
fn said<'a>(options: &[&'a [u8]]) -> Vec<(String, Option<&'a [u8]>)> {
    let mut words = options.iter();
    let mut said = Vec::new();
    while let Some(word) = words.next() {
        let option = String::from_utf8_lossy(word).to_ascii_uppercase();
        let valued =
            ["BLOCK", "HOLDS", "LIMIT", "PERMITS", "CLAIM", "IN"].contains(&option.as_str());
        let value = words.as_slice().first().copied().filter(|_| valued);
        if value.is_some() {
            words.next();
        }
        said.push((option, value));
    }
    said
}

/// Returns the holds that an effect records.
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
