//! MACQUIRE, MRENEW, MRELEASE in a cluster, at replicas, and by many owners at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use dlock_harness::{assert_sound, await_until, Ask, Blocked, Server, PATIENCE};

#[track_caller]
fn wait_for(server: &Server, keys: &str, owner: &str) -> Blocked {
    let count = keys.split(' ').count();
    let line = format!("DLOCK.MACQUIRE {count} {keys} {owner} 600000 BLOCK 0");
    Blocked::start(server, &line)
}

/// Each request for several locks is granted, in order, and no two owners hold one lock.
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
            let mut wire = server.connection();
            let (forks, meals, over) = (&forks, &meals, &over);
            scope.spawn(move || {
                // Each reaches for the left one first: with one lock at a time they would starve.
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
        // A starving one never reaches this count, however long the others continue.
        await_until("all have eaten", PATIENCE, || {
            meals
                .iter()
                .all(|meals| meals.load(Ordering::Relaxed) >= MEALS)
        });
        over.store(true, Ordering::Relaxed);
    });
    // The further meals depend on the machine's scheduling of threads.
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
