//! Locks after a restart.

use std::collections::HashMap;
use std::fs::{self, File};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_harness::dump::{restore, value, Frame};
use dlock_harness::redis::{cmd, from_redis_value, Value};
use dlock_harness::{
    assert_sound, at_once, await_until, command, kept, position, stat, Ask, Blocked, Grant, Server,
    ServerBuilder, Wire, PATIENCE,
};
use fastrand::Rng;

const HOUR_MS: u64 = 3_600_000;

fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since.as_micros() as u64
}

/// How a server stores its data, and what is done before it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A file of everything, written by SAVE; then the server is killed.
    Save,
    /// A file of everything, written by a child.
    BackgroundSave,
    /// A file of everything, written by SHUTDOWN.
    Shutdown,
    /// Every effect, as it happens.
    Aof,
    /// The effects, after a rewrite that wrote a file of everything.
    AofPreamble,
    /// The effects, after a rewrite that wrote effects.
    AofPlain,
}

const WAYS: [Way; 6] = [
    Way::Save,
    Way::BackgroundSave,
    Way::Shutdown,
    Way::Aof,
    Way::AofPreamble,
    Way::AofPlain,
];

impl Way {
    fn builder(self) -> ServerBuilder {
        let builder = Server::builder();
        match self {
            Way::Save | Way::BackgroundSave => builder,
            Way::Shutdown => builder.config("save", "3600 1000000"),
            Way::Aof | Way::AofPreamble | Way::AofPlain => {
                let preamble = if self == Way::AofPlain { "no" } else { "yes" };
                builder
                    .config("appendonly", "yes")
                    .config("aof-use-rdb-preamble", preamble)
            }
        }
    }

    /// Stores the data, and ends the server without another command.
    fn end(self, server: &mut Server) {
        let mut c = server.connection();
        match self {
            Way::Save => c.run("SAVE"),
            Way::BackgroundSave => {
                c.run("BGSAVE");
                await_until("it is saved", PATIENCE, || {
                    let state = server.info("persistence");
                    state.number::<u64>("rdb_bgsave_in_progress") == 0
                });
                let state = server.info("persistence");
                assert_eq!(state.text("rdb_last_bgsave_status"), "ok");
            }
            Way::Shutdown => {
                assert!(server.stop().success());
                return;
            }
            Way::Aof => {}
            Way::AofPreamble | Way::AofPlain => server.rewrite_aof(),
        }
        server.kill9();
    }

    fn restart(self, server: &mut Server) {
        self.end(server);
        server.restart();
    }
}

/// Returns owner, kind and milliseconds left of each place.
fn queue(c: &mut Wire, key: &str) -> Vec<(String, String, u64)> {
    let info: HashMap<String, Value> = c.ask(&format!("DLOCK.INFO {key}"));
    let Value::Array(places) = &info["queue"] else {
        panic!("no queue in {info:?}")
    };
    let place = |place: &Value| {
        let fields: HashMap<String, Value> = from_redis_value(place).expect("a map");
        let text = |name: &str| from_redis_value(&fields[name]).expect("a text");
        let left = from_redis_value(&fields["left-ms"]).unwrap_or(u64::MAX);
        (text("owner"), text("kind"), left)
    };
    places.iter().map(place).collect()
}

/// Locks of every sort, none of which ends soon, and without waiters.
const SORTS: [&str; 8] = [
    "plain",
    "counted",
    "shared",
    "semaphore",
    "budget",
    "queued",
    "reserved",
    "binary",
];

fn make_sorts(c: &mut Wire) {
    for line in [
        "DLOCK.ACQUIRE plain alice 600000",
        "DLOCK.ACQUIRE counted alice 600000 HOLDS 4294967295",
        "DLOCK.ACQUIRE shared alice 600000 SHARED",
        "DLOCK.ACQUIRE shared bob 700000 SHARED HOLDS 2",
        "DLOCK.ACQUIRE shared carol 500000 LIMIT 4294967294",
        "DLOCK.ACQUIRE semaphore alice 600000 LIMIT 2",
        "DLOCK.ACQUIRE semaphore bob 600000 LIMIT 3",
        "DLOCK.ACQUIRE budget alice 600000 LIMIT 16 PERMITS 8",
        "DLOCK.ACQUIRE budget bob 600000 LIMIT 16",
        "DLOCK.ACQUIRE queued alice 600000",
        "DLOCK.ACQUIRE reserved alice 600000",
    ] {
        c.ask::<Grant>(line);
    }
    for line in [
        "DLOCK.FAIRACQUIRE queued bob CLAIM 600000",
        "DLOCK.FAIRACQUIRE queued carol CLAIM 500000 SHARED",
        "DLOCK.FAIRACQUIRE queued dave CLAIM 400000 LIMIT 7",
        "DLOCK.FAIRACQUIRE budget carol CLAIM 600000 LIMIT 16 PERMITS 12",
        "DLOCK.FAIRACQUIRE reserved bob CLAIM 600000",
    ] {
        assert_eq!(c.try_ask(line), Ok(Value::Nil), "{line}");
    }
    c.run("DLOCK.RELEASE reserved alice");
    let every_byte: Vec<u8> = (0..=255).collect();
    c.ask_command::<Grant>(
        command("DLOCK.ACQUIRE binary")
            .arg(&every_byte)
            .arg("600000"),
    );
    let mut ticket = command("DLOCK.FAIRACQUIRE binary");
    ticket.arg(b"%s%n\0\r\n 1 x9 1:a").arg("CLAIM").arg(600_000);
    assert_eq!(c.answer(&ticket), Ok(Value::Nil));
}

