//! One page recommends settings (`docs/guarantees.md`); other places have its values, or a link.

use std::collections::BTreeMap;
use std::fs;

use dlock_documents::{blocks, project, recommended, DECIDED};

const GROUP: &str = include_str!("../../../packaging/group/group.conf");

/// The pages that name the recommended setting, with the link to it.
const LINKS: [(&str, &str); 3] = [
    ("docs/cluster.md", "guarantees.md#the-recommended-setting"),
    ("docs/waiting.md", "guarantees.md#the-recommended-setting"),
    (
        "docs/operations.md",
        "guarantees.md#the-recommended-setting",
    ),
];

/// Returns the lines that set a value.
fn settings(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(name, _)| !name.starts_with('#')).collect()
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
    assert_eq!(with.len(), 5);
    assert_eq!(without.len(), 4);
    for name in ["dlock.max-lease-ms", "dlock.quarantine-ms"] {
        assert_eq!(with[name], without[name]);
    }
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
