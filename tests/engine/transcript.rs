//! A conversation in a text file, run line by line.
//!
//! ```text
//! # a comment
//! ann: ACQUIRE shop alice 1000      a connection sends a command; `ann@1:` in database 1, `ann (script):` without waiting
//!   -> [#1, 1]                      and is answered; `#1` is a token wherever it stands, below that of `#2`
//! bob: ACQUIRE shop bert BLOCK 0
//!   -> waits
//! wait 999                          time passes; 999 ms in which nobody hears anything
//! wait 1
//!   bob <- [#2, 1]                  whoever was waiting hears something
//! ann dies                          the server notices the end of a connection
//! ann is cut off                    it has not noticed yet: answers are lost
//! shop-news <- granted #2 shop bert  the channel of a request that waits by one (NOTIFY) hears something
//! heartbeat                         the server looks for circles that have closed other than by a request
//! slot of shop leaves               and `returns`: the node may not change the lock outside of a command
//! ```
//! Other lines: `stall` (as `wait`, by a server that is busy elsewhere), `del`, `rename`, `move` (to another database),
//! `copy` (by DUMP and RESTORE), `set` (to a string), `flush`, `swap`, `config`, `pause`, `resume`, `crash` (the replica
//! takes over), `failover`, `restart`, `events`. What is expected may end in `...`: then only the beginning counts.

use crate::client::Client;
use crate::commands::Reply;
use crate::engine::{Event, Outcome};
use crate::error::Error;
use crate::invariants::{self, Broken};
use crate::picture::Picture;
use crate::world::{name, Op, World};
use std::collections::{BTreeMap, VecDeque};

/// Runs a transcript. Errors with the line that is not so.
pub fn check(text: &str) -> Result<(), String> {
    let mut transcript = Transcript::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" # ").next().unwrap_or(line).trim_end();
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| format!("line {}: {line}\n{what}", at + 1);
        match line.strip_prefix(' ') {
            Some(expected) => transcript.expect(expected.trim()).map_err(wrong)?,
            None => {
                transcript.silence().map_err(wrong)?;
                transcript.act(line).map_err(wrong)?;
            }
        }
    }
    transcript
        .silence()
        .map_err(|what| format!("at the end: {what}"))
}

struct Transcript {
    world: World,
    clients: BTreeMap<String, u64>,
    /// By the number that stands for each.
    tokens: BTreeMap<u64, u64>,
    /// What has been said and is still to be expected.
    said: VecDeque<String>,
    before: Picture,
}

impl Transcript {
    fn new() -> Transcript {
        let mut world = World::new(Default::default());
        let before = Picture::take(&mut world);
        Transcript {
            world,
            clients: BTreeMap::new(),
            tokens: BTreeMap::new(),
            said: VecDeque::new(),
            before,
        }
    }

    fn silence(&mut self) -> Result<(), String> {
        match self.said.pop_front() {
            None => Ok(()),
            Some(said) => Err(format!("before this, nobody expected: {said}")),
        }
    }

    fn expect(&mut self, expected: &str) -> Result<(), String> {
        let said = self.said.pop_front().ok_or("nothing was said")?;
        match self.matches(expected, &said) {
            true => Ok(()),
            false => Err(format!("but it was: {said}")),
        }
    }

    /// Compares letter by letter; a `#1` stands for a token, and a higher number for a higher one.
    fn matches(&mut self, mut expected: &str, mut said: &str) -> bool {
        loop {
            if expected == "..." || (expected.is_empty() && said.is_empty()) {
                return true;
            }
            if let Some(rest) = expected.strip_prefix('#') {
                let (label, after) = rest.split_at(word_end(rest));
                let (token, left) = said.split_at(word_end(said));
                let (Ok(label), Ok(token)) = (label.parse(), token.parse()) else {
                    return false;
                };
                let agrees = |(other, its): (&u64, &u64)| other.cmp(&label) == its.cmp(&token);
                if !self.tokens.iter().all(agrees) {
                    return false;
                }
                self.tokens.insert(label, token);
                (expected, said) = (after, left);
                continue;
            }
            let (Some(one), Some(other)) = (expected.chars().next(), said.chars().next()) else {
                return false;
            };
            if one != other {
                return false;
            }
            (expected, said) = (&expected[one.len_utf8()..], &said[other.len_utf8()..]);
        }
    }

