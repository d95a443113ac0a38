//! Where the services run: their processes, what those use, and the disk.

pub(crate) mod disk;
pub(crate) mod node;
pub(crate) mod tree;
