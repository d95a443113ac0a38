//! A history as lines of JSON, for other checkers. `HISTORIES.md` describes them.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{json, Map, Value};

use crate::client::LEASE_MS;
use crate::history::{Call, History, Micros, Outcome};
use crate::run::Plan;

/// The order of lines of one instant: an owner that takes over does not overlap with the one before, and requests that touch
/// count as concurrent. A process ends one call before it begins the next: those come later still.
type Rank = u32;

const HOLD_ENDS: Rank = 0;
const INVOKE: Rank = 1;
const REST: Rank = 2;

#[derive(Default)]
struct Lines {
    all: Vec<(Micros, Rank, Value)>,
    /// When and where each process's last call ended.
    ended: HashMap<String, (Micros, Rank)>,
}

impl Lines {
    fn add(&mut self, time: Micros, rank: Rank, line: Value) {
        self.all.push((time, rank, line));
    }

    /// Returns the ranks of the two lines of a process's next call.
    fn ranks(&mut self, process: &str, sent: Micros, ended: Micros) -> (Rank, Rank) {
        let invoke = match self.ended.get(process) {
            Some((time, rank)) if *time == sent => rank + 1,
            _ => INVOKE,
        };
        let end = match ended == sent {
            true => (invoke + 1).max(REST),
            false => REST,
        };
        self.ended.insert(process.to_owned(), (ended, end));
        (invoke, end)
    }
}

/// Writes the calls, the beliefs and the faults, in the order of time.
pub fn write(to: &mut impl Write, plan: &Plan, history: &History) -> io::Result<()> {
    let mut lines = Lines::default();
    let mut calls: Vec<&Call> = history.calls.iter().collect();
    calls.sort_by_key(|call| (call.sent, call.ended));
    for call in calls {
        lines.call(call);
    }
    lines.holds(history);
    for round in &history.rounds {
        let line = |what: &str, time: Micros| json!({"type": "info", "process": "faults", "f": round.name, "what": what, "time": time});
        lines.add(round.from, REST, line("begins", round.from));
        if let Some((at, server)) = round.new {
            let mut line = line("noticed a new primary", at);
            line["server"] = json!(server);
            lines.add(at, REST, line);
        }
        lines.add(round.calm, REST, line("is over", round.calm));
    }
    lines.all.sort_by_key(|(time, rank, _)| (*time, *rank));
    let cell = json!({
        "type": "info", "process": "faults", "f": "cell", "what": plan.name(), "time": 0,
        "lease-ms": LEASE_MS, "quarantine-ms": plan.setting.quarantine_ms, "replicas": plan.replicas,
        "min-replicas-to-write": plan.setting.to_write.of(plan.replicas), "one-owner": plan.promises_one_owner(),
    });
    writeln!(to, "{cell}")?;
    for (_, _, line) in &lines.all {
        writeln!(to, "{line}")?;
    }
    Ok(())
}

impl Lines {
    fn call(&mut self, call: &Call) {
        let is_single = call.keys.len() == 1;
        for (at, key) in call.keys.iter().enumerate() {
            // For several keys each is an operation of its own.
            let process = if is_single {
                call.client.clone()
            } else {
                format!("{} {key}", call.client)
            };
            let (invoke, end) = self.ranks(&process, call.sent, call.ended);
            let mut about = Map::new();
            about.insert("process".into(), json!(process));
            about.insert("f".into(), json!(name_of(&call.command)));
            about.insert("key".into(), json!(key));
            if let Some(owner) = &call.owner {
                about.insert("owner".into(), json!(owner));
            }
            if let Some(token) = call.named {
                about.insert("token".into(), json!(token));
            }
            let mut begin = about.clone();
            for (name, value) in [("lease-ms", call.lease_ms), ("limit", call.limit)] {
                if let Some(value) = value {
                    begin.insert(name.into(), json!(value));
                }
            }
            begin.insert("type".into(), json!("invoke"));
            begin.insert("time".into(), json!(call.sent));
            self.add(call.sent, invoke, Value::Object(begin));
            about.insert("time".into(), json!(call.ended));
            about.insert("server".into(), json!(call.server));
            let kind = match &call.outcome {
                Outcome::Done { tokens, left_ms } => {
                    if let Some(token) = tokens.get(at) {
                        about.insert("token".into(), json!(token));
                    }
                    if let Some(left_ms) = left_ms {
                        about.insert("left-ms".into(), json!(left_ms));
                    }
                    "ok"
                }
                Outcome::Refused(why) => {
                    about.insert("error".into(), json!(why));
                    "fail"
                }
                Outcome::Unknown(why) => {
                    about.insert("error".into(), json!(why));
                    "info"
                }
            };
            about.insert("type".into(), json!(kind));
            self.add(call.ended, end, Value::Object(about));
        }
    }

    /// Adds the times in which owners worked, believing in their holds.
    fn holds(&mut self, history: &History) {
        for belief in &history.beliefs {
            if belief.from >= belief.until {
                continue;
            }
            let line = |kind: &str, time: Micros| {
                json!({
                    "type": kind, "process": format!("{} {}", belief.owner, belief.lock), "f": "hold", "key": belief.lock,
                    "owner": belief.owner, "token": belief.token, "limit": belief.limit, "time": time,
                })
            };
            self.add(belief.from, INVOKE, line("invoke", belief.from));
            self.add(belief.until, HOLD_ENDS, line("ok", belief.until));
        }
    }
}

