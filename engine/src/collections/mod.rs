//! Containers that know nothing of locks.

pub mod index;
pub mod roster;
pub mod scan_order;
