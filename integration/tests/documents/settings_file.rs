//! `packaging/dlock.conf`: every setting of the module with its default, and the recommended ones, as in the pages.
//!
//! `DLOCK_WRITE=1 cargo test --test servers documents::settings_file` writes it.

use std::collections::BTreeMap;
use std::fs;

use dlock_integration::{Ask, Server};

use super::project;

const FILE: &str = "packaging/dlock.conf";
const COMMITTED: &str = include_str!("../../../packaging/dlock.conf");
const GROUP: &str = include_str!("../../../packaging/group/group.conf");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");

/// The pages that name the recommended setting, with the link to it.
const LINKS: [(&str, &str); 4] = [
    ("docs/cluster.md", "guarantees.md#the-recommended-setting"),
    ("docs/waiting.md", "guarantees.md#the-recommended-setting"),
    (
        "docs/operations.md",
        "guarantees.md#the-recommended-setting",
    ),
    ("docs/upgrade.md", "guarantees.md#the-recommended-setting"),
];

/// The settings that the recommended setting decides.
const DECIDED: [&str; 5] = [
    "rdb-del-sync-files",
    "dlock.replicas",
    "dlock.quarantine-ms",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

const HEAD: &str = "\
# All settings of dlock, with their defaults, and what is recommended. Generated from the module and its documents.
#
# No server reads this file. Put the lines that you change into the server's own configuration file (on Debian
# /etc/redis/redis.conf or /etc/valkey/valkey.conf), below the line that loads the module, and restart the server; or use CONFIG
# SET and then CONFIG REWRITE, which writes them there. A line in an included file counts only until the first CONFIG REWRITE
# (Sentinel sends one with each change of role): it copies what is in force into the server's own file, where it comes later.
";

/// Returns the blocks of configuration on a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("\n```")
        .filter_map(|block| block.strip_prefix("conf\n"))
}

/// Returns the recommended setting, with a round trip to a replica, and the older one without.
fn recommended() -> [&'static str; 2] {
    let headings = [
        "The recommended setting",
        "The older setting, without a round trip",
    ];
    headings.map(|heading| {
        let section = GUARANTEES.split(&format!("\n## {heading}\n")).nth(1);
        let section = section.and_then(|rest| rest.split("\n## ").next());
        let mut blocks = blocks(section.expect("the section"));
        let block = blocks.next().expect("a setting");
        assert_eq!(blocks.next(), None, "{heading}");
        block
    })
}

/// Returns the lines that set a value.
fn settings(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(name, _)| !name.starts_with('#')).collect()
}

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

/// Returns the lines of a page's configurations that differ from the recommendation, and the number of lines about its settings.
fn disagreements(page: &str) -> (Vec<String>, usize) {
    let [with, without] = recommended();
    let (with, without) = (settings(with), settings(without));
    let decided = blocks(page).flat_map(settings);
    let decided: Vec<_> = decided.filter(|(name, _)| DECIDED.contains(name)).collect();
    let wrong = decided
        .iter()
        .filter(|(name, value)| with.get(name).or(without.get(name)) != Some(value));
    (
        wrong
            .map(|(name, value)| format!("{name} {value}"))
            .collect(),
        decided.len(),
    )
}

#[test]
fn another_recommendation_is_found() {
    let page =
        "Text.\n\n```conf\n# dlock.replicas 9\ndlock.replicas 2\ndlock.quarantine-ms 9000\n```\n";
    assert_eq!(
        disagreements(page),
        (vec!["dlock.quarantine-ms 9000".to_owned()], 2)
    );
}

/// One page recommends settings; every other place has its values, or a link.
#[test]
fn the_recommended_setting_has_one_source() {
    let [with, without] = recommended();
    let (with, without) = (settings(with), settings(without));
    assert_eq!(with.len(), 4);
    assert_eq!(without.len(), 3);
    assert_eq!(with["dlock.quarantine-ms"], without["dlock.quarantine-ms"]);
    let group = settings(GROUP);
    for (name, value) in &with {
        assert_eq!(group.get(name), Some(value), "group.conf: {name}");
    }
    let mut seen = 0;
    let pages = fs::read_dir(project().join("docs")).expect("the documents");
    for page in pages {
        let page = page.expect("a document").path();
        let Ok(text) = fs::read_to_string(&page) else {
            continue;
        };
        let (wrong, count) = disagreements(&text);
        assert_eq!(wrong, [""; 0], "{}", page.display());
        seen += count;
    }
    assert!(seen > with.len() + without.len(), "{seen}");
    for (page, link) in LINKS {
        let text = fs::read_to_string(project().join(page)).expect("a document");
        assert!(text.contains(link), "{page} has no link to {link}");
    }
}