/// Returns `fairacquire` for `DLOCK.FAIRACQUIRE`.
fn name_of(command: &str) -> String {
    command.trim_start_matches("DLOCK.").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::judge::planted::{belief, round};
    use crate::report::tests::plan;
    use crate::setting::NOTHING;

    fn lines(history: &History) -> Vec<Value> {
        let mut text = Vec::new();
        write(&mut text, &plan(Fault::Kill, NOTHING), history).expect("a Vec takes all");
        let text = String::from_utf8(text).expect("JSON is UTF-8");
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("each line is JSON")
    }

    fn call(command: &str, keys: &[&str], outcome: Outcome) -> Call {
        Call {
            client: "Block0".into(),
            command: command.into(),
            keys: keys.iter().map(|key| String::from(*key)).collect(),
            owner: Some("o".into()),
            named: None,
            lease_ms: Some(8_000),
            limit: Some(1),
            sent: 5,
            ended: 9,
            outcome,
            server: 7001,
        }
    }

    #[test]
    fn each_outcome_has_its_word() {
        let done = |tokens: &[u64]| Outcome::Done {
            tokens: tokens.to_vec(),
            left_ms: None,
        };
        let said = |outcome: Outcome| {
            let calls = vec![call("DLOCK.ACQUIRE", &["k"], outcome)];
            let lines = lines(&History {
                calls,
                ..History::default()
            });
            assert_eq!(
                (&lines[1]["type"], &lines[1]["lease-ms"]),
                (&json!("invoke"), &json!(8_000))
            );
            assert_eq!(
                (&lines[1]["time"], &lines[2]["time"]),
                (&json!(5), &json!(9))
            );
            lines[2].clone()
        };
        let granted = said(done(&[3]));
        assert_eq!(
            (&granted["type"], &granted["token"]),
            (&json!("ok"), &json!(3))
        );
        assert_eq!(
            (&granted["key"], &granted["owner"]),
            (&json!("k"), &json!("o"))
        );
        assert_eq!(said(Outcome::Refused("LOCKED".into()))["type"], "fail");
        assert_eq!(said(Outcome::Unknown("lost".into()))["type"], "info");
    }

    #[test]
    fn two_locks_are_two_operations() {
        let outcome = Outcome::Done {
            tokens: vec![3, 4],
            left_ms: None,
        };
        let lines = lines(&History {
            calls: vec![call("DLOCK.MACQUIRE", &["a", "b"], outcome)],
            ..History::default()
        });
        let ends: Vec<_> = lines.iter().filter(|line| line["type"] == "ok").collect();
        assert_eq!(
            (&ends[0]["key"], &ends[0]["token"]),
            (&json!("a"), &json!(3))
        );
        assert_eq!(
            (&ends[1]["key"], &ends[1]["token"]),
            (&json!("b"), &json!(4))
        );
        assert_ne!(ends[0]["process"], ends[1]["process"]);
    }

    #[test]
    fn a_process_ends_one_call_before_it_begins_the_next() {
        let null = || Outcome::Refused("null".into());
        let first = call("DLOCK.ACQUIRE", &["k"], null());
        let (mut second, mut third) = (first.clone(), first.clone());
        // At the instant at which the first ends: the second takes no time, the third some.
        (second.sent, second.ended) = (9, 9);
        (third.sent, third.ended) = (9, 12);
        let mut other = first.clone();
        other.client = "Block1".into();
        (other.sent, other.ended) = (9, 10);
        let lines = lines(&History {
            calls: vec![first, second, third, other],
            ..History::default()
        });
        let of = |process: &str| -> Vec<_> {
            let its = lines.iter().filter(|line| line["process"] == process);
            its.map(|line| line["type"].clone()).collect()
        };
        assert_eq!(
            of("Block0"),
            ["invoke", "fail", "invoke", "fail", "invoke", "fail"]
        );
        // To the others a call that ends at an instant and one that begins at it are concurrent.
        let at = |process: &str, time: u64| {
            let is = |line: &Value| line["process"] == process && line["time"] == time;
            lines.iter().position(is)
        };
        assert!(at("Block1", 9) < at("Block0", 9));
    }

    #[test]
    fn who_takes_over_comes_after_the_one_before() {
        let lines = lines(&History {
            beliefs: vec![belief("k", "b", 2, 3, 5), belief("k", "a", 1, 0, 3)],
            rounds: vec![round(1, 4)],
            ..History::default()
        });
        let holds: Vec<_> = lines.iter().filter(|line| line["f"] == "hold").collect();
        let order: Vec<_> = holds
            .iter()
            .map(|line| (line["owner"].as_str(), line["type"].as_str()))
            .collect();
        let (a, b) = (Some("a"), Some("b"));
        let (invoke, ok) = (Some("invoke"), Some("ok"));
        assert_eq!(order, [(a, invoke), (a, ok), (b, invoke), (b, ok)]);
        let faults = lines.iter().filter(|line| line["process"] == "faults");
        assert_eq!(faults.count(), 3);
    }
}
