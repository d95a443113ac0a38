//! Containers that know nothing of locks.

pub mod by_number;
pub mod scan_order;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

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
