//! Holds that are tied to a connection: they end with it (`SESSION`), or are renewed by the server as long as it is open
//! (`AUTO`).
//!
//! A tie belongs to a connection of this run of the server, so none of this is saved or replicated: on a server
//! that was restarted or promoted such a hold lives on until its lease ends, and no client id of an earlier run can be
//! taken for one of this.

use super::deadlines::DueKey;
use crate::engine::types::{ClientId, Millis, Name, NameRef, SteadyMs, Token};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// What ties a hold to a connection.
#[derive(Debug, Clone)]
pub struct Tie {
    /// The connection.
    pub client: ClientId,
    /// The lock.
    pub name: Name,
    /// Who holds it.
    pub owner: Rc<[u8]>,
    /// Whether the hold ends with the connection.
    pub session: bool,
    /// Whether the server renews the hold.
    pub auto: Option<Auto>,
}

/// How the server renews a hold.
#[derive(Debug, Clone, Copy)]
pub struct Auto {
    /// The lease that each renewal gives.
    pub lease: Millis,
    /// Until when it renews; none without bound.
    pub until: Option<SteadyMs>,
    /// The due entry of the next renewal; none while one is due.
    pub due: Option<DueKey<SteadyMs>>,
}

/// All ties, by the token of the hold: unlike the lock's name it never changes while the hold lasts. RESTORE can bring a second
/// hold under that token to another lock: it is not the one that is tied, so who asks for a hold of a lock names that lock.
#[derive(Debug, Default)]
pub struct Ties {
    by_token: HashMap<Token, Tie>,
    by_client: HashMap<ClientId, BTreeSet<Token>>,
    sessions: usize,
    autos: usize,
}

impl Ties {
    /// Whether there is none: then nothing of this costs anything.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// How many holds end with a connection.
    pub fn sessions(&self) -> usize {
        self.sessions
    }

    /// How many holds the server renews.
    pub fn autos(&self) -> usize {
        self.autos
    }

    /// What is tied under this token.
    pub fn get(&self, token: Token) -> Option<&Tie> {
        self.by_token.get(&token)
    }

    /// What the hold of this lock is tied by.
    pub fn at(&self, name: NameRef, token: Token) -> Option<&Tie> {
        self.get(token).filter(|tie| tie.name.as_ref() == name)
    }

    /// Ties a hold. It is tied by nothing.
    pub fn tie(&mut self, token: Token, tie: Tie) {
        self.sessions += usize::from(tie.session);
        self.autos += usize::from(tie.auto.is_some());
        self.by_client.entry(tie.client).or_default().insert(token);
        self.by_token.insert(token, tie);
    }

    /// Unties a hold. The due entry of its next renewal is the caller's to clear.
    pub fn untie(&mut self, token: Token) -> Option<Tie> {
        let tie = self.by_token.remove(&token)?;
        self.sessions -= usize::from(tie.session);
        self.autos -= usize::from(tie.auto.is_some());
        if let Slot::Occupied(mut tokens) = self.by_client.entry(tie.client) {
            tokens.get_mut().remove(&token);
            if tokens.get().is_empty() {
                tokens.remove();
            }
        }
        Some(tie)
    }

    /// How the server renews a hold.
    pub fn auto_mut(&mut self, token: Token) -> Option<&mut Auto> {
        self.by_token.get_mut(&token)?.auto.as_mut()
    }

    /// The lock has another name now.
    pub fn rename(&mut self, token: Token, name: &Name) {
        if let Some(tie) = self.by_token.get_mut(&token) {
            tie.name = name.clone();
        }
    }

    /// Under what other name of its lock than this a hold is tied.
    pub fn strayed(&self, token: Token, name: &Name) -> Option<Name> {
        let tie = self.by_token.get(&token);
        tie.map(|tie| tie.name.clone()).filter(|tied| tied != name)
    }

    /// The first hold above this token that is tied to a connection.
    pub fn next_of(&self, client: ClientId, after: Token) -> Option<Token> {
        let tokens = self.by_client.get(&client)?;
        tokens.range(Token(after.0 + 1)..).next().copied()
    }

    /// The holds of the locks that this is true of.
    pub fn of(&self, chosen: impl Fn(&Name) -> bool) -> Vec<Token> {
        let ties = self.by_token.iter().filter(|(_, tie)| chosen(&tie.name));
        ties.map(|(token, _)| *token).collect()
    }

    /// Two databases were exchanged.
    pub fn swap(&mut self, one: u32, other: u32) {
        for tie in self.by_token.values_mut() {
            let db = &mut tie.name.db;
            *db = match *db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            };
        }
    }
}
