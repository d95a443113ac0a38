//! The hash slot of a key in a cluster. Pure: nothing here asks the server.
//!
//! The CRC is written out: it is five lines, and runs for messages on sharded channels only. A crate's table would be longer.

use std::sync::OnceLock;

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// Returns the key's hash tag, which alone decides on its slot, if it has one: the bytes between the first `{` and the next `}`,
/// unless there are none.
pub fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// Returns the key's slot: CRC16 (XMODEM) of the hash tag or of the whole key.
pub fn of(key: &[u8]) -> u16 {
    let crc = tag(key).unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

/// Returns two bytes that make a hash tag of this slot. Not every name can be a hash tag itself.
pub fn short_tag(slot: u16) -> [u8; 2] {
    static TAGS: OnceLock<Vec<[u8; 2]>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![[0; 2]; usize::from(SLOTS)];
        // No two pairs of bytes have the same CRC, so that each slot has four of them: not all of those contain a `}`, which
        // would end the tag.
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
