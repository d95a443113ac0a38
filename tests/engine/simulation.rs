//! A primary, a replica, and clients of all manners, driven by a seed; everything promised is checked after each step.

use crate::client::Client;
use crate::commands::Reply;
use crate::engine::change::End;
use crate::engine::{Millis, Name, Outcome, Policy};
use crate::faults::Fault;
use crate::invariants::{self, Broken};
use crate::picture::Picture;
use crate::random::{for_seeds, Random};
use crate::world::{name, Answered, Op, Waiting, World};

const CLIENTS: u64 = 8;
const OWNERS: [&str; 6] = [
    "ada",
    "ben",
    "cyd",
    "dan",
    "eve",
    "an-owner-too-long-for-the-small-form-of-a-lock",
];
const KEYS: [&str; 4] = ["shop", "yard", "mill", "loft"];

/// One run.
pub struct Simulation {
    random: Random,
    pub world: World,
    before: Picture,
    /// The connections there are; one that ends makes room for another.
    connections: Vec<u64>,
    /// Whether clients ask with limits.
    limits: bool,
    /// In how many cases of a hundred an owner keeps to its own connection, and how long leases are.
    faithful: u64,
    longest_lease: Millis,
    /// What was done, for a failure to be read.
    diary: Vec<String>,
    /// A fault to be planted as soon as there is an occasion.
    plan: Option<Fault>,
}

impl Simulation {
    pub fn new(seed: u64, plan: Option<Fault>) -> Simulation {
        let mut random = Random::new(seed);
        let mut policy = Policy {
            claim_window_ms: 300,
            max_lease_ms: 60_000,
            ..Policy::default()
        };
        if random.chance(20) {
            policy.max_hold_ms = 3_000;
        }
        if random.chance(10) {
            policy.max_queue = 3;
        }
        if random.chance(30) {
            policy.deadlock_detection = false;
        }
        if random.chance(10) {
            policy.deadlock_max_steps = random.below(20) as usize;
        }
        let mut world = World::new(policy);
        // A planted fault must be seen at once, not when the replica has caught up.
        world.lag = plan.is_none() && random.chance(30);
        let before = Picture::take(&mut world);
        let limits = random.chance(50);
        let faithful = *random.pick(&[0, 50, 90]);
        let longest_lease = *random.pick(&[2_000, 20_000]);
        Simulation {
            random,
            world,
            before,
            connections: (1..=CLIENTS).collect(),
            limits,
            faithful,
            longest_lease,
            diary: Vec::new(),
            plan,
        }
    }

    /// Runs so many steps, gives everything back, and looks for what is left.
    pub fn run(&mut self, steps: usize) -> Result<(), Broken> {
        for _ in 0..steps {
            self.step()?;
        }
        self.end()?;
        invariants::no_leak(&self.world)
    }

    fn step(&mut self) -> Result<(), Broken> {
        self.plant();
        let orderly = self.act();
        self.note_news();
        if self.random.chance(20) {
            invariants::round_trip(&self.world)?;
        }
        self.look(orderly)
    }

    fn look(&mut self, orderly: bool) -> Result<(), Broken> {
        let mut after = Picture::take(&mut self.world);
        if let Some(fault) = self.plan.filter(|_| orderly) {
            if fault.forge(&self.before, &mut after) {
                self.plan = None;
            }
        }
        invariants::check(&self.before, &after, orderly)?;
        self.before = after;
        Ok(())
    }

    /// Puts a planned fault into the world, if it is of that kind.
    fn plant(&mut self) {
        if let Some(fault) = self.plan.filter(|fault| fault.in_the_world()) {
            self.world.fault = Some(fault);
            self.plan = None;
        }
    }

    /// Does something. Gives whether no key came or went by other means than the module's.
    fn act(&mut self) -> bool {
        if !self.world.writable {
            return self.act_while_paused();
        }
        match self.random.below(100) {
            0..=49 => self.command(),
            50..=71 => self.time(),
            72..=76 => self.heartbeat(),
            77..=82 => self.death(),
            83..=86 => self.cut(),
            87..=93 => return self.surgery(),
            94..=95 => return self.upheaval(),
            96 => self.world.writable = self.random.chance(20),
            97 => self.world.sync(),
            _ => self.configure(),
        }
        true
    }

