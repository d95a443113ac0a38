//! Every raw call of the server behind a safe signature where that can be; what memory the server and the module share.

pub mod api;
pub mod cell;
pub mod log;
pub mod maybe_owned;
pub mod panic;
pub mod probe;
