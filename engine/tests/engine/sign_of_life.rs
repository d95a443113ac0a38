//! Heartbeats: a command between one and the renewal that it causes, and the most that one reports.

use crate::client::Client;
use crate::world::{name, World};
use dlock_commands::Reply;
use dlock_engine::Policy;

/// A heartbeat covers the holds of its instant, whatever token an upgrade gives them before the renewal.
#[test]
fn a_sign_of_life_goes_on_under_another_token() {
    let mut world = World::new(Policy::default());
    let ann = || Client::connection(1);
    let shared: [&[u8]; 6] = [b"ACQUIRE", b"shop", b"ada", b"3000", b"SHARED", b"AUTO"];
    let taken = world.send(ann(), 0, &[&shared[..], &[b"1000"]].concat());
    assert!(taken.is_ok(), "{taken:?}");
    world.pass(2_500);
    // The bound has passed, and the server renews no more. Both commands come together, as in a pipeline.
    let (keep, upgrade): ([&[u8]; 2], [&[u8]; 4]) =
        ([b"KEEP", b"60000"], [b"ACQUIRE", b"shop", b"ada", b"3000"]);
    for words in [&keep[..], &upgrade] {
        let reply = world.primary.run(world.now, 0, ann(), words);
        assert!(reply.is_ok(), "{reply:?}");
    }
    world.perform();
    world.pass(5_000);
    let lock = world.primary.keys.lock(&name(0, "shop"));
    let hold = lock.and_then(|lock| lock.hold(b"ada"));
    assert!(hold.is_some_and(|hold| hold.deadline > world.now.wall()));
}

/// A connection's losses take a megabyte of keys at most. Beyond, it learns only that there were more.
#[test]
fn losses_with_too_many_bytes_are_not_listed() {
    for (losses, listed) in [(2, true), (3, false)] {
        let mut world = World::new(Policy::default());
        let keys = ["a", "b", "c"].map(|key| key.repeat(400_000));
        let keys = &keys[..losses];
        let mut send = |client, words: &[&[u8]]| world.send(Client::connection(client), 0, words);
        for key in keys {
            let taken = [
                b"ACQUIRE",
                key.as_bytes(),
                b"ada",
                b"3000",
                b"AUTO",
                b"60000",
            ];
            assert!(send(1, &taken).is_ok());
        }
        for key in keys {
            assert!(send(2, &[b"FORCERELEASE", key.as_bytes()]).is_ok());
        }
        match send(1, &[b"KEEP", b"60000"]) {
            Ok(Reply::Array(kept)) if listed => {
                assert!(matches!(&kept[2], Reply::Array(lost) if lost.len() == losses));
            }
            Ok(Reply::Array(kept)) => assert_eq!(kept[2], Reply::NullArray),
            other => panic!("{other:?}"),
        }
    }
}
