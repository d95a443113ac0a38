//! MACQUIRE, MRENEW, MRELEASE: all of the locks or none, in one step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlock_integration::redis::{cmd, Connection, Value};
use dlock_integration::{
    assert_sound, at_once, await_until, is_held, kept, position, Ask, Blocked, Grant, Server,
    Subscriber, PATIENCE,
};

/// So long nothing must come of what cannot be.
const WHILE: Duration = Duration::from_millis(250);

#[track_caller]
fn wait_for(server: &Server, keys: &str, owner: &str) -> Blocked {
    let count = keys.split(' ').count();
    let line = format!("DLOCK.MACQUIRE {count} {keys} {owner} 600000 BLOCK 0");
    Blocked::start(server, &line)
}

/// Everything the server keeps, as one text.
fn digest(connection: &mut Connection) -> String {
    connection.ask("DEBUG DIGEST")
}

#[test]
fn all_or_none() {
    let server = Server::start();
    let mut c = server.connection();
    let tokens: Vec<u64> = c.ask("DLOCK.MACQUIRE 3 a b c bob 600000");
    assert_eq!(tokens.len(), 3);
    for (key, token) in ["a", "b", "c"].iter().zip(&tokens) {
        assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK {key} {token}")), "OK");
    }
    let before = digest(&mut c);
    assert_eq!(c.try_ask("DLOCK.MACQUIRE 3 x b y carol"), Ok(Value::Nil));
    assert_eq!(digest(&mut c), before);
    assert_eq!(c.ask::<u64>("EXISTS x y"), 0);
    // What the owner holds is entered once more, under its token.
    let again: Vec<u64> = c.ask("DLOCK.MACQUIRE 2 x b bob 600000");
    assert_eq!(again[1], tokens[1]);
    assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD b bob").1, 2);
    let left: Vec<Option<u64>> = c.ask("DLOCK.MRELEASE 4 a b free x bob");
    assert_eq!(left, [Some(0), Some(1), None, Some(0)]);
    assert_eq!(
        c.ask::<Vec<Option<u64>>>("DLOCK.MRELEASE 2 b c bob"),
        [Some(0), Some(0)]
    );
    assert_eq!(c.ask::<u64>("DBSIZE"), 0);
}

#[test]
fn renewals_are_all_or_none() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.MACQUIRE 2 a b bob 600000");
    let renewed: u64 = c.ask("DLOCK.MRENEW 2 a b bob 1200000");
    assert_eq!(renewed, 1_200_000);
    let before = digest(&mut c);
    let error = c.refusal("DLOCK.MRENEW 3 a free b bob 2400000");
    assert!(error.starts_with("NOTHELD"), "{error}");
    assert_eq!(digest(&mut c), before);
    let left: Vec<u64> = ["a", "b"].map(|key| c.ask(&format!("PTTL {key}"))).into();
    assert!(
        left.iter().all(|left| (600_001..=1_200_000).contains(left)),
        "{left:?}"
    );
}

#[test]
fn refusals_change_nothing() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("SET text v");
    c.run("DLOCK.ACQUIRE held bob 600000");
    c.run("ACL SETUSER some on >p ~a ~b ~held +@all");
    let mut some = server.connection_as("some", "p");
    let before = digest(&mut c);
    for verb in ["MACQUIRE", "MRENEW", "MRELEASE"] {
        let error = c.refusal(&format!("DLOCK.{verb} 3 held text a bob"));
        assert!(error.starts_with("WRONGTYPE"), "{verb}: {error}");
        let error = some.refusal(&format!("DLOCK.{verb} 3 held a forbidden bob"));
        assert!(error.starts_with("NOPERM"), "{verb}: {error}");
        for (words, part) in [
            ("2 held held bob", "ERR"),
            ("0 a bob", "ERR"),
            ("-1 held bob", "ERR"),
            ("3 held bob", "ERR"),
            ("99999999999999999999 held bob", "ERR"),
            ("x held bob", "ERR"),
        ] {
            let error = c.refusal(&format!("DLOCK.{verb} {words}"));
            assert!(error.starts_with(part), "{verb} {words}: {error}");
        }
    }
    let error = c.refusal("DLOCK.MACQUIRE 3 held text a bob BLOCK 0");
    assert!(error.starts_with("WRONGTYPE"), "{error}");
    assert_eq!(digest(&mut c), before);
    assert_eq!(some.ask::<Vec<u64>>("DLOCK.MACQUIRE 2 a b bob").len(), 2);

    let used: u64 = server.info("memory").number("used_memory");
    c.run("CONFIG SET maxmemory-policy noeviction");
    c.run(&format!("CONFIG SET maxmemory {}", used / 2));
    let error = c.refusal("DLOCK.MACQUIRE 2 x y bob");
    assert!(error.starts_with("OOM"), "{error}");
    // Keeping and giving back is always possible.
    c.run("DLOCK.MRENEW 2 a b bob");
    assert_eq!(
        c.ask::<Vec<Option<u64>>>("DLOCK.MRELEASE 2 a b bob"),
        [Some(0), Some(0)]
    );
    c.run("CONFIG SET maxmemory 0");
    assert_sound(&server);
}

