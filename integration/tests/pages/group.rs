//! The files of a group of nodes (`packaging/group/`).

use std::collections::BTreeSet;
use std::fs;

use dlock_documents::project;
use dlock_harness::{module_path, Ask, Server};

const GROUP: &str = include_str!("../../../packaging/group/group.conf");

/// The path of the module in the container.
const INSTALLED: &str = "/usr/lib/redis/modules/libdlock.so";

/// The settings that the nodes of a group receive are in force, and each setting that its files name exists.
#[test]
fn a_groups_settings_are_settings() {
    let module = module_path().canonicalize().expect("the module is built");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("group.conf");
    let group = GROUP
        .replace(INSTALLED, &format!("\"{}\"", module.display()))
        .replace("bind * -::*", "bind 127.0.0.1");
    fs::write(&file, group).expect("the directory can be written to");
    let server = Server::builder()
        .without_module()
        .config("include", format!("\"{}\"", file.display()))
        .start();
    let mut connection = server.connection();
    let all: Vec<String> = connection.ask("CONFIG GET dlock.*");
    let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let mut seen = 0;
    for name in ["group.conf", "compose.yaml", "kubernetes.yaml", "start.sh"] {
        let text = fs::read_to_string(project().join("packaging/group").join(name));
        let text = text.expect("a file of the group");
        // `dlock.` also ends a sentence, and begins a file's name.
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"-._/".contains(c));
        let is_setting = |word: &&str| word.starts_with("dlock.") && word.len() > 6;
        for word in words.filter(is_setting) {
            let word = word.trim_end_matches('.');
            assert!(all.contains(word) || word == "dlock.lua", "{name}: {word}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} settings");
    for line in GROUP.lines().filter(|line| line.starts_with("dlock.")) {
        let (name, value) = line.split_once(' ').expect("two words");
        let (_, now): (String, String) = connection.ask(&format!("CONFIG GET {name}"));
        assert_eq!(now, value, "{name}");
    }
}
