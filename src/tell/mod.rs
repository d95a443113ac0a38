//! What the module sends: replies, effects to replicas and the AOF, outcomes to connections that wait, notifications to observers.
//!
//! | file | receiver and content |
//! |---|---|
//! | `reply` | a caller: the reply to its command |
//! | `blocking`, `unsent_grants` | a connection that waits: how its wait has ended, and whether that has been sent |
//! | `confirm` | no receiver yet: answers that wait until replicas have confirmed them (`dlock.replicas`) |
//! | `observers/` | observers: the events of locks, in order, as unlock messages and keyspace events, if anybody subscribes |
//! | `replicate` | replicas and the AOF: effects. `run::event` sends replicas `DLOCK.HEED` |
//! | `latency` | the server's latency monitor |

pub(crate) mod blocking;
pub(crate) mod confirm;
pub(crate) mod latency;
pub(crate) mod observers;
pub(crate) mod replicate;
pub(crate) mod reply;
pub(crate) mod unsent_grants;
