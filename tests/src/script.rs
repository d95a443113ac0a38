//! The events, line by line: the language of the conversations in `tests/scenarios`, of random runs, of the exploration, and of
//! the sequences that show planted faults.
//!
//! ```text
//! ann: ACQUIRE shop alice 1000      a connection sends a command; `ann@1:` in database 1, `ann (script):` without waiting
//! ann (pipelined): RELEASE shop alice  the next line comes in this iteration of the event loop: the server notices lost answers
//!                                   after it
//! wait 999                          time passes
//! stall 999                         time passes on a server that is busy
//! clock -500                        the wall clock steps
//! ann dies                          the server notices the end of a connection
//! ann is cut off                    the connection breaks without the server noticing: answers are lost
//! heartbeat                         the server scans, as once a second
//! slot of shop yard leaves          and `returns`: the node may not change these locks outside of a command
//! slot of shop yard migrates        no waiter is granted these locks, and their holders keep them
//! config max-queue 3                `config quarantine 100` begins a quarantine of that length
//! ```
//! No server reports that a value has come to a name. After `rename` and `move` a command that asks for nothing uses the lock at
//! its new name. After `behind rename`, `behind move` and `behind set` none does: the next use notices the value, or a `look`
//! (once a second).
//!
//! Other lines: `del`, `rename`, `expire shop 500` (as PEXPIRE), `move` (to another database), `copy` (by DUMP and RESTORE),
//! `dump` (by DUMP and DEL, kept for) `restore`, `set` (to a string), `flush`, `swap`, `pause`, `resume`, `sync` (a replica that
//! lags catches up), `crash` (the replica takes over), `failover`, `restart`. `shop@1` is a key of database 1.
//!
//! A line `# Engine only: why` ends the part that a server also holds. Lines that only a server understands (`../servers`):
//! ```text
//! ann$ SET shop x                   any command; a reply that is no error may be left out. `@bob` is the number of bob's
//!                                   connection
//! within 1000                       time passes, and outcomes due after the previous line may arrive now
//! info dlock_places_queued          a number of INFO
//! listen to __dlock@0__:shop        from here on its messages must be written down
//! kill -9                           the server dies, and starts again with its data on disk
//! ```
//!
//! In a command `#1` is a token, `''` is empty, `\xhh` a byte, `(99*x)` 99 times x. A connection whose name is a number has that
//! as its id.

use std::collections::BTreeMap;

/// Milliseconds.
pub type Millis = u64;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Command(Command),
    Wait(Millis),
    Stall(Millis),
    Clock(i64),
    Heartbeat,
    Dies(u64),
    Cut(u64),
    Del(Key),
    Set(Key),
    Rename(Key, Key),
    /// EXPIRE, in milliseconds.
    Expire(Key, Millis),
    /// A value comes to a name that has none, and no command uses the lock at once.
    Behind(Box<Act>),
    Look,
    Copy(Key, Key),
    Dump(Key),
    Restore(Key),
    Flush,
    Swap(u32, u32),
    Slot {
        keys: Vec<Key>,
        leaves: bool,
    },
    Migrates(Vec<Key>),
    Pause,
    Resume,
    /// A replica that lags catches up.
    Sync,
    Failover,
    Restart,
    Crash {
        quarantine: Millis,
    },
    Config(String, String),
}

/// An event that only a server understands.
#[derive(Debug)]
pub enum ServerAct {
    /// A command as it is, not one of the module's.
    Command(Command),
    Info(String),
    Listen(String),
    Kill,
}

impl Act {
    /// Returns true if only the module creates and removes keys in this event.
    pub fn is_orderly(&self) -> bool {
        use Act::*;
        matches!(self, Command(_) | Wait(_) | Dies(_) | Heartbeat | Resume)
    }
}

/// A database and a key.
pub type Key = (u32, String);

#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    pub client: u64,
    /// Whether it may wait: not in a script.
    pub may_wait: bool,
    /// Whether the next line comes in this iteration of the event loop.
    pub pipelined: bool,
    pub db: u32,
    pub words: Vec<String>,
}

/// Reads lines; knows the connections by their names.
#[derive(Debug, Default)]
pub struct Reader {
    clients: BTreeMap<String, u64>,
}

