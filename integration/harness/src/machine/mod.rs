//! The machine: patience, processes, ports, a network that can be cut.

pub(crate) mod network;
pub(crate) mod patience;
pub(crate) mod port;
pub(crate) mod process;
