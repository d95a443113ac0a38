//! The commands and events as the model understands them.

use super::{Answer, Hold, Model, Patience, Place, Request, Tie, Told, SHARED};
use crate::script::{self, Act, Command};
use crate::settings;
use dlock_commands::error::Error;
use dlock_engine::Refusal;
use dlock_engine::SteadyMs;
use std::collections::BTreeMap;

impl Model {
    /// Performs an act. Returns the answer to a command; none to a command that the model does not know.
    ///
    /// Errors where the model ends: it knows one server, which is never paused and never late.
    pub fn act(&mut self, act: &Act, tokens: &BTreeMap<u64, u64>) -> Result<Option<Answer>, ()> {
        let key = |(db, key): &(u32, String)| format!("{db}:{key}");
        if !matches!(act, Act::Command(_)) {
            self.revoke_undelivered();
        }
        match act {
            Act::Command(command) => {
                let answer = self.run(command, tokens);
                self.note_writes();
                if command.pipelined {
                    return Ok(answer);
                }
                self.revoke_undelivered();
                return Ok(answer);
            }
            Act::Wait(ms) => self.pass(*ms),
            Act::Clock(ms) => self.step(*ms),
            Act::Dies(client) => self.dies(*client),
            Act::Cut(client) => drop(self.cut.insert(*client)),
            Act::Del(one) => self.del(&[key(one)]),
            Act::Set(one) => self.overwrite(&key(one)),
            Act::Rename(from, to) => self.rename(&key(from), &key(to)),
            Act::Behind(act) => return self.act(act, tokens),
            Act::Expire(one, ms) => self.expire(&key(one), *ms),
            Act::Look | Act::Heartbeat => {}
            Act::Copy(from, to) => {
                if let Some(value) = self.dump(&key(from)) {
                    self.restore(&key(to), value);
                }
            }
            Act::Dump(one) => {
                self.dumped = self.dump(&key(one));
                self.del(&[key(one)]);
            }
            Act::Restore(one) => {
                if let Some(value) = self.dumped.take() {
                    self.restore(&key(one), value);
                }
            }
            Act::Flush => self.del(&self.locks.keys().cloned().collect::<Vec<_>>()),
            Act::Swap(one, other) => self.swap(*one, *other),
            // The model's search for circles has no bound.
            Act::Config(name, _) if name == "deadlock-max-steps" => return Err(()),
            Act::Config(name, value) => {
                let now = SteadyMs(self.steady);
                self.configure(|policy| {
                    let _ = settings::configure(policy, name, value, now);
                });
            }
            _ => return Err(()),
        }
        self.revoke_undelivered();
        Ok(None)
    }

    /// Returns the outcomes since the last call.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    fn run(&mut self, command: &Command, tokens: &BTreeMap<u64, u64>) -> Option<Answer> {
        let text =
            |word: &String| String::from_utf8_lossy(&script::bytes(word, tokens)).into_owned();
        let words: Vec<String> = command.words.iter().map(text).collect();
        let verb = words[0].to_ascii_uppercase();
        let many = ["MACQUIRE", "MRELEASE", "MRENEW"].contains(&verb.as_str());
        let first = if many { 2 } else { 1 };
        let count = if many { words.get(1)?.parse().ok()? } else { 1 };
        let rest = first + count;
        let keys: Vec<String> = words
            .get(first..rest)?
            .iter()
            .map(|key| format!("{}:{key}", command.db))
            .collect();
        let key = keys.first()?;
        let owner = words.get(rest).cloned();
        let options = Options::read(words.get(rest + 1..).unwrap_or_default())?;
        let number =
            |result: Result<u64, Error>| Some(result.map_or_else(Answer::Refused, Answer::Number));

