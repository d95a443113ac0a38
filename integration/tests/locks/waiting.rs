//! Waiting by BLOCK: in order, for as long as was said, and for nobody who has left.

use std::time::{Duration, Instant};

use dlock_integration::redis::{cmd, from_redis_value, Connection, Value};
use dlock_integration::{
    await_until, command, held, position, wait_as, Ask, Blocked, Grant, Server, PATIENCE,
};

/// Alice holds `k`, whatever was before.
fn hold_anew(server: &Server) -> (Connection, u64) {
    let mut alice = server.connection();
    alice.run("FLUSHALL");
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000");
    (alice, token)
}

#[test]
fn a_release_hands_the_lock_over() {
    let (server, mut alice, token) = held();
    let bob = wait_as(&server, "bob");
    assert_eq!(position(&mut alice, "k", "bob"), Some(0));
    assert_eq!(alice.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    let (next, holds): Grant = bob.reply();
    assert!(next > token && holds == 1);
    assert_eq!(alice.try_ask("DLOCK.ACQUIRE k alice"), Ok(Value::Nil));
    assert_eq!(position(&mut alice, "k", "bob"), None);
}

#[test]
fn only_the_last_release_hands_over() {
    let (server, mut alice, _) = held();
    alice.run("DLOCK.ACQUIRE k alice");
    let bob = wait_as(&server, "bob");
    assert_eq!(alice.ask::<u64>("DLOCK.RELEASE k alice"), 1);
    assert!(bob.is_blocked(&server));
    assert_eq!(alice.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    bob.reply::<Grant>();
}

#[test]
fn block_on_a_free_lock_is_granted_at_once() {
    let server = Server::start();
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    assert_eq!(bob.reply::<Grant>().1, 1);
}

/// The lease is the waiter's own and starts when it is granted, however long it has waited.
#[test]
fn the_lease_starts_at_the_grant() {
    let (server, mut alice, _) = held();
    let waiting = Instant::now();
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    await_until("bob has waited a while", PATIENCE, || {
        waiting.elapsed() > Duration::from_millis(300)
    });
    let released = Instant::now();
    alice.run("DLOCK.RELEASE k alice");
    bob.reply::<Grant>();
    let (_, _, left): (u64, u64, u64) = alice.ask("DLOCK.HELD k bob");
    let spent = u64::try_from(released.elapsed().as_millis()).expect("not that long");
    assert!(
        left <= 600_000 && left + spent + 2 >= 600_000,
        "{left} ms left, {spent} ms after the release"
    );
}

#[test]
fn time_is_up_after_the_milliseconds_given() {
    let (server, mut alice, _) = held();
    for block in [1, 20, 130] {
        let line = format!("DLOCK.ACQUIRE k bob BLOCK {block}");
        let sent = Instant::now();
        let (reply, at) = Blocked::send(&server, &line).outcome_at();
        assert_eq!(reply, Ok(Value::Nil));
        let waited = at - sent;
        // The server's clock counts whole milliseconds.
        let asked = Duration::from_millis(block);
        assert!(
            waited + Duration::from_millis(1) >= asked,
            "{line} waited {waited:?}"
        );
        assert_eq!(position(&mut alice, "k", "bob"), None);
    }
}

#[test]
fn a_wait_that_ends_makes_room_behind_it() {
    let (server, mut alice, _) = held();
    let bob = Blocked::send(&server, "DLOCK.ACQUIRE k bob BLOCK 500");
    let carol = wait_as(&server, "carol");
    assert_eq!(bob.outcome(), Ok(Value::Nil));
    assert_eq!(position(&mut alice, "k", "carol"), Some(0));
    alice.run("DLOCK.RELEASE k alice");
    carol.reply::<Grant>();
}

#[test]
fn two_hundred_wait_in_order() {
    let (server, mut alice, mut last) = held();
    let waiters: Vec<_> = (0..200)
        .map(|number| wait_as(&server, &format!("owner-{number}")))
        .collect();
    server.await_blocked_clients(200);
    for number in [0, 1, 100, 199] {
        assert_eq!(
            position(&mut alice, "k", &format!("owner-{number}")),
            Some(number)
        );
    }
    alice.run("DLOCK.RELEASE k alice");
    for (number, waiter) in waiters.iter().enumerate() {
        let (token, holds): Grant = waiter.reply();
        assert!(token > last && holds == 1);
        last = token;
        let behind = waiters.len() - number - 1;
        // The reply is the hand-over: nobody else has moved.
        server.await_blocked_clients(behind);
        assert_eq!(
            alice.ask::<u64>(&format!("DLOCK.RELEASE k owner-{number}")),
            0
        );
    }
    assert_eq!(alice.ask::<u64>("EXISTS k"), 0);
}

/// Between a release and the next holder no newcomer ever finds the lock free.
#[test]
fn nobody_is_overtaken() {
    let (server, mut alice, _) = held();
    let waiters: Vec<_> = (0..20)
        .map(|number| wait_as(&server, &format!("owner-{number}")))
        .collect();
    alice.run("DLOCK.RELEASE k alice");
    for (number, waiter) in waiters.iter().enumerate() {
        waiter.reply::<Grant>();
        // A release and a newcomer in one batch, so that nothing can happen between them but the hand-over.
        let release = format!("DLOCK.RELEASE k owner-{number}");
        let [released, newcomer] = server.wire().batch([&*release, "DLOCK.ACQUIRE k newcomer"]);
        assert_eq!(released, Ok(Value::Int(0)));
        let last = number + 1 == waiters.len();
        assert_eq!(newcomer == Ok(Value::Nil), !last);
    }
}

#[test]
fn the_dead_do_not_get_the_lock() {
    let (server, mut alice, _) = held();
    let closes = wait_as(&server, "closes");
    let is_killed = wait_as(&server, "is-killed");
    let lives = wait_as(&server, "lives");
    closes.kill();
    alice.run(&format!("CLIENT KILL ID {}", is_killed.client_id()));
    await_until("the dead have lost their places", PATIENCE, || {
        position(&mut alice, "k", "lives") == Some(0)
    });
    assert_eq!(is_killed.last_words(), []);
    alice.run("DLOCK.RELEASE k alice");
    lives.reply::<Grant>();
}

/// A waiter that is killed in the same breath as it is granted: whoever is next gets the lock.
#[test]
fn a_grant_to_a_client_killed_at_once_is_not_lost() {
    let server = Server::start();
    for with_kill_first in [true, false] {
        for _ in 0..20 {
            hold_anew(&server);
            let dies = wait_as(&server, "dies");
            let next = wait_as(&server, "next");
            let mut lines = [
                format!("CLIENT KILL ID {}", dies.client_id()),
                "DLOCK.RELEASE k alice".to_owned(),
            ];
            if !with_kill_first {
                lines.reverse();
            }
            let replies = server.wire().batch(lines);
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");
            next.reply::<Grant>();
        }
    }
}

#[test]
fn client_unblock_ends_a_wait() {
    let (server, mut alice, _) = held();
    let times_out = wait_as(&server, "times-out");
    let fails = wait_as(&server, "fails");
    let waits = wait_as(&server, "waits");
    assert_eq!(
        alice.ask::<u64>(&format!("CLIENT UNBLOCK {} TIMEOUT", times_out.client_id())),
        1
    );
    assert_eq!(times_out.outcome(), Ok(Value::Nil));
    assert_eq!(
        alice.ask::<u64>(&format!("CLIENT UNBLOCK {} ERROR", fails.client_id())),
        1
    );
    assert!(fails.refusal().starts_with("UNBLOCKED "));
    await_until("their places are gone", PATIENCE, || {
        position(&mut alice, "k", "waits") == Some(0)
    });
    assert_eq!(
        (
            position(&mut alice, "k", "times-out"),
            position(&mut alice, "k", "fails")
        ),
        (None, None)
    );
    alice.run("DLOCK.RELEASE k alice");
    waits.reply::<Grant>();
}

/// What CLIENT UNBLOCK and a release come to that arrive in one batch.
struct Race {
    reason: &'static str,
    unblock_first: bool,
}

impl Race {
    /// However it ends, the client gets exactly one reply and the lock is not lost.
    fn run(&self) {
        let server = Server::start();
        for _ in 0..20 {
            let (mut observer, _) = hold_anew(&server);
            let mut torn = server.wire();
            let id = torn.client_id();
            torn.send("DLOCK.ACQUIRE k torn 100 BLOCK 0");
            await_until("torn waits", PATIENCE, || {
                position(&mut observer, "k", "torn") == Some(0)
            });
            let next = wait_as(&server, "next");

            let mut lines = [
                format!("CLIENT UNBLOCK {id} {}", self.reason),
                "DLOCK.RELEASE k alice".to_owned(),
            ];
            if !self.unblock_first {
                lines.reverse();
            }
            let replies = server.wire().batch(lines);
            assert!(replies.iter().all(Result::is_ok), "{replies:?}");

            match torn.read() {
                Ok(Value::Array(grant)) => assert_eq!(grant.len(), 2),
                Ok(Value::Nil) => assert_eq!(self.reason, "TIMEOUT"),
                Ok(reply) => panic!("neither granted nor refused, but {reply:?}"),
                Err(error) => {
                    assert!(
                        self.reason == "ERROR" && error.starts_with("UNBLOCKED "),
                        "{error}"
                    );
                }
            }
            // Exactly one reply, so the next command's own is the next to come.
            assert_eq!(torn.ask::<String>("PING"), "PONG");
            next.reply::<Grant>();
        }
    }
}

#[test]
fn unblocked_by_timeout_just_before_the_grant() {
    let (reason, unblock_first) = ("TIMEOUT", true);
    Race {
        reason,
        unblock_first,
    }
    .run();
}

#[test]
fn unblocked_by_timeout_just_after_the_grant() {
    let (reason, unblock_first) = ("TIMEOUT", false);
    Race {
        reason,
        unblock_first,
    }
    .run();
}

#[test]
fn unblocked_by_error_just_before_the_grant() {
    let (reason, unblock_first) = ("ERROR", true);
    Race {
        reason,
        unblock_first,
    }
    .run();
}

#[test]
fn unblocked_by_error_just_after_the_grant() {
    let (reason, unblock_first) = ("ERROR", false);
    Race {
        reason,
        unblock_first,
    }
    .run();
}

#[test]
fn a_transaction_does_not_wait() {
    let (_server, mut alice, _) = held();
    alice.run("MULTI");
    alice.run("DLOCK.ACQUIRE k bob BLOCK 0");
    alice.run("DLOCK.FAIRACQUIRE k carol BLOCK 0");
    alice.run("DLOCK.ACQUIRE free bob BLOCK 0");
    let Value::Array(replies) = alice.ask::<Value>("EXEC") else {
        panic!("no array")
    };
    assert_eq!(replies[..2], [Value::Nil, Value::Nil]);
    assert!(matches!(replies[2], Value::Array(_)), "{replies:?}");
    assert_eq!(position(&mut alice, "k", "bob"), None);
}

#[test]
fn a_script_does_not_wait() {
    let (_server, mut alice, _) = held();
    let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 'bob', '1000', 'BLOCK', '0')";
    let reply = alice.answer(cmd("EVAL").arg(script).arg(1).arg("k"));
    // A script sees a null array as false, and false becomes a null.
    assert_eq!(reply, Ok(Value::Nil));
    assert!(matches!(
        alice.answer(cmd("EVAL").arg(script).arg(1).arg("free")),
        Ok(Value::Array(_))
    ));
    assert_eq!(position(&mut alice, "k", "bob"), None);
}

#[test]
fn a_release_in_a_transaction_or_script_hands_over() {
    let (server, mut alice, _) = held();
    let bob = wait_as(&server, "bob");
    let carol = wait_as(&server, "carol");
    alice.run("MULTI");
    alice.run("DLOCK.RELEASE k alice");
    alice.run("DLOCK.ACQUIRE k alice");
    let Value::Array(replies) = alice.ask::<Value>("EXEC") else {
        panic!("no array")
    };
    assert_eq!(replies, [Value::Int(0), Value::Nil]);
    bob.reply::<Grant>();
    let script = "return redis.call('DLOCK.RELEASE', KEYS[1], 'bob')";
    assert_eq!(
        alice.answer(cmd("EVAL").arg(script).arg(1).arg("k")),
        Ok(Value::Int(0))
    );
    carol.reply::<Grant>();
}

#[test]
fn forced_release_hands_over() {
    let (server, mut alice, _) = held();
    let bob = wait_as(&server, "bob");
    assert_eq!(alice.ask::<u64>("DLOCK.FORCERELEASE k"), 1);
    bob.reply::<Grant>();
    assert!(alice
        .refusal("DLOCK.RELEASE k alice")
        .starts_with("NOTHELD "));
}

#[test]
fn commands_behind_a_wait_follow_it() {
    let (server, mut alice, _) = held();
    let mut wire = server.wire();
    wire.send("DLOCK.ACQUIRE k bob BLOCK 0");
    wire.send("DLOCK.RELEASE k bob");
    wire.send("PING");
    await_until("bob waits", PATIENCE, || {
        position(&mut alice, "k", "bob") == Some(0)
    });
    alice.run("DLOCK.RELEASE k alice");
    assert!(matches!(wire.read(), Ok(Value::Array(_))));
    assert_eq!(wire.read(), Ok(Value::Int(0)));
    assert_eq!(wire.read(), Ok(Value::SimpleString("PONG".into())));
}

#[test]
fn resp3_waits_too() {
    let (server, mut alice, token) = held();
    let mut wire = server.wire();
    wire.ask::<Value>("HELLO 3");
    let bob = Blocked::send_on(wire, &command("DLOCK.ACQUIRE k bob BLOCK 0"), "bob");
    await_until("bob waits", PATIENCE, || {
        position(&mut alice, "k", "bob") == Some(0)
    });
    alice.run("DLOCK.RELEASE k alice");
    assert!(bob.reply::<Grant>().0 > token);
}

/// The server's own name for a waiter is one of the client that it has granted.
#[test]
fn an_owner_named_by_the_server_can_wait() {
    let (server, mut alice, token) = held();
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k * 600000 BLOCK 0");
    alice.run("DLOCK.RELEASE k alice");
    let (next, holds, owner): (u64, u64, String) = bob.reply();
    assert!(next > token && holds == 1);
    assert_eq!(alice.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
}

#[test]
fn a_holder_re_enters_past_the_queue() {
    let (server, mut alice, token) = held();
    let bob = wait_as(&server, "bob");
    assert_eq!(alice.ask::<Grant>("DLOCK.ACQUIRE k alice"), (token, 2));
    assert_eq!(
        alice.ask::<Grant>("DLOCK.ACQUIRE k alice BLOCK 0"),
        (token, 3)
    );
    assert!(bob.is_blocked(&server));
}

#[test]
fn info_shows_who_waits() {
    let (server, mut alice, _) = held();
    let bob = wait_as(&server, "bob");
    let info: std::collections::HashMap<String, Value> = alice.ask("DLOCK.INFO k");
    assert_eq!(info["queued"], Value::Int(1));
    let queue: Vec<std::collections::HashMap<String, Value>> =
        dlock_integration::redis::from_redis_value(&info["queue"]).expect("an array of maps");
    let [place] = queue.as_slice() else {
        panic!("one place, not {queue:?}")
    };
    assert_eq!(place["owner"], Value::BulkString(b"bob".to_vec()));
    assert_eq!(place["limit"], Value::Int(1));
    assert_eq!(
        place["client"],
        Value::Int(i64::try_from(bob.client_id()).expect("a small number"))
    );
    let kind: String = dlock_integration::redis::from_redis_value(&place["kind"]).expect("a text");
    assert_eq!(kind, "waiter");
    assert!(place.contains_key("waited-ms") && place.contains_key("left-ms"));
}

/// What happened to a lock of another database just before does not have the connection wait there.
#[test]
fn a_connection_waits_in_its_own_database() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE here one 600000");
    let mut elsewhere = server.connection_in(1);
    elsewhere.run("DLOCK.ACQUIRE there one 600000");
    // All in one turn of the event loop: the module hears of both locks' new TTLs as it runs the last of them, and looks at the
    // other database's last.
    let lines = [
        "PEXPIRE here 500000",
        "SELECT 1",
        "PEXPIRE there 500000",
        "SELECT 0",
        "DLOCK.ACQUIRE here two BLOCK 0",
    ];
    let mut wire = server.wire();
    wire.send_bytes((lines.join("\r\n") + "\r\n").as_bytes())
        .expect("the server reads");
    for _ in 1..lines.len() {
        wire.read().expect("an answer");
    }
    server.await_blocked_clients(1);
    c.run("DLOCK.RELEASE here one");
    let grant = wire.read().expect("the lock");
    assert_eq!(from_redis_value::<Grant>(&grant).expect("a grant").1, 1);
    // Freed of the key it was blocked on: the server checks that when it unblocks.
    assert_eq!(wire.ask::<String>("PING"), "PONG");
}
