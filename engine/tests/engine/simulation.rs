//! A primary, a replica, and clients of all kinds, driven by a seed; every promise is checked after each step.

use crate::faults::Fault;
use crate::generator::{some_of, Wishes};
use crate::invariants::{self, Broken};
use crate::random::{for_seeds, for_some_seeds, Random};
use crate::script::{Act, Reader};
use crate::snapshot::Picture;
use crate::ties;
use crate::transcript::Labels;
use crate::world::{name, Waiting, World};
use dlock_engine::{End, Millis, Policy, Token};

const CLIENTS: u64 = 8;
const OWNERS: [&str; 6] = [
    "ada",
    "ben",
    "cyd",
    "dan",
    "eve",
    "an-owner-too-long-for-the-small-form-of-a-lock",
];
const LONGEST_MS: Millis = 60_000;
const KEYS: [&str; 4] = ["shop", "yard", "mill", "loft"];

struct Simulation {
    random: Random,
    world: World,
    before: Picture,
    /// The open connections; one that ends makes room for another.
    connections: Vec<u64>,
    generator: Wishes,
    /// The last token when a server last began to decide.
    began_at: Token,
    /// How many times in a hundred an owner keeps to its own connection.
    faithful: u64,
    /// The lines so far, for the report of a failure.
    lines: Vec<String>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random::new(seed);
        let default = Policy::default().deadlock_max_steps;
        let policy = Policy {
            claim_window_ms: 300,
            max_lease_ms: LONGEST_MS,
            max_restored_ms: LONGEST_MS,
            max_hold_ms: if random.chance(20) { 3_000 } else { 0 },
            max_queue: if random.chance(10) { 3 } else { 100_000 },
            deadlock_detection: random.chance(70),
            deadlock_max_steps: if random.chance(10) {
                1 + random.below(20) as usize
            } else {
                default
            },
            ..Policy::default()
        };
        let mut world = World::new(policy);
        world.lag = random.chance(30);
        world.late = random.chance(50);
        let before = Picture::take(&mut world);
        let generator = Wishes {
            limits: random.chance(50),
            lease: *random.pick(&[2_000, 20_000]),
            block: 1_000,
            claim: 700,
            auto: true,
            bounded: random.chance(50),
        };
        Simulation {
            faithful: *random.pick(&[0, 50, 90]),
            random,
            world,
            before,
            connections: (1..=CLIENTS).collect(),
            generator,
            began_at: Token(0),
            lines: Vec::new(),
        }
    }

    /// Runs `steps` steps, gives everything back, and looks for leaks.
    fn run(&mut self, steps: usize) -> Result<(), Broken> {
        for _ in 0..steps {
            self.step()?;
        }
        self.end()?;
        invariants::no_leak(&self.world)
    }

    fn step(&mut self) -> Result<(), Broken> {
        let line = match self.world.writable {
            true => self.line(),
            // A paused server gets no command that writes, but time passes and connections end.
            false => match self.random.below(4) {
                0 => self.time(),
                1 => self.death(),
                2 => format!("{} is cut off", self.client()),
                _ => "resume".into(),
            },
        };
        self.go(&line)?;
        // A value at a lock that must not move is put right later.
        let settled = self.world.primary.keys.leaving.is_empty();
        match self.random.chance(20) {
            true if settled => invariants::round_trip(&self.world),
            _ => Ok(()),
        }
    }

    /// Performs a line, and checks every promise.
    fn go(&mut self, line: &str) -> Result<(), Broken> {
        self.lines.push(line.to_string());
        let act = Reader::default().read(line).expect("a line");
        self.world.act(&act, &Labels::new());
        if matches!(act, Act::Restart | Act::Crash { .. } | Act::Failover) {
            self.began_at = self.world.last_token;
        }
        if self.world.turn_goes_on {
            return Ok(());
        }
        // After a stall a command may come before the timer.
        if !matches!(act, Act::Stall(_)) || !self.world.writable || self.random.chance(50) {
            self.world.tick();
        } else {
            return Ok(());
        }
        let after = Picture::take(&mut self.world);
        for heard in &after.heard {
            let outcome = &heard.outcome;
            self.lines
                .push(format!("  {}: {outcome:?}", heard.asked.shown()));
        }
        invariants::check(&self.before, &after, act.is_orderly())?;
        ties::ties_stay(&act, &self.before, &after)?;
        self.before = after;
        Ok(())
    }

    /// Releases a lock, in one iteration of the event loop with the next command; none if no lock is held.
    fn release_in_a_turn(&mut self) -> Option<String> {
        let mut held = Vec::new();
        for key in KEYS {
            let lock = self.world.primary.keys.lock(&name(0, key));
            let owners = lock.into_iter().flat_map(|lock| lock.holds());
            held.extend(owners.map(|hold| (key, String::from_utf8_lossy(hold.owner).into_owned())));
        }
        let client = self.client();
        let blocked = |wait: &Waiting| wait.client == client;
        let busy = self.world.cut.contains(&client) || self.world.waits.values().any(blocked);
        if held.is_empty() || busy {
            return None;
        }
        let (key, owner) = self.random.pick(&held);
        Some(format!(
            "{client} (pipelined): RELEASE {key} {owner} HOLDS 0"
        ))
    }

    /// Returns the next command of that turn on this connection: one of an owner whose grant was not delivered, if there is one.
    fn behind(&mut self) -> String {
        let last = self
            .lines
            .iter()
            .rev()
            .find_map(|line| line.split_once(" (pipelined)"));
        let client = last.map_or("1", |(client, _)| client).to_string();
        let unheard = self
            .world
            .unheard
            .iter()
            .filter(|promise| promise.name.db == 0);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let unheard: Vec<(String, String)> = unheard
            .map(|promise| (text(&promise.name.key), text(&promise.owner)))
            .collect();
        let (key, owner) = match unheard.is_empty() {
            true => (
                self.random.pick(&KEYS).to_string(),
                self.random.pick(&OWNERS).to_string(),
            ),
            false => self.random.pick(&unheard).clone(),
        };
        let words = match self.random.below(6) {
            0 => format!("ACQUIRE {key} {owner} 2000 HOLDS 1"),
            1 => format!("ACQUIRE {key} {owner} 2000 EPHEMERAL"),
            2 => format!("RENEW {key} {owner} 2000"),
            3 => format!("DOWNGRADE {key} {owner} SHARED"),
            4 => format!("RELEASE {key} {owner} HOLDS 1"),
            _ => format!("HELD {key} {owner}"),
        };
        format!("{client}: {words}")
    }

    fn line(&mut self) -> String {
        if self.world.turn_goes_on {
            return self.behind();
        }
        if self.random.chance(3) {
            if let Some(line) = self.release_in_a_turn() {
                return line;
            }
        }
        if !self.world.primary.keys.leaving.is_empty() && self.random.chance(10) {
            return self.slot();
        }
        // A state in which most requests fail does not last.
        let longest = self.world.primary.engine.policy().max_lease_ms;
        if longest < LONGEST_MS && self.random.chance(10) {
            return format!("config max-lease-ms {LONGEST_MS}");
        }
        match self.random.below(100) {
            0..=49 => self.command(),
            50..=71 => self.time(),
            72..=76 => "heartbeat".into(),
            77..=82 => self.death(),
            83..=86 => format!("{} is cut off", self.client()),
            87..=93 => self.surgery(),
            94..=95 => self.upheaval(),
            96 if self.random.chance(50) => "pause".into(),
            96 => self.slot(),
            97 => "sync".into(),
            98 => format!(
                "config deadlock-detection {}",
                *self.random.pick(&["no", "yes"])
            ),
            _ => self.setting(),
        }
    }

    /// Begins the migration of the slot of all keys, or ends it.
    fn slot(&mut self) -> String {
        let goes = match self.world.primary.keys.leaving.is_empty() {
            true => "migrates",
            false => "returns",
        };
        let named = |key: &&str| format!("{key}@0 {key}@1");
        let keys: Vec<String> = KEYS.iter().map(named).collect();
        format!("slot of {} {goes}", keys.join(" "))
    }

    fn setting(&mut self) -> String {
        match self.random.below(6) {
            0..=2 => format!("config grants {}", *self.random.pick(&["no", "yes", "yes"])),
            3 => format!("config max-lease-ms {}", 1 + self.random.below(2_000)),
            4 => format!("config quarantine-ms {}", 1 + self.random.below(2_000)),
            _ => format!("config max-hold-ms {}", *self.random.pick(&[0, 3_000])),
        }
    }

    fn client(&mut self) -> u64 {
        *self.random.pick(&self.connections)
    }

    fn key(&mut self) -> String {
        let db = u32::from(self.random.chance(10));
        format!("{}@{db}", self.random.pick(&KEYS))
    }

    fn command(&mut self) -> String {
        let client = self.client();
        // A busy one stands for a script, or for another module, that runs in its name.
        let mut waits = self.world.waits.values();
        let busy = waits.any(|wait| wait.client == client);
        let may_wait = !busy && !self.random.chance(5);
        let db = u32::from(self.random.chance(10));
        let who = format!("{client}@{db}{}", if may_wait { "" } else { " (script)" });
        let owner = match self.random.chance(self.faithful) {
            true => OWNERS[client as usize % OWNERS.len()],
            false => self.random.pick::<&str>(&OWNERS),
        };
        let verb = match self.random.below(100) {
            0..=29 => "ACQUIRE",
            30..=49 => "FAIRACQUIRE",
            50..=66 => "MACQUIRE",
            67..=78 => "RELEASE",
            79..=84 => "MRELEASE",
            85..=88 => "RENEW",
            89..=90 => "MRENEW",
            91..=92 => "DOWNGRADE",
            93..=95 => "CANCEL",
            96..=97 => "FORCERELEASE",
            _ => "HELD",
        };
        let locks = match verb.starts_with('M') {
            true => some_of(&mut self.random, &KEYS),
            false => self.random.pick(&KEYS).to_string(),
        };
        let words = match verb.ends_with("ACQUIRE") {
            true => self
                .generator
                .request(&mut self.random, verb, &locks, owner, may_wait),
            false => self
                .generator
                .other(&mut self.random, verb, &locks, owner, may_wait),
        };
        format!("{who}: {words}")
    }

    fn time(&mut self) -> String {
        let ms: Millis = match self.random.below(10) {
            0..=3 => self.random.below(10),
            4..=8 => self.random.below(400),
            _ => self.random.below(4_000),
        };
        format!(
            "{} {ms}",
            if self.random.chance(30) {
                "stall"
            } else {
                "wait"
            }
        )
    }

    fn death(&mut self) -> String {
        let at = self.random.below(CLIENTS) as usize;
        let next = self.connections.iter().max().unwrap_or(&0) + 1;
        format!(
            "{} dies",
            std::mem::replace(&mut self.connections[at], next)
        )
    }

    fn surgery(&mut self) -> String {
        let (one, other) = (self.key(), self.key());
        let stays = self.world.primary.keys.leaving.is_empty();
        match self.random.below(14) {
            0..=3 => format!("del {one}"),
            4..=5 => format!("rename {one} {other}"),
            12 => format!("behind rename {one} {other}"),
            13 => format!("behind set {one}"),
            6 => format!("set {one}"),
            7..=8 => "flush".into(),
            // A cluster does not swap databases.
            9 if stays => "swap 0 1".into(),
            // Nor does a user restore a value in a migrating slot.
            _ if stays => format!("copy {one} {other}"),
            _ => format!("del {one}"),
        }
    }

    fn upheaval(&mut self) -> String {
        match self.random.below(4) {
            0 if self.world.replica_may_decide(0) => match self.random.chance(50) {
                true => format!("crash quarantine {}", self.random.below(1_000)),
                false => "crash".into(),
            },
            1 if self.world.now.us > self.world.last_token.0 => "restart".into(),
            2 => {
                // A server that has started again, and has granted nothing since, knows the last token by its clock only.
                let back = match self.began_at == self.world.last_token {
                    true => 0,
                    false => 300,
                };
                format!("clock {}", self.random.below(1_000) as i64 - back)
            }
            _ if self.world.replica_may_decide(0) => "failover".into(),
            _ => "sync".into(),
        }
    }

    /// Gives everything back, ends all connections, and lets all times run out.
    fn end(&mut self) -> Result<(), Broken> {
        self.go("resume")?;
        self.go("config grants yes")?;
        if !self.world.primary.keys.leaving.is_empty() {
            let line = self.slot();
            self.go(&line)?;
        }
        for client in self.connections.clone() {
            self.go(&format!("{client} dies"))?;
        }
        // Beyond every lease, window and quarantine; the server removes the keys whose TTL runs out.
        for _ in 0..10 {
            self.go("wait 60000")?;
            self.go("heartbeat")?;
        }
        self.go("flush")
    }
}

