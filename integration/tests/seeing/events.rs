//! Notifications: unlock messages, keyspace events, the configuration, and a node of a cluster.

use std::collections::HashMap;
use std::slice;
use std::thread;
use std::time::Duration;

use dlock_harness::cluster::join;
use dlock_harness::redis::{cmd, Value};
use dlock_harness::{
    assert_sound, at_once, await_until, Ask, Blocked, Grant, Server, Subscriber, Wire, PATIENCE,
};

/// Subscribes to all messages of the module, of every lock and database.
fn listen(server: &Server) -> Subscriber {
    Subscriber::patterns(server, &["__dlock@*"])
}

/// Returns the messages so far: all events of commands answered on this connection have been processed.
#[track_caller]
fn heard(subscriber: &Subscriber, connection: &mut Wire) -> Vec<(String, String)> {
    // This command makes the module process everything that an earlier command left for its next event.
    connection.run("DLOCK.HELD none none");
    connection.run("PUBLISH __dlock@end end");
    let mut messages = Vec::new();
    loop {
        let message = subscriber.message();
        if message.channel == "__dlock@end" {
            return messages;
        }
        messages.push((message.channel, message.payload));
    }
}

fn take(connection: &mut Wire, key: &str, owner: &str, lease_ms: u64) -> u64 {
    let (token, _): Grant = connection.ask(&format!("DLOCK.ACQUIRE {key} {owner} {lease_ms}"));
    token
}

fn said(channel: &str, word: &str, token: u64) -> (String, String) {
    (channel.into(), format!("{word} {token}"))
}

/// Each server notifies its own subscribers: a replica's receive the messages that the primary's receive.
#[test]
fn a_replica_tells_its_own_subscribers() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let subscriber = listen(&replica);
    let mut c = primary.connection();
    let ways = [
        ("DLOCK.RELEASE k alice", "released"),
        ("DLOCK.FORCERELEASE k", "forced"),
        ("DEL k", "removed"),
        ("SET k value", "removed"),
        // An expiry that EXPIRE has set before the lease's.
        ("PEXPIRE k 60", "removed"),
    ];
    for (line, word) in ways {
        c.run("DEL k");
        let token = take(&mut c, "k", "alice", 600_000);
        c.run(line);
        assert_eq!(subscriber.payload(), format!("{word} {token}"));
    }
    c.run("DEL k");
    let token = take(&mut c, "k", "alice", 600_000);
    let bob = Blocked::start(&primary, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run("DLOCK.RENEW k alice 30");
    let (next, _): Grant = bob.reply();
    assert_eq!(subscriber.payload(), format!("expired {token}"));
    c.run("FLUSHDB");
    let flushed = subscriber.message();
    assert_eq!(
        (flushed.channel.as_str(), flushed.payload.as_str()),
        ("__dlock@0__", "flushed"),
        "{next}"
    );
    let token = take(&mut c, "k", "alice", 20);
    assert_eq!(subscriber.payload(), format!("expired {token}"));
    replica.wait_in_sync(&primary);
    assert_eq!(heard(&subscriber, &mut replica.connection()), []);
}

/// Where nobody subscribes, most messages of a burst are not published. A client that then subscribes, next to a subscriber of
/// something else, receives the messages of its lock in the next burst.
#[test]
fn a_subscriber_hears_the_next_burst() {
    const LOCKS: usize = 20;
    let server = Server::start();
    let _other = Subscriber::channels(&server, &["news"]);
    let mut c = server.connection();
    let mut burst = || {
        let locks = (0..LOCKS).map(|lock| format!("k{lock}"));
        let tokens: Vec<u64> = locks
            .clone()
            .map(|lock| take(&mut c, &lock, "alice", 600_000))
            .collect();
        let released = c.pipeline(locks.map(|lock| format!("DLOCK.RELEASE {lock} alice")));
        assert_eq!(released, [const { Value::Int(0) }; LOCKS]);
        tokens[LOCKS - 1]
    };
    let last = format!("__dlock@0__:k{}", LOCKS - 1);
    for (pattern, kind) in [(&*last, "channel"), ("__dlock@*", "pattern")] {
        // Within a second the module forgets a subscriber.
        thread::sleep(Duration::from_millis(1_200));
        burst();
        let subscriber = match kind {
            "channel" => Subscriber::channels(&server, &[pattern]),
            _ => Subscriber::patterns(&server, &[pattern]),
        };
        let token = burst();
        let heard = loop {
            let message = subscriber.message();
            if message.channel == last {
                break message.payload;
            }
        };
        assert_eq!(heard, format!("released {token}"), "{kind}");
    }
}

