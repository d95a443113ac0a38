//! What can be seen of a world at one moment: plain data for the invariants, so that a test can also forge it.

use crate::engine::{Limit, Millis, Name, PlaceKind, Token};
use crate::server::Data;
use crate::world::World;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub struct Picture {
    pub now: Millis,
    pub rows: BTreeMap<Name, Row>,
    /// What the engine says of places and of the next wake-up.
    pub places: usize,
    pub next_wakeup: Option<Millis>,
    /// The requests that connections wait for: the lock, the owner, when the time is up.
    pub waits: Vec<(Name, Vec<u8>, Option<Millis>)>,
    /// The parts of requests for many locks: the lock and the owner, and all locks of the request.
    pub together: BTreeMap<(Name, Vec<u8>), Vec<Name>>,
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
}

#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub owner: Vec<u8>,
    pub limit: Limit,
    pub present: bool,
    pub until: Option<Millis>,
}

impl Picture {
    /// Takes the picture, and with it the record of grants.
    pub fn take(world: &mut World) -> Picture {
        let (engine, now) = (&world.primary.engine, world.now);
        let waits = world.waits.values();
        Picture {
            now: now.ms(),
            rows: world
                .known
                .iter()
                .map(|name| (name.clone(), row(world, name)))
                .collect(),
            places: engine.places(),
            next_wakeup: engine.next_wakeup(),
            waits: waits
                .flat_map(|wait| {
                    let entry = |name: &Name| (name.clone(), wait.owner.clone(), wait.until);
                    wait.names.iter().map(entry).collect::<Vec<_>>()
                })
                .chain(
                    world
                        .noted
                        .iter()
                        .map(|noted| (noted.name.clone(), noted.owner.clone(), noted.until)),
                )
                .collect(),
            together: world
                .waits
                .values()
                .filter(|wait| wait.names.len() > 1)
                .flat_map(|wait| {
                    let part =
                        |name: &Name| ((name.clone(), wait.owner.clone()), wait.names.clone());
                    wait.names.iter().map(part).collect::<Vec<_>>()
                })
                .collect(),
            granting: engine.policy.granting(now),
            settled: world.writable && world.primary.keys.away.is_empty(),
            primary: world.primary.data(),
            replica: world.link.is_empty().then(|| world.replica.data()),
            last_token: world.last_token,
            grants: std::mem::take(&mut world.grants),
        }
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
