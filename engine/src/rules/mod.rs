//! What decides. Every file has methods of the engine; which of them move a queue: `serve` alone.

pub(crate) mod deadlocked;
pub(crate) mod grantable;
pub(crate) mod outside;
pub(crate) mod requests;
pub(crate) mod serve;
pub(crate) mod settle;
