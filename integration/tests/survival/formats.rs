//! What earlier versions wrote is read: dumped values, files, and what a primary sends to its replicas. And what a later
//! version writes is refused, with nothing lost.
//!
//! `formats/0.1.0` was written by 0.1.0 (see `formats/record.sh`, which has the last commit before 0.2.0 run `record` below):
//!
//! | file | what it is |
//! |---|---|
//! | `dump.rdb` | locks of every sort, by SAVE |
//! | `preamble/`, `plain/` | the AOF's directory: the same locks by a rewrite, with and without RDB preamble, then a story in effects |
//! | `snapshot.rdb`, `stream` | what a replica is sent: the same locks, then the story |
//! | `*.values` | what 0.1.0 had then: for each key its DUMP and the end of its TTL |

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use dlock_integration::dump::{restore, seal};
use dlock_integration::redis::{cmd, from_redis_value, Cmd, Connection, Parser, Value};
use dlock_integration::{
    assert_sound, await_until, command, is_held, kept, position, Ask, Grant, Server, ServerBuilder,
    PATIENCE,
};

/// Fifty years.
const LEASE: u64 = 1_577_836_800_000;

/// The longest claim window.
const CLAIM: u64 = 600_000;

/// The last key of a story: when it is there the rest is.
const END: &str = "the-end";

/// A server that believes leases this long, and dumps values as they are.
fn builder() -> ServerBuilder {
    Server::builder()
        .config("dlock.max-lease-ms", 2 * LEASE)
        .config("rdbcompression", "no")
}

fn recorded(name: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/survival/formats/0.1.0");
    formats.join(name)
}

/// Makes locks of every sort. Who waits does so as long as the connection that this gives is open.
fn make_sorts(server: &Server) -> Connection {
    let mut c = server.connection();
    let mut run = |line: &str| c.run(&line.replace('~', &LEASE.to_string()));
    run("DLOCK.ACQUIRE sole alice ~");
    run("DLOCK.ACQUIRE counted alice ~ HOLDS 4294967295");
    run("DLOCK.ACQUIRE downgraded alice ~");
    run("DLOCK.DOWNGRADE downgraded alice LIMIT 3");
    run("DLOCK.ACQUIRE shared alice ~ SHARED");
    run("DLOCK.ACQUIRE shared bob ~ SHARED HOLDS 2");
    run("DLOCK.ACQUIRE shared carol 1500000000000 LIMIT 4294967294");
    run("DLOCK.ACQUIRE semaphore alice ~ LIMIT 2");
    run("DLOCK.ACQUIRE semaphore bob 1500000000000 LIMIT 3");
    for holder in 0..40 {
        run(&format!("DLOCK.ACQUIRE crowd reader-{holder} ~ SHARED"));
    }
    run("DLOCK.ACQUIRE waited alice ~");
    run("DLOCK.ACQUIRE waited bob ~ NOTIFY news");
    run("DLOCK.ACQUIRE queued alice ~");
    run("DLOCK.FAIRACQUIRE queued bob ~ CLAIM 600000");
    run("DLOCK.FAIRACQUIRE queued carol ~ CLAIM 600000 SHARED");
    run("DLOCK.FAIRACQUIRE queued dave ~ CLAIM 600000 LIMIT 7");
    run("DLOCK.ACQUIRE reserved alice ~");
    run("DLOCK.FAIRACQUIRE reserved bob ~ CLAIM 600000");
    run("DLOCK.RELEASE reserved alice");
    // A holder that waits for others to leave, by a ticket.
    run("DLOCK.ACQUIRE upgrading erin ~ SHARED");
    run("DLOCK.ACQUIRE upgrading frank ~ SHARED");
    run("DLOCK.FAIRACQUIRE upgrading erin ~ NOTIFY news CLAIM 600000");
    run("DLOCK.FAIRACQUIRE upgrading carol ~ CLAIM 600000");
    let every_byte: Vec<u8> = (0..=255).collect();
    let acquire = |key: &[u8], owner: &[u8]| -> Cmd {
        let mut line = cmd("DLOCK.ACQUIRE");
        line.arg(key).arg(owner).arg(LEASE);
        line
    };
    c.ask_command::<Grant>(&acquire(b"\0\xff\r\n %s", &every_byte));
    c.ask_command::<Grant>(&acquire(b"long", &[b'o'; 1024]));
    c.run("SET no-lock text");
    let mut elsewhere = server.connection_in(3);
    elsewhere.ask_command::<Grant>(&acquire(b"elsewhere", b"alice"));
    c
}

