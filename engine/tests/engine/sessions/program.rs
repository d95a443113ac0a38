//! One program that follows the rules for programs: it takes, keeps, believes and releases over calls that may fail in any way.
//!
//! It knows only what its calls are answered and its own clock. What it wants is decided by `programs`.

use super::node::{rows, Answer, Row};
use dlock_commands::Reply;
use dlock_engine::Millis;
use std::collections::BTreeMap;

/// For how long a SESSION command keeps a session, and how long it is blocked at most.
pub const KEPT_MS: Millis = 3_000;
pub const BLOCK_MS: Millis = 1_000;

/// How long a call waits for its answer, beyond what it blocks.
pub const PATIENCE_MS: Millis = 800;

/// How soon a SESSION command follows one that was answered early without rows.
const PAUSE_MS: Millis = 100;

/// The longest lease that programs ask for.
pub const LONGEST_MS: Millis = 4_500;

/// How much earlier a program stops to believe: clocks differ, and none goes as fast as another.
const MARGIN_MS: Millis = 100;

/// The locks: one that one holds at a time, and a semaphore.
pub const KEYS: [&str; 2] = ["k", "m"];

/// What begins the errors after which a request has failed. After any other it is sent again.
const FAILURES: [&str; 7] = [
    "DEADLOCK",
    "QUEUEFULL",
    "OOM",
    "NOPERM",
    "WRONGTYPE",
    "HOLDING",
    "ERR",
];

/// What a program does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// It counts what an answer says from when it was answered, not from when it asked.
    CountsFromAnswer,
    /// It does not release what a row gives it and it does not hold.
    KeepsStrangeRows,
}

/// A hold that the program knows of.
#[derive(Debug, Clone)]
pub struct Held {
    pub key: &'static str,
    pub owner: String,
    pub limit: u64,
    pub permits: u64,
    pub token: u64,
    /// The session that it is in, as far as the program knows.
    pub id: u64,
    /// Whether it is no longer in the session.
    pub taken: bool,
    lease: Millis,
    /// When the program learned of it.
    pub told: Millis,
    /// Until when the program believes in it.
    pub until: Millis,
    /// When the program gives it back.
    pub done: Millis,
}

/// A request whose outcome the program does not know.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub keys: &'static [&'static str],
    pub owner: String,
    pub limit: u64,
    pub permits: u64,
    pub lease: Millis,
    /// How long the program works with the lock.
    pub work: Millis,
    /// When the program leaves.
    pub end: Millis,
    pub id: u64,
    /// How often it has asked.
    asks: u32,
    /// Whether it has to ask again when no call is under way.
    again: bool,
}

/// What a call asks.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Take(&'static [&'static str], String),
    Renew(u64),
    Release(u64),
    Cancel(String),
    Session,
}

#[derive(Debug, Clone)]
struct Call {
    kind: Kind,
    sent: Millis,
    patience: Millis,
}

/// What a program sends: on the connection that keeps its session, or on any other.
#[derive(Debug, Clone)]
pub struct Sent {
    pub call: u64,
    pub keeps: bool,
    pub words: String,
}

/// A token whose release the program repeats until it is answered.
#[derive(Debug, Clone)]
struct Releasing {
    key: &'static str,
    owner: String,
    token: u64,
    id: u64,
    end: Millis,
}

#[derive(Debug, Clone)]
pub struct Program {
    pub session: String,
    pub mistake: Option<Mistake>,
    pub holds: Vec<Held>,
    pub wanted: Vec<Wanted>,
    releasing: Vec<Releasing>,
    leaving: Vec<(&'static str, String)>,
    calls: BTreeMap<u64, Call>,
    /// The session's id, and the last row of it that was read.
    id: u64,
    seen: u64,
    /// When the SESSION command was sent whose answer it has read last.
    read: Millis,
    /// Whether the loop that keeps the session runs, and when it sends next.
    keeping: bool,
    blocks: bool,
    next: Millis,
    /// Whether its keeping connection is to be dropped.
    pub drops: bool,
    owners: u64,
    last_call: u64,
    pub out: Vec<Sent>,
}

impl Wanted {
    /// Returns a wish that has no owner yet.
    pub fn new(
        keys: &'static [&'static str],
        (limit, permits): (u64, u64),
        lease: Millis,
        work: Millis,
        end: Millis,
    ) -> Wanted {
        Wanted {
            keys,
            owner: String::new(),
            limit,
            permits,
            lease,
            work,
            end,
            id: 0,
            asks: 0,
            again: true,
        }
    }

    /// Returns the words that ask for it.
    fn words(&self, session: &str, left: Millis) -> String {
        let Wanted {
            keys,
            owner,
            lease,
            limit,
            permits,
            ..
        } = self;
        let begin = match keys {
            [key] => format!("FAIRACQUIRE {key}"),
            keys => format!("MACQUIRE {} {}", keys.len(), keys.join(" ")),
        };
        format!("{begin} {owner} {lease} LIMIT {limit} PERMITS {permits} IN {session} BLOCK {left}")
    }
}

