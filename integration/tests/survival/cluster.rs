//! Two nodes of a cluster: locks that move from one to the other, and their waiters meanwhile.

use crate::connections::sessions::Held;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_harness::cluster::join;
use dlock_harness::redis::{from_redis_value, Cmd, Value};
use dlock_harness::{
    assert_sound, await_until, command, stat, Ask, Blocked, Grant, News, Queued, Server, Session,
    Subscriber, Wire, PATIENCE,
};

/// How long a test observes that nothing happens.
const WHILE: Duration = Duration::from_millis(250);

/// Two nodes that know each other. The first serves all slots.
struct Nodes {
    one: Server,
    two: Server,
    one_id: String,
    two_id: String,
}

impl Nodes {
    #[track_caller]
    fn start() -> Nodes {
        let node = || {
            Server::builder()
                .cluster()
                .config("cluster-require-full-coverage", "no")
                .start()
        };
        let nodes = [node(), node()];
        nodes[0].serve_all_slots();
        join(&nodes, &[]);
        let [one, two] = nodes;
        let id = |node: &Server| node.connection().ask("CLUSTER MYID");
        let (one_id, two_id) = (id(&one), id(&two));
        Nodes {
            one,
            two,
            one_id,
            two_id,
        }
    }

    fn connections(&self) -> (Wire, Wire) {
        (self.one.connection(), self.two.connection())
    }

    fn slot(&self, key: &str) -> u64 {
        let line = format!("CLUSTER KEYSLOT {key}");
        self.one.connection().ask(&line)
    }

    /// Begins the migration of the key's slot to the second node.
    fn begin_move(&self, key: &str) {
        let (mut c, mut d) = self.connections();
        let (slot, one, two) = (self.slot(key), &self.one_id, &self.two_id);
        d.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {one}"));
        c.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {two}"));
    }

    /// Migrates a key.
    fn carry(&self, key: &str) {
        let line = format!("MIGRATE 127.0.0.1 {} {key} 0 60000", self.two.port());
        let moved: String = self.one.connection().ask(&line);
        assert_eq!(moved, "OK", "{key}");
    }

    /// Assigns the key's slot to the second node.
    fn end_move(&self, key: &str) {
        let (mut c, mut d) = self.connections();
        let line = format!("CLUSTER SETSLOT {} NODE {}", self.slot(key), self.two_id);
        d.run(&line);
        c.run(&line);
    }

    /// Makes the servers move the key's slot with all its keys in one step. Returns whether they can.
    fn move_at_once(&self, key: &str) -> bool {
        self.move_to(&self.two, key)
    }

    /// Moves the key's slot in one step, in either direction. Returns whether the servers can.
    fn move_to(&self, target: &Server, key: &str) -> bool {
        let (source, id) = match target.port() == self.two.port() {
            true => (&self.one, &self.two_id),
            false => (&self.two, &self.one_id),
        };
        let (mut c, mut d) = (source.connection(), target.connection());
        let (slot, version) = (self.slot(key), self.one.version());
        if version.is_valkey(9, 0) {
            c.run(&format!(
                "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"
            ));
        } else if version.is_redis(8, 4) {
            d.run(&format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
        } else {
            return false;
        }
        let moved = format!("MOVED {slot} 127.0.0.1:{}", target.port());
        await_until("the slot is the other node's", PATIENCE, || {
            c.try_ask(&format!("DLOCK.INFO {key}")) == Err(moved.clone())
        });
        await_until("the target serves it", PATIENCE, || {
            d.try_ask(&format!("DLOCK.INFO {key}")).is_ok()
        });
        true
    }

    /// Gives the second node a slot that stays: a node that loses its last slot becomes a replica.
    fn settle_the_second(&self) {
        self.begin_move("{stays}");
        self.end_move("{stays}");
    }

    /// Ends the migration: the slot stays at the first node.
    fn call_off(&self, key: &str) {
        let (mut c, mut d) = self.connections();
        let line = format!("CLUSTER SETSLOT {} STABLE", self.slot(key));
        c.run(&line);
        d.run(&line);
    }

    /// Asserts that an error redirects a client to the second node.
    #[track_caller]
    fn assert_sent_on(&self, error: &str) {
        let there = format!("127.0.0.1:{}", self.two.port());
        assert!(
            error.starts_with("MOVED") && error.ends_with(&there),
            "{error}"
        );
    }

    #[track_caller]
    fn assert_sound(&self) {
        assert_sound(&self.one);
        assert_sound(&self.two);
    }
}

#[track_caller]
fn take(connection: &mut Wire, key: &str, owner: &str, lease_ms: u64) -> u64 {
    let line = format!("DLOCK.ACQUIRE {key} {owner} {lease_ms}");
    connection.ask::<Grant>(&line).0
}

/// Waits until no request waits at this node, and nothing is queued there.
#[track_caller]
fn await_no_places(server: &Server) {
    for name in ["places_queued", "connections_waiting"] {
        await_until(name, PATIENCE, || stat(server, name) == 0);
    }
}

#[test]
fn a_lock_that_moves_to_another_node_frees_nothing() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    let token = take(&mut c, "k", "alice", 600_000);
    let bob = Blocked::start(&nodes.one, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let carol = Blocked::start(&nodes.one, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0");
    nodes.begin_move("k");
    nodes.carry("k");
    // Gone from here with its holder: no waiter has been granted it.
    assert_eq!(bob.outcome_within(WHILE), None);
    nodes.end_move("k");
    nodes.assert_sent_on(&bob.refusal());
    nodes.assert_sent_on(&carol.refusal());
    // The lock and its ticket live on over there.
    assert_eq!(d.ask::<String>(&format!("DLOCK.CHECK k {token}")), "OK");
    assert_eq!(d.ask::<Option<u64>>("DLOCK.POSITION k carol"), Some(0));
    assert_eq!(d.ask::<Option<u64>>("DLOCK.POSITION k bob"), None);
    let carol = Blocked::start(&nodes.two, "DLOCK.FAIRACQUIRE k carol 600000 BLOCK 0");
    assert_eq!(d.ask::<u64>("DLOCK.RELEASE k alice"), 0);
    let (next, _): Grant = carol.reply();
    assert!(next > token);
    await_no_places(&nodes.one);
    nodes.assert_sound();
}

/// In a migrating slot no waiter is granted a lock, until one node serves the slot.
#[test]
fn nobody_is_granted_in_a_slot_that_migrates_away() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    let mut granted = Vec::new();
    let releases = [
        "DLOCK.RENEW k alice 100",
        "DLOCK.RELEASE k alice",
        "DLOCK.FORCERELEASE k",
        "DEL k",
    ];
    for (at, release) in releases.into_iter().enumerate() {
        let key = format!("{{k}}{at}");
        take(&mut c, &key, "alice", 600_000);
        let line = format!("DLOCK.ACQUIRE {key} bob 600000 BLOCK 0");
        let bob = Blocked::start(&nodes.one, &line);
        nodes.begin_move(&key);
        c.run(&release.replace(" k", &format!(" {key}")));
        let held = format!("DLOCK.HELD {key} alice");
        await_until("the hold is over", PATIENCE, || {
            // A node without the key redirects requests.
            c.try_ask(&held).map_or(true, |reply| reply == Value::Nil)
        });
        let reply = bob.outcome_within(WHILE);
        nodes.call_off(&key);
        match reply {
            None => assert_eq!(bob.reply::<Grant>().1, 1),
            Some(reply) => granted.push((release, reply)),
        }
    }
    assert_eq!(granted, []);
    nodes.assert_sound();
}

#[test]
fn a_slot_s_leaving_tells_sessions_to_ask_again() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    take(&mut c, "k", "alice", 600_000);
    let _: Queued = c.ask("DLOCK.ACQUIRE k bob 600000 BLOCK 0 IN s");
    nodes.begin_move("k");
    nodes.carry("k");
    nodes.end_move("k");
    assert_eq!(session.told(), "again k bob");
    await_no_places(&nodes.one);
    nodes.assert_sound();
}

