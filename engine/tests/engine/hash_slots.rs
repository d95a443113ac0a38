//! The slots of a cluster.

use dlock_commands::words::hash_slot::{of, short_tag, tag, SLOTS};

#[test]
fn keys_are_in_the_slots_that_the_cluster_s_specification_says() {
    // The example of the checksum's definition, and servers' answers to CLUSTER KEYSLOT.
    for (key, slot) in [
        (&b"123456789"[..], 12_739),
        (b"foo", 12_182),
        (b"{foo}bar", 12_182),
        (b"foo{}{bar}", 8_363),
        (b"", 0),
    ] {
        assert_eq!(of(key), slot, "{}", key.escape_ascii());
    }
    assert_eq!(tag(b"foo{}{bar}"), None);
    assert_eq!(tag(b"foo{bar}{zap}"), Some(&b"bar"[..]));
}

#[test]
fn every_slot_has_a_short_tag() {
    for slot in 0..SLOTS {
        let name = [b"{", &short_tag(slot)[..], b"}anything"].concat();
        assert_eq!(of(&name), slot, "{}", name.escape_ascii());
    }
}
