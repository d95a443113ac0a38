//! What is printed. A reader that has gone ends this program as it would any other (`dlock ls | head`); a terminal or log that has gone
//! ends nothing.

use std::fmt::Arguments;
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

pub(crate) fn line(words: Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{words}") {
        failed(&error);
    }
}

pub(crate) fn note(words: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "dlock: {words}");
}

/// Ends this program, by the signal that it would have had from a write to nobody. (Rust ignores that signal from the start.)
fn failed(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    }
    std::process::exit(74);
}