    fn act(&mut self, line: &str) -> Result<(), String> {
        match line.split_once(": ") {
            Some((who, words)) if who != "events" => self.command(who, words)?,
            Some((_, events)) => return self.events(events),
            None => self.happen(&line.split_whitespace().collect::<Vec<_>>())?,
        }
        if line.starts_with("stall") {
            // What is overdue comes with the next line.
            return Ok(());
        }
        self.world.tick();
        for news in std::mem::take(&mut self.world.news) {
            let who = self.clients.iter().find(|(_, id)| **id == news.client);
            let who = who.map_or("nobody", |(name, _)| name.as_str());
            self.said
                .push_back(format!("{who} <- {}", outcome(&news.outcome)));
        }
        for (_, message) in std::mem::take(&mut self.world.messages) {
            let text = |bytes: &[u8]| crate::error::escaped(bytes, 64);
            let what = match &message.outcome {
                Outcome::Granted(grant) => format!("granted {}", grant.token),
                Outcome::Null => "timeout".into(),
                Outcome::Cancelled => "cancelled".into(),
                Outcome::Moved => "moved".into(),
                other => outcome(other),
            };
            self.said.push_back(format!(
                "{} <- {what} {} {}",
                text(&message.channel),
                text(&message.name.key),
                text(&message.owner)
            ));
        }
        let after = Picture::take(&mut self.world);
        let checked = invariants::check(&self.before, &after, false);
        self.before = after;
        let checked = checked.and_then(|()| invariants::round_trip(&self.world));
        checked.map_err(|Broken(rule, what)| format!("{rule:?}: {what}"))
    }

    fn command(&mut self, who: &str, words: &str) -> Result<(), String> {
        let (who, script) = match who.strip_suffix(" (script)") {
            Some(who) => (who, true),
            None => (who, false),
        };
        let (who, db) = who.split_once('@').unwrap_or((who, "0"));
        let db = db.parse().map_err(|_| "no such database")?;
        let next = self.clients.len() as u64 + 1;
        let id = *self.clients.entry(who.to_string()).or_insert(next);
        let words: Vec<Vec<u8>> = words
            .split_whitespace()
            .map(|word| self.bytes(word))
            .collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let client = if script {
            Client::script(id)
        } else {
            Client::connection(id)
        };
        let by_channel = words
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"NOTIFY"));
        let answer = match self.world.send(client, db, &words) {
            // The number of the wait is another in each run.
            Ok(Reply::Array(mut parts)) if by_channel => {
                parts.truncate(2);
                shown(&Reply::Array(parts))
            }
            Ok(reply) => shown(&reply),
            Err(error) => error.to_string(),
        };
        self.said.push_back(format!("-> {answer}"));
        Ok(())
    }

    /// A word's bytes: `#1` is a token, `''` is empty, `\xhh` a byte, `(99*x)` 99 times x.
    fn bytes(&self, word: &str) -> Vec<u8> {
        let label = word.strip_prefix('#').and_then(|label| label.parse().ok());
        if let Some(token) = label.and_then(|label: u64| self.tokens.get(&label)) {
            return token.to_string().into_bytes();
        }
        let times = word
            .strip_prefix('(')
            .and_then(|word| word.strip_suffix(')'));
        if let Some((count, what)) = times.and_then(|word| word.split_once('*')) {
            return what.repeat(count.parse().unwrap_or(0)).into_bytes();
        }
        let mut rest = if word == "''" { "" } else { word };
        let mut bytes = Vec::new();
        while let Some((before, after)) = rest.split_once("\\x") {
            bytes.extend_from_slice(before.as_bytes());
            let (digits, after) = after.split_at(2.min(after.len()));
            bytes.extend(u8::from_str_radix(digits, 16).ok());
            rest = after;
        }
        bytes.extend_from_slice(rest.as_bytes());
        bytes
    }

    fn happen(&mut self, words: &[&str]) -> Result<(), String> {
        let world = &mut self.world;
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is no number"))
        };
        match words {
            ["wait", ms] => {
                world.pass(number(ms)?);
                if world.writable {
                    world.expire_keys();
                }
            }
            ["stall", ms] => world.jump(number(ms)?),
            ["heartbeat"] => world.heartbeat(),
            [who, "dies"] => world.dies(*self.clients.get(*who).ok_or("who?")?),
            [who, "is", "cut", "off"] => {
                world.cut.insert(*self.clients.get(*who).ok_or("who?")?);
            }
            ["del", key] => world.alter(Op::Del(name(0, key))),
            ["set", key] => world.alter(Op::Overwrite(name(0, key))),
            ["rename", from, to] => world.alter(Op::Rename(name(0, from), name(0, to))),
            ["move", key, db] => {
                world.alter(Op::Rename(name(0, key), name(number(db)? as u32, key)))
            }
            ["copy", from, to] => {
                let bytes = world.dump(&name(0, from)).ok_or("nothing to copy")?;
                world.alter(Op::Restore(name(0, to), bytes));
            }
            ["flush"] => world.alter(Op::Flush(None)),
            ["swap", one, other] => {
                world.alter(Op::Swap(number(one)? as u32, number(other)? as u32))
            }
            ["slot", "of", key, "leaves"] => {
                world.primary.keys.away.insert(name(0, key));
            }
            ["slot", "of", key, "returns"] => {
                world.primary.keys.away.remove(&name(0, key));
                world.perform();
            }
            ["pause"] => world.writable = false,
            ["resume"] => world.resume(),
            ["failover"] => world.failover(),
            ["restart"] => world.restart(),
            ["crash"] => world.crash(0, 0),
            ["crash", "quarantine", ms] => world.crash(0, number(ms)?),
            ["config", name, value] => self.configure(name, value)?,
            _ => return Err("nobody knows what this means".into()),
        }
        Ok(())
    }

    fn configure(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = value.parse::<u64>().unwrap_or(0);
        let mut known = true;
        self.world.configure(|policy| match name {
            "grants" => policy.grants = value == "yes",
            "claim-window-ms" => policy.claim_window_ms = number,
            "max-lease-ms" => policy.max_lease_ms = number,
            "max-hold-ms" => policy.max_hold_ms = number,
            "max-queue" => policy.max_queue = number as usize,
            "max-places" => policy.max_places = number as usize,
            "max-waiters" => policy.max_waiters = number as usize,
            "max-holders" => policy.max_holders = number as usize,
            "deadlock-detection" => policy.deadlock_detection = value == "yes",
            "deadlock-max-steps" => policy.deadlock_max_steps = number as usize,
            "quarantine-ms" => policy.max_lease_ms = policy.max_lease_ms.min(number),
            _ => known = false,
        });
        known.then_some(()).ok_or(format!("no option {name}"))
    }

    /// Compares what observers were told since the last time, in order.
    fn events(&mut self, expected: &str) -> Result<(), String> {
        let told = std::mem::take(&mut self.world.events);
        let words: Vec<String> = told.iter().map(|(_, event)| described(event)).collect();
        let told = words.join(", ");
        match self.matches(expected, &told) {
            true => Ok(()),
            false => Err(format!("but it was: {told}")),
        }
    }
}

