//! An event that concerns all locks marks them at once and is settled in steps. No step looks at more locks than its bound.

use crate::client::Client;
use crate::keys::Value;
use crate::server::Server;
use dlock_engine::lock::token::TokenClock;
use dlock_engine::{
    change::Change, codec, Arrival, End, Entry, Event, Keyspace, Limit, Lock, Name, NameRef, Now,
    Policy, Share, ONE,
};

/// The number of watched locks: each has two holders.
const LOCKS: usize = 600;

/// The number of locks that one step may look at.
const A_STEP: usize = 20;

const NOW: Now = Now {
    us: 2_000_000_000_000_000,
    steady_us: 1_000_000,
};

fn crowded(primary: bool) -> Server {
    let mut server = Server::new(true, Policy::default());
    for at in 0..LOCKS {
        let key = format!("k{at}");
        for owner in ["ann", "ben"] {
            let words: [&[u8]; 4] = [b"ACQUIRE", key.as_bytes(), owner.as_bytes(), b"SHARED"];
            drop(server.run(NOW, 0, Client::connection(1), &words));
            server.keys.close();
        }
    }
    settle(&mut server);
    match primary {
        true => server,
        false => server.reload(NOW),
    }
}

/// Settles until nothing is left. Returns how many locks the largest step looked at, and how many all of them.
fn settle(server: &mut Server) -> (usize, usize) {
    let (mut most, mut all) = (0, 0);
    for _ in 0..10 * LOCKS {
        let left = server.engine.settle_dirty(&mut server.keys, NOW, A_STEP);
        let looked = server.keys.close().len();
        (most, all) = (most.max(looked), all + looked);
        if !left {
            return (most, all);
        }
    }
    panic!("settlement does not end");
}

#[track_caller]
fn assert_steps(server: &mut Server) {
    // The event itself has looked at no lock.
    assert_eq!(server.keys.close().len(), 0);
    let (most, all) = settle(server);
    assert!(most <= A_STEP, "{most} in one step");
    assert!((LOCKS..=2 * LOCKS).contains(&all), "{all} in all");
}

#[test]
fn a_primary_looks_at_all_locks_in_steps() {
    let mut server = crowded(true);
    server.engine.on_values_changed(None);
    assert_steps(&mut server);
    server.set_policy(|_| {});
    assert_steps(&mut server);
    server.engine.promote();
    assert_steps(&mut server);
    let values = std::mem::take(&mut server.keys.values);
    let moved = |name: Name| Name { db: 1, ..name };
    server.keys.values = values
        .into_iter()
        .map(|(name, value)| (moved(name), value))
        .collect();
    server.engine.on_swap(0, 1, NOW);
    assert_steps(&mut server);
    // The locks are watched where they are now.
    server.set_policy(|_| {});
    assert_steps(&mut server);
    server.keys.values.clear();
    server.engine.on_values_changed(None);
    assert_steps(&mut server);
    assert!(server.engine.is_idle());
}

/// A lock that is used before its turn is settled first.
#[test]
fn nothing_is_decided_on_what_was_before() {
    let mut server = crowded(true);
    server.keys.values.clear();
    server.engine.on_values_changed(Some(0));
    let last = format!("k{}", LOCKS - 1);
    let words: [&[u8]; 3] = [b"ACQUIRE", last.as_bytes(), b"cyd"];
    let granted = server.run(NOW, 0, Client::connection(2), &words);
    assert!(format!("{granted:?}").contains("Grant"), "{granted:?}");
    server.keys.close();
    settle(&mut server);
    let words: [&[u8]; 3] = [b"ACQUIRE", last.as_bytes(), b"dan"];
    let refused = server.run(NOW, 0, Client::connection(2), &words);
    assert!(format!("{refused:?}").contains("Null"), "{refused:?}");
}

/// Clears away until nothing is left. Returns how many messages the largest step wrote, and how many all of them.
fn follow(server: &mut Server) -> (usize, usize) {
    let (mut most, mut all) = (0, 0);
    for _ in 0..10 * LOCKS {
        let left = server.engine.follow_dirty(&mut server.keys, NOW, A_STEP);
        let looked = server.keys.close().len();
        assert!(looked <= A_STEP, "{looked} in one step");
        let told = server.engine.take_outputs().len();
        (most, all) = (most.max(told), all + told);
        if !left {
            return (most, all);
        }
    }
    panic!("clearing away does not end");
}