/// A node answers for its own slots, and redirects requests for others.
#[test]
fn many_locks_are_of_one_slot_of_one_node() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    nodes.begin_move("{there}");
    nodes.end_move("{there}");
    for verb in ["MACQUIRE", "MRENEW", "MRELEASE"] {
        let elsewhere = c.refusal(&format!("DLOCK.{verb} 2 {{there}}a {{there}}b bob"));
        nodes.assert_sent_on(&elsewhere);
        for keys in ["{here}a {there}a", "{there}a {here}a", "{here}a {other}a"] {
            let error = c.refusal(&format!("DLOCK.{verb} 2 {keys} bob"));
            assert!(error.starts_with("CROSSSLOT"), "{verb} {keys}: {error}");
        }
    }
    for (connection, tag) in [(&mut c, "here"), (&mut d, "there")] {
        assert_eq!(connection.ask::<u64>("DBSIZE"), 0);
        let keys = format!("2 {{{tag}}}a {{{tag}}}b bob");
        let tokens: Vec<u64> = connection.ask(&format!("DLOCK.MACQUIRE {keys} 600000"));
        assert_eq!(tokens.len(), 2);
        assert_eq!(connection.ask::<u64>("DBSIZE"), 2);
        let left: Vec<Option<u64>> = connection.ask(&format!("DLOCK.MRELEASE {keys}"));
        assert_eq!(left, [Some(0), Some(0)]);
    }
    nodes.assert_sound();
}

/// While a slot migrates, this node answers only requests whose keys are all still here.
#[test]
fn many_locks_of_a_slot_on_its_way() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    for key in ["{k}a", "{k}b"] {
        take(&mut c, key, "alice", 600_000);
    }
    nodes.begin_move("{k}");
    let both: Vec<u64> = c.ask("DLOCK.MACQUIRE 2 {k}a {k}b alice 600000");
    assert_eq!(both.len(), 2);
    nodes.carry("{k}b");
    for line in [
        "DLOCK.MACQUIRE 2 {k}a {k}b alice 600000",
        "DLOCK.MACQUIRE 2 {k}a {k}new bob 600000 BLOCK 0",
    ] {
        let error = c.refusal(line);
        assert!(error.starts_with("TRYAGAIN"), "{error}");
    }
    nodes.carry("{k}a");
    let error = c.refusal("DLOCK.MACQUIRE 2 {k}a {k}b alice 600000");
    assert!(error.starts_with("ASK"), "{error}");
    nodes.end_move("{k}");
    let mut d = nodes.two.connection();
    let again: Vec<u64> = d.ask("DLOCK.MACQUIRE 2 {k}a {k}b alice 600000");
    assert_eq!(again, both);
    nodes.assert_sound();
}

const REQUEST: &str = "DLOCK.MACQUIRE 2 {k}a {k}b bob 600000 BLOCK 0";

