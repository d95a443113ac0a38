//! All that the compiler cannot watch: every raw call of the server behind a safe signature, and what memory the server and the
//! module share. One file more has raw calls, the keyspace (`run::keyspace`), which keeps keys open from one call to the next.

pub mod api;
pub mod call;
pub mod cell;
pub mod ctx;
pub mod doors;
pub mod log;
pub mod machine;
pub mod maybe_owned;
pub mod panic;
pub mod probe;
pub mod server;
pub mod text;
pub mod user;
