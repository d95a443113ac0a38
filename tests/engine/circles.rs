//! Who can never get what is waited for: the definition of a deadlock, played through on the [`model`](crate::model).
//!
//! A wait is *stuck* if it would still stand after every owner who can still act had given back everything it holds and the
//! queues had been served, and so on until nothing moves. Who can act is a matter of which connections are an owner's
//! own, and of that the engine knows only a part: it remembers for each hold the connection that took it, but has no index of
//! all holds of an owner, and a connection that is blocked for another owner may come free later. So there are two
//! readings, and the engine stands between them: it must find what is stuck by the one that sees the most ways out, and may
//! refuse only what is stuck by the one that sees the fewest.

use crate::engine::{Limit, Millis, Name};
use crate::model::{Hold, Lock, Many, Model, Place, Request, Wait, SHARED};
use crate::picture::{self, Picture, Row};
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

/// Whether this request is to be refused; none where the readings differ, or where it would come to wait behind others that
/// are stuck: those will be told so, and its own wait may end then.
pub fn verdict(model: &Model, request: &Request, keys: &[String]) -> Option<bool> {
    let mut then = model.clone();
    let id = then.enter(request, keys);
    if !stuck(&then, Reading::Narrow).contains(&id) {
        return Some(false);
    }
    let must = stuck(model, Reading::Wide).is_empty() && stuck(&then, Reading::Wide).contains(&id);
    must.then_some(true)
}

/// The waits that can never end.
pub fn stuck(model: &Model, reading: Reading) -> BTreeSet<u64> {
    played(model, reading).waits().map(|wait| wait.id).collect()
}

/// Whether this wait is the youngest of a circle: what it waits for comes back to it by waits that are no younger.
pub fn is_youngest(model: &Model, id: u64) -> bool {
    let left = played(model, Reading::Narrow);
    let (mut seen, mut next) = (BTreeSet::new(), vec![id]);
    while let Some(at) = next.pop() {
        let older = blockers(&left, at).into_iter().filter(|by| *by <= id);
        next.extend(older.filter(|by| seen.insert(*by)));
    }
    seen.contains(&id)
}

/// The waits of those who keep this one from being granted: of holders, and at places before it.
fn blockers(left: &Model, id: u64) -> BTreeSet<u64> {
    let mut by = BTreeSet::new();
    for lock in left.locks.values() {
        let its = |place: &Place| place.waits.iter().any(|wait| wait.id == id);
        for (at, place) in lock.in_order().enumerate().filter(|(_, place)| its(place)) {
            let before = lock.in_order().take(at).flat_map(|place| &place.waits);
            by.extend(before.map(|wait| wait.id));
            let free = lock.compatible(&place.owner, place.limit);
            let others = lock.holds.iter().filter(|hold| hold.owner != place.owner);
            for other in others.filter(|_| !free) {
                by.extend(waits_of(left, &other.owner).iter().map(|wait| wait.id));
            }
        }
    }
    by
}

/// What is left when nothing moves any more.
fn played(model: &Model, reading: Reading) -> Model {
    let mut play = Play {
        then: model.clone(),
        model,
        reading,
    };
    play.then.grants = true;
    play.then.quarantine_until = 0;
    // Whether they are told makes no difference here.
    play.then.cut.clear();
    while play.goes_on() {}
    play.then
}

/// What comes of it if all who can act give back what they hold.
struct Play<'m> {
    model: &'m Model,
    reading: Reading,
    then: Model,
}