impl Reader {
    pub fn read(&mut self, line: &str) -> Result<Act, String> {
        if let Some((who, words)) = line.split_once(": ") {
            return self.command(who, words).map(Act::Command);
        }
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is not a number"))
        };
        let key = |key: &str| match key.rsplit_once('@') {
            Some((key, db)) => (db.parse().unwrap_or(0), key.to_string()),
            None => (0, key.to_string()),
        };
        Ok(match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["wait" | "within", ms] => Act::Wait(number(ms)?),
            ["stall", ms] => Act::Stall(number(ms)?),
            ["clock", ms] => Act::Clock(ms.parse().map_err(|_| "the clock steps by a number")?),
            ["heartbeat"] => Act::Heartbeat,
            [who, "dies"] => Act::Dies(self.client(who)),
            [who, "is", "cut", "off"] => Act::Cut(self.client(who)),
            ["del", one] => Act::Del(key(one)),
            ["set", one] => Act::Set(key(one)),
            ["behind", ..] => Act::Behind(Box::new(self.read(line.trim_start_matches("behind "))?)),
            ["look"] => Act::Look,
            ["rename", from, to] => Act::Rename(key(from), key(to)),
            ["move", one, db] => Act::Rename(key(one), (number(db)? as u32, key(one).1)),
            ["expire", one, ms] => Act::Expire(key(one), number(ms)?),
            ["copy", from, to] => Act::Copy(key(from), key(to)),
            ["dump", one] => Act::Dump(key(one)),
            ["restore", one] => Act::Restore(key(one)),
            ["flush"] => Act::Flush,
            ["swap", one, other] => Act::Swap(number(one)? as u32, number(other)? as u32),
            ["slot", "of", ref keys @ .., goes] => {
                let keys = keys.iter().map(|one| key(one)).collect();
                match goes {
                    "migrates" => Act::Migrates(keys),
                    "leaves" | "returns" => Act::Slot {
                        keys,
                        leaves: goes == "leaves",
                    },
                    _ => return Err("a slot leaves, migrates, or returns".into()),
                }
            }
            ["pause"] => Act::Pause,
            ["resume"] => Act::Resume,
            ["sync"] => Act::Sync,
            ["failover"] => Act::Failover,
            ["restart"] => Act::Restart,
            ["crash"] => Act::Crash { quarantine: 0 },
            ["crash", "quarantine", ms] => Act::Crash {
                quarantine: number(ms)?,
            },
            ["config", name, value] => Act::Config(name.to_string(), value.to_string()),
            _ => return Err("unknown event".into()),
        })
    }

    /// Reads an event that only a server understands; none if the line is another one.
    pub fn read_for_server(&mut self, line: &str) -> Result<Option<ServerAct>, String> {
        Ok(match line.split_once(' ') {
            Some(("info", name)) => Some(ServerAct::Info(name.into())),
            Some(("listen", channel)) => {
                Some(ServerAct::Listen(channel.trim_start_matches("to ").into()))
            }
            Some(("kill", "-9")) => Some(ServerAct::Kill),
            Some((who, words)) => match who.strip_suffix('$') {
                Some(who) => Some(ServerAct::Command(self.command(who, words)?)),
                None => None,
            },
            None => None,
        })
    }

    fn command<'l>(&mut self, who: &'l str, words: &str) -> Result<Command, String> {
        let said = |who: &'l str, how: &str| match who.strip_suffix(how) {
            Some(who) => (who, true),
            None => (who, false),
        };
        let (who, pipelined) = said(who, " (pipelined)");
        let (who, script) = said(who, " (script)");
        let (who, db) = who.split_once('@').unwrap_or((who, "0"));
        Ok(Command {
            client: self.client(who),
            may_wait: !script,
            pipelined,
            db: db.parse().map_err(|_| "no such database")?,
            words: words.split_whitespace().map(str::to_string).collect(),
        })
    }

    fn client(&mut self, name: &str) -> u64 {
        let next = self.clients.len() as u64 + 1;
        name.parse()
            .unwrap_or_else(|_| *self.clients.entry(name.to_string()).or_insert(next))
    }

    /// Returns the number of a connection that has sent a command.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.clients.get(name).copied()
    }

    /// Returns the name of the connection with this id.
    pub fn name(&self, id: u64) -> String {
        let mut known = self.clients.iter();
        known
            .find(|(_, its)| **its == id)
            .map_or(id.to_string(), |(name, _)| name.clone())
    }
}

/// Returns the bytes of a word.
pub fn bytes(word: &str, tokens: &BTreeMap<u64, u64>) -> Vec<u8> {
    let label = word.strip_prefix('#').and_then(|label| label.parse().ok());
    if let Some(token) = label.and_then(|label: u64| tokens.get(&label)) {
        return token.to_string().into_bytes();
    }
    let times = word
        .strip_prefix('(')
        .and_then(|word| word.strip_suffix(')'));
    if let Some((count, what)) = times.and_then(|word| word.split_once('*')) {
        return what.repeat(count.parse().unwrap_or(0)).into_bytes();
    }
    let mut rest = if word == "''" { "" } else { word };
    let mut bytes = Vec::new();
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let (digits, after) = after.split_at(2.min(after.len()));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
