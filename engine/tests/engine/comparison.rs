//! The engine against the [`model`](crate::model): both receive random requests, deaths, removals, settings and times, and
//! everything is compared (see [`pair`](crate::pair)). A difference is reported as the shortest sequence that still shows it.

use crate::faults::Fault;
use crate::generator::{some_of, Wishes};
use crate::model::Wait;
use crate::pair::Pair;
use crate::random::{for_some_seeds, Random};
use crate::script::Reader;
use dlock_engine::Policy;
use std::collections::BTreeMap;

const CLIENTS: u64 = 10;
const OWNERS: [&str; 5] = ["ada", "ben", "cyd", "dan", "eve"];
const KEYS: [&str; 3] = ["shop", "yard", "mill"];
const STEPS: usize = 150;

/// The settings of a run.
#[derive(Debug, Clone)]
struct Setting {
    policy: Policy,
    /// Whether there are no replicas, and the size of a settlement step: neither makes a difference to the decisions.
    alone: bool,
    step: usize,
    generator: Wishes,
    /// Whether the wall clock steps.
    steps: bool,
}

impl Setting {
    fn new(random: &mut Random, seed: u64, limits: bool) -> Setting {
        let mut cap = |percent, few: u64| match random.chance(percent) {
            true => 1 + random.below(few) as usize,
            false => 1_000_000,
        };
        let policy = Policy {
            claim_window_ms: 200,
            deadlock_detection: seed % 5 > 1,
            max_queue: cap(20, 3),
            max_places: cap(10, 6),
            max_waiters: cap(10, 5),
            max_holders: cap(10, 2),
            max_hold_ms: if cap(20, 1) == 1 { 500 } else { 0 },
            ..Policy::default()
        };
        let (steps, long) = (random.chance(30), random.chance(50));
        Setting {
            alone: seed % 3 == 0,
            step: if seed % 2 == 0 { 1 } else { 16 },
            generator: Wishes {
                limits,
                // Circles close where leases are long.
                lease: if long { 6_000 } else { 600 },
                block: if long { 4_000 } else { 400 },
                claim: 500,
                // The server alone chooses when a hold ends that is bounded or that the wall clock ends.
                auto: policy.max_hold_ms == 0 && !steps,
                bounded: policy.max_hold_ms == 0 && !steps,
            },
            policy,
            steps,
        }
    }

    fn pair(&self) -> Pair {
        let mut pair = Pair::new(self.policy.clone());
        pair.world.primary.keys.alone = self.alone;
        pair.world.step = self.step;
        pair
    }
}

struct Run {
    random: Random,
    setting: Setting,
    pair: Pair,
    lines: Vec<String>,
}

impl Run {
    fn new(seed: u64, limits: bool) -> Run {
        let mut random = Random::new(seed);
        let setting = Setting::new(&mut random, seed, limits);
        Run {
            random,
            pair: setting.pair(),
            setting,
            lines: Vec::new(),
        }
    }

    /// Performs one more step. Errors if engine and model differ.
    fn step(&mut self) -> Result<(), String> {
        let line = self.line();
        self.lines.push(line.clone());
        let act = Reader::default().read(&line)?;
        self.pair.act(&act)
    }

    /// Releases a lock to a waiter whose connection is cut off, in one iteration of the event loop with the next command; none if
    /// there is no such lock.
    fn release_in_vain(&mut self) -> Option<String> {
        let (client, may_wait) = self.free_client();
        let model = &self.pair.model;
        let in_vain = |wait: &&Wait| model.cut.contains(&wait.asked.client);
        let waits = model.waits.iter().filter(in_vain);
        let keys = waits.flat_map(|wait| &wait.asked.keys);
        let holds = keys.flat_map(|key| {
            let holds = model
                .locks
                .get(key)
                .into_iter()
                .flat_map(|lock| &lock.holds);
            holds.map(|hold| {
                format!(
                    "{client} (pipelined): RELEASE {} {} HOLDS 0",
                    &key[2..],
                    hold.owner
                )
            })
        });
        let lines: Vec<String> = holds.filter(|_| may_wait).collect();
        (!lines.is_empty()).then(|| self.random.pick(&lines).clone())
    }

