//! The order in which observers are notified. For each name they receive its events in order: each hold's beginning, its end, and
//! then the next one's beginning, by unlock messages and by keyspace events alike, in whatever way a hold ended and whichever
//! server noticed. One thread decides, so that the expected events are known; `DLOCK_RANDOM_SEED` sets the seed.

use std::collections::BTreeMap;
use std::env;

use dlock_harness::redis::Value;
use dlock_harness::{assert_sound, await_until, reply_of, Ask, Server, Subscriber, Wire, PATIENCE};
use fastrand::Rng;

const DATABASES: u32 = 2;
const KEYS: [&str; 3] = ["k0", "k1", "k2"];

type Name = (u32, String);

/// The events of each name, in order: `acquired`, `released`, … for keyspace events, `released 17` for messages, `flushed`.
#[derive(Debug, Clone, Default, PartialEq)]
struct Story(BTreeMap<Name, Vec<String>>);

impl Story {
    fn of_every_name() -> Story {
        let names = (0..DATABASES).flat_map(|db| KEYS.map(|key| (db, key.to_owned())));
        Story(names.map(|name| (name, Vec::new())).collect())
    }

    fn add(&mut self, name: &Name, what: &str) {
        let told = self.0.entry(name.clone()).or_default();
        told.push(what.to_owned());
    }

    fn begins(&mut self, name: &Name) {
        self.add(name, "acquired");
    }

    fn ends(&mut self, name: &Name, word: &str, token: u64) {
        // A removal has the server's own event.
        if word != "removed" {
            self.add(name, word);
        }
        self.add(name, &format!("{word} {token}"));
    }

    fn flush(&mut self, flushed: u32) {
        for (_, told) in self.0.iter_mut().filter(|((db, _), _)| *db == flushed) {
            told.push("flushed".to_owned());
        }
    }

    /// Errs if the received events differ from these.
    fn check(&self, heard: &Story) -> Result<(), String> {
        for (name, expected) in &self.0 {
            let heard = heard.0.get(name).cloned().unwrap_or_default();
            let same = expected.iter().zip(&heard).take_while(|(a, b)| a == b);
            let same = same.count();
            if same < expected.len().max(heard.len()) {
                let told = |all: &[String]| all[same..all.len().min(same + 4)].join(", ");
                let after = &expected[same.saturating_sub(3)..same];
                return Err(format!(
                    "at {name:?}, after {after:?}: happened {}; told {}",
                    told(expected),
                    told(&heard)
                ));
            }
        }
        Ok(())
    }
}

/// A subscriber to all events of a server.
struct Observer(Subscriber);

impl Observer {
    fn of(server: &Server) -> Observer {
        let all = ["__dlock@*", "__keyevent@*__:dlock.*"];
        Observer(Subscriber::patterns(server, &all))
    }

    /// Returns the events so far.
    #[track_caller]
    fn story(&self, server: &Server) -> Story {
        let mut c = server.connection();
        c.run("DLOCK.HELD none none");
        c.run("PUBLISH __dlock@end end");
        let mut story = Story::of_every_name();
        loop {
            let message = self.0.message();
            let channel = message.channel.as_str();
            if channel == "__dlock@end" {
                return story;
            }
            let (_, rest) = channel.split_once('@').expect("a database");
            let (db, rest) = rest.split_once("__").expect("a database");
            let db = db.parse().expect("a database's number");
            match rest.strip_prefix(':') {
                None => story.flush(db),
                Some(event) if channel.starts_with("__keyevent") => {
                    let event = event
                        .strip_prefix("dlock.")
                        .expect("an event of the module");
                    story.add(&(db, message.payload), event);
                }
                Some(key) => story.add(&(db, key.to_owned()), &message.payload),
            }
        }
    }
}

/// The value at a name.
#[derive(Debug, Clone)]
enum Stands {
    Hold {
        owner: String,
        token: u64,
        // Whether its lease has run out, unnoticed so far.
        over: bool,
    },
    Other,
}

/// The locks, according to the replies, and the events to expect.
struct Truth {
    at: BTreeMap<Name, Stands>,
    story: Story,
    owners: u64,
    // The next lines to send, and the handling of their replies.
    lines: Vec<String>,
    effects: Vec<Effect>,
    selected: u32,
}

/// The effect of a reply, which is none for an error.
type Effect = Box<dyn FnOnce(&mut Truth, Option<Value>)>;

fn granted(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(token), Value::Int(1)] => Some(*token as u64),
            other => panic!("a grant: {other:?}"),
        },
        Value::Nil => None,
        other => panic!("{other:?}"),
    }
}

