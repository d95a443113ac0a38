//! Waiting by BLOCK where it is a race, or the real clock counts.

use std::time::{Duration, Instant};

use dlock_integration::redis::{from_redis_value, Connection, Value};
use dlock_integration::{
    await_until, held, position, wait_as, Ask, Blocked, Grant, Server, PATIENCE,
};

/// Alice holds `k`, whatever was before.
fn hold_anew(server: &Server) -> (Connection, u64) {
    let mut alice = server.connection();
    alice.run("FLUSHALL");
    let (token, _): Grant = alice.ask("DLOCK.ACQUIRE k alice 600000");
    (alice, token)
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