fn kept_of_sorts(c: &mut Wire) -> Vec<(&'static str, (String, i64))> {
    SORTS.map(|key| (key, kept(c, key))).into()
}

/// Every sort of lock comes back unchanged, to the byte, and works as before.
#[test]
fn every_sort_of_lock_survives() {
    for way in WAYS {
        println!("{way:?}");
        let mut server = way.builder().start();
        let (mut c, mut other) = (server.connection(), server.connection_in(9));
        make_sorts(&mut c);
        other.run("DLOCK.ACQUIRE plain zoe 600000");
        let before = (kept_of_sorts(&mut c), kept(&mut other, "plain"));
        let (token, _, left): (u64, u32, u64) = c.ask("DLOCK.HELD plain alice");

        way.restart(&mut server);
        let (mut c, mut other) = (server.connection(), server.connection_in(9));
        // Once before the module's own events have come, and once after.
        assert_eq!(
            (kept_of_sorts(&mut c), kept(&mut other, "plain")),
            before,
            "{way:?}"
        );
        let after = c.ask::<(u64, u32, u64)>("DLOCK.HELD plain alice");
        assert_eq!((after.0, after.1), (token, 1));
        assert!(after.2 < left && left - after.2 < 60_000, "{after:?}");
        c.run(&format!("DLOCK.CHECK plain {token}"));
        assert!(c
            .refusal(&format!("DLOCK.CHECK plain {}", token + 1))
            .starts_with("FENCED"));
        assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD shared bob").1, 2);
        assert_eq!(position(&mut c, "queued", "dave"), Some(2));
        assert_eq!(position(&mut c, "reserved", "bob"), Some(0));
        assert_eq!(
            c.try_ask("DLOCK.ACQUIRE plain bob"),
            Ok(Value::Nil),
            "it is taken"
        );
        assert_eq!(
            c.try_ask("DLOCK.ACQUIRE reserved eve"),
            Ok(Value::Nil),
            "it is kept for bob"
        );
        assert_eq!(
            (kept_of_sorts(&mut c), kept(&mut other, "plain")),
            before,
            "{way:?}"
        );

        // And the locks still work.
        assert_eq!(
            c.ask::<Grant>("DLOCK.ACQUIRE plain alice 600000"),
            (token, 2)
        );
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE plain alice HOLDS 0"), 0);
        assert!(c
            .refusal("DLOCK.ACQUIRE counted alice")
            .starts_with("ERR the hold count"));
        c.run("DLOCK.RELEASE queued alice");
        let bob: Grant = c.ask("DLOCK.FAIRACQUIRE queued bob 600000");
        assert!(bob.0 > token);
        c.run("DLOCK.RELEASE queued bob");
        // Shared requests are granted together.
        c.ask::<Grant>("DLOCK.FAIRACQUIRE queued carol 600000 SHARED");
        c.ask::<Grant>("DLOCK.FAIRACQUIRE queued dave 600000 LIMIT 7");
        assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE reserved bob 600000").1, 1);
        assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE semaphore"), 2);
        // Twelve of sixteen are free when alice has given eight back, and one belongs to bob.
        let carol = "DLOCK.FAIRACQUIRE budget carol 600000 LIMIT 16 PERMITS 12";
        assert_eq!(c.try_ask(carol), Ok(Value::Nil), "{way:?}");
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE budget alice"), 0);
        assert_eq!(c.ask::<Grant>(carol).1, 1);
        let dave = "DLOCK.ACQUIRE budget dave 600000 LIMIT 16 PERMITS 4";
        assert_eq!(c.try_ask(dave), Ok(Value::Nil), "{way:?}");
        assert_sound(&server);
    }
}

/// Saved and loaded again and again: nothing is lost or added.
#[test]
fn locks_survive_again_and_again() {
    for (first, second) in [
        (Way::Save, Way::Shutdown),
        (Way::AofPlain, Way::AofPreamble),
    ] {
        let mut server = first.builder().start();
        make_sorts(&mut server.connection());
        let before = kept_of_sorts(&mut server.connection());
        for way in [first, second, first] {
            way.restart(&mut server);
            assert_eq!(kept_of_sorts(&mut server.connection()), before, "{way:?}");
        }
        assert_sound(&server);
    }
}

