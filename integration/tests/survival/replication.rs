//! Replicas: they agree with their primary byte for byte, decide nothing, and take over after a promotion.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlock_harness::redis::{cmd, from_redis_value, Cmd, Value};
use dlock_harness::{
    assert_sound, at_once, await_until, command, kept, position, Ask, Blocked, Grant, Server,
    ServerBuilder, Wire, PATIENCE,
};
use fastrand::Rng;

/// The number of locks in the random traffic.
const KEYS: usize = 24;

/// The number of its databases.
const DATABASES: i64 = 2;

/// Returns all locks of the random traffic, in all its databases.
fn kept_of_all(server: &Server) -> Vec<(i64, usize, (String, i64))> {
    let mut all = Vec::new();
    for db in 0..DATABASES {
        let mut connection = server.connection_in(db);
        for key in 0..KEYS {
            let kept = kept(&mut connection, &format!("k{key}"));
            all.push((db, key, kept));
        }
    }
    all
}

/// Waits until two servers have equal locks. Short leases may still end meanwhile; a divergence would last.
#[track_caller]
fn assert_same(primary: &Server, replica: &Server) {
    replica.wait_in_sync(primary);
    let end = Instant::now() + PATIENCE;
    loop {
        let (ours, theirs) = (kept_of_all(primary), kept_of_all(replica));
        if ours == theirs {
            return;
        }
        let apart: Vec<_> = ours.iter().zip(&theirs).filter(|(a, b)| a != b).collect();
        assert!(
            Instant::now() < end,
            "primary and replica differ: {apart:#?}"
        );
        thread::yield_now();
    }
}

/// Waits until no lease of the random traffic ends within minutes: an expired one shows as gone on every server.
#[track_caller]
fn await_short_ends(server: &Server) {
    let mut connections = Vec::from_iter((0..DATABASES).map(|db| server.connection_in(db)));
    await_until("the short leases are over", PATIENCE, || {
        connections.iter_mut().all(|connection| {
            (0..KEYS).all(|key| {
                let left: i64 = connection.ask(&format!("PTTL k{key}"));
                !(0..=300_000).contains(&left)
            })
        })
    });
}

/// Returns a digest of all data of the server.
fn digest(server: &Server) -> String {
    server.connection().ask("DEBUG DIGEST")
}

#[track_caller]
fn assert_same_digest(primary: &Server, replica: &Server) {
    replica.wait_in_sync(primary);
    let (ours, theirs) = (digest(primary), digest(replica));
    if ours == theirs {
        return;
    }
    let keys = |server: &Server| {
        let mut keys: Vec<String> = server.connection().ask("KEYS *");
        keys.sort();
        keys
    };
    let (ours, theirs) = (keys(primary), keys(replica));
    let missing: Vec<_> = ours
        .iter()
        .filter(|key| theirs.binary_search(key).is_err())
        .take(10)
        .collect();
    let extra: Vec<_> = theirs
        .iter()
        .filter(|key| ours.binary_search(key).is_err())
        .take(10)
        .collect();
    panic!(
        "{} keys against {}; the replica lacks {missing:?} and has {extra:?} too many",
        ours.len(),
        theirs.len()
    );
}

