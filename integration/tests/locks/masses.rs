//! Very many at once: the cost grows with their number and no faster, and the work is done in steps that delay no other client.

use std::time::{Duration, Instant};

use dlock_harness::redis::{self, cmd, Value};
use dlock_harness::{assert_sound, await_until, command, Ask, Server, Subscriber, Wire, PATIENCE};

/// Returns how long it takes to take `count` locks in one command and to give them back.
fn take_together(c: &mut Wire, count: usize) -> Duration {
    let keys: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    let began = Instant::now();
    for name in ["DLOCK.MACQUIRE", "DLOCK.MRELEASE"] {
        let mut command = cmd(name);
        command.arg(count).arg(&keys).arg("owner");
        c.ask_command::<Vec<u64>>(&command);
    }
    began.elapsed()
}

/// If each key were compared with all others, eight times as many would take some thirty times as long.
#[test]
fn a_key_costs_the_same_among_many() {
    const FEW: usize = 128;
    const TIMES: u32 = 8;
    let server = Server::start();
    let mut c = server.connection();
    // Alternately: other load of the machine affects both, and never makes either faster.
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for round in 0..300 {
        few = few.min(take_together(&mut c, FEW));
        many = many.min(take_together(&mut c, FEW * TIMES as usize));
        if round >= 10 && many < few * TIMES * 2 {
            return;
        }
    }
    panic!("{many:?} against {few:?}");
}

/// Sends all lines, many at a time.
#[track_caller]
fn send_all(c: &mut Wire, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    while lines.peek().is_some() {
        let mut pipe = redis::pipe();
        for line in lines.by_ref().take(1_000) {
            pipe.add_command(command(&line)).ignore();
        }
        pipe.query::<()>(c).expect("no refusal");
    }
}

/// Makes `locks` locks that the module watches: each has two holders.
fn fill(c: &mut Wire, locks: usize) {
    let holders = (0..locks).flat_map(|at| [(at, "ann"), (at, "ben")]);
    send_all(
        c,
        holders.map(|(at, owner)| format!("DLOCK.ACQUIRE k{at} {owner} 3600000 SHARED")),
    );
}

fn keys(locks: usize) -> Vec<String> {
    (0..locks).map(|at| format!("k{at}")).collect()
}

/// Returns how long the module kept a server busy by itself at most, in milliseconds; with `commands`, also the longest command.
fn longest(server: &Server, commands: bool) -> u64 {
    let latest: Vec<Vec<Value>> = server.connection().ask("LATENCY LATEST");
    let took = latest.iter().filter_map(|event| {
        let name: String = redis::from_redis_value(&event[0]).ok()?;
        let counts = name == "dlock-event" || (commands && name.ends_with("command"));
        counts.then(|| redis::from_redis_value::<u64>(&event[3]).expect("milliseconds"))
    });
    took.max().unwrap_or(0)
}

/// Returns the processor time that the server's main thread has used, in milliseconds: a busy machine lengthens it little.
fn processor_ms(server: &Server) -> u64 {
    let info = server.info("cpu");
    let fields = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"];
    let seconds = fields.map(|field| info.number::<f64>(field));
    (seconds.iter().sum::<f64>() * 1_000.0) as u64
}

/// An event that concerns all locks of a primary and its replica.
struct Upheaval {
    what: &'static str,
    /// Whether the replica follows before it.
    follows: bool,
    /// Whether commands also count: the server itself must make none of them long.
    commands: bool,
    /// How long the module may keep a server busy at a time.
    most_ms: u64,
    /// The number of locks that both have afterwards, of `locks` and the tied one.
    leaves: fn(usize) -> usize,
    does: fn(&Server, &Server, usize),
}

