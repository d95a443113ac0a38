//! Locks in slots that are not this node's: outside of a command nothing of theirs may be changed.

use crate::client::Client;
use crate::commands::Reply;
use crate::engine::{Grant, Policy};
use crate::world::{name, World};

#[test]
fn an_undelivered_grant_is_taken_back_where_that_is_possible() {
    let mut world = World::new(Policy::default());
    let shop = name(0, "shop");
    let answer = world.send(Client::connection(1), 0, &[b"ACQUIRE", b"shop", b"ada"]);
    let Ok(Reply::Grant(token, holds, _)) = answer else {
        panic!("{answer:?}")
    };
    let data = world.primary.data();
    world.primary.keys.away.insert(shop.clone());
    world.engine().undelivered(
        shop,
        Box::from(*b"ada"),
        Grant {
            token,
            holds,
            added: 1,
        },
    );
    world.perform();
    assert_eq!(world.primary.data(), data, "the slot is another node's now");
    world.primary.keys.away.clear();
    world.perform();
    assert!(world.primary.data().is_empty());
}

/// However many locks wait for their slots, settlement comes to rest: the caller would go on without a pause otherwise.
#[test]
fn settlement_rests_while_slots_are_away() {
    let mut world = World::new(Policy::default());
    for at in 0..40 {
        let key = format!("lock-{at}");
        drop(world.send(
            Client::connection(1),
            0,
            &[b"ACQUIRE", key.as_bytes(), b"ada"],
        ));
        drop(world.send(
            Client::connection(2),
            0,
            &[b"ACQUIRE", key.as_bytes(), b"ben", b"BLOCK", b"0"],
        ));
        world.primary.keys.away.insert(name(0, &key));
    }
    let now = world.now;
    let engine = &mut world.primary.engine;
    for name in engine.watched(None) {
        engine.note(&name);
    }
    let rests = (0..10).any(|_| !engine.settle_dirty(&mut world.primary.keys, now, 16));
    assert!(rests && world.primary.engine.unsettled());
}
