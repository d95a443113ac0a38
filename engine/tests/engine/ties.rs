//! The answers to `DLOCK.KEEP`, compared with the ties: a client that follows the contract believes in no hold that it has lost.

use crate::invariants::{Broken, Rule};
use crate::script::{Act, Command};
use crate::server;
use crate::snapshot::{key, text, Holder, Picture};
use crate::world::{name, World};
use dlock_commands::error::Error;
use dlock_commands::Reply;
use dlock_engine::{Millis, Name, Party, TieId, Token, WallMs};
use std::collections::{BTreeMap, BTreeSet};

/// A tie in the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Tied {
    pub client: u64,
    pub name: Name,
    pub owner: Vec<u8>,
    pub auto: bool,
    /// When the hold's lease ends, as far as the tie knows.
    pub end: WallMs,
    /// When the server renews it next, on the steady clock.
    pub due: Option<Millis>,
}

/// Returns when a renewal is due, from its debug form.
fn due(text: &str) -> Option<Millis> {
    let (_, at) = text.split_once("SteadyMs(")?;
    at.split(')').next()?.parse().ok()
}

/// Returns all ties, by lock and token.
pub fn ties(world: &World) -> BTreeMap<(Name, Token), Tied> {
    let ties = &world.primary.engine.holds().ties;
    let mut found = BTreeMap::new();
    let mut last = TieId::default();
    while let Some((id, tie)) = ties.after(last) {
        last = id;
        let tied = Tied {
            client: match tie.party {
                Party::Connection(client) => client.0,
                Party::Session(_) => continue,
            },
            name: tie.name().to_owned(),
            owner: tie.owner().to_vec(),
            auto: tie.auto.is_some(),
            end: tie.end,
            due: tie.auto.and_then(|auto| due(&format!("{:?}", auto.next))),
        };
        found.insert((tied.name.clone(), id.token), tied);
    }
    found
}

/// Checks that a command changes no tie of a hold at a key that it does not name.
fn ties_stay(act: &Act, before: &Picture, after: &Picture) -> Result<(), Broken> {
    let keep = |command: &Command| command.words[0].eq_ignore_ascii_case("KEEP");
    // A renewal may have been due.
    let at_once = (before.now, before.steady) == (after.now, after.steady);
    if !matches!(act, Act::Command(command) if at_once && !keep(command)) {
        return Ok(());
    }
    let named = server::keys_of(act).into_iter();
    let named: BTreeSet<Name> = named.map(|(db, key)| name(db, &key)).collect();
    for (name, row) in before
        .rows
        .iter()
        .filter(|(name, _)| !named.contains(*name))
    {
        for hold in &row.holders {
            let after = after.rows.get(name).and_then(|row| row.hold(&hold.owner));
            let changed = |after: &&Holder| {
                after.token == hold.token
                    && (after.ephemeral, after.auto) != (hold.ephemeral, hold.auto)
            };
            if let Some(after) = after.filter(changed) {
                let what = format!("{}: {hold:?} became {after:?}", key(name));
                return Err(Broken(Rule::TiesStay, what));
            }
        }
    }
    Ok(())
}

/// Losses that connections have not learned yet: by connection, lock and token.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// Losses that they must learn.
    must: BTreeSet<(u64, Name, Token)>,
    /// Losses that they may learn: their own command caused them, or they came back.
    may: BTreeSet<(u64, Name, Token)>,
    /// Losses that a demoted server may report once it decides again.
    elsewhere: BTreeSet<(u64, Name, Token)>,
    /// Grants whose first ties no picture shows, by key and token: they began and ended between two of them. And the connection
    /// of each then.
    fleeting: BTreeMap<(Vec<u8>, Token), Option<u64>>,
}