const UPHEAVALS: [Upheaval; 7] = [
    Upheaval {
        what: "a full resynchronisation",
        follows: false,
        commands: true,
        most_ms: 16,
        leaves: |locks| locks + 1,
        does: |primary, replica, _| replica.replica_of(primary),
    },
    Upheaval {
        what: "promotion",
        follows: true,
        commands: true,
        most_ms: 16,
        leaves: |locks| locks + 1,
        does: |_, replica, _| replica.promote(),
    },
    Upheaval {
        what: "demotion",
        follows: true,
        commands: true,
        most_ms: 16,
        leaves: |locks| locks + 1,
        does: |primary, _, _| primary.connection().run("REPLICAOF 127.0.0.1 1"),
    },
    Upheaval {
        what: "a setting",
        follows: true,
        commands: true,
        most_ms: 16,
        leaves: |locks| locks + 1,
        does: |primary, _, _| primary.connection().run("CONFIG SET dlock.max-queue 50000"),
    },
    Upheaval {
        what: "FLUSHALL",
        follows: true,
        commands: false,
        most_ms: 16,
        leaves: |_| 0,
        does: |primary, _, _| primary.connection().run("FLUSHALL"),
    },
    Upheaval {
        what: "SWAPDB",
        follows: true,
        commands: true,
        most_ms: 16,
        leaves: |locks| locks + 1,
        does: |primary, _, _| primary.connection().run("SWAPDB 0 1"),
    },
    Upheaval {
        what: "DEL of all",
        follows: true,
        commands: false,
        most_ms: 100,
        leaves: |_| 1,
        does: |primary, _, locks| {
            let deleted: usize = primary
                .connection()
                .ask_command(cmd("DEL").arg(keys(locks)));
            assert_eq!(deleted, locks);
        },
    },
];

impl Upheaval {
    /// Performs the event with `locks` locks. Returns how long the primary and the replica were kept busy at most.
    fn happen(&self, locks: usize) -> [u64; 2] {
        let (primary, replica) = (Server::start(), Server::start());
        let mut c = primary.connection();
        fill(&mut c, locks);
        // With a tied hold the module has more to maintain.
        let mut tied = primary.connection_in(2);
        tied.run("DLOCK.ACQUIRE tied ann 3600000 EPHEMERAL");
        if self.follows {
            replica.replica_of(&primary);
        }
        for server in [&primary, &replica] {
            server
                .connection()
                .run("CONFIG SET latency-monitor-threshold 1");
        }
        (self.does)(&primary, &replica, locks);
        for server in [&primary, &replica] {
            await_until(self.what, PATIENCE, || {
                server.info("dlock").number::<usize>("dlock_locks") == (self.leaves)(locks)
            });
            // The module's work comes within iterations of the event loop; commands keep the loop turning.
            let mut c = server.connection();
            (0..200).for_each(|_| c.run("PING"));
        }
        [&primary, &replica].map(|server| longest(server, self.commands))
    }
}

/// An event that concerns all locks marks them at once, within 50 ms for 100,000 locks; the rest goes in steps. A command that
/// removes them one by one has the ends of their holds counted and reported in one event: about as long as the command itself
/// took.
#[test]
fn what_concerns_all_locks_stalls_nobody() {
    const LOCKS: usize = 32_000;
    for upheaval in &UPHEAVALS {
        // Other load of the machine may lengthen any run, and shortens none.
        let mut shortest = [u64::MAX; 2];
        await_until(&format!("{} is short", upheaval.what), PATIENCE, || {
            let took = upheaval.happen(LOCKS);
            println!("{}: {LOCKS} locks, {took:?} ms", upheaval.what);
            shortest = [shortest[0].min(took[0]), shortest[1].min(took[1])];
            shortest.into_iter().all(|took| took <= upheaval.most_ms)
        });
    }
}

/// Queues `tickets` tickets of one lock behind a holder.
fn queue_up(c: &mut Wire, tickets: usize) {
    c.run("DLOCK.ACQUIRE k holder 3600000");
    send_all(
        c,
        (0..tickets).map(|at| format!("DLOCK.FAIRACQUIRE k owner-{at} 3600000 CLAIM 600000")),
    );
}

/// Queues `tickets` tickets of one lock, and has as many clients wait at another name.
fn queue_up_at_both(c: &mut Wire, tickets: usize) {
    queue_up(c, tickets);
    c.run("DLOCK.ACQUIRE j holder 3600000");
    c.run("DLOCK.SESSION j s 600000");
    send_all(
        c,
        (0..tickets).map(|at| format!("DLOCK.FAIRACQUIRE j waiter-{at} 3600000 BLOCK 0 IN s")),
    );
}

