//! The module reads everything that earlier versions wrote: dumped values, files, and a primary's stream. It refuses what a later
//! version writes, and loses nothing.
//!
//! Version 0.1.0 wrote `formats/0.1.0` on a server whose clock showed the first day of 2024, with leases of fifty years, so that
//! its tokens are in the past whenever the tests run. The history has the recorder: `git log -- '*/formats/record.sh'`.
//!
//! | file | contents |
//! |---|---|
//! | `dump.rdb` | locks of every sort, by SAVE |
//! | `preamble/`, `plain/` | the AOF: these locks by a rewrite, with and without RDB preamble, then a story in effects |
//! | `snapshot.rdb`, `stream` | the data for a replica: these locks, then the story |
//! | `*.values` | the state of 0.1.0 then: for each key its DUMP and the end of its TTL |

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use dlock_harness::dump::{restore, seal};
use dlock_harness::redis::{cmd, from_redis_value, Cmd, Parser, Value};
use dlock_harness::{
    assert_sound, await_until, command, is_held, kept, Ask, Grant, Server, ServerBuilder, Wire,
    PATIENCE,
};

/// Fifty years.
const LEASE: u64 = 1_577_836_800_000;

/// The last key of a story: when it exists the story is complete.
const END: &str = "the-end";

/// Returns a server that accepts leases this long, and dumps values unchanged.
fn builder() -> ServerBuilder {
    Server::builder()
        .config("dlock.max-lease-ms", 2 * LEASE)
        .config("rdbcompression", "no")
}

fn recorded(name: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/survival/formats/0.1.0");
    formats.join(name)
}

/// A key of a database.
type Key = (i64, Vec<u8>);

/// The stored lock: its DUMP, and the end of its TTL in unix milliseconds (-1: none).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    dump: Vec<u8>,
    ends: i64,
}

impl Kept {
    /// Returns the value in the DUMP with its type, without the server's version and checksum.
    fn value(&self) -> &[u8] {
        &self.dump[..self.dump.len() - 10]
    }
}

/// Returns all stored locks.
fn values(server: &Server) -> BTreeMap<Key, Kept> {
    let mut values = BTreeMap::new();
    for db in [0, 3] {
        let mut c = server.connection_in(db);
        let keys: Vec<Vec<u8>> = c.ask("KEYS *");
        for key in keys {
            if c.ask_command::<String>(cmd("TYPE").arg(&key)) == "dlock-obj" {
                let kept = Kept {
                    dump: c.ask_command(cmd("DUMP").arg(&key)),
                    ends: c.ask_command(cmd("PEXPIRETIME").arg(&key)),
                };
                values.insert((db, key), kept);
            }
        }
    }
    values
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (16 * pair[0] + pair[1]) as u8)
        .collect()
}