/// A lock with waiters has no TTL in the file. After the restart no command touches it: it must end by itself.
#[test]
fn a_contended_lock_still_ends() {
    for way in WAYS {
        println!("{way:?}");
        let mut server = way.builder().config("dlock.claim-window-ms", 200).start();
        let mut c = server.connection();
        c.run("DLOCK.ACQUIRE waited alice 600000");
        c.run("DLOCK.ACQUIRE queued alice 600000");
        let bob = Blocked::start(&server, "DLOCK.ACQUIRE waited bob 800 BLOCK 0");
        assert_eq!(c.ask::<i64>("PTTL waited"), -1);
        for line in [
            "DLOCK.FAIRACQUIRE queued bob CLAIM 300",
            "DLOCK.RENEW waited alice 800",
            "DLOCK.RENEW queued alice 800",
        ] {
            c.run(line);
        }
        way.end(&mut server);
        drop(bob);
        server.restart();
        let mut c = server.connection();
        // DBSIZE touches no key, so it cannot make the module notice.
        await_until("the locks have ended", PATIENCE, || {
            c.ask::<u64>("DBSIZE") == 0
        });
        assert_sound(&server);
    }
}

/// The waiters are gone, so the key has a TTL again; new ones wait for the rest of the lease.
#[test]
fn a_contended_lock_is_waited_for_again() {
    for way in [Way::Save, Way::Aof, Way::AofPlain] {
        println!("{way:?}");
        let mut server = way.builder().start();
        let mut c = server.connection();
        let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
        c.run("DLOCK.ACQUIRE short alice 600000");
        let waiting = ["k bob 600000", "k carol 600000", "short bob 1000"]
            .map(|who| Blocked::start(&server, &format!("DLOCK.ACQUIRE {who} BLOCK 0")));
        c.run("DLOCK.RENEW short alice 1000");
        way.end(&mut server);
        drop(waiting);
        server.restart();
        let mut c = server.connection();
        await_until("the key has a TTL again", PATIENCE, || {
            c.ask::<i64>("PTTL k") > 0
        });
        let dave = Blocked::start(&server, "DLOCK.ACQUIRE k dave 600000 BLOCK 0");
        assert_eq!(
            position(&mut c, "k", "dave"),
            Some(0),
            "nobody is before him"
        );
        assert_eq!(
            c.ask::<u64>(&format!("DLOCK.RELEASE k alice TOKEN {token}")),
            0
        );
        assert!(dave.reply::<Grant>().0 > token);
        let eve = Blocked::send(&server, "DLOCK.ACQUIRE short eve 600000 BLOCK 0");
        eve.reply::<Grant>();
        assert_sound(&server);
    }
}

/// Tickets are absent after a restart, in their old order, for the larger of their own window and the default. So are tickets
/// without CLAIM whose owners were blocked: a server that is shut down or dies drops none.
#[test]
fn tickets_survive_in_order() {
    for way in WAYS {
        println!("{way:?}");
        let mut server = way
            .builder()
            .config("dlock.claim-window-ms", 300_000)
            .start();
        let mut c = server.connection();
        c.run("DLOCK.ACQUIRE k alice 600000");
        let bob = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob 600000 BLOCK 0");
        c.run("DLOCK.FAIRACQUIRE k carol CLAIM 200000");
        let plain = Blocked::start(&server, "DLOCK.ACQUIRE k plain 600000 BLOCK 0");
        let dave = Blocked::start(
            &server,
            "DLOCK.FAIRACQUIRE k dave 600000 BLOCK 0 CLAIM 600000",
        );
        way.end(&mut server);
        drop((bob, plain, dave));
        server.restart();
        let mut c = server.connection();
        let places = queue(&mut c, "k");
        let owners: Vec<_> = places.iter().map(|(owner, _, _)| owner.as_str()).collect();
        assert_eq!(owners, ["bob", "carol", "dave"]);
        for ((owner, kind, left), window) in places.iter().zip([300_000, 300_000, 600_000]) {
            assert_eq!(kind, "absent", "{owner}");
            assert!(
                *left <= window && *left > window - 60_000,
                "{owner}: {left}"
            );
        }
        let carol = Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0");
        assert_eq!(position(&mut c, "k", "carol"), Some(1), "her old place");
        c.run("DLOCK.RELEASE k alice");
        assert!(carol.is_blocked(&server), "it is kept for bob");
        let (first, _): Grant = c.ask("DLOCK.FAIRACQUIRE k bob 600000");
        c.run("DLOCK.RELEASE k bob");
        assert!(carol.reply::<Grant>().0 > first);
        assert_eq!(position(&mut c, "k", "dave"), Some(0));
        assert_sound(&server);
    }
}

/// The windows begin again with the restart, and then they end.
#[test]
fn absent_tickets_do_not_stall_the_queue_after_a_restart() {
    for way in [Way::Save, Way::Aof] {
        let mut server = way.builder().config("dlock.claim-window-ms", 300).start();
        let mut c = server.connection();
        c.run("DLOCK.ACQUIRE k alice 600000");
        let gone = ["bob", "carol"].map(|owner| {
            Blocked::start(
                &server,
                &format!("DLOCK.FAIRACQUIRE k {owner} 600000 BLOCK 0"),
            )
        });
        way.end(&mut server);
        drop(gone);
        server.restart();
        let dave = Blocked::start(&server, "DLOCK.ACQUIRE k dave 600000 BLOCK 0");
        server.connection().run("DLOCK.RELEASE k alice");
        dave.reply::<Grant>();
        assert_sound(&server);
    }
}

