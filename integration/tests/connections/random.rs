//! Anything in any order, by a seed: locks taken, waited for and released, keys that come and go under waiters, connections that
//! end in every way, a replica, saving and loading. The server lives, and in the end no request waits.
//!
//! One thread decides, so that a seed determines the commands and their order. `DLOCK_RANDOM_SECONDS` sets the duration,
//! `DLOCK_RANDOM_SEED` the seed; `make memcheck` lets it run for minutes under valgrind.

use std::env;
use std::time::{Duration, Instant};

use dlock_harness::redis::{cmd, Cmd, Value};
use dlock_harness::{assert_sound, await_until, command, reply_of, Ask, Server, Wire, PATIENCE};
use fastrand::Rng;

/// The most connections that are open at once.
const OPEN: usize = 30;

/// The least number of steps, however long they take.
const AT_LEAST: u64 = 3_000;

/// The keys of all commands. The last is never a lock.
const KEYS: [&str; 5] = ["k0", "k1", "k2", "k3", "string"];

fn setting(name: &str, usual: u64) -> u64 {
    let given = env::var(name).ok();
    given.map_or(usual, |given| given.parse().expect("a number"))
}

fn pick<'w>(rng: &mut Rng, words: &[&'w str]) -> &'w str {
    words[rng.usize(..words.len())]
}

fn key(rng: &mut Rng) -> &'static str {
    pick(rng, &KEYS)
}

fn owner(rng: &mut Rng) -> String {
    format!("o{}", rng.u8(..12))
}

/// Returns random options after owner and lease.
fn options(rng: &mut Rng) -> String {
    let mut options = String::new();
    for (chance, option) in [
        (60, "BLOCK"),
        (10, "EPHEMERAL"),
        (15, "SHARED"),
        (10, "LIMIT 3"),
        (5, "HOLDS 2"),
    ] {
        if rng.u8(..100) < chance {
            options.push(' ');
            options.push_str(option);
            if option == "BLOCK" {
                options.push_str(pick(rng, &[" 0", " 1", " 5", " 30"]));
            }
        }
    }
    options
}

/// Returns a command in a session, or one that keeps it or ends it.
fn in_session(rng: &mut Rng) -> String {
    let (key, other, owner) = (key(rng), key(rng), owner(rng));
    let (session, lease) = (pick(rng, &["s0", "s1", "s2"]), pick(rng, &["20", "600000"]));
    let block = pick(rng, &["", " BLOCK 0", " BLOCK 30"]);
    match rng.u8(..20) {
        0..=5 => format!("DLOCK.ACQUIRE {key} {owner} {lease} IN {session}{block}"),
        6..=7 => format!("DLOCK.FAIRACQUIRE {key} {owner} {lease}{block} IN {session}"),
        8..=9 => format!("DLOCK.MACQUIRE 2 {key} {other} {owner} {lease} IN {session}{block}"),
        10 => format!("DLOCK.RENEW {key} {owner} {lease} IN {session}"),
        11 => format!("DLOCK.SESSION {key} {session} 0"),
        12..=13 => format!("DLOCK.SESSION {key} {session} 500 BLOCK 20"),
        _ => format!("DLOCK.SESSION {key} {session} {}", pick(rng, &["1", "500"])),
    }
}

/// Returns a request of a connection that may wait.
fn request(rng: &mut Rng) -> String {
    let (key, other, owner) = (key(rng), key(rng), owner(rng));
    let lease = pick(rng, &["3", "20", "600000"]);
    let options = options(rng);
    match rng.u8(..100) {
        0..=29 => format!("DLOCK.ACQUIRE {key} {owner} {lease}{options}"),
        30..=44 => format!("DLOCK.FAIRACQUIRE {key} {owner} {lease}{options}"),
        45..=49 => format!("DLOCK.FAIRACQUIRE {key} {owner} {lease}{options} CLAIM 20"),
        50..=64 => format!("DLOCK.MACQUIRE 2 {key} {other} {owner} {lease}{options}"),
        65..=69 => in_session(rng),
        70..=79 => format!("DLOCK.RELEASE {key} {owner}"),
        80..=84 => format!("DLOCK.RENEW {key} {owner} {lease}"),
        85..=87 => format!("DLOCK.MRELEASE 2 {key} {other} {owner}"),
        88..=89 => format!("DLOCK.DOWNGRADE {key} {owner} SHARED"),
        90..=92 => format!("DLOCK.CANCEL {key} {owner}"),
        93..=95 => format!("DLOCK.INFO {key}"),
        96 => "DLOCK.GRAPH".to_owned(),
        97 => "DLOCK.LIST 0".to_owned(),
        _ => format!("DLOCK.HELD {key} {owner}"),
    }
}

