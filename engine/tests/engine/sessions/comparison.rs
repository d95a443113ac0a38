//! The engine against the [`model`](super::model): both receive random commands by several connections, deaths, removals, restarts
//! and times. Every reply, the rows of every session, the holders and the queues are compared after each event. A difference is
//! reported with a short sequence that still shows it.

use super::model::{Hold, Model, Renewal, Tie};
use super::node::{Answer, Node};
use super::words::{Command, Said, Serial, Share, Take, Verb, SHARED};
use crate::client::Client;
use crate::random::{for_some_seeds, Random};
use crate::world::{name, Op, BEGIN_MS};
use dlock_commands::Reply;
use dlock_engine::{Millis, Policy, Token};
use std::collections::BTreeMap;
use std::fmt;

const CLIENTS: u64 = 6;
const KEYS: [&str; 3] = ["k", "l", "m"];
const OWNERS: [&str; 6] = ["s/1", "s/2", "s/3", "t/1", "t/2", "ada"];
const SESSIONS: [&str; 2] = ["s", "t"];
const STEPS: usize = 150;

/// The id of no session.
const ANOTHER: Serial = Serial::MAX;

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Step {
    /// A command on a connection, or, without one, in a script.
    Sends(Option<u64>, Command),
    Passes(Millis),
    Dies(u64),
    Deletes(&'static str),
    Restarts,
    /// The server is demoted, and promoted at once.
    ChangesRoles,
}

impl fmt::Display for Step {
    /// Writes tokens and ids as the model numbers them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Sends(Some(client), command) => {
                write!(f, "{client}: {}", command.words(|its| its, |its| its))
            }
            Step::Sends(None, command) => {
                write!(f, "script: {}", command.words(|its| its, |its| its))
            }
            Step::Passes(ms) => write!(f, "wait {ms}"),
            Step::Dies(client) => write!(f, "{client} dies"),
            Step::Deletes(key) => write!(f, "DEL {key}"),
            Step::Restarts => write!(f, "restart"),
            Step::ChangesRoles => write!(f, "demotion and promotion"),
        }
    }
}

/// Engine and model, and what the engine calls the model's tokens and ids.
#[derive(Clone)]
pub struct Pair {
    pub node: Node,
    pub model: Model,
    numbers: BTreeMap<Serial, u64>,
    /// The ids of connections that are not the first of their names.
    ids: BTreeMap<u64, u64>,
    deaths: u64,
    /// How often each kind of reply and row has come by.
    seen: BTreeMap<String, usize>,
}

