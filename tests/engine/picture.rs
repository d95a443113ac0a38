//! What can be seen of a world at one moment: plain data for the invariants, so that a test can also forge it.

use crate::engine::change::End;
use crate::engine::{Limit, Message, Millis, Name, PlaceKind, Policy, Token};
use crate::server::Data;
use crate::world::{Answered, Waiting, World};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Picture {
    pub now: Millis,
    pub rows: BTreeMap<Name, Row>,
    /// What the engine says of places and of the next wake-up.
    pub places: usize,
    pub next_wakeup: Option<Millis>,
    /// The requests that connections wait for, blocked or by a channel.
    pub waits: Vec<Waiting>,
    /// How many wait by a channel, as the engine says.
    pub notifies: usize,
    pub granting: bool,
    /// Whether the server could settle all there was to settle.
    pub settled: bool,
    pub primary: Data,
    /// None while the replica lags.
    pub replica: Option<Data>,
    /// The highest token of all grants.
    pub last_token: Token,
    /// Grants since the picture before.
    pub grants: Vec<(Name, Vec<u8>, Token)>,
    /// What was answered with grants since the picture before.
    pub answers: Vec<Answered>,
    /// Those of them that told of a grant that was none any more.
    pub stale: Vec<Answered>,
    /// How holds ended since the picture before, as far as the engine has ended them.
    pub over: Vec<(End, Token)>,
    /// The requests that were refused with DEADLOCK since the picture before, and who waited then.
    pub refused: Vec<(Waiting, Vec<Waiting>)>,
    /// The waits that were ended with it.
    pub broken: Vec<Waiting>,
    /// Messages that nobody waited for, since the picture before.
    pub unasked: Vec<Message>,
    /// Whether the last event was a look for circles.
    pub looked: bool,
    /// Whether deadlocks are to be detected; and whether each look may go as far as it has to.
    pub detection: bool,
    pub thorough: bool,
    /// The tokens that were ever answered to a request with SESSION, or brought to a second key.
    pub sessions: BTreeSet<Token>,
    /// Connections that have ended.
    pub ended: BTreeSet<u64>,
    /// Counts the events.
    pub event: u64,
}

/// One lock.
#[derive(Debug, Clone, Default)]
pub struct Row {
    pub holders: Vec<Holder>,
    /// The holder that waits for a stricter limit.
    pub upgrade: Option<Place>,
    pub queue: Vec<Place>,
    /// Whether the value says that somebody is queued; none if there is no value.
    pub watched: Option<bool>,
    /// The TTL that the key has and the one it must have.
    pub ttl: Option<(Option<Millis>, Option<Millis>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    pub owner: Vec<u8>,
    pub token: Token,
    pub deadline: Millis,
    pub limit: Limit,
    /// The connection that last took or entered it.
    pub client: u64,
    /// The connection that it is tied to, as the engine says.
    pub session: Option<u64>,
    /// The connections that it must be tied to one of.
    pub tied: Option<BTreeSet<u64>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub owner: Vec<u8>,
    pub limit: Limit,
    pub present: bool,
    pub until: Option<Millis>,
}

impl Picture {
    /// Takes the picture, and with it the records of what has happened since the one before.
    pub fn take(world: &mut World) -> Picture {
        let (engine, now) = (&world.primary.engine, world.now);
        Picture {
            now: now.ms(),
            rows: world
                .known
                .iter()
                .map(|name| (name.clone(), row(world, name)))
                .collect(),
            places: engine.places(),
            next_wakeup: engine.next_wakeup(),
            waits: world.waits.values().chain(&world.noted).cloned().collect(),
            notifies: engine.notifies(),
            granting: engine.policy.granting(now),
            settled: world.writable && world.primary.keys.away.is_empty(),
            primary: world.primary.data(),
            replica: world.link.is_empty().then(|| world.replica.data()),
            last_token: world.last_token,
            looked: world.looked,
            detection: world.detection,
            thorough: engine.policy.deadlock_max_steps >= Policy::default().deadlock_max_steps,
            sessions: world.ties.keys().chain(&world.copied).copied().collect(),
            ended: world.ended.clone(),
            event: world.event,
            grants: std::mem::take(&mut world.grants),
            answers: world.take_answers(),
            stale: std::mem::take(&mut world.stale),
            over: std::mem::take(&mut world.over),
            refused: std::mem::take(&mut world.refused),
            broken: std::mem::take(&mut world.broken),
            unasked: std::mem::take(&mut world.unasked),
        }
    }

