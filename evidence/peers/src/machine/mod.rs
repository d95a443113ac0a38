//! The machine of the services: their processes, the resources of those, and the disk.

pub(crate) mod disk;
pub(crate) mod node;
pub(crate) mod tree;
