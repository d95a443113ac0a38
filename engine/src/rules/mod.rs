//! The engine's decisions. Every file has methods of the engine. Only `serve` moves a queue.

pub(crate) mod grantable;
pub(crate) mod outside;
pub(crate) mod requests;
pub(crate) mod serve;
pub(crate) mod settle;