/// A request for many locks waits when its slot moves away: it is granted none on the way, and no queue keeps it.
#[test]
fn who_waits_for_many_locks_is_sent_on() {
    for release in ["", "DLOCK.RELEASE {k}a alice", "DEL {k}a"] {
        let nodes = Nodes::start();
        let (mut c, mut d) = nodes.connections();
        let mut session = Session::begin(&nodes.one, "{here}", "s");
        take(&mut c, "{k}a", "alice", 600_000);
        take(&mut c, "{k}c", "erin", 600_000);
        let waits = [
            REQUEST,
            "DLOCK.MACQUIRE 3 {k}c {k}b {k}a carol 600000 SHARED BLOCK 0",
            // Behind bob, at a free lock.
            "DLOCK.ACQUIRE {k}b dave 600000 BLOCK 0",
        ];
        let waits = waits.map(|line| Blocked::start(&nodes.one, line));
        let _: Queued = c.ask("DLOCK.ACQUIRE {k}b frank 600000 BLOCK 0 IN s");
        nodes.begin_move("{k}");
        if release.is_empty() {
            nodes.carry("{k}a");
        } else {
            c.run(release);
        }
        nodes.carry("{k}c");
        for wait in &waits {
            assert_eq!(wait.outcome_within(WHILE), None, "{release}");
        }
        nodes.end_move("{k}");
        for wait in &waits {
            nodes.assert_sent_on(&wait.refusal());
        }
        assert_eq!(session.told(), "again {k}b frank");
        await_no_places(&nodes.one);
        assert_eq!(stat(&nodes.one, "locks"), 0);
        // Over there no queue has the clients that only waited.
        for owner in ["bob", "carol", "dave", "frank"] {
            for key in ["{k}a", "{k}b", "{k}c"] {
                let held: Value = d.ask(&format!("DLOCK.HELD {key} {owner}"));
                let queued: Value = d.ask(&format!("DLOCK.POSITION {key} {owner}"));
                assert_eq!((held, queued), (Value::Nil, Value::Nil), "{key} {owner}");
            }
        }
        let mut bob = Blocked::send(&nodes.two, REQUEST);
        if release.is_empty() {
            bob.await_blocked(&nodes.two);
            d.run("DLOCK.RELEASE {k}a alice");
        }
        assert_eq!(bob.reply::<Vec<u64>>().len(), 2);
        nodes.assert_sound();
    }
}

/// A slot whose keys all move in one step, instead of one by one.
#[test]
fn a_slot_that_moves_at_once_takes_its_locks_along() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    let mut dies = nodes.one.connection();
    for key in ["{k}ephemeral", "{k}contended"] {
        dies.run(&format!("DLOCK.ACQUIRE {key} sam 600000 EPHEMERAL"));
    }
    let short = take(&mut c, "{k}short", "alice", 600_000);
    let waits = [
        "DLOCK.ACQUIRE {k}short bob 600000 BLOCK 0",
        "DLOCK.FAIRACQUIRE {k}short carol 600000 BLOCK 0",
        "DLOCK.MACQUIRE 2 {k}free {k}contended dave 600000 BLOCK 0",
    ];
    let waits = waits.map(|line| Blocked::start(&nodes.one, line));
    let _: Queued = c.ask("DLOCK.ACQUIRE {k}contended frank BLOCK 0 IN s");
    c.run("DLOCK.FAIRACQUIRE {k}short polls CLAIM 600000");
    // Time enough for the move.
    c.run("DLOCK.RENEW {k}short alice 12000");
    if !nodes.move_at_once("{k}") {
        return;
    }
    for wait in &waits {
        nodes.assert_sent_on(&wait.refusal());
    }
    assert_eq!(session.told(), "again {k}contended frank");
    drop(dies);
    await_no_places(&nodes.one);
    for name in ["locks", "ephemeral"] {
        await_until(name, PATIENCE, || stat(&nodes.one, name) == 0);
    }
    // Over there the holds continue until their leases end, and the tickets stand, whether or not a command uses them.
    let told = Subscriber::shard_channels(&nodes.two, &["__dlock@0__:{k}short"]);
    assert_eq!(told.payload(), format!("expired {short}"));
    await_until("carol's window is over", PATIENCE, || {
        stat(&nodes.two, "places_queued") == 1
    });
    assert_eq!(
        d.ask::<Option<u64>>("DLOCK.POSITION {k}short polls"),
        Some(0)
    );
    for key in ["{k}ephemeral", "{k}contended"] {
        let held: Option<Vec<u64>> = d.ask(&format!("DLOCK.HELD {key} sam"));
        assert!(held.is_some(), "{key}");
    }
    nodes.assert_sound();
}

