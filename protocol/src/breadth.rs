//! Every schedule, shortest first, for small instances.
//!
//! Not by a crate: the steps are those of the walk, and the whole work, which no crate can do, is to recognise equal states.
//! Times count from now and are cut where they are over, entries to which no server can return are left out, histories and tokens
//! are numbered in the order in which servers meet them, and servers may change places.

use crate::action::{Action, Full, Kept};
use crate::system::{Link, Setup, System, CLIENTS, NODES};
use std::collections::HashSet;

/// The outcome of a search.
#[derive(Debug)]
pub struct Searched {
    /// Different states.
    pub states: u64,
    /// The length up to which all schedules were tried.
    pub depth: usize,
    /// The shortest schedule that gives two owners.
    pub found: Option<Vec<Action>>,
}

/// Tries all schedules, until two own the lock or there are more than `states`.
#[must_use]
pub fn search(setup: &Setup, states: usize) -> Searched {
    let actions = actions(setup);
    let orders = orders(setup.world.nodes());
    let mut seen = HashSet::new();
    // Each state as the step that led to it and the state before: states themselves would fill the memory.
    let mut steps: Vec<(u32, Action)> = vec![(0, Action::Tick)];
    seen.insert(fingerprint(setup, &System::new(&setup.world), &orders));
    let mut level = 0..1;
    let mut depth = 0;
    loop {
        for index in level.clone() {
            let system = replay(setup, &steps, index);
            for action in &actions {
                let mut next = system;
                if !next.apply(setup, *action) {
                    continue;
                }
                if next.two_owners() {
                    let mut found = path(&steps, index);
                    found.push(*action);
                    return Searched {
                        states: steps.len() as u64,
                        depth,
                        found: Some(found),
                    };
                }
                if seen.insert(fingerprint(setup, &next, &orders)) {
                    steps.push((index as u32, *action));
                }
            }
            if steps.len() > states {
                return Searched {
                    states: steps.len() as u64,
                    depth,
                    found: None,
                };
            }
        }
        depth += 1;
        level = level.end..steps.len();
        if level.is_empty() {
            return Searched {
                states: steps.len() as u64,
                depth: usize::MAX,
                found: None,
            };
        }
    }
}

fn path(steps: &[(u32, Action)], mut index: usize) -> Vec<Action> {
    let mut path = Vec::new();
    while index != 0 {
        let (before, action) = steps[index];
        path.push(action);
        index = before as usize;
    }
    path.reverse();
    path
}

fn replay(setup: &Setup, steps: &[(u32, Action)], index: usize) -> System {
    let mut system = System::new(&setup.world);
    for action in path(steps, index) {
        system.apply(setup, action);
    }
    system
}

/// Returns the steps that are tried in each state: restarts lose two entries at most.
fn actions(setup: &Setup) -> Vec<Action> {
    let nodes = setup.world.nodes();
    let mut actions = vec![Action::Tick, Action::Heal];
    for c in 0..CLIENTS as u8 {
        actions.extend([Action::Answer(c), Action::TimeOut(c)]);
        for s in 0..nodes {
            actions.extend([
                Action::Acquire(c, s),
                Action::Renew {
                    client: c,
                    at: s,
                    token: true,
                    short: false,
                },
                Action::Renew {
                    client: c,
                    at: s,
                    token: false,
                    short: false,
                },
                Action::Renew {
                    client: c,
                    at: s,
                    token: true,
                    short: true,
                },
                Action::Keep(c, s),
                Action::Held(c, s),
                Action::Release(c, s),
            ]);
        }
    }
    for x in 0..nodes {
        actions.extend([
            Action::Ahead(x),
            Action::Auto(x),
            Action::Force(x),
            Action::Stream(x),
            Action::Live(x),
            Action::Promote(x),
            Action::Partial {
                node: x,
                heard: true,
            },
            Action::Partial {
                node: x,
                heard: false,
            },
            Action::Full(x, Full::Begins),
            Action::Full(x, Full::Unheard),
            Action::Full(x, Full::Fails),
            Action::Loaded(x),
            Action::Break(x),
            Action::Restart(x, Kept::All),
            Action::Restart(x, Kept::AllAnew),
            Action::Restart(x, Kept::Less(1)),
            Action::Restart(x, Kept::Less(2)),
            Action::Restart(x, Kept::LessAnew(1)),
            Action::Restart(x, Kept::LessAnew(2)),
            Action::Restart(x, Kept::Nothing),
        ]);
        actions.extend(
            (0..nodes)
                .filter(|s| *s != x)
                .flat_map(|s| [Action::Follow(x, s), Action::Drop(s, x)]),
        );
    }
    if setup.world.orderly.is_some() {
        actions.extend((1..1 << nodes).map(Action::Cut));
    }
    actions
}

/// Returns all orders of the servers.
fn orders(nodes: u8) -> Vec<Vec<u8>> {
    let mut orders = vec![Vec::new()];
    for _ in 0..nodes {
        orders = orders
            .iter()
            .flat_map(|order: &Vec<u8>| {
                (0..nodes)
                    .filter(|x| !order.contains(x))
                    .map(|x| order.iter().copied().chain([x]).collect())
            })
            .collect();
    }
    orders
}

/// Returns a number that is equal for states that differ in names only.
fn fingerprint(setup: &Setup, system: &System, orders: &[Vec<u8>]) -> u64 {
    let first = Numbered::new(setup, system);
    orders
        .iter()
        .map(|order| first.hash(order))
        .min()
        .unwrap_or(0)
}

struct Numbered<'a> {
    setup: &'a Setup,
    system: &'a System,
    /// Entries to which a server can return.
    kept: u64,
}

/// The most entries that a restart loses, here.
const LESS: u32 = 2;

