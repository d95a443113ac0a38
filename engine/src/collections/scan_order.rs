//! Keys in an order that never changes, so that a scan can continue where it stopped and keep no state in between. A standard set,
//! ordered by a hash that is the same in every process: a cursor is good on any of them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// Keys in the order of their hashes. A scan follows the hashes, so it meets a key that is present throughout exactly once,
/// whatever else comes and goes.
#[derive(Debug, Clone, Default)]
pub struct ScanOrder(BTreeSet<(u64, Rc<[u8]>)>);

/// The bits of a hash. A cursor has room for a mark above them.
pub const BITS: u32 = 62;

impl ScanOrder {
    /// Adds a key.
    pub fn insert(&mut self, key: &Rc<[u8]>) {
        self.0.insert((hash(key), key.clone()));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &Rc<[u8]>) {
        self.0.remove(&(hash(key), key.clone()));
    }

    /// Returns `most` keys from this hash on (and those with the last one's hash), and the next hash, if there is one.
    pub fn from(&self, from: u64, most: usize) -> (Vec<Rc<[u8]>>, Option<u64>) {
        let mut keys = Vec::new();
        let mut last = None;
        for (hash, key) in self.0.range((from, Rc::from([]))..) {
            if keys.len() >= most && last != Some(*hash) {
                return (keys, Some(*hash));
            }
            last = Some(*hash);
            keys.push(key.clone());
        }
        (keys, None)
    }
}

/// Hashes a key, with the same result in every process.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() >> (u64::BITS - BITS)
}
