//! Readers of words: a command's arguments, patterns and slots of keys.

pub mod args;
pub mod glob;
pub mod hash_slot;
pub mod slots;