impl<'a> Numbered<'a> {
    fn new(setup: &'a Setup, system: &'a System) -> Self {
        let line = |e: u8| system.entries[usize::from(e)].line;
        let (mut all, mut common) = (0, u64::MAX);
        let mut meet = |e: u8| {
            all |= line(e);
            common &= line(e);
        };
        for server in &system.servers[..usize::from(setup.world.nodes())] {
            meet(server.pos);
            if let Link::Loading(snapshot) = server.link {
                meet(snapshot);
            }
        }
        for follower in system
            .followers
            .iter()
            .flatten()
            .filter(|f| f.on && f.joined)
        {
            meet(follower.got);
        }
        for client in system.clients.iter().filter(|c| c.asked.on) {
            meet(client.asked.entry);
        }
        for _ in 0..=LESS {
            if common != 0 {
                common &= !(1 << (63 - common.leading_zeros()));
            }
        }
        Self {
            setup,
            system,
            kept: all & !common,
        }
    }

    fn hash(&self, order: &[u8]) -> u64 {
        let (system, setup) = (self.system, self.setup);
        let now = system.now;
        let left = |time: i16| (time - now).max(0) as u64;
        let mut places = [0_u8; NODES];
        for (place, x) in order.iter().enumerate() {
            places[usize::from(*x)] = place as u8;
        }
        let mut hash = Hash(0);
        let mut numbers = [0_u8; 64];
        let mut count = 0_u8;
        let mut tokens = [0_u8; 256];
        let mut known = 0_u8;
        let mut ids = [0_u8; 256];
        let mut given = 0_u8;
        let mut id = |id: u8| {
            let number = &mut ids[usize::from(id)];
            if *number == 0 {
                given += 1;
                *number = given;
            }
            u64::from(*number)
        };
        let mut meet = |hash: &mut Hash, e: u8| {
            let mut line = system.entries[usize::from(e)].line & self.kept;
            let mut before = 0;
            while line != 0 {
                let index = line.trailing_zeros() as usize;
                line &= line - 1;
                if numbers[index] == 0 {
                    count += 1;
                    numbers[index] = count;
                    let entry = system.entries[index];
                    hash.put(u64::from(before));
                    // A hold that has ended by the slowest clock has ended.
                    if entry.deadline > now && entry.token != 0 {
                        let token = &mut tokens[usize::from(entry.token)];
                        if *token == 0 {
                            known += 1;
                            *token = known;
                        }
                        hash.put(
                            u64::from(entry.holder) << 16
                                | u64::from(*token) << 8
                                | left(entry.deadline),
                        );
                    } else {
                        hash.put(u64::MAX);
                    }
                    hash.put(u64::from(entry.notice));
                }
                before = numbers[index];
            }
            hash.put(u64::from(before));
        };
        for x in order {
            let server = &system.servers[usize::from(*x)];
            meet(&mut hash, server.pos);
            hash.put(u64::from(places[usize::from(server.master)]));
            match server.link {
                Link::Down => hash.put(0),
                Link::Up => hash.put(1),
                Link::Loading(snapshot) => {
                    hash.put(2);
                    meet(&mut hash, snapshot);
                }
            }
            hash.put(id(server.id));
            let shares = server.id_before != 0 && self.kept & 1 << server.shared != 0;
            hash.put(if shares { id(server.id_before) } else { 0 });
            if shares {
                let line = system.entries[usize::from(server.shared)].line & self.kept;
                hash.put(u64::from(line.count_ones()));
            }
            hash.put(
                u64::from(server.remembers)
                    | u64::from(server.standing.promoted) << 1
                    | left(server.clock + now) << 2,
            );
            hash.put(
                left(server.standing.closed_until) << 32
                    | left(server.quarantine_until) << 16
                    | left(server.standing.late_until),
            );
        }
        for s in order {
            for x in order {
                let follower = &system.followers[usize::from(*s)][usize::from(*x)];
                if !follower.on {
                    hash.put(0);
                } else {
                    hash.put(1 + u64::from(follower.joined));
                    hash.put(
                        left(follower.counts) << 8 | left(follower.lived + setup.conduct.lag + 1),
                    );
                    if follower.joined {
                        meet(&mut hash, follower.got);
                    }
                }
            }
        }
        for client in &system.clients {
            let asked = client.asked;
            hash.put(left(client.until) << 8 | u64::from(asked.on));
            if asked.on {
                hash.put(
                    u64::from(places[usize::from(asked.at)])
                        | left(asked.until) << 8
                        | u64::from(asked.grant) << 16,
                );
                hash.put(asked.length as u64);
                meet(&mut hash, asked.entry);
            }
        }
        for client in &system.clients {
            hash.put(client.void & self.kept);
            hash.put(u64::from(client.forced) << 1 | u64::from(client.wants));
            hash.put(u64::from(tokens[usize::from(client.token)]));
            hash.put(
                u64::from(client.asked.on) * u64::from(tokens[usize::from(client.asked.token)]),
            );
        }
        if setup.world.orderly.is_some() {
            let cut = (0..NODES)
                .filter(|x| system.cut >> x & 1 == 1)
                .map(|x| 1 << places[x])
                .sum();
            hash.put(cut);
            hash.put((now - system.cut_since).min(20) as u64 * 2 + u64::from(system.cut_answered));
            hash.put(
                u64::from(places[usize::from(system.lead)]) << 8
                    | left(system.follow_by.min(now + 20)),
            );
        }
        // Clocks are set before anything else happens.
        hash.put(u64::from(now == 0 && system.len == 1));
        hash.0
    }
}

/// A hash of whole numbers (the mixer of splitmix64).
struct Hash(u64);

impl Hash {
    fn put(&mut self, value: u64) {
        let mut z =
            self.0.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ value.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = z ^ z >> 31;
    }
}