/// Returns a random command on one of a few locks.
fn random_command(rng: &mut Rng) -> Cmd {
    let key = format!("k{}", rng.usize(..KEYS));
    let owner = format!("o{}", rng.u8(..8));
    let lease = [15, 40, 600_000][rng.usize(..3)];
    let sharing = ["", "", "SHARED", "LIMIT 2", "LIMIT 4", "LIMIT 4 PERMITS 3"][rng.usize(..6)];
    let many = format!("{key} k{} {owner}", rng.usize(..KEYS));
    let line = match rng.u8(..104) {
        0..=15 => format!("DLOCK.ACQUIRE {key} {owner} {lease} {sharing}"),
        16..=19 => format!("DLOCK.MACQUIRE 2 {many} {lease} {sharing}"),
        20..=30 => format!(
            "DLOCK.ACQUIRE {key} {owner} {lease} BLOCK {} {sharing}",
            rng.u8(1..8)
        ),
        31..=34 => format!("DLOCK.MACQUIRE 2 {many} {lease} BLOCK {}", rng.u8(1..8)),
        35..=39 => format!("DLOCK.ACQUIRE {key} {owner} {lease} HOLDS {}", rng.u8(1..4)),
        40..=44 => format!(
            "DLOCK.FAIRACQUIRE {key} {owner} {lease} CLAIM {}",
            [5, 600_000][rng.usize(..2)]
        ),
        45..=49 => format!(
            "DLOCK.FAIRACQUIRE {key} {owner} {lease} BLOCK {}",
            rng.u8(1..8)
        ),
        50..=54 => format!(
            "DLOCK.FAIRACQUIRE {key} {owner} {lease} CLAIM 20 BLOCK {}",
            rng.u8(1..8)
        ),
        55..=72 => format!("DLOCK.RELEASE {key} {owner}"),
        73..=76 => format!("DLOCK.RELEASE {key} {owner} HOLDS {}", rng.u8(..2)),
        77..=82 => format!("DLOCK.RENEW {key} {owner} {lease}"),
        83..=85 => format!("DLOCK.FORCERELEASE {key}"),
        86 => format!("DLOCK.FORCERELEASE {key} {owner}"),
        87..=89 => format!("DLOCK.CANCEL {key} {owner}"),
        90 => format!("DEL {key}"),
        91 => format!("PEXPIRE {key} {}", [1, 10, 900_000][rng.usize(..3)]),
        92 => format!("PERSIST {key}"),
        93 => format!("RENAME {key} k{}", rng.usize(..KEYS)),
        94 => format!("MOVE {key} 1"),
        95 => format!("SET {key} x PX 3"),
        96..=97 => format!("DLOCK.HELD {key} {owner}"),
        98 => format!("DLOCK.DOWNGRADE {key} {owner} SHARED"),
        99 => format!("DLOCK.MRENEW 2 {many} {lease}"),
        100..=101 => format!("DLOCK.MRELEASE 2 {many}"),
        _ => {
            let mut script = cmd("EVAL");
            script
                .arg("redis.pcall('DLOCK.RELEASE', KEYS[1], ARGV[1]) redis.pcall('DLOCK.ACQUIRE', KEYS[1], ARGV[2], 40)")
                .arg(1)
                .arg(key)
                .arg(owner)
                .arg("o9");
            return script;
        }
    };
    command(&line)
}

/// Sends batches of random commands, some in transactions, and sometimes leaves in the middle of a wait.
fn random_client(server: &Server, seed: u64, batches: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut wire = server.connection();
    wire.ask::<String>(&format!("SELECT {}", rng.i64(0..DATABASES)));
    for _ in 0..batches {
        let commands: Vec<Cmd> = (0..rng.usize(1..20))
            .map(|_| random_command(&mut rng))
            .collect();
        let together = rng.u8(..5) == 0;
        let mut bytes = Vec::new();
        if together {
            bytes.extend(command("MULTI").get_packed_command());
        }
        commands
            .iter()
            .for_each(|command| bytes.extend(command.get_packed_command()));
        if together {
            bytes.extend(command("EXEC").get_packed_command());
        }
        wire.send_bytes(&bytes).expect("the server reads");
        if rng.u8(..10) == 0 {
            wire.close();
            wire = server.connection();
            wire.ask::<String>(&format!("SELECT {}", rng.i64(0..DATABASES)));
            continue;
        }
        let replies = commands.len() + if together { 2 } else { 0 };
        for _ in 0..replies {
            if let Err(error) = wire.read() {
                let fault = ["ERR dlock", "ERR wrong", "ERR unknown", "READONLY"];
                assert!(
                    !fault.iter().any(|fault| error.starts_with(fault)),
                    "{error}"
                );
            }
        }
    }
}

/// Runs random traffic of many clients at once. Prints its seed.
fn random_traffic(server: &Server, seed: u64, batches: usize) {
    println!("random traffic with seed {seed}");
    thread::scope(|scope| {
        for client in 0..5 {
            scope.spawn(move || random_client(server, seed * 100 + client, batches));
        }
    });
}

/// Takes locks under ever new names, in pipelines and as fast as the server can, and gives every third back: an effect that a
/// listener misses leaves it with a key too few or too many, and nothing later corrects it.
struct Load {
    stop: AtomicBool,
    rests: AtomicBool,
    done: AtomicU64,
}

impl Load {
    fn new() -> Load {
        Load {
            stop: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            done: AtomicU64::new(0),
        }
    }

