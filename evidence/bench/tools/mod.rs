//! What ways are made of: connections and what is said on them, servers and what they spend.

pub(crate) mod errand;
pub(crate) mod line;
pub(crate) mod locking;
pub(crate) mod meter;
pub(crate) mod pause;
pub(crate) mod percentile;
pub(crate) mod replies;
pub(crate) mod setting;