    /// Who holds and who waits, to be read.
    pub fn queues(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut lines = Vec::new();
        for (name, row) in &self.rows {
            let holders = row.holders.iter().map(|hold| {
                let (limit, tied) = (hold.limit.to_wire(), hold.session);
                let tied = tied.map_or(String::new(), |client| format!(", tied to {client}"));
                format!("{} ({limit}, by {}{tied})", text(&hold.owner), hold.client)
            });
            let places = row.upgrade.iter().chain(&row.queue).map(|place| {
                let there = if place.present { "" } else { ", absent" };
                format!("{} ({}{there})", text(&place.owner), place.limit.to_wire())
            });
            let (holders, places): (Vec<_>, Vec<_>) = (holders.collect(), places.collect());
            if !holders.is_empty() || !places.is_empty() {
                let (db, key) = (name.db, text(&name.key));
                let (holders, places) = (holders.join(", "), places.join(", "));
                lines.push(format!("{db}:{key} held by {holders}; queue: {places}"));
            }
        }
        for wait in &self.waits {
            let keys: Vec<String> = wait.names.iter().map(|name| text(&name.key)).collect();
            let (owner, client, limit) = (text(&wait.owner), wait.client, wait.limit.to_wire());
            let by = wait.channel.as_ref().map_or("", |_| " on a channel");
            lines.push(format!(
                "{owner} waits for {} ({limit}) by {client}{by}",
                keys.join(", ")
            ));
        }
        lines.join("\n")
    }

    /// The requests of an owner that wait for this lock, alone or among others.
    pub fn waits_at<'p>(
        &'p self,
        name: &'p Name,
        owner: &'p [u8],
    ) -> impl Iterator<Item = &'p Waiting> {
        let its = move |wait: &&Waiting| wait.owner == owner && wait.names.contains(name);
        self.waits.iter().filter(its)
    }
}

fn row(world: &World, name: &Name) -> Row {
    let (engine, lock) = (&world.primary.engine, world.primary.keys.lock(name));
    let view = engine.view(lock, world.now, name.lend(), usize::MAX);
    let mut row = Row {
        watched: lock.map(|lock| lock.watched()),
        ttl: match (lock, world.primary.keys.values.get(name)) {
            (Some(lock), Some(crate::keys::Value::Lock(_, ttl))) => Some((*ttl, lock.expires())),
            _ => None,
        },
        ..Row::default()
    };
    for hold in lock.into_iter().flat_map(|lock| lock.holds()) {
        let owner = hold.owner.to_vec();
        row.holders.push(Holder {
            owner,
            token: hold.token,
            deadline: hold.deadline,
            limit: hold.limit,
            client: hold.client,
            session: view
                .iter()
                .flat_map(|view| &view.holders)
                .find(|seen| seen.token == hold.token && seen.session)
                .map(|seen| seen.client),
            tied: match world.copied.contains(&hold.token) {
                true => Some(BTreeSet::new()),
                false => world.ties.get(&hold.token).map(|tie| tie.clients.clone()),
            },
        });
    }
    let mut queue = view
        .into_iter()
        .flat_map(|view| view.queue)
        .map(|place| Place {
            owner: place.owner,
            limit: place.limit,
            present: place.kind != PlaceKind::Absent,
            until: place.left_ms.map(|left| world.now.ms() + left),
        });
    if world.primary.upgrade_waits(world.now, name) {
        row.upgrade = queue.next();
    }
    row.queue = queue.collect();
    row
}
