//! Leaving a wait while its connection stays open: CANCEL, then RELEASE down to the earlier count, repeated until the waiting
//! command has answered. In whatever order these meet the request and the grant, nothing is left.

use std::thread;
use std::time::Duration;

use dlock_harness::redis::Value;
use dlock_harness::{
    assert_sound, await_until, position, stat, Ask, Blocked, Server, Wire, PATIENCE,
};

/// The time between two tries.
const WHILE: Duration = Duration::from_millis(5);

/// The other events: the request reaches the server, the holder gives the lock back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Request,
    Grant,
    Cancel,
    Release,
}

use Event::{Cancel, Grant, Release, Request};

/// Returns all orders of the four; CANCEL comes before RELEASE.
fn orders() -> Vec<[Event; 4]> {
    let events = [Request, Grant, Cancel, Release];
    let mut orders = Vec::new();
    for number in 0..256 {
        let order = [0, 2, 4, 6].map(|shift| events[number >> shift & 3]);
        let at = |event| order.iter().position(|&other| other == event);
        let all = events.iter().all(|&event| at(event).is_some());
        if all && at(Cancel) < at(Release) {
            orders.push(order);
        }
    }
    assert_eq!(orders.len(), 12);
    orders
}

/// A wait that is left.
struct Case {
    /// Commands that make the earlier holds.
    before: &'static [&'static str],
    /// The waiting request.
    request: &'static str,
    /// The command that would grant it.
    grant: &'static str,
    /// The command that leaves the wait.
    cancel: &'static str,
    /// The commands that bring bob's holds back to the earlier count.
    releases: &'static [&'static str],
    /// Bob's holds of these locks before and after: key and count.
    holds: &'static [(&'static str, u64)],
}

const CASES: [Case; 4] = [
    Case {
        before: &["DLOCK.ACQUIRE k alice 600000"],
        request: "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
        grant: "DLOCK.RELEASE k alice",
        cancel: "DLOCK.CANCEL k bob",
        releases: &["DLOCK.RELEASE k bob HOLDS 0"],
        holds: &[("k", 0)],
    },
    Case {
        before: &["DLOCK.ACQUIRE k alice 600000"],
        request: "DLOCK.FAIRACQUIRE k bob 600000 BLOCK 0 CLAIM 600000 HOLDS 1 EPHEMERAL",
        grant: "DLOCK.RELEASE k alice",
        cancel: "DLOCK.CANCEL k bob",
        releases: &["DLOCK.RELEASE k bob HOLDS 0"],
        holds: &[("k", 0)],
    },
    // Many locks at once: one is free and one is not.
    Case {
        before: &["DLOCK.ACQUIRE k alice 600000"],
        request: "DLOCK.MACQUIRE 2 k free bob 600000 BLOCK 0",
        grant: "DLOCK.RELEASE k alice",
        cancel: "DLOCK.CANCEL free bob",
        releases: &[
            "DLOCK.RELEASE k bob HOLDS 0",
            "DLOCK.RELEASE free bob HOLDS 0",
        ],
        holds: &[("k", 0), ("free", 0)],
    },
    // An upgrade.
    Case {
        before: &[
            "DLOCK.ACQUIRE k alice 600000 SHARED",
            "DLOCK.ACQUIRE k bob 600000 SHARED",
            "DLOCK.ACQUIRE k bob 600000 SHARED",
        ],
        request: "DLOCK.ACQUIRE k bob 600000 BLOCK 0",
        grant: "DLOCK.RELEASE k alice",
        cancel: "DLOCK.CANCEL k bob",
        releases: &[
            "DLOCK.RELEASE k bob HOLDS 2",
            "DLOCK.DOWNGRADE k bob SHARED",
        ],
        holds: &[("k", 2)],
    },
];

/// Releases the holds that the case may have added.
#[track_caller]
fn give_back(c: &mut Wire, case: &Case) {
    for line in case.releases {
        if let Err(error) = c.try_ask(line) {
            assert!(error.starts_with("NOTHELD "), "{line}: {error}");
        }
    }
}

