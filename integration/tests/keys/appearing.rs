//! A lock arrives at a name with waiters, and its tickets take their places before later ones.
//! `tests/servers/appearing.txt` has values of other types.

use dlock_harness::redis::{self, Value};
use dlock_harness::{
    assert_sound, await_until, command, held, position, Ask, Blocked, Grant, Server, Session,
    Subscriber, Wire, PATIENCE,
};

/// The next use of a lock finds a ticket that arrived with it, at whatever place, though no event reported it.
#[test]
fn the_next_use_of_a_lock_notices_what_came_along() {
    for line in BRINGERS {
        println!("{line}");
        let server = Server::start();
        let (mut c, mut there) = (server.connection(), server.connection_in(1));
        prepare(line, (&mut c, &mut there));
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

/// Two swaps bring the values back: a lock that arrived right before them has its leases watched where it is.
#[test]
fn a_lock_that_comes_before_two_swaps_is_watched() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DEBUG SET-ACTIVE-EXPIRE 0");
    c.run("DLOCK.ACQUIRE k ann 3000 SHARED");
    c.run("DLOCK.ACQUIRE k ben 600000 SHARED");
    let payload: Vec<u8> = c.ask("DUMP k");
    c.run("DEL k");
    let messages = Subscriber::patterns(&server, &["__dlock@0__:*"]);
    let mut all = redis::pipe();
    all.atomic()
        .cmd("RESTORE")
        .arg("k")
        .arg(0)
        .arg(payload)
        .ignore();
    all.add_command(command("SWAPDB 0 1")).ignore();
    all.add_command(command("SWAPDB 0 1")).ignore();
    all.query::<()>(&mut c).expect("a transaction");
    let mut word = String::new();
    // The DEL may be reported first.
    while !word.starts_with("expired ") {
        word = messages.payload();
    }
    assert_eq!(c.ask::<usize>("EXISTS k"), 1);
    assert_sound(&server);
}

/// However many names have waiters, the waiter of a name that receives a value is answered.
#[test]
fn each_of_many_names_without_a_key_is_looked_after() {
    const NAMES: u64 = 3000;
    // While nothing is granted every wait is for a name without a key.
    let server = Server::builder()
        .config("dlock.quarantine-ms", 600_000)
        .start();
    let mut c = server.connection();
    let mut session = Session::begin(&server, "name", "s");
    for at in 0..NAMES {
        c.run(&format!("DLOCK.ACQUIRE name{at} owner 1000 BLOCK 0 IN s"));
    }
    let mut expected = Vec::new();
    for at in (0..NAMES).step_by(7) {
        c.run(&format!("SET name{at} x"));
        expected.push(at);
    }
    let mut told: Vec<u64> = Vec::new();
    while told.len() < expected.len() {
        let (_, word, name, ..) = session.row();
        let at = name.strip_prefix("name");
        assert_eq!(word, "wrongtype", "{name}");
        told.push(at.and_then(|at| at.parse().ok()).expect("a name"));
    }
    told.sort_unstable();
    assert_eq!(told, expected);
    let left: u64 = server.info("dlock").number("dlock_places_queued");
    assert_eq!(left, NAMES - expected.len() as u64);
    assert_sound(&server);
}

/// The scan for keys that appear leaves no trace: it counts no keyspace miss, and raises no event.
#[test]
fn to_look_for_a_key_leaves_no_trace() {
    let (server, mut c, _) = held();
    let _many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k k1 many 600000 BLOCK 0");
    c.run("CONFIG SET notify-keyspace-events KEAm");
    let misses = Subscriber::patterns(&server, &["__keyevent@0__:keymiss"]);
    c.run("CONFIG RESETSTAT");
    for _ in 0..100 {
        c.run("PING");
    }
    let stats = server.info("stats");
    let counted = ["keyspace_misses", "keyspace_hits"].map(|name| stats.number::<u64>(name));
    assert_eq!(counted, [0, 0]);
    assert_eq!(misses.arrived(), []);
}

/// A lock with a holder and a ticket, `a` (in database 1: `k1`), and the command that brings it to `k1` of database 0.
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

/// Prepares the lock, held and with a ticket of `early`, and `k0`, which has waiters on both sides of SWAPDB.
#[track_caller]
fn prepare(line: &str, (c, there): (&mut Wire, &mut Wire)) {
    for connection in [&mut *c, &mut *there] {
        connection.run("DLOCK.ACQUIRE k0 alice 600000");
    }
    let (key, source) = match line.ends_with("MOVE") || line == "SWAPDB" {
        true => ("k1", there),
        false => ("a", c),
    };
    source.run(&format!("DLOCK.ACQUIRE {key} holder 600000"));
    let ticket = format!("DLOCK.FAIRACQUIRE {key} early 600000 CLAIM 600000");
    assert_eq!(source.try_ask(&ticket), Ok(Value::Nil), "{line}");
    assert!(keeps(source, key, "early"), "{line}");
}

/// Brings that lock to `k1` of database 0.
#[track_caller]
fn bring(line: &str, (c, there): (&mut Wire, &mut Wire)) {
    let guarded = |connection: &mut Wire, key: &str, line: &str| {
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
fn at_once(connection: &mut Wire, lines: [&str; 3]) {
    lines.into_iter().for_each(|line| connection.run(line));
}

#[test]
fn a_lock_that_appears_brings_its_tickets_in() {
    for line in BRINGERS {
        println!("{line}");
        let server = Server::start();
        let (mut c, mut there) = (server.connection(), server.connection_in(1));
        prepare(line, (&mut c, &mut there));
        let many = Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0");
        let late = Blocked::start(&server, "DLOCK.ACQUIRE k1 late 600000 BLOCK 0");
        bring(line, (&mut c, &mut there));
        // Reading places does not use the lock.
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

/// Returns true if an owner's name is in the lock's value.
#[track_caller]
fn keeps(connection: &mut Wire, key: &str, owner: &str) -> bool {
    let payload: Vec<u8> = connection.ask(&format!("DUMP {key}"));
    payload
        .windows(owner.len())
        .any(|bytes| bytes == owner.as_bytes())
}

/// A ticket that arrived with a lock does not outlive its window, whether or not a request waited at the name.
#[test]
fn a_ticket_that_comes_along_is_watched_over() {
    for waits in [true, false] {
        for line in BRINGERS {
            println!("{line}, somebody waits: {waits}");
            let server = Server::builder()
                .config("dlock.claim-window-ms", 200)
                .start();
            let (mut c, mut there) = (server.connection(), server.connection_in(1));
            prepare(line, (&mut c, &mut there));
            let many = waits
                .then(|| Blocked::start(&server, "DLOCK.MACQUIRE 2 k0 k1 many 600000 BLOCK 0"));
            // From here on a ticket lasts as long as the default window.
            c.run("CONFIG SET dlock.max-claim-ms 200");
            bring(line, (&mut c, &mut there));
            // No command uses the lock meanwhile: that would make the module notice it.
            await_until("the ticket's window is over", PATIENCE, || {
                !keeps(&mut c, "k1", "early")
            });
            drop(many);
            assert_sound(&server);
        }
    }
}

/// A replica looks for a renamed lock as its primary does, and watches over the ticket once it is promoted.
#[test]
fn a_ticket_that_comes_along_is_watched_over_after_a_failover() {
    let mut primary = Server::start();
    let replica = Server::builder()
        .config("dlock.claim-window-ms", 200)
        .config("dlock.max-claim-ms", 200)
        .start();
    let mut c = primary.connection();
    // More keys than one step of the search passes.
    c.run("DEBUG POPULATE 300000");
    replica.replica_of(&primary);
    c.run("DLOCK.ACQUIRE a holder 600000");
    let ticket = "DLOCK.FAIRACQUIRE a early 600000 CLAIM 600000";
    assert_eq!(c.try_ask(ticket), Ok(Value::Nil));
    c.run("RENAME a k1");
    replica.wait_in_sync(&primary);
    primary.kill9();
    let mut d = replica.connection();
    assert!(keeps(&mut d, "k1", "early"));
    replica.promote();
    await_until("the ticket's window is over", PATIENCE, || {
        !keeps(&mut d, "k1", "early")
    });
    assert_sound(&replica);
}
