//! A hash map by numbers that no client can choose to collide.

use rustc_hash::FxBuildHasher;
use std::collections::HashMap;

/// Maps a number to a value. The numbers are the module's own (requests), or hashes with a secret key (owners), so a fast hash
/// without a secret is safe. A search along a chain of waits spends much of its time on hashes.
pub type ByNumber<K, V> = HashMap<K, V, FxBuildHasher>;
