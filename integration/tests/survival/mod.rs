//! Locks that outlive a server or its clock: files, replicas, clusters, earlier versions.

mod acknowledged;
mod clocks;
mod cluster;
mod confirmed;
mod formats;
mod payloads;
mod persistence;
mod planned;
mod replication;
mod told;
mod upgrade;
