//! Conversations in text files (`../scenarios`, and `../servers` for what only a server has): commands, replies, time passing.
//!
//! All tests share one reader: the engine's tests hold the conversations with the engine and the model, the integration tests
//! with a server whose clock the tests advance.
#![forbid(unsafe_code)]
// Tests may panic; `script` documents the lines.
#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]

pub mod planted;
pub mod script;
pub mod transcript;

use std::fs;
use std::path::Path;

/// Returns the conversations, with the names of their files; with `DLOCK_SCENARIO=queue,cancel` in the environment only these.
///
/// # Panics
/// When they cannot be read.
pub fn all() -> Vec<(String, String)> {
    let all = files("scenarios");
    assert!(!all.is_empty(), "no conversation");
    all
}

/// Returns the conversations that only a server can hold, each with its title.
///
/// A line `== title` begins another conversation; the lines before the first title begin every conversation of the file. A
/// conversation with `each one | other` is held once with `one` for every `{}` in it, and once with `other`; `{1}`, `{2}` are the
/// parts that `/` separates. A line with `{}` becomes one line for each part that `;` separates.
///
/// # Panics
/// When they cannot be read.
pub fn of_servers() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (file, text) in files("servers") {
        let text = format!("\n{text}");
        let mut parts = text.split("\n== ");
        let before = parts.next().unwrap_or_default();
        for part in parts {
            let (title, body) = part.split_once('\n').unwrap_or((part, ""));
            let each = |line: &&str| line.starts_with("each ");
            let values = body.lines().filter(each);
            let values: Vec<&str> = values.flat_map(|line| line[5..].split(" | ")).collect();
            let rest = before
                .lines()
                .chain(body.lines().filter(|line| !each(line)));
            let rest: Vec<&str> = rest.collect();
            if values.is_empty() {
                all.push((format!("{file}, {title}"), rest.join("\n")));
            }
            for value in values {
                let lines: Vec<String> = rest.iter().map(|line| filled(line, value)).collect();
                all.push((format!("{file}, {title} {value}"), lines.join("\n")));
            }
        }
    }
    all
}

/// Returns a line, or several, with a value put in.
fn filled(line: &str, value: &str) -> String {
    let mut line = line.to_owned();
    for (at, part) in value.split(" / ").enumerate() {
        line = line.replace(&format!("{{{}}}", at + 1), part);
    }
    let lines = value.split("; ").map(|part| line.replace("{}", part));
    match line.contains("{}") {
        true => lines.collect::<Vec<_>>().join("\n"),
        false => line,
    }
}

fn files(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all: Vec<(String, String)> = fs::read_dir(folder)
        .expect("the folder")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).expect("a text");
            (name.into_owned(), text)
        })
        .collect();
    if let Ok(some) = std::env::var("DLOCK_SCENARIO") {
        all.retain(|(name, _)| {
            some.split(',')
                .any(|one| name.strip_suffix(".txt") == Some(one))
        });
    }
    all.sort();
    all
}

/// Begins the line after which only the engine holds a conversation, and says why.
pub const ENGINE_ONLY: &str = "# Engine only: ";

/// Returns the part of a conversation that a server can also hold.
pub fn for_servers(text: &str) -> &str {
    text.split(ENGINE_ONLY).next().unwrap_or_default()
}