fn word_end(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(text.len())
}

fn described(event: &Event) -> String {
    match event {
        Event::Acquired(token) => format!("acquired {token}"),
        Event::Ended(end, token) => format!("{} {token}", end.word()),
        Event::Queued => "queued".into(),
        Event::Timeout => "timeout".into(),
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(grant) => format!("[{}, {}]", grant.token, grant.holds),
        Outcome::GrantedAll(grants) => {
            let tokens: Vec<String> = grants.iter().map(|grant| grant.token.to_string()).collect();
            format!("[{}]", tokens.join(", "))
        }
        Outcome::Null | Outcome::Cancelled | Outcome::Moved => "null".into(),
        Outcome::Refused(error) => Error::to_string(error),
    }
}

fn shown(reply: &Reply) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match reply {
        Reply::List(_) => "a page".into(),
        Reply::Run => "runs".into(),
        Reply::Grant(token, holds, None) => format!("[{token}, {holds}]"),
        Reply::Grant(token, holds, Some(owner)) => format!("[{token}, {holds}, {owner}]"),
        Reply::Wait(_, None) => "waits".into(),
        Reply::Wait(_, Some(owner)) => format!("waits as {owner}"),
        Reply::NullArray | Reply::Null => "null".into(),
        Reply::Ok => "OK".into(),
        Reply::Integer(number) => number.to_string(),
        Reply::Text(text) => (*text).into(),
        Reply::Bulk(bytes) => crate::error::escaped(bytes, 64),
        Reply::Array(items) => format!("[{}]", list(items.iter().map(shown).collect())),
        Reply::Map(fields) => {
            format!(
                "{{{}}}",
                list(
                    fields
                        .iter()
                        .map(|(name, value)| format!("{name}: {}", shown(value)))
                        .collect()
                )
            )
        }
    }
}