/// Makes a request that waits by a channel.
fn wait(server: &mut Server, key: &str, owner: &str) {
    let words: [&[u8]; 5] = [
        b"ACQUIRE",
        key.as_bytes(),
        owner.as_bytes(),
        b"NOTIFY",
        b"ch",
    ];
    drop(server.run(NOW, 0, Client::connection(3), &words));
    server.keys.close();
}

#[test]
fn a_demotion_is_cleared_away_in_steps() {
    let mut server = crowded(true);
    for at in 0..LOCKS {
        wait(&mut server, &format!("k{at}"), &format!("w{at}"));
        wait(&mut server, "k0", &format!("v{at}"));
    }
    server.engine.demote(NOW);
    server.primary = false;
    let (most, all) = follow(&mut server);
    assert!(most <= A_STEP, "{most} in one step");
    assert_eq!(all, 2 * LOCKS);
    assert_eq!((server.engine.places(), server.engine.notifies()), (0, 0));
    // The locks that were watched will be watched again.
    server.engine.promote();
    assert_steps(&mut server);
}

/// A server that is promoted again before it has cleared everything away works on with the rest.
#[test]
fn who_has_not_been_told_of_a_demotion_waits_on() {
    let mut server = crowded(true);
    for at in 0..LOCKS {
        wait(&mut server, &format!("k{at}"), &format!("w{at}"));
    }
    server.engine.demote(NOW);
    server.engine.follow_dirty(&mut server.keys, NOW, A_STEP);
    server.keys.close();
    let told = server.engine.take_outputs().len();
    assert!((1..=A_STEP).contains(&told), "{told}");
    assert_eq!(server.engine.notifies(), LOCKS - told);
    server.engine.promote();
    settle(&mut server);
    assert_eq!(server.engine.take_outputs().len(), 0);
    assert_eq!(server.engine.notifies(), LOCKS - told);
    for at in 0..LOCKS {
        let key = format!("k{at}");
        let words: [&[u8]; 2] = [b"FORCERELEASE", key.as_bytes()];
        drop(server.run(NOW, 0, Client::connection(1), &words));
        server.keys.close();
    }
    settle(&mut server);
    assert_eq!(server.engine.take_outputs().len(), LOCKS - told);
}

#[test]
fn a_follower_looks_at_all_locks_in_steps() {
    let mut server = crowded(false);
    server.keys.close();
    for change in [
        |server: &mut Server| server.engine.on_values_changed(None),
        |server: &mut Server| server.engine.on_swap(0, 1, NOW),
    ] {
        change(&mut server);
        assert_eq!(server.keys.close().len(), 0);
        assert_eq!(follow(&mut server), (0, 0));
        // The locks are watched where they are, and only there.
        for at in 0..LOCKS {
            let key = format!("k{at}");
            let watched = [0, 1].map(|db| {
                server.engine.watches(NameRef {
                    db,
                    key: key.as_bytes(),
                })
            });
            assert_eq!(watched, [true, false]);
        }
    }
}

/// A primary with a lock, and a replica of the lock.
struct Followed {
    primary: Server,
    follower: Entry<Box<Lock>>,
}

impl Followed {
    /// Applies the primary's changes to the replica. Returns the events that observers of each receive.
    fn follow(&mut self) -> [Vec<Event>; 2] {
        let mut told = Vec::new();
        for closed in self.primary.keys.close() {
            told.extend(closed.events);
            if !closed.effect.is_empty() {
                let mut clock = TokenClock::default();
                let followed = self.follower.follow(&closed.effect, &mut clock);
                assert_eq!(followed, Ok(()));
            }
        }
        let name = Name {
            db: 0,
            key: b"k".as_slice().into(),
        };
        let same = self.primary.keys.entry(name.as_ref()).value();
        assert_eq!(codec::encode(self.follower.value()), codec::encode(same));
        let their = std::mem::take(&mut self.follower.events);
        [told, their]
    }

    fn run(&mut self, now: Now, words: &[&[u8]]) -> String {
        let answer = self.primary.run(now, 0, Client::connection(1), words);
        format!("{answer:?}")
    }
}