    /// Returns the next command of that turn on this connection: mostly one of an owner whose grant was not delivered.
    fn behind(&mut self, client: &str) -> String {
        let unheard: Vec<(String, String)> = self
            .pair
            .model
            .unheard
            .iter()
            .map(|unheard| (unheard.key[2..].to_string(), unheard.owner.clone()))
            .collect();
        let (key, owner) = match unheard.is_empty() {
            true => (self.key().to_string(), self.owner()),
            false => self.random.pick(&unheard).clone(),
        };
        let other = self.key();
        let lease = 1 + self.random.below(self.setting.generator.lease);
        let words = match self.random.below(12) {
            0 => format!("ACQUIRE {key} {owner} {lease}"),
            1 => format!("ACQUIRE {key} {owner} 1 HOLDS 1 SHARED"),
            2 => format!("FAIRACQUIRE {key} {owner} {lease} HOLDS 1 BLOCK 0"),
            3 if other != key => format!("MACQUIRE 2 {other} {key} {owner} {lease} SHARED"),
            3 | 4 => format!("RENEW {key} {owner} {lease}"),
            5 => format!("MRENEW 1 {key} {owner} {lease}"),
            6 => format!("DOWNGRADE {key} {owner} SHARED"),
            7 => format!("RELEASE {key} {owner}"),
            8 => format!("RELEASE {key} {owner} HOLDS 1"),
            9 => format!("MRELEASE 1 {key} {owner}"),
            10 => format!("FORCERELEASE {key} {owner}"),
            _ => format!("HELD {key} {owner}"),
        };
        format!("{client}: {words}")
    }

    fn line(&mut self) -> String {
        let pipelined = self
            .lines
            .last()
            .and_then(|line| line.split_once(" (pipelined)"));
        if let Some((client, _)) = pipelined {
            let client = client.to_string();
            return self.behind(&client);
        }
        if self.random.chance(20) {
            if let Some(line) = self.release_in_vain() {
                return line;
            }
        }
        let model = &self.pair.model;
        let cut: Vec<u64> = model.cut.iter().copied().collect();
        let other_type = KEYS.iter().find(|key| {
            let lock = model.locks.get(&format!("0:{key}"));
            lock.is_some_and(|lock| lock.foreign)
        });
        let shortened = model.policy.max_lease_ms < Policy::default().max_lease_ms;
        let bounded = model.policy.max_hold_ms > 0;
        let (drained, watches) = (!model.policy.grants, model.policy.deadlock_detection);
        let waiting: Vec<u64> = model.waits.iter().map(|wait| wait.asked.client).collect();
        let (one, other) = self.two_keys();
        let random = &mut self.random;
        let client = 1 + random.below(CLIENTS);
        let cut_off = match waiting.is_empty() || random.chance(30) {
            true => client,
            false => *random.pick(&waiting),
        };
        // A state in which most requests fail does not last.
        if let Some(key) = other_type.filter(|_| random.chance(15)) {
            return format!("del {key}");
        }
        if drained && random.chance(15) {
            return "config grants yes".into();
        }
        if shortened && random.chance(15) {
            return "config max-lease-ms 2592000000".into();
        }
        if !cut.is_empty() && random.chance(10) {
            return format!("{} dies", random.pick(&cut));
        }
        match random.below(100) {
            0..=67 => self.command(),
            68..=77 => format!("wait {}", self.pause()),
            78..=79 => format!("stall {}", self.pause()),
            80..=83 => "heartbeat".into(),
            84 => format!(
                "config deadlock-detection {}",
                if watches { "no" } else { "yes" }
            ),
            85..=88 => format!("{client} dies"),
            89..=90 => format!("{cut_off} is cut off"),
            91 => format!("del {one}"),
            92..=94 => format!("rename {one} {other}"),
            95 => match random.below(4) {
                0 => format!("set {one}"),
                1 => "flush".into(),
                2 => format!("expire {one} {}", 1 + random.below(600)),
                _ => format!("copy {one} {other}"),
            },
            96 => format!("dump {one}"),
            97 => format!("restore {one}"),
            98 if self.setting.steps && random.chance(60) => {
                format!("clock {}", random.below(600) as i64 - 200)
            }
            98 => format!("config quarantine {}", random.below(100)),
            // The server alone chooses its renewals then.
            99 if !self.setting.generator.auto && random.chance(70) => match random.below(3) {
                0 => format!(
                    "config max-lease-ms {}",
                    1 + random.below(self.setting.generator.lease)
                ),
                1 => format!(
                    "config quarantine-ms {}",
                    1 + random.below(self.setting.generator.lease)
                ),
                _ => format!("config max-hold-ms {}", if bounded { 0 } else { 300 }),
            },
            _ => "config grants no".into(),
        }
    }

