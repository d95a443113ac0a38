//! `packaging/dlock.conf`: every setting of the module with its default, and the recommended ones, as in the pages.
//!
//! `DLOCK_WRITE=1 cargo test --test servers pages::settings_file` writes it.

use std::collections::BTreeMap;
use std::fs;

use dlock_documents::{project, recommended, DECIDED};
use dlock_harness::{Ask, Server};

const FILE: &str = "packaging/dlock.conf";
const COMMITTED: &str = include_str!("../../../packaging/dlock.conf");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

const HEAD: &str = "\
# All settings of dlock, with their defaults, and what is recommended. Generated from the module and its documents.
#
# No server reads this file. Put the lines that you change into the server's own configuration file (on Debian
# /etc/redis/redis.conf or /etc/valkey/valkey.conf), below the line that loads the module, and restart the server; or use CONFIG
# SET and then CONFIG REWRITE, which writes them there. A line in an included file counts only until the first CONFIG REWRITE
# (Sentinel sends one with each change of role): it copies what is in force into the server's own file, where it comes later.
";

/// Returns a sentence without the marks of code, and the marks and targets of links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        let (start, words) = before.rsplit_once('[').expect("the words of a link");
        plain += start;
        plain += words;
        rest = link.split_once(')').expect("the end of a link").1;
    }
    plain += rest;
    let plain = plain.replace('`', "");
    let mut letters = plain.chars();
    let first = letters.next().expect("some words");
    first.to_uppercase().chain(letters).collect()
}

/// Returns comment lines of at most 120 columns.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        match line.len() + 1 + word.len() > 120 {
            true => lines.push(format!("# {word}")),
            false => *line += &format!(" {word}"),
        }
    }
    lines.join("\n") + "\n"
}

fn commented(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(words) => format!("#   {words}\n"),
        None => format!("# {line}\n"),
    };
    text.lines().map(line).collect()
}

/// Returns the expected file, for the settings of a server.
fn expected(all: &BTreeMap<String, String>) -> String {
    let mut text = HEAD.to_owned();
    let mut seen = 0;
    for row in OPERATIONS.lines() {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [name, _, bounds, meaning, reason] = cells.as_slice() else {
            continue;
        };
        let name = name.trim_matches('`');
        let Some(default) = all.get(name) else {
            continue;
        };
        seen += 1;
        text += "\n";
        text += &comment(&format!("{}. {}.", plain(meaning), plain(reason)));
        text += &format!("# Allowed: {bounds}\n# {name} {default}\n");
    }
    assert_eq!(seen, all.len(), "docs/operations.md lacks a setting");
    let [with, without] = recommended();
    text += "\n# Any other policy may evict locks, and so end them while their holders work.\n# maxmemory-policy noeviction\n";
    text += "\n# Recommended where a lock must survive a failover, on every node (docs/guarantees.md):\n";
    text += &commented(with);
    text += "\n# Or, without a round trip to a replica for each grant:\n";
    text + &commented(without)
}

#[test]
fn it_has_every_setting_with_its_default() {
    let server = Server::start();
    let all: BTreeMap<String, String> = server.connection().ask("CONFIG GET dlock.*");
    assert_eq!(all.len(), 20);
    let expected = expected(&all);
    if std::env::var_os("DLOCK_WRITE").is_some() {
        fs::write(project().join(FILE), &expected).expect("the file can be written");
        return;
    }
    assert_eq!(COMMITTED, expected, "DLOCK_WRITE=1 writes {FILE}");
}

/// A server accepts every line, the recommended ones as well.
#[test]
fn it_is_a_configuration() {
    let lines = COMMITTED.lines().filter_map(|line| line.strip_prefix("# "));
    let is_setting = |line: &&str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 2 && words[0].contains(['-', '.']) && !words[0].contains('/')
    };
    let lines: Vec<&str> = lines.filter(is_setting).collect();
    assert!(lines.len() >= 17 + 6, "{lines:?}");
    let mut server = Server::builder();
    for line in &lines {
        let (name, value) = line.split_once(' ').expect("two words");
        server = server.config(name, value);
    }
    let server = server.start();
    let mut connection = server.connection();
    for line in &lines {
        let (name, value) = line.split_once(' ').expect("two words");
        let (_, now): (String, String) = connection.ask(&format!("CONFIG GET {name}"));
        // A name may come twice: then the recommended value comes later.
        if !DECIDED.contains(&name) {
            assert_eq!(now, value, "{name}");
        }
    }
}