/// The tie stays behind with the connection; the lease runs on at the target, where the client ties its hold again.
#[test]
fn renewals_stay_behind_when_a_slot_moves() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    let (mut alice, mut there) = (nodes.one.connection(), nodes.two.connection());
    let token = take(&mut c, "k", "alice", 600_000);
    take(&mut c, "{k}off", "alice", 600_000);
    alice.ask::<u64>("DLOCK.MRENEW 2 k {k}off alice 600000 EPHEMERAL AUTO 0");
    assert_eq!(stat(&nodes.one, "auto_renewed"), 2);
    let end: u64 = c.ask("PEXPIRETIME k");
    nodes.begin_move("k");
    nodes.carry("k");
    c.run("DLOCK.RELEASE {k}off alice");
    nodes.end_move("k");
    await_until("the ties are gone", PATIENCE, || {
        stat(&nodes.one, "auto_renewed") == 0 && stat(&nodes.one, "ephemeral") == 0
    });
    alice.close();
    assert_eq!(stat(&nodes.two, "auto_renewed"), 0);
    // MIGRATE adds its own duration to a key's TTL. The target's module corrects the TTL once the slot is its node's.
    await_until("the key ends with the lease", PATIENCE, || {
        d.ask::<u64>("PEXPIRETIME k") == end
    });
    there.ask::<u64>(&format!(
        "DLOCK.RENEW k alice 600000 TOKEN {token} EPHEMERAL AUTO 0"
    ));
    assert_eq!(stat(&nodes.two, "auto_renewed"), 1);
    there.close();
    await_until("the hold has ended", PATIENCE, || {
        d.ask::<Option<Vec<u64>>>("DLOCK.HELD k alice").is_none()
    });
    nodes.assert_sound();
}

/// The holds of an ended connection end in a migrating slot, too, as by its own RELEASE; but no waiter is granted a lock there.
#[test]
fn ephemeral_holds_end_in_a_slot_on_its_way() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    let mut dies = nodes.one.connection();
    for key in ["moves", "stays"] {
        dies.run(&format!("DLOCK.ACQUIRE {key} sam 600000 EPHEMERAL"));
    }
    let [moves, stays] = ["moves", "stays"].map(|key| {
        let line = format!("DLOCK.FAIRACQUIRE {key} next 600000 BLOCK 0");
        Blocked::start(&nodes.one, &line)
    });
    nodes.begin_move("moves");
    drop(dies);
    stays.reply::<Grant>();
    await_until("the hold has ended", PATIENCE, || {
        c.ask::<Option<Vec<u64>>>("DLOCK.HELD moves sam").is_none()
    });
    assert_eq!(moves.outcome_within(WHILE), None);
    nodes.call_off("moves");
    moves.reply::<Grant>();
    nodes.assert_sound();
}

/// A server renews as long as it has the key, on either side of a move: it also accepts its owner's RENEW there.
#[test]
fn renewals_go_on_in_a_slot_on_its_way() {
    const LEASE_MS: u64 = 3_000;
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    let keys = ["{k}alone", "{k}wanted"];
    let tokens = keys.map(|key| take(&mut c, key, "alice", 600_000));
    c.run("DLOCK.FAIRACQUIRE {k}wanted bob 600000 CLAIM 600000");
    nodes.begin_move("{k}");
    let (mut here, mut there) = (nodes.one.connection(), nodes.two.connection());
    for key in keys {
        here.ask::<u64>(&format!("DLOCK.RENEW {key} alice {LEASE_MS} AUTO 0"));
    }
    assert_renewed("ping", &mut c, &keys, LEASE_MS);
    for (key, token) in keys.iter().zip(tokens) {
        here.ask::<u64>(&format!("DLOCK.RENEW {key} alice 600000"));
        nodes.carry(key);
        let line = format!("DLOCK.RENEW {key} alice {LEASE_MS} TOKEN {token} AUTO 0");
        there.ask::<String>("ASKING");
        there.ask::<u64>(&line);
    }
    assert_renewed("asking", &mut d, &keys, LEASE_MS);
    nodes.end_move("{k}");
    assert_renewed("ping", &mut d, &keys, LEASE_MS);
    nodes.assert_sound();
}

/// Asserts that each key is held for longer than its lease lasts. Sends `first` before each check.
#[track_caller]
fn assert_renewed(first: &str, connection: &mut Wire, keys: &[&str], lease_ms: u64) {
    for key in keys {
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_millis(lease_ms + 500) {
            connection.run(first);
            let held: Option<Vec<u64>> = connection.ask(&format!("DLOCK.HELD {key} alice"));
            assert!(held.is_some(), "{key} is held no longer");
            sleep(Duration::from_millis(50));
        }
    }
}

/// A way in which a slot with all its keys, these, goes to the second node.
type Way = fn(&Nodes, &[&str]);

/// Returns every way that the servers have, by name.
fn ways(nodes: &Nodes) -> Vec<(&'static str, Way)> {
    let mut ways: Vec<(&str, Way)> = vec![
        ("key by key", |nodes, keys| {
            nodes.begin_move(keys[0]);
            keys.iter().for_each(|key| nodes.carry(key));
            nodes.end_move(keys[0]);
        }),
        ("many keys at once", |nodes, keys| {
            nodes.begin_move(keys[0]);
            let moved: String = nodes.one.connection().ask_command(&nodes.migration(keys));
            assert_eq!(moved, "OK");
            nodes.end_move(keys[0]);
        }),
        ("in a transaction", |nodes, keys| {
            nodes.begin_move(keys[0]);
            let mut c = nodes.one.connection();
            c.run("MULTI");
            let queued: String = c.ask_command(&nodes.migration(keys));
            assert_eq!(queued, "QUEUED");
            assert_eq!(c.ask::<Vec<String>>("EXEC"), ["OK"]);
            nodes.end_move(keys[0]);
        }),
        ("without its keys", |nodes, keys| nodes.take_over(keys[0])),
    ];
    let version = nodes.one.version();
    if version.is_redis(8, 4) || version.is_valkey(9, 0) {
        ways.push(("in one step", |nodes, keys| {
            assert!(nodes.move_at_once(keys[0]));
        }));
    }
    if version.is_redis(8, 4) {
        // As long as any client caches keys.
        ways.push(("in one step, but key by key", |nodes, keys| {
            let mut caches = nodes.one.connection_resp3();
            caches.run("CLIENT TRACKING ON");
            let mut exist = command("EXISTS");
            let leaving: u64 = caches.ask_command(exist.arg(keys));
            let others = stat(&nodes.one, "locks") - leaving;
            assert!(nodes.move_at_once(keys[0]));
            await_until("the keys have gone", PATIENCE, || {
                stat(&nodes.one, "locks") == others
            });
        }));
    }
    ways
}

