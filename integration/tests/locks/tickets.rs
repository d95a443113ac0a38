//! Tickets: places in the queue that outlast a wait and a connection, and for how long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dlock_integration::redis::{from_redis_value, Connection, Value};
use dlock_integration::{
    at_once, await_until, held, position, Ask, Blocked, Grant, Server, PATIENCE,
};

/// What kind of place each owner has, in order.
fn queue(connection: &mut Connection) -> Vec<(String, String)> {
    let info: HashMap<String, Value> = connection.ask("DLOCK.INFO k");
    let places: Vec<HashMap<String, Value>> =
        from_redis_value(&info["queue"]).expect("an array of maps");
    let text = |value: &Value| from_redis_value(value).expect("a text");
    places
        .iter()
        .map(|place| (text(&place["owner"]), text(&place["kind"])))
        .collect()
}

/// The milliseconds left of the first place that `DLOCK.INFO` shows.
fn left_ms(info: &Value) -> u64 {
    let info: HashMap<String, Value> = from_redis_value(info).expect("a map");
    let places: Vec<HashMap<String, Value>> =
        from_redis_value(&info["queue"]).expect("an array of maps");
    from_redis_value(&places[0]["left-ms"]).expect("a number")
}

fn state(connection: &mut Connection) -> String {
    let info: HashMap<String, Value> = connection.ask("DLOCK.INFO k");
    from_redis_value(&info["state"]).expect("a text")
}

fn pair(owner: &str, kind: &str) -> (String, String) {
    (owner.into(), kind.into())
}

fn await_gone(connection: &mut Connection, owner: &str) {
    await_until(&format!("{owner} has no place"), PATIENCE, || {
        position(connection, "k", owner).is_none()
    });
}

#[test]
fn a_free_lock_is_granted_at_once() {
    let server = Server::start();
    let mut alice = server.connection();
    let (token, holds): Grant = alice.ask("DLOCK.FAIRACQUIRE k alice 600000");
    assert_eq!(holds, 1);
    assert_eq!(
        alice.ask::<Grant>("DLOCK.FAIRACQUIRE k alice 600000 BLOCK 0"),
        (token, 2)
    );
    assert_eq!(
        alice.ask::<Grant>("DLOCK.FAIRACQUIRE k alice 600000 HOLDS 2 CLAIM 1000"),
        (token, 2)
    );
    assert_eq!(
        alice.ask::<Grant>("DLOCK.ACQUIRE k alice 600000"),
        (token, 3)
    );
    let (_, _, owner): (u64, u64, String) = alice.ask("DLOCK.ACQUIRE other *");
    assert_eq!(owner.len(), 36);
}

/// Who polls keeps the place of the first poll.
#[test]
fn polling_keeps_a_place() {
    let (_server, mut c, _) = held();
    for owner in ["bob", "carol", "dave"] {
        assert_eq!(
            c.try_ask(&format!("DLOCK.FAIRACQUIRE k {owner} CLAIM 600000")),
            Ok(Value::Nil)
        );
    }
    for owner in ["dave", "bob", "carol"] {
        assert_eq!(
            c.try_ask(&format!("DLOCK.FAIRACQUIRE k {owner} CLAIM 600000")),
            Ok(Value::Nil)
        );
    }
    let positions: Vec<_> = ["bob", "carol", "dave"]
        .iter()
        .map(|owner| position(&mut c, "k", owner))
        .collect();
    assert_eq!(positions, [Some(0), Some(1), Some(2)]);
    c.run("DLOCK.RELEASE k alice");

    // Free, but bob's: neither a newcomer nor who stands behind him can have it.
    assert_eq!(state(&mut c), "reserved");
    assert_eq!(c.try_ask("DLOCK.ACQUIRE k newcomer"), Ok(Value::Nil));
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE k carol CLAIM 600000"),
        Ok(Value::Nil)
    );
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE k alice CLAIM 600000"),
        Ok(Value::Nil)
    );
    assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE k bob").1, 1);
    assert_eq!(position(&mut c, "k", "bob"), None);
    assert_eq!(
        (
            position(&mut c, "k", "carol"),
            position(&mut c, "k", "alice")
        ),
        (Some(0), Some(2))
    );
    assert_eq!(state(&mut c), "held");
}

