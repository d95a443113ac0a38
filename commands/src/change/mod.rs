//! Commands that take, keep, release or wait for locks.

pub(crate) mod acquire;
pub(crate) mod apply;
pub(crate) mod hold;
pub mod many;
pub mod session;
