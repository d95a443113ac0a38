//! The slots of a cluster.

use dlock_commands::words::hash_slot::{of, short_tag, tag, SLOTS};
use dlock_commands::words::slots::{Awaited, Own};

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

/// Returns a key in this slot.
fn key(slot: u16) -> Vec<u8> {
    [b"{", &short_tag(slot)[..], b"}"].concat()
}

/// What CLUSTER NODES shows of three nodes, of which the second is asked, with these slots.
fn nodes(slots: &str, epoch: u64) -> Own {
    Own::read(&format!(
        "07c3 127.0.0.1:1@11,a master - 0 1 3 connected 0-99 500\n\
         67ed 127.0.0.1:2@12,b myself,master - 0 0 {epoch} connected {slots}\n\
         292f 127.0.0.1:3@13,c slave 07c3 0 1 3 connected\n"
    ))
}

#[test]
fn a_node_s_slots_are_read_with_those_that_migrate() {
    let own = nodes("100-199 300 [150->-07c3] [77-<-07c3]", 2);
    let serves = |slot| own.serves(&key(slot));
    assert_eq!(
        [99, 100, 199, 200, 300, 77].map(serves),
        [false, true, true, false, true, false]
    );
    let leaves = |slot| own.leaves(&key(slot));
    assert_eq!([150, 151, 77].map(leaves), [true, false, false]);
    let comes = |slot| own.comes(&key(slot));
    assert_eq!([77, 150, 78].map(comes), [true, false, false]);
    let none = nodes("", 2);
    assert!(!none.serves(&key(100)));
    assert!([0, 9_999, SLOTS - 1]
        .iter()
        .all(|slot| Own::all().serves(&key(*slot))));
}

#[test]
fn only_awaited_slots_that_are_elsewhere_have_left_and_each_once() {
    let mut awaited = Awaited::default();
    let own = nodes("100-199 [77-<-07c3]", 2);
    let left = awaited.take_left(&own);
    let has = |slot| left.has(&key(slot));
    assert_eq!(
        [99, 100, 77, 78].map(has),
        [true, false, false, true],
        "every slot is awaited at first"
    );
    assert!(awaited.take_left(&own).is_empty(), "they were taken out");
    awaited.clear();
    for slot in [100, 101] {
        awaited.note(&key(slot));
    }
    let left = awaited.take_left(&nodes("101-300", 2));
    assert_eq!(
        [100, 101, 102].map(|slot| left.has(&key(slot))),
        [true, false, false]
    );
    awaited.note_all();
    assert!(awaited.take_left(&nodes("101-300", 2)).has(&key(0)));
}

/// A slot that left and came back between two checks has raised the highest epoch of any node.
#[test]
fn a_higher_epoch_tells_that_slots_may_have_returned() {
    let mut awaited = Awaited::default();
    let mut returned = |epoch| awaited.take_left(&nodes("100-199", epoch)).returned;
    assert_eq!(
        [2, 3, 3, 4, 4].map(&mut returned),
        [true, false, false, true, false],
        "another node's is 3"
    );
}
