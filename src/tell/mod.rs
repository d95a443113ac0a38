//! What the outside is told: replies, replicas and the AOF, connections that wait, observers.

pub(crate) mod blocking;
pub(crate) mod latency;
pub(crate) mod notifications;
pub(crate) mod notify;
pub(crate) mod observers;
pub(crate) mod replicate;
pub(crate) mod reply;
pub(crate) mod subscribers;
pub(crate) mod unsent;
