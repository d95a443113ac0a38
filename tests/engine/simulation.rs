//! A primary, a replica, and clients of all manners, driven by a seed; everything promised is checked after each step.

use crate::client::Client;
use crate::commands::Reply;
use crate::engine::{Ask, Limit, Millis, Name, Outcome, Policy, Wait};
use crate::faults::Fault;
use crate::invariants::{self, Broken};
use crate::picture::Picture;
use crate::random::{for_seeds, Random};
use crate::world::{name, Op, World};

const CLIENTS: u64 = 8;
const OWNERS: [&str; 6] = [
    "ada",
    "ben",
    "cyd",
    "dan",
    "eve",
    "an-owner-too-long-for-the-small-form-of-a-lock",
];
const KEYS: [&str; 3] = ["shop", "yard", "mill"];
const LIMITS: [Limit; 3] = [Limit::EXCLUSIVE, Limit::SHARED, Limit::EXCLUSIVE];

/// One run.
pub struct Simulation {
    random: Random,
    pub world: World,
    before: Picture,
    /// Whether clients ask with limits, which goes past the commands.
    limits: bool,
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
        let mut world = World::new(policy);
        // A planted fault must be seen at once, not when the replica has caught up.
        world.lag = plan.is_none() && random.chance(30);
        let before = Picture::take(&mut world);
        let limits = random.chance(50);
        Simulation {
            random,
            world,
            before,
            limits,
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
            50..=76 => self.time(),
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

    fn client(&mut self) -> Client {
        let id = 1 + self.random.below(CLIENTS);
        let busy = self.world.waits.values().any(|wait| wait.client == id);
        match busy || self.random.chance(5) {
            true => Client::script(id + CLIENTS),
            false => Client::connection(id),
        }
    }

    fn command(&mut self) {
        let (client, name, owner) = (self.client(), self.key(), *self.random.pick(&OWNERS));
        if self.limits && self.random.chance(50) {
            return self.ask(client, &name, owner);
        }
        let mut words = vec![
            self.verb().to_string(),
            String::from_utf8_lossy(&name.key).into_owned(),
        ];
        let verb = words[0].clone();
        if verb != "FORCERELEASE" || self.random.chance(50) {
            words.push(owner.into());
        }
        if ["ACQUIRE", "FAIRACQUIRE", "RENEW"].contains(&verb.as_str()) && self.random.chance(80) {
            words.push((1 + self.random.below(2_000)).to_string());
        }
        let mut option =
            |words: &mut Vec<String>, percent: u64, word: &str, least: u64, bound: u64| {
                if self.random.chance(percent) {
                    let value = least + self.random.below(bound);
                    words.extend([word.to_string(), value.to_string()]);
                }
            };
        if verb.ends_with("ACQUIRE") {
            option(&mut words, 70, "BLOCK", 0, 1_000);
            option(&mut words, 20, "HOLDS", 1, 3);
        }
        if verb == "FAIRACQUIRE" {
            option(&mut words, 30, "CLAIM", 1, 700);
        }
        if verb == "RELEASE" {
            option(&mut words, 30, "HOLDS", 0, 2);
        }
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let answer = self.world.send(client, name.db, &bytes);
        let answer = match answer {
            Ok(Reply::Wait(id, _)) => format!("waits as {id}"),
            other => format!("{other:?}"),
        };
        self.diary.push(format!(
            "client {} db {}: {} -> {answer}",
            client.id,
            name.db,
            words.join(" ")
        ));
        self.world.tick();
    }

    fn verb(&mut self) -> &'static str {
        match self.random.below(100) {
            0..=34 => "ACQUIRE",
            35..=64 => "FAIRACQUIRE",
            65..=84 => "RELEASE",
            85..=91 => "RENEW",
            92..=94 => "CANCEL",
            95..=97 => "FORCERELEASE",
            _ => "HELD",
        }
    }

    fn ask(&mut self, client: Client, name: &Name, owner: &str) {
        let random = &mut self.random;
        let wait = match random.below(3) {
            _ if !client.may_wait => Wait::No,
            0 => Wait::No,
            1 => Wait::For(None),
            _ => Wait::For(Some(1 + random.below(1_000))),
        };
        let ticket = match random.below(4) {
            0 => Some(1 + random.below(700)),
            1 if wait != Wait::No => Some(0),
            _ => None,
        };
        let limit = match random.below(2) {
            0 => *random.pick(&LIMITS),
            _ => Limit::from_wire(2 + random.below(3) as u32).expect("a limit"),
        };
        let lease = 1 + random.below(2_000);
        let ask = Ask {
            owner: owner.as_bytes(),
            lease,
            wait,
            holds: None,
            limit,
            ticket,
            session: false,
            channel: None,
            client: client.id,
        };
        let answer = self.world.ask(name, &ask);
        self.diary.push(format!(
            "{}:{:?} {owner} {ask:?} -> {answer:?}",
            name.db,
            String::from_utf8_lossy(&name.key)
        ));
        self.world.tick();
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
        let client = 1 + self.random.below(CLIENTS);
        self.diary.push(format!("client {client} dies"));
        self.world.dies(client);
        self.world.tick();
    }

    fn cut(&mut self) {
        let client = 1 + self.random.below(CLIENTS);
        self.diary.push(format!("client {client} is cut off"));
        self.world.cut.insert(client);
    }

    fn surgery(&mut self) -> bool {
        let (one, other) = (self.key(), self.key());
        let op = match self.random.below(12) {
            0..=3 => Op::Del(one),
            4..=5 => Op::Rename(one, other),
            6 => Op::Overwrite(one),
            7 => Op::Flush(Some(one.db)).clone(),
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
    }

    /// Everyone goes home: all is given back, all connections end, all times run out.
    fn end(&mut self) -> Result<(), Broken> {
        self.diary.push("the end".into());
        self.world.configure(|policy| policy.grants = true);
        self.world.resume();
        for client in 1..=CLIENTS {
            self.world.dies(client);
        }
        self.look(true)?;
        // Beyond every lease, window and quarantine; what expires by its TTL is the server's.
        for _ in 0..10 {
            self.world.pass(60_000);
            self.world.expire_keys();
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
    for_seeds(100, |seed| simulate(seed, 300));
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
        match one.iter().zip(&other).find(|(one, other)| one != other) {
            None => Ok(()),
            Some((one, other)) => Err(format!("once: {one}\nthen: {other}")),
        }
    });
}