impl Truth {
    fn new() -> Truth {
        Truth {
            at: BTreeMap::new(),
            story: Story::of_every_name(),
            owners: 0,
            lines: Vec::new(),
            effects: Vec::new(),
            selected: 0,
        }
    }

    fn say(
        &mut self,
        db: u32,
        line: String,
        effect: impl FnOnce(&mut Truth, Option<Value>) + 'static,
    ) {
        if self.selected != db {
            self.selected = db;
            self.lines.push(format!("SELECT {db}"));
            self.effects.push(Box::new(|_, _| {}));
        }
        self.lines.push(line);
        self.effects.push(Box::new(effect));
    }

    /// Looks at a name: a hold whose lease has run out ends then at the latest.
    fn look(&mut self, name: &Name) {
        if let Some(Stands::Hold {
            token, over: true, ..
        }) = self.at.get(name).cloned()
        {
            self.at.remove(name);
            self.story.ends(name, "expired", token);
        }
    }

    /// Removes the value there in this way.
    fn goes(&mut self, name: &Name, word: &str) {
        self.look(name);
        if let Some(Stands::Hold { token, .. }) = self.at.remove(name) {
            self.story.ends(name, word, token);
        }
    }

    fn acquire(&mut self, name: Name, lease: u64) {
        self.owners += 1;
        let owner = format!("o{}", self.owners);
        let line = format!("DLOCK.ACQUIRE {} {owner} {lease}", name.1);
        self.say(name.0, line, move |truth, reply| {
            truth.look(&name);
            let Some(reply) = reply else {
                return assert!(matches!(truth.at.get(&name), Some(Stands::Other)));
            };
            let token = granted(&reply);
            assert_eq!(token.is_none(), truth.at.contains_key(&name), "{name:?}");
            if let Some(token) = token {
                let over = lease == 1;
                truth
                    .at
                    .insert(name.clone(), Stands::Hold { owner, token, over });
                truth.story.begins(&name);
            }
        });
    }

    /// Performs one random step.
    fn step(&mut self, rng: &mut Rng) {
        let db = rng.u32(..DATABASES);
        let key = KEYS[rng.usize(..KEYS.len())];
        let name: Name = (db, key.to_owned());
        match rng.u8(..100) {
            0..=39 => self.acquire(name, 600_000),
            40..=49 => {
                // The owner at the time of writing this line, which may be another when it runs.
                let owner = match self.at.get(&name) {
                    Some(Stands::Hold { owner, .. }) => owner.clone(),
                    _ => "nobody".to_owned(),
                };
                let line = format!("DLOCK.RELEASE {key} {owner}");
                self.say(db, line, move |truth, reply| {
                    truth.look(&name);
                    if reply == Some(Value::Int(0)) {
                        truth.goes(&name, "released");
                    }
                });
            }
            50..=54 => self.say(
                db,
                format!("DLOCK.FORCERELEASE {key}"),
                move |truth, reply| {
                    truth.look(&name);
                    if reply == Some(Value::Int(1)) {
                        truth.goes(&name, "forced");
                    }
                },
            ),
            55..=66 => self.say(db, format!("DEL {key}"), move |truth, _| {
                truth.goes(&name, "removed");
            }),
            67..=70 => self.say(db, format!("SET {key} x"), move |truth, _| {
                truth.goes(&name, "removed");
                truth.at.insert(name, Stands::Other);
            }),
            71..=73 => self.say(db, format!("PEXPIREAT {key} 1"), move |truth, _| {
                truth.goes(&name, "removed");
            }),
            74..=80 => {
                let other = KEYS[rng.usize(..KEYS.len())];
                self.say(db, format!("RENAME {key} {other}"), move |truth, _| {
                    let to = (db, other.to_owned());
                    truth.look(&name);
                    if let Some(value) = truth.at.get(&name).cloned().filter(|_| name != to) {
                        truth.goes(&to, "removed");
                        truth.at.remove(&name);
                        truth.at.insert(to, value);
                    }
                });
            }
            81..=86 => {
                let to = 1 - db;
                self.say(db, format!("MOVE {key} {to}"), move |truth, reply| {
                    truth.look(&name);
                    let there = (to, name.1.clone());
                    if truth.at.contains_key(&name) {
                        truth.look(&there);
                    }
                    if reply == Some(Value::Int(1)) {
                        let value = truth.at.remove(&name).expect("what was moved");
                        truth.at.insert(there, value);
                    }
                });
            }
            87..=96 => self.say(db, "SWAPDB 0 1".to_owned(), |truth, _| {
                let all = std::mem::take(&mut truth.at).into_iter();
                truth.at = all
                    .map(|((db, key), value)| ((1 - db, key), value))
                    .collect();
            }),
            _ => self.say(db, "FLUSHDB".to_owned(), move |truth, _| {
                truth.at.retain(|(at, _), _| *at != db);
                truth.story.flush(db);
            }),
        }
    }