/// Repeats both commands until the request is answered, and releases once more if the answer was a grant.
#[track_caller]
fn leave(c: &mut Wire, bob: &Blocked, case: &Case) {
    let reply = loop {
        // An answer that has come is final: nothing comes after it.
        if let Some(reply) = bob.outcome_within(WHILE) {
            break reply.expect("null or a grant");
        }
        c.run(case.cancel);
        give_back(c, case);
    };
    if reply != Value::Nil {
        give_back(c, case);
    }
}

/// Asserts that bob has his earlier holds and waits for nothing, and that others are granted the free locks.
#[track_caller]
fn assert_left(server: &Server, c: &mut Wire, case: &Case, what: &str) {
    for (key, holds) in case.holds {
        assert_eq!(position(c, key, "bob"), None, "{what}: {key}");
        let held: Option<(u64, u64, u64)> = c.ask(&format!("DLOCK.HELD {key} bob"));
        let count = held.map_or(0, |(_, holds, _)| holds);
        assert_eq!(count, *holds, "{what}: {key}");
        if *holds == 0 {
            let newcomer: Value = c.ask(&format!("DLOCK.ACQUIRE {key} newcomer 600000"));
            assert!(matches!(newcomer, Value::Array(_)), "{what}: {key}");
            c.run(&format!("DLOCK.RELEASE {key} newcomer"));
        }
    }
    if case.before.iter().any(|line| line.ends_with("SHARED")) {
        // As weak as before: a reader is granted it.
        let reader: Value = c.ask("DLOCK.ACQUIRE k reader 600000 SHARED");
        assert!(matches!(reader, Value::Array(_)), "{what}");
    }
    assert_eq!(stat(server, "places_queued"), 0, "{what}");
    assert_eq!(stat(server, "connections_waiting"), 0, "{what}");
}

#[test]
fn in_every_order_nothing_is_left() {
    for case in &CASES {
        let server = Server::start();
        let mut c = server.connection();
        for order in orders() {
            let what = format!("{} {order:?}", case.request);
            c.run("FLUSHALL");
            case.before.iter().for_each(|line| c.run(line));
            let mut waiting = None;
            for event in order {
                match event {
                    Request => {
                        let bob = Blocked::send(&server, case.request);
                        let granted = order.iter().position(|&event| event == Grant)
                            < order.iter().position(|&event| event == Request);
                        if !granted {
                            await_until("bob is queued", PATIENCE, || bob.is_blocked(&server));
                        }
                        waiting = Some(bob);
                    }
                    Grant => c.run(case.grant),
                    Cancel => c.run(case.cancel),
                    Release => give_back(&mut c, case),
                }
            }
            leave(&mut c, &waiting.expect("a request"), case);
            assert_left(&server, &mut c, case, &what);
        }
        assert_sound(&server);
    }
}

/// The commands race: on three connections at once, and in one iteration of the event loop.
#[test]
fn in_a_race_nothing_is_left() {
    for case in &CASES {
        let server = Server::start();
        let mut c = server.connection();
        for round in 0..60 {
            c.run("FLUSHALL");
            case.before.iter().for_each(|line| c.run(line));
            let bob = Blocked::send(&server, case.request);
            let (mut grants, mut leaves) = (server.connection(), server.connection());
            thread::scope(|scope| {
                scope.spawn(move || grants.ask::<Value>(case.grant));
                scope.spawn(move || {
                    // All at once, so that nothing comes between them; before the grant and after it in turns.
                    let lines = [case.cancel, case.releases[0], case.cancel];
                    let replies = leaves.batch(lines);
                    assert!(replies[0].is_ok(), "{replies:?}");
                });
            });
            leave(&mut c, &bob, case);
            assert_left(&server, &mut c, case, &format!("{} {round}", case.request));
        }
        assert_sound(&server);
    }
}

/// Closing the waiting connection does all of this.
#[test]
fn closing_the_connection_is_the_short_way() {
    for case in &CASES {
        let server = Server::start();
        let mut c = server.connection();
        case.before.iter().for_each(|line| c.run(line));
        let bob = Blocked::start(&server, case.request);
        bob.kill();
        await_until("nobody waits", PATIENCE, || {
            stat(&server, "connections_waiting") == 0
        });
        c.run("DLOCK.CANCEL k bob");
        c.run(case.grant);
        assert_left(&server, &mut c, case, case.request);
        assert_sound(&server);
    }
}
