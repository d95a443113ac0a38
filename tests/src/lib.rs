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

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use transcript::Edit;

/// A conversation, and where it is written.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub name: String,
    pub text: String,
    path: PathBuf,
    /// The number of each line in the file.
    lines: Vec<usize>,
}

/// Returns true if the answers that are given replace those in the files: with `DLOCK_WRITE=1` in the environment.
pub fn is_rewriting() -> bool {
    std::env::var_os("DLOCK_WRITE").is_some()
}

/// Returns the conversations; with `DLOCK_SCENARIO=queue,cancel` in the environment only these.
///
/// # Panics
/// When they cannot be read, or one of these is neither here nor among those of a server.
pub fn all() -> Vec<Conversation> {
    files("scenarios")
}

/// Returns the conversations that only a server can hold, each with its title.
///
/// A line `== title` begins another conversation; the lines before the first title begin every conversation of the file. A
/// conversation with `each one | other` is held once with `one` for every `{}` in it, and once with `other`; `{1}`, `{2}` are the
/// parts that `/` separates. A line with `{}` becomes one line for each part that `;` separates.
///
/// # Panics
/// When they cannot be read.
pub fn of_servers() -> Vec<Conversation> {
    files("servers").iter().flat_map(parts).collect()
}

/// Returns the conversations of a file for servers.
fn parts(file: &Conversation) -> Vec<Conversation> {
    let is_title = |line: &&(usize, &str)| line.1.starts_with("== ");
    let lines: Vec<(usize, &str)> = file.text.lines().enumerate().collect();
    let before: Vec<_> = lines.iter().take_while(|line| !is_title(line)).collect();
    let mut all = Vec::new();
    for start in (0..lines.len()).filter(|at| is_title(&&lines[*at])) {
        let body = lines[start + 1..].iter().take_while(|line| !is_title(line));
        let (each, body): (Vec<&(usize, &str)>, Vec<_>) =
            body.partition(|line| line.1.starts_with("each "));
        let values = each.iter().flat_map(|line| line.1[5..].split(" | "));
        let values: Vec<Option<&str>> = values.map(Some).collect();
        let once = values.is_empty().then_some(None);
        for value in values.into_iter().chain(once) {
            let title = &lines[start].1[3..];
            let name = match value {
                Some(value) => format!("{}, {title} {value}", file.name),
                None => format!("{}, {title}", file.name),
            };
            let (mut text, mut numbers) = (Vec::new(), Vec::new());
            for (number, line) in before.iter().chain(&body) {
                let line = value.map_or_else(|| (*line).to_owned(), |value| filled(line, value));
                for line in line.lines().chain(line.is_empty().then_some("")) {
                    text.push(line.to_owned());
                    numbers.push(*number);
                }
            }
            all.push(Conversation {
                name,
                text: text.join("\n"),
                path: file.path.clone(),
                lines: numbers,
            });
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

fn files(folder: &str) -> Vec<Conversation> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all: Vec<Conversation> = fs::read_dir(folder)
        .expect("the folder")
        .map(|file| {
            let path = file.expect("a file").path();
            let text = fs::read_to_string(&path).expect("a text");
            Conversation::of_text(path, text)
        })
        .collect();
    match std::env::var("DLOCK_SCENARIO") {
        Ok(some) => {
            for one in some.split(',') {
                let is_there = ["scenarios", "servers"].iter().any(|folder| {
                    let file = format!("{}/{folder}/{one}.txt", env!("CARGO_MANIFEST_DIR"));
                    Path::new(&file).exists()
                });
                assert!(is_there, "DLOCK_SCENARIO: no conversation is called {one}");
            }
            all.retain(|file| {
                some.split(',')
                    .any(|one| file.name.strip_suffix(".txt") == Some(one))
            });
        }
        Err(_) => assert!(!all.is_empty(), "no conversation"),
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

impl Conversation {
    fn of_text(path: PathBuf, text: String) -> Conversation {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Conversation {
            name: name.into_owned(),
            lines: (0..text.lines().count()).collect(),
            text,
            path,
        }
    }

    /// Returns the edits as edits of the file, whose text this is. Errors with a line that the file has only in parts: a value of
    /// `each` is in it.
    fn of_file(&self, edits: &[Edit], file: &str) -> Result<Vec<Edit>, String> {
        let written: Vec<&str> = file.lines().collect();
        let held: Vec<&str> = self.text.lines().collect();
        let in_file = |edit: &Edit| {
            let at = edit.line();
            let number = self.lines[at];
            Ok(match edit {
                Edit::Add(_, line) => Edit::Add(number, line.clone()),
                _ if written[number] != held[at] => {
                    let (name, line) = (&self.name, held[at]);
                    return Err(format!(
                        "{name}, line {}: {line}\ncorrect what `each` puts in",
                        number + 1
                    ));
                }
                Edit::Rewrite(_, line) => Edit::Rewrite(number, line.clone()),
                Edit::Remove(_) => Edit::Remove(number),
            })
        };
        edits.iter().map(in_file).collect()
    }
}

/// Writes the edits of conversations into their files. Returns what cannot be corrected there.
///
/// # Panics
/// When a file cannot be written.
pub fn write(corrected: &[(&Conversation, Vec<Edit>)]) -> Vec<String> {
    let mut of_files: BTreeMap<&Path, Vec<_>> = BTreeMap::new();
    for one in corrected.iter().filter(|(_, edits)| !edits.is_empty()) {
        of_files.entry(&one.0.path).or_default().push(one.clone());
    }
    let mut wrong = Vec::new();
    for (path, corrected) in of_files {
        let text = fs::read_to_string(path).expect("a text");
        let (edited, left) = edited(&text, &corrected);
        fs::write(path, edited).expect("the file can be written");
        wrong.extend(left);
    }
    wrong
}

/// Returns a file's text after the edits of its conversations, and what cannot be corrected there. Of conversations with common
/// lines the first counts: the next run tells whether the others agree.
fn edited(text: &str, corrected: &[(&Conversation, Vec<Edit>)]) -> (String, Vec<String>) {
    let (mut all, mut wrong): (Vec<Edit>, Vec<String>) = Default::default();
    for (conversation, edits) in corrected {
        match conversation.of_file(edits, text) {
            Ok(edits) => {
                let taken: Vec<usize> = all.iter().map(Edit::line).collect();
                let edits = edits.into_iter();
                all.extend(edits.filter(|edit| !taken.contains(&edit.line())));
            }
            Err(what) => wrong.push(what),
        }
    }
    (transcript::edited(text, &all), wrong)
}

/// Begins the line after which only the engine holds a conversation, and says why.
pub const ENGINE_ONLY: &str = "# Engine only: ";

/// Returns the part of a conversation that a server can also hold.
pub fn for_servers(text: &str) -> &str {
    text.split(ENGINE_ONLY).next().unwrap_or_default()
}
