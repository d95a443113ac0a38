//! Read-only commands.

pub(crate) mod graph;
pub(crate) mod inspect;
pub mod list;
pub(crate) mod log;
pub mod stats;
