//! A key appears where there was none, under those who wait for its name: a value of another type tells them so, and a lock
//! brings its tickets in before those who came later.

use dlock_integration::redis::{cmd, Connection, Value};
use dlock_integration::{
    assert_sound, await_until, command, position, Ask, Blocked, Grant, Server, Subscriber, PATIENCE,
};

/// A server where somebody waits for `k1`, which has no key: by a request for many that needs `k0` as well, which alice holds,
/// behind that by a request of its own, and by a channel.
struct Setup {
    server: Server,
    control: Connection,
    many: Blocked,
    behind: Blocked,
    news: Subscriber,
}

impl Setup {
    #[track_caller]
    fn new() -> Setup {
        let server = Server::start();
        let mut control = server.connection();
        control.run("DLOCK.ACQUIRE k0 alice 600000");
        let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0");
        let behind = Blocked::start(&server, "DLOCK.ACQUIRE k1 behind 600000 BLOCK 0");
        let news = Subscriber::channels(&server, &["news"]);
        control.run("DLOCK.ACQUIRE k1 notified 600000 NOTIFY news");
        Setup {
            server,
            control,
            many,
            behind,
            news,
        }
    }

    #[track_caller]
    fn assert_told(mut self, what: &str) {
        println!("{what}");
        for wait in [&self.many, &self.behind] {
            let error = wait.refusal();
            assert!(error.starts_with("WRONGTYPE "), "{what}: {error}");
        }
        let message = self.news.payload();
        assert!(
            message.starts_with("wrongtype 0 2:k1 8:notified"),
            "{what}: {message}"
        );
        // Nothing is left of them.
        let queued: Option<u64> = self.control.ask("DLOCK.POSITION k0 many");
        assert_eq!(queued, None, "{what}");
        assert_eq!(
            self.server.info("dlock").text("dlock_places_queued"),
            "0",
            "{what}"
        );
        assert_sound(&self.server);
    }
}

/// Commands that make a key of another type.
const MAKERS: [&str; 19] = [
    "SET k1 x",
    "SET k1 x PX 600000",
    "MSET other x k1 x",
    "APPEND k1 x",
    "INCR k1",
    "SETBIT k1 7 1",
    "BITOP NOT k1 text",
    "LPUSH k1 x",
    "HSET k1 f x",
    "SADD k1 x",
    "ZADD k1 1 x",
    "XADD k1 * f x",
    "PFADD k1 x",
    "SUNIONSTORE k1 set",
    "SORT set ALPHA STORE k1",
    "COPY text k1",
    "RENAME text k1",
    "RENAMENX text k1",
    "MOVE text 1",
];

#[test]
fn a_value_of_another_type_tells_who_waits_for_the_name() {
    for line in MAKERS {
        let mut setup = Setup::new();
        setup.control.run("SADD set x");
        setup.control.run("SET text x");
        if line.starts_with("MOVE") {
            let mut there = setup.server.connection_in(1);
            there.run("SET k1 x");
            there.run("MOVE k1 0");
        } else {
            setup.control.run(line);
        }
        setup.assert_told(line);
    }
}

#[test]
fn a_restored_value_of_another_type_tells_who_waits_for_the_name() {
    let mut setup = Setup::new();
    setup.control.run("SET text x");
    let payload: Vec<u8> = setup.control.ask("DUMP text");
    let restore = cmd("RESTORE").arg("k1").arg(0).arg(payload).to_owned();
    setup.control.ask_command::<()>(&restore);
    setup.assert_told("RESTORE");
}

#[test]
fn a_database_swapped_in_tells_who_waits_for_its_names() {
    let setup = Setup::new();
    setup.server.connection_in(1).run("SET k1 x");
    // Alice's lock goes away with her database: what is left at its name is free.
    setup.server.connection().run("SWAPDB 0 1");
    setup.assert_told("SWAPDB");
}

