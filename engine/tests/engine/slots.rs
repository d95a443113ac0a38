//! Locks in slots that do not belong to this node: outside of a command nothing of theirs may change.

use crate::client::Client;
use crate::server::Server;
use crate::world::{name, World};
use dlock_commands::Reply;
use dlock_engine::{ClientId, Policy, Promise, Token, WallMs};
use std::rc::Rc;

/// Returns the promise of a hold.
pub fn promise(key: &str, owner: &str, token: Token) -> Promise {
    Promise {
        name: name(0, key),
        owner: Rc::from(owner.as_bytes()),
        token,
        end: WallMs(0),
        is_new: true,
        session: None,
        ticket: None,
    }
}

/// Returns a world in which ada's grant of `shop` was not delivered, and the slot of `shop` migrates.
fn unheard() -> World {
    let mut world = World::new(Policy::default());
    let shop = name(0, "shop");
    let answer = world.send(Client::connection(1), 0, &[b"ACQUIRE", b"shop", b"ada"]);
    let Ok(Reply::Grant(token, ..)) = answer else {
        panic!("{answer:?}")
    };
    world.primary.keys.away.insert(shop.clone());
    world
        .engine()
        .on_undelivered([promise("shop", "ada", token)]);
    world
}

#[test]
fn an_unheard_grant_is_given_back_where_that_is_possible() {
    let mut world = unheard();
    let data = world.primary.data();
    world.perform();
    assert_eq!(
        world.primary.data(),
        data,
        "the slot belongs to another node now"
    );
    world.primary.keys.away.clear();
    world.perform();
    assert!(world.primary.data().is_empty());
}

/// The engine does not keep a grant forever whose lock has left with its slot: it is the other node's.
#[test]
fn an_unheard_grant_leaves_with_its_slot() {
    let mut world = unheard();
    world.perform();
    assert!(world.engine().unsettled());
    world.primary.keys.values.remove(&name(0, "shop"));
    world.perform();
    assert!(!world.engine().unsettled());
}

/// An ephemeral hold whose lock has left with its slot delays nothing when its connection ends.
#[test]
fn an_ephemeral_hold_leaves_with_its_slot() {
    let mut world = World::new(Policy::default());
    for key in [&b"shop"[..], b"till"] {
        let words = [b"ACQUIRE", key, b"ada", b"EPHEMERAL"];
        drop(world.send(Client::connection(1), 0, &words));
    }
    let shop = name(0, "shop");
    world.primary.keys.away.insert(shop.clone());
    let now = world.now;
    world.engine().on_disconnect(ClientId(1), now);
    world.perform();
    assert_eq!(world.engine().ephemeral(), 1, "the slot may yet stay");
    world.primary.keys.values.remove(&shop);
    world.perform();
    let engine = world.engine();
    assert_eq!(engine.ephemeral(), 0);
    assert!(!engine.unsettled());
}

/// A lock that leaves with its slot ends no hold, though the server reports nothing: the scan finds the slot gone.
#[test]
fn a_hold_whose_lock_left_with_its_slot_is_lost_by_the_move() {
    let mut world = World::new(Policy::default());
    for key in [&b"shop"[..], b"till"] {
        let words = [b"ACQUIRE", key, b"ada", b"IN", b"app"];
        drop(
            world
                .primary
                .run(world.now, 0, Client::connection(1), &words),
        );
        world.perform();
    }
    let (shop, till) = (name(0, "shop"), name(0, "till"));
    world.primary.keys.away.insert(shop.clone());
    for gone in [&shop, &till] {
        world.primary.keys.values.remove(gone);
    }
    let now = world.now;
    let Server { engine, keys, .. } = &mut world.primary;
    engine.begin_scan();
    while engine.scan_step(keys, now, 16) {}
    let words = [&b"SESSION"[..], b"shop", b"app", b"9000"];
    let told = world.primary.run(now, 0, Client::connection(1), &words);
    let Ok(Reply::Array(told)) = told else {
        panic!("{told:?}")
    };
    let told = format!("{:?}", told.last());
    for lost in ["moved", "removed"] {
        assert!(told.contains(&format!("Text({lost:?})")), "{told}");
    }
}

