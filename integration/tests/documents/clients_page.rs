//! Code in a page is code of a test, and the tests that a page names exist.

use std::collections::BTreeSet;
use std::fs;

use super::project;

fn read(path: &str) -> String {
    let path = project().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the lines without their common indentation.
fn dedented(lines: &[&str]) -> String {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty());
    let common = common.map(indent).min().unwrap_or(0);
    let lines = lines.iter().map(|line| line.get(common..).unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns true if this code is in the source, at any indentation.
fn stands_in(source: &str, code: &str) -> bool {
    let lines: Vec<&str> = source.lines().collect();
    let count = code.lines().count();
    lines.windows(count).any(|window| dedented(window) == code)
}

/// Returns the number of compared blocks of a page: a comment before each names the file that has it.
pub fn compared(page: &str) -> usize {
    let page = read(page);
    let lines: Vec<&str> = page.lines().collect();
    let mut seen = 0;
    let mut at = 0;
    while at < lines.len() {
        if !lines[at].starts_with("```") {
            at += 1;
            continue;
        }
        let end = (at + 1..lines.len()).find(|line| lines[*line] == "```");
        let end = end.expect("a block of code ends");
        let above = at.checked_sub(1).map_or("", |above| lines[above]);
        let from = above.strip_prefix("<!-- ");
        // A block with a prompt is of another kind.
        let from = from.and_then(|from| from.strip_suffix(" -->"));
        if let Some(from) = from.filter(|from| !from.contains("> ")) {
            let code = dedented(&lines[at + 1..end]);
            let there = stands_in(&read(from), &code);
            assert!(there, "line {}: not in {from}", at + 1);
            seen += 1;
        }
        at = end + 1;
    }
    seen
}

/// Returns all clients and their tests, and the server's tests of these topics.
fn tests() -> String {
    let mut tests = read("integration/tests/documents/mistakes.rs");
    let mut todo = vec!["clients".to_owned()];
    while let Some(directory) = todo.pop() {
        let path = project().join(&directory);
        for entry in fs::read_dir(path).expect("a directory of the clients") {
            let entry = entry.expect("an entry");
            let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
            let extension = name.rsplit('.').next().unwrap_or_default();
            if entry.path().is_dir() {
                todo.push(name);
            } else if ["rs", "py", "java", "js", "mjs", "ts", "go", "php", "json"]
                .contains(&extension)
            {
                tests += &read(&name);
            }
        }
    }
    tests
}

/// Returns the words between backticks in a text.
fn names(text: &str) -> Vec<String> {
    let word = |name: &&str| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let names = text.split('`').skip(1).step_by(2).filter(word);
    names.map(str::to_owned).collect()
}

/// The texts name tests in parentheses, the table of mistakes in its last column.
#[test]
fn the_tests_that_are_named_are_there() {
    let (page, tests) = (read("docs/clients.md"), tests());
    let mut named = BTreeSet::new();
    for text in page.split("```").step_by(2) {
        for part in text.split("(`").skip(1) {
            let part = part.split(')').next().unwrap_or_default();
            // The split took away the first backtick.
            named.extend(names(&format!("`{part}")));
        }
    }
    let (_, mistakes) = page
        .split_once("| mistake |")
        .expect("the table of mistakes");
    for row in mistakes.lines().filter(|line| line.starts_with("| ")) {
        let test = row.trim_end_matches(" |").rsplit(" | ").next();
        named.extend(names(test.unwrap_or_default()));
    }
    assert!(named.len() > 10, "{} tests are named", named.len());
    for name in named {
        assert!(tests.contains(&name), "no test is called {name}");
    }
}
