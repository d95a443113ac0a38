//! Untrue conversations, which every speaker must reject.

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

/// The untruths: a text of the conversation, its replacement, and the line that is untrue then.
const UNTRUE: [(&str, &str, usize); 12] = [
    ("-> waits", "-> null", 4),
    ("-> waits", "-> waits and", 4),
    ("bob <- [#2, 1]", "bob <- [#1, 1]", 7),
    ("bob <- [#2, 1]", "bob <- [#2, 2]", 7),
    ("bob <- [#2, 1]", "ann <- [#2, 1]", 7),
    ("  bob <- [#2, 1]\n", "", 7),
    ("  -> 0\n", "  -> 0\n  ann <- null\n", 7),
    ("  bob <- [#2, 1]\n", "  bob <- [#2, 1]\n  bob <- null\n", 8),
    ("-> null", "-> nul", 9),
    // A higher number is a higher token.
    ("shop alice\n  -> null", "shop bert\n  -> [#3, 1, 1000]", 9),
    ("bob <- [#2, 1]", "bob <- [#0, 1]", 7),
    ("-> [#1, 1]", "-> [#1, 1, 1]", 2),
];

/// Checks a true conversation and untrue ones with `check`.
///
/// # Panics
/// If `check` rejects the true one, accepts an untrue one, or blames another line.
pub fn find(check: impl Fn(&str) -> Result<(), String>) {
    assert_eq!(check(TRUE), Ok(()));
    for (there, instead, line) in UNTRUE {
        assert!(TRUE.contains(there));
        let wrong = check(&TRUE.replacen(there, instead, 1)).expect_err(instead);
        assert!(wrong.starts_with(&format!("line {line}:")), "{wrong}");
    }
}