#[test]
fn notify_sharded_outside_of_a_cluster() {
    let server = Server::builder().config("dlock.notify", "sharded").start();
    let plain = listen(&server);
    let sharded = Subscriber::shard_channels(&server, &["__dlock@0__:{k}"]);
    let mut c = server.connection();
    let token = take(&mut c, "k", "alice", 600_000);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(sharded.payload(), format!("released {token}"));
    assert_eq!(heard(&plain, &mut c), []);
}

/// Keyspace events of the keys of database 0, as `event key`.
struct Events(Subscriber);

impl Events {
    fn of(server: &Server) -> Events {
        Events(Subscriber::patterns(server, &["__keyevent@0__:*"]))
    }

    /// Returns the events until the end mark.
    #[track_caller]
    fn until_end(&self, server: &Server) -> Vec<String> {
        let mut c = server.connection();
        c.run("DLOCK.HELD none none");
        c.run("PUBLISH __keyevent@0__:end end");
        let mut all = Vec::new();
        loop {
            let event = self.next();
            if event == "end end" {
                return all;
            }
            all.push(event);
        }
    }

    #[track_caller]
    fn next(&self) -> String {
        let message = self.0.message();
        let event = message.channel.trim_start_matches("__keyevent@0__:");
        format!("{event} {}", message.payload)
    }
}

/// Events follow the enabled classes and kinds.
#[test]
fn keyspace_events_are_gated() {
    let server = Server::start();
    let events = Events::of(&server);
    let space = Subscriber::patterns(&server, &["__keyspace@0__:k"]);
    let mut c = server.connection();
    for (classes, told) in [
        ("", false),
        ("d", false),
        ("Eg", false),
        ("KEgx$", false),
        ("Ed", true),
        ("EA", true),
    ] {
        c.ask_command::<Value>(
            cmd("CONFIG")
                .arg("SET")
                .arg("notify-keyspace-events")
                .arg(classes),
        );
        c.run("DLOCK.ACQUIRE k alice");
        let all = events.until_end(&server);
        assert_eq!(
            all.iter().any(|event| event == "dlock.acquired k"),
            told,
            "{classes}: {all:?}"
        );
        c.run("DLOCK.RELEASE k alice");
        events.until_end(&server);
        assert_eq!(space.arrived(), [], "{classes}");
    }
    c.run("CONFIG SET notify-keyspace-events Kd");
    c.run("DLOCK.ACQUIRE k alice");
    assert_eq!(space.payload(), "dlock.acquired");
    assert_eq!(events.until_end(&server), [""; 0]);
}

/// Each setting with a value that is not its default, and an invalid one.
const SETTINGS: [(&str, &str, &str); 20] = [
    ("log-max-len", "22", "-1"),
    ("log-slower-than-ms", "-1", "-2"),
    ("default-lease-ms", "1234000", "0"),
    ("max-lease-ms", "1234567", "-1"),
    ("claim-window-ms", "4321", "x"),
    ("max-claim-ms", "543210", "0"),
    ("max-queue", "17", "0"),
    ("max-waiters", "18", "-5"),
    ("max-sessions", "20", "0"),
    ("max-places", "19", "99999999999999999999"),
    ("max-holders", "20", "1.5"),
    ("notify", "none", "loud"),
    ("max-hold-ms", "7654321", "-1"),
    ("quarantine-ms", "60000", "-1"),
    ("deadlock-detection", "no", "1"),
    ("deadlock-max-steps", "21", "0"),
    ("grants", "no", "maybe"),
    ("on-panic", "abort", "exit"),
    ("replicas", "2", "101"),
    ("ack-timeout-ms", "1500", "0"),
];

