//! What the server calls. A callback changes no lock: it notes what has happened, and returns.

pub mod data_type;
pub mod events;
pub mod hooks;
pub mod remains;