    /// While writes are paused, the server gets no command that writes, but time passes, connections end and keys
    /// expire on their own.
    fn act_while_paused(&mut self) -> bool {
        match self.random.below(4) {
            0 => self.time(),
            1 => self.death(),
            2 => self.cut(),
            _ => {
                self.diary.push("resume".into());
                self.world.resume();
            }
        }
        true
    }

    fn key(&mut self) -> Name {
        let db = u32::from(self.random.chance(10));
        let key = *self.random.pick(&KEYS);
        name(db, key)
    }

    /// A connection: one that waits already stands for a script, or for another module, that runs in its name.
    fn client(&mut self) -> Client {
        let id = *self.random.pick(&self.connections);
        let busy = self.world.waits.values().any(|wait| wait.client == id);
        match busy || self.random.chance(5) {
            true => Client::script(id),
            false => Client::connection(id),
        }
    }

    fn owner(&mut self, client: Client) -> &'static str {
        match self.random.chance(self.faithful) {
            true => OWNERS[client.id as usize % OWNERS.len()],
            false => self.random.pick::<&str>(&OWNERS),
        }
    }

    fn command(&mut self) {
        let client = self.client();
        let db = u32::from(self.random.chance(10));
        let verb = self.verb();
        let mut words = vec![verb.to_string()];
        if verb.starts_with('M') {
            let count = 2 + self.random.below(KEYS.len() as u64 - 1) as usize;
            let mut keys = KEYS.to_vec();
            words.push(count.to_string());
            for _ in 0..count {
                let at = self.random.below(keys.len() as u64) as usize;
                words.push(keys.remove(at).to_string());
            }
        } else {
            words.push(self.random.pick(&KEYS).to_string());
        }
        if verb != "FORCERELEASE" || self.random.chance(50) {
            words.push(self.owner(client).into());
        }
        let leased = verb.ends_with("ACQUIRE") || verb.ends_with("RENEW");
        if leased && self.random.chance(80) {
            words.push((1 + self.random.below(self.longest_lease)).to_string());
        }
        if verb.ends_with("ACQUIRE") {
            self.wish(client, verb, &mut words);
        }
        if verb == "RELEASE" && self.random.chance(30) {
            words.extend(["HOLDS".into(), self.random.below(2).to_string()]);
        }
        if verb == "DOWNGRADE" {
            words.extend(self.limit());
        }
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let answer = self.world.send(client, db, &bytes);
        let answer = match answer {
            Ok(Reply::Wait(id, _)) => format!("waits as {id}"),
            other => format!("{other:?}"),
        };
        let script = if client.may_wait { "" } else { " (script)" };
        self.diary.push(format!(
            "client {}{script} db {db}: {} -> {answer}",
            client.id,
            words.join(" ")
        ));
        self.world.tick();
    }

    /// What a request for a lock asks for.
    fn wish(&mut self, client: Client, verb: &str, words: &mut Vec<String>) {
        let random = &mut self.random;
        let mut option =
            |words: &mut Vec<String>, percent: u64, word: &str, least: u64, bound: u64| {
                if random.chance(percent) {
                    let value = least + random.below(bound);
                    words.extend([word.to_string(), value.to_string()]);
                }
            };
        option(words, 30, "BLOCK", 1, 1_000);
        option(words, 20, "HOLDS", 1, 3);
        if verb == "FAIRACQUIRE" {
            option(words, 30, "CLAIM", 1, 700);
        }
        let bounded = words.iter().any(|word| word == "BLOCK");
        if !bounded && self.random.chance(60) {
            words.extend(["BLOCK".into(), "0".into()]);
        }
        if self.limits && self.random.chance(60) {
            words.extend(self.limit());
        }
        if client.may_wait && self.random.chance(20) {
            words.push("SESSION".into());
        }
        if client.may_wait && verb != "MACQUIRE" && self.random.chance(20) {
            // Waits of one channel, lock and owner can only be told apart if none of them has an end of its own.
            let channel = match bounded {
                true => format!("news-{}", self.diary.len()),
                false => "news".into(),
            };
            words.extend(["NOTIFY".into(), channel]);
        }
    }

    fn limit(&mut self) -> Vec<String> {
        match self.random.below(4) {
            0 => vec!["LIMIT".into(), "1".into()],
            1 => vec!["LIMIT".into(), (2 + self.random.below(3)).to_string()],
            _ => vec!["SHARED".into()],
        }
    }

    fn verb(&mut self) -> &'static str {
        match self.random.below(100) {
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
        }
    }

    fn heartbeat(&mut self) {
        self.diary.push("heartbeat".into());
        self.world.heartbeat();
    }

    fn time(&mut self) {
        let ms: Millis = match self.random.below(10) {
            0..=3 => self.random.below(10),
            4..=8 => self.random.below(400),
            _ => self.random.below(4_000),
        };
        let late = self.random.chance(30);
        self.diary
            .push(format!("{} {ms} ms", if late { "late by" } else { "pass" }));
        if !late {
            self.world.pass(ms);
        } else {
            self.world.jump(ms);
            // The first to come after a stall may be a command, before the timer.
            if self.random.chance(50) && self.world.writable {
                return self.command();
            }
            self.world.tick();
        }
        if self.random.chance(50) && self.world.writable {
            self.world.expire_keys();
        }
    }

    fn death(&mut self) {
        let at = self.random.below(CLIENTS) as usize;
        let next = self.connections.iter().max().unwrap_or(&0) + 1;
        let client = std::mem::replace(&mut self.connections[at], next);
        self.diary.push(format!("client {client} dies"));
        self.world.dies(client);
        self.world.tick();
    }

    fn cut(&mut self) {
        let client = *self.random.pick(&self.connections);
        self.diary.push(format!("client {client} is cut off"));
        self.world.cut.insert(client);
    }

    fn surgery(&mut self) -> bool {
        let (one, other) = (self.key(), self.key());
        let op = match self.random.below(12) {
            0..=3 => Op::Del(one),
            4..=5 => Op::Rename(one, other),
            6 => Op::Overwrite(one),
            7 => Op::Flush(Some(one.db)),
            8 => Op::Flush(None),
            9 => Op::Swap(0, 1),
            _ => match self.world.dump(&one) {
                Some(bytes) => Op::Restore(other, bytes),
                None => Op::Del(one),
            },
        };
        self.diary.push(format!("{op:?}"));
        self.world.alter(op);
        self.world.tick();
        false
    }

    fn upheaval(&mut self) -> bool {
        let offset = self.random.below(1_000) as i64 - 500;
        if self.random.chance(50) {
            self.world.sync();
        }
        let quarantine = if self.random.chance(50) {
            self.random.below(1_000)
        } else {
            0
        };
        let what = match self.random.below(4) {
            0 if self.world.replica_may_decide(offset) => {
                self.world.crash(offset, quarantine);
                format!("crash, clock {offset} ms, quarantine {quarantine} ms")
            }
            1 if self.world.now.us > self.world.last_token => {
                self.world.restart();
                "restart".into()
            }
            _ => {
                self.world.sync();
                if self.world.replica_may_decide(0) {
                    self.world.failover();
                }
                "failover".into()
            }
        };
        self.diary.push(what);
        self.world.tick();
        false
    }

    fn configure(&mut self) {
        if self.random.chance(50) {
            let detection = self.random.chance(60);
            self.diary.push(format!("deadlock-detection {detection}"));
            self.world
                .configure(|policy| policy.deadlock_detection = detection);
            return;
        }
        let grants = self.random.chance(70);
        self.diary.push(format!("grants {grants}"));
        self.world.configure(|policy| policy.grants = grants);
    }

    fn note_news(&mut self) {
        for news in std::mem::take(&mut self.world.news) {
            let outcome = match news.outcome {
                Outcome::Granted(grant) => format!("{grant:?}"),
                other => format!("{other:?}"),
            };
            self.diary.push(format!(
                "  {} hears of {}: {outcome}",
                news.client,
                String::from_utf8_lossy(&news.names[0].key)
            ));
        }
        for (_, message) in std::mem::take(&mut self.world.messages) {
            self.diary.push(format!(
                "  {} hears of {} for {}: {:?}",
                String::from_utf8_lossy(&message.channel),
                String::from_utf8_lossy(&message.name.key),
                String::from_utf8_lossy(&message.owner),
                message.outcome,
            ));
        }
    }

    /// Everyone goes home: all is given back, all connections end, all times run out.
    fn end(&mut self) -> Result<(), Broken> {
        self.diary.push("the end".into());
        self.world.configure(|policy| policy.grants = true);
        self.world.resume();
        for client in self.connections.clone() {
            self.world.dies(client);
        }
        self.look(true)?;
        // Beyond every lease, window and quarantine; what expires by its TTL is the server's.
        for _ in 0..10 {
            self.world.pass(60_000);
            self.world.expire_keys();
            self.world.heartbeat();
            self.look(true)?;
        }
        self.world.alter(Op::Flush(None));
        self.look(false)
    }

    /// What happened, the latest part of it.
    pub fn story(&self) -> String {
        let from = self.diary.len().saturating_sub(40);
        self.diary[from..].join("\n")
    }
}

