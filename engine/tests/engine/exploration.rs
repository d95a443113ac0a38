//! Every sequence, up to a depth, of the commands of three owners at two locks and of the events there: the engine against the
//! [`model`](crate::model), everything compared after each step (see [`pair`](crate::pair)).
//!
//! Two states are equal if they differ in names only: then the search continues from one of them. A state consists of the model's
//! state, the engine's deadlines, and its stored values.

use crate::faults::{policy, Fault};
use crate::model::{Lock, Model};
use crate::pair::Pair;
use crate::script::Reader;
use crate::world::name;
use dlock_engine::Share;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Owners and keys: they are interchangeable.
const OWNERS: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 2] = ["x", "y"];

/// The requests of an owner for one lock. Leases, windows and quarantines are short, so that every instant can be checked.
const REQUESTS: [&str; 11] = [
    "ACQUIRE k o 10",
    "ACQUIRE k o 10 BLOCK 0 EPHEMERAL",
    "ACQUIRE k o 10 BLOCK 4 SHARED",
    "ACQUIRE k o 10 BLOCK 0 LIMIT 2",
    "FAIRACQUIRE k o 10 CLAIM 7",
    "FAIRACQUIRE k o 10 BLOCK 4 CLAIM 7",
    "RELEASE k o",
    "RENEW k o 25",
    "DOWNGRADE k o SHARED",
    "CANCEL k o",
    OF_PERMITS,
];

/// A request of the deep exploration only: it adds half as many steps again.
const OF_PERMITS: &str = "ACQUIRE k o 10 BLOCK 0 LIMIT 2 PERMITS 2";

/// The depth of `make test`. Beyond it is the deep exploration.
const DEPTH: usize = 4;

/// The requests of an owner for both locks.
const OF_BOTH: [&str; 2] = [
    "MACQUIRE 2 x y o 10 BLOCK 0",
    "MACQUIRE 2 y x o 10 SHARED BLOCK 0",
];

/// The events.
const EVENTS: [&str; 10] = [
    "rename x y",
    "rename y x",
    "del x",
    "del y",
    "set x",
    "set y",
    "heartbeat",
    "config grants no",
    "config grants yes",
    "config quarantine 15",
];

/// Returns all possible next steps, as lines of a script.
fn lines(pair: &Pair, deep: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, owner) in OWNERS.iter().enumerate() {
        // An owner has a connection, and others while that one is blocked.
        let connections = (0..4).map(|nth| 1 + at as u64 + 3 * nth);
        let client = { connections }.find(|client| pair.is_free(*client));
        let say = |words: &str, key: &str| {
            let word = |word| match word {
                "k" => key,
                "o" => owner,
                other => other,
            };
            let words: Vec<&str> = words.split(' ').map(word).collect();
            client.map(|client| format!("{client}: {}", words.join(" ")))
        };
        for key in KEYS {
            let requests = REQUESTS
                .iter()
                .filter(|words| deep || **words != OF_PERMITS);
            lines.extend(requests.filter_map(|words| say(words, key)));
        }
        lines.extend(OF_BOTH.iter().filter_map(|words| say(words, "")));
        lines.push(format!("{} dies", 1 + at));
        lines.push(format!("{} is cut off", 1 + at));
    }
    lines.extend(EVENTS.iter().map(|line| line.to_string()));
    lines.extend(next_deadline(&pair.model).map(|ms| format!("wait {ms}")));
    lines
}

/// Returns the milliseconds until the next deadline.
fn next_deadline(model: &Model) -> Option<u64> {
    let locks = || model.locks.values();
    let leases = locks()
        .flat_map(|lock| &lock.holds)
        .map(|hold| hold.deadline);
    let quarantine = Some(model.policy.quarantine_until.0).filter(|_| model.quarantined());
    let windows = locks()
        .flat_map(|lock| &lock.queue)
        .filter_map(|place| place.kept_until);
    let waits = model.waits.iter().filter_map(|wait| wait.until);
    let wall = leases.map(|at| at - model.now);
    let steady = windows.chain(waits).chain(quarantine);
    wall.chain(steady.map(|at| at - model.steady)).min()
}

/// Names for owners and keys, by their numbers.
struct Names<'n> {
    owners: &'n [u64],
    keys: [u64; 2],
}

impl Names<'_> {
    fn owner(&self, owner: &str) -> u64 {
        let at = OWNERS.iter().position(|other| *other == owner);
        self.owners[at.expect("one of the owners")]
    }

    fn key(&self, key: &str) -> u64 {
        let at = KEYS.iter().position(|other| key.ends_with(other));
        self.keys[at.expect("one of the keys")]
    }

    /// Returns the connection of an owner.
    fn client(&self, client: u64) -> u64 {
        let (nth, owner) = ((client - 1) / 3, (client - 1) % 3);
        3 * nth + self.owners[owner as usize]
    }
}

