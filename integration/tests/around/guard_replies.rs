//! `DLOCK.GUARD` answers as the command does alone: every command of the server, on values of every type, with and without GUARD
//! from equal states, compared byte for byte.
//!
//! The arguments come from the server's description of its commands (COMMAND DOCS): all required arguments, with each choice and
//! each option in turn.

use std::collections::BTreeSet;

use dlock_harness::redis::{cmd, Cmd, Value};
use dlock_harness::{command, Ask, Grant, Server, Wire};

/// Commands that are not compared, or only in one way, and the reason.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("command", "hundreds of kilobytes each time"),
    ("command docs", "hundreds of kilobytes each time"),
    ("command info", "hundreds of kilobytes each time"),
    ("commandlog get", "tells of slow commands"),
    ("commandlog len", "tells of slow commands"),
    ("info", "tells the time and counts"),
    ("keys", "in the order of a table that grows step by step"),
    ("lolwut", "paints anew each time"),
    ("memory doctor", "tells of memory"),
    ("memory malloc-stats", "tells of memory"),
    ("memory stats", "tells of memory"),
    ("migrate", "waits for a server that is not there"),
    ("object idletime", "tells the time"),
    ("randomkey", "by chance"),
    ("scan", "in the order of a table that grows step by step"),
    ("slowlog get", "tells of slow commands"),
    ("slowlog len", "tells of slow commands"),
    ("time", "tells the time"),
    ("vinfo", "tells of a random id"),
];

/// Commands that GUARD refuses by their names.
const REFUSED: &[&str] = &["select", "wait", "waitaof"];

/// A value of every type, each under its name. Sets, hashes and sorted sets have one member, so that a random choice from them
/// always gives that member.
const VALUES: &[&str] = &[
    "SET string abc",
    "SET number 10",
    "RPUSH list a b c",
    "HSET hash f1 1",
    "SADD set m1",
    "ZADD zset 1 m1",
    "XADD stream 1-1 f v",
    "XGROUP CREATE stream g 0",
    "PFADD log a b c",
    "GEOADD geo 13.36 38.11 m1",
];

/// A value of the additional type of Redis 8.
const VECTORS: &str = "VADD vectors VALUES 1 1 m1";

/// Keys: those of the values, one without a value, and the lock.
const KEYS: &[&str] = &[
    "string", "number", "list", "hash", "set", "zset", "stream", "log", "geo", "vectors",
    "nothing", "k",
];

/// Keys whose values are identical whenever they are made: not the lock's, with its token, nor vectors, with an id.
const SAME: &[&str] = &[
    "string", "number", "list", "hash", "set", "zset", "stream", "log", "geo", "nothing",
];

/// A word of a command that stands for a key.
const KEY: &str = "<key>";

/// A client's way to send a command.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Multi,
    Script,
}

/// A command (or a subcommand) of the server.
struct Spec {
    name: String,
    flags: BTreeSet<String>,
    /// Lists of words after its name.
    arguments: Vec<Vec<String>>,
}

impl Spec {
    /// Returns true if GUARD documents that it does not run the command: blocking commands, those not for scripts, and some by
    /// name.
    fn is_refused(&self) -> bool {
        ["blocking", "noscript"]
            .iter()
            .any(|flag| self.flags.contains(*flag))
            || REFUSED.contains(&&*self.name)
            || self.name.starts_with("dlock.")
    }

    fn not_compared(&self) -> bool {
        NOT_COMPARED.iter().any(|(name, _)| *name == self.name)
    }

    fn reads(&self) -> bool {
        self.flags.contains("readonly")
    }

