//! A command between a heartbeat and the renewal that it causes.

use crate::client::Client;
use crate::world::{name, World};
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