impl Program {
    pub fn new(session: String, mistake: Option<Mistake>) -> Program {
        Program {
            session,
            mistake,
            holds: Vec::new(),
            wanted: Vec::new(),
            releasing: Vec::new(),
            leaving: Vec::new(),
            calls: BTreeMap::new(),
            id: 0,
            seen: 0,
            read: 0,
            keeping: false,
            blocks: false,
            next: 0,
            drops: false,
            owners: 0,
            last_call: 0,
            out: Vec::new(),
        }
    }

    /// Begins to want a lock, for this long, under a fresh owner.
    pub fn want(&mut self, wanted: Wanted) {
        let owner = self.fresh_owner();
        self.wanted.push(Wanted { owner, ..wanted });
    }

    fn fresh_owner(&mut self) -> String {
        self.owners += 1;
        format!("{}/{}", self.session, self.owners)
    }

    /// Returns true if it knew of a hold when it sent the SESSION command whose answer it has read last.
    pub fn told_before(&self, hold: &Held) -> bool {
        hold.told <= self.read
    }

    /// Returns true if it knows of this hold of its own, or may yet learn of it.
    pub fn knows(&self, owner: &str, token: u64) -> bool {
        self.holds.iter().any(|hold| hold.token == token)
            || self.wanted.iter().any(|wanted| wanted.owner == owner)
            || self.releasing.iter().any(|its| its.token == token)
    }

    fn call(&mut self, now: Millis, kind: Kind, words: String, block: Millis) {
        self.last_call += 1;
        let call = self.last_call;
        let keeps = kind == Kind::Session;
        let patience = PATIENCE_MS + block;
        let sent = now;
        self.calls.insert(
            call,
            Call {
                kind,
                sent,
                patience,
            },
        );
        self.out.push(Sent { call, keeps, words });
    }

    fn is_asking(&self, kind: &Kind) -> bool {
        self.calls.values().any(|call| call.kind == *kind)
    }