/// An ordinary ACQUIRE takes up the owner's place too: an owner has one place in the queue.
#[test]
fn an_ordinary_request_finds_its_owners_ticket() {
    let (_server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(c.try_ask("DLOCK.ACQUIRE k carol"), Ok(Value::Nil));
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE k bob").1, 1);
    assert_eq!(position(&mut c, "k", "bob"), None);
}

/// A lock that nobody holds but somebody has a ticket for is a key like any other lock.
#[test]
fn a_reserved_lock_exists() {
    let (_server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(c.ask::<String>("TYPE k"), "dlock-obj");
    assert_eq!(c.ask::<i64>("PTTL k"), -1);
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k bob"), 1);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}

#[test]
fn a_present_head_is_granted_at_once() {
    let (server, mut c, _) = held();
    let bob = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob 60000 BLOCK 0");
    let carol = Blocked::start(
        &server,
        "DLOCK.FAIRACQUIRE k carol 60000 BLOCK 0 CLAIM 60000",
    );
    assert_eq!(
        queue(&mut c),
        [pair("bob", "ticket"), pair("carol", "ticket")]
    );
    c.run("DLOCK.RELEASE k alice");
    let (first, _): Grant = bob.reply();
    c.run("DLOCK.RELEASE k bob");
    assert!(carol.reply::<Grant>().0 > first);
}

#[test]
fn tickets_and_waiters_stand_in_one_queue() {
    let (server, mut c, _) = held();
    let waiter = Blocked::start(&server, "DLOCK.ACQUIRE k waiter BLOCK 0");
    c.run("DLOCK.FAIRACQUIRE k polls CLAIM 600000");
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k ticket BLOCK 0");
    let last = Blocked::start(&server, "DLOCK.ACQUIRE k last BLOCK 0");
    let expected = [
        pair("waiter", "waiter"),
        pair("polls", "absent"),
        pair("ticket", "ticket"),
        pair("last", "waiter"),
    ];
    assert_eq!(queue(&mut c), expected);
    c.run("DLOCK.RELEASE k alice");
    waiter.reply::<Grant>();
    c.run("DLOCK.RELEASE k waiter");
    assert!(ticket.is_blocked(&server));
    assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE k polls").1, 1);
    c.run("DLOCK.RELEASE k polls");
    ticket.reply::<Grant>();
    c.run("DLOCK.RELEASE k ticket");
    last.reply::<Grant>();
}

#[test]
fn an_absent_head_reserves_the_lock_for_its_window_only() {
    let (server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol BLOCK 0");
    let polled = Instant::now();
    let [.., info] = at_once(
        &server,
        [
            "DLOCK.FAIRACQUIRE k bob CLAIM 300",
            "DLOCK.RELEASE k alice",
            "DLOCK.INFO k",
        ],
    );
    let info: HashMap<String, Value> = from_redis_value(&info).expect("a map");
    assert_eq!(info["state"], Value::BulkString(b"reserved".to_vec()));
    let (reply, at) = carol.outcome_at();
    assert!(reply.is_ok(), "{reply:?}");
    // The server's clock counts whole milliseconds.
    let waited = at - polled;
    assert!(waited >= Duration::from_millis(299), "{waited:?}");
    assert_eq!(position(&mut c, "k", "bob"), None);
}

#[test]
fn each_poll_starts_the_window_anew() {
    let (server, mut c, _) = held();
    const POLL: &str = "DLOCK.FAIRACQUIRE k bob CLAIM 600000";
    c.run(POLL);
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol BLOCK 0");
    for _ in 0..3 {
        await_until("some of the window has passed", PATIENCE, || {
            let info = c.ask("DLOCK.INFO k");
            left_ms(&info) < 599_900
        });
        let [_, info] = at_once(&server, [POLL, "DLOCK.INFO k"]);
        assert!(left_ms(&info) >= 599_990, "{info:?}");
    }
    assert_eq!(
        (position(&mut c, "k", "bob"), position(&mut c, "k", "carol")),
        (Some(0), Some(1))
    );
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE k bob").1, 1);
    assert!(carol.is_blocked(&server));
}

/// Wherever it stands and whoever holds the lock, an absent ticket is dropped when its window ends.
#[test]
fn an_absent_ticket_behind_others_is_dropped_too() {
    let (server, mut c, _) = held();
    let _bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob BLOCK 0");
    let [.., dave] = at_once(
        &server,
        [
            "DLOCK.FAIRACQUIRE k carol CLAIM 100",
            "DLOCK.FAIRACQUIRE k dave CLAIM 600000",
            "DLOCK.POSITION k dave",
        ],
    );
    assert_eq!(dave, Value::Int(2));
    await_gone(&mut c, "carol");
    assert_eq!(
        (position(&mut c, "k", "bob"), position(&mut c, "k", "dave")),
        (Some(0), Some(1))
    );
}

#[test]
fn the_last_ticket_takes_the_key_with_it() {
    let (_server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 100");
    c.run("DLOCK.RELEASE k alice");
    await_until("the key is gone", PATIENCE, || {
        c.ask::<u64>("EXISTS k") == 0
    });
}

#[test]
fn the_default_window_is_configured() {
    let (server, mut c, _) = held();
    c.run("CONFIG SET dlock.claim-window-ms 100");
    let [_, bob] = at_once(&server, ["DLOCK.FAIRACQUIRE k bob", "DLOCK.POSITION k bob"]);
    assert_eq!(bob, Value::Int(0));
    await_gone(&mut c, "bob");
}

#[test]
fn without_claim_a_place_ends_with_its_wait() {
    let (server, mut c, _) = held();
    let bob = Blocked::send(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 50");
    assert_eq!(bob.outcome(), Ok(Value::Nil));
    assert_eq!(position(&mut c, "k", "bob"), None);

    let carol = Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol BLOCK 0");
    let dave = Blocked::start(&server, "DLOCK.ACQUIRE k dave BLOCK 0");
    carol.kill();
    await_gone(&mut c, "carol");
    c.run("DLOCK.RELEASE k alice");
    dave.reply::<Grant>();
}

#[test]
fn with_claim_a_place_outlasts_its_wait() {
    let (server, mut c, _) = held();
    let line = "DLOCK.FAIRACQUIRE k bob BLOCK 50 CLAIM 600000";
    assert_eq!(Blocked::send(&server, line).outcome(), Ok(Value::Nil));
    assert_eq!(queue(&mut c), [pair("bob", "absent")]);

    // The next slice of the wait finds the place again.
    let _carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol BLOCK 0");
    let bob = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 0 CLAIM 600000");
    assert_eq!(
        queue(&mut c),
        [pair("bob", "ticket"), pair("carol", "waiter")]
    );

    // So does a new connection.
    bob.kill();
    await_until("bob is absent", PATIENCE, || {
        queue(&mut c) == [pair("bob", "absent"), pair("carol", "waiter")]
    });
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(state(&mut c), "reserved");
    let bob = Blocked::send(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 0");
    assert_eq!(bob.reply::<Grant>().1, 1);
}

/// The window starts when the client has left, not when it came.
#[test]
fn the_window_of_a_wait_starts_at_its_end() {
    let (server, mut c, _) = held();
    let sent = Instant::now();
    let line = "DLOCK.FAIRACQUIRE k bob BLOCK 300 CLAIM 200";
    assert_eq!(Blocked::send(&server, line).outcome(), Ok(Value::Nil));
    await_gone(&mut c, "bob");
    let waited = sent.elapsed();
    assert!(
        waited >= Duration::from_millis(499),
        "gone after {waited:?}"
    );
}

#[test]
fn cancel_removes_a_ticket() {
    let (_server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    c.run("DLOCK.FAIRACQUIRE k carol CLAIM 600000");
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k bob"), 1);
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k bob"), 0);
    assert_eq!(
        (position(&mut c, "k", "bob"), position(&mut c, "k", "carol")),
        (None, Some(0))
    );
}

#[test]
fn cancel_answers_who_was_blocked() {
    let (server, mut c, _) = held();
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k ticket BLOCK 0 CLAIM 600000");
    let waiter = Blocked::start(&server, "DLOCK.ACQUIRE k waiter BLOCK 0");
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k ticket"), 1);
    assert_eq!(ticket.outcome(), Ok(Value::Nil));
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k waiter"), 1);
    assert_eq!(waiter.outcome(), Ok(Value::Nil));
    assert_eq!(queue(&mut c), []);
}

#[test]
fn cancelling_an_absent_head_serves_the_next() {
    let (server, mut c, _) = held();
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    let carol = Blocked::start(&server, "DLOCK.ACQUIRE k carol BLOCK 0");
    c.run("DLOCK.RELEASE k alice");
    assert!(carol.is_blocked(&server));
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k bob"), 1);
    carol.reply::<Grant>();
}

/// Cancelling is about places, never about holds.
#[test]
fn cancel_does_not_touch_a_holder() {
    let (_server, mut c, _) = held();
    assert_eq!(c.ask::<u64>("DLOCK.CANCEL k alice"), 0);
    assert_eq!(c.ask::<u64>("DLOCK.RELEASE k alice"), 0);
}

#[test]
fn a_ticket_in_a_transaction_polls() {
    let (_server, mut c, _) = held();
    c.run("MULTI");
    c.run("DLOCK.FAIRACQUIRE k bob BLOCK 0");
    assert_eq!(c.try_ask("EXEC"), Ok(Value::Array(vec![Value::Nil])));
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(c.ask::<Grant>("DLOCK.FAIRACQUIRE k bob").1, 1);
}

/// One owner, one connection that waits and one that polls: the place belongs to both.
#[test]
fn a_poll_does_not_disturb_a_wait() {
    let (server, mut c, _) = held();
    let bob = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 0");
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE k bob CLAIM 600000"),
        Ok(Value::Nil)
    );
    assert_eq!(queue(&mut c), [pair("bob", "ticket")]);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(bob.reply::<Grant>().1, 1);
}

/// An owner that the server names learns its name from the grant only: it leaves no ticket that nobody could claim.
#[test]
fn an_owner_without_a_name_yet_leaves_no_ticket() {
    let (server, mut c, _) = held();
    for (line, error) in [
        (
            "DLOCK.FAIRACQUIRE k *",
            "ERR owner must be a name: * needs BLOCK with DLOCK.FAIRACQUIRE",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 CLAIM 1000",
            "ERR CLAIM cannot be combined with owner *",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 NOTIFY news",
            "ERR NOTIFY cannot be combined with owner *",
        ),
        (
            "DLOCK.FAIRACQUIRE k * BLOCK 100 HOLDS 1",
            "ERR HOLDS cannot be combined with owner *",
        ),
    ] {
        assert_eq!(c.refusal(line), error, "{line}");
    }
    let script = "EVAL return(redis.call('DLOCK.FAIRACQUIRE',KEYS[1],'*','BLOCK','0')) 1 k";
    assert_eq!(c.try_ask(script), Ok(Value::Nil));
    c.run("MULTI");
    c.run("DLOCK.FAIRACQUIRE k * BLOCK 0");
    assert_eq!(c.try_ask("EXEC"), Ok(Value::Array(vec![Value::Nil])));
    assert_eq!(queue(&mut c), []);
    // A wait that the server may keep is a ticket for as long as it lasts.
    let fresh = Blocked::start(&server, "DLOCK.FAIRACQUIRE k * 600000 BLOCK 0");
    let kinds: Vec<String> = queue(&mut c).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, ["ticket"]);
    c.run("DLOCK.RELEASE k alice");
    let (_, holds, owner): (u64, u64, String) = fresh.reply();
    assert_eq!((holds, owner.len()), (1, 36));
    assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}
