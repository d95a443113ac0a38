//! What decides. Every file has methods of the engine; which of them move a queue: `serve` alone.

pub(crate) mod acquire;
pub(crate) mod confirm;
pub(crate) mod deadlocked;
pub(crate) mod depart;
pub(crate) mod events;
pub(crate) mod grantable;
pub(crate) mod hold;
pub(crate) mod look;
pub(crate) mod many;
pub(crate) mod reconcile;
pub(crate) mod review;
pub(crate) mod serve;
pub(crate) mod settle;
