//! What is said to a server, or to whatever else speaks its protocol, and what it answers.

pub(crate) mod ask;
pub(crate) mod info;
mod socket;
pub(crate) mod wire;
