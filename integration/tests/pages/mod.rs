//! What pages and packages tell readers to type and to set, tried on servers. `integration/documents/` has the tests of pages that
//! need no server.

mod group;
mod leaving;
mod mistakes;
#[cfg(target_os = "linux")]
mod server_file;
mod settings_file;
mod transcripts;
