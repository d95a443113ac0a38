//! Claims of the sources that the compiler does not check.

use std::fs;
use std::path::PathBuf;

use dlock_documents::{project, read};

fn sources(directory: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut todo = vec![project().join(directory)];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).expect("a directory of the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                found.push((path, text));
            }
        }
    }
    found
}

/// Returns the functions that the server calls: their names and bodies.
fn callbacks(text: &str) -> Vec<(&str, &str)> {
    let starts = text.match_indices("extern \"C\" fn ");
    let callback = |(at, start): (usize, &str)| {
        let rest = &text[at + start.len()..];
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let indent = text[line..].len() - text[line..].trim_start().len();
        let end = format!("\n{}}}\n", " ".repeat(indent));
        let body = rest.split(&end).next().unwrap_or_default();
        (name, body)
    };
    // Without a name it is a type.
    let named = |(name, _): &(&str, &str)| !name.is_empty();
    starts.map(callback).filter(named).collect()
}

/// A panic must not leave a callback: the process would end.
#[test]
fn every_callback_catches_panics() {
    // A callback that answers a constant, or nothing, cannot panic; and a function that the server lacks must end the process.
    let without = ["pass", "effort", "woken", "absent"];
    let mut seen = 0;
    for (path, text) in sources("src") {
        for (name, body) in callbacks(&text) {
            seen += 1;
            let catches = body.contains("catch_panic(");
            let file = path.display();
            assert_eq!(catches, !without.contains(&name), "{file}: {name}");
        }
    }
    assert!(seen > 20, "{seen} callbacks are found");
}

#[test]
fn callbacks_are_told_from_types() {
    let text = "type Call = unsafe extern \"C\" fn(u8);\n\
                unsafe extern \"C\" fn one(x: u8) {\n    catch_panic(|| x);\n}\n\
                extern \"C\" fn two<T>() {\n    if x {\n        y();\n    }\n}\n";
    let found: Vec<(&str, bool)> = callbacks(text)
        .into_iter()
        .map(|(name, body)| (name, body.contains("catch_panic(")))
        .collect();
    assert_eq!(found, [("one", true), ("two", false)]);
}

/// `make coverage` leaves these functions out; it runs once a week.
#[test]
fn the_functions_that_coverage_leaves_out_are_there() {
    let list = read("tests/coverage/exceptions.txt");
    let lines = list.lines().filter(|line| !line.is_empty());
    let mut seen = 0;
    for line in lines.filter(|line| !line.starts_with('#')) {
        let (file, function) = line.split_once(' ').expect("a file and a function");
        let source = read(file);
        let is_there = ["(", "<"].map(|end| source.contains(&format!("fn {function}{end}")));
        assert!(is_there.contains(&true), "{line}: no such function");
        seen += 1;
    }
    assert!(seen > 20, "{seen} functions");
}
