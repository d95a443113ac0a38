//! What documents, packages and sources say of themselves is so.

use std::path::PathBuf;

mod claims;
mod clients_page;
mod licences;
mod links;
mod mistakes;
mod packaging;
mod sessions;
mod timing;

/// The project's directory.
fn project() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
