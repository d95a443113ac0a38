//! Who can never get what is waited for: the definition of a deadlock, played through on a whole [`Picture`] as plainly as
//! can be.
//!
//! A wait is *stuck* if it would still stand after every owner who can still act had given back everything it holds and the
//! queues had been served, and so on until nothing moves. Who can act is a matter of which connections are an owner's
//! own, and of that the engine knows only a part: it remembers for each hold the connection that took it, but has no index of
//! all holds of an owner, and a connection that is blocked for another owner may come free later. So there are two
//! readings, and the engine stands between them: it must find what is stuck by the one that sees the most ways out, and may
//! refuse only what is stuck by the one that sees the fewest.

use crate::engine::{Limit, Name};
use crate::invariants::allows;
use crate::picture::{Holder, Picture, Place, Row};
use crate::world::Waiting;
use std::collections::BTreeSet;

/// Which connections an owner can act by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All that took or entered any of its holds, and also such as are blocked now and will not be when their own wait has
    /// been served.
    Wide,
    /// For each hold the one that took or entered it last, and those that sessions are tied to; none that is blocked now.
    Narrow,
}

/// The waits that can never end, as indices of the picture's.
pub fn stuck(picture: &Picture, reading: Reading) -> BTreeSet<usize> {
    let mut play = Play {
        picture,
        reading,
        served: BTreeSet::new(),
    };
    loop {
        let more: Vec<usize> = (0..picture.waits.len())
            .filter(|at| !play.served.contains(at) && play.serves(*at))
            .collect();
        if more.is_empty() {
            break;
        }
        play.served.extend(more);
    }
    (0..picture.waits.len())
        .filter(|at| !play.served.contains(at))
        .collect()
}

/// Whether this request, if it waited, could never be granted.
pub fn would_be_stuck(picture: &Picture, asked: &Waiting, reading: Reading) -> bool {
    let mut then = picture.clone();
    for name in &asked.names {
        let row = then.rows.entry(name.clone()).or_default();
        let held = row.holders.iter().find(|hold| hold.owner == asked.owner);
        let place = Place {
            owner: asked.owner.clone(),
            limit: asked.limit,
            present: true,
            until: None,
        };
        let known = |place: &&mut Place| place.owner == asked.owner;
        let upgrade = held.is_some_and(|hold| asked.limit < hold.limit);
        if upgrade && asked.names.len() > 1 && compatible(&row.holders, &place.owner, asked.limit) {
            continue;
        }
        let joins = match upgrade {
            true => row.upgrade.as_mut(),
            false => row.queue.iter_mut().find(known),
        };
        match joins {
            Some(place) => {
                place.limit = place.limit.min(asked.limit);
                place.present = true;
            }
            None if upgrade => row.upgrade = Some(place),
            // A holder enters its lock once more; in quarantine it waits for that, before the others.
            None if held.is_some() && picture.granting => {}
            None if held.is_some() => row.queue.insert(0, place),
            None => row.queue.push(place),
        }
    }
    then.waits.push(asked.clone());
    stuck(&then, reading).contains(&picture.waits.len())
}

/// Whether this request was refused because another holder waits to upgrade the lock that it would upgrade.
pub fn second_upgrade(picture: &Picture, asked: &Waiting) -> bool {
    asked.names.iter().any(|name| {
        let row = picture.rows.get(name);
        let other = |row: &&Row| {
            let other = row.upgrade.as_ref();
            other.is_some_and(|place| place.owner != asked.owner)
        };
        let mine = |hold: &Holder| hold.owner == asked.owner && asked.limit < hold.limit;
        row.filter(other)
            .is_some_and(|row| row.holders.iter().any(mine))
    })
}

/// The granting rule, among these holders.
fn compatible<'h>(
    holders: impl IntoIterator<Item = &'h Holder>,
    owner: &[u8],
    limit: Limit,
) -> bool {
    let others: Vec<&Holder> = holders
        .into_iter()
        .filter(|hold| hold.owner != owner)
        .collect();
    let count = others.len() + 1;
    count == 1 || (allows(limit, count) && others.iter().all(|hold| allows(hold.limit, count)))
}

struct Play<'p> {
    picture: &'p Picture,
    reading: Reading,
    /// The waits that have been served.
    served: BTreeSet<usize>,
}

