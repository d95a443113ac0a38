//! What decides. Every file has methods of the engine; which of them move a queue: `serve` alone.

pub mod acquire;
pub mod deadlocked;
pub mod depart;
pub mod events;
pub mod grantable;
pub mod hold;
pub mod look;
pub mod many;
pub mod reconcile;
pub mod review;
pub mod serve;
pub mod settle;
