//! What the outside is told: replies, replicas and the AOF, connections that wait, observers.

pub mod blocking;
pub mod latency;
pub mod notifications;
pub mod notify;
pub mod observers;
pub mod replicate;
pub mod reply;
pub mod subscribers;
pub mod unsent;