/// A lease that ended while the server was down has ended.
#[test]
fn a_lease_that_ends_while_the_server_is_down_has_ended() {
    for way in WAYS {
        println!("{way:?}");
        let mut server = way.builder().start();
        let mut c = server.connection();
        let (token, _): Grant = c.ask("DLOCK.ACQUIRE alone alice 600000");
        c.run("DLOCK.ACQUIRE together alice 600000 SHARED");
        c.run("DLOCK.ACQUIRE together bob 600000 SHARED");
        c.run("DLOCK.ACQUIRE waited alice 600000");
        let bob = Blocked::start(&server, "DLOCK.ACQUIRE waited bob 250 BLOCK 0");
        for key in ["alone", "together", "waited"] {
            c.run(&format!("DLOCK.RENEW {key} alice 250"));
        }
        way.end(&mut server);
        let end = now_us() + 250_000;
        drop(bob);
        await_until("the leases have ended", PATIENCE, || now_us() > end);
        server.restart();
        let mut c = server.connection();
        for key in ["alone", "waited"] {
            assert!(c
                .refusal(&format!("DLOCK.RELEASE {key} alice"))
                .starts_with("NOTHELD"));
            let (next, _): Grant = c.ask(&format!("DLOCK.ACQUIRE {key} carol 600000"));
            assert!(next > token);
        }
        assert!(c
            .refusal("DLOCK.RENEW together alice")
            .starts_with("NOTHELD"));
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE together bob"), 0);
        assert_sound(&server);
    }
}

/// What the AOF repeats ended before: it is neither counted nor logged again.
#[test]
fn an_end_before_a_restart_is_not_told_again() {
    let mut server = Way::Aof.builder().start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE once alice 100");
    let gone =
        || stat(&server, "expired_total") == 1 && server.connection().ask::<u64>("DBSIZE") == 0;
    await_until("the lease has ended", PATIENCE, gone);
    assert_eq!(c.ask::<Vec<Value>>("DLOCK.LOG").len(), 1);
    server.kill9();
    server.restart();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE another bob 600000");
    assert_eq!(c.ask::<Vec<Value>>("DLOCK.LOG"), []);
    assert_eq!(stat(&server, "expired_total"), 0);
}

/// Whatever clients did before: the AOF, rewritten in the middle of it, gives an equal state.
#[test]
fn an_aof_rewritten_under_load_is_complete() {
    for way in [Way::AofPreamble, Way::AofPlain] {
        println!("{way:?}");
        let mut server = way.builder().start();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..3)
                .map(|client| {
                    let server = &server;
                    scope.spawn(move || random_client(server, client))
                })
                .collect();
            // As often as possible meanwhile.
            while clients.iter().any(|client| !client.is_finished()) {
                server.rewrite_aof();
            }
        });
        let keys = |server: &Server| -> Vec<(String, (String, i64))> {
            let mut c = server.connection();
            (0..12)
                .map(|key| format!("k{key}"))
                .map(|key| (key.clone(), kept(&mut c, &key)))
                .collect()
        };
        await_until("nobody waits", PATIENCE, || {
            server
                .info("dlock")
                .number::<u64>("dlock_connections_waiting")
                == 0
        });
        let before = keys(&server);
        assert!(
            before
                .iter()
                .any(|(_, (digest, _))| digest.contains(|c| c != '0')),
            "some are held"
        );
        server.kill9();
        server.restart();
        assert_eq!(keys(&server), before);
        assert_sound(&server);
    }
}

/// Sends pipelines of random commands, whose leases and windows do not end meanwhile.
fn random_client(server: &Server, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut wire = server.connection();
    for _ in 0..120 {
        let count = rng.usize(1..24);
        for _ in 0..count {
            let (key, owner) = (rng.u8(..12), rng.u8(..5));
            let who = format!("k{key} o{owner}");
            let limit = ["", "SHARED", "LIMIT 2", "LIMIT 4 PERMITS 3"][rng.usize(..4)];
            wire.send(&match rng.u8(..12) {
                0..=2 => format!("DLOCK.ACQUIRE {who} 600000 {limit}"),
                3 => format!("DLOCK.ACQUIRE {who} 600000 BLOCK 2 {limit}"),
                4..=5 => format!("DLOCK.FAIRACQUIRE {who} 600000 CLAIM 600000 {limit}"),
                6..=7 => format!("DLOCK.RELEASE {who} HOLDS 0"),
                8 => format!("DLOCK.RENEW {who} 500000"),
                9 => format!("DLOCK.CANCEL {who}"),
                10 => format!("DLOCK.FORCERELEASE k{key}"),
                _ => format!("DEL k{key}"),
            });
        }
        for _ in 0..count {
            let _ = wire.read();
        }
    }
}