    fn client(&self, server: &Server, name: &str) {
        let mut wire = server.connection();
        let mut number = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            await_until("the rest is over", PATIENCE, || {
                !self.rests.load(Ordering::Relaxed)
            });
            let mut bytes = Vec::new();
            for _ in 0..30 {
                number += 1;
                bytes.extend(
                    command(&format!("DLOCK.ACQUIRE {name}{number} o 600000")).get_packed_command(),
                );
                if number % 3 == 0 {
                    bytes.extend(
                        command(&format!("DLOCK.RELEASE {name}{} o", number - 2))
                            .get_packed_command(),
                    );
                }
            }
            wire.send_bytes(&bytes).expect("the server reads");
            for _ in 0..40 {
                wire.read().expect("locks of its own are granted");
            }
            self.done.fetch_add(40, Ordering::Relaxed);
        }
    }

    /// Waits until the server has served `commands` further commands: then the change happened under full traffic.
    fn await_more(&self, commands: u64) {
        let until = self.done.load(Ordering::Relaxed) + commands;
        await_until("the load goes on", PATIENCE, || {
            self.done.load(Ordering::Relaxed) >= until
        });
    }

    /// Pauses the load during `work`, which it would only delay.
    fn rest(&self, work: impl FnOnce()) {
        self.rests.store(true, Ordering::Relaxed);
        work();
        self.rests.store(false, Ordering::Relaxed);
    }

    /// Runs `work` under load.
    fn during(server: &Server, work: impl FnOnce(&Load)) {
        let load = Load::new();
        /// Stops the load also when `work` panics: otherwise its clients would continue forever.
        struct Stop<'a>(&'a Load);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop.store(true, Ordering::Relaxed);
            }
        }
        thread::scope(|scope| {
            for name in ["a", "b"] {
                let load = &load;
                scope.spawn(move || load.client(server, name));
            }
            let _stop = Stop(&load);
            load.await_more(400);
            work(&load);
        });
    }
}

/// Makes a server a replica that receives effects at once: for up to a second after a full synchronisation the primary holds them
/// back.
fn follow(replica: &Server, primary: &Server) {
    replica.replica_of(primary);
    primary.connection().run("SET flows 1");
    replica.wait_in_sync(primary);
    primary.connection().run("DEL flows");
    replica.wait_in_sync(primary);
}

fn attach(replica: &Server, primary: &Server) {
    replica
        .connection()
        .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    await_until("the link is up", PATIENCE, || {
        let state = replica.info("replication");
        state.get("master_link_status") == Some("up")
            && state.get("master_port") == Some(&primary.port().to_string())
    });
}

/// Sets whether full synchronisations go from socket to socket or by a file.
fn transfer(builder: ServerBuilder, diskless: bool) -> ServerBuilder {
    let word = if diskless { "yes" } else { "no" };
    let load = if diskless { "swapdb" } else { "disabled" };
    builder
        .config("repl-diskless-sync", word)
        .config("repl-diskless-load", load)
}

/// A replica, a replica of the replica and the AOF of each all agree with the primary.
#[test]
fn a_replica_agrees_after_any_traffic() {
    let primary = Server::builder()
        .config("dlock.claim-window-ms", 30)
        .start();
    let aof = || {
        Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "always")
    };
    let mut replica = aof().start();
    let end = aof().start();
    replica.replica_of(&primary);
    end.replica_of(&replica);
    for seed in 1..=3 {
        random_traffic(&primary, seed, 120);
        assert_same(&primary, &replica);
        end.wait_in_sync(&replica);
        assert_same(&primary, &replica);
        await_until("the replica's replica agrees", PATIENCE, || {
            kept_of_all(&primary) == kept_of_all(&end)
        });
    }
    // Traffic without waits would have shown little.
    let stats = primary.info("dlock");
    assert!(stats.number::<u64>("dlock_grants_waited_total") > 0);

    // A replica that restarts reads its own AOF, and finds its earlier locks there.
    let port = primary.port();
    replica.connection().run("CONFIG REWRITE");
    await_short_ends(&primary);
    replica.wait_in_sync(&primary);
    primary.freeze();
    // Reading the last effects takes one pass.
    kept_of_all(&replica);
    let before = kept_of_all(&replica);
    replica.kill9();
    let config = std::fs::read_to_string(replica.config_path()).expect("the file is there");
    assert!(
        config.contains(&format!("replicaof 127.0.0.1 {port}")),
        "{config}"
    );
    replica.restart();
    assert_eq!(kept_of_all(&replica), before);
    primary.thaw();
    replica.wait_in_sync(&primary);
    random_traffic(&primary, 4, 60);
    assert_same(&primary, &replica);
    for server in [&primary, &replica, &end] {
        assert_sound(server);
    }
}

