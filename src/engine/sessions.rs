//! Holds that end with a connection.
//!
//! A session belongs to a connection of this run of the server, so none of this is saved or replicated: on a server
//! that was restarted or promoted such a hold lives on until its lease ends, and no client id of an earlier run can be
//! taken for one of this.

use super::{Name, Token};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// A hold that is tied to a connection.
#[derive(Debug, Clone)]
pub struct Session {
    /// The connection's client id.
    pub client: u64,
    /// The lock.
    pub name: Name,
    /// Who holds it.
    pub owner: Rc<[u8]>,
}

/// All of them, by the token of the hold: unlike the lock's name it never changes while the hold lasts.
#[derive(Debug, Default)]
pub struct Sessions {
    by_token: HashMap<Token, Session>,
    by_client: HashMap<u64, BTreeSet<Token>>,
    by_owner: HashMap<Rc<[u8]>, BTreeSet<Token>>,
}

impl Sessions {
    /// Whether there is none: then nothing of this costs anything.
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_token.len()
    }

    /// Ties a hold to a connection: the last one that asks has it.
    pub fn tie(&mut self, token: Token, session: Session) {
        self.untie(token);
        let (client, owner) = (session.client, session.owner.clone());
        self.by_client.entry(client).or_default().insert(token);
        self.by_owner.entry(owner).or_default().insert(token);
        self.by_token.insert(token, session);
    }

    /// The hold is gone, or no longer tied.
    #[inline]
    pub fn untie(&mut self, token: Token) -> Option<Session> {
        if self.is_empty() {
            return None;
        }
        self.take_out(token)
    }

    #[cold]
    fn take_out(&mut self, token: Token) -> Option<Session> {
        let session = self.by_token.remove(&token)?;
        if let Slot::Occupied(mut tokens) = self.by_client.entry(session.client) {
            tokens.get_mut().remove(&token);
            if tokens.get().is_empty() {
                tokens.remove();
            }
        }
        if let Slot::Occupied(mut tokens) = self.by_owner.entry(session.owner.clone()) {
            tokens.get_mut().remove(&token);
            if tokens.get().is_empty() {
                tokens.remove();
            }
        }
        Some(session)
    }

    /// The hold goes on under another token.
    #[inline]
    pub fn succeed(&mut self, old: Token, new: Token) {
        if let Some(session) = self.untie(old) {
            self.tie(new, session);
        }
    }

    /// The lock stands at another name now.
    pub fn rename(&mut self, token: Token, name: &Name) {
        if let Some(session) = self.by_token.get_mut(&token) {
            session.name = name.clone();
        }
    }

    /// Under what other name of its lock than this a hold is tied to a connection.
    pub fn strayed(&self, token: Token, name: &Name) -> Option<Name> {
        let session = self.by_token.get(&token);
        session
            .map(|session| session.name.clone())
            .filter(|tied| tied != name)
    }

    /// The connection that a hold is tied to.
    pub fn client(&self, token: Token) -> Option<u64> {
        self.by_token.get(&token).map(|session| session.client)
    }

    /// The connections that the owner's holds are tied to.
    pub fn clients_of<'s>(&'s self, owner: &[u8]) -> impl Iterator<Item = u64> + 's {
        let tokens = self.by_owner.get(owner).into_iter().flatten();
        tokens.filter_map(|token| self.client(*token))
    }

    /// The first hold after this token that is tied to a connection.
    pub fn next_of(&self, client: u64, after: Token) -> Option<(Token, Session)> {
        let token = *self.by_client.get(&client)?.range(after + 1..).next()?;
        Some((token, self.by_token.get(&token)?.clone()))
    }

    /// The values of a database (or of all) are gone, and the holds with them.
    pub fn flush(&mut self, db: Option<u32>) {
        self.untie_all(|name| db.map_or(true, |db| name.db == db));
    }

    /// The locks that this is true of are gone.
    pub fn untie_all(&mut self, gone: impl Fn(&Name) -> bool) {
        let tokens: Vec<Token> = self
            .by_token
            .iter()
            .filter(|(_, session)| gone(&session.name))
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            self.untie(token);
        }
    }

    /// Two databases were exchanged.
    pub fn swap(&mut self, one: u32, other: u32) {
        for session in self.by_token.values_mut() {
            let db = &mut session.name.db;
            *db = match *db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            };
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        *self = Sessions::default();
    }
}
