//! MACQUIRE, MRENEW, MRELEASE in a cluster, at replicas, and by many at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use dlock_integration::{
    assert_sound, await_until, is_held, kept, position, Ask, Blocked, Server, PATIENCE,
};

#[track_caller]
fn wait_for(server: &Server, keys: &str, owner: &str) -> Blocked {
    let count = keys.split(' ').count();
    let line = format!("DLOCK.MACQUIRE {count} {keys} {owner} 600000 BLOCK 0");
    Blocked::start(server, &line)
}

/// A grant to a connection that is killed in the same breath is taken back from all the locks.
#[test]
fn a_grant_that_is_lost_is_taken_back_from_all() {
    let server = Server::start();
    let mut c = server.connection();
    for kill_first in [true, false] {
        for _ in 0..20 {
            c.run("FLUSHALL");
            c.run("DLOCK.ACQUIRE a alice 600000");
            let bob = Blocked::start(&server, "DLOCK.MACQUIRE 2 a b bob 600000 BLOCK 0");
            let next = wait_for(&server, "b a", "next");
            let mut lines = [
                format!("CLIENT KILL ID {}", bob.client_id()),
                "DLOCK.RELEASE a alice".to_owned(),
            ];
            if !kill_first {
                lines.reverse();
            }
            let replies = server.wire().batch(lines);
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
            assert_eq!(next.reply::<Vec<u64>>().len(), 2);
            assert!(!is_held(&mut c, "a", "bob") && !is_held(&mut c, "b", "bob"));
        }
    }
    assert_sound(&server);
}

/// Whoever asks for several of them gets what it asks for, in order, and no two hold one lock.
#[test]
fn seven_philosophers_eat() {
    const SEATS: usize = 7;
    const MEALS: usize = 100;
    let server = Server::start();
    let forks: [AtomicBool; SEATS] = Default::default();
    let meals: [AtomicUsize; SEATS] = Default::default();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seat in 0..SEATS {
            let mut wire = server.wire();
            let (forks, meals, over) = (&forks, &meals, &over);
            scope.spawn(move || {
                // Each reaches for the left one first: one at a time they would starve.
                let (left, right) = (seat, (seat + 1) % SEATS);
                let take = format!("DLOCK.MACQUIRE 2 f{left} f{right} p{seat} 600000 BLOCK 0");
                let give = format!("DLOCK.MRELEASE 2 f{left} f{right} p{seat}");
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(wire.ask::<Vec<u64>>(&take).len(), 2);
                    for fork in [left, right] {
                        assert!(
                            !forks[fork].swap(true, Ordering::SeqCst),
                            "two have fork {fork}"
                        );
                    }
                    thread::yield_now();
                    for fork in [left, right] {
                        forks[fork].store(false, Ordering::SeqCst);
                    }
                    let left = wire.ask::<Vec<Option<u64>>>(&give);
                    assert_eq!(left, [Some(0), Some(0)]);
                    meals[seat].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Whoever starves never has so many, however long the others go on.
        await_until("all have eaten", PATIENCE, || {
            meals
                .iter()
                .all(|meals| meals.load(Ordering::Relaxed) >= MEALS)
        });
        over.store(true, Ordering::Relaxed);
    });
    // How many more than that is for the machine to say, which is not fair to threads.
    println!("meals {:?}", meals.map(AtomicUsize::into_inner));
    assert_eq!(server.connection().ask::<u64>("DBSIZE"), 0);
    assert_sound(&server);
}

#[test]
fn in_a_cluster_all_keys_are_in_one_slot() {
    let server = Server::builder().cluster().start();
    server.serve_all_slots();
    let mut c = server.connection();
    for verb in ["MACQUIRE", "MRENEW", "MRELEASE"] {
        let error = c.refusal(&format!("DLOCK.{verb} 2 a b bob"));
        assert!(error.starts_with("CROSSSLOT"), "{verb}: {error}");
    }
    assert_eq!(c.ask::<u64>("DBSIZE"), 0);
    c.run("DLOCK.ACQUIRE {t}a alice 600000");
    let bob = wait_for(&server, "{t}a {t}b", "bob");
    c.run("DLOCK.RELEASE {t}a alice");
    assert_eq!(bob.reply::<Vec<u64>>().len(), 2);
    c.run("DLOCK.MRENEW 2 {t}a {t}b bob");
    assert_eq!(
        c.ask::<Vec<Option<u64>>>("DLOCK.MRELEASE 2 {t}a {t}b bob"),
        [Some(0), Some(0)]
    );
    assert_sound(&server);
}

/// Replica and AOF have the same, byte for byte, and waiting leaves no trace there.
#[test]
fn replicas_and_the_aof_agree() {
    let mut primary = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let mut replica = Server::start();
    replica.replica_of(&primary);
    let mut c = primary.connection();
    c.run("DLOCK.MACQUIRE 3 a b c alice 600000");
    c.run("DLOCK.MACQUIRE 2 c d alice 600000 HOLDS 3");
    c.run("DLOCK.MACQUIRE 2 s t anna 600000 SHARED");
    c.run("DLOCK.MACQUIRE 2 s t bert 600000 SHARED");
    let bob = wait_for(&primary, "a x b", "bob");
    let _waits = wait_for(&primary, "x c", "carol");
    let dies = wait_for(&primary, "d y", "dave");
    c.run("DLOCK.MRELEASE 2 a b alice");
    assert_eq!(bob.reply::<Vec<u64>>().len(), 3);
    c.run("DLOCK.MRENEW 3 a x b bob 500000");
    dies.kill();
    replica.wait_in_sync(&primary);
    let keys = ["a", "b", "c", "d", "s", "t", "x", "y"];
    let values = |server: &Server| {
        let mut c = server.connection();
        keys.map(|key| {
            let kept = kept(&mut c, key);
            let holds: Vec<_> = ["alice", "bob", "carol", "dave", "anna", "bert"]
                .map(|owner| is_held(&mut c, key, owner))
                .into();
            (key, kept, holds)
        })
    };
    let ours = values(&primary);
    assert_eq!(values(&replica), ours);
    primary.kill9();
    primary.restart();
    let mut c = primary.connection();
    for (key, _, holds) in &ours {
        for (owner, held) in ["alice", "bob", "carol", "dave", "anna", "bert"]
            .iter()
            .zip(holds)
        {
            assert_eq!(is_held(&mut c, key, owner), *held, "{key} {owner}");
        }
    }
    assert_eq!(position(&mut c, "x", "carol"), None);
    assert_sound(&primary);
    assert_sound(&replica);
    replica.stop();
}