#[test]
fn a_value_made_in_a_transaction_or_script_tells_who_waits_for_the_name() {
    let mut setup = Setup::new();
    for line in ["MULTI", "SET other x", "SET k1 x", "EXEC"] {
        setup.control.run(line);
    }
    setup.assert_told("MULTI");

    let mut setup = Setup::new();
    let script =
        "redis.call('HSET', KEYS[1], 'f', 'x') return redis.call('DLOCK.HELD', KEYS[2], 'alice')";
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(2).arg("k1").arg("k0");
    setup.control.ask_command::<Value>(&eval);
    setup.assert_told("EVAL");

    let mut setup = Setup::new();
    let library = "#!lua name=maker\nredis.register_function('make', \
                   function(keys) return redis.call('LPUSH', keys[1], 'x') end)";
    let mut load = cmd("FUNCTION");
    load.arg("LOAD").arg(library);
    setup.control.ask_command::<String>(&load);
    setup.control.run("FCALL make 1 k1");
    setup.assert_told("FCALL");
}

/// One that is gone again before anybody has looked has never been there.
#[test]
fn a_value_that_is_gone_at_once_tells_nobody() {
    let mut setup = Setup::new();
    for line in ["MULTI", "SET k1 x", "DEL k1", "EXEC"] {
        setup.control.run(line);
    }
    assert_eq!(setup.control.ask::<u64>("DLOCK.RELEASE k0 alice"), 0);
    assert_eq!(setup.many.reply::<Vec<u64>>().len(), 2);
    setup.control.run("DLOCK.RELEASE k1 many");
    setup.behind.reply::<Grant>();
    assert_sound(&setup.server);
}

/// The next use of a lock finds a ticket that came along, at whatever place, though nothing told of it.
#[test]
fn the_next_use_of_a_lock_notices_what_came_along() {
    for line in BRINGERS {
        println!("{line}");
        let server = Server::start();
        let (mut c, mut there) = (server.connection(), server.connection_in(1));
        let from_there = line.ends_with("MOVE") || line == "SWAPDB";
        let (key, source) = match from_there {
            true => ("k1", &mut there),
            false => ("a", &mut c),
        };
        source.run(&format!("DLOCK.ACQUIRE {key} holder 600000"));
        let ticket = format!("DLOCK.FAIRACQUIRE {key} early 600000 CLAIM 600000");
        assert_eq!(source.try_ask(&ticket), Ok(Value::Nil), "{line}");
        c.run("DLOCK.ACQUIRE k0 alice 600000");
        there.run("DLOCK.ACQUIRE k0 alice 600000");
        let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0");
        bring(line, (&mut c, &mut there));
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k1 holder"), 0, "{line}");
        let newer = c.try_ask("DLOCK.ACQUIRE k1 newer");
        assert_eq!(newer, Ok(Value::Nil), "{line}");
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k0 alice"), 0, "{line}");
        assert!(many.is_blocked(&server), "{line}: the ticket is before it");
        assert_eq!(c.ask::<u64>("DLOCK.CANCEL k1 early"), 1, "{line}");
        assert_eq!(many.reply::<Vec<u64>>().len(), 2, "{line}");
        assert_sound(&server);
    }
}

/// However many names are waited for, who waits for one that has come to have a value is told.
#[test]
fn each_of_many_names_without_a_key_is_looked_after() {
    const NAMES: u64 = 3000;
    // While nothing is granted every wait is for a name without a key.
    let server = Server::builder()
        .config("dlock.quarantine-ms", 600_000)
        .start();
    let mut c = server.connection();
    let news = Subscriber::channels(&server, &["news"]);
    for at in 0..NAMES {
        c.run(&format!("DLOCK.ACQUIRE name{at} owner 1000 NOTIFY news"));
    }
    let mut expected = Vec::new();
    for at in (0..NAMES).step_by(7) {
        c.run(&format!("SET name{at} x"));
        expected.push(at);
    }
    let mut told: Vec<u64> = Vec::new();
    while told.len() < expected.len() {
        let message = news.payload();
        let name = message
            .split(' ')
            .nth(2)
            .and_then(|key| key.split(':').nth(1));
        let at = name.and_then(|name| name.strip_prefix("name"));
        assert!(message.starts_with("wrongtype 0 "), "{message}");
        told.push(at.and_then(|at| at.parse().ok()).expect("a name"));
    }
    told.sort_unstable();
    assert_eq!(told, expected);
    let left: u64 = server.info("dlock").number("dlock_notify_waiting");
    assert_eq!(left, NAMES - expected.len() as u64);
    assert_sound(&server);
}

