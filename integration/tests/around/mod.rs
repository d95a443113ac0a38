//! The server around locks: its own commands, scripts, users, settings, pauses, loads.

mod commands;
mod guard;
mod guard_limits;
mod guard_replies;
mod keys;
mod load;
mod pause;
mod permissions;
mod poisoned;
mod scripts;
mod settings;