impl Pair {
    pub fn new() -> Pair {
        // Another test covers deadlock detection.
        let policy = Policy {
            deadlock_detection: false,
            ..Policy::default()
        };
        Pair {
            node: Node::new(policy),
            model: Model::new(BEGIN_MS),
            numbers: BTreeMap::new(),
            ids: BTreeMap::new(),
            deaths: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Returns true if the engine has shown this token or id.
    pub fn knows(&self, serial: Serial) -> bool {
        self.numbers.contains_key(&serial)
    }

    fn note(&mut self, what: String) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    /// Returns the id of a connection: after a death it is another.
    fn id(&self, client: u64) -> u64 {
        self.ids.get(&client).copied().unwrap_or(client)
    }

    /// Performs a step. Errors if engine and model differ.
    pub fn perform(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Sends(None, command) => self.send(None, command)?,
            Step::Sends(Some(client), command) => {
                let id = self.id(*client);
                if !self.node.is_blocked(id) {
                    self.send(Some(id), command)?;
                }
            }
            Step::Passes(ms) => return self.pass(*ms),
            Step::Dies(client) => {
                let id = self.id(*client);
                self.deaths += 1;
                self.ids.insert(*client, CLIENTS + self.deaths);
                self.node.dies(id);
                self.model.dies(id);
            }
            Step::Deletes(key) => {
                self.node.alter(&Op::Del(name(0, key)));
                self.model.del(key);
            }
            Step::Restarts => {
                // No two servers make tokens within one microsecond.
                self.pass(1)?;
                self.node.restart();
                self.model.begin_again();
            }
            Step::ChangesRoles => {
                self.node.change_roles();
                self.model.begin_again();
            }
        }
        self.end_event()
    }

    fn send(&mut self, client: Option<u64>, command: &Command) -> Result<(), String> {
        let number = |serial| self.numbers.get(&serial).copied().unwrap_or(1);
        let words = command.words(number, number);
        let caller = client.map_or(Client::script(0), Client::connection);
        let answer = self.node.send(caller, &words);
        let said = self.model.command(client, command);
        self.note(format!(
            "{} {}",
            words.split(' ').next().unwrap_or(""),
            kind(&said)
        ));
        if !self.agree(&said, answer.as_ref()) {
            return Err(format!(
                "{words}: the engine says {answer:?}, the model {said:?}"
            ));
        }
        self.end_event()?;
        self.node.settle();
        self.model.settle();
        self.end_event()
    }

    /// Lets time pass, and stops whenever something is due.
    fn pass(&mut self, ms: Millis) -> Result<(), String> {
        let end = self.model.now + ms;
        loop {
            let next = self.model.next_due().filter(|due| *due <= end);
            let due = self
                .node
                .due_in()
                .map(|due| self.model.now + due)
                .filter(|due| *due <= end);
            if let Some(next) = next.filter(|next| due.is_none_or(|due| due > *next)) {
                return Err(format!(
                    "the engine wakes at {due:?}, and something is due at {next}"
                ));
            }
            let at = due.unwrap_or(end);
            self.node.jump(at - self.model.now);
            self.model.now = at;
            if due.is_none() {
                return Ok(());
            }
            self.node.tick();
            self.model.tick();
            self.end_event()?;
        }
    }

    /// Ends an event. Errors if engine and model differ.
    fn end_event(&mut self) -> Result<(), String> {
        self.number_rows()?;
        self.model.end_event();
        self.compare_heard()?;
        self.choose_renewals()?;
        let sessions = (
            self.node.server.engine.sessions(),
            self.node.server.engine.session_rows().0,
        );
        let alive = self
            .model
            .sessions
            .iter()
            .filter(|session| session.alive)
            .count();
        let count = self.model.sessions.len();
        let rows = self
            .model
            .sessions
            .iter()
            .map(|session| session.rows.len())
            .sum();
        if sessions != ((count, count - alive), rows) {
            return Err(format!(
                "the engine has {sessions:?}, the model {count} sessions, {alive} of them alive, with {rows} rows"
            ));
        }
        KEYS.iter().try_for_each(|key| self.compare_lock(key))
    }

    /// Gives the new rows of the model the numbers that the engine has given them. Rows of one hold or wait keep their order.
    fn number_rows(&mut self) -> Result<(), String> {
        for at in 0..self.model.sessions.len() {
            let fresh = self.model.sessions[at]
                .rows
                .iter()
                .filter(|row| row.number == 0);
            let mut fresh: Vec<_> = fresh.cloned().collect();
            let session = &self.model.sessions[at];
            // No client receives the last rows of a session that is over.
            if fresh.is_empty() || self.model.is_over(session) {
                continue;
            }
            let (its, last) = (
                session.name,
                session.rows.iter().map(|row| row.number).max(),
            );
            let mut told = self.node.rows(its);
            told.retain(|told| told.number > last.unwrap_or(0));
            told.sort_by_key(|told| (told.key.clone(), told.owner.clone(), told.number));
            fresh.sort_by_key(|row| (row.key, row.owner));
            let same = fresh.len() == told.len()
                && fresh.iter().zip(&told).all(|(row, told)| {
                    (row.word, row.key, row.owner) == (told.word, &told.key, &told.owner)
                        && self.is(row.token, told.token)
                });
            if !same {
                return Err(format!(
                    "{its}: the engine has the new rows {told:?}, the model {fresh:?}"
                ));
            }
            for (row, told) in fresh.iter_mut().zip(&told) {
                row.number = told.number;
                self.note(format!("row {}", row.word));
            }
            let rows = &mut self.model.sessions[at].rows;
            rows.retain(|row| row.number > 0);
            rows.extend(fresh);
            rows.sort_by_key(|row| row.number);
        }
        Ok(())
    }

    fn compare_heard(&mut self) -> Result<(), String> {
        let mut heard = std::mem::take(&mut self.node.heard);
        let mut said = std::mem::take(&mut self.model.heard);
        heard.sort_by_key(|(client, _)| *client);
        said.sort_by_key(|(client, _)| *client);
        let same = heard.len() == said.len()
            && heard
                .iter()
                .zip(&said)
                .all(|((one, answer), (other, said))| {
                    self.note(format!("heard {}", kind(said)));
                    one == other && self.agree(said, Some(answer))
                });
        match same {
            true => Ok(()),
            false => Err(format!("the engine answers {heard:?}, the model {said:?}")),
        }
    }

    /// Takes the times of renewals from the engine, if it keeps within the bounds.
    fn choose_renewals(&mut self) -> Result<(), String> {
        let ties = &self.node.server.engine.holds().ties;
        for (key, lock) in &mut self.model.locks {
            for hold in &mut lock.holds {
                let Tie::Session { lease, renewal, .. } = &mut hold.tie else {
                    continue;
                };
                let Renewal::Since(from) = *renewal else {
                    continue;
                };
                let token = self.numbers.get(&hold.token).map(|token| Token(*token));
                let id = token.and_then(|token| ties.find(name(0, key).as_ref(), token));
                let next = id.and_then(|id| Some(format!("{:?}", ties.get(id)?.auto?.next)));
                let due = next.as_deref().and_then(due).map(|due| due + BEGIN_MS);
                let third = from + *lease / 3;
                match due.filter(|due| (third - *lease / 12 - 1..=third).contains(due)) {
                    Some(due) => *renewal = Renewal::At(due),
                    None => {
                        return Err(format!(
                            "{key}: a renewal after {from} of {lease} ms comes at {due:?}"
                        ))
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares what INFO shows of a lock.
    fn compare_lock(&mut self, key: &'static str) -> Result<(), String> {
        let shown = match self.node.server.run(
            self.node.now,
            0,
            Client::script(0),
            &[b"INFO", key.as_bytes()],
        ) {
            Ok(Reply::Map(fields)) => fields,
            _ => Vec::new(),
        };
        self.node.server.keys.close();
        let list = |name: &str| match shown.iter().find(|(its, _)| *its == name) {
            Some((_, Reply::Array(items))) => items.clone(),
            _ => Vec::new(),
        };
        let model = &self.model;
        let lock = model.locks.get(key).cloned().unwrap_or_default();
        let mut holders = lock.holds.clone();
        holders.sort_by_key(|hold| hold.token);
        let limit = |share: Share| {
            if share.limit == SHARED {
                0
            } else {
                share.limit
            }
        };
        let holder = |hold: &Hold| {
            let numbers = [
                hold.count.into(),
                limit(hold.share),
                hold.share.permits,
                hold.end - model.now,
            ];
            let ephemeral = u64::from(matches!(hold.tie, Tie::Connection(_)));
            let numbers = numbers.into_iter().chain([ephemeral]).map(Said::Number);
            let texts = [hold.owner, model.session_of(hold)];
            let texts = texts.into_iter().map(|text| Said::Text(text.into()));
            Said::List(
                texts
                    .chain([Said::Token(hold.token)])
                    .chain(numbers)
                    .collect(),
            )
        };
        let place = |place: &super::model::Place| {
            let (session, absent) = model.there(place);
            let kind = match (absent, place.claim) {
                (true, _) => "absent",
                (false, Some(_)) => "ticket",
                (false, None) => "waiter",
            };
            let texts = [place.owner, kind, session].map(|text| Said::Text(text.into()));
            let numbers = [limit(place.share), place.share.permits].map(Said::Number);
            Said::List(texts.into_iter().chain(numbers).collect())
        };
        let places = lock.upgrade.iter().chain(&lock.queue);
        let said = [
            holders.iter().map(holder).collect(),
            places.map(place).collect(),
        ]
        .map(Said::List);
        let fields = [
            "owner",
            "in",
            "token",
            "holds",
            "limit",
            "permits",
            "lease-ms",
            "ephemeral",
        ];
        let holders = list("holders")
            .iter()
            .map(|item| chosen(item, &fields))
            .collect();
        let fields = ["owner", "kind", "in", "limit", "permits"];
        let queue = list("queue")
            .iter()
            .map(|item| chosen(item, &fields))
            .collect();
        let reply: Answer = Ok(Reply::Array(vec![
            Reply::Array(holders),
            Reply::Array(queue),
        ]));
        match self.agree(&Said::List(said.to_vec()), Some(&reply)) {
            true => Ok(()),
            false => Err(format!(
                "{key}: the engine shows {reply:?}, the model {said:?}"
            )),
        }
    }

    /// Returns true if the engine's answer is what the model says.
    fn agree(&mut self, said: &Said, answer: Option<&Answer>) -> bool {
        match (said, answer) {
            (Said::Waits, None) => true,
            (Said::Error(code), Some(Err(error))) => {
                error.to_string().split(' ').next() == Some(code)
            }
            (said, Some(Ok(reply))) => self.is_said(said, reply),
            _ => false,
        }
    }

    fn is_said(&mut self, said: &Said, reply: &Reply) -> bool {
        match (said, reply) {
            (Said::Null, Reply::Null | Reply::NullArray) => true,
            (Said::Number(one), Reply::Integer(other)) => one == other,
            (Said::Token(serial) | Said::Id(serial), Reply::Integer(number)) => {
                self.is(*serial, *number)
            }
            (Said::Text(one), Reply::Text(other)) => one == other,
            (Said::Text(one), Reply::Bulk(other)) => one.as_bytes() == other,
            (Said::List(parts), Reply::Grant(token, count, _)) => {
                let grant = [Reply::Integer(token.0), Reply::Integer((*count).into())];
                parts.len() == 2
                    && parts
                        .iter()
                        .zip(&grant)
                        .all(|(said, reply)| self.is_said(said, reply))
            }
            (Said::List(parts), Reply::Array(items)) => {
                parts.len() == items.len()
                    && parts
                        .iter()
                        .zip(items)
                        .all(|(said, reply)| self.is_said(said, reply))
            }
            _ => false,
        }
    }

    /// Returns true if this is what the engine calls a token or an id of the model. If both are new, the two belong together from
    /// now on.
    fn is(&mut self, serial: Serial, number: u64) -> bool {
        if serial == 0 {
            return number == 0;
        }
        match self.numbers.get(&serial) {
            Some(known) => *known == number,
            None if self.numbers.values().any(|known| *known == number) => false,
            None => {
                self.numbers.insert(serial, number);
                true
            }
        }
    }
}

/// Returns these fields of a map.
fn chosen(map: &Reply, fields: &[&str]) -> Reply {
    let Reply::Map(all) = map else {
        return Reply::Null;
    };
    let field = |name: &&str| all.iter().find(|(its, _)| its == name);
    let values = fields
        .iter()
        .filter_map(|name| Some(field(name)?.1.clone()));
    Reply::Array(values.collect())
}

/// Returns when a renewal is due, from its debug form.
fn due(text: &str) -> Option<Millis> {
    let (_, at) = text.split_once("SteadyMs(")?;
    at.split(')').next()?.parse().ok()
}

fn kind(said: &Said) -> String {
    match said {
        Said::Null => "null".into(),
        Said::Waits => "waits".into(),
        Said::Error(code) => code.to_string(),
        Said::List(parts) if parts.first() == Some(&Said::Number(0)) => "a place".into(),
        Said::List(parts) if parts.len() == 4 => "news".into(),
        _ => "something".into(),
    }
}

// Random steps

struct Dice<'r> {
    random: &'r mut Random,
    model: &'r Model,
    /// The tokens and ids that the engine has shown.
    known: &'r BTreeMap<Serial, u64>,
}

impl Dice<'_> {
    fn step(&mut self) -> Step {
        match self.random.below(100) {
            0..=19 => Step::Passes(self.ms()),
            20..=22 => Step::Dies(1 + self.random.below(CLIENTS)),
            23..=24 => Step::Deletes(self.key()),
            25 if self.random.chance(20) => Step::Restarts,
            25 if self.random.chance(20) => Step::ChangesRoles,
            _ => {
                let client = 1 + self.random.below(CLIENTS);
                let client = Some(client).filter(|_| self.random.chance(92));
                Step::Sends(client, self.command(client.is_some()))
            }
        }
    }

    fn ms(&mut self) -> Millis {
        let most = *self.random.pick(&[100, 1_000, 3_000, 7_000]);
        1 + self.random.below(most)
    }

    /// Returns how long a request waits. No two of them end at one instant: between two time-outs the server looks only at the locks
    /// that the second one waits for, and the model at all.
    fn block(&mut self) -> Millis {
        match self.ms() {
            ms if self.random.chance(30) || self.model.times_out_at(self.model.now + ms) => 0,
            ms => ms,
        }
    }

    fn key(&mut self) -> &'static str {
        self.random.pick::<&str>(&KEYS)
    }

    fn keys(&mut self) -> Vec<&'static str> {
        let mut keys = KEYS.to_vec();
        keys.remove(self.random.below(3) as usize);
        if self.random.chance(30) {
            keys.reverse();
        }
        keys
    }

    fn owner(&mut self) -> &'static str {
        self.random.pick::<&str>(&OWNERS)
    }

    /// Returns a key and an owner, mostly of a hold, and its token, if there is one.
    fn hold(&mut self) -> (&'static str, &'static str, Option<Serial>) {
        let holds: Vec<_> = self
            .model
            .locks
            .iter()
            .flat_map(|(key, lock)| {
                lock.holds
                    .iter()
                    .map(|hold| (*key, hold.owner, Some(hold.token)))
            })
            .collect();
        match holds.is_empty() || self.random.chance(15) {
            true => (self.key(), self.owner(), None),
            false => *self.random.pick(&holds),
        }
    }

    /// Returns a token to name: that of the hold, or one that is over; or none.
    fn token(&mut self, its: Option<Serial>) -> Option<Serial> {
        match self.random.below(10) {
            0..=4 => its,
            5 => Some(1),
            _ => None,
        }
    }

    fn session(&mut self, percent: u64) -> Option<&'static str> {
        let session = *self.random.pick(&SESSIONS);
        Some(session).filter(|_| self.random.chance(percent))
    }