/// Runs a simulation and tells how it went.
pub fn simulate(seed: u64, steps: usize) -> Result<(), String> {
    let mut simulation = Simulation::new(seed, None);
    simulation
        .run(steps)
        .map_err(|Broken(rule, what)| format!("{}\n\n{rule:?}: {what}", simulation.story()))
}

#[test]
fn every_promise_holds() {
    for_seeds(80, |seed| simulate(seed, 300));
}

/// A run that never comes by a case proves nothing of it.
#[test]
fn the_runs_come_by_everything() {
    let mut seen = [0; 7];
    for seed in 1..=25 {
        let mut simulation = Simulation::new(seed, None);
        for _ in 0..300 {
            simulation.plant();
            simulation.act();
            let world = &mut simulation.world;
            let joined = |wait: &Waiting| {
                let shares = |other: &Waiting| {
                    other.owner == wait.owner && other.names.contains(&wait.names[0])
                };
                wait.names.len() > 1
                    && world.waits.values().filter(|other| shares(other)).count() > 1
            };
            let many = |answer: &Answered| answer.names.len() > 1;
            seen[0] += world.refused.len();
            seen[1] += world.broken.len();
            seen[2] += world.waits.values().filter(|wait| joined(wait)).count();
            seen[3] += world
                .answers
                .iter()
                .filter(|answer| many(answer) && answer.at_once)
                .count();
            seen[4] += world
                .answers
                .iter()
                .filter(|answer| many(answer) && !answer.at_once)
                .count();
            seen[5] += world.messages.len();
            seen[6] += world
                .over
                .iter()
                .filter(|(end, _)| *end == End::Session)
                .count();
            drop(Picture::take(world));
            simulation.note_news();
        }
    }
    let names = [
        "requests refused for a deadlock",
        "waits ended for one",
        "requests for many locks that share a place",
        "many locks granted at once",
        "many locks granted after waiting",
        "messages",
        "sessions ended",
    ];
    // Circles that close other than by a request are few.
    let least = [10, 1, 10, 10, 10, 10, 10];
    for ((name, count), least) in names.iter().zip(seen).zip(least) {
        assert!(count >= least, "{name}: {count}");
    }
}

/// The engine has no clock and no randomness: what it does can be told from what it was given. Without this a seed would
/// be no report of a fault.
#[test]
fn the_same_seed_gives_the_same_run() {
    for_seeds(10, |seed| {
        let run = || {
            let mut simulation = Simulation::new(seed, None);
            drop(simulation.run(300));
            simulation.diary
        };
        let (one, other) = (run(), run());
        if one == other {
            return Ok(());
        }
        let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        Err(format!(
            "once: {:?}\nthen: {:?}",
            one.get(same),
            other.get(same)
        ))
    });
}