/// Gives one lock `holders` holders.
fn crowd(c: &mut Wire, holders: usize) {
    send_all(
        c,
        (0..holders).map(|at| format!("DLOCK.ACQUIRE k owner-{at} 3600000 SHARED")),
    );
}

/// Makes a lock with a number of tickets or holders.
type Make = fn(&mut Wire, usize);

/// An event of one lock with very many tickets or holders, the function that fills it, and the milliseconds of processor time
/// that it may take with a third of what the caps allow.
const GIANTS: [(&str, Make, u64); 9] = [
    ("RENAME k j", queue_up_at_both, 50),
    ("RENAME k j", queue_up, 50),
    ("SWAPDB 0 1", queue_up, 50),
    ("MOVE k 1", queue_up, 50),
    ("DEL k", queue_up, 7),
    ("DLOCK.FORCERELEASE k", crowd, 24),
    ("DLOCK.INFO k", crowd, 12),
    ("DEL k", crowd, 12),
    ("RENAME k j", crowd, 24),
];

#[test]
fn one_lock_of_very_many_stops_nobody() {
    const MANY: usize = 33_000;
    for (what, fill, bound) in GIANTS {
        // Other load of the machine may lengthen any run, and for a while all.
        await_until(&format!("{what} is short"), PATIENCE, || {
            let server = Server::start();
            let mut c = server.connection();
            fill(&mut c, MANY);
            c.run("CONFIG SET latency-monitor-threshold 1");
            let before = processor_ms(&server);
            c.run(what);
            let took = processor_ms(&server) - before;
            // The module's work comes within iterations of the event loop; commands keep the loop turning.
            (0..200).for_each(|_| c.run("PING"));
            let longest = longest(&server, false).max(took);
            println!("{what}: {longest} ms");
            assert_sound(&server);
            longest <= bound
        });
    }
}

/// The ends of very many holders of one lock are reported one by one, and before later events.
#[test]
fn the_ends_of_a_crowd_are_told_in_order() {
    const HOLDERS: usize = 5_000;
    let server = Server::start();
    let mut c = server.connection();
    crowd(&mut c, HOLDERS);
    let messages = Subscriber::patterns(&server, &["__dlock@0__:*"]);
    assert_eq!(c.ask::<usize>("DLOCK.FORCERELEASE k"), HOLDERS);
    c.run("DLOCK.ACQUIRE k next");
    c.run("DLOCK.RELEASE k next");
    let word = |payload: &str| payload.split(' ').next().unwrap_or_default().to_owned();
    for _ in 0..HOLDERS {
        assert_eq!(word(&messages.message().payload), "forced");
    }
    assert_eq!(word(&messages.message().payload), "released");
    assert_sound(&server);
}

/// The end of a hold is reported before the next one's beginning and end, however many other events are pending.
#[test]
fn a_mass_is_told_in_order() {
    const LOCKS: usize = 5_000;
    let server = Server::start();
    let mut c = server.connection();
    fill(&mut c, LOCKS);
    let last = format!("k{}", LOCKS - 1);
    let messages = Subscriber::patterns(&server, &["__dlock@0__:*"]);
    let mut all = redis::pipe();
    all.atomic().cmd("DEL").arg(keys(LOCKS));
    for line in [
        format!("DLOCK.ACQUIRE {last} cyd"),
        format!("DLOCK.RELEASE {last} cyd"),
    ] {
        all.add_command(command(&line));
    }
    let replies: Vec<Value> = all.query(&mut c).expect("a transaction");
    assert_eq!(replies[0], Value::Int(LOCKS as i64));
    assert_eq!(replies[2], Value::Int(0));
    let channel = format!("__dlock@0__:{last}");
    let mut told = Vec::new();
    for _ in 0..2 * LOCKS + 1 {
        let message = messages.message();
        if message.channel == channel {
            let word = message
                .payload
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned();
            told.push(word);
        }
    }
    assert_eq!(told, ["removed", "removed", "released"]);
    let removed = server.info("dlock").number::<usize>("dlock_removed_total");
    assert_eq!(removed, 2 * LOCKS);
    assert_sound(&server);
}