/// A cut-off AOF lacks its last command; everything before it is loaded.
#[test]
fn a_cut_off_aof_loads_up_to_the_cut() {
    let mut server = Way::Aof.builder().start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000");
    let before = kept(&mut c, "k");
    c.run("DLOCK.ACQUIRE k alice 700000");
    for cut in [1, 10, 30] {
        server.kill9();
        let file = server.aof();
        let file = File::options().write(true).open(file).expect("our file");
        let len = file.metadata().expect("a file").len();
        file.set_len(len - cut).expect("our file");
        server.restart();
        let mut c = server.connection();
        assert_eq!(kept(&mut c, "k"), before);
        c.run("DLOCK.ACQUIRE k alice 700000");
        assert_sound(&server);
    }
}

/// The data is saved and reloaded under waiters: they stay, in order, and are served.
#[test]
fn who_waits_stays_over_a_reload() {
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        println!("{reload}");
        let server = Server::builder()
            .config("appendonly", "yes")
            .config("dlock.claim-window-ms", 1)
            .start();
        let mut c = server.connection();
        make_sorts(&mut c);
        let (token, _): Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
        c.run("DLOCK.ACQUIRE short alice 600000");
        let lines = [
            "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
            "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0",
            "DLOCK.FAIRACQUIRE k dave 600000 BLOCK 0 CLAIM 600000",
            "DLOCK.ACQUIRE k eve 600000 BLOCK 600000",
        ];
        let waiting: Vec<_> = lines
            .iter()
            .map(|line| Blocked::start(&server, line))
            .collect();
        let short = Blocked::start(&server, "DLOCK.ACQUIRE short bob 600000 BLOCK 0");
        let before = kept_of_sorts(&mut c);
        let timed = Blocked::send(&server, "DLOCK.ACQUIRE k frank 600000 BLOCK 1000");
        c.run("DLOCK.RENEW short alice 700");
        for _ in 0..2 {
            c.run(reload);
        }
        assert_eq!(kept_of_sorts(&mut c), before);
        for (rank, owner) in ["bob", "carol", "dave", "eve"].into_iter().enumerate() {
            assert_eq!(position(&mut c, "k", owner), Some(rank as u64), "{owner}");
        }
        assert!(waiting.iter().all(|blocked| blocked.is_blocked(&server)));
        assert_eq!(
            c.try_ask("DLOCK.ACQUIRE k newcomer"),
            Ok(Value::Nil),
            "nobody is overtaken"
        );
        let mut last = short.reply::<Grant>().0;
        assert!(last > token);
        assert_eq!(timed.reply::<Value>(), Value::Nil);
        let mut holder = "alice";
        for (blocked, owner) in waiting.iter().zip(["bob", "carol", "dave", "eve"]) {
            assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k {holder}")), 0);
            let (next, holds): Grant = blocked.reply();
            assert!(next > last && holds == 1, "{owner}");
            (last, holder) = (next, owner);
        }
        assert_sound(&server);
    }
}

/// Loading replaces the earlier locks: those that are not in the file are gone, and their waiters are granted them.
#[test]
fn who_waits_is_served_by_a_reload_of_an_older_file() {
    let server = Server::start();
    let mut c = server.connection();
    let (old, _): Grant = c.ask("DLOCK.ACQUIRE old alice 600000");
    c.run("SAVE");
    c.run("DLOCK.RELEASE old alice");
    let (new, _): Grant = c.ask("DLOCK.ACQUIRE new alice 600000");
    let (taken, _): Grant = c.ask("DLOCK.ACQUIRE old bob 600000");
    let [freed, waits] = ["new", "old"]
        .map(|key| Blocked::start(&server, &format!("DLOCK.ACQUIRE {key} carol BLOCK 0")));
    c.run("DEBUG RELOAD NOSAVE");
    let (granted, _): Grant = freed.reply();
    assert!(granted > taken && taken > new);
    assert!(waits.is_blocked(&server), "alice is back");
    assert!(c.refusal("DLOCK.RELEASE old bob").starts_with("NOTHELD"));
    assert_eq!(
        c.ask::<u64>(&format!("DLOCK.RELEASE old alice TOKEN {old}")),
        0
    );
    assert!(waits.reply::<Grant>().0 > granted);
    assert_sound(&server);
}

#[test]
fn tokens_rise_over_a_restart_that_lost_everything() {
    let mut server = Server::start();
    let (before, _): Grant = server.connection().ask("DLOCK.ACQUIRE k alice");
    server.kill9();
    server.restart();
    let (after, _): Grant = server.connection().ask("DLOCK.ACQUIRE k alice");
    assert!(before < after && after <= now_us(), "{before}, {after}");
}