#[test]
fn settings_survive_a_rewrite_and_a_restart() {
    let mut server = Server::start();
    let mut c = server.connection();
    let all: HashMap<String, String> = c.ask("CONFIG GET dlock.*");
    assert_eq!(all.len(), SETTINGS.len(), "{all:?}");
    for (name, value, bad) in SETTINGS {
        let before: (String, String) = c.ask(&format!("CONFIG GET dlock.{name}"));
        let error = c.refusal(&format!("CONFIG SET dlock.{name} {bad}"));
        assert!(error.contains(&format!("dlock.{name}")), "{error}");
        assert_eq!(
            c.ask::<(String, String)>(&format!("CONFIG GET dlock.{name}")),
            before
        );
        assert_ne!(before.1, value, "{name}");
        c.run(&format!("CONFIG SET dlock.{name} {value}"));
    }
    c.run("CONFIG REWRITE");
    server.restart();
    let mut c = server.connection();
    for (name, value, _) in SETTINGS {
        let now: (String, String) = c.ask(&format!("CONFIG GET dlock.{name}"));
        assert_eq!(now.1, value, "{name}");
    }
    // They are in force: without the configured replicas nothing would be granted.
    c.run("CONFIG SET dlock.replicas 0");
    assert!(c.refusal("DLOCK.ACQUIRE k alice").starts_with("QUARANTINE"));
    c.run("CONFIG SET dlock.grants yes");
    assert!(c.refusal("DLOCK.ACQUIRE k alice").starts_with("QUARANTINE"));
    c.run("CONFIG SET dlock.quarantine-ms 0");
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE k alice").1, 1);
    let (_, _, left): (u64, u64, u64) = c.ask("DLOCK.HELD k alice");
    assert!(left <= 1_234_000 && left > 600_000);
    assert!(c
        .refusal("DLOCK.ACQUIRE k alice 1234568")
        .starts_with("ERR lease-ms"));
    for place in 0..17 {
        c.run(&format!("DLOCK.FAIRACQUIRE k owner{place} CLAIM 543210"));
    }
    assert!(c
        .refusal("DLOCK.FAIRACQUIRE k more")
        .starts_with("QUEUEFULL"));
    assert!(c
        .refusal("DLOCK.FAIRACQUIRE k more CLAIM 543211")
        .starts_with("ERR CLAIM"));
    let subscriber = listen(&server);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(heard(&subscriber, &mut c), []);
    assert_sound(&server);
}

/// Returns a node of a cluster that serves all slots, and a connection to it.
fn node() -> (Server, Wire) {
    let server = Server::builder()
        .cluster()
        .config("cluster-require-full-coverage", "no")
        .start();
    server.serve_all_slots();
    let connection = server.connection();
    (server, connection)
}

#[test]
fn messages_of_a_cluster_are_sharded() {
    let (server, mut c) = node();
    let braced = Subscriber::shard_channels(&server, &["__dlock@0__:{k}"]);
    let tagged = Subscriber::shard_channels(&server, &["__dlock@0__:{tag}k"]);
    let plain = listen(&server);
    let token = take(&mut c, "k", "alice", 600_000);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(braced.payload(), format!("released {token}"));
    let token = take(&mut c, "{tag}k", "alice", 600_000);
    c.run("DEL {tag}k");
    assert_eq!(tagged.payload(), format!("removed {token}"));
    let token = take(&mut c, "k", "alice", 30);
    assert_eq!(braced.payload(), format!("expired {token}"));
    let token = take(&mut c, "k", "alice", 600_000);
    let _bob = Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    c.run("DLOCK.RENEW k alice 30");
    assert_eq!(braced.payload(), format!("expired {token}"));
    c.run("CONFIG SET dlock.notify pubsub");
    let (token, ..): (u64, u64, u64) = c.ask("DLOCK.HELD k bob");
    c.run("DLOCK.RELEASE k bob");
    let last = plain.message();
    assert_eq!(
        (last.channel, last.payload),
        said("__dlock@0__:k", "released", token)
    );
    assert_eq!(braced.next(Duration::from_millis(20)), None);
    c.run("FLUSHALL");
    let flushed = plain.message();
    assert_eq!(
        (flushed.channel.as_str(), flushed.payload.as_str()),
        ("__dlock@0__", "flushed")
    );
    // A cluster has no other databases that could have been emptied.
    let token = take(&mut c, "k", "alice", 600_000);
    c.run("DLOCK.RELEASE k alice");
    assert_eq!(plain.payload(), format!("released {token}"));
    assert_sound(&server);
}