impl Nodes {
    /// Returns the command that migrates keys.
    fn migration(&self, keys: &[&str]) -> Cmd {
        let mut migrate = command(&format!("MIGRATE 127.0.0.1 {}", self.two.port()));
        migrate.arg("").arg(0).arg(60_000).arg("KEYS").arg(keys);
        migrate
    }

    /// Makes the second node claim the key's slot; the first learns of it, and drops its keys of the slot.
    #[track_caller]
    fn take_over(&self, key: &str) {
        let (mut c, mut d) = self.connections();
        let slot = self.slot(key);
        d.run(&format!("CLUSTER SETSLOT {slot} NODE {}", self.two_id));
        let moved = format!("MOVED {slot} 127.0.0.1:{}", self.two.port());
        await_until("the slot is the other node's", PATIENCE, || {
            // The higher of two claims counts.
            d.run("CLUSTER BUMPEPOCH");
            c.try_ask(&format!("DLOCK.INFO {key}")) == Err(moved.clone())
        });
    }

    /// Waits until the first node keeps nothing of a slot, though every connection is still open.
    #[track_caller]
    fn await_nothing_left(&self, way: &str) {
        self.await_nothing_left_of(way, 0);
    }

    /// Waits until the first node keeps nothing of a slot, where `others` other locks have holders and waiters.
    #[track_caller]
    fn await_nothing_left_of(&self, way: &str, others: u64) {
        for (name, left) in [
            ("locks", others),
            ("holders", others),
            ("places_queued", others),
            ("connections_waiting", others),
            ("ephemeral", 0),
        ] {
            let what = format!("{way}: {name} is {left}");
            await_until(&what, PATIENCE, || stat(&self.one, name) == left);
        }
    }
}

/// Returns the ends in the unlock messages of a node so far.
#[track_caller]
fn ends_told(news: &Subscriber, c: &mut Wire) -> Vec<String> {
    // This command makes the module process everything that an earlier command left for its next event.
    c.run("DLOCK.STATS");
    c.run("PUBLISH __dlock@end end");
    let mut told = Vec::new();
    loop {
        let message = news.message();
        if message.channel == "__dlock@end" {
            return told;
        }
        told.push(message.payload);
    }
}

/// Returns the counters of ends of holds.
fn ends_counted(server: &Server) -> [u64; 4] {
    [
        "removed_total",
        "expired_total",
        "closed_total",
        "holds_total",
    ]
    .map(|name| stat(server, name))
}

/// A lock that leaves with its slot continues elsewhere: its holds have not ended, and nothing of it stays behind.
#[test]
fn a_lock_that_leaves_with_its_slot_ends_no_hold() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    c.run("CONFIG SET dlock.notify pubsub");
    let ends = Subscriber::patterns(&nodes.one, &["__dlock@*"]);
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    for (way, go) in ways(&nodes) {
        println!("{way}");
        // A slot for each.
        let name = |name: &str| format!("{{{way}}}{name}").replace(' ', "-");
        let (quiet, wanted, shared) = (name("quiet"), name("wanted"), name("shared"));
        // A connection that stays: its ties must go nevertheless.
        let mut tied = nodes.one.connection();
        let mut tie =
            |key: &str| -> Grant { tied.ask(&format!("DLOCK.ACQUIRE {key} sam 600000 EPHEMERAL")) };
        let tokens = [tie(&quiet).0, tie(&wanted).0];
        for reader in ["one", "two"] {
            c.run(&format!("DLOCK.ACQUIRE {shared} {reader} 600000 SHARED"));
        }
        let ticket = format!("DLOCK.FAIRACQUIRE {wanted} polls CLAIM 600000");
        assert_eq!(c.try_ask(&ticket), Ok(Value::Nil));
        let line = format!("DLOCK.ACQUIRE {wanted} waits 600000 BLOCK 0");
        let wait = Blocked::start(&nodes.one, &line);
        c.run(&format!("DLOCK.ACQUIRE {wanted} told 600000 BLOCK 0 IN s"));
        let before = ends_counted(&nodes.one);
        go(&nodes, &[&quiet, &wanted, &shared]);
        nodes.assert_sent_on(&wait.refusal());
        assert_eq!(session.told(), format!("again {wanted} told"), "{way}");
        nodes.await_nothing_left(way);
        assert_eq!(ends_told(&ends, &mut c), [""; 0], "{way}");
        assert_eq!(ends_counted(&nodes.one), before, "{way}");
        if way == "without its keys" {
            continue;
        }
        for (key, token) in [&quiet, &wanted].into_iter().zip(tokens) {
            let check = format!("DLOCK.CHECK {key} {token}");
            assert_eq!(d.ask::<String>(&check), "OK", "{way}");
        }
        let place: Option<u64> = d.ask(&format!("DLOCK.POSITION {wanted} polls"));
        assert_eq!(place, Some(0), "{way}");
    }
    nodes.assert_sound();
}

