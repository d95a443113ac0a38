//! Real servers, from their programs to a cluster, and the programs that run with them.

pub(crate) mod builder;
#[cfg(target_os = "linux")]
pub(crate) mod clock;
pub mod cluster;
pub(crate) mod daemon;
pub(crate) mod made;
pub(crate) mod program;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod version;
