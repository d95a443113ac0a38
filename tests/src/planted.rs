//! Untrue conversations, which every speaker must reject, and `DLOCK_WRITE=1` corrects.

use crate::transcript::Edit;
use crate::{edited, parts, Conversation};

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

/// A conversation with words that agree with many answers, comments, and events.
const OPEN: &str = "\
# It waits,   and gives up.
ann: ACQUIRE shop alice 1000   # A lease.
  -> [#1, 1]  # A token.

ann: RENEW shop bert 1000
    -> NOTHELD ...
ann: LOG COUNT 1
  -> []
wait 1000
events: acquired #1
# The end.";

/// Untrue lines of it, whose corrections keep the rest of the line: the text, its replacement, and the text after the correction.
const OPEN_UNTRUE: [(&str, &str, &str); 5] = [
    ("-> [#1, 1]  # A", "-> [#1, 2]  # A", "-> [#1, 1]  # A"),
    ("-> NOTHELD ...", "-> FENCED ...", "-> NOTHELD ..."),
    ("-> NOTHELD ...", "-> NOTHELD", "-> NOTHELD "),
    (
        "events: acquired #1",
        "events: queued ...",
        "events: acquired ...",
    ),
    ("  -> []\n", "", "  -> []\n"),
];

/// Corrects untrue conversations with `correct`, which returns the corrected text.
///
/// # Panics
/// If a correction is not the true text, or changes a true one.
pub fn mend(correct: impl Fn(&str) -> String) {
    for (there, instead, _) in UNTRUE {
        let untrue = TRUE.replacen(there, instead, 1);
        // Here it is the command that differs.
        let expected = match instead.strip_prefix("shop bert") {
            Some(_) => untrue.replace("#3", "#2"),
            None => TRUE.to_owned(),
        };
        assert_eq!(correct(&untrue), expected, "{instead}");
    }
    assert_eq!(correct(OPEN), OPEN);
    for (there, instead, after) in OPEN_UNTRUE {
        assert!(OPEN.contains(there), "{there}");
        let corrected = correct(&OPEN.replacen(there, instead, 1));
        assert!(corrected.contains(after), "{corrected}");
        let (before, below) = OPEN.split_once(there).expect("it is there");
        assert!(
            corrected.starts_with(before) && corrected.ends_with(below),
            "{corrected}"
        );
    }
}

/// A file for servers: lines of all conversations, and one with values.
const FILE: &str = "\
ann: ACQUIRE shop alice 1000
  -> [#1, 1]

== It is renewed.
each 500 | 600
ann: RENEW shop alice {}
  -> {}

== It is held.
eve$ SET other x
ann: HELD shop alice
  -> [#1, 1, 1000]
";

/// Corrects the conversations of a file for servers with `correct`, whose lines are not those of the file.
///
/// # Panics
/// If a correction is not the true file, or one that no file can have is not refused.
pub fn mend_file(correct: impl Fn(&str) -> Result<Vec<Edit>, String>) {
    let mended = |text: &str| {
        let all = parts(&Conversation::of_text("a file".into(), text.to_owned()));
        let corrected = all.iter().map(|one| Ok((one, correct(&one.text)?)));
        let corrected: Result<Vec<_>, String> = corrected.collect();
        edited(text, &corrected.expect("the lines are events"))
    };
    assert_eq!(mended(FILE), (FILE.to_owned(), Vec::new()));
    for (there, instead) in [
        ("  -> [#1, 1]\n\n", "  -> null\n\n"),
        ("eve$ SET other x\n", "eve$ SET other x\n  -> 7\n"),
        ("1000]\n", "999]\n"),
    ] {
        let (text, wrong) = mended(&FILE.replacen(there, instead, 1));
        assert_eq!(text.replace("  -> OK\n", ""), FILE);
        assert_eq!(wrong, [""; 0]);
    }
    let filled = FILE.replacen("  -> {}", "  -> 5{}", 1);
    let (text, wrong) = mended(&filled);
    assert_eq!((text, wrong.len()), (filled, 2));
}