    fn lease(&mut self) -> Millis {
        *self.random.pick(&[500, 1_000, 2_000, 3_000, 5_000, 12_000]) + self.random.below(3)
    }

    fn share(&mut self) -> Share {
        let limit = *self.random.pick(&[1, 1, 1, 2, 3, SHARED, SHARED]);
        let permits = match limit {
            2 | 3 if self.random.chance(50) => 1 + self.random.below(limit),
            _ => 1,
        };
        Share { limit, permits }
    }

    /// Returns a request for locks; `connects`: by a connection, with which a hold may end.
    fn take(&mut self, connects: bool) -> Take {
        let verb = *self
            .random
            .pick(&[Verb::One, Verb::One, Verb::Fair, Verb::Fair, Verb::Many]);
        let (session, waits) = (self.session(60), self.random.chance(75));
        let mut keys = self.keys();
        if verb != Verb::Many {
            keys.truncate(1);
        }
        let mut take = Take {
            verb,
            keys,
            owner: self.owner(),
            lease: self.lease(),
            block: waits.then(|| self.block()),
            holds: None,
            share: self.share(),
            ephemeral: false,
            claim: None,
            session,
        };
        if session.is_none() {
            take.holds = self
                .random
                .chance(20)
                .then(|| 1 + self.random.below(3) as u32);
            take.ephemeral = connects && self.random.chance(20);
            take.claim = (verb == Verb::Fair && self.random.chance(30)).then(|| self.ms());
        }
        take
    }

