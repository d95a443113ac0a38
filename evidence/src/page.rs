//! Pages of results, whose words are files with places for values.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

/// Puts values into the places `{name}` of a text.
///
/// # Panics
/// If a value has no place, or a place no value.
pub fn fill(text: &str, values: &[(&str, &dyn Display)]) -> String {
    let (mut filled, mut words) = (text.to_owned(), text.to_owned());
    for (name, value) in values {
        let place = format!("{{{name}}}");
        assert!(text.contains(&place), "the page has no {place}");
        filled = filled.replace(&place, &value.to_string());
        words = words.replace(&place, "");
    }
    assert!(!words.contains('{'), "a place has no value: {words}");
    filled
}

/// Returns lines of a table.
pub fn lines(rows: impl IntoIterator<Item = impl Display>) -> String {
    let lines: Vec<String> = rows.into_iter().map(|row| row.to_string()).collect();
    lines.join("\n")
}

/// Writes a page to a directory. An interrupted write leaves the old one.
pub fn keep(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// Prints what is not as promised. Returns the program's result.
pub fn verdict(wrong: &[String]) -> ExitCode {
    if wrong.is_empty() {
        println!("All as promised.");
        return ExitCode::SUCCESS;
    }
    println!("Not as promised:\n{}", wrong.join("\n"));
    ExitCode::FAILURE
}

#[test]
fn values_go_to_their_places() {
    assert_eq!(
        fill("{n} of {n}, {m}", &[("n", &1), ("m", &"x")]),
        "1 of 1, x"
    );
}

#[test]
#[should_panic(expected = "a place has no value")]
fn a_place_without_a_value_is_noticed() {
    fill("{n} of {m}", &[("n", &1)]);
}
