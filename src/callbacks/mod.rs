//! What the server calls. A callback changes no lock: it notes what has happened, and returns.

pub(crate) mod data_type;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod lazy_free;