impl Play<'_> {
    /// Gives back and serves once. Gives whether anything has come of it.
    fn goes_on(&mut self) -> bool {
        let before = self.left();
        if self.reading == Reading::Wide {
            self.spare();
        }
        let back = self.given_back();
        for (key, lock) in &mut self.then.locks {
            let part = |hold: &Hold| (key.clone(), hold.owner.clone());
            lock.holds.retain(|hold| !back.contains(&part(hold)));
            // A ticket that nobody is there for lapses.
            lock.queue.retain(|place| !place.waits.is_empty());
        }
        self.then.settle();
        self.left() != before
    }

    /// How many requests, places and holds there are.
    fn left(&self) -> [usize; 3] {
        let holds = self.then.locks.values().map(|lock| lock.holds.len());
        [self.then.waits().count(), self.then.places(), holds.sum()]
    }

    /// Nothing that the owner of a request for many locks has held meanwhile stands in its way again.
    fn spare(&mut self) {
        let locks = &self.then.locks;
        for many in &mut self.then.manys {
            let its = |place: &Place| place.waits.iter().any(|wait| wait.id == many.wait.id);
            many.keys.retain(|key| locks[key].in_order().any(its));
        }
    }

    /// The locks and holders that are given back now.
    fn given_back(&self) -> Vec<(String, String)> {
        let mut back = Vec::new();
        for (key, lock) in &self.then.locks {
            let holds = lock.holds.iter().filter(|hold| self.gives_back(hold));
            back.extend(holds.map(|hold| (key.clone(), hold.owner.clone())));
        }
        back
    }

    fn gives_back(&self, hold: &Hold) -> bool {
        let waited = waits_of(self.model, &hold.owner);
        let waits = waits_of(&self.then, &hold.owner);
        if waits.is_empty() || waits.len() < waited.len() {
            return true;
        }
        let holds = self.model.locks.values().flat_map(|lock| &lock.holds);
        let mine = holds.filter(|other| other.owner == hold.owner);
        let mut own = mine.flat_map(|other| {
            let took = self.reading == Reading::Wide || other.grant == hold.grant;
            other
                .session
                .into_iter()
                .chain(took.then_some(other.client))
        });
        own.any(|client| self.free(&hold.owner, client))
    }

    /// Whether the owner can act by this connection.
    fn free(&self, owner: &str, client: u64) -> bool {
        let waiting = match self.reading {
            Reading::Wide => &self.then,
            Reading::Narrow => self.model,
        };
        let blocked = waiting
            .waits()
            .any(|wait| wait.client == client && wait.channel.is_none());
        let its = waits_of(waiting, owner);
        let by_it = its.iter().any(|wait| wait.client == client);
        client != 0 && !self.model.ended.contains(&client) && !blocked && !by_it
    }
}

/// The requests of an owner that wait.
fn waits_of<'m>(model: &'m Model, owner: &str) -> Vec<&'m Wait> {
    let places = model.locks.values().flat_map(Lock::in_order);
    let its = places.filter(|place| place.owner == owner);
    let one = its.flat_map(|place| &place.waits).filter(|wait| !wait.many);
    let many = model.manys.iter().filter(|many| many.owner == owner);
    one.chain(many.map(|many| &many.wait)).collect()
}

/// The waits of a picture that can never end, as indices.
pub fn stuck_of(picture: &Picture, reading: Reading) -> BTreeSet<usize> {
    let stuck = stuck(&stage(picture, reading), reading);
    stuck.into_iter().map(|id| id as usize - 1).collect()
}

/// Whether this request, if it waited, could never be granted.
pub fn would_be_stuck(picture: &Picture, asked: &Waiting, reading: Reading) -> bool {
    let mut model = stage(picture, reading);
    let request = Request {
        client: asked.client,
        key: key_of(&asked.names[0]),
        owner: text(&asked.owner),
        lease: 1,
        wait: Some(None),
        holds: None,
        limit: wide(asked.limit),
        ticket: None,
        session: false,
        channel: asked.channel.as_deref().map(text),
    };
    let keys: Vec<String> = asked.names.iter().map(key_of).collect();
    let many = if keys.len() > 1 { &keys[..] } else { &[] };
    let id = model.enter(&request, many);
    stuck(&model, reading).contains(&id)
}

/// Whether this request was refused because another holder waits to upgrade the lock that it would upgrade.
pub fn second_upgrade(picture: &Picture, asked: &Waiting) -> bool {
    asked.names.iter().any(|name| {
        let row = picture.rows.get(name);
        let other = |row: &&Row| {
            let other = row.upgrade.as_ref();
            other.is_some_and(|place| place.owner != asked.owner)
        };
        row.filter(other)
            .is_some_and(|row| weaker(row, &asked.owner, asked.limit))
    })
}

