//! What tests are made of: who waits, listens and works at a server, and what must be so in the end.

pub(crate) mod blocked;
pub(crate) mod guarded;
pub(crate) mod shorthand;
pub(crate) mod sound;
pub mod stage;
pub(crate) mod subscriber;
pub mod workers;
