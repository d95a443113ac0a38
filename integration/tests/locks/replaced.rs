//! One wait an owner and lock: a newer request takes over the place of an older one, and the older is told so.

use dlock_integration::redis::{Connection, Value};
use dlock_integration::{
    assert_sound, await_until, fair_as, held, is_held, kept, position, stat, wait_as, Ask, Blocked,
    Grant, Queued, Server, Subscriber, PATIENCE,
};

const REPLACED: &str = "REPLACED a newer request of the same owner has taken its place";

/// Who waits for the locks together, in this order.
#[track_caller]
fn many_as(server: &Server, keys: &str, owner: &str) -> Blocked {
    let count = keys.split(' ').count();
    let line = format!("DLOCK.MACQUIRE {count} {keys} {owner} 600000 BLOCK 0");
    Blocked::start(server, &line)
}

#[track_caller]
fn positions<const N: usize>(c: &mut Connection, owners: [&str; N]) -> [Option<u64>; N] {
    owners.map(|owner| position(c, "k", owner))
}

/// The place stays where it was; the request is the newer one's, with its own lease.
#[test]
fn the_newer_request_has_the_place() {
    for (older, newer) in [
        ("ACQUIRE", "ACQUIRE"),
        ("ACQUIRE", "FAIRACQUIRE"),
        ("FAIRACQUIRE", "ACQUIRE"),
        ("FAIRACQUIRE", "FAIRACQUIRE"),
    ] {
        let (server, mut c, _) = held();
        let first = Blocked::start(&server, &format!("DLOCK.{older} k bob 500000 BLOCK 0"));
        let carol = wait_as(&server, "carol");
        let second = Blocked::start(&server, &format!("DLOCK.{newer} k bob 600000 BLOCK 0"));
        assert_eq!(first.refusal(), REPLACED, "{older}, {newer}");
        assert_eq!(positions(&mut c, ["bob", "carol"]), [Some(0), Some(1)]);
        c.run("DLOCK.RELEASE k alice");
        assert_eq!(second.reply::<Grant>().1, 1);
        let (_, holds, left): (u64, u64, u64) = c.ask("DLOCK.HELD k bob");
        assert!(holds == 1 && left > 500_000, "{holds} {left}");
        assert!(carol.is_blocked(&server));
        c.run("DLOCK.RELEASE k bob");
        carol.reply::<Grant>();
        assert_eq!(stat(&server, "replaced_total"), 1);
        assert_sound(&server);
    }
}

/// A client that reconnects stands where it stood, though the server believes that its old connection lives; and the old one's
/// end takes nothing from it.
#[test]
fn a_client_that_reconnects_keeps_its_place() {
    let (server, mut c, _) = held();
    let old = fair_as(&server, "bob");
    let carol = wait_as(&server, "carol");
    let new = fair_as(&server, "bob");
    assert_eq!(old.refusal(), REPLACED);
    let id = old.client_id();
    old.kill();
    server.await_client_gone(id);
    assert_eq!(positions(&mut c, ["bob", "carol"]), [Some(0), Some(1)]);
    c.run("DLOCK.RELEASE k alice");
    new.reply::<Grant>();
    assert!(carol.is_blocked(&server));
    assert_sound(&server);
}