    /// Returns two keys between which values move: now and then a lock whose holder waits for the other one.
    fn two_keys(&mut self) -> (String, String) {
        let model = &self.pair.model;
        let held = |key: &String, owner: &String| model.locks[key].hold(owner).is_some();
        let brought = model.waits.iter().flat_map(|wait| {
            let owner = &wait.asked.owner;
            let from = model.locks.keys().filter(move |key| held(key, owner));
            let pair = move |from: &String| Some((from.clone(), wait.asked.keys.first()?.clone()));
            from.filter_map(pair)
        });
        let brought: Vec<(String, String)> = brought.collect();
        match brought.is_empty() || self.random.chance(60) {
            true => (self.key().to_string(), self.key().to_string()),
            false => {
                let (from, to) = self.random.pick(&brought);
                (from[2..].to_string(), to[2..].to_string())
            }
        }
    }

    fn pause(&mut self) -> u64 {
        let bound = *self.random.pick(&[5, 60, 500]);
        self.random.below(bound)
    }

    fn key(&mut self) -> &'static str {
        self.random.pick::<&str>(&KEYS)
    }

    fn owner(&mut self) -> String {
        self.random.pick(&OWNERS).to_string()
    }

    /// Returns a lock that is held, if there is one.
    fn held_key(&mut self) -> &'static str {
        let held = |key: &&str| {
            let lock = self.pair.model.locks.get(&format!("0:{key}"));
            lock.is_some_and(|lock| !lock.holds.is_empty())
        };
        let held: Vec<&'static str> = KEYS.into_iter().filter(held).collect();
        match held.is_empty() || self.random.chance(20) {
            true => self.key(),
            false => self.random.pick::<&str>(&held),
        }
    }

    /// Returns an owner that holds this lock, if there is one.
    fn holder(&mut self, key: &str) -> String {
        let lock = self.pair.model.locks.get(&format!("0:{key}"));
        let holders: Vec<String> = lock
            .into_iter()
            .flat_map(|lock| &lock.holds)
            .map(|hold| hold.owner.clone())
            .collect();
        match holders.is_empty() || self.random.chance(20) {
            true => self.owner(),
            false => self.random.pick(&holders).clone(),
        }
    }

    /// Returns the locks and the owner of a request: now and then those of a waiting one.
    fn wanted(&mut self, many: bool) -> (String, String) {
        let alike = |wait: &&Wait| !many || wait.asked.many;
        let waits: Vec<&Wait> = self.pair.model.waits.iter().filter(alike).collect();
        if !waits.is_empty() && self.random.chance(25) {
            let asked = &self.random.pick(&waits).asked;
            let mut keys: Vec<&str> = asked.keys.iter().map(|key| &key[2..]).collect();
            if self.random.chance(50) {
                keys.reverse();
            }
            let locks = if many {
                format!("{} {}", keys.len(), keys.join(" "))
            } else {
                keys[0].to_string()
            };
            return (locks, asked.owner.clone());
        }
        let key = self.key();
        let owner = match self.random.below(10) {
            0..=2 => self.holder(key),
            // Mostly an owner that holds another lock: so circles form.
            3..=6 => {
                let other = self.held_key();
                self.holder(other)
            }
            _ => self.owner(),
        };
        (
            if many {
                some_of(&mut self.random, &KEYS)
            } else {
                key.to_string()
            },
            owner,
        )
    }

    /// Returns a connection that is not blocked, and whether it may wait: one beyond the number of connections stands for a
    /// script.
    fn free_client(&mut self) -> (u64, bool) {
        let first = self.random.below(CLIENTS);
        let mut clients = (0..CLIENTS).map(|at| 1 + (first + at) % CLIENTS);
        let free = clients.find(|client| self.pair.is_free(*client));
        (free.unwrap_or(CLIENTS + 1), free.is_some())
    }

    fn command(&mut self) -> String {
        let (client, may_wait) = self.free_client();
        let who = if may_wait {
            format!("{client}")
        } else {
            format!("{client} (script)")
        };
        let verb = *self.random.pick(&[
            "ACQUIRE",
            "ACQUIRE",
            "ACQUIRE",
            "FAIRACQUIRE",
            "FAIRACQUIRE",
            "FAIRACQUIRE",
            "MACQUIRE",
            "MACQUIRE",
            "RELEASE",
            "RELEASE",
            "MRELEASE",
            "RENEW",
            "MRENEW",
            "DOWNGRADE",
            "CANCEL",
            "FORCERELEASE",
            "HELD",
        ]);
        let (many, generator) = (verb.starts_with('M'), self.setting.generator);
        if verb.ends_with("ACQUIRE") {
            let (locks, owner) = self.wanted(many);
            let words = generator.request(&mut self.random, verb, &locks, &owner, may_wait);
            return format!("{who}: {words}");
        }
        let key = self.held_key();
        let owner = self.holder(key);
        let locks = if many {
            some_of(&mut self.random, &KEYS)
        } else {
            key.to_string()
        };
        let mut words = generator.other(&mut self.random, verb, &locks, &owner, may_wait);
        let newest = self.pair.model.grants_made;
        if ["RELEASE", "RENEW"].contains(&verb) && newest > 0 && self.random.chance(25) {
            words.push_str(&format!(
                " TOKEN #{}",
                newest - self.random.below(newest.min(3))
            ));
        }
        format!("{who}: {words}")
    }
}

