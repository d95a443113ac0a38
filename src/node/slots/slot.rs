//! Which part of a key a cluster hashes, and names in the same slot.

use dlock_commands::words::hash_slot::tag;

/// Returns true if braces around the whole key keep it in its slot. A key without a tag of its own that contains a `}` has no
/// other names in its slot that could be made of it.
pub(crate) fn can_be_braced(key: &[u8]) -> bool {
    tag(key).is_none() && !key.contains(&b'}')
}

/// A name in the key's slot that nobody uses, if one can be made.
pub(crate) fn probe_key_in_slot(key: &[u8]) -> Option<Vec<u8>> {
    let tag = match tag(key) {
        Some(tag) => tag,
        None if can_be_braced(key) => key,
        None => return None,
    };
    Some([b"{", tag, b"}\0dlock\0nobody"].concat())
}
