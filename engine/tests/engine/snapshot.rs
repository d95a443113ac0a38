//! The visible state of a world at one instant: plain data for the invariants, so that a test can also forge it.

use crate::deadlock::{self, Scene};
use crate::keys::Value;
use crate::server::Data;
use crate::ties::{self, Tied};
use crate::world::{Answered, Heard, Waiting, World};
use dlock_engine::{
    End, Limit, Millis, Name, Outcome, Permits, PlaceKind, Policy, RequestId, Share, SteadyMs,
    Token, WallMs,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Picture {
    pub now: WallMs,
    pub steady: SteadyMs,
    pub rows: BTreeMap<Name, Row>,
    /// The engine's count of places, the age of the oldest as it tells it, and in how many milliseconds it asks to be woken.
    pub places: usize,
    pub oldest_ms: Millis,
    pub next_wakeup: Option<Millis>,
    /// The waiting requests.
    pub waits: BTreeMap<RequestId, Waiting>,
    pub granting: bool,
    /// The most owners that may hold one lock.
    pub max_holders: usize,
    /// Whether a quarantine that the operator set lasts.
    pub quarantined: bool,
    /// Whether the server could settle everything.
    pub settled: bool,
    /// Locks whose values the engine does not know yet.
    pub unseen: BTreeSet<Name>,
    /// Whether only time has passed since the previous picture, on a server that could do its work.
    pub only_time: bool,
    /// Locks whose slot migrates to another node.
    pub leaving: BTreeSet<Name>,
    pub primary: Data,
    /// None while the replica lags.
    pub replica: Option<Data>,
    /// The highest token of all grants.
    pub last_token: Token,
    /// Since the previous picture: grants, answers with grants, and those of these answers whose grant had ended.
    pub grants: Vec<(Name, Vec<u8>, Token)>,
    pub answers: Vec<Answered>,
    pub stale: Vec<Answered>,
    /// How holds ended since the previous picture, as far as the engine ended them.
    pub over: Vec<(Name, End, Token)>,
    /// The outcomes that waiters received since the previous picture.
    pub heard: Vec<Heard>,
    pub unasked: Vec<(RequestId, Outcome)>,
    /// The places of requests in sessions that were made, or asked for again, since the previous picture: whether for many locks.
    pub entered: BTreeMap<(Name, Vec<u8>), bool>,
    /// Whether there has been any such request.
    pub sessions: bool,
    /// The requests refused with DEADLOCK since the previous picture.
    pub refused: Vec<Waiting>,
    /// Whether deadlock detection is on, and whether its search has no bound.
    pub detection: bool,
    pub thorough: bool,
    /// The owners that have renewed since the previous picture, and whether a crash lost decisions since then.
    pub renewed: BTreeSet<Vec<u8>>,
    pub lost: bool,
    /// Tokens that RESTORE brought.
    pub restored: BTreeSet<Token>,
    /// Tokens of holds whose keys a user gave a TTL.
    pub retimed: BTreeSet<Token>,
    /// The ends of leases that a step of the wall clock has moved nearer.
    pub stepped: BTreeMap<(Name, Token), WallMs>,
    /// The ties between holds and connections.
    pub ties: BTreeMap<(Name, Token), Tied>,
    /// Connections that have ended.
    pub ended: BTreeSet<u64>,
    /// The number of events.
    pub event: u64,
}

/// One lock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    pub holders: Vec<Holder>,
    /// The holder that waits for a stricter limit.
    pub upgrade: Option<Place>,
    pub queue: Vec<Place>,
    /// For how long the oldest of these places has been there.
    pub oldest_ms: Option<Millis>,
    /// The owners of the tickets in the value, with their limits; none if there is no value.
    pub tickets: Option<Vec<(Vec<u8>, Limit, Permits)>>,
    /// Whether the value is marked as having a queue; none if there is no value.
    pub watched: Option<bool>,
    /// The TTL of the key and the TTL that it must have.
    pub ttl: Option<(Option<WallMs>, Option<WallMs>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    pub owner: Vec<u8>,
    pub token: Token,
    pub deadline: WallMs,
    pub limit: Limit,
    pub permits: Permits,
    /// The connection with which the hold ends.
    pub ephemeral: Option<u64>,
    /// Whether the server renews the hold.
    pub auto: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub owner: Vec<u8>,
    pub limit: Limit,
    pub permits: Permits,
    pub kind: PlaceKind,
    pub left: Option<Millis>,
    /// Whether a session waits here.
    pub in_session: bool,
}

impl Place {
    pub fn is_absent(&self) -> bool {
        self.kind == PlaceKind::Absent
    }
}

impl Row {
    /// Returns all places in the order in which they are served.
    pub fn in_order(&self) -> impl Iterator<Item = &Place> {
        self.upgrade.iter().chain(&self.queue)
    }

    /// Returns the rank of the owner's place: 0 is that of the waiting upgrade.
    fn rank(&self, owner: &[u8]) -> Option<usize> {
        let its = |place: &Place| place.owner == owner;
        let upgrades = self.upgrade.as_ref().is_some_and(its);
        let rank = self.queue.iter().position(its).map(|rank| rank + 1);
        if upgrades {
            Some(0)
        } else {
            rank
        }
    }

    pub fn hold(&self, owner: &[u8]) -> Option<&Holder> {
        self.holders.iter().find(|hold| hold.owner == owner)
    }
}

impl Picture {
    /// Takes the picture, together with the records since the previous one.
    pub fn take(world: &mut World) -> Picture {
        let (engine, now) = (&world.primary.engine, world.now);
        Picture {
            now: now.wall(),
            steady: now.steady(),
            rows: world
                .known
                .iter()
                .map(|name| (name.clone(), row(world, name)))
                .collect(),
            places: engine.places(),
            oldest_ms: engine.oldest_wait_ms(now),
            next_wakeup: engine.next_wakeup(now),
            waits: world.waits.clone(),
            granting: engine.policy().granting(now),
            max_holders: engine.policy().max_holders,
            settled: world.writable
                && world.primary.keys.away.is_empty()
                && world.primary.keys.leaving.is_empty(),
            only_time: std::mem::replace(&mut world.only_time, true)
                && world.writable
                && !world.bounded_auto
                && engine.policy().max_hold_ms == 0,
            unseen: world.unseen.clone(),
            leaving: world.primary.keys.leaving.clone(),
            primary: world.primary.data(),
            replica: world.link.is_empty().then(|| world.replica.data()),
            quarantined: world.now.steady() < world.quarantine_until,
            last_token: world.last_token,
            detection: world.detection,
            thorough: engine.policy().deadlock_max_steps >= Policy::default().deadlock_max_steps,
            renewed: std::mem::take(&mut world.renewed),
            lost: std::mem::take(&mut world.lost),
            restored: world.restored.clone(),
            retimed: world.retimed.clone(),
            stepped: world.stepped.clone(),
            ties: ties::ties(world),
            ended: world.ended.clone(),
            event: world.event,
            grants: std::mem::take(&mut world.grants),
            answers: world.take_answers(),
            stale: std::mem::take(&mut world.stale),
            over: std::mem::take(&mut world.over),
            heard: std::mem::take(&mut world.heard),
            unasked: std::mem::take(&mut world.unasked),
            refused: std::mem::take(&mut world.refused),
            entered: std::mem::take(&mut world.entered),
            sessions: world.sessions,
        }
    }

    /// Returns true if the engine knows the values of all locks of a request.
    pub fn knows(&self, wait: &Waiting) -> bool {
        wait.names.iter().all(|name| !self.unseen.contains(name))
    }

    /// Returns the holders and the waiters: all that a deadlock depends on.
    pub fn scene(&self) -> Scene {
        let mut scene = Scene::default();
        for (name, row) in &self.rows {
            scene
                .holds
                .extend(row.holders.iter().map(|hold| deadlock::Hold {
                    key: key(name),
                    owner: text(&hold.owner),
                    limit: wide(hold.limit),
                    permits: hold.permits.get() as usize,
                }));
        }
        for (id, wait) in &self.waits {
            let mut waiting = deadlock::Wait::new(id.0, &text(&wait.owner), wait.many);
            for name in &wait.names {
                let row = &self.rows[name];
                if let Some(rank) = row.rank(&wait.owner) {
                    waiting.stand(&key(name), rank, wait.share());
                }
            }
            scene.waits.push(waiting);
        }
        scene
    }

    /// Returns the scene with this request added: at its owner's place, instead of the older request, or behind all others.
    pub fn scene_with(&self, asked: &Waiting) -> Scene {
        let mut scene = self.scene();
        let mut waiting = deadlock::Wait::new(u64::MAX, &text(&asked.owner), asked.many);
        let mut replaced = Vec::new();
        for name in &asked.names {
            let row = self.rows.get(name).cloned().unwrap_or_default();
            let place = row.rank(&asked.owner);
            let here = |(_, wait): &(&RequestId, &Waiting)| {
                wait.owner == asked.owner && wait.names.contains(name)
            };
            let older = self.waits.iter().find(|wait| place.is_some() && here(wait));
            replaced.extend(older.map(|(id, _)| id.0));
            let rank = match row.hold(&asked.owner) {
                Some(_) => 0,
                None => place.filter(|_| !asked.many).unwrap_or(usize::MAX),
            };
            waiting.stand(&key(name), rank, asked.share());
        }
        scene.waits.retain(|wait| !replaced.contains(&wait.id));
        scene.waits.push(waiting);
        scene
    }

    /// Returns the holders and the places as readable text.
    pub fn queues(&self) -> String {
        let mut lines = Vec::new();
        for (name, row) in &self.rows {
            let holders = row.holders.iter().map(|hold| {
                let ephemeral = hold
                    .ephemeral
                    .map_or(String::new(), |client| format!(", with {client}"));
                let (owner, permits) = (text(&hold.owner), hold.permits);
                format!("{owner} ({permits} of {}{ephemeral})", hold.limit.to_wire())
            });
            let places = row.in_order().map(|place| {
                let absent = if place.is_absent() { ", absent" } else { "" };
                let (owner, permits) = (text(&place.owner), place.permits);
                format!("{owner} ({permits} of {}{absent})", place.limit.to_wire())
            });
            let (holders, places): (Vec<_>, Vec<_>) = (holders.collect(), places.collect());
            if !holders.is_empty() || !places.is_empty() {
                let (holders, places) = (holders.join(", "), places.join(", "));
                lines.push(format!("{} held by {holders}; queue: {places}", key(name)));
            }
        }
        lines.extend(
            self.waits
                .iter()
                .map(|(id, wait)| format!("{}: {}", id.0, wait.shown())),
        );
        lines.join("\n")
    }
}

impl Waiting {
    pub fn shown(&self) -> String {
        let keys: Vec<String> = self.names.iter().map(key).collect();
        let (owner, limit) = (text(&self.owner), self.limit.to_wire());
        format!(
            "{owner} for {} ({} of {limit}) from {}",
            keys.join(", "),
            self.permits,
            self.client
        )
    }

    fn share(&self) -> (usize, usize) {
        (wide(self.limit), self.permits.get() as usize)
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a lock's name as readable text.
pub fn key(name: &Name) -> String {
    format!("{}:{}", name.db, text(&name.key))
}

fn wide(limit: Limit) -> usize {
    match limit.to_wire() {
        0 => usize::MAX,
        n => n as usize,
    }
}

fn row(world: &World, name: &Name) -> Row {
    let (engine, lock) = (&world.primary.engine, world.primary.keys.lock(name));
    let view = engine.view(lock, world.now, name.as_ref(), usize::MAX);
    let ephemeral = |token: Token| {
        let mut holders = view.iter().flat_map(|view| &view.holders);
        let hold = holders.find(|hold| hold.token == token && hold.ephemeral);
        hold.map(|hold| hold.client.0)
    };
    let auto = |token: Token| {
        let mut holders = view.iter().flat_map(|view| &view.holders);
        holders.any(|hold| hold.token == token && hold.auto)
    };
    let holders: Vec<Holder> = lock
        .into_iter()
        .flat_map(|lock| lock.holds())
        .map(|hold| Holder {
            owner: hold.owner.to_vec(),
            token: hold.token,
            deadline: hold.deadline,
            limit: hold.limit,
            permits: hold.permits,
            ephemeral: ephemeral(hold.token),
            auto: auto(hold.token),
        })
        .collect();
    let places = view.iter().flat_map(|view| &view.queue).map(|place| Place {
        owner: place.owner.clone(),
        limit: place.share.limit,
        permits: place.share.permits,
        kind: place.kind,
        left: place.left_ms,
        in_session: place.session.is_some(),
    });
    // A holder that waits is waiting for an upgrade.
    let holds = |place: &Place| holders.iter().any(|hold| hold.owner == place.owner);
    let mut queue: Vec<Place> = places.collect();
    let upgrade = (!queue.is_empty() && holds(&queue[0])).then(|| queue.remove(0));
    let ticket = |ticket: &dlock_engine::lock::Ticket| {
        let Share { limit, permits } = ticket.share;
        (ticket.owner.to_vec(), limit, permits)
    };
    Row {
        holders,
        upgrade,
        queue,
        oldest_ms: view
            .iter()
            .flat_map(|view| &view.queue)
            .map(|place| place.waited_ms)
            .max(),
        tickets: lock.map(|lock| lock.tickets().map(|(_, one)| ticket(one)).collect()),
        watched: lock.map(|lock| lock.watched()),
        ttl: match (lock, world.primary.keys.values.get(name)) {
            (Some(lock), Some(Value::Lock(_, ttl))) => Some((*ttl, lock.key_expiry())),
            _ => None,
        },
    }
}
