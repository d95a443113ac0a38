//! The conversations in `tests/scenarios`, held with a server. Its clocks move only by the time that passes in them, so that
//! milliseconds also count here. `DLOCK_WRITE=1` writes the answers that the server gives into the files of `tests/servers`. Those
//! of `tests/scenarios` are the engine's to write.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use dlock_conversations::script::{self, Act, Command, Key, Reader, ServerAct};
use dlock_conversations::transcript::{self, Edit, Labels};
use dlock_conversations::{all, for_servers, is_rewriting, of_servers, planted, Conversation};
use dlock_engine::refusal::escaped;
use dlock_harness::redis::{Cmd, PushKind, Value};
use dlock_harness::{
    assert_sound, await_until, reply_of, until, with, Ask, Clock, Server, Wire, PATIENCE,
};

/// The number of conversations at a time: each waits for its server most of the time.
const AT_ONCE: usize = 4;

/// The last part of a wait, which passes millisecond by millisecond: leases end there, and conversations name each. The time
/// before it passes in larger steps, because each step costs a round trip.
const EXACT_MS: i64 = 1_000;
const FAR_STEP_MS: i64 = 10;

/// How long an answer may be on its way.
const ARRIVAL: Duration = Duration::from_millis(50);

/// The body of a script: it runs the words unchanged, and returns errors as replies.
const SCRIPT: &str = "return redis.pcall(unpack(ARGV))";

#[test]
fn conversations_go_as_written() {
    assert_all(&all(), |one| hold(for_servers(&one.text)));
}

#[test]
fn what_only_a_server_has_goes_as_written() {
    let all = of_servers();
    if !is_rewriting() {
        return assert_all(&all, |one| hold(&one.text));
    }
    let corrected = Mutex::new(Vec::new());
    assert_all(&all, |one| {
        let edits = correct(&one.text)?;
        corrected.lock().unwrap().push((one, edits));
        Ok(())
    });
    let wrong = dlock_conversations::write(&corrected.into_inner().unwrap());
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

/// Holds the conversations, some at a time, and asserts that all pass.
#[track_caller]
fn assert_all<'a>(
    all: &'a [Conversation],
    hold: impl Fn(&'a Conversation) -> Result<(), String> + Sync,
) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(what) = hold(one) {
                        let what = format!("{}, {what}", one.name);
                        wrong.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "\n\n{}\n", wrong.join("\n\n"));
}

#[test]
fn a_true_conversation_passes_and_untrue_ones_do_not() {
    planted::find(hold);
}

/// A wrong answer in a file of `tests/servers`, with a value of `each`, is corrected at its line.
#[test]
fn untrue_conversations_are_made_true() {
    planted::mend_file(correct);
}

/// Holds one conversation.
fn hold(text: &str) -> Result<(), String> {
    with_server(text, |lines, speaker| transcript::check(lines, speaker))
}

/// Holds one conversation. Returns the edits that make it true.
fn correct(text: &str) -> Result<Vec<Edit>, String> {
    with_server(text, |lines, speaker| transcript::correct(lines, speaker))
}

/// Holds one conversation with a server of its own. `start with appendonly yes` is a line of the server's configuration.
fn with_server<T>(
    text: &str,
    hold: impl FnOnce(&str, ServerSpeaker) -> Result<T, String>,
) -> Result<T, String> {
    let mut builder = Server::builder();
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some(setting) = line.strip_prefix(START) else {
            lines.push(line);
            continue;
        };
        let (name, value) = setting.split_once(' ').ok_or(line)?;
        builder = builder.config(name, value);
        // The other lines keep their numbers.
        lines.push("");
    }
    let (mut server, clock) = Clock::still(builder);
    let held = hold(&lines.join("\n"), ServerSpeaker::new(&mut server, &clock))?;
    assert_sound(&server);
    Ok(held)
}

const START: &str = "start with ";

/// A connection to the server. A client that sends while it waits takes another one.
struct Line {
    wire: Wire,
    /// Its id at the server.
    id: u64,
    db: u32,
    waits: bool,
}

