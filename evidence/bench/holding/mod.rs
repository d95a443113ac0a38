//! Locks without waiters: the cost of taking, keeping and releasing one, or many. Memory and the growth of a cluster are also
//! measured with waiters.

pub(crate) mod again;
pub(crate) mod beside;
pub(crate) mod confirmed;
pub(crate) mod crowd;
pub(crate) mod growth;
pub(crate) mod guard;
pub(crate) mod holders;
pub(crate) mod kept;
pub(crate) mod memory;
pub(crate) mod pair;
pub(crate) mod renewal;