#[test]
fn a_replica_attached_in_the_middle_of_random_traffic_agrees() {
    for diskless in [true, false] {
        let primary = transfer(Server::builder(), diskless)
            .config("dlock.claim-window-ms", 30)
            .start();
        let replica = transfer(Server::builder(), diskless).start();
        thread::scope(|scope| {
            scope.spawn(|| random_traffic(&primary, 10, 150));
            for _ in 0..3 {
                attach(&replica, &primary);
                replica.promote();
            }
            attach(&replica, &primary);
        });
        assert_same(&primary, &replica);
        assert_sound(&primary);
        assert_sound(&replica);
    }
}

#[test]
fn a_replica_tells_and_changes_nothing() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut c = primary.connection();
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    c.run("DLOCK.FAIRACQUIRE k carol CLAIM 600000");
    replica.wait_in_sync(&primary);

    let mut r = replica.connection();
    let before = kept(&mut r, "k");
    for line in [
        "DLOCK.ACQUIRE k alice",
        "DLOCK.ACQUIRE free alice",
        "DLOCK.ACQUIRE k bob BLOCK 0",
        "DLOCK.FAIRACQUIRE k bob BLOCK 10",
        "DLOCK.RENEW k alice",
        "DLOCK.RELEASE k alice",
        "DLOCK.FORCERELEASE k",
        "DLOCK.CANCEL k bob",
    ] {
        assert!(r.refusal(line).starts_with("READONLY"), "{line}");
    }
    let (held, holds, left): (u64, u64, u64) = r.ask("DLOCK.HELD k alice");
    assert!(held == token && holds == 1 && left > 0);
    assert_eq!(r.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
    assert!(r.refusal("DLOCK.CHECK k 1").starts_with("FENCED"));
    assert_eq!(position(&mut r, "k", "bob"), Some(0));
    assert_eq!(position(&mut r, "k", "carol"), Some(1));
    let info: HashMap<String, Value> = r.ask("DLOCK.INFO k");
    assert_eq!(info["held"], Value::Int(1));
    assert_eq!(info["queued"], Value::Int(2));
    let queue: Vec<HashMap<String, Value>> =
        from_redis_value(&info["queue"]).expect("an array of maps");
    let owners: Vec<String> = queue
        .iter()
        .map(|place| from_redis_value(&place["owner"]).expect("a text"))
        .collect();
    assert_eq!(owners, ["bob", "carol"]);
    assert_eq!(kept(&mut r, "k"), before);

    // A writable replica is still a replica.
    r.run("CONFIG SET replica-read-only no");
    for line in [
        "DLOCK.ACQUIRE free alice",
        "DLOCK.RELEASE k alice",
        "DLOCK.CANCEL k bob",
    ] {
        assert!(r.refusal(line).starts_with("READONLY"), "{line}");
    }
    r.refusal("DLOCK.APPLY k 1");
    assert_eq!(kept(&mut r, "k"), before);
    assert_eq!(r.ask::<u64>("EXISTS free"), 0);
}

/// A lease runs out while the primary cannot report it: the replica does not end it.
#[test]
fn a_replica_ends_no_lease() {
    let primary = Server::builder().config("dlock.claim-window-ms", 1).start();
    let replica = Server::start();
    follow(&replica, &primary);
    let mut c = primary.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    at_once(
        &primary,
        [
            "DLOCK.RENEW k alice 500",
            "DLOCK.FAIRACQUIRE k bob CLAIM 400",
            "CLIENT PAUSE 600000 WRITE",
        ],
    );
    replica.wait_in_sync(&primary);
    primary.freeze();
    let mut r = replica.connection();
    let before = kept(&mut r, "k");
    await_until("the lease and the window are over", PATIENCE, || {
        r.ask::<Option<Vec<u64>>>("DLOCK.HELD k alice").is_none()
    });
    assert_eq!(kept(&mut r, "k"), before);
    assert_eq!(position(&mut r, "k", "bob"), Some(0));
    primary.thaw();
    c.run("CLIENT UNPAUSE");
    await_until("the primary has ended both", PATIENCE, || {
        r.ask::<u64>("EXISTS k") == 0
    });
}

