//! The list of the server's functions that the module needs is the list of those that it calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dlock_documents::project;

const LIST: &str = "src/ffi/api.rs";

/// Returns the text of all sources in a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(&path);
        } else if !path.ends_with("api.rs") {
            text += &fs::read_to_string(&path).expect("a source");
        }
    }
    text
}

/// Returns the names of functions that follow one of these beginnings.
fn named<'t>(text: &'t str, beginnings: &[&str]) -> BTreeSet<&'t str> {
    let name = |rest: &'t str| {
        let rest = rest.trim_start();
        let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        rest.split_at(end.unwrap_or(rest.len())).0
    };
    let calls = |begin: &&str| text.split(begin).skip(1).map(name).collect::<Vec<_>>();
    let names = beginnings.iter().flat_map(calls);
    names
        .filter(|name| name.starts_with("RedisModule_"))
        .collect()
}

#[test]
fn the_module_checks_for_every_function_that_it_calls() {
    let text = sources(&project().join("src"));
    let called = named(&text, &["api!(", "hot!("]);
    assert!(called.len() > 50, "{called:?}");
    let list = fs::read_to_string(project().join(LIST)).expect(LIST);
    let hot = list
        .split_once("hot_functions! {")
        .expect("hot functions")
        .1;
    let needed = list.split_once("need! {").expect("the others").1;
    let end = |part: &'_ str| part.split_once('}').expect("its end").0.to_owned();
    let listed = end(hot) + &end(needed);
    let listed = named(&listed, &[" ", "\n"]);
    assert_eq!(called, listed, "{LIST}");
}

#[test]
fn a_call_is_found() {
    let text = "api!(RedisModule_A(x)); hot!(\n RedisModule_B()) api!(other(y))";
    let names = named(text, &["api!(", "hot!("]);
    assert_eq!(names, BTreeSet::from(["RedisModule_A", "RedisModule_B"]));
}
