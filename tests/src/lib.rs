//! Conversations in text files (`../scenarios`): commands, replies, time passing.
//!
//! One reader for all who hold them: the engine's tests with the engine and the model beside it, the integration tests with a
//! server whose clock stands still.
#![forbid(unsafe_code)]
// A test stops where something is not as it should be; what the lines mean stands in `script`.
#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]

pub mod planted;
pub mod script;
pub mod transcript;

use std::fs;
use std::path::Path;

/// The conversations, with the names of their files; with `DLOCK_SCENARIO=keep` in the environment `keep.txt` only.
///
/// # Panics
/// When they cannot be read.
pub fn all() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut all: Vec<(String, String)> = fs::read_dir(folder)
        .expect("the folder")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).expect("a text");
            (name.into_owned(), text)
        })
        .collect();
    if let Ok(one) = std::env::var("DLOCK_SCENARIO") {
        all.retain(|(name, _)| name.strip_suffix(".txt") == Some(&one));
    }
    all.sort();
    assert!(!all.is_empty(), "no conversation");
    all
}

/// Begins the line from which on a conversation is held with the engine only, and says why.
pub const ENGINE_ONLY: &str = "# Engine only: ";

/// The part of a conversation that a server can hold, too.
pub fn for_servers(text: &str) -> &str {
    text.split(ENGINE_ONLY).next().unwrap_or_default()
}
