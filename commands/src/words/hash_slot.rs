//! Which slot of a cluster a key is in. Pure: nothing here asks the server.
//!
//! The CRC is written out: it is five lines, and runs for messages on sharded channels only. A crate's table would be longer.

use std::sync::OnceLock;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// The part of the key that alone decides on its slot, if it has one: what stands between the first `{` and the next `}`,
/// unless that is nothing.
pub fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// The key's slot: CRC16 (XMODEM) of what the cluster hashes of it.
pub fn of(key: &[u8]) -> u16 {
    let crc = tag(key).unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

/// Two bytes that are in this slot between braces. Not every name can be put between braces itself.
pub fn short_tag(slot: u16) -> [u8; 2] {
    static TAGS: OnceLock<Vec<[u8; 2]>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![[0; 2]; usize::from(SLOTS)];
        // No two pairs of bytes have one CRC, so that four of them are in each slot: not all of those have a `}`, which
        // would be the end of the tag.
        for pair in (0..=u16::MAX).map(u16::to_be_bytes) {
            if let Some(tag) = tags
                .get_mut(usize::from(of(&pair)))
                .filter(|_| !pair.contains(&b'}'))
            {
                *tag = pair;
            }
        }
        tags
    });
    tags.get(usize::from(slot)).copied().unwrap_or_default()
}
