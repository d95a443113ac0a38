//! NOTIFY: the bytes of messages, races, a demotion, and masses. `tests/*/notify.txt` have the rest.

use dlock_integration::redis::{cmd, from_redis_value, Cmd, PushKind, Value};
use dlock_integration::{
    assert_sound, await_until, position, stat, Ask, Blocked, Grant, Queued, Server, Wire, PATIENCE,
};

/// The number of waiters whose memory is measured.
const MASS: usize = 100_000;

/// The bytes that one of them may cost; the goal is 400.
const BYTES: usize = 450;

/// The bytes that a wait may cost if it is the only one for its lock, with the queue of that lock.
const BYTES_ALONE: usize = 800;

/// A connection that is subscribed to a channel.
struct Ear {
    wire: Wire,
}

impl Ear {
    /// Subscribes in RESP2 (2) or RESP3 (3).
    #[track_caller]
    fn new(server: &Server, protocol: u8, channel: &[u8]) -> Ear {
        let mut wire = server.connection();
        if protocol == 3 {
            wire.ask::<Value>("HELLO 3");
        }
        wire.send_command(cmd("SUBSCRIBE").arg(channel));
        wire.read().expect("a confirmation");
        Ear { wire }
    }

    /// Returns the next message, byte by byte.
    #[track_caller]
    fn bytes(&mut self) -> Vec<u8> {
        let value = self.wire.read().expect("a message");
        message(&value).unwrap_or_else(|| panic!("a message was expected, not {value:?}"))
    }

    #[track_caller]
    fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("text")
    }

    /// Returns the token of the next message, which grants the key to the owner that waits under this number.
    #[track_caller]
    fn granted(&mut self, key: &str, owner: &str, wait: u64) -> u64 {
        let text = self.text();
        let token = text.split(' ').nth(1).expect("a token").to_owned();
        let (keys, owners) = (key.len(), owner.len());
        assert_eq!(
            text,
            format!("granted {token} {keys}:{key} {owners}:{owner} {wait}")
        );
        token.parse().expect("a token")
    }

    /// Asserts that the next message ends a wait for `k` with this word.
    #[track_caller]
    fn ended(&mut self, word: &str, owner: &str, wait: u64) {
        let wanted = format!("{word} 0 1:k {}:{owner} {wait}", owner.len());
        assert_eq!(self.text(), wanted);
    }
}

/// Returns the published bytes, if this is a message: an array in RESP2, a push in RESP3.
fn message(value: &Value) -> Option<Vec<u8>> {
    let payload = match value {
        Value::Push {
            kind: PushKind::Message,
            data,
        } => data.last()?,
        Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"message".to_vec())) => {
            parts.last()?
        }
        _ => return None,
    };
    from_redis_value(payload).ok()
}

/// Returns the place and the number of a wait by a channel from its reply.
#[track_caller]
fn place_of(reply: &Value) -> (u64, u64) {
    let (zero, place, wait): Queued = from_redis_value(reply).expect("three numbers");
    assert_eq!(zero, 0);
    (place, wait)
}

/// Waits by a channel. Returns its place, and the number of the wait.
#[track_caller]
fn wait_at(connection: &mut Wire, owner: &str, options: &str) -> (u64, u64) {
    let line = format!("DLOCK.ACQUIRE k {owner} 600000 NOTIFY news {options}");
    place_of(&connection.ask(&line))
}

/// Waits by a channel. Returns the number of the wait.
#[track_caller]
fn wait_as(connection: &mut Wire, owner: &str, options: &str) -> u64 {
    wait_at(connection, owner, options).1
}

/// Returns a server on which alice holds `k`, her connection, and a subscriber to the news.
fn held() -> (Server, Wire, Ear) {
    let (server, alice, _) = dlock_integration::held();
    let ear = Ear::new(&server, 2, b"news");
    (server, alice, ear)
}

/// Keys, owners and channels are bytes.
#[test]
fn messages_are_exact() {
    let channel = b"\0\xff new s\r\n";
    let key = b"k\0\r\n 3:x \xff";
    let owner = b"\0 5:o\xfe\r\n";
    for protocol in [2, 3] {
        let server = Server::start();
        let mut c = if protocol == 3 {
            server.connection_resp3()
        } else {
            server.connection()
        };
        let mut ear = Ear::new(&server, protocol, channel);
        let acquire = |owner: &[u8]| -> Cmd {
            let mut line = cmd("DLOCK.ACQUIRE");
            line.arg(key).arg(owner).arg(600_000);
            line
        };
        c.ask_command::<Grant>(&acquire(b"alice"));
        let wait = |mut line: Cmd| line.arg("NOTIFY").arg(channel).to_owned();
        let (zero, place, first): Queued = c.ask_command(&wait(acquire(owner)));
        assert_eq!((zero, place), (0, 0));
        c.ask_command::<u64>(cmd("DLOCK.RELEASE").arg(key).arg(b"alice"));
        let (token, ..): (u64, u64, u64) = c.ask_command(cmd("DLOCK.HELD").arg(key).arg(owner));
        let head = format!("granted {token} {}:", key.len()).into_bytes();
        let middle = format!(" {}:", owner.len()).into_bytes();
        let end = format!(" {first}").into_bytes();
        let wanted = [&*head, key, &*middle, owner, &*end].concat();
        assert_eq!(ear.bytes(), wanted);
        // The longest names.
        let long = [b'o'; 1024];
        let mut line = acquire(&long);
        line.arg("NOTIFY").arg([b'c'; 1024].as_slice());
        let (zero, place, second): Queued = c.ask_command(&line);
        assert_eq!((zero, place), (0, 0));
        assert!(second > first, "each wait has a number of its own");
        let mut line = acquire(b"dave");
        line.arg("NOTIFY").arg([b'c'; 1025].as_slice());
        let error = c.answer(&line).expect_err("a refusal");
        assert_eq!(error, "ERR NOTIFY must be a channel of 1 to 1024 bytes");
    }
}