/// Returns the places of a lock in INFO: the owner, the kind of place, the milliseconds left.
fn queue(connection: &mut Wire, key: &str) -> Vec<(String, String, Option<u64>)> {
    places(&connection.ask(&format!("DLOCK.INFO {key}")))
}

fn places(info: &Value) -> Vec<(String, String, Option<u64>)> {
    let info: HashMap<String, Value> = from_redis_value(info).expect("a map");
    let places: Vec<HashMap<String, Value>> =
        from_redis_value(&info["queue"]).expect("an array of maps");
    let text = |value: &Value| from_redis_value(value).expect("a text");
    places
        .iter()
        .map(|place| {
            let left = from_redis_value(&place["left-ms"]).expect("a number or null");
            (text(&place["owner"]), text(&place["kind"]), left)
        })
        .collect()
}

/// Returns the time in microseconds, as in tokens.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("a clock past 1970").as_micros();
    u64::try_from(since).expect("a year before 500000")
}

/// The new primary watches the leases that it received, keeps every ticket for a window from now, and continues to grant.
#[test]
fn a_promoted_replica_takes_over() {
    let primary = Server::start();
    let replica = Server::builder()
        .config("dlock.claim-window-ms", 1200)
        .start();
    let mut c = primary.connection();
    // The full synchronisation brings one half, effects the other.
    c.run("DLOCK.ACQUIRE ends alice 600000");
    c.run("DLOCK.FAIRACQUIRE ends bob CLAIM 600000");
    let (token, _): Grant = c.ask("DLOCK.ACQUIRE stays alice 600000");
    let _waits = Blocked::start(&primary, "DLOCK.FAIRACQUIRE stays waits 600000 BLOCK 0");
    follow(&replica, &primary);
    c.run("DLOCK.FAIRACQUIRE stays polls CLAIM 600000");
    c.run("DLOCK.FAIRACQUIRE stays long CLAIM 600000");
    c.run("DLOCK.ACQUIRE also alice 600000");
    c.run("DLOCK.FAIRACQUIRE also bob CLAIM 600000");
    c.run("DLOCK.ACQUIRE alone alice 600000");
    // The primary ends none of these itself.
    at_once(
        &primary,
        [
            "DLOCK.RENEW ends alice 2500",
            "DLOCK.RENEW also alice 1500",
            "DLOCK.RENEW alone alice 1500",
            "DLOCK.FAIRACQUIRE stays polls CLAIM 1000",
            "DLOCK.FAIRACQUIRE also bob CLAIM 1000",
            "CLIENT PAUSE 600000 WRITE",
        ],
    );
    replica.wait_in_sync(&primary);
    primary.freeze();
    let (promoted, promoted_us) = (Instant::now(), now_us());
    let [_, info] = at_once(&replica, ["REPLICAOF NO ONE", "DLOCK.INFO stays"]);

    let mut r = replica.connection();
    let kinds: Vec<_> = places(&info)
        .into_iter()
        .map(|(owner, kind, _)| (owner, kind))
        .collect();
    assert_eq!(
        kinds,
        ["waits", "polls", "long"].map(|owner| (owner.to_owned(), "absent".to_owned()))
    );
    // The windows begin with the server's first scan.
    await_until("the windows have begun", PATIENCE, || {
        let all = queue(&mut r, "stays");
        let begun = all.iter().all(|(_, _, left)| left.is_some());
        // A millisecond for each of the two clocks.
        let spent = u64::try_from(promoted.elapsed().as_millis()).expect("not that long") + 2;
        for (owner, _, left) in all {
            let window = if owner == "long" { 600_000 } else { 1_200 };
            let left = left.unwrap_or(window);
            assert!(
                left <= window && left + spent >= window,
                "{owner}: {left} of {window} ms left"
            );
        }
        begun
    });
    assert_eq!(r.ask::<String>(&format!("DLOCK.CHECK stays {token}")), "OK");

    // New waiters wait behind the tickets.
    let dave = Blocked::send(&replica, "DLOCK.ACQUIRE also dave 600000 BLOCK 0");
    let erin = Blocked::start(&replica, "DLOCK.ACQUIRE stays erin 600000 BLOCK 0");
    // The lease ends, and so does the window of the ticket before him, which began with the promotion. A token is the instant of
    // its grant.
    let (next, _): Grant = dave.reply();
    assert!(
        next > token && next >= promoted_us + 1_199_000,
        "{next} {promoted_us}"
    );
    await_until(
        "the lease of a lock with a ticket has ended",
        PATIENCE,
        || r.ask::<Option<Vec<u64>>>("DLOCK.HELD ends alice").is_none(),
    );
    assert_eq!(r.ask::<Grant>("DLOCK.FAIRACQUIRE ends bob 600000").1, 1);
    await_until("nobody holds what nobody waits for", PATIENCE, || {
        r.ask::<u64>("EXISTS alone") == 0
    });

    // Windows that have run out are no obstacle, the others are.
    await_until("the short windows are over", PATIENCE, || {
        position(&mut r, "stays", "erin") == Some(1)
    });
    assert_eq!(r.ask::<u64>("DLOCK.RELEASE stays alice"), 0);
    assert!(erin.is_blocked(&replica));
    assert_eq!(r.ask::<u64>("DLOCK.CANCEL stays long"), 1);
    erin.reply::<Grant>();
    primary.thaw();
    assert_sound(&replica);
}