/// Looking for keys that appear leaves no trace: no look that failed is counted, and no event of one is raised.
#[test]
fn to_look_for_a_key_leaves_no_trace() {
    let setup = Setup::new();
    let mut c = setup.server.connection();
    c.run("CONFIG SET notify-keyspace-events KEAm");
    let misses = Subscriber::patterns(&setup.server, &["__keyevent@0__:keymiss"]);
    c.run("CONFIG RESETSTAT");
    for _ in 0..100 {
        c.run("PING");
    }
    let stats = setup.server.info("stats");
    let counted: (u64, u64) = (
        stats.number("keyspace_misses"),
        stats.number("keyspace_hits"),
    );
    assert_eq!(counted, (0, 0));
    assert_eq!(misses.arrived(), []);
}

/// A lock with a holder and a ticket, `a` (in database 1: `k1`), and what brings it to the name `k1` of database 0.
const BRINGERS: [&str; 9] = [
    "RENAME a k1",
    "RENAMENX a k1",
    "MOVE",
    "RESTORE",
    "SWAPDB",
    "MULTI RENAME",
    "MULTI MOVE",
    "GUARD RENAME",
    "GUARD MOVE",
];

/// Whether the server tells of a lock that came to its name so. Else that is noticed within a second where somebody waits, and at
/// the lock's next use.
fn is_told(server: &Server, line: &str) -> bool {
    let version = server.version();
    let loses = version.is_valkey(9, 1) && line == "MULTI MOVE";
    matches!(line, "RESTORE" | "SWAPDB") || version.tells_of_keys() && !loses
}

/// Has a lock of `source` come to `k1` of database 0.
#[track_caller]
fn bring(line: &str, (c, there): (&mut Connection, &mut Connection)) {
    let guarded = |connection: &mut Connection, key: &str, line: &str| {
        let (token, ..): (u64, u64, u64) = connection.ask(&format!("DLOCK.HELD {key} holder"));
        connection.run(&format!("DLOCK.GUARD {key} {token} {line}"));
    };
    match line {
        "MOVE" => assert_eq!(there.ask::<u64>("MOVE k1 0"), 1),
        "RESTORE" => {
            let payload: Vec<u8> = c.ask("DUMP a");
            c.ask_command::<()>(command("RESTORE k1 0").arg(payload));
        }
        "SWAPDB" => c.run("SWAPDB 0 1"),
        "MULTI RENAME" => at_once(c, ["MULTI", "RENAME a k1", "EXEC"]),
        "MULTI MOVE" => at_once(there, ["MULTI", "MOVE k1 0", "EXEC"]),
        "GUARD RENAME" => guarded(c, "a", "RENAME a k1"),
        "GUARD MOVE" => guarded(there, "k1", "MOVE k1 0"),
        line => c.run(line),
    }
}

#[track_caller]
fn at_once(connection: &mut Connection, lines: [&str; 3]) {
    lines.into_iter().for_each(|line| connection.run(line));
}

#[test]
fn a_lock_that_appears_brings_its_tickets_in() {
    for line in BRINGERS {
        println!("{line}");
        let server = Server::start();
        let (mut c, mut there) = (server.connection(), server.connection_in(1));
        let from_there = line.ends_with("MOVE") || line == "SWAPDB";
        let (key, source) = match from_there {
            true => ("k1", &mut there),
            false => ("a", &mut c),
        };
        source.run(&format!("DLOCK.ACQUIRE {key} holder 600000"));
        let ticket = format!("DLOCK.FAIRACQUIRE {key} early 600000 CLAIM 600000");
        assert_eq!(source.try_ask(&ticket), Ok(Value::Nil), "{line}");
        // On both sides of SWAPDB: the lock that keeps `many` waiting is there before and after.
        c.run("DLOCK.ACQUIRE k0 alice 600000");
        there.run("DLOCK.ACQUIRE k0 alice 600000");
        let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0");
        let late = Blocked::start(&server, "DLOCK.ACQUIRE k1 late 600000 BLOCK 0");
        bring(line, (&mut c, &mut there));
        // Places are only looked at, which is no use of the lock.
        await_until("the ticket has its place", PATIENCE, || {
            let places = ["early", "many", "late"].map(|owner| position(&mut c, "k1", owner));
            places == [Some(0), Some(1), Some(2)]
        });
        // The ticket keeps the lock for its owner.
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k1 holder"), 0, "{line}");
        assert_eq!(
            c.try_ask("DLOCK.ACQUIRE k1 newer"),
            Ok(Value::Nil),
            "{line}"
        );
        assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE k1 early").1, 1, "{line}");
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k1 early"), 0, "{line}");
        assert!(
            many.is_blocked(&server) && late.is_blocked(&server),
            "{line}"
        );
        assert_eq!(c.ask::<u64>("DLOCK.RELEASE k0 alice"), 0, "{line}");
        assert_eq!(many.reply::<Vec<u64>>().len(), 2, "{line}");
        c.run("DLOCK.RELEASE k1 many");
        late.reply::<Grant>();
        assert_sound(&server);
    }
}