    /// Returns the whole lines: each list of arguments with keys of every type, all of one type and, where there are several,
    /// also with a string as the first.
    fn lines(&self) -> BTreeSet<Vec<String>> {
        let mut lines = BTreeSet::new();
        for words in &self.arguments {
            let keys = words.iter().filter(|word| *word == KEY).count();
            for key in KEYS {
                for first in [key, &"string"] {
                    // The answer is the rest of a lease, which changes.
                    let runs = *key == "k" && ["ttl", "pttl"].contains(&&*self.name);
                    let mut keys = [first].into_iter().chain(std::iter::repeat(key)).take(keys);
                    let with_keys = words.iter().map(|word| match word == KEY {
                        true => (*keys.next().expect("one for each")).to_string(),
                        false => word.clone(),
                    });
                    let name = self.name.split(' ').map(str::to_string);
                    let line: Vec<String> = name.chain(with_keys).collect();
                    if !runs {
                        lines.insert(line);
                    }
                }
            }
        }
        lines
    }
}

/// Returns a field of a map.
fn field<'v>(map: &'v Value, name: &str) -> Option<&'v Value> {
    let Value::Map(fields) = map else {
        panic!("no map: {map:?}");
    };
    let found = fields.iter().find(|(key, _)| text(key) == name);
    found.map(|(_, value)| value)
}

