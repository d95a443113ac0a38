//! The places that `CONTRIBUTING.md` names are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dlock_documents::{project, read};

/// What is not the project's, or is built.
const SKIPPED: [&str; 4] = [".git", "node_modules", "target", "vendor"];

/// Returns the folders and files of the project, by their paths from its top.
fn paths(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(project().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if entry.path().is_dir() {
            found.extend(paths(&path));
        }
        found.insert(path.display().to_string());
    }
    found
}

/// Returns the places that a page names as code and that are not there: `engine/src/` and `codec.rs`, but no command and no pattern.
/// A path may leave out its first folders, which the words before it name.
fn missing<'a>(page: &'a str, paths: &BTreeSet<String>) -> Vec<&'a str> {
    let spans = page.split('`').skip(1).step_by(2);
    let is_place = |span: &&str| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let is_file = [".rs", ".toml", ".txt"]
            .iter()
            .any(|end| span.ends_with(end));
        span.chars().all(is_path) && !span.starts_with('/') && (is_file || span.ends_with('/'))
    };
    let is_there = |span: &&str| {
        let place = span.trim_end_matches('/');
        let inside = format!("/{place}");
        paths.contains(place) || paths.iter().any(|path| path.ends_with(&inside))
    };
    let places = spans.filter(is_place);
    places.filter(|place| !is_there(place)).collect()
}

#[test]
fn every_place_is_there() {
    let page = read("CONTRIBUTING.md");
    let left: Vec<&str> = missing(&page, &paths(Path::new("")));
    // What the build makes.
    assert_eq!(left, ["target/"]);
}

#[test]
fn a_place_that_has_gone_is_found() {
    let paths = ["engine/src/lib.rs", "engine/src", "engine"].map(str::to_owned);
    let page = "`engine/src/lib.rs` `lib.rs` `src/` `make run` `src/*.rs` `gone.rs` `engine/gone/` `ngine/src/`";
    let left = missing(page, &BTreeSet::from(paths));
    assert_eq!(left, ["gone.rs", "engine/gone/", "ngine/src/"]);
}
