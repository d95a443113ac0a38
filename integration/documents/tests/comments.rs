//! The language of comments: the phrases that no page may have, no comment of a source may have either.

use std::fs;
use std::path::{Path, PathBuf};

use dlock_documents::project;

use super::prose::{phrases, plain};

/// How a comment begins, by the end of a file's name.
const MARKS: [(&str, &str); 11] = [
    ("go", "//"),
    ("java", "//"),
    ("js", "//"),
    ("mjs", "//"),
    ("mts", "//"),
    ("php", "//"),
    ("rs", "//"),
    ("ts", "//"),
    ("lua", "--"),
    ("py", "#"),
    ("sh", "#"),
];

/// What is not written here, or is built.
const SKIPPED: [&str; 4] = ["target", "node_modules", ".git", "vendor"];

/// Returns the sources below a folder, and how comments begin there.
fn sources(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        if path.is_dir() {
            if !name.is_some_and(|name| SKIPPED.contains(&name)) {
                found.extend(sources(&path));
            }
        } else if let Some(end) = path.extension().and_then(|end| end.to_str()) {
            let mark = MARKS.iter().find(|(of, _)| *of == end);
            found.extend(mark.map(|(_, mark)| (path.clone(), *mark)));
        }
    }
    found
}

/// Returns the paragraphs of comments, each with the line where it begins. A comment behind code is one of its own.
fn comments(source: &str, mark: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut in_block) = (false, false);
    for (at, line) in source.lines().enumerate() {
        let line = line.trim();
        let quotes = mark == "#" && line.matches("\"\"\"").count() == 1;
        let begins = !in_block && (mark == "//" && line.starts_with("/*") || quotes);
        let in_line = mark == "#" && line.starts_with("\"\"\"") && !quotes;
        let whole = match line.strip_prefix(mark) {
            _ if in_block || begins || in_line => Some(line),
            Some(rest) if !line.starts_with("#!") => Some(rest),
            _ => None,
        };
        if mark == "//" && (in_block || begins) {
            in_block = !line.contains("*/");
        } else if quotes {
            in_block = !in_block;
        }
        let marks = ['/', '!', '*', '#', '-', '"'];
        match whole.map(|text| text.trim_start_matches(marks).trim()) {
            Some("") => is_open = false,
            Some(text) => {
                match found.last_mut().filter(|_| is_open) {
                    Some((_, words)) => *words += &format!(" {text}"),
                    None => found.push((at + 1, text.to_owned())),
                }
                is_open = true;
            }
            None => {
                is_open = false;
                let behind = line.rsplit_once(&format!(" {mark} "));
                let behind = behind.filter(|(code, _)| code.matches('"').count() % 2 == 0);
                found.extend(behind.map(|(_, text)| (at + 1, text.to_owned())));
            }
        }
    }
    found
}

#[test]
fn the_comments_of_all_sources_are_plain_english() {
    let sources = sources(&project());
    assert!(sources.len() > 500, "{} sources", sources.len());
    let mut found = Vec::new();
    for (path, mark) in sources {
        let source = String::from_utf8_lossy(&fs::read(&path).expect("a source")).into_owned();
        for (line, text) in comments(&source, mark) {
            let text = plain(&text);
            let faults = phrases(&text);
            found.extend(faults.map(|fault| format!("{}:{line}: {fault}", path.display())));
        }
    }
    assert!(
        found.is_empty(),
        "{} phrases:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_phrase_is_found_in_each_kind_of_comment() {
    for (source, mark) in [
        (
            "/// One line.\n/// The client is\n/// told.\nfn f() {}",
            "//",
        ),
        ("let a = 1; // The client is told.", "//"),
        ("/**\n * The client is\n * told.\n */\nvoid f() {}", "//"),
        ("# The client is told.\nf()", "#"),
        ("def f():\n    \"\"\"The client is told.\"\"\"\n", "#"),
        (
            "def f():\n    \"\"\"Waits.\n\n    The client is\n    told.\n    \"\"\"\n",
            "#",
        ),
        ("-- The client is told.", "--"),
    ] {
        let texts = comments(source, mark).into_iter();
        let found: Vec<String> = texts
            .flat_map(|(_, text)| phrases(&text).collect::<Vec<_>>())
            .collect();
        assert_eq!(found.len(), 1, "{source}");
    }
    let code = "let told = \"is told\"; // A reason.\nlet url = \"http://is told\";\n";
    let texts: Vec<_> = comments(code, "//");
    assert_eq!(texts, [(1, "A reason.".to_owned())]);
}
