//! The clients of the services, one a file, and their common interface.

pub(crate) mod client;
mod dlock;
mod etcd;
mod postgres;
mod zookeeper;