/// Has every sort of decision made. Who waits does so as long as the connection that this gives is open.
fn tell_a_story(server: &Server) -> Connection {
    let mut c = server.connection();
    let line = |line: &str| line.replace('~', &LEASE.to_string());
    let mut run = |words: &str| c.run(&line(words));
    run("DLOCK.ACQUIRE reentered alice ~");
    run("DLOCK.ACQUIRE reentered alice ~");
    run("DLOCK.ACQUIRE reentered alice ~");
    run("DLOCK.RELEASE reentered alice");
    run("DLOCK.RENEW reentered alice 1500000000000");
    run("DLOCK.ACQUIRE released alice ~");
    run("DLOCK.RELEASE released alice");
    run("DLOCK.ACQUIRE handed alice ~");
    run("DLOCK.ACQUIRE handed bob ~ NOTIFY news");
    run("DLOCK.RELEASE handed alice");
    run("DLOCK.ACQUIRE forced alice ~");
    run("DLOCK.ACQUIRE forced bob ~ NOTIFY news");
    run("DLOCK.ACQUIRE forced carol ~ NOTIFY news");
    run("DLOCK.FORCERELEASE forced");
    for holder in ["alice", "bob", "carol"] {
        run(&format!("DLOCK.ACQUIRE named {holder} ~ SHARED"));
    }
    run("DLOCK.RELEASE named bob");
    run("DLOCK.ACQUIRE ticketed alice ~");
    for holder in ["bob", "carol", "dave"] {
        let claim = format!("DLOCK.FAIRACQUIRE ticketed {holder} ~ CLAIM {CLAIM}");
        run(&claim);
    }
    run("DLOCK.CANCEL ticketed carol");
    run("DLOCK.RELEASE ticketed alice");
    run(&format!("DLOCK.FAIRACQUIRE ticketed bob ~ CLAIM {CLAIM}"));
    run("DLOCK.ACQUIRE upgraded alice ~ SHARED");
    run("DLOCK.ACQUIRE upgraded alice ~");
    run("DLOCK.ACQUIRE weakened alice ~");
    run("DLOCK.ACQUIRE weakened bob ~ SHARED NOTIFY news");
    run("DLOCK.DOWNGRADE weakened alice SHARED");
    run("DLOCK.MACQUIRE 3 many-1 many-2 many-3 alice ~");
    run("DLOCK.MRELEASE 2 many-1 many-3 alice");
    run("DLOCK.MRENEW 1 many-2 alice 1500000000000");
    run("DLOCK.ACQUIRE before alice ~");
    run("RENAME before after");
    run("DLOCK.ACQUIRE removed alice ~");
    run("DLOCK.ACQUIRE removed bob ~ NOTIFY news");
    run("DEL removed");
    run("DLOCK.ACQUIRE retimed alice ~");
    run("PERSIST retimed");
    run("DLOCK.ACQUIRE expired alice 30");
    run("DLOCK.ACQUIRE expired bob ~ NOTIFY news");
    run("DLOCK.ACQUIRE dropped alice ~");
    run("DLOCK.FAIRACQUIRE dropped bob ~ CLAIM 20");
    let mut session = server.connection();
    session.run(&line("DLOCK.ACQUIRE session alice ~ SESSION"));
    run("DLOCK.ACQUIRE session bob ~ NOTIFY news");
    drop(session);
    for key in ["removed", "expired", "session"] {
        await_until("it is handed over", PATIENCE, || {
            is_held(&mut c, key, "bob")
        });
    }
    await_until("the ticket is dropped", PATIENCE, || {
        position(&mut c, "dropped", "bob").is_none()
    });
    await_until("the TTL is put right", PATIENCE, || {
        c.ask::<i64>("PTTL retimed") > 0
    });
    c.run(&format!("SET {END} 1"));
    c
}

