//! How each service is asked for a lock: one client a file, and what all of them are to the rest.

pub(crate) mod client;
mod dlock;
mod etcd;
mod postgres;
mod zookeeper;