#[test]
fn a_waiting_request_is_granted_when_all_are_free() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE a alice 600000");
    c.run("DLOCK.ACQUIRE c carol 600000");
    let bob = wait_for(&server, "a b c", "bob");
    assert_eq!(
        ["a", "b", "c"].map(|key| position(&mut c, key, "bob")),
        [Some(0); 3]
    );
    // What it has not got yet is kept for it.
    assert_eq!(c.try_ask("DLOCK.ACQUIRE b dave"), Ok(Value::Nil));
    c.run("DLOCK.RELEASE a alice");
    assert_eq!(bob.outcome_within(WHILE), None);
    assert_eq!(c.try_ask("DLOCK.ACQUIRE a dave"), Ok(Value::Nil));
    assert!(!is_held(&mut c, "a", "bob"));
    c.run("DLOCK.RELEASE c carol");
    assert_eq!(bob.reply::<Vec<u64>>().len(), 3);
    assert!(["a", "b", "c"]
        .iter()
        .all(|key| is_held(&mut c, key, "bob")));
}

/// Every way in which a wait ends takes it out of all queues, and who stood behind goes on.
#[test]
fn a_wait_that_ends_leaves_every_queue() {
    type End = fn(&mut Connection, Blocked);
    let ends: [(&str, End); 6] = [
        ("time is up", |_, bob| {
            assert_eq!(bob.outcome(), Ok(Value::Nil))
        }),
        ("CLIENT UNBLOCK", |c, bob| {
            c.run(&format!("CLIENT UNBLOCK {}", bob.client_id()));
            assert_eq!(bob.outcome(), Ok(Value::Nil));
        }),
        ("CLIENT UNBLOCK ERROR", |c, bob| {
            c.run(&format!("CLIENT UNBLOCK {} ERROR", bob.client_id()));
            assert!(bob.refusal().starts_with("UNBLOCKED "));
        }),
        ("CLIENT KILL", |c, bob| {
            c.run(&format!("CLIENT KILL ID {}", bob.client_id()))
        }),
        ("its end", |_, bob| bob.kill()),
        ("DLOCK.CANCEL", |c, bob| {
            c.run("DLOCK.CANCEL a bob");
            assert_eq!(bob.outcome(), Ok(Value::Nil));
        }),
    ];
    for (name, end) in ends {
        println!("{name}");
        let server = Server::start();
        let mut c = server.connection();
        c.run("DLOCK.ACQUIRE a alice 600000");
        let block = if name == "time is up" { 300 } else { 0 };
        let bob = format!("DLOCK.MACQUIRE 2 a b bob 600000 BLOCK {block}");
        let bob = Blocked::start(&server, &bob);
        let carol = Blocked::start(&server, "DLOCK.ACQUIRE b carol 600000 BLOCK 0");
        let dave = Blocked::start(&server, "DLOCK.ACQUIRE a dave 600000 BLOCK 0");
        end(&mut c, bob);
        carol.reply::<Grant>();
        assert_eq!(position(&mut c, "a", "dave"), Some(0), "{name}");
        c.run("DLOCK.RELEASE a alice");
        dave.reply::<Grant>();
        assert!(!is_held(&mut c, "a", "bob") && !is_held(&mut c, "b", "bob"));
        assert_sound(&server);
    }
}