/// Returns the state under other names, as numbers that are equal for equal states.
fn picture(pair: &Pair, names: &Names) -> Vec<u64> {
    const END: u64 = u64::MAX;
    let model = &pair.model;
    let mut grants: Vec<u64> = Vec::new();
    let mut arrivals: Vec<u64> = Vec::new();
    for lock in model.locks.values() {
        grants.extend(lock.holds.iter().map(|hold| hold.grant));
        arrivals.extend(lock.queue.iter().map(|place| place.arrival));
    }
    grants.sort_unstable();
    arrivals.sort_unstable();
    // A number that only orders by age counts by its rank.
    let rank = |all: &[u64], one: u64| all.iter().filter(|other| **other < one).count() as u64;
    let wait = |id: u64| {
        model
            .waits
            .iter()
            .position(|wait| wait.id == id)
            .unwrap_or(0) as u64
    };
    let option = |number: Option<u64>| number.map_or(END, |number| number);
    let mut locks: Vec<(u64, &String, &Lock)> = model
        .locks
        .iter()
        .map(|(key, lock)| (names.key(key), key, lock))
        .collect();
    locks.sort_unstable_by_key(|(key, ..)| *key);
    let mut numbers = Vec::new();
    for (name, key, lock) in locks {
        numbers.extend([name, u64::from(lock.foreign)]);
        let mut holds: Vec<_> = lock.holds.iter().collect();
        holds.sort_unstable_by_key(|hold| hold.grant);
        for hold in holds {
            let ephemeral = hold.ephemeral().map(|client| names.client(client));
            let (owner, grant) = (names.owner(&hold.owner), rank(&grants, hold.grant));
            let left = hold.deadline - model.now;
            numbers.extend([
                owner,
                grant,
                hold.holds.into(),
                left,
                hold.limit as u64,
                hold.permits as u64,
                option(ephemeral),
            ]);
        }
        numbers.push(END);
        for place in lock.in_order() {
            let kept = place.kept_until.map(|until| until - model.steady);
            let (owner, arrival) = (names.owner(&place.owner), rank(&arrivals, place.arrival));
            let ahead = u64::from(lock.upgrade.as_ref() == Some(place));
            let share = [place.limit as u64, place.permits as u64];
            numbers.extend([ahead, owner, arrival, share[0], share[1]]);
            numbers.extend([
                option(place.claim),
                option(kept),
                option(place.wait.map(wait)),
            ]);
        }
        numbers.push(END);
        let key = key.trim_start_matches("0:");
        numbers.extend(stored(pair, key, names).unwrap_or_default());
        numbers.push(END);
    }
    for wait in &model.waits {
        let asked = &wait.asked;
        let until = wait.until.map(|until| until - model.steady);
        let (owner, client) = (names.owner(&asked.owner), names.client(asked.client));
        let ticket = option(asked.ticket);
        numbers.extend([
            owner,
            client,
            u64::from(asked.many),
            asked.limit as u64,
            asked.permits as u64,
            ticket,
            option(until),
        ]);
        numbers.push(u64::from(asked.ephemeral));
        let mut keys: Vec<u64> = asked.keys.iter().map(|key| names.key(key)).collect();
        keys.sort_unstable();
        numbers.extend(keys);
    }
    numbers.push(END);
    let mut cut: Vec<u64> = model
        .cut
        .iter()
        .map(|client| names.client(*client))
        .collect();
    cut.sort_unstable();
    numbers.extend(cut);
    let quarantine = model.policy.quarantine_until.0.saturating_sub(model.steady);
    numbers.extend([END, u64::from(model.policy.grants), quarantine]);
    numbers
}

/// Returns the stored value at a key in the engine's world.
fn stored(pair: &Pair, key: &str, names: &Names) -> Option<Vec<u64>> {
    let lock = pair.world.primary.keys.lock(&name(0, key))?;
    let mut numbers = vec![u64::from(lock.watched())];
    for (_, ticket) in lock.tickets() {
        let owner = names.owner(&String::from_utf8_lossy(&ticket.owner));
        let Share { limit, permits } = ticket.share;
        numbers.extend([owner, ticket.claim, u64::from(limit.to_wire())]);
        numbers.push(u64::from(permits.get()));
    }
    Some(numbers)
}

/// Returns the engine's deadlines.
fn hidden(pair: &Pair) -> Vec<u64> {
    let (engine, now) = (&pair.world.primary.engine, pair.world.now);
    let holds = engine.holds();
    let timers = format!("{:?} {:?}", holds.timers, holds.ties.renewals);
    let at = |text: &str| text.split(')').next().and_then(|at| at.parse::<u64>().ok());
    let mut times: Vec<u64> = timers.split("SteadyMs(").skip(1).filter_map(at).collect();
    times.iter_mut().for_each(|at| *at -= now.steady().0);
    times.sort_unstable();
    times.push(engine.next_wakeup(now).unwrap_or(u64::MAX));
    times
}

