//! The pages, as tests read them: their parts, their blocks of code, and the recommended setting.
//!
//! The tests of this crate need no server. Those that try a page's blocks on servers are in `integration/tests/pages/`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

mod page;
mod recommended;

pub use page::{is_transcript, parts, prompt, Block, Part};
pub use recommended::{blocks, recommended, DECIDED};

/// The pages whose blocks are all tested. The developers' pages have other blocks, and tests of their own.
pub const PAGES: [&str; 14] = [
    "README.md",
    "README.zh-CN.md",
    "docs/clients.md",
    "docs/cluster.md",
    "docs/commands.md",
    "docs/compared.md",
    "docs/cookbook.md",
    "docs/guarantees.md",
    "docs/install.md",
    "docs/moving.md",
    "docs/trouble.md",
    "docs/upgrade.md",
    "docs/waiting.md",
    "docs/which.md",
];

/// Returns the project's directory.
pub fn project() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns a file of the project.
///
/// # Panics
/// When it cannot be read.
pub fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
