//! The conversations in `tests/scenarios`, held with the engine, and with the model beside it.

use crate::transcript::check;
use std::path::{Path, PathBuf};

#[test]
fn conversations_go_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let told = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).expect("a text");
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        check(&text).err().map(|wrong| format!("{name}, {wrong}"))
    };
    let wrong: Vec<String> = files.iter().filter_map(told).collect();
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

const TRUE: &str = "\
ann: ACQUIRE shop alice 1000
  -> [#1, 1]
bob: ACQUIRE shop bert 1000 BLOCK 0
  -> waits
ann: RELEASE shop alice
  -> 0
  bob <- [#2, 1]
ann: HELD shop alice
  -> null
";

#[test]
fn a_true_conversation_passes() {
    assert_eq!(check(TRUE), Ok(()));
}

/// Makes a conversation untrue in one place, and requires that exactly this line is rejected.
fn untrue(there: &str, instead: &str, line: usize) {
    assert!(TRUE.contains(there));
    let wrong = check(&TRUE.replacen(there, instead, 1)).expect_err("it is not so");
    assert!(wrong.starts_with(&format!("line {line}:")), "{wrong}");
}

#[test]
fn an_untrue_conversation_does_not() {
    untrue("-> waits", "-> null", 4);
    untrue("-> waits", "-> waits and", 4);
    untrue("bob <- [#2, 1]", "bob <- [#1, 1]", 7);
    untrue("bob <- [#2, 1]", "bob <- [#2, 2]", 7);
    untrue("bob <- [#2, 1]", "ann <- [#2, 1]", 7);
    untrue("  bob <- [#2, 1]\n", "", 7);
    untrue("  -> 0\n", "  -> 0\n  ann <- null\n", 7);
    untrue("  bob <- [#2, 1]\n", "  bob <- [#2, 1]\n  bob <- null\n", 8);
    untrue("-> null", "-> nul", 9);
    // A higher number is a higher token.
    let again = "shop bert\n  -> [#3, 1, 1000]";
    untrue("shop alice\n  -> null", again, 9);
    untrue("bob <- [#2, 1]", "bob <- [#0, 1]", 7);
}