/// Runs a simulation and prints its course on a failure.
fn simulate(seed: u64) -> Result<(), String> {
    let mut simulation = Simulation::new(seed);
    let run = simulation.run(300);
    run.map_err(|Broken(rule, what)| {
        let from = simulation.lines.len().saturating_sub(60);
        format!(
            "{}\n\n{rule:?}: {what}",
            simulation.lines[from..].join("\n")
        )
    })
}

#[test]
fn every_promise_holds() {
    for_some_seeds(200, 6_000, simulate);
}

/// A run that never meets a case proves nothing about it.
#[test]
fn the_runs_come_by_everything() {
    let mut seen = [0; 5];
    for seed in 1..=25 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..300 {
            simulation
                .step()
                .unwrap_or_else(|broken| panic!("{broken:?}"));
            let after = &simulation.before;
            let many = after.answers.iter().filter(|answer| answer.names.len() > 1);
            let (at_once, later): (Vec<_>, Vec<_>) = many.partition(|answer| answer.at_once);
            let ephemeral = after.over.iter().filter(|(_, end, _)| *end == End::Closed);
            let lost = after.heard.iter().filter(|heard| heard.lost);
            let counts = [
                after.refused.len(),
                at_once.len(),
                later.len(),
                ephemeral.count(),
                lost.count(),
            ];
            seen.iter_mut()
                .zip(counts)
                .for_each(|(seen, count)| *seen += count);
        }
    }
    let names = [
        "requests refused for a deadlock",
        "many locks granted at once",
        "many locks granted after waiting",
        "ephemeral holds closed",
        "undelivered answers",
    ];
    for (name, count) in names.iter().zip(seen) {
        assert!(count >= 10, "{name}: {count}");
    }
}

/// These runs also find what only a late server does wrong.
#[test]
fn the_runs_find_what_only_a_late_server_does_wrong() {
    let found = (1..=100).find(|seed| {
        let mut simulation = Simulation::new(*seed);
        simulation.world.fault = Some(Fault::TimesOutFirst);
        simulation.run(300).is_err()
    });
    assert!(found.is_some(), "it is not found");
}

/// The engine has no clock and no randomness: its inputs determine what it does. Otherwise a seed would not reproduce a fault.
#[test]
fn the_same_seed_gives_the_same_run() {
    for_seeds(10, |seed| {
        let run = || {
            let mut simulation = Simulation::new(seed);
            drop(simulation.run(300));
            simulation.lines
        };
        let (one, other) = (run(), run());
        match one.iter().zip(&other).find(|(one, other)| one != other) {
            None => Ok(()),
            Some((one, other)) => Err(format!("once: {one:?}\nthen: {other:?}")),
        }
    });
}