/// A waiter's turn comes at the instant of its connection's end: it does not get the lock, or loses it again.
#[test]
fn who_dies_is_not_granted_for_long() {
    let (server, mut c, _) = held();
    let mut dies = server.connection();
    dies.ask::<Queued>("DLOCK.ACQUIRE k dies 600000 NOTIFY none");
    let id = dies.client_id();
    let next = Blocked::start(&server, "DLOCK.ACQUIRE k next 600000 BLOCK 0");
    let kill = format!("CLIENT KILL ID {id}");
    let [killed, released] = server.connection().batch([&*kill, "DLOCK.RELEASE k alice"]);
    assert!(killed.is_ok() && released == Ok(Value::Int(0)));
    next.reply::<Grant>();
    assert_eq!(position(&mut c, "k", "dies"), None);
}

/// A subscriber that learns of its grant has already received what came before it: the end of the hold before.
#[test]
fn the_message_of_a_grant_comes_last() {
    let server = Server::start();
    let mut ear = Ear::new(&server, 3, b"news");
    ear.wire.send("SUBSCRIBE __dlock@0__:k");
    ear.wire.read().expect("a confirmation");
    let mut c = server.connection();
    c.run("DLOCK.ACQUIRE k owner-0 600000");
    for round in 0..20 {
        let (owner, next) = (format!("owner-{round}"), format!("owner-{}", round + 1));
        c.run(&format!("DLOCK.ACQUIRE k {next} 600000 NOTIFY news"));
        c.run(&format!("DLOCK.RELEASE k {owner}"));
        let heard = [ear.text(), ear.text()];
        assert!(heard[0].starts_with("released "), "{heard:?}");
        assert!(heard[1].starts_with("granted "), "{heard:?}");
    }
}

/// A connection that is subscribed to its own channel receives the place first.
#[test]
fn the_reply_comes_before_its_message() {
    let server = Server::start();
    let mut wire = server.connection_resp3();
    wire.send("SUBSCRIBE news");
    wire.read().expect("a confirmation");
    wire.ask::<Grant>("DLOCK.ACQUIRE k alice 600000");
    for round in 0..200 {
        let owner = format!("owner-{round}");
        let lines = [
            format!("DLOCK.ACQUIRE k {owner} 600000 NOTIFY news"),
            "DLOCK.RELEASE k alice".to_owned(),
            format!("DLOCK.RELEASE k {owner}"),
            "DLOCK.ACQUIRE k alice 600000".to_owned(),
        ];
        let replies = wire.batch(lines).into_iter().chain([wire.read()]);
        let replies: Vec<Value> = replies.map(|reply| reply.expect("no refusal")).collect();
        let told = replies.iter().position(|value| message(value).is_some());
        let told = told.unwrap_or_else(|| panic!("no message in {replies:?}"));
        assert_eq!(place_of(&replies[0]).0, 0);
        // The release granted it, and no later line.
        assert!(told == 1 || told == 2, "{replies:?}");
    }
}