/// Holders of one lock that end together end as if each ended alone, on the primary and on the replica.
#[test]
fn holders_end_together() {
    const HOLDERS: u64 = 60;
    let at = |ms: u64| Now {
        us: NOW.us + 1000 * ms,
        steady_us: NOW.steady_us + 1000 * ms,
    };
    let mut server = Followed {
        primary: Server::new(true, Policy::default()),
        follower: Entry::default(),
    };
    for holder in 0..HOLDERS {
        let (owner, lease) = (format!("o{}", holder * 7 % HOLDERS), 1000 + holder / 5 * 10);
        let lease = lease.to_string();
        let words: [&[u8]; 5] = [
            b"ACQUIRE",
            b"k",
            owner.as_bytes(),
            lease.as_bytes(),
            b"SHARED",
        ];
        assert!(server.run(NOW, &words).contains("Grant"));
    }
    let queued = server.run(NOW, &[b"FAIRACQUIRE", b"k", b"writer", b"9000"]);
    assert!(queued.contains("Null"), "{queued}");
    server.follow();
    // Some of them, in the order in which they end.
    for (now, ended) in [(at(1000), 5), (at(1045), 20), (at(1055), 5)] {
        server.primary.engine.tick(now);
        server
            .primary
            .engine
            .settle_dirty(&mut server.primary.keys, now, A_STEP);
        let [told, followed] = server.follow();
        let expired = |event: &&Event| matches!(event, Event::Ended(End::Expired, _));
        assert_eq!(told.iter().filter(expired).count(), ended);
        assert_eq!(told, followed);
    }
    // The oldest holder comes first.
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let lock = server.primary.keys.entry(name.as_ref()).lock.as_deref();
    let view = server
        .primary
        .engine
        .view(lock, at(1055), name.as_ref(), 2)
        .expect("it is held");
    let shown: Vec<&[u8]> = view.holders.iter().map(|hold| &*hold.owner).collect();
    assert_eq!((view.held, shown), (30, vec![&b"o30"[..], &b"o37"[..]]));
    // All that are left.
    let forced = server.run(at(1056), &[b"FORCERELEASE", b"k"]);
    assert!(forced.contains("30"), "{forced}");
    let [told, followed] = server.follow();
    let forced = |event: &&Event| matches!(event, Event::Ended(End::Forced, _));
    assert_eq!(told.iter().filter(forced).count(), 30);
    assert_eq!(told, followed);
    assert_eq!(server.primary.engine.counters().held, 0);
}

/// Tickets that arrive with a value have their places at once. They leave as one piece, which is freed in steps.
#[test]
fn tickets_that_leave_are_freed_in_steps() {
    const TICKETS: u64 = 40_000;
    let name = Name {
        db: 0,
        key: b"k".as_slice().into(),
    };
    let mut lock = Lock::default();
    for at in 0..TICKETS {
        let owner = format!("o{at}");
        lock.apply(&Change::Ticket {
            number: Arrival(NOW.us - TICKETS + at),
            owner: owner.as_bytes(),
            share: Share {
                limit: Limit::EXCLUSIVE,
                permits: ONE,
            },
            claim: 60_000,
        });
    }
    let mut server = Server::new(true, Policy::default());
    let value = codec::decode(&codec::encode(&lock)).expect("a lock");
    let value = Value::Lock(Box::new(value), None);
    server.keys.values.insert(name.clone(), value);
    server.engine.on_key_changed(name.as_ref());
    settle(&mut server);
    // The last ticket keeps its place, and the first is granted.
    let last = format!("o{}", TICKETS - 1);
    for (owner, found) in [(&*last, "Null"), ("o0", "Grant"), ("new", "Null")] {
        let words: [&[u8]; 3] = [b"FAIRACQUIRE", b"k", owner.as_bytes()];
        let answer = server.run(NOW, 0, Client::connection(1), &words);
        let answer = format!("{answer:?}");
        assert!(answer.contains(found), "{owner}: {answer}");
        server.keys.close();
    }
    let rank = server.engine.position(None, name.as_ref(), last.as_bytes());
    assert_eq!(rank, Some(TICKETS as usize - 2));
    server.keys.values.clear();
    server.engine.on_key_removed(name.as_ref());
    let mut steps = 0;
    while server.engine.settle_dirty(&mut server.keys, NOW, A_STEP) {
        server.keys.close();
        steps += 1;
        assert_eq!(server.engine.places(), 0);
    }
    assert!(steps >= 4, "{steps} steps");
    server.keys.close();
    assert!(server.engine.is_idle());
}