fn read_values(name: &str) -> BTreeMap<Key, Kept> {
    let text = fs::read_to_string(recorded(name)).expect("a recorded file");
    let line = |line: &str| -> (Key, Kept) {
        let fields: Vec<&str> = line.split(' ').collect();
        let key = (fields[0].parse().expect("a database"), unhex(fields[1]));
        let kept = Kept {
            dump: unhex(fields[3]),
            ends: fields[2].parse().expect("a time"),
        };
        (key, kept)
    };
    text.lines().map(line).collect()
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// The name of a primary's history.
const RUN: &str = "0123456789abcdef0123456789abcdef01234567";

/// A primary that replays recorded data to a replica.
struct Primary {
    listener: TcpListener,
}

impl Primary {
    fn new() -> Primary {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        Primary { listener }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    /// Sends a snapshot, and the stream after it, to the replica that connects. Returns the connection.
    fn send(&self, snapshot: &[u8], stream: &[u8]) -> TcpStream {
        let (mut link, asked) = self.accept();
        assert_eq!(asked, ["?", "-1"], "it has nothing yet");
        let head = format!("+FULLRESYNC {RUN} 0\r\n${}\r\n", snapshot.len());
        for bytes in [head.as_bytes(), snapshot, stream] {
            link.write_all(bytes).expect("it reads");
        }
        link
    }

    /// Waits for a replica. Returns its connection, and the offset from which it asks to continue.
    fn accept(&self) -> (TcpStream, Vec<String>) {
        let (mut link, _) = self.listener.accept().expect("the replica comes");
        link.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut parser = Parser::new();
        loop {
            let words: Vec<String> =
                from_redis_value(&parser.parse_value(&mut link).expect("a command"))
                    .expect("words");
            let answer = match words[0].to_uppercase().as_str() {
                "PING" => "+PONG\r\n",
                "PSYNC" => return (link, words[1..].to_vec()),
                _ => "+OK\r\n",
            };
            link.write_all(answer.as_bytes()).expect("it reads");
        }
    }
}

/// A holder: token, hold count and limit.
type Hold = (u64, u64, u64);

/// The contents of a value: the holders, and the tickets in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lock {
    holds: BTreeMap<Vec<u8>, Hold>,
    tickets: Vec<Vec<u8>>,
}

impl Lock {
    /// Reads format 1, as `engine/src/lock/codec.rs` describes it.
    fn of(kept: &Kept) -> Lock {
        // The type, its id, the mark of a string and its length precede it.
        let value = kept.value();
        let mut rest = match value[11] {
            0..=0x3f => &value[12..],
            0x40..=0x7f => &value[13..],
            other => panic!("a length that begins with {other:#x}"),
        };
        assert_eq!(rest[0], 1, "the format");
        rest = &rest[2..];
        let mut lock = Lock::default();
        for _ in 0..number(&mut rest) {
            let (token, _, holds, limit) = (
                number(&mut rest),
                number(&mut rest),
                number(&mut rest),
                number(&mut rest),
            );
            lock.holds.insert(bytes(&mut rest), (token, holds, limit));
        }
        for _ in 0..number(&mut rest) {
            let _ = (number(&mut rest), number(&mut rest), number(&mut rest));
            lock.tickets.push(bytes(&mut rest));
        }
        lock
    }

    /// Returns a lock as the server shows it.
    fn shown(c: &mut Wire, key: &[u8]) -> Lock {
        let info: BTreeMap<String, Value> = c.ask_command(cmd("DLOCK.INFO").arg(key));
        let maps = |name: &str| -> Vec<BTreeMap<String, Value>> {
            from_redis_value(&info[name]).expect("an array of maps")
        };
        let owner = |fields: &BTreeMap<String, Value>| -> Vec<u8> {
            from_redis_value(&fields["owner"]).expect("a name")
        };
        let hold = |fields: &BTreeMap<String, Value>| -> Hold {
            let number = |name: &str| from_redis_value(&fields[name]).expect("a number");
            (number("token"), number("holds"), number("limit"))
        };
        let holders = maps("holders");
        Lock {
            holds: holders.iter().map(|map| (owner(map), hold(map))).collect(),
            tickets: maps("queue").iter().map(owner).collect(),
        }
    }
}

fn number(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = rest[0];
        *rest = &rest[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn bytes(rest: &mut &[u8]) -> Vec<u8> {
    let len = number(rest) as usize;
    let (bytes, tail) = rest.split_at(len);
    *rest = tail;
    bytes.to_vec()
}

/// Asserts that holders keep their locks, tickets are next in their turn, and new tokens are above the old ones.
#[track_caller]
fn assert_they_go_on(server: &Server, values: &BTreeMap<Key, Kept>) {
    let locks: BTreeMap<&Key, Lock> = values
        .iter()
        .map(|(key, kept)| (key, Lock::of(kept)))
        .collect();
    let tokens = locks.values().flat_map(|lock| lock.holds.values());
    let highest = tokens.map(|hold| hold.0).max().expect("a hold");
    for ((db, key), lock) in &locks {
        let mut c = server.connection_in(*db);
        assert_eq!(&Lock::shown(&mut c, key), lock, "{key:?}");
        for (owner, (token, ..)) in &lock.holds {
            let mut check = cmd("DLOCK.CHECK");
            assert_eq!(c.ask_command::<String>(check.arg(key).arg(*token)), "OK");
            let mut release = cmd("DLOCK.RELEASE");
            release
                .arg(key)
                .arg(owner)
                .arg("HOLDS")
                .arg(0)
                .arg("TOKEN")
                .arg(*token);
            assert_eq!(c.ask_command::<u64>(&release), 0);
        }
        for owner in &lock.tickets {
            let acquire = |owner: &[u8]| -> Cmd {
                let mut line = cmd("DLOCK.ACQUIRE");
                line.arg(key).arg(owner).arg(60_000);
                line
            };
            assert_eq!(c.answer(&acquire(b"stranger")), Ok(Value::Nil), "{key:?}");
            let (token, holds): Grant = c.ask_command(&acquire(owner));
            assert!(token > highest && holds == 1, "{token}, {holds}");
            let mut release = cmd("DLOCK.RELEASE");
            assert_eq!(c.ask_command::<u64>(release.arg(key).arg(owner)), 0);
        }
        assert_eq!(c.ask_command::<u64>(cmd("EXISTS").arg(key)), 0, "{key:?}");
    }
    assert_sound(server);
}

#[test]
fn dumped_values_are_restored() {
    let server = builder().start();
    let values = read_values("dump.values");
    for ((db, key), kept) in &values {
        let mut c = server.connection_in(*db);
        // In one transaction, before the module can act on it.
        c.run("MULTI");
        c.ask_command::<String>(cmd("RESTORE").arg(key).arg(0).arg(&kept.dump));
        c.ask_command::<String>(cmd("DUMP").arg(key));
        let (_, dump): (Value, Vec<u8>) = c.ask("EXEC");
        let restored = Kept { dump, ends: 0 };
        assert_eq!(restored.value(), kept.value(), "{key:?}");
    }
    assert_they_go_on(&server, &values);
}

/// Returns a replica of a primary that does not exist: it decides nothing, so its loaded data stays as it was read.
fn idle_replica() -> ServerBuilder {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = nobody.local_addr().expect("an address").port();
    builder().config("replicaof", format!("127.0.0.1 {port}"))
}

/// Replaces a server's files before it restarts.
fn with_files(mut server: Server, put: impl Fn(&Path)) -> Server {
    server.kill9();
    put(server.dir());
    server.restart();
    server
}

#[test]
fn a_file_of_values_is_loaded() {
    let server = with_files(idle_replica().start(), |directory| {
        fs::copy(recorded("dump.rdb"), directory.join("dump.rdb")).expect("a copy");
    });
    let saved = read_values("dump.values");
    assert_eq!(bodies(&values(&server)), bodies(&saved));
    server.promote();
    assert_they_go_on(&server, &saved);
}

#[test]
fn files_of_effects_are_loaded() {
    for name in ["preamble", "plain"] {
        let replica = idle_replica().config("appendonly", "yes");
        let server = with_files(replica.start(), |directory| {
            fs::remove_dir_all(directory.join("appendonlydir")).expect("it is there");
            copy_directory(&recorded(name), &directory.join("appendonlydir"));
        });
        let saved = read_values(&format!("{name}.values"));
        assert_eq!(bodies(&values(&server)), bodies(&saved), "{name}");
        server.promote();
        assert_they_go_on(&server, &saved);
    }
}

#[test]
fn a_primary_is_followed() {
    let primary = Primary::new();
    let server = builder()
        .config("replicaof", format!("127.0.0.1 {}", primary.port()))
        .start();
    let stream = fs::read(recorded("stream")).expect("a recorded file");
    let _link = primary.send(&snapshot(), &stream);
    await_the_end(&server);
    let sent = read_values("stream.values");
    assert_eq!(bodies(&values(&server)), bodies(&sent));
    server.promote();
    assert_they_go_on(&server, &sent);
}

fn snapshot() -> Vec<u8> {
    fs::read(recorded("snapshot.rdb")).expect("a recorded file")
}

/// Waits until a replica has applied the whole recorded stream.
#[track_caller]
fn await_the_end(replica: &Server) {
    let mut c = replica.connection();
    let exists = command(&format!("EXISTS {END}"));
    await_until("the story is at its end", PATIENCE, || {
        c.answer(&exists) == Ok(Value::Int(1))
    });
}

/// Returns the values, and when their keys expire.
fn bodies(values: &BTreeMap<Key, Kept>) -> BTreeMap<Key, (Vec<u8>, i64)> {
    let body = |(key, kept): (&Key, &Kept)| (key.clone(), (kept.value().to_vec(), kept.ends));
    values.iter().map(body).collect()
}

/// Returns the recorded bytes, in which the lock `sole` has a value of format 3.
fn of_a_later_format(mut bytes: Vec<u8>) -> Vec<u8> {
    let values = read_values("dump.values");
    let sole = values[&(0, b"sole".to_vec())].value();
    let at = (0..bytes.len()).find(|at| bytes[*at..].starts_with(&sole[10..]));
    // The mark of a string and its length precede the format.
    bytes[at.expect("the value is there") + 2] = 3;
    bytes
}

/// Returns the complaint in the log about `what`.
fn complaint(what: &str) -> String {
    format!(
        "{what} has format 3, and dlock {} knows formats up to 2: update the module of this server",
        env!("CARGO_PKG_VERSION")
    )
}

#[test]
fn a_value_of_a_later_format_is_not_restored() {
    let server = builder().start();
    let mut c = server.connection();
    let dump = read_values("dump.values")[&(0, b"sole".to_vec())]
        .dump
        .clone();
    restore(&mut c, "k", &dump).expect("what is known is restored");
    let before = kept(&mut c, "k");
    let body = of_a_later_format(dump[..dump.len() - 8].to_vec());
    let refusal = restore(&mut c, "k", &seal(body)).expect_err("a refusal");
    assert_eq!(refusal, "ERR Bad data format");
    assert!(server.log().contains(&complaint("a lock's value")));
    assert_eq!(kept(&mut c, "k"), before);
    assert_sound(&server);
}

/// Makes a server start in a directory. Returns its log, since the start must fail.
fn refused_start(builder: ServerBuilder, directory: &Path) -> String {
    let started = builder.config("dir", directory.display()).try_start();
    match started {
        Ok(_) => panic!("the server has started"),
        Err(refused) => refused.log,
    }
}

#[test]
fn a_file_of_a_later_format_is_not_loaded() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("dump.rdb");
    let mut bytes = of_a_later_format(fs::read(recorded("dump.rdb")).expect("a recorded file"));
    // No checksum, as a server without checksums writes it.
    let end = bytes.len() - 8;
    bytes[end..].fill(0);
    fs::write(&file, &bytes).expect("our directory");
    let log = refused_start(builder(), directory.path());
    assert!(log.contains(&complaint("a lock's value")), "{log}");
    assert_eq!(fs::read(&file).expect("our file"), bytes);
}

/// Returns an effect that only a later version can read.
fn effect_of_a_later_format() -> Vec<u8> {
    let mut line = cmd("DLOCK.APPLY");
    line.arg("sole").arg("3 q1704067202394187 whatever");
    line.get_packed_command()
}

#[test]
fn an_effect_of_a_later_format_in_the_aof_is_not_passed_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = directory.path().join("appendonlydir");
    copy_directory(&recorded("plain"), &files);
    let file = files.join("appendonly.aof.2.incr.aof");
    let mut bytes = fs::read(&file).expect("our file");
    bytes.extend(effect_of_a_later_format());
    fs::write(&file, &bytes).expect("our file");
    let log = refused_start(builder().config("appendonly", "yes"), directory.path());
    assert!(log.contains(&complaint("the effect")), "{log}");
    assert_eq!(fs::read(&file).expect("our file"), bytes);
}

/// A replica that cannot follow ends. Its stored data ends before that effect, so it continues with it after an update.
#[test]
fn an_effect_of_a_later_format_is_not_passed_over_by_a_replica() {
    let primary = Primary::new();
    let mut server = builder()
        .config("replicaof", format!("127.0.0.1 {}", primary.port()))
        .start();
    let stream = fs::read(recorded("stream")).expect("a recorded file");
    let mut link = primary.send(&snapshot(), &stream);
    await_the_end(&server);
    server.connection().run("SAVE");
    link.write_all(&effect_of_a_later_format())
        .expect("it reads");
    assert!(!server.await_exit().success());
    assert!(server.log().contains(&complaint("the effect")));

    server.restart();
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, [RUN.to_owned(), (stream.len() + 1).to_string()]);
    // As after an update: it can read the next effect.
    let mut line = cmd("DLOCK.APPLY");
    let hold = "1 h1704067300000000 3281904002394 1 1 5:alice";
    let now = line.arg("updated").arg(hold).get_packed_command();
    link.write_all(&[b"+CONTINUE\r\n", &*now].concat())
        .expect("it reads");
    let mut c = server.connection();
    await_until("it follows", PATIENCE, || {
        is_held(&mut c, "updated", "alice")
    });
    let sent = read_values("stream.values");
    let mut all = values(&server);
    all.remove(&(0, b"updated".to_vec()));
    assert_eq!(bodies(&all), bodies(&sent));
}