    fn command(&mut self, connects: bool) -> Command {
        let (key, owner, its) = self.hold();
        match self.random.below(100) {
            0..=43 => Command::Take(self.take(connects)),
            44..=65 => self.keep(),
            66..=72 => {
                let session = self.session(60);
                Command::Renew {
                    many: false,
                    keys: vec![key],
                    owner,
                    lease: self.lease(),
                    token: self.token(its),
                    ephemeral: connects && session.is_none() && self.random.chance(30),
                    session,
                }
            }
            73..=75 => Command::Renew {
                many: true,
                keys: self.keys(),
                owner,
                lease: self.lease(),
                token: None,
                ephemeral: false,
                session: self.session(60),
            },
            76..=85 => Command::Release {
                key,
                owner,
                leave: self.random.chance(40).then(|| self.random.below(3) as u32),
                token: self.token(its),
            },
            86..=87 => Command::ReleaseMany {
                keys: self.keys(),
                owner,
            },
            88..=91 => Command::Downgrade {
                key,
                owner,
                limit: self.share().limit,
                token: self.token(its),
            },
            92..=96 => Command::Cancel {
                key,
                owner: self.owner(),
            },
            _ => Command::Force {
                key,
                owner: self.random.chance(50).then_some(owner),
            },
        }
    }

