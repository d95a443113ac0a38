//! What happens outside of requests: time passes, connections end, keys come, go and move, databases and roles change.

pub(crate) mod all_locks;
pub(crate) mod events;
pub(crate) mod give_back;
pub(crate) mod look;
pub(crate) mod reconcile;
