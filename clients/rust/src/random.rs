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