/// A key of a database.
type Key = (i64, Vec<u8>);

/// What is kept of a lock: its DUMP, and the end of its TTL in unix milliseconds (-1: none).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    dump: Vec<u8>,
    ends: i64,
}

impl Kept {
    /// The value in the DUMP, with what says of what type it is; without the server's version and checksum.
    fn value(&self) -> &[u8] {
        &self.dump[..self.dump.len() - 10]
    }
}

/// What is kept of all locks.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (16 * pair[0] + pair[1]) as u8)
        .collect()
}

fn write_values(file: &Path, values: &BTreeMap<Key, Kept>) {
    let line = |((db, key), kept): (&Key, &Kept)| {
        format!("{db} {} {} {}\n", hex(key), kept.ends, hex(&kept.dump))
    };
    let text: String = values.iter().map(line).collect();
    fs::write(file, text).expect("the directory can be written to");
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

/// Writes what the tests below read. To be run by `formats/record.sh` only, with the module of an earlier version.
#[test]
#[ignore = "it makes the recorded files anew"]
fn record() {
    let target = PathBuf::from(std::env::var_os("DLOCK_RECORD").expect("where to"));
    let server = builder().start();
    let waiting = make_sorts(&server);
    write_values(&target.join("dump.values"), &values(&server));
    server.connection().run("SAVE");
    fs::copy(server.dir().join("dump.rdb"), target.join("dump.rdb")).expect("a copy");
    drop((waiting, server));

    for (name, preamble) in [("preamble", "yes"), ("plain", "no")] {
        let mut server = builder()
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .config("aof-use-rdb-preamble", preamble)
            .start();
        let _sorts = make_sorts(&server);
        server.rewrite_aof();
        let _story = tell_a_story(&server);
        write_values(&target.join(format!("{name}.values")), &values(&server));
        server.kill9();
        let (from, to) = (server.dir().join("appendonlydir"), target.join(name));
        let _ = fs::remove_dir_all(&to);
        copy_directory(&from, &to);
    }

    let server = builder().start();
    let _sorts = make_sorts(&server);
    let mut replica = Replica::attach(&server);
    let _story = tell_a_story(&server);
    let stream = replica.read_to(END);
    write_values(&target.join("stream.values"), &values(&server));
    fs::write(target.join("snapshot.rdb"), replica.snapshot).expect("written");
    fs::write(target.join("stream"), stream).expect("written");
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// What a primary takes for a replica: it keeps all that it is sent.
struct Replica {
    stream: TcpStream,
    snapshot: Vec<u8>,
}

impl Replica {
    fn attach(primary: &Server) -> Replica {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, primary.port())).expect("a port");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"PSYNC ? -1\r\n").expect("it reads");
        let mut replica = Replica {
            stream,
            snapshot: Vec::new(),
        };
        assert!(replica.line().starts_with("+FULLRESYNC "));
        // Empty lines tell that it is still there.
        let length = loop {
            let line = replica.line();
            if let Some(length) = line.strip_prefix('$') {
                break length.parse().expect("a length");
            }
            assert_eq!(line, "");
        };
        let mut snapshot = vec![0; length];
        replica.stream.read_exact(&mut snapshot).expect("all of it");
        replica.snapshot = snapshot;
        replica
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("a line");
            line.extend(byte);
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// The commands up to the one with this word.
    fn read_to(&mut self, word: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let end = [word, "\r\n$1\r\n1\r\n"].concat();
        while !bytes.ends_with(end.as_bytes()) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the end");
            bytes.extend(byte);
        }
        bytes
    }
}

/// The name of a primary's history.
const RUN: &str = "0123456789abcdef0123456789abcdef01234567";

/// One that replays to a replica what a primary has sent.
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

    /// Has the replica that comes replicate this: a snapshot, and what follows it. Gives the connection.
    fn send(&self, snapshot: &[u8], stream: &[u8]) -> TcpStream {
        let (mut link, asked) = self.accept();
        assert_eq!(asked, ["?", "-1"], "it has nothing yet");
        let head = format!("+FULLRESYNC {RUN} 0\r\n${}\r\n", snapshot.len());
        for bytes in [head.as_bytes(), snapshot, stream] {
            link.write_all(bytes).expect("it reads");
        }
        link
    }

    /// Waits for a replica. Gives its connection, and from where on it wants to be sent what the primary does.
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