/// A lock whose token is an hour ahead of the clock: the clock alone would not make the next one higher.
#[test]
fn tokens_rise_over_everything_though_the_clock_is_behind() {
    for way in WAYS {
        println!("{way:?}");
        let mut server = way.builder().start();
        let mut c = server.connection();
        let ahead = now_us() + HOUR_MS * 1_000;
        let frame = Frame::learn(&mut c);
        let payload = frame.around(&value(0, &[(ahead, ahead / 1_000, 1, 1, b"alice")], &[]));
        restore(&mut c, "ahead", &payload).expect("it is less than a day ahead");
        let mut last = ahead;
        let mut rises = |c: &mut Wire, what: &str| {
            for key in ["k", "other"] {
                let (token, _): Grant = c.ask(&format!("DLOCK.ACQUIRE {key} zoe HOLDS 1"));
                assert!(token > last, "{what}: {token} after {last}");
                last = token;
                c.run(&format!("DLOCK.RELEASE {key} zoe"));
            }
        };
        rises(&mut c, "RESTORE");
        way.restart(&mut server);
        let mut c = server.connection();
        assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD ahead alice").0, ahead);
        // A grant that has been released since is in the AOF, but in no file of the current data.
        if way != Way::Aof {
            c.run("DLOCK.ACQUIRE since zoe 600000");
            let (token, _, _): (u64, u64, u64) = c.ask("DLOCK.HELD since zoe");
            assert!(token > ahead, "{way:?}: {token} after {ahead}");
            continue;
        }
        rises(&mut c, "restart");
        c.run("DEL ahead");
        rises(&mut c, "DEL");
        c.run("FLUSHALL");
        rises(&mut c, "FLUSHALL");
        c.run("DLOCK.ACQUIRE k alice 600000");
        c.run("DEBUG RELOAD");
        c.run("DEL k");
        rises(&mut c, "DEBUG RELOAD");
        assert_sound(&server);
    }
}

/// A dump is the whole lock: under another name, in another database, on another server.
#[test]
fn a_dump_restores_the_lock() {
    let (server, other) = (Server::start(), Server::start());
    let mut c = server.connection();
    make_sorts(&mut c);
    let mut elsewhere = other.connection();
    for key in SORTS {
        let (before, end) = kept(&mut c, key);
        let payload: Vec<u8> = c.ask(&format!("DUMP {key}"));
        // Whatever TTL RESTORE sets, the leases decide: a later TTL, none, and an immediate one are corrected.
        for ttl in ["0", "3600000"] {
            for connection in [&mut c, &mut elsewhere] {
                let copy = format!("{key}:{ttl}");
                connection
                    .ask_command::<()>(command(&format!("RESTORE {copy} {ttl}")).arg(&payload));
                await_until("the TTL is put right", PATIENCE, || {
                    kept(connection, &copy) == (before.clone(), end)
                });
            }
        }
        c.ask_command::<()>(
            command(&format!("RESTORE {key} {} ", now_us() / 1_000 + HOUR_MS))
                .arg(&payload)
                .arg("ABSTTL")
                .arg("REPLACE"),
        );
        await_until("the TTL is put right", PATIENCE, || {
            kept(&mut c, key) == (before.clone(), end)
        });
        for line in ["COPY {} copy", "COPY {} copy DB 5", "COPY {} copy REPLACE"] {
            c.refusal(&line.replace("{}", key));
        }
        assert_eq!(c.ask::<u64>("EXISTS copy"), 0);
    }
    let (highest, _): Grant = c.ask("DLOCK.ACQUIRE highest alice");
    let (next, _): Grant = elsewhere.ask("DLOCK.ACQUIRE next alice");
    assert!(next > highest);
    // All of them work.
    let bob = Blocked::start(&other, "DLOCK.ACQUIRE plain:0 bob 600000 BLOCK 0");
    elsewhere.run("DLOCK.RELEASE plain:0 alice");
    assert!(bob.reply::<Grant>().0 > next);
    elsewhere.run("DLOCK.RELEASE queued:0 alice");
    elsewhere.ask::<Grant>("DLOCK.FAIRACQUIRE queued:0 bob");
    assert_sound(&server);
    assert_sound(&other);
}

/// A TTL shorter than the lease, given to a lock with waiters and to one without.
#[test]
fn a_restored_lock_without_touch_ends_with_its_lease() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("CONFIG SET dlock.claim-window-ms 100");
    c.run("CONFIG SET dlock.max-claim-ms 100");
    c.run("DLOCK.ACQUIRE alone alice 600000");
    c.run("DLOCK.ACQUIRE queued alice 600000");
    // No command comes between these: the locks are copied complete.
    let [_, _, _, alone, queued] = at_once(
        &server,
        [
            "DLOCK.FAIRACQUIRE queued bob",
            "DLOCK.RENEW alone alice 400",
            "DLOCK.RENEW queued alice 400",
            "DUMP alone",
            "DUMP queued",
        ],
    );
    let dumps = [alone, queued].map(|dump| -> Vec<u8> { from_redis_value(&dump).expect("bytes") });
    for (dump, key) in dumps.iter().zip(["alone", "queued"]) {
        for ttl in ["0", "3600000"] {
            restore_for(&mut c, &format!("{key}:{ttl}"), ttl, dump);
        }
    }
    await_until("all have ended", PATIENCE, || c.ask::<u64>("DBSIZE") == 0);
    assert_sound(&server);
}

