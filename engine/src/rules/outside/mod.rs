//! Events outside of requests: time passes, connections end, keys arrive, leave and move, databases and roles change.

pub(crate) mod all_locks;
pub(crate) mod keys;
pub(crate) mod losses;
pub(crate) mod parties;
pub(crate) mod reconcile;
pub(crate) mod renewals;
pub(crate) mod scan;
pub(crate) mod sessions;
pub(crate) mod ticks;
pub(crate) mod undelivered;
