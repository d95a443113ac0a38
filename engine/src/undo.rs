//! What a grant has changed of a lock, for as long as its connection may not have been told of it. If it was not, everything is
//! made as if the lock had not been granted.

use super::lock::Hold;
use super::queue::{Place, Tie};
use super::types::{Arrival, ClientId, Grant, Limit, Name, Token, WallMs};
use std::rc::Rc;

/// What a grant to a waiting connection has changed of one lock.
#[derive(Debug, Clone)]
pub struct Undo {
    /// The lock.
    pub name: Name,
    /// Whose grant it was.
    pub owner: Rc<[u8]>,
    /// What was granted.
    pub grant: Grant,
    /// The owner's hold before; none if it is a new one.
    pub before: Option<Held>,
    /// The hold as the grant made it.
    pub after: Held,
    /// What tied the hold before and after it.
    pub ties: [Option<Tie>; 2],
    /// Whether a later command, or anything else than the server's own renewals, keeps it from being undone: so where replicas
    /// have not confirmed it.
    pub only_untouched: bool,
    /// The ticket that was used, if its owner had it by `CLAIM`, and its number.
    pub ticket: Option<(Arrival, Box<Place>)>,
}

/// An owner's hold at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The token.
    pub token: Token,
    /// The limit.
    pub limit: Limit,
    /// The hold count.
    pub holds: u32,
    /// When it ends.
    pub deadline: WallMs,
    /// The connection that last took or entered it.
    pub client: ClientId,
}

impl Held {
    /// Of a hold.
    pub fn of(hold: &Hold) -> Held {
        Held {
            token: hold.token,
            limit: hold.limit,
            holds: hold.holds,
            deadline: hold.deadline,
            client: hold.client,
        }
    }
}

impl Undo {
    /// The hold as it is to be, where it is not to end: with what it counts without this grant, and a deadline that is never
    /// made earlier. Its limit and its token are those from before, unless a later command has found it as it is now: then
    /// somebody has been told of them.
    pub fn restore(&self, hold: Held, holds: u32) -> Held {
        let now = Held { holds, ..hold };
        match self.before {
            Some(before) if hold == self.after => Held {
                holds,
                deadline: hold.deadline,
                ..before
            },
            _ => now,
        }
    }
}