/// A model of what can be seen in a picture. A request is told by its index there, counted from 1.
fn stage(picture: &Picture, reading: Reading) -> Model {
    let mut model = Model {
        ended: picture.ended.clone(),
        quarantine_until: Millis::from(!picture.granting),
        waits_made: picture.waits.len() as u64,
        arrivals: i64::from(u32::MAX),
        ..Model::default()
    };
    for (name, row) in &picture.rows {
        let lock = model.locks.entry(key_of(name)).or_default();
        // Not told apart by their tokens: RESTORE can bring one to two locks.
        let holds = row.holders.iter().zip(model.grants_made + 1..);
        lock.holds = holds.map(|(seen, grant)| hold(seen, grant)).collect();
        model.grants_made += row.holders.len() as u64;
        lock.upgrade = row.upgrade.as_ref().map(|seen| place(seen, 0));
        let queue = row.queue.iter().zip(1..);
        lock.queue = queue.map(|(seen, at)| place(seen, at)).collect();
    }
    for (asked, id) in picture.waits.iter().zip(1..) {
        stand(&mut model, picture, asked, id, reading);
    }
    model
}

/// Puts a request where it stands. Where its owner has a place for a lock that it also holds it is not seen whether a
/// request for many stands there too: then it does by the narrow reading. At that of an upgrade which its owner has overtaken
/// it does by the wide one, as it leaves that with the hold.
fn stand(model: &mut Model, picture: &Picture, asked: &Waiting, id: u64, reading: Reading) {
    let many = asked.names.len() > 1;
    let wait = Wait {
        id,
        client: asked.client,
        lease: 1,
        holds: None,
        until: None,
        session: false,
        channel: asked.channel.as_deref().map(text),
        many,
    };
    for name in &asked.names {
        let (row, owner) = (&picture.rows[name], text(&asked.owner));
        let holds = row.holders.iter().any(|hold| hold.owner == asked.owner);
        let overtaken = many && reading == Reading::Wide && overtaken(row, &asked.owner);
        let upgrades = overtaken || weaker(row, &asked.owner, asked.limit);
        if many && holds && !upgrades && reading == Reading::Wide {
            continue;
        }
        let lock = model.locks.entry(key_of(name)).or_default();
        let upgrade = lock.upgrade.as_mut();
        let upgrade = upgrade.filter(|place| upgrades && place.owner == owner);
        let mut queue = lock.queue.iter_mut();
        if let Some(place) = upgrade.or_else(|| queue.find(|place| place.owner == owner)) {
            place.waits.push(wait.clone());
        }
    }
    if many {
        model.manys.push(Many {
            wait: Wait {
                many: false,
                ..wait
            },
            owner: text(&asked.owner),
            keys: asked.names.iter().map(key_of).collect(),
            limit: wide(asked.limit),
        });
    }
}

/// Whether the owner waits to upgrade this lock, and has had the stricter limit by another request meanwhile.
fn overtaken(row: &Row, owner: &[u8]) -> bool {
    let upgrade = row.upgrade.as_ref().filter(|place| place.owner == owner);
    upgrade.is_some_and(|place| !weaker(row, owner, place.limit))
}

/// Whether the owner holds this lock with a weaker limit.
fn weaker(row: &Row, owner: &[u8], limit: Limit) -> bool {
    let mut holders = row.holders.iter();
    holders.any(|hold| hold.owner == owner && limit < hold.limit)
}

fn hold(seen: &picture::Holder, grant: u64) -> Hold {
    Hold {
        owner: text(&seen.owner),
        grant,
        since: 0,
        holds: 1,
        deadline: Millis::MAX,
        limit: wide(seen.limit),
        client: seen.client,
        session: seen.session,
    }
}

fn place(seen: &picture::Place, arrival: i64) -> Place {
    Place {
        owner: text(&seen.owner),
        limit: wide(seen.limit),
        since: 0,
        arrival,
        claim: None,
        kept_until: None,
        waits: Vec::new(),
    }
}

fn key_of(name: &Name) -> String {
    format!("{}:{}", name.db, text(&name.key))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wide(limit: Limit) -> usize {
    match limit.to_wire() {
        0 => SHARED,
        n => n as usize,
    }
}