fn items(list: Option<&Value>) -> &[Value] {
    match list {
        Some(Value::Array(items) | Value::Set(items)) => items,
        _ => &[],
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

/// Returns the lists of words that an argument may be.
fn choices(argument: &Value) -> Vec<Vec<String>> {
    let name = field(argument, "name").map(text).unwrap_or_default();
    let plain = |word: &str| vec![vec![word.to_string()]];
    let inner = items(field(argument, "arguments"));
    let kind = field(argument, "type").map(text).unwrap_or_default();
    let choices = match &*kind {
        "key" => plain(KEY),
        // No lease may end during the comparison.
        "integer" if name.contains("milli") => plain("1000000000"),
        "integer" if name.contains("second") => plain("1000000"),
        "integer" if name == "ttl" => plain("0"),
        "integer" | "double" => plain("1"),
        "unix-time" if name.contains("milli") => plain("4000000000000"),
        "unix-time" => plain("4000000000"),
        "pattern" => plain("*"),
        "pure-token" => vec![vec![]],
        "oneof" => inner.iter().flat_map(choices).collect(),
        "block" => lists(inner),
        _ => plain(match &*name {
            "field" => "f1",
            "member" => "m1",
            "element" | "pivot" => "a",
            "id" => "1-1",
            "group" => "g",
            "min" | "start" => "0",
            "max" | "end" | "stop" => "5",
            _ => "1",
        }),
    };
    let token = field(argument, "token").map(text);
    let mut choices: Vec<Vec<String>> = choices
        .into_iter()
        .map(|words| token.iter().cloned().chain(words).collect())
        .collect();
    // An id that the server makes depends on the time.
    choices.retain(|words| *words != ["*"] || kind == "pattern");
    if flags(argument).contains("multiple") {
        let twice = choices
            .first()
            .map(|words| [&words[..], &words[..]].concat());
        choices.extend(twice);
    }
    choices
}

fn flags(argument: &Value) -> BTreeSet<String> {
    items(field(argument, "flags")).iter().map(text).collect()
}

/// Returns lists of words for arguments: the required ones, then those with each other choice and each option in turn.
fn lists(arguments: &[Value]) -> Vec<Vec<String>> {
    let all: Vec<(bool, Vec<Vec<String>>)> = arguments
        .iter()
        .map(|argument| (flags(argument).contains("optional"), choices(argument)))
        .collect();
    let with = |chosen: Option<(usize, &Vec<String>)>| {
        let words = all
            .iter()
            .enumerate()
            .map(|(at, (optional, choices))| match chosen {
                Some((other, words)) if other == at => words.clone(),
                _ if *optional => Vec::new(),
                _ => choices.first().cloned().unwrap_or_default(),
            });
        words.collect::<Vec<_>>().concat()
    };
    let chosen = all
        .iter()
        .enumerate()
        .flat_map(|(at, (optional, choices))| {
            let others = choices.iter().skip(usize::from(!optional));
            others.map(move |words| (at, words))
        });
    let mut lists = vec![with(None)];
    lists.extend(chosen.map(|chosen| with(Some(chosen))));
    lists
}

/// Returns all commands of the server, with their subcommands.
fn specs(server: &Server) -> Vec<Spec> {
    let mut c = server.connection_resp3();
    let Value::Map(docs) = c.ask("COMMAND DOCS") else {
        panic!("no map");
    };
    let mut described: Vec<(String, &Value)> = Vec::new();
    for (name, doc) in &docs {
        described.push((text(name), doc));
        if let Some(Value::Map(inner)) = field(doc, "subcommands") {
            described.extend(inner.iter().map(|(name, doc)| (text(name), doc)));
        }
    }
    let all: BTreeSet<String> = c.ask("COMMAND LIST");
    assert_eq!(
        described
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<BTreeSet<_>>(),
        all
    );
    let mut specs: Vec<Spec> = described
        .into_iter()
        .map(|(name, doc)| {
            let info: Value = c.ask(&format!("COMMAND INFO {name}"));
            let row = items(items(Some(&info)).first());
            Spec {
                name: name.replace('|', " ").to_lowercase(),
                flags: items(row.get(2)).iter().map(text).collect(),
                arguments: lists(items(field(doc, "arguments"))),
            }
        })
        .collect();
    specs.sort_by(|one, other| one.name.cmp(&other.name));
    specs
}

/// A server that can be reset, so that both ways begin in an equal state.
struct Setup {
    wire: Wire,
    values: Vec<&'static str>,
    token: u64,
}

impl Setup {
    fn new(server: &Server, specs: &[Spec], protocol: u8) -> Setup {
        let mut wire = server.connection();
        wire.bytes(&[command(&format!("HELLO {protocol}"))]);
        let vectors = specs
            .iter()
            .any(|spec| spec.name == "vadd")
            .then_some(VECTORS);
        let mut setup = Setup {
            wire,
            values: VALUES.iter().copied().chain(vectors).collect(),
            token: 0,
        };
        setup.reset();
        setup
    }

    fn reset(&mut self) {
        let lines = ["FLUSHALL"].iter().chain(&self.values);
        self.wire.pipeline(lines.map(|line| (*line).to_string()));
        let (token, _): Grant = self.wire.ask("DLOCK.ACQUIRE k alice 600000");
        self.token = token;
    }

    fn guarded(&self, line: &[String]) -> Vec<String> {
        let token = self.token.to_string();
        let guard = ["DLOCK.GUARD", "k", &token].map(str::to_string);
        [&guard[..], line].concat()
    }

    /// Sends a command in this way. Returns its answer, and the contents of the keys afterwards.
    fn answer(&mut self, way: Way, protocol: u8, words: &[String]) -> Vec<u8> {
        let mut sent = cmd(&words[0]);
        sent.arg(&words[1..]);
        let mut digest = command("DEBUG DIGEST-VALUE");
        digest.arg(SAME);
        let commands: Vec<Cmd> = match way {
            Way::Plain => vec![sent, digest],
            Way::Multi => vec![command("MULTI"), sent, command("EXEC"), digest],
            Way::Script => {
                let script = format!("redis.setresp({protocol}) return redis.pcall(unpack(ARGV))");
                let mut eval = cmd("EVAL");
                eval.arg(script).arg(0).arg(words);
                vec![eval, digest]
            }
        };
        self.wire.bytes(&commands)
    }
}

/// Returns true if an error of the command itself arises elsewhere: EXEC is refused after a refused command, and scripts count
/// the words themselves.
fn comes_elsewhere(way: Way, direct: &str, guarded: &str) -> bool {
    match way {
        Way::Plain => false,
        Way::Multi => direct.contains("EXECABORT"),
        Way::Script => {
            direct.starts_with("-ERR Wrong number of args calling")
                && guarded.starts_with("-ERR wrong number of arguments")
        }
    }
}

/// Compares every command in this way, with and without GUARD.
fn compare(way: Way) {
    let server = Server::start();
    let specs = specs(&server);
    let (mut compared, mut good, mut different) = (BTreeSet::new(), 0, Vec::new());
    for protocol in [2, 3] {
        let mut setup = Setup::new(&server, &specs, protocol);
        for spec in specs
            .iter()
            .filter(|spec| !spec.is_refused() && !spec.not_compared())
        {
            // Even a reading command may leave a change behind (PFCOUNT).
            setup.reset();
            for line in spec.lines() {
                let direct = setup.answer(way, protocol, &line);
                if !spec.reads() {
                    setup.reset();
                }
                let guarded = setup.guarded(&line);
                let guarded = setup.answer(way, protocol, &guarded);
                if !spec.reads() {
                    setup.reset();
                }
                compared.insert(&spec.name);
                good += usize::from(!direct.starts_with(b"-"));
                let [direct, guarded] =
                    [direct, guarded].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                if direct != guarded && !comes_elsewhere(way, &direct, &guarded) {
                    different.push(format!(
                        "RESP{protocol} {}\n  by itself:   {direct:?}\n  under GUARD: {guarded:?}",
                        line.join(" ")
                    ));
                }
            }
        }
    }
    println!("{} commands, {good} good answers", compared.len());
    assert!(
        different.is_empty(),
        "{} answers differ:\n{}",
        different.len(),
        different[..different.len().min(20)].join("\n")
    );
    // Enough was compared to notice a difference.
    assert!(
        compared.len() > 150 && good > 2_000,
        "{} {good}",
        compared.len()
    );
    for name in [
        "getset",
        "getdel",
        "spop",
        "zrange",
        "xinfo stream",
        "sort",
        "restore",
    ] {
        assert!(compared.contains(&name.to_string()), "{name}");
    }
}

#[test]
fn every_command_answers_as_by_itself() {
    compare(Way::Plain);
}

#[test]
fn every_command_answers_as_by_itself_in_a_transaction() {
    compare(Way::Multi);
}

#[test]
fn every_command_answers_as_by_itself_in_a_script() {
    compare(Way::Script);
}

/// Every command that GUARD does not run is refused by one error, and changes nothing.
#[test]
fn every_command_that_is_refused_is_answered() {
    let server = Server::start();
    let specs = specs(&server);
    let mut refused = BTreeSet::new();
    for protocol in [2, 3] {
        let mut setup = Setup::new(&server, &specs, protocol);
        let before = setup.answer(Way::Plain, protocol, &["PING".to_string()]);
        for spec in specs.iter().filter(|spec| spec.is_refused()) {
            for line in spec.lines() {
                let mut words = cmd("DLOCK.GUARD");
                words.arg(&setup.guarded(&line)[1..]);
                let answer = setup.wire.bytes(&[words]);
                let answer = String::from_utf8_lossy(&answer);
                assert!(
                    answer.starts_with('-') && answer.find("\r\n") == Some(answer.len() - 2),
                    "{}: {answer:?}",
                    line.join(" ")
                );
            }
            refused.insert(&spec.name);
        }
        let after = setup.answer(Way::Plain, protocol, &["PING".to_string()]);
        assert_eq!(before, after);
    }
    for name in [
        "blpop",
        "shutdown",
        "multi",
        "eval",
        "select",
        "dlock.guard",
        "debug",
    ] {
        assert!(refused.contains(&name.to_string()), "{name}");
    }
}

/// The reasons above are about commands that some server has.
#[test]
fn what_is_left_out_is_a_command() {
    let server = Server::start();
    let specs = specs(&server);
    for (name, why) in NOT_COMPARED {
        let some_have_it = ["vinfo", "commandlog get", "commandlog len"].contains(name);
        assert!(
            some_have_it || specs.iter().any(|spec| spec.name == *name),
            "{name}: {why}"
        );
    }
}