fn restore_for(c: &mut Wire, key: &str, ttl: &str, payload: &[u8]) {
    c.ask_command::<()>(command(&format!("RESTORE {key} {ttl}")).arg(payload));
}

/// A lease longer than this server allows is cut, also for replicas and the AOF.
#[test]
fn restored_deadlines_are_bounded() {
    for way in [Way::Save, Way::Aof, Way::AofPlain] {
        println!("{way:?}");
        let mut server = way.builder().config("dlock.max-lease-ms", 60_000).start();
        let mut c = server.connection();
        let frame = Frame::learn(&mut c);
        let now = now_us();
        let deadlines = [
            now / 1_000 + HOUR_MS,
            1 << 45,
            i64::MAX as u64 / 1_000,
            i64::MAX as u64,
        ];
        for (at, deadline) in deadlines.into_iter().enumerate() {
            for (flags, tickets) in [(0, &[][..]), (1, &[(now, 600_000, 1, &b"bob"[..])][..])] {
                let key = format!("k{at}:{flags}");
                let hold = (now - 1, deadline, 1, 1, &b"alice"[..]);
                restore(&mut c, &key, &frame.around(&value(flags, &[hold], tickets)))
                    .unwrap_or_else(|error| panic!("{key}, {deadline}: {error}"));
                let (_, _, left): (u64, u64, u64) = c.ask(&format!("DLOCK.HELD {key} alice"));
                assert!(left <= 60_000, "{key}: {left}");
                let ttl: i64 = c.ask(&format!("PTTL {key}"));
                assert!(
                    if flags == 0 {
                        (1..=60_000).contains(&ttl)
                    } else {
                        ttl == -1
                    },
                    "{key}: {ttl}"
                );
            }
        }
        let before: Vec<_> = (0..deadlines.len())
            .flat_map(|at| [0, 1].map(|flags| format!("k{at}:{flags}")))
            .map(|key| (key.clone(), kept(&mut c, &key)))
            .collect();
        way.restart(&mut server);
        let mut c = server.connection();
        for (key, before) in before {
            assert_eq!(kept(&mut c, &key), before, "{key}");
        }
        assert_sound(&server);
    }
}

/// A token more than a day ahead did not come from a healthy server. It is refused, and raises no later token.
#[test]
fn restored_tokens_are_bounded() {
    const DAY_US: u64 = 86_400_000_000;
    let server = Server::start();
    let mut c = server.connection();
    let frame = Frame::learn(&mut c);
    let deadline = now_us() / 1_000 + HOUR_MS;
    for token in [
        now_us() + DAY_US + 60_000_000,
        (1 << 53) - 1,
        1 << 53,
        1 << 62,
    ] {
        let held = value(0, &[(token, deadline, 1, 1, b"alice")], &[]);
        let queued = value(
            1,
            &[(now_us(), deadline, 1, 1, b"alice")],
            &[(token, 1_000, 1, b"bob")],
        );
        for payload in [held, queued] {
            restore(&mut c, "k", &frame.around(&payload)).expect_err("too far in the future");
            assert_eq!(c.ask::<u64>("EXISTS k"), 0);
        }
        let (next, _): Grant = c.ask("DLOCK.ACQUIRE next alice HOLDS 1");
        assert!(next <= now_us(), "{token} has moved the tokens");
    }
    // A past token makes a usual lock, whose next grant is above the present nevertheless.
    let old = value(0, &[(1, deadline, 1, 1, b"alice")], &[]);
    restore(&mut c, "k", &frame.around(&old)).expect("an old lock");
    c.run("DLOCK.CHECK k 1");
    assert!(c
        .refusal("DLOCK.RENEW k alice TOKEN 2")
        .starts_with("NOTHELD"));
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice TOKEN 1"), 0);
    assert_sound(&server);
}

/// RESTORE goes to the AOF as it was sent; the later corrections must also be in it.
#[test]
fn a_restored_lock_is_kept_in_the_aof() {
    let mut server = Way::Aof.builder().start();
    let mut c = server.connection();
    make_sorts(&mut c);
    for key in SORTS {
        let payload: Vec<u8> = c.ask(&format!("DUMP {key}"));
        restore_for(&mut c, &format!("{key}:late"), "3600000", &payload);
        restore_for(&mut c, &format!("{key}:none"), "0", &payload);
    }
    let all = |c: &mut Wire| -> Vec<_> {
        SORTS
            .iter()
            .flat_map(|key| ["late", "none"].map(|end| format!("{key}:{end}")))
            .map(|key| (key.clone(), kept(c, &key)))
            .collect()
    };
    let originals: Vec<_> = SORTS
        .iter()
        .flat_map(|key| [kept(&mut c, key), kept(&mut c, key)])
        .collect();
    await_until("the TTLs are put right", PATIENCE, || {
        all(&mut c)
            .into_iter()
            .map(|(_, kept)| kept)
            .eq(originals.iter().cloned())
    });
    let before = all(&mut c);
    server.kill9();
    server.restart();
    assert_eq!(all(&mut server.connection()), before);
    assert_sound(&server);
}

