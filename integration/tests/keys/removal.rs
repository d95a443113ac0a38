//! An evicted lock is free. `tests/servers/removal.txt` has all other ways in which a key goes.

use dlock_harness::{held, wait_as, Ask, Grant};

#[test]
fn eviction_serves_the_queue() {
    let (server, mut alice, token) = held();
    let bob = wait_as(&server, "bob");
    alice.run("CONFIG SET maxmemory-policy allkeys-random");
    // In one batch, so that the server is over its limit for these commands only.
    let lines = ["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"];
    let replies = server.connection().batch(lines);
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    assert!(server.info("stats").number::<u64>("evicted_keys") >= 1);
    let (next, _): Grant = bob.reply();
    assert!(next > token);
    assert!(server.info("dlock").number::<u64>("dlock_evicted_total") >= 1);
    assert!(alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
}
