//! Slots of a cluster: which part of a key makes one, and which are this node's.

pub(crate) mod own_slots;
pub(crate) mod slot;
