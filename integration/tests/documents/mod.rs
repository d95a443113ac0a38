//! Claims of documents, packages and sources, compared with the project.

use std::path::PathBuf;

mod claims;
mod clients_page;
mod comments;
mod figures;
mod leaving;
mod licences;
mod links;
mod mistakes;
mod packaging;
mod prose;
#[cfg(target_os = "linux")]
mod server_file;
mod settings_file;
mod size;
mod timing;
mod transcripts;

/// Returns the project's directory.
fn project() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
