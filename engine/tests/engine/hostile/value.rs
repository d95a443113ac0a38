//! Stored values of any bytes: refused, or written back unchanged. The engine keeps working with them.

use super::effect;
use super::story::Story;
use crate::world::{name, Op};
use dlock_engine::codec;

/// Reads a value: the cost of reading it. Returns whether it was accepted.
pub fn read(value: &[u8]) -> bool {
    codec::decode(value).is_some()
}

/// Checks the property.
pub fn hold(value: &[u8]) {
    let Some(lock) = codec::decode(value) else {
        return;
    };
    assert_eq!(
        codec::encode(&lock),
        value,
        "one lock has one form, and was read as {lock:?}"
    );
    effect::kept(&lock);
    restored(value, false);
    restored(value, true);
}

/// Restores the value, under existing waiters if `late`: every waiter is served, and nothing is left in the end.
fn restored(value: &[u8], late: bool) {
    let mut story = Story::new();
    let wait = |story: &mut Story| {
        drop(story.send(1, &[b"ACQUIRE", b"shop", b"a", b"BLOCK", b"0"]));
        drop(story.send(2, &[b"FAIRACQUIRE", b"shop", b"b", b"BLOCK", b"0"]));
    };
    if late {
        wait(&mut story);
    }
    story
        .world
        .alter(Op::Restore(name(0, "shop"), value.to_vec()));
    if !late {
        wait(&mut story);
    }
    drop(story.send(3, &[b"ACQUIRE", b"shop", b"c", b"SHARED"]));
    drop(story.send(3, &[b"RENEW", b"shop", b"a"]));
    drop(story.send(3, &[b"INFO", b"shop"]));
    drop(story.send(3, &[b"RELEASE", b"shop", b"a"]));
    story.world.pass(1_000);
    // Leases from outside are bounded, so all of them end.
    story.world.pass(3_000_000_000_000);
    if !story.world.waits.is_empty() {
        story.fail("a request waits forever");
    }
}
