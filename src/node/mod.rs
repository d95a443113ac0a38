//! What this server is and has noted: its role, clock, slots, settings, its locks in numbers, what callbacks have left.

pub(crate) mod census;
pub(crate) mod config;
pub(crate) mod eviction;
pub(crate) mod gate;
pub(crate) mod inbox;
pub(crate) mod newer_format;
pub(crate) mod replicas;
pub(crate) mod settings;
pub(crate) mod slots;
pub(crate) mod time;