impl Play<'_> {
    /// The waits of an owner, and whether each has been served.
    fn waits_of<'s>(&'s self, owner: &'s [u8]) -> impl Iterator<Item = (bool, &'s Waiting)> {
        let waits = self.picture.waits.iter().enumerate();
        waits
            .filter(move |(_, wait)| wait.owner == owner)
            .map(|(at, wait)| (self.served.contains(&at), wait))
    }

    /// Whether the owner can act by this connection.
    fn free(&self, owner: &[u8], client: u64) -> bool {
        let waits = self.picture.waits.iter().enumerate();
        let holds_up = |(at, wait): (usize, &Waiting)| {
            let over = self.reading == Reading::Wide && self.served.contains(&at);
            let its = wait.client == client && (wait.channel.is_none() || wait.owner == owner);
            its && !over
        };
        client != 0 && !self.picture.ended.contains(&client) && !{ waits }.any(holds_up)
    }

    /// Whether this hold is given back in the end.
    fn given_back(&self, hold: &Holder) -> bool {
        let mut waits = self.waits_of(&hold.owner).peekable();
        if waits.peek().is_none() || waits.any(|(served, _)| served) {
            return true;
        }
        let rows = self.picture.rows.values();
        let mine = rows
            .flat_map(|row| &row.holders)
            .filter(|other| other.owner == hold.owner);
        let mut own = mine.flat_map(|other| {
            let took = self.reading == Reading::Wide || std::ptr::eq(other, hold);
            other
                .session
                .into_iter()
                .chain(took.then_some(other.client))
        });
        own.any(|client| self.free(&hold.owner, client))
    }

    /// Who holds this lock in the end.
    fn left<'s>(&'s self, row: &'s Row) -> impl Iterator<Item = &'s Holder> {
        row.holders.iter().filter(|hold| !self.given_back(hold))
    }

    /// Whether a waiting request is served.
    fn serves(&self, at: usize) -> bool {
        let wait = &self.picture.waits[at];
        wait.names.iter().all(|name| self.opens(name, wait))
    }

    /// Whether a waiting request may have this lock.
    fn opens(&self, name: &Name, wait: &Waiting) -> bool {
        let none = Row::default();
        let row = self.picture.rows.get(name).unwrap_or(&none);
        let queue: Vec<&Place> = row.upgrade.iter().chain(&row.queue).collect();
        let mine = |place: &&Place| place.owner == wait.owner;
        let held = row.holders.iter().find(|hold| hold.owner == wait.owner);
        let many = wait.names.len() > 1;
        let enters = held.is_some_and(|hold| hold.limit <= wait.limit);
        let shared = self.picture.waits_at(name, &wait.owner).count() > 1;
        match queue.iter().position(mine) {
            // Of many locks those that the owner holds are entered once more.
            None if enters => true,
            // A lock that the owner no longer holds is queued for as soon as that is found out, and the wait looked at again.
            None if self.reading == Reading::Wide => true,
            None => {
                let before = |place: &&Place| !self.passes(name, row, place);
                compatible(self.left(row), &wait.owner, wait.limit) && !queue.iter().any(before)
            }
            // Nor may this place be another's of the same owner.
            Some(_) if many && self.reading == Reading::Wide && (shared || enters) => true,
            Some(rank) => {
                let place = queue[rank];
                let limit = match many && self.reading == Reading::Wide {
                    true => wait.limit,
                    false => place.limit.min(wait.limit),
                };
                compatible(self.left(row), &wait.owner, limit)
                    && queue[..rank]
                        .iter()
                        .all(|place| self.passes(name, row, place))
            }
        }
    }

    /// Whether a place is out of the way in the end, if those before it are.
    fn passes(&self, name: &Name, row: &Row, place: &Place) -> bool {
        if !place.present {
            return true;
        }
        let mut at_it = self
            .waits_of(&place.owner)
            .filter(|(_, wait)| wait.names.contains(name))
            .peekable();
        let only_many = at_it.peek().is_some() && { self.picture }
            .waits_at(name, &place.owner)
            .all(|wait| wait.names.len() > 1);
        if only_many {
            return at_it.any(|(served, _)| served);
        }
        compatible(self.left(row), &place.owner, place.limit)
    }
}