#[test]
fn a_demotion_tells_moved() {
    let (server, mut c, mut ear) = held();
    let other = Server::start();
    other.replica_of(&server);
    let bob = wait_as(&mut c, "bob", "");
    let (_, carol) = place_of(&c.ask("DLOCK.FAIRACQUIRE k carol 600000 NOTIFY news"));
    other.wait_in_sync(&server);
    other.promote();
    c.run(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    ear.ended("moved", "bob", bob);
    ear.ended("moved", "carol", carol);
    assert_eq!(stat(&server, "notify_waiting"), 0);
    // The ticket has been replicated, the waiter has not.
    let mut d = other.connection();
    assert_eq!(
        (position(&mut d, "k", "carol"), position(&mut d, "k", "bob")),
        (Some(0), None)
    );
    assert_sound(&server);
}

#[test]
fn a_thousand_are_handed_the_lock_in_order() {
    const WAITERS: usize = 1_000;
    let (server, mut c, mut ear) = held();
    let mut wire = server.connection();
    let lines = (0..WAITERS).map(|at| format!("DLOCK.ACQUIRE k owner-{at} 600000 NOTIFY news"));
    let replies = wire.pipeline(lines);
    let (places, waits): (Vec<u64>, Vec<u64>) = replies.iter().map(place_of).unzip();
    assert!(places.into_iter().eq(0..WAITERS as u64));
    c.run("DLOCK.RELEASE k alice");
    let mut before = 0;
    for (at, wait) in waits.into_iter().enumerate() {
        let owner = format!("owner-{at}");
        let token = ear.granted("k", &owner, wait);
        assert!(token > before);
        before = token;
        assert_eq!(c.ask::<u64>(&format!("DLOCK.RELEASE k {owner}")), 0);
    }
    assert_eq!(c.ask::<u64>("EXISTS k"), 0);
}

fn used_memory(server: &Server) -> usize {
    server.info("memory").number("used_memory")
}

/// Measures the memory of a place that waits by a channel and, for comparison, of one that blocks a connection.
#[test]
fn a_hundred_thousand_wait_on_one_connection() {
    let (server, mut c, _) = held();
    let mut wire = server.connection();
    wire.ask::<String>("PING");
    let before = used_memory(&server);
    let lines = (0..MASS).map(|at| format!("DLOCK.ACQUIRE k owner-{at:06} 600000 NOTIFY news"));
    let replies = wire.pipeline(lines);
    assert_eq!(place_of(&replies[MASS - 1]).0, MASS as u64 - 1);
    let bytes = (used_memory(&server) - before) / MASS;
    println!("{}: {bytes} bytes a waiter by a channel", server.version());
    for at in [0, MASS / 2, MASS - 1] {
        assert_eq!(
            position(&mut c, "k", &format!("owner-{at:06}")),
            Some(at as u64)
        );
    }
    let refused = c.refusal("DLOCK.ACQUIRE k one-too-many NOTIFY news");
    assert!(
        refused.starts_with("QUEUEFULL dlock.max-queue"),
        "{refused}"
    );
    wire.close();
    await_until("all places are gone", PATIENCE, || {
        stat(&server, "notify_waiting") == 0
    });
    let kept = used_memory(&server).saturating_sub(before) / MASS;
    println!("{kept} bytes of each are kept when they are gone");

    const BLOCKED: usize = 500;
    let mut waits: Vec<Wire> = (0..BLOCKED).map(|_| server.connection()).collect();
    for wire in &mut waits {
        wire.ask::<String>("PING");
    }
    let before = used_memory(&server);
    for (at, wire) in waits.iter_mut().enumerate() {
        wire.send(&format!("DLOCK.ACQUIRE k owner-{at:06} 600000 BLOCK 0"));
    }
    server.await_blocked_clients(BLOCKED);
    let blocked = (used_memory(&server) - before) / BLOCKED;
    println!("{blocked} bytes a waiter that blocks its connection");
    assert!(bytes <= BYTES, "{bytes} bytes");
    assert!(blocked > 10 * bytes, "{blocked} bytes");
    assert_sound(&server);
}

/// Measures the memory of one wait on each of many locks, without the locks themselves.
#[test]
fn one_waits_for_each_of_many_locks() {
    const LOCKS: usize = 50_000;
    let server = Server::start();
    let mut wire = server.connection();
    let name = |at: usize| format!("00000000-0000-4000-8000-0000{at:08}");
    let lines = (0..LOCKS).map(|at| format!("DLOCK.ACQUIRE lock:{at} {} 600000", name(at)));
    wire.pipeline(lines);
    let before = used_memory(&server);
    let waiters = |at: usize| format!("{} 600000 NOTIFY news", name(at + LOCKS));
    let lines = (0..LOCKS).map(|at| format!("DLOCK.ACQUIRE lock:{at} {}", waiters(at)));
    wire.pipeline(lines);
    let bytes = (used_memory(&server) - before) / LOCKS;
    println!("{}: {bytes} bytes a lock and its waiter", server.version());
    assert!(bytes <= BYTES_ALONE, "{bytes} bytes");
    assert_sound(&server);
}

/// Many time-outs at one instant are all reported, and do not delay the other waits.
#[test]
fn many_times_are_up_together() {
    const WAITERS: usize = 2_000;
    let (server, mut c, mut ear) = held();
    let mut wire = server.connection();
    let lines =
        (0..WAITERS).map(|at| format!("DLOCK.ACQUIRE k owner-{at} 600000 BLOCK 300 NOTIFY news"));
    let replies = wire.pipeline(lines);
    wait_as(&mut c, "last", "");
    let mut told: Vec<String> = (0..WAITERS).map(|_| ear.text()).collect();
    told.sort();
    let mut wanted: Vec<String> = replies
        .iter()
        .enumerate()
        .map(|(at, reply)| (format!("owner-{at}"), place_of(reply).1))
        .map(|(owner, wait)| format!("timeout 0 1:k {}:{owner} {wait}", owner.len()))
        .collect();
    wanted.sort();
    assert_eq!(told, wanted);
    await_until("their places are gone", PATIENCE, || {
        position(&mut c, "k", "last") == Some(0)
    });
    assert_eq!(stat(&server, "timeouts_total"), WAITERS as u64);
}
