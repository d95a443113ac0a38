//! Building blocks of tests: waiters, subscribers and workers at a server, and checks at the end.

pub mod belief;
pub(crate) mod blocked;
pub(crate) mod guarded;
pub mod planned;
pub(crate) mod session;
pub(crate) mod shorthand;
pub(crate) mod sound;
pub mod stage;
pub(crate) mod subscriber;
pub mod workers;