/// In a migrating slot a user may still remove a lock: that ends its holds.
#[test]
fn a_lock_that_is_removed_from_a_slot_on_its_way_has_ended() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    c.run("CONFIG SET dlock.notify pubsub");
    let ends = Subscriber::patterns(&nodes.one, &["__dlock@*"]);
    nodes.begin_move("{k}");
    nodes.call_off("{k}");
    for (at, line) in ["DEL", "UNLINK", "EXPIRE -1", "SET"]
        .into_iter()
        .enumerate()
    {
        let key = format!("{{k}}{at}");
        let token = take(&mut c, &key, "alice", 600_000);
        nodes.begin_move("{k}");
        let before = stat(&nodes.one, "removed_total");
        // Reading a value does not count as migrating it.
        let payload: Vec<u8> = c.ask(&format!("DUMP {key}"));
        assert!(!payload.is_empty());
        match line {
            "EXPIRE -1" => c.run(&format!("EXPIRE {key} -1")),
            "SET" => c.run(&format!("SET {key} x")),
            line => c.run(&format!("{line} {key}")),
        }
        assert_eq!(
            ends_told(&ends, &mut c),
            [format!("removed {token}")],
            "{line}"
        );
        assert_eq!(stat(&nodes.one, "removed_total"), before + 1, "{line}");
        nodes.call_off("{k}");
    }
    nodes.assert_sound();
}

/// Without a cluster a migrated key is a removed key.
#[test]
fn a_lock_that_migrates_outside_of_a_cluster_has_ended() {
    let (one, two) = (Server::start(), Server::start());
    let mut c = one.connection();
    let ends = Subscriber::patterns(&one, &["__dlock@*"]);
    let token = take(&mut c, "k", "alice", 600_000);
    let bob = Blocked::start(&one, "DLOCK.ACQUIRE k bob 600000 BLOCK 0");
    let migrate = format!("MIGRATE 127.0.0.1 {} k 0 60000", two.port());
    assert_eq!(c.ask::<String>(&migrate), "OK");
    bob.reply::<Grant>();
    assert_eq!(ends_told(&ends, &mut c), [format!("removed {token}")]);
    assert_eq!(stat(&one, "removed_total"), 1);
    assert_sound(&one);
    assert_sound(&two);
}

/// However many requests wait in a slot, each is answered that it has left: for a held lock, for one without a key, or behind
/// others.
#[test]
fn everybody_who_waits_in_a_slot_is_told_that_it_has_left() {
    const EACH: usize = 1700;
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    for (way, go) in ways(&nodes) {
        println!("{way}");
        let tag = format!("{{{way}}}").replace(' ', "-");
        take(&mut c, &tag, "alice", 600_000);
        // Reserves a free lock.
        let line = format!("DLOCK.MACQUIRE 2 {tag} {tag}free many BLOCK 0");
        let many = Blocked::start(&nodes.one, &line);
        let keys: Vec<String> = (0..EACH).map(|at| format!("{tag}{at}")).collect();
        for (at, key) in keys.iter().enumerate() {
            take(&mut c, key, "alice", 600_000);
            for name in [key, &tag, &format!("{tag}free")] {
                c.run(&format!("DLOCK.ACQUIRE {name} n{at} 600000 BLOCK 0 IN s"));
            }
        }
        let keys: Vec<&str> = keys.iter().chain([&tag]).map(String::as_str).collect();
        session.keep();
        go(&nodes, &keys);
        for at in 0..3 * EACH {
            let told = session.told();
            assert!(told.starts_with("again "), "{way}, {at}: {told}");
        }
        nodes.assert_sent_on(&many.refusal());
        nodes.await_nothing_left(way);
    }
    nodes.assert_sound();
}

/// A wait in a session for a name without a key is answered as well, although nothing happens to a key.
#[test]
fn who_waits_for_a_name_without_a_key_is_told_that_its_slot_has_left() {
    let nodes = Nodes::start();
    let mut c = nodes.one.connection();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    for (way, go) in ways(&nodes) {
        // There is no key to migrate.
        let go: Way = match way {
            "key by key" => |nodes, keys| {
                nodes.begin_move(keys[0]);
                nodes.end_move(keys[0]);
            },
            "many keys at once" | "in a transaction" => continue,
            _ => go,
        };
        println!("{way}");
        let tag = format!("{{{way}}}").replace(' ', "-");
        take(&mut c, &tag, "alice", 600_000);
        let line = format!("DLOCK.MACQUIRE 2 {tag} {tag}free many BLOCK 0");
        let many = Blocked::start(&nodes.one, &line);
        c.run(&format!("DLOCK.ACQUIRE {tag}free told 600000 BLOCK 0 IN s"));
        // Leaves only the waiter at the name without a key.
        c.run("CONFIG SET dlock.grants no");
        many.kill();
        await_until("the connection is gone", PATIENCE, || {
            stat(&nodes.one, "connections_waiting") == 0
        });
        c.run(&format!("DLOCK.RELEASE {tag} alice"));
        go(&nodes, &[&tag]);
        assert_eq!(session.told(), format!("again {tag}free told"), "{way}");
        nodes.await_nothing_left(way);
        c.run("CONFIG SET dlock.grants yes");
    }
    nodes.assert_sound();
}