/// The owner of a ticket finds it again at the new primary, without having been passed.
#[test]
fn a_ticket_is_found_again_after_a_promotion() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut c = primary.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let before: Vec<_> = ["bob", "carol"]
        .iter()
        .map(|owner| {
            Blocked::start(
                &primary,
                &format!("DLOCK.FAIRACQUIRE k {owner} 600000 BLOCK 0"),
            )
        })
        .collect();
    replica.wait_in_sync(&primary);
    replica.promote();
    let carol = Blocked::start(&replica, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0");
    let bob = Blocked::start(&replica, "DLOCK.FAIRACQUIRE k bob 600000 BLOCK 0");
    let mut r = replica.connection();
    let order = [
        ("bob".to_owned(), "ticket".to_owned(), None),
        ("carol".to_owned(), "ticket".to_owned(), None),
    ];
    assert_eq!(queue(&mut r, "k"), order);
    r.run("DLOCK.RELEASE k alice");
    bob.reply::<Grant>();
    assert!(carol.is_blocked(&replica));
    r.run("DLOCK.RELEASE k bob");
    carol.reply::<Grant>();
    drop(before);
    assert_sound(&primary);
    assert_sound(&replica);
}

/// A primary that becomes a replica unblocks its waiters but keeps their tickets.
#[test]
fn a_demoted_primary_drops_no_ticket() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k ticket 600000 BLOCK 0");
    let claimed = Blocked::start(
        &server,
        "DLOCK.FAIRACQUIRE k claimed 600000 BLOCK 0 CLAIM 100",
    );
    let waiter = Blocked::start(&server, "DLOCK.ACQUIRE k waiter 600000 BLOCK 0");
    let before = kept(&mut c, "k");
    // No primary answers there: it keeps its own data.
    let nobody = Server::start();
    nobody.freeze();
    c.run(&format!("REPLICAOF 127.0.0.1 {}", nobody.port()));
    for blocked in [&ticket, &claimed, &waiter] {
        let words = blocked.last_words();
        assert!(
            matches!(&words[..], [Err(error)] if error.starts_with("UNBLOCKED")),
            "{words:?}"
        );
    }
    // Its timer runs meanwhile.
    let until = Instant::now() + Duration::from_millis(150);
    await_until("the windows are over", PATIENCE, || Instant::now() > until);
    assert_eq!(kept(&mut c, "k"), before);
    let owners: Vec<_> = queue(&mut c, "k")
        .into_iter()
        .map(|(owner, ..)| owner)
        .collect();
    assert_eq!(owners, ["ticket", "claimed"]);
    assert_sound(&server);

    // And back: they are absent, and have their windows.
    c.run("REPLICAOF NO ONE");
    let kinds: Vec<_> = queue(&mut c, "k")
        .into_iter()
        .map(|(owner, kind, _)| (owner, kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("ticket".into(), "absent".into()),
            ("claimed".into(), "absent".into())
        ]
    );
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k ticket 600000 BLOCK 0");
    c.run("DLOCK.RELEASE k alice");
    ticket.reply::<Grant>();
    assert_sound(&server);
}

