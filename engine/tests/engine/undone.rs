//! What comes between: after a grant that reached nobody, and before what is due is done.

use crate::client::Client;
use crate::world::{name, World};
use dlock_engine::Policy;

/// A world in which ada holds two locks, the first by a session, and waits for the second as well by a connection that is cut
/// off; and where that is granted, and nobody has noticed yet.
fn granted(first: &[&[u8]]) -> World {
    let mut world = World::new(Policy::default());
    let say = |world: &mut World, client: u64, words: &[&[u8]]| {
        drop(world.send(Client::connection(client), 0, words));
    };
    say(&mut world, 1, &[b"ACQUIRE", b"shop", b"ada", b"9000"]);
    say(&mut world, 1, first);
    say(&mut world, 2, &[b"ACQUIRE", b"yard", b"ben"]);
    let words: [&[u8]; 8] = [
        b"MACQUIRE",
        b"2",
        b"shop",
        b"yard",
        b"ada",
        b"BLOCK",
        b"0",
        b"SESSION",
    ];
    say(&mut world, 3, &words);
    say(
        &mut world,
        4,
        &[b"ACQUIRE", b"shop", b"cyd", b"BLOCK", b"0"],
    );
    world.cut.insert(3);
    let release: [&[u8]; 3] = [b"RELEASE", b"yard", b"ben"];
    let released = world
        .primary
        .run(world.now, 0, Client::connection(2), &release);
    assert!(released.is_ok(), "{released:?}");
    world
}

fn owner(world: &World) -> Option<String> {
    let lock = world.primary.keys.lock(&name(0, "shop"))?;
    let hold = lock.holds().next()?;
    Some(String::from_utf8_lossy(hold.owner).into_owned())
}

/// The tie goes back to a connection that has ended: it is as if that ended now.
#[test]
fn a_tie_goes_back_to_the_dead() {
    let mut world = granted(&[b"RENEW", b"shop", b"ada", b"9000", b"SESSION"]);
    world.dies(1);
    assert_eq!(owner(&world).as_deref(), Some("cyd"), "the session ended");

    let mut world = granted(&[b"RENEW", b"shop", b"ada", b"9000", b"AUTO", b"0"]);
    world.dies(1);
    assert_eq!(owner(&world).as_deref(), Some("ada"), "her lease goes on");
    assert_eq!((world.engine().sessions(), world.engine().autos()), (0, 0));
    world.pass(29_999);
    assert_eq!(owner(&world).as_deref(), Some("ada"), "as long as was told");
    world.pass(1);
    assert_eq!(owner(&world).as_deref(), Some("cyd"));
}

/// What another connection of the owner was told since stands.
#[test]
fn a_later_command_was_told_of_the_upgrade() {
    let mut world = World::new(Policy::default());
    let say = |world: &mut World, client: u64, words: &[&[u8]]| {
        drop(world.send(Client::connection(client), 0, words));
    };
    say(&mut world, 1, &[b"ACQUIRE", b"shop", b"ada", b"SHARED"]);
    say(&mut world, 2, &[b"ACQUIRE", b"shop", b"ben", b"SHARED"]);
    say(
        &mut world,
        3,
        &[b"ACQUIRE", b"shop", b"ada", b"BLOCK", b"0"],
    );
    world.cut.insert(3);
    let now = world.now;
    for (client, words) in [
        (2, &[&b"RELEASE"[..], b"shop", b"ben"][..]),
        (1, &[b"ACQUIRE", b"shop", b"ada", b"HOLDS", b"1"]),
    ] {
        let answer = world.primary.run(now, 0, Client::connection(client), words);
        assert!(answer.is_ok(), "{answer:?}");
    }
    world.perform();
    let lock = world
        .primary
        .keys
        .lock(&name(0, "shop"))
        .expect("it is held");
    let hold = lock.hold(b"ada").expect("by her");
    assert_eq!((hold.holds, hold.limit.to_wire()), (1, 1));
}

/// A sign of life goes for what is held by then, whatever token an upgrade gives it before its renewal.
#[test]
fn a_sign_of_life_goes_on_under_another_token() {
    let mut world = World::new(Policy::default());
    let ann = || Client::connection(1);
    let shared: [&[u8]; 6] = [b"ACQUIRE", b"shop", b"ada", b"3000", b"SHARED", b"AUTO"];
    let taken = world.send(ann(), 0, &[&shared[..], &[b"1000"]].concat());
    assert!(taken.is_ok(), "{taken:?}");
    world.pass(2_500);
    // The bound has passed, and the server renews no more. These come together, as a pipeline does.
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