/// Returns a command of others on the keys, the connections and the server. No pauses: many servers crash, with or without the
/// module, when CLIENT UNBLOCK meets a connection that a pause delays.
fn disturbance(rng: &mut Rng, client: u64) -> Cmd {
    let (key, other, owner) = (key(rng), key(rng), owner(rng));
    let line = match rng.u8(..100) {
        0..=14 => format!("DLOCK.FORCERELEASE {key}"),
        15..=26 => format!("DLOCK.RELEASE {key} {owner}"),
        27..=34 => format!("DEL {key}"),
        35..=37 => format!("SET {key} x"),
        38..=43 => format!("RENAME {key} {other}"),
        44..=46 => format!("MOVE {key} 1"),
        47..=48 => "SWAPDB 0 1".to_owned(),
        49..=51 => format!("PEXPIRE {key} {}", pick(rng, &["1", "20", "900000"])),
        52..=53 => format!("PERSIST {key}"),
        54 => "FLUSHDB".to_owned(),
        55 => "FLUSHALL ASYNC".to_owned(),
        56..=67 => format!("CLIENT KILL ID {client}"),
        68..=73 => format!("CLIENT UNBLOCK {client} ERROR"),
        74..=77 => format!("CLIENT UNBLOCK {client}"),
        78 => "CLIENT KILL TYPE normal MAXAGE 3600".to_owned(),
        79 => "DLOCK.TOP".to_owned(),
        80 => "CONFIG SET dlock.grants no".to_owned(),
        81..=83 => "CONFIG SET dlock.grants yes".to_owned(),
        84 => "BGSAVE".to_owned(),
        85 => "BGREWRITEAOF".to_owned(),
        86..=89 => "INFO everything".to_owned(),
        90 => format!("MEMORY USAGE {key}"),
        91 => format!("DEBUG DIGEST-VALUE {key}"),
        92..=95 => {
            let script = "local value = redis.call('DUMP', KEYS[1])
                if value then redis.call('RESTORE', KEYS[2], 0, value, 'REPLACE') end";
            let script = script.to_owned();
            return cmd("EVAL")
                .arg(script)
                .arg(2)
                .arg(key)
                .arg(other)
                .to_owned();
        }
        _ => {
            let script = "redis.pcall('DLOCK.RELEASE', KEYS[1], ARGV[1])
                return redis.pcall('DLOCK.ACQUIRE', KEYS[1], ARGV[2], 20, 'BLOCK', 0)";
            return cmd("EVAL")
                .arg(script)
                .arg(1)
                .arg(key)
                .arg(owner)
                .arg("script")
                .to_owned();
        }
    };
    command(&line)
}

/// A connection that sends requests and reads no reply.
struct Member {
    wire: Wire,
    id: u64,
}

impl Member {
    /// Connects. Some members speak RESP3, some track keys, some subscribe.
    fn new(server: &Server, rng: &mut Rng) -> Member {
        let mut wire = server.connection();
        let id = wire.client_id();
        if rng.u8(..4) == 0 {
            wire.send("HELLO 3");
        }
        if rng.u8(..8) == 0 {
            wire.send("CLIENT TRACKING ON");
            wire.send("MGET k0 k1 k2 k3 string");
        }
        if rng.u8(..8) == 0 {
            wire.send("SUBSCRIBE news __dlock@0__:k0");
        }
        Member { wire, id }
    }

    /// Sends commands. Returns whether the connection is still open.
    fn speak(&mut self, rng: &mut Rng) -> bool {
        let mut lines: Vec<String> = (0..rng.usize(1..4)).map(|_| request(rng)).collect();
        if rng.u8(..6) == 0 {
            lines.insert(0, "MULTI".to_owned());
            lines.push("EXEC".to_owned());
        }
        let bytes = lines
            .iter()
            .flat_map(|line| command(line).get_packed_command());
        self.wire.send_bytes(&bytes.collect::<Vec<_>>()).is_ok()
    }

    /// Ends the connection on its own side, in one of the ways.
    fn leave(mut self, rng: &mut Rng) {
        match rng.u8(..4) {
            // It may be closed already.
            0 => drop(self.wire.send_bytes(b"QUIT\r\n")),
            1 => self.wire.close_sending(),
            // With unread replies it is a reset.
            _ => {}
        }
    }
}