/// A primary is demoted to a replica of its own replica: the new primary's state replaces everything that it kept.
#[test]
fn primary_and_replica_change_places() {
    let one = Server::builder()
        .config("dlock.claim-window-ms", 30)
        .start();
    let two = Server::builder()
        .config("dlock.claim-window-ms", 30)
        .start();
    two.replica_of(&one);
    let (mut primary, mut replica) = (&one, &two);
    for round in 0..4 {
        random_traffic(primary, 20 + round, 30);
        primary.connection().run("DLOCK.ACQUIRE k alice 600000");
        let _waits = Blocked::start(primary, "DLOCK.FAIRACQUIRE k waits 600000 BLOCK 0");
        let _too = Blocked::start(primary, "DLOCK.ACQUIRE k too 600000 BLOCK 0");
        replica.wait_in_sync(primary);
        replica.promote();
        primary.replica_of(replica);
        assert_same(replica, primary);
        assert_sound(primary);
        assert_sound(replica);
        replica.connection().run("DEL k");
        (primary, replica) = (replica, primary);
    }
}

/// The primary writes no effects while it is sure that it has no listener. A listener that comes in the middle of the heaviest
/// traffic must miss none.
#[test]
fn a_listener_that_comes_under_load_misses_nothing() {
    for diskless in [true, false] {
        for _ in 0..3 {
            let primary = transfer(Server::builder(), diskless).start();
            let replica = transfer(Server::builder(), diskless).start();
            Load::during(&primary, |load| {
                attach(&replica, &primary);
                load.await_more(400);
            });
            assert_same_digest(&primary, &replica);
            assert_sound(&replica);
        }
    }
}

/// A listener leaves until the primary no longer writes effects, and comes back; again and again.
#[test]
fn listeners_that_come_and_go_under_load_miss_nothing() {
    let primary = Server::builder().config("repl-backlog-ttl", 1).start();
    let (one, two) = (Server::start(), Server::start());
    Load::during(&primary, |load| {
        for round in 0..2 {
            attach(&one, &primary);
            load.await_more(400);
            one.promote();
            // Gone at once, another one there: the backlog for the first is still kept.
            attach(&two, &primary);
            load.await_more(400);
            two.promote();
            load.rest(|| {
                await_until("the backlog is given up", PATIENCE, || {
                    primary
                        .info("replication")
                        .number::<u64>("repl_backlog_active")
                        == 0
                });
                // The module checks for listeners once a second: in the first round it may or may not write effects; in the
                // second it does not.
                let until = Instant::now() + Duration::from_millis(round * 1_050);
                await_until("the module has looked", PATIENCE, || Instant::now() > until);
            });
            load.await_more(400);
        }
        attach(&one, &primary);
        load.await_more(400);
    });
    assert_same_digest(&primary, &one);
    for server in [&primary, &one, &two] {
        assert_sound(server);
    }
}

/// Saves do not count as listeners, but they fork like a replica that attaches.
#[test]
fn a_listener_that_comes_during_a_save_misses_nothing() {
    let primary = Server::builder()
        .config("rdb-key-save-delay", 20)
        .config("repl-diskless-sync", "no")
        .start();
    let replica = Server::start();
    Load::during(&primary, |load| {
        primary.connection().run("BGSAVE");
        load.await_more(400);
        attach(&replica, &primary);
        load.await_more(400);
    });
    assert_same_digest(&primary, &replica);
    assert_sound(&primary);
}

/// Restarts the server after a crash and asserts that its state is unchanged.
#[track_caller]
fn assert_aof_is_complete(server: &mut Server) {
    let mut c = server.connection();
    server.await_aof();
    c.run("CONFIG REWRITE");
    let before = digest(server);
    server.kill9();
    server.restart();
    assert_eq!(digest(server), before);
    assert_sound(server);
}

#[test]
fn an_aof_that_is_switched_on_under_load_misses_nothing() {
    for preamble in ["yes", "no"] {
        for waits_for_a_save in [false, true] {
            let mut server = Server::builder()
                .config("aof-use-rdb-preamble", preamble)
                .start();
            Load::during(&server, |load| {
                let mut c = server.connection();
                if waits_for_a_save {
                    c.run("BGSAVE");
                }
                c.run("CONFIG SET appendonly yes");
                load.await_more(400);
            });
            assert_aof_is_complete(&mut server);
        }
    }
}