/// The holds that a waiting request counts on are what it was asked under: when one ends, leaves its key or is too weak, the
/// request is told so, and leaves all queues.
#[test]
fn a_hold_that_a_request_counts_on() {
    for (line, sharing) in [
        ("DLOCK.RELEASE own bob HOLDS 0", ""),
        ("DLOCK.FORCERELEASE own", ""),
        ("DLOCK.RENEW own bob 1", ""),
        ("DEL own", ""),
        ("PEXPIRE own 1", ""),
        ("RENAME own elsewhere", ""),
        ("MOVE own 3", ""),
        ("FLUSHALL", ""),
        ("SWAPDB 0 3", ""),
        ("DLOCK.DOWNGRADE own bob SHARED", "LIMIT 2"),
        ("DLOCK.DOWNGRADE own bob LIMIT 3", "LIMIT 2"),
        ("CLIENT KILL", ""),
    ] {
        let server = Server::start();
        let mut c = server.connection();
        c.run("DLOCK.ACQUIRE a alice 600000");
        let mut holds = server.wire();
        let id = holds.client_id();
        for _ in 0..2 {
            holds.ask::<Grant>(&format!("DLOCK.ACQUIRE own bob 600000 {sharing} SESSION"));
        }
        let many = format!("DLOCK.MACQUIRE 3 own a b bob 600000 {sharing} BLOCK 0");
        let bob = Blocked::start(&server, &many);
        let carol = Blocked::start(&server, "DLOCK.ACQUIRE b carol 600000 BLOCK 0");
        // A partial release, and a renewal, end nothing.
        c.run("DLOCK.RELEASE own bob");
        c.run("DLOCK.RENEW own bob 600000");
        assert!(bob.is_blocked(&server), "{line}");
        if line == "CLIENT KILL" {
            c.run(&format!("CLIENT KILL ID {id}"));
        } else {
            c.run(line);
        }
        let refusal = bob.refusal();
        assert!(refusal.starts_with("NOTHELD "), "{line}: {refusal}");
        carol.reply::<Grant>();
        for key in ["own", "a", "b"] {
            assert_eq!(position(&mut c, key, "bob"), None, "{line}: {key}");
        }
        assert_sound(&server);
    }
}

/// An upgrade that is part of it, likewise.
#[test]
fn a_hold_that_a_request_upgrades() {
    let server = Server::start();
    let mut c = server.connection();
    for owner in ["alice", "bob"] {
        c.run(&format!("DLOCK.ACQUIRE own {owner} 600000 SHARED"));
    }
    let bob = wait_for(&server, "own a", "bob");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE a carol 600000 BLOCK 0");
    c.run("DLOCK.FORCERELEASE own bob");
    assert!(bob.refusal().starts_with("NOTHELD "));
    carol.reply::<Grant>();
    assert_eq!(position(&mut c, "own", "bob"), None);
    assert_sound(&server);
}

/// A hold that arrives where it queues is one that it counts on from then on.
#[test]
fn a_hold_that_arrives_is_counted_on() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.MACQUIRE 2 a b alice 600000");
    c.run("DLOCK.ACQUIRE x bob 600000");
    let bob = wait_for(&server, "a b", "bob");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE a carol 600000 BLOCK 0");
    c.run("RENAME x a");
    assert_eq!(position(&mut c, "a", "carol"), Some(0));
    assert!(bob.is_blocked(&server));
    c.run("DLOCK.FORCERELEASE a");
    assert!(bob.refusal().starts_with("NOTHELD "));
    carol.reply::<Grant>();

    // The last that was missing.
    c.run("DLOCK.RELEASE a carol");
    c.run("DLOCK.ACQUIRE a bob 600000");
    c.run("DLOCK.ACQUIRE x bob 600000");
    let bob = wait_for(&server, "a b", "bob");
    c.run("RENAME x b");
    assert_eq!(bob.reply::<Vec<u64>>().len(), 2);
    for key in ["a", "b"] {
        let (_, holds, _): (u64, u64, u64) = c.ask(&format!("DLOCK.HELD {key} bob"));
        assert_eq!(holds, 2, "{key}");
    }
    assert_sound(&server);
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
fn a_transaction_or_script_does_not_wait() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE a alice 600000");
    c.run("MULTI");
    c.run("DLOCK.MACQUIRE 2 a b bob BLOCK 0");
    c.run("DLOCK.MACQUIRE 2 b c bob 600000 BLOCK 0");
    c.run("DLOCK.MRENEW 2 b c bob 600000");
    c.run("DLOCK.MRELEASE 2 b c bob");
    let replies: Vec<Value> = c.ask("EXEC");
    assert_eq!(replies[0], Value::Nil);
    assert!(
        matches!(&replies[1], Value::Array(tokens) if tokens.len() == 2),
        "{replies:?}"
    );
    assert_eq!(replies[2], Value::Int(600_000));
    assert_eq!(replies[3], Value::Array(vec![Value::Int(0), Value::Int(0)]));
    let script =
        "return redis.call('DLOCK.MACQUIRE', #KEYS, KEYS[1], KEYS[2], 'bob', 'BLOCK', '0')";
    let mut eval = |keys: [&str; 2]| c.answer(cmd("EVAL").arg(script).arg(2).arg(&keys));
    assert_eq!(eval(["a", "b"]), Ok(Value::Nil));
    assert!(matches!(eval(["b", "c"]), Ok(Value::Array(_))));
    assert_eq!(position(&mut c, "a", "bob"), None);
}

