//! Parts of ways: connections and their commands, servers and their expenses.

pub(crate) mod errand;
pub(crate) mod line;
pub(crate) mod locking;
pub(crate) mod meter;
pub(crate) mod pause;
pub(crate) mod percentile;
pub(crate) mod replies;
pub(crate) mod setting;
