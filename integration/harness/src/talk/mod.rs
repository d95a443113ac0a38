//! Commands to a server, or to another program with its protocol, and the answers.

pub(crate) mod ask;
pub(crate) mod info;
mod socket;
pub(crate) mod wire;
