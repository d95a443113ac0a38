//! All code that the compiler cannot check: every raw call of the server behind a safe signature, and the memory that the server
//! and the module share. One more file has raw calls, the keyspace (`run::keyspace`), which keeps keys open from one call to the
//! next.

pub(crate) mod api;
pub(crate) mod call;
pub(crate) mod callbacks;
pub(crate) mod ctx;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod panic;
pub(crate) mod server;
pub(crate) mod text;
pub(crate) mod user;
