//! Every crate that is built in comes from the registry, under a licence that `deny.toml` allows.

use std::collections::BTreeSet;
use std::process::Command;

use dlock_documents::project;

const DENY: &str = include_str!("../../../deny.toml");

/// The beginning of the source of a crate from a registry: not a repository, not a folder. The project's own crates have none.
const REGISTRY: &str = "registry+";

fn allowed() -> BTreeSet<&'static str> {
    let list = DENY.split("allow = [").nth(1).expect("a list");
    let list = list.split(']').next().expect("its end");
    list.split(',')
        .map(|name| name.trim().trim_matches('"'))
        .collect()
}

/// Returns true if the licences are allowed, one of each choice and all that apply together: `(MIT OR Apache-2.0) AND ISC`.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.replace('/', " OR ");
    expression.split(" AND ").all(|choice| {
        let choice = choice.trim_matches(['(', ')']);
        choice.split(" OR ").any(|name| allowed.contains(name))
    })
}

#[test]
fn every_crate_may_be_given_on() {
    let said = Command::new("rustc").arg("-vV").output();
    let said = String::from_utf8(said.expect("rustc runs").stdout).expect("text");
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    // Cargo fetches those of this platform that are missing, and no others.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", host.expect("a platform")])
        .current_dir(project())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo tells of the crates");
    let crates = metadata["packages"].as_array().expect("a list");
    assert!(crates.len() > 50, "{}", crates.len());
    let allowed = allowed();
    for one in crates {
        let name = &one["name"];
        let licence = one["license"].as_str().unwrap_or_default();
        assert!(is_allowed(licence, &allowed), "{name}: {licence}");
        let source = one["source"].as_str().unwrap_or(REGISTRY);
        assert!(source.starts_with(REGISTRY), "{name} comes from {source}");
    }
}

#[test]
fn what_is_not_allowed_is_found() {
    let allowed = allowed();
    for (expression, wanted) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("GPL-2.0 OR LGPL-2.1", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), wanted, "{expression}");
    }
}