struct ServerSpeaker<'a> {
    server: &'a mut Server,
    clock: &'a Clock,
    observer: Wire,
    /// A subscriber to all channels.
    news: Wire,
    /// The connections of each client.
    clients: BTreeMap<u64, Vec<Line>>,
    /// The channels that a conversation listens to.
    channels: BTreeSet<Vec<u8>>,
    dumped: Option<Value>,
}

impl<'a> ServerSpeaker<'a> {
    fn new(server: &'a mut Server, clock: &'a Clock) -> ServerSpeaker<'a> {
        ServerSpeaker {
            observer: server.connection(),
            news: listener(server),
            server,
            clock,
            clients: BTreeMap::new(),
            channels: BTreeSet::new(),
            dumped: None,
        }
    }

    /// Returns the connection on which this client sends now.
    fn line(&mut self, number: u64) -> &mut Line {
        let lines = self.clients.entry(number).or_default();
        if lines.iter().all(|line| line.waits) {
            let mut wire = self.server.connection_resp3();
            let id = wire.client_id();
            lines.push(Line {
                wire,
                id,
                db: 0,
                waits: false,
            });
        }
        let free = lines.iter_mut().find(|line| !line.waits);
        free.expect("one is free")
    }

    /// Waits until the server has processed everything that is due.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.observer.run("PING");
        }
    }

    fn run(&mut self, command: Cmd) -> Result<Value, String> {
        self.observer.answer(&command)
    }

    fn pass(&mut self, ms: u64) {
        let mut left = i64::try_from(ms).expect("a wait ends");
        while left > 0 {
            let step = if left > EXACT_MS { FAR_STEP_MS } else { 1 };
            self.clock.pass(step);
            self.observer.run("PING");
            left -= step;
        }
        // A window ends one iteration of the server's loop later than a lease: once it has read what had arrived.
        self.settle();
    }

    /// Runs a command of the server itself, in the key's database.
    fn on_key(&mut self, name: &str, key: &Key, more: &[&[u8]]) -> Result<Value, String> {
        let mut words = vec![key.1.as_bytes()];
        words.extend(more);
        self.observer.run(&format!("SELECT {}", key.0));
        let done = self.run(with(name, &words));
        self.observer.run("SELECT 0");
        done
    }

    fn command(&mut self, asked: &Command, tokens: &Labels) -> Result<String, String> {
        let words = asked.words.iter();
        let words: Vec<Vec<u8>> = words.map(|w| script::bytes(w, tokens)).collect();
        let mut command = Cmd::new();
        if !asked.may_wait {
            command.arg("EVAL").arg(SCRIPT).arg(0);
        }
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        let is_whole = name.to_ascii_uppercase().starts_with("DLOCK.");
        command.arg(if is_whole {
            name
        } else {
            format!("DLOCK.{name}")
        });
        command.arg(&words[1..]);
        self.ask(asked, &command)
    }

    /// Runs a command that is not the module's.
    fn other_command(
        &mut self,
        asked: &Command,
        tokens: &Labels,
        names: &Reader,
    ) -> Result<String, String> {
        let mut command = Cmd::new();
        for word in &asked.words {
            let client = word.strip_prefix('@').and_then(|name| names.number(name));
            let line = client.and_then(|client| self.clients.get(&client)?.last());
            command.arg(match line {
                Some(line) => line.id.to_string().into_bytes(),
                None => script::bytes(word, tokens),
            });
        }
        self.ask(asked, &command)
    }

    fn ask(&mut self, asked: &Command, command: &Cmd) -> Result<String, String> {
        let line = self.line(asked.client);
        if line.db != asked.db {
            line.wire.ask::<Value>(&format!("SELECT {}", asked.db));
            line.db = asked.db;
        }
        line.wire.send_command(command);
        let seen = format!("CLIENT LIST ID {}", line.id);
        let mut waits = false;
        await_until("it is answered or waits", PATIENCE, || {
            if self.line(asked.client).wire.has_something() {
                return true;
            }
            let seen: String = self.observer.ask(&seen);
            let mut words = seen.split_whitespace();
            let flags = words.find_map(|word| word.strip_prefix("flags="));
            waits = flags.is_some_and(|flags| flags.contains('b'));
            waits
        });
        let line = self.line(asked.client);
        if waits {
            line.waits = true;
            return Ok("-> waits".into());
        }
        let reply = line.wire.read();
        Ok(format!("-> {}", self.shown(reply)))
    }

    /// Returns a reply as a conversation writes it.
    fn shown(&self, reply: Result<Value, String>) -> String {
        match reply {
            Ok(value) => self.value(&value, ""),
            Err(error) => error,
        }
    }

    /// Returns a value of this name in a map as a conversation writes it.
    fn value(&self, value: &Value, name: &str) -> String {
        let list = |items: Vec<String>| items.join(", ");
        match value {
            Value::Nil => "null".into(),
            Value::Okay => "OK".into(),
            // Connections have the numbers of the conversation.
            Value::Int(id) if ["client", "ephemeral", "auto"].contains(&name) => {
                let known = |(number, lines): (&u64, &Vec<Line>)| {
                    let is_its = lines.iter().any(|line| line.id == *id as u64);
                    is_its.then(|| number.to_string())
                };
                self.clients
                    .iter()
                    .find_map(known)
                    .unwrap_or(id.to_string())
            }
            Value::Int(number) => number.to_string(),
            Value::BulkString(bytes) => escaped(bytes, 64),
            Value::SimpleString(text) => text.clone(),
            Value::Array(items) => {
                let items = items.iter().map(|item| self.value(item, ""));
                format!("[{}]", list(items.collect()))
            }
            Value::Map(fields) => {
                let field = |(name, value): &(Value, Value)| {
                    let name = self.value(name, "");
                    let value = self.value(value, &name);
                    // The engine knows no addresses.
                    let is_known = !["addr", "name"].contains(&&*name);
                    is_known.then(|| format!("{name}: {value}"))
                };
                format!("{{{}}}", list(fields.iter().filter_map(field).collect()))
            }
            Value::ServerError(_) => self.shown(reply_of(value.clone())),
            other => format!("{other:?}"),
        }
    }

    /// Waits until what the server has answered has arrived: on a busy machine an answer may come later than one that was sent after it on
    /// another connection. Clients that `CLIENT PAUSE` holds up count as answered, so this gives up soon.
    fn await_arrival(&mut self) {
        until(ARRIVAL, || {
            let lines = self.clients.values().flatten();
            let silent = lines.filter(|line| line.waits && !line.wire.has_something());
            let silent = silent.count();
            silent == 0
                || self
                    .server
                    .info("clients")
                    .number::<usize>("blocked_clients")
                    >= silent
        });
    }

    /// Returns the outcomes that waiters received.
    fn heard(&mut self, names: &Reader) -> Vec<String> {
        self.settle();
        self.await_arrival();
        let mut said = Vec::new();
        let mut replies = Vec::new();
        for (number, lines) in &mut self.clients {
            for line in lines.iter_mut().filter(|line| line.waits) {
                if line.wire.has_something() {
                    line.waits = false;
                    let reply = line.wire.read_value();
                    let closed = Ok(Value::SimpleString("closed".into()));
                    replies.push((*number, reply.map_or(closed, reply_of)));
                }
            }
        }
        // The answer of Redis 8 to a FLUSHALL in the background is not the module's.
        replies.retain(|(_, reply)| *reply != Ok(Value::Okay));
        for (number, reply) in replies {
            said.push(format!("{} <- {}", names.name(number), self.shown(reply)));
        }
        self.news.send("PING");
        while let Ok(Value::Push { kind, data }) = self.news.read() {
            let [_, Value::BulkString(channel), Value::BulkString(text)] = &data[..] else {
                continue;
            };
            if kind == PushKind::PMessage && self.channels.contains(channel) {
                said.push(format!("{} <- {}", escaped(channel, 64), escaped(text, 64)));
            }
        }
        said
    }

    fn dies(&mut self, number: u64) {
        for line in self.clients.remove(&number).unwrap_or_default() {
            drop(line.wire);
            self.server.await_client_gone(line.id);
        }
    }

    /// Uses a lock with a command that asks for nothing. A value of another type refuses it.
    fn use_lock(&mut self, key: &Key) {
        let _ = self.on_key("DLOCK.CANCEL", key, &[b"nobody"]);
    }

    fn copy(&mut self, from: &Key, to: &Key) -> Result<Value, String> {
        let dump = self.on_key("DUMP", from, &[])?;
        self.bring(to, dump)
    }

    fn bring(&mut self, to: &Key, dump: Value) -> Result<Value, String> {
        let Value::BulkString(dump) = dump else {
            return Err("there is nothing to bring".into());
        };
        self.on_key("RESTORE", to, &[b"0", &dump, b"REPLACE"])
    }
}