/// Each has its own time-out, and that of the older one is no more.
#[test]
fn the_newer_request_has_its_own_time() {
    let (server, mut c, _) = held();
    let first = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 600000");
    let second = Blocked::send(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 100");
    assert_eq!(first.refusal(), REPLACED);
    assert_eq!(second.outcome(), Ok(Value::Nil));
    assert_eq!(positions(&mut c, ["bob"]), [None]);
    assert_eq!(stat(&server, "timeouts_total"), 1);
    assert_eq!(stat(&server, "connections_waiting"), 0);
}

/// Its limit is its own, too: one that fits at the head of the queue is granted at once, and the older is replaced even so.
#[test]
fn replaced_even_if_the_newer_is_granted_at_once() {
    let server = Server::start();
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k alice 600000 SHARED");
    let writes = wait_as(&server, "bob");
    let behind = Blocked::start(&server, "DLOCK.ACQUIRE k carol 600000 SHARED BLOCK 0");
    let (_, holds): Grant = c.ask("DLOCK.ACQUIRE k bob 600000 SHARED BLOCK 0");
    assert_eq!(holds, 1);
    assert_eq!(writes.refusal(), REPLACED);
    behind.reply::<Grant>();
    assert_eq!(stat(&server, "replaced_total"), 1);
    assert_sound(&server);
}

/// One that does not wait changes nothing.
#[test]
fn who_does_not_wait_replaces_nobody() {
    let (server, mut c, _) = held();
    let bob = fair_as(&server, "bob");
    let before = kept(&mut c, "k");
    for line in [
        "DLOCK.ACQUIRE k bob",
        "DLOCK.ACQUIRE k bob SHARED",
        "DLOCK.FAIRACQUIRE k bob 1000 CLAIM 600000",
        "DLOCK.MACQUIRE 2 k j bob",
    ] {
        assert_eq!(c.try_ask(line), Ok(Value::Nil), "{line}");
    }
    c.run("MULTI");
    c.run("DLOCK.ACQUIRE k bob 1000 BLOCK 0");
    assert_eq!(c.ask::<Vec<Value>>("EXEC"), [Value::Nil]);
    assert_eq!(kept(&mut c, "k"), before);
    assert!(bob.is_blocked(&server));
    assert_eq!(stat(&server, "replaced_total"), 0);
}

/// Whatever a newer request is refused for, the older goes on waiting.
#[test]
fn a_refused_request_replaces_nobody() {
    let server = Server::start();
    let mut c = server.connection();
    for owner in ["alice", "anna"] {
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000 LIMIT 3"));
    }
    c.run("DLOCK.ACQUIRE k eve 600000 LIMIT 3");
    c.run("DLOCK.ACQUIRE x bob 600000");
    let alice = Blocked::start(&server, "DLOCK.ACQUIRE x alice 600000 BLOCK 0");
    // Anna or eve may give back; alone he would need alice to, who waits for him.
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 LIMIT 3 BLOCK 0");
    let mut limited = {
        c.run("ACL SETUSER limited on >p allkeys +@all resetchannels");
        server.connection_as("limited", "p")
    };
    for (line, error) in [
        ("DLOCK.ACQUIRE k bob 600000 BLOCK 0", "DEADLOCK "),
        ("DLOCK.MACQUIRE 2 k y bob 600000 BLOCK 0", "DEADLOCK "),
        ("DLOCK.ACQUIRE k bob 600000 NOTIFY news", "NOPERM "),
        ("DLOCK.ACQUIRE k bob 0 BLOCK 0", "ERR lease-ms "),
        ("DLOCK.FAIRACQUIRE k bob 1 CLAIM 0 BLOCK 0", "ERR CLAIM "),
    ] {
        let refusal = limited.refusal(line);
        assert!(refusal.starts_with(error), "{line}: {refusal}");
    }
    let used: u64 = server.info("memory").number("used_memory");
    c.run("CONFIG SET maxmemory-policy noeviction");
    c.run(&format!("CONFIG SET maxmemory {}", used / 2));
    let refusal = c.refusal("DLOCK.ACQUIRE k bob 600000 LIMIT 3 BLOCK 0");
    assert!(refusal.starts_with("OOM "), "{refusal}");
    c.run("CONFIG SET maxmemory 0");
    assert_eq!(position(&mut c, "k", "bob"), Some(0));
    assert!(bob.is_blocked(&server));
    assert_eq!(stat(&server, "replaced_total"), 0);
    c.run("DLOCK.RELEASE k anna");
    bob.reply::<Grant>();
    c.run("DLOCK.RELEASE x bob");
    alice.reply::<Grant>();
    assert_sound(&server);
}

/// A take-over needs room for what it adds, and that is nothing here.
#[test]
fn a_take_over_needs_no_room() {
    let (server, mut c, _) = held();
    let first = wait_as(&server, "bob");
    for line in ["max-waiters 1", "max-queue 1", "max-places 1"] {
        c.run(&format!("CONFIG SET dlock.{line}"));
    }
    let refusal = c.refusal("DLOCK.ACQUIRE k carol BLOCK 0");
    assert!(refusal.starts_with("QUEUEFULL "), "{refusal}");
    let second = wait_as(&server, "bob");
    assert_eq!(first.refusal(), REPLACED);
    c.run("DLOCK.RELEASE k alice");
    second.reply::<Grant>();
    assert_sound(&server);
}

/// A ticket stays one, with its window; FAIRACQUIRE makes a place a ticket, and that is replicated in the same step.
#[test]
fn a_ticket_is_taken_over_and_made() {
    let (server, mut c, _) = held();
    let replica = Server::start();
    replica.replica_of(&server);
    let ticket = Blocked::start(&server, "DLOCK.FAIRACQUIRE k bob BLOCK 0 CLAIM 600000");
    let plain = wait_as(&server, "carol");
    let last = wait_as(&server, "dave");
    let bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 SHARED BLOCK 0");
    let carol = Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol BLOCK 0 CLAIM 600000");
    assert_eq!(ticket.refusal(), REPLACED);
    assert_eq!(plain.refusal(), REPLACED);
    replica.wait_in_sync(&server);
    let mut r = replica.connection();
    assert_eq!(kept(&mut r, "k"), kept(&mut c, "k"));
    let owners = ["bob", "carol", "dave"];
    assert_eq!(positions(&mut r, owners), [Some(0), Some(1), None]);
    // Both outlive their connections.
    for wait in [bob, carol] {
        let id = wait.client_id();
        wait.kill();
        server.await_client_gone(id);
    }
    await_until("both are absent", PATIENCE, || {
        stat(&server, "connections_waiting") == 1
    });
    assert_eq!(positions(&mut c, owners), [Some(0), Some(1), Some(2)]);
    c.run("DLOCK.RELEASE k alice");
    assert!(last.is_blocked(&server));
    for owner in ["bob", "carol"] {
        // The absent ticket is the owner's own place, whatever it asks with.
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000"));
        c.run(&format!("DLOCK.RELEASE k {owner}"));
    }
    last.reply::<Grant>();
    assert_sound(&server);
    assert_sound(&replica);
}

/// An upgrade that waits is taken over likewise, ahead of the queue.
#[test]
fn an_upgrade_is_taken_over() {
    let server = Server::start();
    let mut c = server.connection();
    for owner in ["alice", "bob"] {
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000 SHARED"));
    }
    let first = wait_as(&server, "bob");
    let carol = wait_as(&server, "carol");
    let second = wait_as(&server, "bob");
    assert_eq!(first.refusal(), REPLACED);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(second.reply::<Grant>().1, 2);
    assert!(carol.is_blocked(&server));
    // A re-entry, which needs no place, ends a wait for more.
    c.run("FLUSHALL");
    carol.reply::<Grant>();
    c.run("DLOCK.RELEASE k carol");
    for owner in ["alice", "bob"] {
        c.run(&format!("DLOCK.ACQUIRE k {owner} 600000 SHARED"));
    }
    let upgrade = wait_as(&server, "bob");
    let (_, holds): Grant = c.ask("DLOCK.ACQUIRE k bob 600000 SHARED BLOCK 0");
    assert_eq!(holds, 2);
    assert_eq!(upgrade.refusal(), REPLACED);
    assert_eq!(stat(&server, "connections_waiting"), 0);
    assert_sound(&server);
}

/// A request for many that is replaced at one lock leaves all of them.
#[test]
fn a_request_for_many_leaves_every_queue() {
    let (server, mut c, _) = held();
    c.run("DLOCK.ACQUIRE j anna 600000");
    let many = many_as(&server, "j k free", "bob");
    let waits = [
        Blocked::start(&server, "DLOCK.ACQUIRE free dave 600000 BLOCK 0"),
        Blocked::start(&server, "DLOCK.ACQUIRE j erin 600000 BLOCK 0"),
    ];
    let carol = wait_as(&server, "carol");
    let bob = wait_as(&server, "bob");
    assert_eq!(many.refusal(), REPLACED);
    waits[0].reply::<Grant>();
    assert_eq!(position(&mut c, "j", "erin"), Some(0));
    // Its place at this lock goes to the newer one.
    assert_eq!(positions(&mut c, ["bob", "carol"]), [Some(0), Some(1)]);
    c.run("DLOCK.RELEASE k alice");
    bob.reply::<Grant>();
    assert!(carol.is_blocked(&server));
    assert_sound(&server);
}

/// It inherits from one of the same keys, however they are ordered.
#[test]
fn a_request_for_the_same_keys_inherits_the_places() {
    let (server, mut c, _) = held();
    let first = many_as(&server, "k j", "bob");
    let carol = wait_as(&server, "carol");
    let other = Blocked::start(&server, "DLOCK.ACQUIRE j dave 600000 BLOCK 0");
    let second = many_as(&server, "j k", "bob");
    assert_eq!(first.refusal(), REPLACED);
    assert_eq!(positions(&mut c, ["bob", "carol"]), [Some(0), Some(1)]);
    assert_eq!(position(&mut c, "j", "bob"), Some(0));
    c.run("DLOCK.RELEASE k alice");
    let tokens: Vec<u64> = second.reply();
    for (key, token) in ["j", "k"].iter().zip(tokens) {
        assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK {key} {token}")), "OK");
    }
    c.run("DLOCK.MRELEASE 2 j k bob");
    carol.reply::<Grant>();
    other.reply::<Grant>();
    assert_sound(&server);
}

/// Any other goes, with its places and tickets, and the newer enters all queues at one instant, at their ends.
#[test]
fn a_request_for_other_keys_enters_all_queues_anew() {
    let (server, mut c, _) = held();
    let single = wait_as(&server, "bob");
    assert_eq!(
        c.try_ask("DLOCK.FAIRACQUIRE j anna 600000 CLAIM 600000")
            .map(|reply| reply != Value::Nil),
        Ok(true)
    );
    let ticket = c.try_ask("DLOCK.FAIRACQUIRE j bob 600000 CLAIM 600000");
    assert_eq!(ticket, Ok(Value::Nil));
    let carol = wait_as(&server, "carol");
    let dave = Blocked::start(&server, "DLOCK.ACQUIRE j dave 600000 BLOCK 0");
    let many = many_as(&server, "k j", "bob");
    assert_eq!(single.refusal(), REPLACED);
    assert_eq!(positions(&mut c, ["carol", "bob"]), [Some(0), Some(1)]);
    assert_eq!(position(&mut c, "j", "dave"), Some(0));
    assert_eq!(position(&mut c, "j", "bob"), Some(1));
    let fewer = many_as(&server, "k free", "bob");
    assert_eq!(many.refusal(), REPLACED);
    assert_eq!(position(&mut c, "j", "bob"), None);
    c.run("DLOCK.RELEASE k alice");
    carol.reply::<Grant>();
    c.run("DLOCK.RELEASE k carol");
    assert_eq!(fewer.reply::<Vec<u64>>().len(), 2);
    c.run("DLOCK.RELEASE j anna");
    dave.reply::<Grant>();
    assert_sound(&server);
}

/// By a channel the older hears of it, whichever way the newer waits.
#[test]
fn who_waits_by_a_channel_is_told() {
    let (server, mut c, _) = held();
    let news = Subscriber::channels(&server, &["news"]);
    let (_, _, first): Queued = c.ask("DLOCK.ACQUIRE k bob 600000 NOTIFY news");
    let (_, place, second): Queued = c.ask("DLOCK.FAIRACQUIRE k bob 600000 NOTIFY news");
    assert_eq!(place, 0);
    let blocked = wait_as(&server, "bob");
    assert_eq!(news.payload(), format!("replaced 0 1:k 3:bob {first}"));
    assert_eq!(news.payload(), format!("replaced 0 1:k 3:bob {second}"));
    assert_eq!(stat(&server, "notify_waiting"), 0);
    c.run("DLOCK.RELEASE k alice");
    blocked.reply::<Grant>();
    assert_eq!(news.arrived(), []);
}

/// In one transaction: the first waits for no more than a moment.
#[test]
fn replaced_within_one_transaction() {
    let (server, mut c, _) = held();
    let news = Subscriber::channels(&server, &["news"]);
    c.run("MULTI");
    for _ in 0..2 {
        c.run("DLOCK.ACQUIRE k bob 600000 NOTIFY news");
    }
    c.run("DLOCK.RELEASE k alice");
    let (first, second, left): (Queued, Queued, u64) = c.ask("EXEC");
    assert_eq!((first.1, second.1, left), (0, 0, 0));
    assert_eq!(news.payload(), format!("replaced 0 1:k 3:bob {}", first.2));
    let granted = news.payload();
    assert!(
        granted.starts_with("granted ") && granted.ends_with(&format!(" {}", second.2)),
        "{granted}"
    );
    assert_sound(&server);
}

/// A hold that arrives under its owner's wait answers it: as a re-entry, or, if it is too weak, as the beginning of an upgrade.
#[test]
fn a_hold_that_arrives_answers_its_owner() {
    for (arrives, dump) in [("RENAME x k", false), ("", true)] {
        let arrive = |c: &mut Connection| {
            if dump {
                let value: Vec<u8> = c.ask("DUMP x");
                let mut restore = dlock_integration::command("RESTORE k 0");
                c.ask_command::<()>(restore.arg(value).arg("REPLACE"));
                c.run("DEL x");
            } else {
                c.run(arrives);
            }
        };
        let (server, mut c, _) = held();
        let (token, _): Grant = c.ask("DLOCK.ACQUIRE x bob 600000");
        let bob = wait_as(&server, "bob");
        let carol = wait_as(&server, "carol");
        arrive(&mut c);
        assert_eq!(bob.reply::<Grant>(), (token, 2));
        assert!(!is_held(&mut c, "k", "alice") && carol.is_blocked(&server));
        c.run("DLOCK.RELEASE k bob HOLDS 0");
        carol.reply::<Grant>();
        c.run("DLOCK.RELEASE k carol");

        c.run("DLOCK.ACQUIRE k alice 600000");
        for owner in ["bob", "erin"] {
            c.run(&format!("DLOCK.ACQUIRE x {owner} 600000 SHARED"));
        }
        let carol = wait_as(&server, "carol");
        let bob = wait_as(&server, "bob");
        assert_eq!(positions(&mut c, ["carol", "bob"]), [Some(0), Some(1)]);
        arrive(&mut c);
        // Now bob's is an upgrade, ahead of the queue.
        assert!(bob.is_blocked(&server) && carol.is_blocked(&server));
        c.run("DLOCK.RELEASE k erin");
        assert_eq!(bob.reply::<Grant>().1, 2);
        assert!(carol.is_blocked(&server));
        assert_sound(&server);
    }
}
