//! Read-only commands.

pub(crate) mod graph;
pub(crate) mod inspect;
pub mod list;
pub mod stats;
