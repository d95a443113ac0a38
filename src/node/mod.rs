//! What this server is and has noted: its role, clock, slots, settings, its locks in numbers, what callbacks have left.

pub mod census;
pub mod clock;
pub mod config;
pub mod event_loop;
pub mod eviction;
pub mod gate;
pub mod inbox;
pub mod newer_format;
pub mod own_slots;
pub mod slot;
pub mod timer;