/// Whether an owner's name is in the lock's value.
#[track_caller]
fn keeps(connection: &mut Connection, key: &str, owner: &str) -> bool {
    let payload: Vec<u8> = connection.ask(&format!("DUMP {key}"));
    payload
        .windows(owner.len())
        .any(|bytes| bytes == owner.as_bytes())
}

/// A ticket that came with a lock does not outlive its window, whether anybody waited at the name or not.
#[test]
fn a_ticket_that_comes_along_is_watched_over() {
    for waits in [true, false] {
        for line in BRINGERS {
            println!("{line}, somebody waits: {waits}");
            let server = Server::builder()
                .config("dlock.claim-window-ms", 200)
                .start();
            let (mut c, mut there) = (server.connection(), server.connection_in(1));
            let from_there = line.ends_with("MOVE") || line == "SWAPDB";
            let (key, source) = match from_there {
                true => ("k1", &mut there),
                false => ("a", &mut c),
            };
            source.run(&format!("DLOCK.ACQUIRE {key} holder 600000"));
            let ticket = format!("DLOCK.FAIRACQUIRE {key} ghost 600000 CLAIM 600000");
            assert_eq!(source.try_ask(&ticket), Ok(Value::Nil), "{line}");
            assert!(keeps(source, key, "ghost"), "{line}");
            c.run("DLOCK.ACQUIRE k0 alice 600000");
            there.run("DLOCK.ACQUIRE k0 alice 600000");
            let many = waits
                .then(|| Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0"));
            // From here on a ticket lasts as long as the default window.
            c.run("CONFIG SET dlock.max-claim-ms 200");
            bring(line, (&mut c, &mut there));
            if !waits && !is_told(&server, line) {
                // A server that tells after all is to be taken out of the table of servers: the window would be over by then.
                c.run("DLOCK.ACQUIRE control holder 600000");
                let ticket = c.try_ask("DLOCK.FAIRACQUIRE control ghost");
                assert_eq!(ticket, Ok(Value::Nil), "{line}");
                await_until("a window is over", PATIENCE, || {
                    !keeps(&mut c, "control", "ghost")
                });
                assert!(keeps(&mut c, "k1", "ghost"), "{line}: this server tells");
                c.run("DLOCK.CANCEL k1 nobody");
            }
            // Nobody asks the module anything of the lock meanwhile: that would put it right.
            await_until("the ticket's window is over", PATIENCE, || {
                !keeps(&mut c, "k1", "ghost")
            });
            drop(many);
            assert_sound(&server);
        }
    }
}

/// A replica hears of a renamed lock what its primary's servers hear: once it decides, it watches over the ticket (one that hears
/// nothing, from the lock's next use on).
#[test]
fn a_ticket_that_comes_along_is_watched_over_after_a_failover() {
    let mut primary = Server::start();
    let replica = Server::builder()
        .config("dlock.claim-window-ms", 200)
        .config("dlock.max-claim-ms", 200)
        .start();
    let mut c = primary.connection();
    // More than a look through all keys would come by in time.
    c.run("DEBUG POPULATE 300000");
    replica.replica_of(&primary);
    c.run("DLOCK.ACQUIRE a holder 600000");
    let ticket = "DLOCK.FAIRACQUIRE a ghost 600000 CLAIM 600000";
    assert_eq!(c.try_ask(ticket), Ok(Value::Nil));
    c.run("RENAME a k1");
    replica.wait_in_sync(&primary);
    primary.kill9();
    let mut d = replica.connection();
    assert!(keeps(&mut d, "k1", "ghost"));
    replica.promote();
    if !is_told(&replica, "RENAME") {
        d.run("DLOCK.CANCEL k1 nobody");
    }
    await_until("the ticket's window is over", PATIENCE, || {
        !keeps(&mut d, "k1", "ghost")
    });
    assert_sound(&replica);
}
