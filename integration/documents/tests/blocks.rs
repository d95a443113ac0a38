//! Each block of the pages for users is of a kind that a test reads. `integration/tests/pages/transcripts.rs` types the commands
//! and sets the settings.

use std::process::Command;

use dlock_documents::{is_transcript, parts, project, prompt, read, Part, PAGES};

use super::code::compared;

const MAKEFILE: &str = include_str!("../../../Makefile");

/// Asserts that the Makefile's targets and the project's files in the lines of a shell exist.
fn try_shell(page: &str, lines: &[&str]) {
    for line in lines {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let ours = ["packaging/", "observability/", "clients/", "docs/"];
            if ours.iter().any(|folder| word.starts_with(folder)) {
                assert!(project().join(word).exists(), "{page}: {line}");
            }
            let target = words.peek().filter(|_| word == "make");
            if let Some(target) = target {
                let is_there = MAKEFILE.contains(&format!("\n{target}: "));
                assert!(is_there, "{page}: {line}: no such target");
            }
        }
    }
}

/// A block that no test runs, and that is no text either, fails here.
#[test]
fn every_block_is_of_a_kind_that_is_tested() {
    for name in PAGES {
        let page = read(name);
        let mut code = 0;
        for part in parts(&page) {
            let Part::Block(block) = part else { continue };
            let all_begin = |with: &str| block.lines.iter().all(|line| line.starts_with(with));
            if block.above.starts_with("<!-- ") && prompt(&block.above[5..]).is_none() {
                code += 1;
            } else if block.word == "sh" {
                try_shell(name, &block.lines);
            } else {
                // Tests of commands and permissions read syntax and rules; a server is given the settings (`conf`); a picture, a line
                // of the log and a unit are text.
                let is_text = ["conf", "text", "ini", "lua"].contains(&block.word);
                let is_read = all_begin("DLOCK.") || all_begin("ACL SETUSER ");
                assert!(
                    is_transcript(&block) || is_text || is_read,
                    "{name}: {:?}",
                    block.lines
                );
            }
        }
        if code > 0 {
            assert_eq!(compared(name), code, "{name}");
        }
    }
}

/// The block of Python in the cookbook behaves as the page says.
#[test]
fn a_late_write_in_sql_is_not_made() {
    let script = project().join("docs/examples/guard.py");
    let Ok(output) = Command::new("python3").arg(script).output() else {
        println!("not run: there is no Python");
        return;
    };
    assert!(output.status.success(), "{output:?}");
}

/// Sentences over which readers of English as a second language stumbled, and words with two meanings.
#[test]
fn the_words_are_those_that_readers_know() {
    for name in PAGES.iter().chain(&["CHANGELOG.md"]) {
        let page = read(name);
        assert!(!page.contains("Mended"), "{name}: say Fixed");
        for line in page.lines() {
            let line = line.trim_start_matches(['-', '|', ' ', '*']);
            let begins = line.starts_with("Who ") || line.starts_with("Whoever ");
            // `Who leads, and for how long:` is a question.
            let is_question = line.ends_with(['?', ':']);
            assert!(
                !begins || is_question,
                "{name}: {line}\nsay \"A client that\" or \"An owner that\""
            );
        }
    }
}

#[test]
fn the_readme_names_what_a_newcomer_can_make() {
    let page = read("README.md");
    for target in ["run", "test", "demo", "ladder", "build"] {
        assert!(page.contains(&format!("make {target}")), "make {target}");
    }
}