/// However many locks wait for their slots, settlement comes to rest: otherwise the caller would continue without a pause.
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
    engine.on_slots_changed(|_| false);
    let rests = (0..10).any(|_| !engine.settle_dirty(&mut world.primary.keys, now, 16));
    assert!(rests && world.primary.engine.unsettled());
}

/// A lock that has left with its slot takes its tickets along: the engine neither keeps nor watches them.
#[test]
fn tickets_leave_with_their_slot() {
    let mut world = World::new(Policy::default());
    let words: [&[&[u8]]; 2] = [
        &[b"ACQUIRE", b"shop", b"ada"],
        &[b"FAIRACQUIRE", b"shop", b"ben", b"CLAIM", b"60000"],
    ];
    for (client, words) in (1..).zip(words) {
        drop(world.send(Client::connection(client), 0, words));
    }
    assert_eq!(world.engine().places(), 1);
    let shop = name(0, "shop");
    world.primary.keys.away.insert(shop.clone());
    world.primary.keys.values.remove(&shop);
    world.engine().on_key_removed(shop.as_ref());
    world.perform();
    let now = world.now;
    let engine = world.engine();
    assert_eq!(engine.places(), 0);
    assert!(!engine.unsettled() && engine.next_wakeup(now).is_none());
}

/// Returns a world in which the lock's slot migrates, and the key is still here.
fn leaving(lines: &[&[&[u8]]]) -> World {
    let mut world = World::new(Policy::default());
    for (client, words) in (1..).zip(lines) {
        drop(world.send(Client::connection(client), 0, words));
    }
    world.primary.keys.leaving.insert(name(0, "shop"));
    world
}

/// Returns the holder, and the number of queued requests.
fn shop(world: &World) -> (Option<String>, usize) {
    let lock = world.primary.keys.lock(&name(0, "shop"));
    let hold = lock.and_then(|lock| lock.holds().next());
    let owner = hold.map(|hold| String::from_utf8_lossy(hold.owner).into_owned());
    (owner, world.primary.engine.places())
}

/// An ephemeral hold ends there as by RELEASE: no waiter is granted the lock here.
#[test]
fn an_ephemeral_hold_ends_in_a_slot_that_is_on_its_way() {
    let mut world = leaving(&[
        &[b"ACQUIRE", b"shop", b"ada", b"EPHEMERAL"],
        &[b"FAIRACQUIRE", b"shop", b"ben", b"BLOCK", b"0"],
    ]);
    world.dies(1);
    assert_eq!(shop(&world), (None, 1));
    world.primary.keys.leaving.clear();
    world.perform();
    assert_eq!(shop(&world), (Some("ben".into()), 0));
}

/// An undelivered hold ends there as well.
#[test]
fn a_hold_is_given_back_in_a_slot_that_is_on_its_way() {
    let mut world = leaving(&[
        &[b"ACQUIRE", b"shop", b"ada"],
        &[b"FAIRACQUIRE", b"shop", b"ben", b"BLOCK", b"0"],
        &[b"FAIRACQUIRE", b"shop", b"cyd", b"BLOCK", b"0"],
    ]);
    world.primary.keys.leaving.clear();
    world.cut.insert(2);
    let Ok(_) = world.primary.run(
        world.now,
        0,
        Client::connection(1),
        &[b"RELEASE", b"shop", b"ada"],
    ) else {
        panic!("ada holds the lock")
    };
    world.primary.keys.leaving.insert(name(0, "shop"));
    world.perform();
    assert_eq!(shop(&world), (None, 1));
    world.primary.keys.leaving.clear();
    world.perform();
    assert_eq!(shop(&world), (Some("cyd".into()), 0));
}