/// Returns the difference that these lines show.
fn differs(setting: &Setting, fault: Option<Fault>, lines: &[String]) -> Option<String> {
    let mut pair = setting.pair();
    pair.world.fault = fault;
    let mut acts = lines
        .iter()
        .filter_map(|line| Reader::default().read(line).ok());
    acts.find_map(|act| pair.act(&act).err())
}

/// Removes from a sequence everything that its difference does not need.
fn shrink(setting: &Setting, fault: Option<Fault>, lines: &[String]) -> Vec<String> {
    let mut lines = lines.to_vec();
    let mut size = lines.len();
    while size > 0 {
        let mut at = 0;
        while at < lines.len() {
            let mut fewer = lines.clone();
            fewer.drain(at..(at + size).min(lines.len()));
            match differs(setting, fault, &fewer) {
                Some(_) => lines = fewer,
                None => at += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    lines
}

/// Compares engine and model over a run.
fn compare(seed: u64, limits: bool, fault: Option<Fault>) -> Result<Run, String> {
    let mut run = Run::new(seed, limits);
    run.pair.world.fault = fault;
    for _ in 0..STEPS {
        if let Err(what) = run.step() {
            let shrunk = shrink(&run.setting, fault, &run.lines);
            let what = differs(&run.setting, fault, &shrunk).unwrap_or(what);
            return Err(format!(
                "{:?}\n\n{}\n\n{what}",
                run.setting,
                shrunk.join("\n")
            ));
        }
    }
    Ok(run)
}

#[test]
fn exclusive_locks_do_what_the_model_does() {
    for_some_seeds(1_000, 40_000, |seed| compare(seed, false, None).map(drop));
}

#[test]
fn shared_locks_do_what_the_model_does() {
    for_some_seeds(500, 20_000, |seed| compare(seed, true, None).map(drop));
}

/// A run that never meets a case proves nothing about it.
#[test]
fn the_comparison_comes_by_everything() {
    let mut seen = BTreeMap::new();
    let mut spared = 0;
    for seed in 1..=200 {
        let run = compare(seed, seed % 2 == 0, None).unwrap_or_else(|what| panic!("{what}"));
        spared += run.pair.model.spared;
        for (what, count) in run.pair.seen {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    for what in [
        "answered Granted",
        "answered GrantedAll",
        "answered Null",
        "answered NOTHELD",
        "answered WRONGTYPE",
        "answered DEADLOCK",
        "answered QUEUEFULL",
        "answered QUARANTINE",
        "answered HOLDING",
        "told Granted",
        "told GrantedAll",
        "told Null",
        "told Cancelled",
        "told Replaced",
        "told NOTHELD",
        "told TRYAGAIN",
        "told WRONGTYPE",
    ] {
        let count = seen.get(what).copied().unwrap_or(0);
        assert!(count >= 10, "{what}: {count} of {seen:#?}");
    }
    assert!(
        spared >= 10,
        "holds that a later command has touched: {spared}"
    );
}