/// All nodes pass a plain message on, so a replica that empties itself, too, says nothing.
#[test]
fn a_flush_is_one_message_in_a_cluster() {
    let (server, mut c) = node();
    c.run("CONFIG SET dlock.notify pubsub");
    let replica = Server::builder().cluster().start();
    replica.connection().run("CONFIG SET dlock.notify pubsub");
    join(slice::from_ref(&server), slice::from_ref(&replica));
    let plain = listen(&server);
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("FLUSHALL");
    replica.wait_in_sync(&server);
    assert_eq!(plain.payload(), "flushed");
    assert_eq!(plain.next(Duration::from_millis(200)), None);
}

/// The channel of a key's messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    /// On a sharded channel that ends with the key in braces.
    Braced,
    /// On a sharded channel that ends with the key, which has a tag.
    Tagged,
    /// On the plain channel.
    Plainly,
}

/// The sharded channel is in the lock's slot, whatever the key looks like: the node that owns the slot can publish in no other.
/// Messages of a key that no braces can put there go to the plain channel.
#[test]
fn the_sharded_channel_is_in_the_locks_slot() {
    use Told::{Braced, Plainly, Tagged};
    let (server, mut c) = node();
    for (key, told) in [
        ("k", Braced),
        ("{k", Braced),
        ("{tag}k", Tagged),
        ("a{tag}b", Tagged),
        ("a}b", Plainly),
        ("k}", Plainly),
        ("}k{", Plainly),
        ("{}k", Plainly),
    ] {
        let (bare, braced) = (
            format!("__dlock@0__:{key}"),
            format!("__dlock@0__:{{{key}}}"),
        );
        let subscribers = [
            (Braced, Subscriber::shard_channels(&server, &[&braced])),
            (Tagged, Subscriber::shard_channels(&server, &[&bare])),
            (Plainly, Subscriber::channels(&server, &[&bare, &braced])),
        ];
        let token = take(&mut c, key, "alice", 600_000);
        c.run(&format!("DLOCK.RELEASE {key} alice"));
        for (way, subscriber) in &subscribers {
            if *way == told {
                assert_eq!(subscriber.payload(), format!("released {token}"), "{key}");
            }
        }
        for (way, subscriber) in &subscribers {
            assert_eq!(subscriber.arrived(), [], "{key}: {way:?}");
        }
        let channel = match told {
            Braced => braced,
            Tagged => bare,
            Plainly => continue,
        };
        let mut slot = |name: &str| c.ask::<u64>(&format!("CLUSTER KEYSLOT {name}"));
        assert_eq!(slot(&channel), slot(key), "{channel}");
    }
}

/// A node that no longer serves the slot redirects the waiters and grants nothing there.
#[test]
fn a_slot_that_is_given_up_frees_nothing() {
    let (server, mut c) = node();
    let token = take(&mut c, "k", "alice", 600_000);
    take(&mut c, "other", "alice", 600_000);
    let waits = [
        Blocked::start(&server, "DLOCK.ACQUIRE k bob 600000 BLOCK 0"),
        Blocked::start(&server, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0"),
    ];
    let elsewhere = Blocked::start(&server, "DLOCK.ACQUIRE other bob 600000 BLOCK 0");
    let slot: u64 = c.ask("CLUSTER KEYSLOT k");
    // Its lease ends when the slot is given up, and not before: nothing comes between these.
    at_once(
        &server,
        [
            "DLOCK.RENEW other alice 100",
            "DLOCK.RENEW k alice 100",
            &format!("CLUSTER DELSLOTS {slot}"),
        ],
    );
    for wait in &waits {
        let error = wait.refusal();
        assert!(
            ["CLUSTERDOWN", "MOVED", "UNBLOCKED"]
                .iter()
                .any(|code| error.starts_with(code)),
            "{error}"
        );
    }
    // Other slots are still served.
    elsewhere.reply::<Grant>();
    assert!(c.refusal("DLOCK.HELD k alice").starts_with("CLUSTERDOWN"));
    c.run(&format!("CLUSTER ADDSLOTS {slot}"));
    await_until("the slot is served again", PATIENCE, || {
        c.try_ask("DLOCK.HELD k alice").is_ok()
    });
    // No request waits any longer, or only absent tickets do: the lock comes free when the lease and windows are over.
    await_until("the lock is free", PATIENCE, || {
        c.try_ask("DLOCK.ACQUIRE k dave 600000")
            .is_ok_and(|reply| reply != Value::Nil)
    });
    let (next, ..): (u64, u64, u64) = c.ask("DLOCK.HELD k dave");
    assert!(next > token);
    assert_sound(&server);
}