    /// Does what its clock says.
    pub fn act(&mut self, now: Millis) {
        let up = |call: &Call| call.sent + call.patience <= now;
        let silent: Vec<Kind> = self
            .calls
            .values()
            .filter(|call| up(call))
            .map(|call| call.kind.clone())
            .collect();
        self.calls.retain(|_, call| !up(call));
        for kind in silent {
            self.unanswered(now, kind);
        }
        // Of some holds only their row says how long they last: the program does not believe in them before.
        let over = |hold: &Held| hold.done <= now || hold.until > 0 && hold.until <= now;
        for hold in self
            .holds
            .iter()
            .filter(|hold| over(hold))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.release(hold.key, hold.owner, hold.token, hold.id, now + hold.lease);
        }
        self.holds.retain(|hold| !over(hold));
        for wanted in self
            .wanted
            .iter()
            .filter(|its| its.end + PATIENCE_MS <= now)
        {
            self.leaving.push((wanted.keys[0], wanted.owner.clone()));
        }
        self.wanted.retain(|its| its.end + PATIENCE_MS > now);
        self.ask(now);
        self.give_back(now);
        self.keep(now);
    }

    fn ask(&mut self, now: Millis) {
        for at in 0..self.wanted.len() {
            let wanted = &mut self.wanted[at];
            let left = wanted.end.saturating_sub(now);
            let kind = Kind::Take(wanted.keys, wanted.owner.clone());
            if !wanted.again || left == 0 || self.calls.values().any(|call| call.kind == kind) {
                continue;
            }
            (wanted.again, wanted.asks) = (false, wanted.asks + 1);
            let words = wanted.words(&self.session, left);
            self.call(now, kind, words, 0);
        }
    }

    fn give_back(&mut self, now: Millis) {
        let id = self.id;
        // After another id it does so until the lease's end.
        self.releasing
            .retain(|its| its.id == id || id == 0 || its.end > now);
        for its in self.releasing.clone() {
            let kind = Kind::Release(its.token);
            if !self.is_asking(&kind) {
                let words = format!("RELEASE {} {} TOKEN {}", its.key, its.owner, its.token);
                self.call(now, kind, words, 0);
            }
        }
        for (key, owner) in self.leaving.clone() {
            let kind = Kind::Cancel(owner.clone());
            if !self.is_asking(&kind) {
                self.call(now, kind, format!("CANCEL {key} {owner}"), 0);
            }
        }
        // Holds of another id come into the session again.
        for hold in self.holds.clone() {
            let kind = Kind::Renew(hold.token);
            if hold.id != id && id != 0 && hold.until > now && !hold.taken && !self.is_asking(&kind)
            {
                let Held {
                    key,
                    owner,
                    lease,
                    token,
                    ..
                } = hold;
                let words = format!(
                    "RENEW {key} {owner} {lease} TOKEN {token} IN {}",
                    self.session
                );
                self.call(now, kind, words, 0);
            }
        }
    }

    /// Keeps the session as long as something is in it, and then takes its last rows.
    fn keep(&mut self, now: Millis) {
        if now < self.next || self.is_asking(&Kind::Session) {
            return;
        }
        let needed = !(self.holds.is_empty() && self.wanted.is_empty());
        if !needed && !self.keeping {
            return;
        }
        let ms = if needed { KEPT_MS } else { 1 };
        let block = if needed && self.blocks { BLOCK_MS } else { 0 };
        let mut words = format!("SESSION k {} {ms}", self.session);
        if self.id > 0 {
            words += &format!(" SEEN {} {}", self.id, self.seen);
        }
        if block > 0 {
            words += &format!(" BLOCK {block}");
        }
        (self.keeping, self.blocks) = (needed, needed);
        self.call(now, Kind::Session, words, block);
    }

    fn unanswered(&mut self, now: Millis, kind: Kind) {
        match kind {
            Kind::Take(_, owner) => {
                for wanted in self.wanted.iter_mut().filter(|its| its.owner == owner) {
                    wanted.again = true;
                }
            }
            // The program drops the connection that keeps the session, and keeps it again by a new one. It asks for the last rows
            // once more.
            Kind::Session => {
                (self.drops, self.blocks, self.keeping, self.next) = (true, false, true, now)
            }
            // The others are asked again as long as they are needed.
            Kind::Renew(_) | Kind::Release(_) | Kind::Cancel(_) => {}
        }
    }

    /// Reads an answer. Returns false for one that the program no longer waits for: it is lost with its connection.
    pub fn hear(&mut self, now: Millis, call: u64, answer: &Answer) -> bool {
        let Some(call) = self.calls.remove(&call) else {
            return false;
        };
        let from = match self.mistake {
            Some(Mistake::CountsFromAnswer) => now,
            _ => call.sent.saturating_sub(MARGIN_MS),
        };
        match (call.kind, answer) {
            (Kind::Take(keys, owner), answer) => self.hear_taken(now, from, keys, &owner, answer),
            (Kind::Renew(token), Ok(Reply::Array(parts))) => {
                let (left, id) = (number(&parts[0]), number(&parts[1]));
                for hold in self.holds.iter_mut().filter(|hold| hold.token == token) {
                    hold.until = hold.until.max(from + left);
                    (hold.id, hold.told) = (id, now);
                }
            }
            (Kind::Renew(token), Err(error)) if is(error, "NOTHELD") => self.lose(token),
            (Kind::Release(token), Ok(_)) => self.releasing.retain(|its| its.token != token),
            (Kind::Release(token), Err(error)) if is(error, "NOTHELD") => {
                self.releasing.retain(|its| its.token != token);
            }
            (Kind::Cancel(owner), Ok(_)) => self.leaving.retain(|(_, its)| *its != owner),
            (Kind::Session, Ok(news)) => self.hear_news(now, call.sent, from, news),
            (Kind::Session, Err(_)) => (self.id, self.seen, self.blocks) = (0, 0, false),
            _ => {}
        }
        true
    }

    fn hear_taken(
        &mut self,
        now: Millis,
        from: Millis,
        keys: &'static [&'static str],
        owner: &str,
        answer: &Answer,
    ) {
        let at = self.wanted.iter().position(|its| its.owner == owner);
        let parts = match (answer, at) {
            (Ok(Reply::Array(parts)), _) => parts,
            (Err(error), Some(at)) if FAILURES.iter().any(|code| is(error, code)) => {
                return drop(self.wanted.remove(at));
            }
            (_, Some(at)) => return self.wanted[at].again = true,
            _ => return,
        };
        let id = number(parts.last().expect("an id"));
        let tokens: Vec<u64> = match &parts[0] {
            Reply::Integer(0) => Vec::new(),
            Reply::Array(tokens) => tokens.iter().map(number).collect(),
            token => vec![number(token)],
        };
        match at {
            Some(at) if tokens.is_empty() => self.wanted[at].id = id,
            Some(at) => {
                // Asked for again, its row says how long it lasts.
                let until = match self.wanted[at].asks {
                    1 => from + self.wanted[at].lease,
                    _ => 0,
                };
                let told: Vec<_> = tokens.into_iter().map(|token| (token, until)).collect();
                self.hold(now, at, id, &told);
            }
            None => {
                for (key, token) in keys.iter().zip(tokens) {
                    self.release_strange(key, owner, token, id, now + LONGEST_MS);
                }
            }
        }
    }

    /// Turns a wish into holds: the tokens of its keys, and until when they are believed in.
    fn hold(&mut self, now: Millis, at: usize, id: u64, told: &[(u64, Millis)]) {
        let wanted = self.wanted.remove(at);
        let held = wanted.keys.iter().zip(told);
        self.holds.extend(held.map(|(key, (token, until))| Held {
            key,
            owner: wanted.owner.clone(),
            limit: wanted.limit,
            permits: wanted.permits,
            token: *token,
            id,
            taken: false,
            lease: wanted.lease,
            told: now,
            until: *until,
            done: now + wanted.work,
        }));
    }

    /// Releases a token that a row names and that the program does not hold: of a wait that it has left, or half of what it asked
    /// for.
    fn release_strange(
        &mut self,
        key: &'static str,
        owner: &str,
        token: u64,
        id: u64,
        end: Millis,
    ) {
        let held = self.holds.iter().any(|its| its.token == token);
        let known = held || self.releasing.iter().any(|its| its.token == token);
        if !known && self.mistake != Some(Mistake::KeepsStrangeRows) {
            self.release(key, owner.to_string(), token, id, end);
        }
    }

    fn release(&mut self, key: &'static str, owner: String, token: u64, id: u64, end: Millis) {
        self.releasing.push(Releasing {
            key,
            owner,
            token,
            id,
            end,
        });
    }

    fn lose(&mut self, token: u64) {
        self.holds.retain(|hold| hold.token != token);
    }

    fn hear_news(&mut self, now: Millis, sent: Millis, from: Millis, news: &Reply) {
        let Reply::Array(parts) = news else {
            return;
        };
        let (id, last) = (number(&parts[0]), number(&parts[1]));
        if id != self.id {
            // Who has waited in another session asks again.
            for wanted in self
                .wanted
                .iter_mut()
                .filter(|its| its.id != 0 && its.id != id)
            {
                wanted.again = true;
            }
        }
        (self.id, self.seen, self.read) = (id, last, sent);
        let rows = rows(news);
        self.next = if rows.is_empty() { now + PAUSE_MS } else { now };
        if let Reply::Integer(left) = parts[2] {
            let its = |hold: &&mut Held| hold.id == id && hold.told <= sent && !hold.taken;
            for hold in self.holds.iter_mut().filter(its) {
                hold.until = hold.until.max(from + left);
            }
        }
        for row in &rows {
            self.hear_row(now, from, id, row, &rows);
        }
    }

    fn hear_row(&mut self, now: Millis, from: Millis, id: u64, row: &Row, all: &[Row]) {
        let wanted = self.wanted.iter().position(|its| its.owner == row.owner);
        let held = self.holds.iter().position(|its| its.token == row.token);
        match (row.word, held, wanted) {
            ("granted", Some(at), _) => {
                let hold = &mut self.holds[at];
                hold.until = hold.until.max(from + row.left);
                (hold.id, hold.taken) = (id, false);
            }
            ("granted", None, Some(at)) => {
                let of = |key: &&str| all.iter().find(|its| its.grants(key, &row.owner));
                let told = self.wanted[at].keys.iter().map(of);
                let told = told.map(|its| its.map(|its| (its.token, from + its.left)));
                match told.collect::<Option<Vec<_>>>() {
                    Some(told) => self.hold(now, at, id, &told),
                    // Some of the locks are lost again: all of them are asked for under another owner.
                    None => {
                        let owner = self.fresh_owner();
                        let wanted = &mut self.wanted[at];
                        (wanted.owner, wanted.again, wanted.asks) = (owner, true, 0);
                        self.hear_row(now, from, id, row, all);
                    }
                }
            }
            ("granted", None, None) => {
                let key = KEYS.into_iter().find(|key| *key == row.key).expect("a key");
                self.release_strange(key, &row.owner, row.token, id, now + row.left);
            }
            // It continues at another server, in no session there.
            ("moved", Some(at), _) => {
                let hold = &mut self.holds[at];
                if hold.id == id {
                    (hold.until, hold.id) = (hold.until.min(from + row.left), 0);
                }
            }
            ("taken", Some(at), _) => {
                let hold = &mut self.holds[at];
                (hold.until, hold.taken) = (hold.until.min(from + row.left), true);
            }
            ("released" | "expired" | "forced" | "removed", Some(_), _) => self.lose(row.token),
            ("replaced" | "wrongtype", _, Some(at)) => drop(self.wanted.remove(at)),
            ("timeout" | "cancelled" | "again", _, Some(at)) => self.wanted[at].again = true,
            _ => {}
        }
    }
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("this is no number: {other:?}"),
    }
}

fn is(error: &dlock_commands::error::Error, code: &str) -> bool {
    error.to_string().starts_with(code)
}