        let longest = self.policy.max_lease_ms;
        if options.lease.is_some_and(|lease| lease > longest) {
            return Some(Answer::Refused(Error::Argument("lease-ms", String::new())));
        }
        match verb.as_str() {
            "ACQUIRE" | "FAIRACQUIRE" | "MACQUIRE" => {
                let fair = verb == "FAIRACQUIRE";
                if options.has("AUTO") && longest < 1_000 {
                    return Some(Answer::Refused(Error::Argument("AUTO", String::new())));
                }
                let permits = options.number("PERMITS").unwrap_or(1);
                let most = options.number("LIMIT").unwrap_or(1);
                if options.has("PERMITS") && !options.has("LIMIT") || !(1..=most).contains(&permits)
                {
                    return Some(Answer::Refused(Error::Argument("PERMITS", String::new())));
                }
                let request = self.request(command, keys, &owner?, &options, fair);
                Some(self.ask(&request))
            }
            "RELEASE" => number(self.release(
                key,
                &owner?,
                options.number("TOKEN"),
                options.count("HOLDS"),
            )),
            "RENEW" | "MRENEW" => {
                let lease = options.lease.unwrap_or(30_000.min(longest));
                let (auto, ephemeral) = (options.has("AUTO"), options.has("EPHEMERAL"));
                if auto && self.policy.max_lease_ms < 1_000 {
                    let must = String::new();
                    return Some(Answer::Refused(Error::Argument("AUTO", must)));
                }
                let lease = if auto { lease.max(1_000) } else { lease };
                let asked = (ephemeral || auto).then_some(Tie {
                    client: command.client,
                    ephemeral,
                    auto: options.number("AUTO").map(|ms| self.auto(lease, ms)),
                });
                number(match many {
                    true => self.renew_many(&keys, &owner?, lease, asked),
                    false => self.renew(key, &owner?, options.number("TOKEN"), lease, asked),
                })
            }
            "MRELEASE" => {
                let remaining = self.release_many(&keys, &owner?);
                Some(remaining.map_or_else(Answer::Refused, Answer::Remaining))
            }
            "DOWNGRADE" => {
                let granted = self.downgrade(key, &owner?, options.limit().unwrap_or(1));
                Some(granted.unwrap_or_else(Answer::Refused))
            }
            "FORCERELEASE" => number(self.force(key, owner.as_deref())),
            "CANCEL" => number(self.cancel(key, &owner?)),
            "HELD" | "POSITION" | "CHECK" if self.lock(key).foreign => {
                Some(Answer::Refused(Error::Refused(Refusal::WrongType)))
            }
            "HELD" => {
                let lock = self.lock(key).clone();
                let hold = match &owner {
                    Some(owner) => lock.hold(owner).cloned(),
                    None => lock.holds.iter().max_by_key(|hold| hold.deadline).cloned(),
                };
                let named = |hold: &Hold| Some(hold.owner.clone()).filter(|_| owner.is_none());
                let left = |hold: &Hold| hold.deadline - self.now;
                let held = hold
                    .map(|hold| Answer::Held(hold.grant, hold.holds, left(&hold), named(&hold)));
                Some(held.unwrap_or(Answer::Null))
            }
            "POSITION" => {
                let lock = self.lock(key);
                let its = |place: &Place| Some(&place.owner) == owner.as_ref();
                let upgrades = lock.upgrade.as_ref().is_some_and(its);
                let at = if upgrades {
                    Some(0)
                } else {
                    lock.queue.iter().position(its)
                };
                Some(at.map_or(Answer::Null, |at| Answer::Number(at as u64)))
            }
            "CHECK" => {
                let mut holds = self.locks.get(key).into_iter().flat_map(|lock| &lock.holds);
                let held = holds.any(|hold| Some(hold.grant.to_string()) == owner);
                Some(if held {
                    Answer::Ok
                } else {
                    Answer::Refused(Error::Refused(Refusal::Fenced))
                })
            }
            _ => None,
        }
    }

    fn request(
        &self,
        command: &Command,
        keys: Vec<String>,
        owner: &str,
        options: &Options,
        fair: bool,
    ) -> Request {
        let unnamed = owner == "*";
        let block = options.number("BLOCK").filter(|_| command.may_wait);
        let waits = block.is_some();
        let default = match waits {
            true => 0,
            false => self.policy.claim_window_ms,
        };
        Request {
            client: command.client,
            many: command.words[0].eq_ignore_ascii_case("MACQUIRE"),
            keys,
            owner: if unnamed {
                format!("uuid-of-{}", command.client)
            } else {
                owner.to_string()
            },
            lease: options
                .lease
                .unwrap_or(30_000.min(self.policy.max_lease_ms))
                .max(if options.has("AUTO") { 1_000 } else { 0 }),
            wait: match block {
                Some(ms) if ms > 0 => Patience::For(ms),
                Some(_) => Patience::Endless,
                None => Patience::None,
            },
            holds: options.count("HOLDS"),
            limit: options.limit().unwrap_or(1),
            permits: options.number("PERMITS").unwrap_or(1) as usize,
            // An unnamed owner could not poll its ticket: no client knows its name.
            ticket: (fair && (waits || !unnamed))
                .then(|| options.number("CLAIM").unwrap_or(default)),
            ephemeral: options.has("EPHEMERAL"),
            auto: options.number("AUTO"),
        }
    }
}

/// The words after key and owner: a lease, and options with or without a value.
#[derive(Default)]
struct Options {
    lease: Option<u64>,
    said: Vec<(String, Option<String>)>,
}

impl Options {
    fn read(words: &[String]) -> Option<Options> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = word.to_ascii_uppercase();
            let valued = [
                "BLOCK", "HOLDS", "LIMIT", "PERMITS", "CLAIM", "TOKEN", "AUTO",
            ]
            .contains(&word.as_str());
            match word.parse() {
                Ok(lease) => options.lease = Some(lease),
                Err(_) if valued => options.said.push((word, Some(words.next()?.clone()))),
                Err(_) => options.said.push((word, None)),
            }
        }
        Some(options)
    }

    fn has(&self, word: &str) -> bool {
        self.said.iter().any(|(said, _)| said == word)
    }

    fn text(&self, word: &str) -> Option<String> {
        let said = self.said.iter().find(|(said, _)| said == word);
        said.and_then(|(_, value)| value.clone())
    }

    fn number(&self, word: &str) -> Option<u64> {
        self.text(word)?.parse().ok()
    }

    fn count(&self, word: &str) -> Option<u32> {
        self.text(word)?.parse().ok()
    }

    fn limit(&self) -> Option<usize> {
        let limit = self.number("LIMIT").map(|limit| limit as usize);
        limit.or(self.has("SHARED").then_some(SHARED))
    }
}