/// However short a slot's stay, the row of each wait that began in it says to ask again, and the move takes holds out of their session.
#[test]
fn a_slot_that_comes_and_goes_between_two_looks_tells_moved() {
    const ROUNDS: usize = 6;
    let nodes = Nodes::start();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    let mut c = nodes.one.connection();
    nodes.settle_the_second();
    for round in 0..ROUNDS {
        let key = format!("{{k}}{round}");
        if !nodes.move_at_once(&key) {
            return;
        }
        // Scans that find no waiter.
        sleep(Duration::from_millis(600));
        assert!(nodes.move_to(&nodes.one, &key));
        c.ask::<Held>(&format!("DLOCK.ACQUIRE {key} alice 600000 IN s"));
        c.ask::<Queued>(&format!("DLOCK.ACQUIRE {key} bob BLOCK 0 IN s"));
        assert_eq!(session.told(), format!("granted {key} alice"));
        assert!(nodes.move_at_once(&key));
        let mut told = [session.told(), session.told()];
        told.sort();
        let expected = [format!("again {key} bob"), format!("moved {key} alice")];
        assert_eq!(told, expected, "round {round}");
        nodes.move_to(&nodes.one, "{k}");
    }
    nodes.assert_sound();
}

/// A slot leaves and comes back between two scans: the state that its locks had reached elsewhere counts.
#[test]
fn a_slot_that_goes_and_comes_between_two_looks_is_looked_at() {
    const ROUNDS: usize = 6;
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    let mut session = Session::begin(&nodes.one, "{here}", "s");
    nodes.settle_the_second();
    for round in 0..ROUNDS {
        let key = format!("{{k}}{round}");
        take(&mut c, &key, "alice", 600_000);
        c.ask::<Queued>(&format!("DLOCK.ACQUIRE {key} bob BLOCK 0 IN s"));
        if !nodes.move_at_once(&key) {
            return;
        }
        assert_eq!(d.ask::<u64>(&format!("DLOCK.RELEASE {key} alice")), 0);
        assert!(nodes.move_to(&nodes.one, &key));
        // A scan between the moves has reported it, or the lock is granted where it is again.
        let told = session.told();
        let expected = ["again", "granted"].map(|word| format!("{word} {key} bob"));
        assert!(expected.contains(&told), "round {round}: {told}");
        c.run(&format!("DLOCK.FORCERELEASE {key}"));
        if told == expected[1] {
            assert_eq!(session.told(), format!("forced {key} bob"));
        }
    }
    nodes.assert_sound();
}

/// Returns the keys that LIST shows, however many pages that takes. In a row of names and values the key is the first value.
fn listed(connection: &mut Wire) -> Vec<String> {
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let line = format!("DLOCK.LIST {cursor} COUNT 10");
        let (next, rows): (String, Vec<Vec<Value>>) = connection.ask(&line);
        keys.extend(rows.iter().map(|row| text(&row[1])));
        cursor = next;
        if cursor == "0" {
            keys.sort();
            return keys;
        }
    }
}

/// Returns the keys that TOP shows.
fn hot(connection: &mut Wire) -> Vec<String> {
    let rows: Vec<Vec<Value>> = connection.ask("DLOCK.TOP COUNT 1000");
    let mut keys: Vec<String> = rows.iter().map(|row| text(&row[1])).collect();
    keys.sort();
    keys
}

fn text(value: &Value) -> String {
    from_redis_value(value).expect("a text")
}

/// A node shows the locks for which it answers: TOP forgets those whose slot has left, and LIST shows none for which INFO
/// redirects.
#[test]
fn top_and_list_are_of_the_node_s_own_slots() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    take(&mut c, "{zz}stays", "alice", 600_000);
    let line = "DLOCK.ACQUIRE {zz}stays waits 600000 BLOCK 0";
    let stays = Blocked::start(&nodes.one, line);
    let mut gone: Vec<String> = Vec::new();
    for (way, go) in ways(&nodes) {
        println!("{way}");
        let name = |name: &str| format!("{{{way}}}{name}").replace(' ', "-");
        let (held, free) = (name("held"), name("free"));
        take(&mut c, &held, "alice", 600_000);
        // The keys are followed by a lock that has waits and no key.
        let line = format!("DLOCK.MACQUIRE 2 {free} {held} many 600000 BLOCK 0");
        let many = Blocked::start(&nodes.one, &line);
        let line = format!("DLOCK.ACQUIRE {free} waits 600000 BLOCK 0");
        let wait = Blocked::start(&nodes.one, &line);
        let here = [&free, &held, "{zz}stays"].map(str::to_owned);
        assert_eq!(listed(&mut c), here, "{way}");
        assert_eq!(hot(&mut c), here, "{way}");
        go(&nodes, &[&held]);
        assert_eq!(listed(&mut c), ["{zz}stays"], "{way}");
        assert_eq!(hot(&mut c), ["{zz}stays"], "{way}");
        for wait in [many, wait] {
            nodes.assert_sent_on(&wait.refusal());
        }
        nodes.await_nothing_left_of(way, 1);
        if way != "without its keys" {
            gone.push(held);
        }
        gone.sort();
        assert_eq!(listed(&mut d), gone, "{way}");
    }
    assert_eq!(stays.outcome_within(WHILE), None);
    // They do not come back with the slot.
    let key = gone[0].clone();
    let line = format!("CLUSTER SETSLOT {} NODE {}", nodes.slot(&key), nodes.one_id);
    c.run(&line);
    assert_eq!(hot(&mut c), ["{zz}stays"]);
    nodes.assert_sound();
}