/// Returns a number that equal states share.
fn identity(pair: &Pair) -> u64 {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let named = orders
        .iter()
        .flat_map(|owners| [[0, 1], [1, 0]].map(|keys| picture(pair, &Names { owners, keys })));
    let mut hasher = DefaultHasher::new();
    named.min().hash(&mut hasher);
    hidden(pair).hash(&mut hasher);
    hasher.finish()
}

/// How the search reached a state: by a line, from another state.
struct Step {
    from: usize,
    line: String,
}

/// All states found so far.
struct Exploration {
    fault: Option<Fault>,
    deep: bool,
    steps: Vec<Step>,
    known: HashSet<u64>,
    /// The states from which the search continues.
    frontier: Vec<usize>,
}

/// The first sequence that shows a difference, and the difference.
#[derive(Debug)]
pub struct Difference {
    pub lines: Vec<String>,
    pub what: String,
}

impl Exploration {
    fn new(fault: Option<Fault>, deep: bool) -> Exploration {
        let line = String::new();
        Exploration {
            fault,
            deep,
            steps: vec![Step { from: 0, line }],
            known: HashSet::new(),
            frontier: vec![0],
        }
    }

    /// Returns the lines that lead to a state.
    fn path(&self, mut state: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while state > 0 {
            lines.push(self.steps[state].line.clone());
            state = self.steps[state].from;
        }
        lines.reverse();
        lines
    }

    /// Takes one more step from all states. Returns the number of steps tried.
    fn deepen(&mut self) -> Result<usize, Difference> {
        let frontier = std::mem::take(&mut self.frontier);
        let half = frontier.len().div_ceil(2);
        let (one, other) = frontier.split_at(half);
        let found = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.go_on(other));
            let one = self.go_on(one);
            [one, other.join().expect("the thread ended without a panic")]
        });
        let mut tried = 0;
        for found in found {
            let (steps, count) = found?;
            tried += count;
            for (identity, step) in steps {
                if self.known.insert(identity) {
                    self.frontier.push(self.steps.len());
                    self.steps.push(step);
                }
            }
        }
        Ok(tried)
    }

    /// Tries every next step in these states. Returns the states reached, and the number of steps tried.
    fn go_on(&self, states: &[usize]) -> Result<(Vec<(u64, Step)>, usize), Difference> {
        let (mut fresh, mut here, mut tried) = (Vec::new(), HashSet::new(), 0);
        for &from in states {
            let path = self.path(from);
            let before = self.replay(&path);
            for line in lines(&before, self.deep) {
                tried += 1;
                let mut pair = before.clone();
                if let Err(what) = go(&mut pair, &line) {
                    let lines = [path, vec![line]].concat();
                    return Err(Difference { lines, what });
                }
                let identity = identity(&pair);
                if !self.known.contains(&identity) && here.insert(identity) {
                    fresh.push((identity, Step { from, line }));
                }
            }
        }
        Ok((fresh, tried))
    }

    fn replay(&self, lines: &[String]) -> Pair {
        let mut pair = Pair::new(policy());
        pair.world.fault = self.fault;
        for line in lines {
            go(&mut pair, line).expect("the step succeeded before");
        }
        pair
    }
}

fn go(pair: &mut Pair, line: &str) -> Result<(), String> {
    pair.act(&Reader::default().read(line)?)
}

/// Returns true if the search can try these lines.
pub fn says(said: &[&str]) -> bool {
    let mut pair = Pair::new(policy());
    said.iter().all(|said| {
        let known = lines(&pair, said.len() > DEPTH)
            .iter()
            .any(|line| line == said);
        known && go(&mut pair, said).is_ok()
    })
}

/// Explores to this depth, or to a difference. Prints its progress.
pub fn explore(depth: usize, fault: Option<Fault>) -> Result<(), Difference> {
    let mut exploration = Exploration::new(fault, depth > DEPTH);
    for step in 1..=depth {
        let tried = exploration.deepen()?;
        let (fresh, all) = (exploration.frontier.len(), exploration.steps.len());
        println!("depth {step}: {tried} steps, {fresh} new states, {all} in all");
    }
    Ok(())
}

#[test]
fn every_sequence_does_what_the_model_does() {
    let depth =
        std::env::var("DLOCK_DEPTH").map_or(DEPTH, |depth| depth.parse().expect("a number"));
    if let Err(Difference { lines, what }) = explore(depth, None) {
        panic!("{}\n\n{what}", lines.join("\n"));
    }
}
