//! Views of locks and of waits. They change nothing, end nothing, and are possible on a replica.

pub(crate) mod graph;
pub(crate) mod inspect;
