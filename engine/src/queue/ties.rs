//! Holds that are tied to a connection: they end with it (`SESSION`), or are renewed by the server as long as it is open
//! (`AUTO`).
//!
//! A tie belongs to a connection of this run of the server, so none of this is saved or replicated: on a server
//! that was restarted or promoted such a hold lives on until its lease ends, and no client id of an earlier run can be
//! taken for one of this. It belongs to the lock's name as well: a hold that comes to another name is tied to nothing there.

use super::deadlines::DueKey;
use crate::broken;
use crate::types::{ClientId, Millis, Name, NameRef, SteadyMs, Token};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
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
    /// For how long it renews, and from when on; none without bound.
    pub bound: Option<(SteadyMs, Millis)>,
    /// When it renews next.
    pub next: Renewal,
}

/// When the server renews a hold next.
#[derive(Debug, Clone, Copy)]
pub enum Renewal {
    /// Then.
    At(DueKey<SteadyMs>),
    /// As soon as it can.
    Due,
    /// Not any more: its bound has passed, or the hold has reached the age that it may have. It is tied all the same.
    Stopped,
}

impl Tie {
    /// Whether both say the same of a hold, whenever it is renewed next.
    pub fn says_as(&self, other: &Tie) -> bool {
        let auto = |tie: &Tie| tie.auto.map(|auto| (auto.lease, auto.bound));
        let said = |tie: &Tie| (tie.client, tie.session, auto(tie));
        said(self) == said(other)
    }

    /// Whether the server renews the hold.
    pub fn renews(&self) -> bool {
        self.auto
            .is_some_and(|auto| !matches!(auto.next, Renewal::Stopped))
    }
}

/// A connection that something is tied to.
#[derive(Debug, Default)]
struct Connection {
    tokens: BTreeSet<Token>,
    // Whether it is blocked by a request, and when it last was.
    waits: bool,
    waited: SteadyMs,
}

/// All ties, by the token of the hold. RESTORE can bring a second hold under that token to another lock: it is not the one that
/// is tied, so who asks for a hold of a lock names that lock.
#[derive(Debug, Default)]
pub struct Ties {
    by_token: BTreeMap<Token, Tie>,
    by_client: HashMap<ClientId, Connection>,
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

    /// The first tie above this token.
    pub fn after(&self, token: Token) -> Option<(Token, &Tie)> {
        let mut rest = self.by_token.range((Excluded(token), Unbounded));
        rest.next().map(|(token, tie)| (*token, tie))
    }

    /// Ties a hold. It is tied by nothing.
    pub fn tie(&mut self, token: Token, tie: Tie) {
        self.sessions += usize::from(tie.session);
        self.autos += usize::from(tie.renews());
        let connection = self.by_client.entry(tie.client).or_default();
        connection.tokens.insert(token);
        self.by_token.insert(token, tie);
    }

    /// Unties a hold. The due entry of its next renewal is the caller's to clear.
    pub fn untie(&mut self, token: Token) -> Option<Tie> {
        let tie = self.by_token.remove(&token)?;
        self.sessions -= usize::from(tie.session);
        self.autos -= usize::from(tie.renews());
        if let Slot::Occupied(mut connection) = self.by_client.entry(tie.client) {
            connection.get_mut().tokens.remove(&token);
            if connection.get().tokens.is_empty() {
                connection.remove();
            }
        }
        Some(tie)
    }

    /// Notes when the server renews a hold next.
    pub fn renew(&mut self, token: Token, next: Renewal) {
        let Some(tie) = self.by_token.get_mut(&token) else {
            return broken!("a hold that is renewed is tied");
        };
        self.autos -= usize::from(tie.renews());
        if let Some(auto) = &mut tie.auto {
            auto.next = next;
        }
        self.autos += usize::from(tie.renews());
    }

    /// Each renewal gives at least this lease from now on.
    pub fn lengthen(&mut self, name: NameRef, token: Token, lease: Millis) {
        let tie = self.by_token.get_mut(&token);
        if let Some(tie) = tie.filter(|tie| tie.name.as_ref() == name) {
            if let Some(auto) = &mut tie.auto {
                auto.lease = auto.lease.max(lease);
            }
        }
    }

    /// Whether the time has passed for which a hold was to be renewed. It does not while the connection waits, and begins anew
    /// when that ends.
    pub fn is_over(&self, tie: &Tie, now: SteadyMs) -> bool {
        let bound = tie.auto.and_then(|auto| auto.bound);
        let connection = self.by_client.get(&tie.client);
        match (bound, connection) {
            (Some((since, ms)), Some(connection)) => {
                !connection.waits && since.max(connection.waited).after(ms) <= now
            }
            _ => false,
        }
    }

    /// A connection begins to wait for a request, or has waited.
    pub fn waits(&mut self, client: ClientId, waits: bool, now: SteadyMs) {
        if self.by_token.is_empty() {
            return;
        }
        if let Some(connection) = self.by_client.get_mut(&client) {
            connection.waits = waits;
            connection.waited = now;
        }
    }

    /// The first hold above this token that is tied to a connection.
    pub fn next_of(&self, client: ClientId, after: Token) -> Option<Token> {
        let tokens = &self.by_client.get(&client)?.tokens;
        tokens.range(Token(after.0 + 1)..).next().copied()
    }

    /// The holds of the locks that this is true of.
    pub fn of(&self, chosen: impl Fn(&Name) -> bool) -> Vec<Token> {
        let ties = self.by_token.iter().filter(|(_, tie)| chosen(&tie.name));
        ties.map(|(token, _)| *token).collect()
    }
}