impl Losses {
    /// Examines one step and its answer.
    pub fn look(
        &mut self,
        act: &Act,
        answer: Option<&Result<Reply, Error>>,
        before: &Picture,
        after: &Picture,
    ) -> Result<(), Broken> {
        ties_stay(act, before, after)?;
        if matches!(act, Act::Failover | Act::Restart | Act::Crash { .. }) {
            // Another server decides, or this one starts again: to that one these are other connections.
            let ties = before.ties.iter();
            let ties = ties.map(|((name, token), tied)| (tied.client, name.clone(), *token));
            self.elsewhere.extend(ties);
            self.elsewhere.append(&mut self.must);
            self.elsewhere.append(&mut self.may);
            return Ok(());
        }
        let (who, keeps) = match act {
            Act::Command(command) => (
                // A script that the connection runs counts, too.
                Some(command.client),
                command.words[0].eq_ignore_ascii_case("KEEP"),
            ),
            _ => (None, false),
        };
        for (hold @ (_, token), tied) in &before.ties {
            let Tied {
                client,
                name,
                owner,
                ..
            } = tied;
            let its = |tie: &Tied| (tie.client, &tie.name, &tie.owner) == (*client, name, owner);
            if !after.ties.get(hold).is_some_and(its) {
                let lost = (*client, name.clone(), *token);
                // An upgrade goes on under another token, possibly after a renewal.
                let upgraded = tied.end > after.now || tied.auto;
                let goes_on = upgraded && after.ties.values().any(its);
                match goes_on || who == Some(*client) && !keeps {
                    true => self.may.insert(lost),
                    false => self.must.insert(lost),
                };
            }
        }
        for (name, _, token) in &after.grants {
            let tied = after.ties.get(&(name.clone(), *token));
            let hold = (name.key.to_vec(), *token);
            self.fleeting.insert(hold, tied.map(|tied| tied.client));
        }
        for ((name, token), tied) in &after.ties {
            let lost = (tied.client, name.clone(), *token);
            // A grant that was given back: the tie was never lost.
            if self.must.remove(&lost) {
                self.may.insert(lost);
            }
        }
        let gone = |lost: &(u64, Name, Token)| after.ended.contains(&lost.0);
        self.must.retain(|lost| !gone(lost));
        self.may.retain(|lost| !gone(lost));
        match (who.filter(|_| keeps), answer) {
            (Some(client), Some(Ok(Reply::Array(told)))) => self.told(client, told, before, after),
            _ => Ok(()),
        }
    }

    /// Returns true if this grant's tie to this connection, if there was one, is in no picture.
    fn began_elsewhere(&self, hold: &(Vec<u8>, Token), client: u64) -> bool {
        let tied = self.fleeting.get(hold);
        tied.is_some_and(|tied| *tied != Some(client))
    }

    /// Checks an answer to KEEP. After it the server may have renewed and ended holds in this instant.
    fn told(
        &mut self,
        client: u64,
        told: &[Reply],
        before: &Picture,
        after: &Picture,
    ) -> Result<(), Broken> {
        let broken = |what: String| Err(Broken(Rule::KeepTold, format!("{client}: {what}")));
        let [Reply::Integer(ties), left, Reply::Array(lost)] = told else {
            return broken(format!("{told:?}"));
        };
        let now = after.now;
        let its = |picture: &Picture| -> Vec<Tied> {
            let its = picture.ties.values();
            let lives = |tie: &&Tied| tie.client == client && tie.end >= now;
            its.filter(lives).cloned().collect()
        };
        let (had, has) = (its(before), its(after));
        if !(has.len()..=had.len()).contains(&(*ties as usize)) {
            return broken(format!("{ties} ties, {} to {}", has.len(), had.len()));
        }
        let first = |ties: &[Tied]| {
            let ends = ties.iter().filter(|tie| tie.auto).map(|tie| tie.end);
            ends.min().map(|end| end.since(now))
        };
        let left = match left {
            Reply::Integer(left) => Some(*left),
            _ => None,
        };
        // A client that believes in its holds for that long believes in none that has ended.
        let believed = first(&has).is_none_or(|end| left.is_some_and(|left| left <= end));
        let told = first(&had).map_or(left.is_none(), |end| left.is_some_and(|left| left >= end));
        if !believed || !told {
            let (had, has) = (first(&had), first(&has));
            return broken(format!("{left:?} is left, of {had:?} to {has:?}"));
        }
        let mut heard = BTreeSet::new();
        for one in lost {
            let Reply::Array(one) = one else {
                return broken(format!("{one:?}"));
            };
            let [Reply::Bulk(key), Reply::Integer(token), Reply::Text(_)] = &one[..] else {
                return broken(format!("{one:?}"));
            };
            heard.insert((key.clone(), Token(*token)));
        }
        let of = |lost: &(u64, Name, Token)| (lost.1.key.to_vec(), lost.2);
        for missed in self.must.iter().filter(|lost| lost.0 == client) {
            // A hold that was upgraded and then lost is reported with its last token.
            let upgraded = |hold: &(Vec<u8>, Token)| {
                *hold.0 == *missed.1.key && self.began_elsewhere(hold, client)
            };
            if !heard.contains(&of(missed)) && !heard.iter().any(upgraded) {
                return broken(format!(
                    "the answer lacks {} {:?}",
                    key(&missed.1),
                    missed.2
                ));
            }
        }
        let known = |lost: &(Vec<u8>, Token)| {
            let mut all = self.must.iter().chain(&self.may).chain(&self.elsewhere);
            let knows = all.any(|other| other.0 == client && of(other) == *lost);
            knows || self.began_elsewhere(lost, client)
        };
        if let Some((name, token)) = heard.iter().find(|lost| !known(lost)) {
            return broken(format!("the answer has {} {token:?}", text(name)));
        }
        self.must.retain(|lost| lost.0 != client);
        self.may.retain(|lost| lost.0 != client);
        Ok(())
    }
}
