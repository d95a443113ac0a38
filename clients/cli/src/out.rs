//! What is printed. A reader that has gone ends this program as it would any other (`dlock ls | head`); a terminal or log that has gone
//! ends nothing.

use crate::signals;
use nix::sys::signal::Signal;
use std::fmt::{Arguments, Write as _};
use std::io::{self, Write};

/// Prints a line of the result.
macro_rules! say {
    ($($words:tt)*) => { $crate::out::line(format_args!($($words)*)) };
}

/// Prints a line about what happens, on standard error.
macro_rules! tell {
    ($($words:tt)*) => { $crate::out::note(format_args!($($words)*)) };
}

pub(crate) use {say, tell};

/// Returns a line as it may be shown. Names of locks and owners, and what servers say, are the bytes of others: what would move a
/// terminal's cursor, change its colours, or turn the order of the letters is escaped (`\u{1b}`).
pub(crate) fn plain(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    for letter in line.chars() {
        if moves(letter) {
            let _ = write!(plain, "{}", letter.escape_default());
        } else {
            plain.push(letter);
        }
    }
    plain
}

/// Returns true if a letter would move the cursor, or turn the order of the letters.
pub(crate) fn moves(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns
}

pub(crate) fn line(words: Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{}", plain(&words.to_string())) {
        failed(&error);
    }
}

pub(crate) fn note(words: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "dlock: {}", plain(&words.to_string()));
}

/// Ends this program, by the signal that it would have had from a write to nobody. (Rust ignores that signal from the start.)
fn failed(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        signals::end_by(Signal::SIGPIPE);
    }
    std::process::exit(74);
}
