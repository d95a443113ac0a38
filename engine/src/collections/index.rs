//! Hash maps: one that grows in small steps, and those by numbers.

use rustc_hash::FxBuildHasher;
use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// Entries up to which one map holds them all: to move so many takes a millisecond or two. Beyond, each look-up hashes its key
/// once more, which a queue of ten thousand shall not pay for.
const UNDIVIDED: usize = 16_384;

/// Maps among which more than that are divided: with a million entries each of them moves four thousand when it grows.
const SHARDS: usize = 256;

/// A map from keys to values. A plain hash map moves all its entries at once when it grows, which with a hundred thousand
/// queued would hold the server up for tens of milliseconds.
#[derive(Clone)]
pub struct Index<K, V, S = RandomState> {
    // The only map, or the first of many.
    first: HashMap<K, V, S>,
    others: Vec<HashMap<K, V, S>>,
    hash: S,
    len: usize,
}

/// A map by numbers that nobody can choose to collide: those that requests go by, which are this module's own, and the hashes
/// that owners go by. A look along a chain of waits spends much of its time on hashes.
pub type ByNumber<K, V> = HashMap<K, V, FxBuildHasher>;

/// A map by such numbers that grows in small steps.
pub type NumberIndex<K, V> = Index<K, V, FxBuildHasher>;

impl<K, V, S: Default> Default for Index<K, V, S> {
    fn default() -> Self {
        Index {
            first: HashMap::default(),
            others: Vec::new(),
            hash: S::default(),
            len: 0,
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for Index<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maps = [&self.first].into_iter().chain(&self.others);
        f.debug_map().entries(maps.flatten()).finish()
    }
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> Index<K, V, S> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        [&self.first].into_iter().chain(&self.others).flatten()
    }

    /// The value at a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.map(key).get(key)
    }

    /// The value at a key.
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.map_mut(key).get_mut(key)
    }

    /// The value at a key, and the key as it is kept.
    pub fn get_key_value<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.map(key).get_key_value(key)
    }

    /// Puts a value at a key; returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.divide();
        let before = self.map_mut(&key).insert(key, value);
        self.len += usize::from(before.is_none());
        before
    }

    /// So many are about to come: nothing is moved meanwhile.
    pub fn reserve(&mut self, more: usize) {
        if self.len + more < UNDIVIDED {
            self.first.reserve(more);
            return;
        }
        self.spread();
        self.first.reserve(more / SHARDS);
        let others = self.others.iter_mut();
        others.for_each(|map| map.reserve(more / SHARDS));
    }

    /// Takes a key out, with its value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let taken = self.map_mut(key).remove_entry(key)?;
        self.len -= 1;
        if self.len == 0 && !self.others.is_empty() {
            self.first = HashMap::default();
            self.others = Vec::new();
        }
        Some(taken)
    }

    /// Divides the entries among many maps once they are not few any more.
    fn divide(&mut self) {
        if self.len >= UNDIVIDED {
            self.spread();
        }
    }

    fn spread(&mut self) {
        if !self.others.is_empty() {
            return;
        }
        self.others.resize_with(SHARDS - 1, HashMap::default);
        for (key, value) in std::mem::take(&mut self.first) {
            self.map_mut(&key).insert(key, value);
        }
    }

    fn map<Q: Hash + ?Sized>(&self, key: &Q) -> &HashMap<K, V, S> {
        let shard = shard(&self.hash, self.others.len(), key);
        self.others.get(shard).unwrap_or(&self.first)
    }

    fn map_mut<Q: Hash + ?Sized>(&mut self, key: &Q) -> &mut HashMap<K, V, S> {
        let shard = shard(&self.hash, self.others.len(), key);
        self.others.get_mut(shard).unwrap_or(&mut self.first)
    }
}

/// Which of the other maps has a key; beyond them: the first.
fn shard<Q: Hash + ?Sized>(hash: &impl BuildHasher, others: usize, key: &Q) -> usize {
    match others {
        0 => 0,
        others => (hash.hash_one(key) >> 32) as usize % (others + 1),
    }
}
