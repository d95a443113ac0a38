//! Containers that know nothing of locks.

pub mod scan_order;

use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Maps a number to a value. The numbers are the module's own (requests), or hashes with a secret key (owners), so that no client
/// can choose them to collide, and a fast hash without a secret is safe. A search along a chain of waits spends much of its time on
/// hashes.
pub type ByNumber<K, V> = HashMap<K, V, FxBuildHasher>;

/// The capacity that an empty map may keep.
const KEPT: usize = 16_384;

/// Frees the memory of a large map once it is empty: nothing else would, and one burst of waiters would hold it for good.
pub(crate) fn shrink_if_empty<K: Hash + Eq, V, S: BuildHasher + Default>(
    map: &mut HashMap<K, V, S>,
) {
    if map.is_empty() && map.capacity() > KEPT {
        *map = HashMap::default();
    }
}