/// Tries to have a lock granted to a connection, another command of its owner answered, and the connection ended, all in one turn
/// of the event loop. The answer must stay true. Returns whether it came about.
fn touch_and_end(server: &Server, c: &mut Wire, rng: &mut Rng, owner: &str) -> bool {
    let key = KEYS[rng.usize(..KEYS.len() - 1)];
    let mut waits = server.connection();
    let id = waits.client_id();
    let verb = pick(rng, &["ACQUIRE", "FAIRACQUIRE"]);
    waits.send(&format!("DLOCK.{verb} {key} {owner} 600000 BLOCK 0"));
    let touch = match rng.u8(..5) {
        0 => format!("DLOCK.ACQUIRE {key} {owner} 600000 HOLDS 1"),
        1 => format!("DLOCK.ACQUIRE {key} {owner} 600000"),
        2 => format!("DLOCK.RENEW {key} {owner} 600000"),
        3 => format!("DLOCK.DOWNGRADE {key} {owner} SHARED"),
        _ => format!("DLOCK.RELEASE {key} {owner} HOLDS 1"),
    };
    let end = match rng.bool() {
        true => format!("CLIENT KILL ID {id}"),
        false => format!("CLIENT UNBLOCK {id} ERROR"),
    };
    c.run("PING");
    let [.., told, _, _, held] = c.batch([
        format!("DLOCK.FORCERELEASE {key}"),
        touch.clone(),
        end,
        // This command decides, so that undelivered holds are revoked.
        format!("DLOCK.CANCEL {key} nobody"),
        format!("DLOCK.HELD {key} {owner}"),
    ]);
    let holds = matches!(&told, Ok(Value::Array(_) | Value::Int(1..)));
    if holds {
        assert!(
            matches!(&held, Ok(Value::Array(_))),
            "{touch} was answered {told:?}, and then it was held by {held:?}"
        );
    }
    holds
}

/// Makes the server save and load all its data. It drops expired keys without notice to replicas, so these also synchronise in
/// full.
fn reload(server: &Server) {
    let lines = [
        "DEBUG RELOAD",
        "DEBUG CHANGE-REPL-ID",
        "CLIENT KILL TYPE replica",
    ];
    for reply in server.connection().batch(lines) {
        reply.expect("no refusal");
    }
}

/// Returns the reply, whatever it is; connects again if the connection has ended.
fn ask(server: &Server, connection: &mut Wire, command: &Cmd) -> Option<Value> {
    match dlock_harness::redis::ConnectionLike::req_command(connection, command) {
        Ok(value) => reply_of(value).ok(),
        Err(_) => {
            *connection = server.connection();
            None
        }
    }
}

#[test]
fn anything_in_any_order_does_no_harm() {
    let seconds = setting("DLOCK_RANDOM_SECONDS", 3);
    let seed = setting("DLOCK_RANDOM_SEED", 1);
    println!("seed {seed}, {seconds} s");
    let mut rng = Rng::with_seed(seed);
    let server = Server::builder().config("appendonly", "yes").start();
    let replica = Server::start();
    replica.replica_of(&server);
    let mut c = server.connection();
    let mut open: Vec<Member> = Vec::new();
    let (mut steps, mut touched) = (0_u64, 0_u64);
    let end = Instant::now() + Duration::from_secs(seconds);
    while steps < AT_LEAST || Instant::now() < end {
        steps += 1;
        let (choice, at) = (rng.u16(..1000), rng.usize(..OPEN));
        match choice {
            0..=199 if open.len() < OPEN => open.push(Member::new(&server, &mut rng)),
            200..=249 if at < open.len() => open.swap_remove(at).leave(&mut rng),
            250..=699 if at < open.len() && !open[at].speak(&mut rng) => {
                open.swap_remove(at);
            }
            700..=702 => reload(&server),
            703..=722 => {
                let owner = format!("turn{steps}");
                touched += u64::from(touch_and_end(&server, &mut c, &mut rng, &owner));
            }
            723.. => {
                let client = open.get(at).map_or(0, |member| member.id);
                ask(&server, &mut c, &disturbance(&mut rng, client));
            }
            _ => {}
        }
    }
    println!("{steps} steps, {touched} holds touched and their connections ended");
    assert!(touched > 0, "no hold was touched in the turn of its grant");
    let info = server.info("dlock");
    for what in ["grants_waited", "timeouts", "forced", "removed"] {
        let count: u64 = info.number(&format!("dlock_{what}_total"));
        assert!(count > 0, "no {what} in {steps} steps");
    }
    drop(open);
    let mut c = server.connection();
    c.run("CONFIG SET dlock.grants yes");
    await_until("nobody waits", PATIENCE, || {
        let info = server.info("dlock");
        info.number::<u64>("dlock_connections_waiting") == 0
    });
    c.run("FLUSHALL");
    await_until("nothing is queued", PATIENCE, || {
        let info = server.info("dlock");
        ["places_queued", "ephemeral", "locks", "sessions"]
            .iter()
            .all(|name| info.number::<u64>(&format!("dlock_{name}")) == 0)
    });
    replica.wait_in_sync(&server);
    assert_sound(&server);
    assert_sound(&replica);
}