/// Whatever removes it, its memory is freed in steps.
#[test]
fn a_large_value_is_freed_in_steps() {
    const HOLDERS: usize = 50_000;
    let server = Server::start();
    let mut c = server.connection();
    c.run("CONFIG SET latency-monitor-threshold 1");
    c.run("SET other 1");
    let used = || server.info("memory").number::<u64>("used_memory");
    for removal in ["UNLINK k", "DEL k", "SET k x", "FLUSHALL"] {
        let before = used();
        send_all(
            &mut c,
            (0..HOLDERS).map(|at| format!("DLOCK.ACQUIRE k owner-{at} 3600000 SHARED")),
        );
        let full = used();
        assert!(full > before + 5_000_000, "{before} and {full}");
        c.run(removal);
        await_until("its memory is free again", PATIENCE, || {
            used() < before + (full - before) / 4
        });
        c.run("FLUSHALL");
    }
    assert_eq!(server.info("dlock").number::<u64>("dlock_locks"), 0);
    assert_sound(&server);
}

fn dump(c: &mut Wire, key: &str) -> Vec<u8> {
    c.ask(&format!("DUMP {key}"))
}

#[track_caller]
fn restored(c: &mut Wire, key: &str, payload: &[u8]) -> bool {
    let answer = c.answer(cmd("RESTORE").arg(key).arg(0).arg(payload));
    if let Err(error) = &answer {
        assert!(error.contains("Bad data format"), "{error}");
    }
    answer.is_ok()
}

/// RESTORE by a user respects the caps; values that the server loads by itself respected them before.
#[test]
fn restore_holds_to_the_caps() {
    let server = Server::start();
    let mut c = server.connection();
    for at in 0..5 {
        c.run(&format!("DLOCK.ACQUIRE shared o{at} 3600000 SHARED"));
        c.run(&format!("DLOCK.ACQUIRE queued o{at} 3600000 HOLDS 1"));
        c.run(&format!(
            "DLOCK.FAIRACQUIRE queued o{at} 3600000 CLAIM 600000"
        ));
    }
    let (shared, queued) = (dump(&mut c, "shared"), dump(&mut c, "queued"));
    for (cap, enough, payload) in [
        ("dlock.max-holders", 5, &shared),
        ("dlock.max-queue", 4, &queued),
        // Those at `queued` exist already.
        ("dlock.max-places", 8, &queued),
    ] {
        let before: String = c.ask("DEBUG DIGEST");
        let usual: Vec<String> = c.ask(&format!("CONFIG GET {cap}"));
        c.run(&format!("CONFIG SET {cap} {}", enough - 1));
        assert!(!restored(&mut c, "brought", payload), "{cap}");
        assert_eq!(c.ask::<String>("DEBUG DIGEST"), before, "{cap}");
        c.run("DEBUG RELOAD");
        assert_eq!(c.ask::<u64>("EXISTS shared queued"), 2, "{cap}");
        c.run(&format!("CONFIG SET {cap} {enough}"));
        assert!(restored(&mut c, "brought", payload), "{cap}");
        c.run("DEL brought");
        c.run(&format!("CONFIG SET {cap} {}", usual[1]));
    }
    // In one event, before any of them is counted.
    c.run("CONFIG SET dlock.max-places 8");
    let mut all = redis::pipe();
    all.atomic();
    for key in ["first", "second"] {
        all.cmd("RESTORE").arg(key).arg(0).arg(&queued);
    }
    let mut there = 0;
    await_until(
        "what was brought before takes no room any more",
        PATIENCE,
        || {
            let _ = all.query::<Vec<Value>>(&mut c);
            there = c.ask("EXISTS first second");
            there > 0
        },
    );
    assert_eq!(there, 1);
    assert_sound(&server);
}
