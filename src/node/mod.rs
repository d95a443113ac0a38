//! What this server is and has noted: its role, clock, slots, settings, its locks in numbers, what callbacks have left.

pub(crate) mod census;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod event_loop;
pub(crate) mod eviction;
pub(crate) mod gate;
pub(crate) mod inbox;
pub(crate) mod newer_format;
pub(crate) mod own_slots;
pub(crate) mod replicas;
pub(crate) mod settings;
pub(crate) mod slot;
pub(crate) mod timer;