#[test]
fn the_server_knows_the_keys() {
    let server = Server::start();
    let mut c = server.connection();
    for verb in ["MACQUIRE", "MRENEW", "MRELEASE"] {
        let keys: Vec<String> = c.ask(&format!("COMMAND GETKEYS DLOCK.{verb} 3 a b c bob"));
        assert_eq!(keys, ["a", "b", "c"], "{verb}");
        let name = format!("dlock.{}", verb.to_lowercase());
        let docs: HashMap<String, HashMap<String, Value>> = c.ask(&format!("COMMAND DOCS {name}"));
        let Value::Array(arguments) = &docs[&name]["arguments"] else {
            panic!("{docs:?}")
        };
        assert!(arguments.len() >= 3, "{verb}: {arguments:?}");
        c.run(&format!("ACL SETUSER one on >p ~a ~b +{name}"));
        let simulate = |c: &mut Connection, words: &str| -> String {
            c.ask(&format!("ACL DRYRUN one {name} {words}"))
        };
        assert_eq!(simulate(&mut c, "2 a b bob"), "OK");
        let refused = simulate(&mut c, "3 a b c bob");
        assert!(
            refused.contains("'c'") || refused.contains("keys"),
            "{refused}"
        );
    }
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

/// In a pause and on what removes keys under it: the whole request, or nothing.
#[test]
fn keys_that_go_and_come_under_a_waiting_request() {
    let server = Server::start();
    let mut c = server.connection();
    for (line, granted) in [
        ("DEL a", true),
        ("FLUSHALL", true),
        ("PEXPIRE a 1", true),
        ("RENAME a z", true),
        ("DLOCK.FORCERELEASE a", true),
    ] {
        c.run("FLUSHALL");
        c.run("DLOCK.ACQUIRE a alice 600000");
        let bob = wait_for(&server, "a b", "bob");
        c.run(line);
        assert_eq!(bob.reply::<Vec<u64>>().len() == 2, granted, "{line}");
    }
    c.run("FLUSHALL");
    c.run("DLOCK.ACQUIRE a alice 600000");
    let bob = wait_for(&server, "a b", "bob");
    let behind = Blocked::start(&server, "DLOCK.ACQUIRE b carol 600000 BLOCK 0");
    c.run("SET a text");
    let error = bob.refusal();
    assert!(error.starts_with("WRONGTYPE"), "{error}");
    behind.reply::<Grant>();

    c.run("FLUSHALL");
    c.run("DLOCK.ACQUIRE a alice 600000");
    let bob = wait_for(&server, "a b", "bob");
    at_once(
        &server,
        ["DLOCK.RENEW a alice 100", "CLIENT PAUSE 600000 WRITE"],
    );
    assert_eq!(bob.outcome_within(WHILE), None);
    c.run("CLIENT UNPAUSE");
    assert_eq!(bob.reply::<Vec<u64>>().len(), 2);
    assert_sound(&server);
}

#[test]
fn every_lock_s_observers_are_told() {
    let server = Server::builder()
        .config("notify-keyspace-events", "KEd")
        .start();
    let mut c = server.connection();
    let events = Subscriber::patterns(&server, &["__keyspace@0__:*", "__dlock@0__:*"]);
    let tokens: Vec<u64> = c.ask("DLOCK.MACQUIRE 2 a b bob 600000");
    c.run("DLOCK.MRELEASE 2 a b bob");
    let told: Vec<(String, String)> = (0..6)
        .map(|_| events.message())
        .map(|message| (message.channel, message.payload))
        .collect();
    for (key, token) in ["a", "b"].iter().zip(tokens) {
        let keyspace = format!("__keyspace@0__:{key}");
        let of_key: Vec<&str> = told
            .iter()
            .filter(|(channel, _)| *channel == keyspace)
            .map(|(_, payload)| &**payload)
            .collect();
        assert_eq!(of_key, ["dlock.acquired", "dlock.released"]);
        let message = (format!("__dlock@0__:{key}"), format!("released {token}"));
        assert!(told.contains(&message), "{told:?}");
    }
}