    fn keep(&mut self) -> Command {
        let session = *self.random.pick(&SESSIONS);
        let mut known = self
            .model
            .sessions
            .iter()
            .filter(|its| self.known.contains_key(&its.id));
        let its = known.find(|its| its.name == session);
        let seen = its
            .filter(|_| self.random.chance(70))
            .map(|its| match self.random.below(10) {
                0 => (its.id, its.last + 1),
                1 => (ANOTHER, its.last),
                2..=5 => (its.id, its.last),
                _ => (its.id, self.random.below(its.last + 1)),
            });
        Command::Session {
            session,
            ms: if self.random.chance(8) {
                0
            } else {
                1_000 + self.random.below(20_000)
            },
            seen,
            block: self.random.chance(40).then(|| 1 + self.random.below(5_000)),
        }
    }
}

/// Performs steps. Errors with the number of the step that shows a difference.
fn replay(steps: &[Step]) -> Result<Pair, (usize, String)> {
    let mut pair = Pair::new();
    for (at, step) in steps.iter().enumerate() {
        pair.perform(step).map_err(|what| (at, what))?;
    }
    Ok(pair)
}

/// Leaves out steps as long as a difference shows. Returns what is left, and the difference.
fn shortened(mut steps: Vec<Step>, mut what: String) -> String {
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = steps.clone();
        fewer.remove(at);
        if let Err((last, other)) = replay(&fewer) {
            fewer.truncate(last + 1);
            at = at.min(fewer.len());
            (steps, what) = (fewer, other);
        }
    }
    let lines: Vec<String> = steps.iter().map(Step::to_string).collect();
    format!("{}\n{what}", lines.join("\n"))
}