/// Subscribes to all channels.
fn listener(server: &Server) -> Wire {
    let mut news = server.connection_resp3();
    news.send("PSUBSCRIBE *");
    news.read().expect("the subscription is confirmed");
    news
}

impl transcript::Speaker for ServerSpeaker<'_> {
    fn act(&mut self, act: &Act, tokens: &Labels, names: &Reader) -> Result<Vec<String>, String> {
        let mut said = Vec::new();
        let to_db = |db: u32| db.to_string();
        match act {
            Act::Command(asked) => said.push(self.command(asked, tokens)?),
            Act::Wait(ms) => self.pass(*ms),
            Act::Clock(ms) => self.clock.step(&mut self.observer, *ms),
            Act::Dies(client) => self.dies(*client),
            Act::Del(key) => drop(self.on_key("DEL", key, &[])?),
            Act::Set(key) => drop(self.on_key("SET", key, &[b"a string"])?),
            Act::Rename(from, to) if from.0 == to.0 => {
                // A key that does not exist cannot be renamed.
                let _ = self.on_key("RENAME", from, &[to.1.as_bytes()]);
                self.use_lock(to);
            }
            Act::Rename(from, to) => {
                self.on_key("MOVE", from, &[to_db(to.0).as_bytes()])?;
                self.use_lock(to);
            }
            Act::Expire(key, ms) => {
                drop(self.on_key("PEXPIRE", key, &[ms.to_string().as_bytes()])?);
            }
            Act::Copy(from, to) => drop(self.copy(from, to)?),
            Act::Dump(key) => {
                self.dumped = Some(self.on_key("DUMP", key, &[])?);
                self.on_key("DEL", key, &[])?;
            }
            Act::Restore(key) => {
                let dump = self.dumped.clone().ok_or("nothing was dumped")?;
                self.bring(key, dump)?;
            }
            Act::Flush => self.observer.run("FLUSHALL"),
            Act::Swap(one, other) => self.observer.run(&format!("SWAPDB {one} {other}")),
            Act::Pause => self.observer.run("CLIENT PAUSE 600000 WRITE"),
            Act::Resume => self.observer.run("CLIENT UNPAUSE"),
            Act::Config(name, value) => {
                let line = format!("CONFIG SET dlock.{name} {value}");
                self.run(with(&line, &[]))?;
            }
            other => return Err(format!("not with a server: {other:?}")),
        }
        said.extend(self.heard(names));
        Ok(said)
    }

    fn act_as_server(
        &mut self,
        act: &ServerAct,
        tokens: &Labels,
        names: &Reader,
    ) -> Result<Vec<String>, String> {
        let mut said = Vec::new();
        match act {
            ServerAct::Command(asked) => said.push(self.other_command(asked, tokens, names)?),
            ServerAct::Info(name) => {
                let info: String = self.observer.ask("INFO everything");
                let mut lines = info.lines().filter_map(|line| line.split_once(':'));
                let value = lines.find(|(its, _)| its == name).ok_or("no such field")?;
                said.push(format!("-> {}", value.1));
            }
            ServerAct::Listen(channel) => {
                self.channels.insert(script::bytes(channel, tokens));
            }
            ServerAct::Kill => {
                self.clients.clear();
                self.server.kill9();
                self.server.restart();
                self.observer = self.server.connection();
                self.news = listener(self.server);
            }
        }
        said.extend(self.heard(names));
        Ok(said)
    }

    /// `observers` tests the events that servers send to observers.
    fn events(&mut self) -> Option<String> {
        None
    }
}
