// SPDX-License-Identifier: MIT
//! Numbers and names that nobody else has.

use std::hash::{BuildHasher, Hasher};

/// The standard library's hashers are seeded by the operating system.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

pub(crate) fn unique() -> String {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{:016x}{:x}", random(), time.as_nanos() ^ u128::from(random()))
}

/// Returns `host/pid/`: what the names of all sessions of this process begin with.
pub(crate) fn process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok());
    let host = host.map(|host| host.trim().replace('/', "-")).filter(|host| !host.is_empty());
    let host: String = host.as_deref().unwrap_or("localhost").chars().take(40).collect();
    format!("{host}/{}/", std::process::id())
}