/// Compares engine and model over random steps. Errors with a short sequence that shows a difference.
fn compare(seed: u64) -> Result<Pair, String> {
    let mut random = Random::new(seed);
    let mut pair = Pair::new();
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        let mut dice = Dice {
            random: &mut random,
            model: &pair.model,
            known: &pair.numbers,
        };
        let step = dice.step();
        steps.push(step.clone());
        if let Err(what) = pair.perform(&step) {
            return Err(shortened(steps, what));
        }
    }
    Ok(pair)
}

#[test]
fn sessions_do_what_the_model_does() {
    for_some_seeds(300, 20_000, |seed| compare(seed).map(drop));
}

#[test]
fn the_comparison_comes_by_everything() {
    let mut seen = BTreeMap::new();
    for seed in 1..=150 {
        let pair = compare(seed).unwrap_or_else(|what| panic!("{what}"));
        for (what, count) in pair.seen {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    for what in [
        "ACQUIRE a place",
        "FAIRACQUIRE a place",
        "MACQUIRE a place",
        "MACQUIRE HOLDING",
        "RENEW NOTHELD",
        "RELEASE NOTHELD",
        "SESSION news",
        "SESSION waits",
        "SESSION ERR",
        "heard news",
        "heard REPLACED",
        "heard NOTHELD",
        "heard null",
        "row granted",
        "row taken",
        "row timeout",
        "row cancelled",
        "row replaced",
        "row released",
        "row expired",
        "row forced",
        "row removed",
    ] {
        let count: usize = seen.get(what).copied().unwrap_or(0);
        assert!(count >= 10, "{what}: {count} of {seen:#?}");
    }
}