/// During a migration a lock is not listed at the target, as that node does not answer for it yet.
#[test]
fn a_lock_in_an_open_slot_is_listed_where_the_slot_is() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    for key in ["{k}a", "{k}b"] {
        take(&mut c, key, "alice", 600_000);
    }
    nodes.begin_move("{k}");
    nodes.carry("{k}a");
    assert_eq!(d.ask::<u64>("DBSIZE"), 1);
    for (connection, keys) in [(&mut c, &["{k}b"][..]), (&mut d, &[])] {
        assert_eq!(listed(connection), keys);
        for key in ["{k}a", "{k}b"] {
            let answers = connection.try_ask(&format!("DLOCK.INFO {key}")).is_ok();
            assert_eq!(answers, keys.contains(&key), "{key}");
        }
    }
    nodes.carry("{k}b");
    nodes.end_move("{k}");
    assert_eq!(listed(&mut c), [""; 0]);
    assert_eq!(listed(&mut d), ["{k}a", "{k}b"]);
    nodes.assert_sound();
}

/// A replica answers for no slot, and lists all its locks.
#[test]
fn a_replica_in_a_cluster_lists_its_primary_s_locks() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    d.run(&format!("CLUSTER REPLICATE {}", nodes.one_id));
    take(&mut c, "k", "alice", 600_000);
    nodes.two.wait_in_sync(&nodes.one);
    assert_eq!(listed(&mut d), ["k"]);
    nodes.assert_sound();
}

/// In a migrating slot a newcomer is served at the target before the waiters at the source, by the server's rule; a waiter keeps
/// its place at the source, which is of no use to it during the move.
#[test]
fn a_newcomer_to_an_open_slot_is_served_at_its_target() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    take(&mut c, "{k}a", "alice", 600_000);
    let bob = Blocked::start(&nodes.one, "DLOCK.ACQUIRE {k}a bob 600000 BLOCK 0");
    nodes.begin_move("{k}");
    // As long as the key is here, requests wait here.
    let behind = Blocked::start(&nodes.one, "DLOCK.ACQUIRE {k}a carol 600000 BLOCK 0");
    c.run("DLOCK.RELEASE {k}a alice");
    let sent_on = c.refusal("DLOCK.ACQUIRE {k}a dave 600000");
    assert!(sent_on.starts_with("ASK"), "{sent_on}");
    d.run("ASKING");
    let (there, _): Grant = d.ask("DLOCK.ACQUIRE {k}a dave 600000");
    assert_eq!(bob.outcome_within(WHILE), None);
    // The move is given up: at the source it is bob's turn, and the target has also granted the lock.
    nodes.call_off("{k}");
    let (here, _): Grant = bob.reply();
    assert_eq!(behind.outcome_within(WHILE), None);
    let moved = d.refusal(&format!("DLOCK.CHECK {{k}}a {there}"));
    assert!(moved.starts_with("MOVED"), "{moved}");
    assert_eq!(c.ask::<String>(&format!("DLOCK.CHECK {{k}}a {here}")), "OK");
    // The owner at the target cannot use its grant: its writes come to the source, which has the true holder.
    let write = format!("DLOCK.GUARD {{k}}a {there} SET {{k}}value x");
    let late = c.refusal(&write);
    assert!(
        late.starts_with("FENCED") || late.starts_with("NOTHELD"),
        "{late}"
    );
    nodes.assert_sound();
}

/// The holds of a session leave it with their slot, and its waits get the row `again`. Both continue at the target.
#[test]
fn a_session_learns_that_slots_have_left() {
    let nodes = Nodes::start();
    let (mut c, mut d) = nodes.connections();
    // What leaves without its keys is lost.
    let carried = ways(&nodes).into_iter();
    for (way, go) in carried.filter(|(way, _)| *way != "without its keys") {
        println!("{way}");
        let tag = format!("{{{way}}}").replace(' ', "-");
        let (held, other) = (format!("{tag}held"), format!("{tag}other"));
        take(&mut c, &other, "ann", 600_000);
        let (token, id): Held = c.ask(&format!("DLOCK.ACQUIRE {held} s/1 600000 IN s"));
        c.run(&format!("DLOCK.ACQUIRE {other} s/2 600000 BLOCK 0 IN s"));
        // Kept by a key that stays.
        let keep = format!("DLOCK.SESSION {{stays-here}} s 600000 SEEN {id} 1");
        c.ask::<News>(&keep);
        go(&nodes, &[&held, &other]);
        let mut told = Vec::new();
        await_until("both rows are there", PATIENCE, || {
            let (_, _, left, rows): News = c.ask(&keep);
            let words = rows.into_iter();
            told = words.map(|row| (row.1, row.2, row.4)).collect();
            told.sort();
            told.len() == 2 && left.is_none()
        });
        let again = ("again".to_owned(), other.clone(), 0);
        let moved = ("moved".to_owned(), held.clone(), token);
        assert_eq!(told, [again, moved], "{way}");
        let (_, there): Held = d.ask(&format!("DLOCK.RENEW {held} s/1 600000 TOKEN {token} IN s"));
        let queued: (u64, u64, u64) =
            d.ask(&format!("DLOCK.ACQUIRE {other} s/2 600000 BLOCK 0 IN s"));
        assert_eq!(queued, (0, 0, there), "{way}");
        d.run(&format!("DLOCK.SESSION {held} s 0"));
        c.run("DLOCK.SESSION {stays-here} s 0");
    }
    nodes.assert_sound();
}