/// What a value says: who holds, and who has a ticket, in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lock {
    holds: BTreeMap<Vec<u8>, Hold>,
    tickets: Vec<Vec<u8>>,
}

impl Lock {
    /// Reads format 1, as its description has it (`engine/src/lock/codec.rs`).
    fn of(kept: &Kept) -> Lock {
        // Before it stand the type, its id, the mark of a string and its length.
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

    /// What the server says of a lock.
    fn shown(c: &mut Connection, key: &[u8]) -> Lock {
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

/// Whoever held goes on, who had a ticket is next in its turn, and new tokens are above the old ones.
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
        // Looked at before anything can be done about it.
        c.run("MULTI");
        c.ask_command::<String>(cmd("RESTORE").arg(key).arg(0).arg(&kept.dump));
        c.ask_command::<String>(cmd("DUMP").arg(key));
        let (_, dump): (Value, Vec<u8>) = c.ask("EXEC");
        let restored = Kept { dump, ends: 0 };
        assert_eq!(restored.value(), kept.value(), "{key:?}");
    }
    assert_they_go_on(&server, &values);
}

/// A server that follows nobody who is there: it decides nothing, so what it has loaded is as it was read.
fn idle_replica() -> ServerBuilder {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = nobody.local_addr().expect("an address").port();
    builder().config("replicaof", format!("127.0.0.1 {port}"))
}

/// Puts files in the place of a server's own before it starts anew.
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

/// Waits until a replica has done all that the recorded stream says.
#[track_caller]
fn await_the_end(replica: &Server) {
    let mut c = replica.connection();
    let exists = command(&format!("EXISTS {END}"));
    await_until("the story is at its end", PATIENCE, || {
        c.answer(&exists) == Ok(Value::Int(1))
    });
}

/// The values, and when their keys end.
fn bodies(values: &BTreeMap<Key, Kept>) -> BTreeMap<Key, (Vec<u8>, i64)> {
    let body = |(key, kept): (&Key, &Kept)| (key.clone(), (kept.value().to_vec(), kept.ends));
    values.iter().map(body).collect()
}

/// The recorded bytes in which the lock `sole` has a value of format 2.
fn of_a_later_format(mut bytes: Vec<u8>) -> Vec<u8> {
    let values = read_values("dump.values");
    let sole = values[&(0, b"sole".to_vec())].value();
    let at = (0..bytes.len()).find(|at| bytes[*at..].starts_with(&sole[10..]));
    // The mark of a string and its length stand before the format.
    bytes[at.expect("the value is there") + 2] = 2;
    bytes
}

/// What the log says of it.
fn complaint(what: &str) -> String {
    format!(
        "{what} has format 2, and dlock {} knows formats up to 1: update the module of this server",
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

/// Has a server start in a directory. Gives the log of it that does not.
fn refused_start(builder: ServerBuilder, directory: &Path) -> String {
    let started = builder.config("dir", directory.display()).try_start();
    match started {
        Ok(_) => panic!("it has started"),
        Err(refused) => refused.log,
    }
}

#[test]
fn a_file_of_a_later_format_is_not_loaded() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("dump.rdb");
    let mut bytes = of_a_later_format(fs::read(recorded("dump.rdb")).expect("a recorded file"));
    // No checksum, as of a server that writes none.
    let end = bytes.len() - 8;
    bytes[end..].fill(0);
    fs::write(&file, &bytes).expect("our directory");
    let log = refused_start(builder(), directory.path());
    assert!(log.contains(&complaint("a lock's value")), "{log}");
    assert_eq!(fs::read(&file).expect("our file"), bytes);
}

/// An effect that only a later version can read.
fn effect_of_a_later_format() -> Vec<u8> {
    let mut line = cmd("DLOCK.APPLY");
    line.arg("sole").arg("2 q1704067202394187 whatever");
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

/// A replica that cannot follow ends. What it has kept is from before, so it goes on at that very effect once it can.
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
    // It is as if it had been updated: what comes now it can read.
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