/// A save by a child while locks change hands: the file has one instant of the server.
#[test]
fn saving_under_load_harms_nobody() {
    let server = Server::builder().config("save", "3600 1000000").start();
    let counted = thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let server = &server;
                scope.spawn(move || {
                    let mut c = server.connection();
                    for _ in 0..150 {
                        c.ask::<Grant>(&format!("DLOCK.ACQUIRE k w{worker} 600000 BLOCK 0"));
                        let count: u64 = c.ask::<Option<u64>>("GET count").unwrap_or(0);
                        c.run(&format!("SET count {}", count + 1));
                        assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k w{worker}")), 0);
                    }
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            server.connection().run("BGSAVE");
            await_until("it is saved", PATIENCE, || {
                server
                    .info("persistence")
                    .number::<u64>("rdb_bgsave_in_progress")
                    == 0
            });
            let state = server.info("persistence");
            assert_eq!(state.text("rdb_last_bgsave_status"), "ok");
        }
        server.connection().ask::<u64>("GET count")
    });
    assert_eq!(counted, 450);
    assert_sound(&server);
}

/// A lock with ten thousand holders and one with ten thousand tickets.
#[test]
fn large_locks_survive() {
    for way in [Way::Save, Way::AofPlain] {
        let mut server = way.builder().start();
        let mut wire = server.connection();
        wire.send("DLOCK.ACQUIRE queued alice 600000");
        assert!(wire.read().is_ok());
        for batch in 0..100 {
            for at in 0..100 {
                let owner = format!("owner-with-a-long-name-{batch}-{at}");
                wire.send(&format!("DLOCK.ACQUIRE shared {owner} 600000 SHARED"));
                wire.send(&format!("DLOCK.FAIRACQUIRE queued {owner} CLAIM 600000"));
            }
            for _ in 0..200 {
                assert!(wire.read().is_ok());
            }
        }
        let mut c = server.connection();
        let before = ["shared", "queued"].map(|key| kept(&mut c, key));
        way.restart(&mut server);
        let mut c = server.connection();
        assert_eq!(["shared", "queued"].map(|key| kept(&mut c, key)), before);
        assert_eq!(
            position(&mut c, "queued", "owner-with-a-long-name-99-99"),
            Some(9_999)
        );
        c.run("DLOCK.RELEASE queued alice");
        assert_eq!(
            c.ask::<Grant>("DLOCK.FAIRACQUIRE queued owner-with-a-long-name-0-0")
                .1,
            1
        );
        assert_eq!(c.ask::<u64>("DLOCK.FORCERELEASE shared"), 10_000);
        assert_sound(&server);
    }
}

/// The key alone expresses the usual release; the long form is also understood.
#[test]
fn a_release_needs_no_words() {
    for said in [false, true] {
        let mut server = Way::Aof.builder().start();
        let mut c = server.connection();
        let grant: Grant = c.ask("DLOCK.ACQUIRE k alice 600000");
        if !said {
            c.run("DLOCK.RELEASE k alice");
        }
        server.kill9();
        let file = server.aof();
        let mut bytes = fs::read(&file).expect("our file");
        if said {
            let effect = format!("1 r{}", grant.0);
            bytes.extend(cmd("DLOCK.APPLY").arg("k").arg(effect).get_packed_command());
            fs::write(&file, bytes).expect("our file");
        } else {
            let release = cmd("DLOCK.APPLY").arg("k").get_packed_command();
            assert!(bytes.ends_with(&release));
        }
        server.restart();
        let mut c = server.connection();
        assert_eq!(c.ask::<u64>("EXISTS k"), 0);
        assert!(c.ask::<Grant>("DLOCK.ACQUIRE k bob").0 > grant.0);
        assert_sound(&server);
    }
}

/// An edited AOF: an effect that the module does not understand is skipped.
#[test]
fn an_effect_that_makes_no_sense_is_skipped() {
    for effect in ["", "1 h", "0 w1", "1 z9 1:a", "1 h1 1 1 1 9:a", "2x w1"] {
        let mut server = Way::Aof.builder().start();
        server.connection().run("DLOCK.ACQUIRE k alice 600000");
        server.kill9();
        let file = server.aof();
        let mut bytes = fs::read(&file).expect("our file");
        bytes.extend(cmd("DLOCK.APPLY").arg("k").arg(effect).get_packed_command());
        fs::write(&file, bytes).expect("our file");
        server.restart();
        let mut c = server.connection();
        assert_eq!(c.ask::<(u64, u64, u64)>("DLOCK.HELD k alice").1, 1);
        let log = server.log();
        assert!(!log.contains("BUG REPORT") && !log.contains("internal fault"));
    }
}