#[test]
fn an_aof_that_is_switched_on_and_off_under_load_misses_nothing() {
    let mut server = Server::start();
    Load::during(&server, |load| {
        let mut c = server.connection();
        for _ in 0..4 {
            c.run("CONFIG SET appendonly yes");
            load.await_more(400);
            c.run("CONFIG SET appendonly no");
            load.await_more(400);
        }
        c.run("CONFIG SET appendonly yes");
        load.await_more(400);
    });
    assert_aof_is_complete(&mut server);
}

/// A change in this transaction, before there was a listener, is in the file once.
#[test]
fn an_aof_that_is_switched_on_in_a_transaction_misses_nothing() {
    let mut server = Server::start();
    let mut c = server.connection();
    // The first check, which finds no listener, comes with the first iterations of the event loop.
    let heartbeat = Instant::now() + Duration::from_millis(50);
    await_until("the server has looked for listeners", PATIENCE, || {
        Instant::now() > heartbeat
    });
    c.run("DLOCK.ACQUIRE before alice 600000");
    for line in [
        "MULTI",
        "DLOCK.ACQUIRE within alice 600000",
        "DLOCK.ACQUIRE before alice 600000",
        "CONFIG SET appendonly yes",
        "EXEC",
    ] {
        c.run(line);
    }
    c.run("DLOCK.ACQUIRE after alice 600000");
    assert_aof_is_complete(&mut server);
    let (_, holds, _): (u64, u64, u64) = server.connection().ask("DLOCK.HELD before alice");
    assert_eq!(holds, 2);
}

#[test]
fn a_dropped_link_is_taken_up_where_it_was() {
    let primary = Server::builder()
        .config("repl-backlog-size", "64mb")
        .start();
    let replica = Server::start();
    attach(&replica, &primary);
    Load::during(&primary, |load| {
        for _ in 0..5 {
            let (before, full) = syncs(&primary);
            primary.connection().run("CLIENT KILL TYPE replica");
            load.await_more(400);
            await_until("the link is taken up", PATIENCE, || {
                let now = syncs(&primary);
                assert_eq!(now.1, full, "a partial synchronisation should do");
                now.0 > before
            });
            load.await_more(400);
        }
    });
    assert_same_digest(&primary, &replica);
    assert_sound(&replica);
}

/// Returns the numbers of partial and full synchronisations so far.
fn syncs(server: &Server) -> (u64, u64) {
    let stats = server.info("stats");
    (stats.number("sync_partial_ok"), stats.number("sync_full"))
}

#[test]
fn a_replica_that_starts_again_catches_up() {
    let primary = Server::builder()
        .config("repl-backlog-size", "64mb")
        .start();
    let mut replica = Server::builder().config("save", "3600 1000000").start();
    replica.replica_of(&primary);
    let mut c = primary.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    replica.wait_in_sync(&primary);
    replica.connection().run("CONFIG REWRITE");
    let (before, _) = syncs(&primary);
    Load::during(&primary, |load| {
        replica.stop();
        load.await_more(400);
        replica.restart();
        load.await_more(400);
    });
    assert_same_digest(&primary, &replica);
    assert!(syncs(&primary).0 > before);
    let mut r = replica.connection();
    assert_eq!(kept(&mut r, "k"), kept(&mut c, "k"));
    assert_eq!(position(&mut r, "k", "bob"), Some(0));
}

/// Tokens continue to rise, whichever server makes them.
#[test]
fn tokens_rise_over_promotions() {
    let (one, two) = (Server::start(), Server::start());
    let mut last = 0;
    let mut next = |server: &Server| {
        let (token, _): Grant = server
            .connection()
            .ask("DLOCK.ACQUIRE k alice 600000 HOLDS 1");
        assert!(token > last, "{token} after {last}");
        last = token;
        server.connection().run("DLOCK.RELEASE k alice");
    };
    next(&one);
    two.replica_of(&one);
    next(&one);
    two.wait_in_sync(&one);
    two.promote();
    next(&two);
    one.replica_of(&two);
    next(&two);
    one.wait_in_sync(&two);
    one.promote();
    next(&one);
}