    /// Sends the lines, at once or one by one.
    fn send(&mut self, c: &mut Wire, together: bool) {
        let (lines, effects) = (
            std::mem::take(&mut self.lines),
            std::mem::take(&mut self.effects),
        );
        let replies: Vec<Option<Value>> = if together {
            c.run("MULTI");
            lines.iter().for_each(|line| c.run(line));
            let Ok(Value::Array(replies)) = c.try_ask("EXEC") else {
                panic!("a transaction was refused");
            };
            replies
                .into_iter()
                .map(|reply| reply_of(reply).ok())
                .collect()
        } else {
            lines.iter().map(|line| c.try_ask(line).ok()).collect()
        };
        for (effect, reply) in effects.into_iter().zip(replies) {
            effect(self, reply);
        }
    }
}

/// Lets the leases of a millisecond run out.
fn let_run_out(c: &mut Wire) {
    let mut time = || -> u64 {
        let (seconds, us): (u64, u64) = c.ask("TIME");
        seconds * 1_000_000 + us
    };
    let now = time();
    await_until("the leases have run out", PATIENCE, || time() > now + 3_000);
}

fn seed() -> u64 {
    let given = env::var("DLOCK_RANDOM_SEED").ok();
    given.map_or(1, |given| given.parse().expect("a number"))
}

/// Whatever happens to names and in whatever transactions, primary and replica report for each name its events in order.
#[test]
fn every_name_s_story_is_told_in_order() {
    let build = || {
        Server::builder()
            .config("notify-keyspace-events", "Ed")
            .start()
    };
    let (primary, replica) = (build(), build());
    replica.replica_of(&primary);
    let mut c = primary.connection();
    // Otherwise the server would notice by itself, at some time, that a lease has run out.
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    for seed in seed()..seed() + 4 {
        let observers = [Observer::of(&primary), Observer::of(&replica)];
        let mut rng = Rng::with_seed(seed);
        let mut truth = Truth::new();
        for _ in 0..150 {
            if rng.u8(..100) < 25 {
                let name = (
                    rng.u32(..DATABASES),
                    KEYS[rng.usize(..KEYS.len())].to_owned(),
                );
                truth.acquire(name, 1);
                truth.send(&mut c, false);
                let_run_out(&mut c);
            } else {
                let together = rng.bool();
                for _ in 0..rng.usize(1..6) {
                    truth.step(&mut rng);
                }
                truth.send(&mut c, together);
            }
        }
        for db in 0..DATABASES {
            truth.say(db, "FLUSHDB".to_owned(), move |truth, _| {
                truth.at.retain(|(at, _), _| *at != db);
                truth.story.flush(db);
            });
        }
        truth.send(&mut c, false);
        c.run("SELECT 0");
        replica.wait_in_sync(&primary);
        for (observer, server) in observers.iter().zip([&primary, &replica]) {
            let heard = observer.story(server);
            let checked = truth.story.check(&heard);
            assert_eq!(checked, Ok(()), "seed {seed}, port {}", server.port());
            // The check finds an event that is doubled, missing, out of order, or changed.
            plant(&truth.story, &heard);
        }
    }
    assert_sound(&primary);
    assert_sound(&replica);
}

/// Asserts that the check finds each fault in the received events.
#[track_caller]
fn plant(story: &Story, heard: &Story) {
    type Fault = fn(&mut Vec<String>) -> bool;
    let faults: [(&str, Fault); 4] = [
        ("an end that comes after the next beginning", |told| {
            let next = told
                .windows(2)
                .position(|pair| pair[0].starts_with("expired ") && pair[1] == "acquired");
            next.map(|at| told.swap(at, at + 1)).is_some()
        }),
        ("an end that is told twice", |told| {
            let end = told.iter().position(|what| what.starts_with("removed "));
            end.map(|at| told.insert(at, told[at].clone())).is_some()
        }),
        ("an end that is not told", |told| {
            let end = told.iter().position(|what| what.starts_with("released "));
            end.map(|at| told.remove(at)).is_some()
        }),
        ("another word", |told| {
            let end = told.iter_mut().find(|what| what.starts_with("removed "));
            end.map(|end| *end = end.replace("removed", "expired"))
                .is_some()
        }),
    ];
    for (what, fault) in faults {
        let mut faulty = heard.clone();
        let planted = faulty.0.values_mut().any(fault);
        assert!(planted, "no place for {what}");
        assert!(story.check(&faulty).is_err(), "{what}");
    }
}
