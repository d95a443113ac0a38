//! Readers of words: a command's arguments, patterns and slots of keys, and what the server says of a connection or a node.

pub mod args;
pub mod client_line;
pub mod glob;
pub mod hash_slot;
pub mod slots;
