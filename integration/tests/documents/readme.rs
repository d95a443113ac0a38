//! The session in README.md, as a user would type it in two terminals.

use std::collections::HashMap;

use dlock_integration::redis::Value;
use dlock_integration::{await_until, Ask, Server, Wire, PATIENCE};

const README: &str = include_str!("../../../README.md");

/// A line that was typed and what the terminal showed.
struct Step<'a> {
    terminal: &'a str,
    typed: &'a str,
    shown: Vec<&'a str>,
}

/// What the section shows, line by line.
fn session() -> Vec<Step<'static>> {
    let section = README.split("## 60 seconds in redis-cli").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let blocks = section.expect("the section").split("```").skip(1);
    let mut steps: Vec<Step> = Vec::new();
    for line in blocks.step_by(2).flat_map(str::lines).map(str::trim) {
        match line.split_once("> ") {
            Some((terminal @ ("one" | "two"), typed)) => steps.push(Step {
                terminal,
                typed,
                shown: Vec::new(),
            }),
            _ if line.is_empty() => {}
            _ => steps.last_mut().expect("a prompt").shown.push(line),
        }
    }
    steps
}

/// The words of a line that redis-cli shows, without its numbering. How long a command took is nobody's reply.
fn words(line: &str) -> Vec<String> {
    if line == "…" || line.starts_with('(') && line.ends_with("s)") {
        return Vec::new();
    }
    let mut rest = line;
    while let Some((number, inner)) = rest.split_once([')', '#']) {
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        rest = inner.trim_start();
    }
    let word = |part: &str| {
        let part = part.trim();
        let part = part.strip_prefix("(integer) ").unwrap_or(part);
        let part = part.strip_prefix("(error) ").unwrap_or(part);
        part.trim_matches('"').to_owned()
    };
    let parts = rest.split("=>").map(word);
    parts.filter(|part| !part.is_empty()).collect()
}

/// The same of a reply.
fn flat(reply: &Value) -> Vec<String> {
    match reply {
        Value::Nil => vec!["(nil)".into()],
        Value::Int(number) => vec![number.to_string()],
        Value::BulkString(text) => vec![String::from_utf8_lossy(text).into_owned()],
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        Value::Map(pairs) => {
            let both = |(name, value)| flat(name).into_iter().chain(flat(value));
            pairs
                .iter()
                .map(|(name, value)| (name, value))
                .flat_map(both)
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Tokens, times, ids and ports differ from run to run.
fn is_like(shown: &str, word: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    match (number(shown), number(word)) {
        (Some(shown), Some(_)) if shown > 9 => true,
        _ => match shown.split_once("127.0.0.1:") {
            Some(_) => word.starts_with("127.0.0.1:"),
            None => shown == word,
        },
    }
}

#[track_caller]
fn assert_shown(step: &Step, reply: Result<Value, String>) {
    let answered = match &reply {
        Ok(value) => flat(value),
        Err(error) => vec![error.clone()],
    };
    let shown: Vec<String> = step.shown.iter().flat_map(|line| words(line)).collect();
    let mut rest = answered.iter();
    let is_there = |word: &String| rest.any(|answered| is_like(word, answered));
    assert!(shown.iter().all(is_there), "{}: {answered:?}", step.typed);
    let leaves_out = step.shown.contains(&"…");
    assert!(leaves_out || shown.len() == answered.len(), "{answered:?}");
}

/// The settings of the module that the page recommends, but for replicas: a single server has none that could confirm anything.
fn recommended() -> Vec<&'static str> {
    let lines = README.lines().filter(|line| line.starts_with("dlock."));
    lines
        .filter(|line| !line.starts_with("dlock.replicas"))
        .collect()
}

/// On a server as the page recommends it, too: who has both from there finds no lease too long.
#[test]
fn the_session_is_as_it_is_shown() {
    let server = Server::start();
    let settings = recommended();
    assert!(!settings.is_empty(), "no setting is recommended");
    for setting in settings {
        server.connection().run(&format!("CONFIG SET {setting}"));
    }
    let mut terminals: HashMap<&str, Wire> = ["one", "two"]
        .map(|name| {
            let mut wire = server.wire();
            wire.ask::<Value>("HELLO 3");
            (name, wire)
        })
        .into();
    let steps = session();
    assert!(steps.len() > 12, "{} lines are typed", steps.len());
    for step in steps {
        let terminal = terminals.get_mut(step.terminal).expect("a terminal");
        let answered_later = step.typed.contains(" BLOCK ") && step.shown.is_empty();
        // `(bob's command returns)` is what a terminal shows, later.
        if !step.typed.starts_with('(') {
            terminal.send(step.typed);
        }
        if answered_later {
            await_until("it waits", PATIENCE, || {
                let info: HashMap<String, Value> = server.connection().ask("DLOCK.INFO stock");
                info["queued"] == Value::Int(1)
            });
        } else {
            assert_shown(&step, terminal.read());
        }
    }
}
