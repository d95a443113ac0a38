//! Ways to take a lock and release it, as commands.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_harness::{command, Ask, Server};
use redis::Value;

use crate::failure::Failure;
use crate::tools::replies::Pattern;
use dlock_harness::rivals::{
    COMPARE_AND_DELETE, COMPARE_AND_DELETE_ALL, COUNTED_GIVE, COUNTED_RENEW, COUNTED_TAKE,
    FAIR_GIVE, FAIR_TAKE, READ_GIVE, READ_TAKE, SET_ALL, SLOT_TAKE,
};

/// A name for `uuid:thread`, as many libraries make them: 39 bytes.
pub const OWNER: &str = "6f9619ff-8b86-d011-b42d-00cf4fc964ff:17";

/// Owners as our clients make them: the session's name, which is `host/pid/` and random letters, and a number. About the shortest
/// one, and one from a host with a long name.
pub const OWNER_27: &str = "pod/1/q3VdPxYbT0kR2mW8s/107";
pub const OWNER_60: &str = "checkout-7d9c8b6f5d-x2x4q/31415/q3VdPxYbT0kR2mW8s4Nz1A/00107";

/// Longer than any sample.
const LEASE_MS: u64 = 30_000;

/// The scripts that commands name.
const SCRIPTS: [(&str, &str); 11] = [
    ("{COMPARE_AND_DELETE}", COMPARE_AND_DELETE),
    ("{COMPARE_AND_DELETE_ALL}", COMPARE_AND_DELETE_ALL),
    ("{COUNTED_GIVE}", COUNTED_GIVE),
    ("{COUNTED_RENEW}", COUNTED_RENEW),
    ("{COUNTED_TAKE}", COUNTED_TAKE),
    ("{FAIR_GIVE}", FAIR_GIVE),
    ("{FAIR_TAKE}", FAIR_TAKE),
    ("{READ_GIVE}", READ_GIVE),
    ("{READ_TAKE}", READ_TAKE),
    ("{SET_ALL}", SET_ALL),
    ("{SLOT_TAKE}", SLOT_TAKE),
];

/// A way to take a lock and release it without contention.
#[derive(Clone)]
pub struct Locking {
    /// Its name in the tables.
    pub name: &'static str,
    /// Its owner.
    pub owner: &'static str,
    take: Step,
    give: Step,
}

/// A command, or several, a line each, and the replies.
#[derive(Clone)]
struct Step {
    command: String,
    reply: Pattern,
}

/// What `lock` and `unlock` of our clients send: a request in a session, and a release that names the token.
pub const CLIENT_27: &str = "client, owner of 27 bytes";
/// The same with a longer name.
pub const CLIENT_60: &str = "client, owner of 60 bytes";
/// The plain pair: no session, no token.
pub const DLOCK: &str = "dlock";
/// A plain key, deleted without a check.
pub const SET_DEL: &str = "SET NX PX + DEL";
/// A plain key, deleted by a script that checks the owner.
pub const SET_SCRIPT: &str = "SET NX PX + script";
/// Two scripts over a hash.
pub const COUNTED_HASH: &str = "counted-hash scripts";
/// Two commands that do nothing.
pub const PING: &str = "PING + PING";

/// All ways by their kinds. `lockings.txt` explains its lines.
static KINDS: LazyLock<HashMap<&str, Vec<Locking>>> = LazyLock::new(|| {
    let (mut kinds, mut kind) = (HashMap::<&str, Vec<Locking>>::new(), "");
    let lines = include_str!("lockings.txt").lines();
    let mut lines = lines
        .filter(|line| !line.is_empty() && !line.trim_start().starts_with('#'))
        .peekable();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("    ") else {
            kind = line;
            continue;
        };
        let mut step = || Step::read(lines.next_if(|line| line.starts_with("        "))?);
        let (name, owner) = head.split_once(" | ").unwrap_or((head, OWNER));
        let known = || kinds.values().flatten().find(|known| known.name == name);
        let locking = match (step(), step()) {
            (Some(take), Some(give)) => Locking {
                name,
                owner,
                take,
                give,
            },
            _ => known().unwrap_or_else(|| panic!("no way: {line}")).clone(),
        };
        kinds.entry(kind).or_default().push(locking);
    }
    kinds
});

/// Returns the ways of this kind.
pub fn lockings(kind: &str) -> &'static [Locking] {
    &KINDS[kind]
}

/// Returns the exclusive way of this name.
///
/// # Errors
/// If there is none.
pub fn exclusive(name: &str) -> Result<&'static Locking, Failure> {
    let mut lockings = lockings("exclusive").iter();
    let locking = lockings.find(|locking| locking.name == name);
    Ok(locking.ok_or("no such way to lock")?)
}

impl Step {
    fn read(line: &str) -> Option<Step> {
        let (commands, reply) = line.trim().split_once(" | ")?;
        Some(Step {
            command: commands.replace("; ", "\n"),
            reply: Pattern::new(&(reply.replace(' ', "\r\n") + "\r\n")),
        })
    }
}

/// A way whose scripts a server has loaded.
pub struct Loaded {
    owner: &'static str,
    take: String,
    give: String,
    /// The session of its holds, if they are in one.
    pub session: Option<&'static str>,
    /// The reply to [`take`](Loaded::take).
    pub taken: Pattern,
    /// The reply to [`give`](Loaded::give).
    pub given: Pattern,
}

/// The bytes that release a lock.
#[derive(Clone)]
pub struct Give {
    bytes: Vec<u8>,
    names_token: bool,
}

impl Locking {
    /// Returns true if the server has all of its commands.
    pub fn is_known_to(&self, server: &Server) -> bool {
        let mut connection = server.connection();
        [&self.take, &self.give].iter().all(|step| {
            let name = step.command.split(' ').next().unwrap_or_default();
            let known: Vec<Value> = connection.ask(&format!("COMMAND INFO {name}"));
            known != [Value::Nil]
        })
    }

    /// Loads the scripts into a server.
    pub fn load(&self, server: &Server) -> Loaded {
        self.load_with_lease(server, LEASE_MS)
    }

    /// Loads the scripts into a server, for another lease.
    pub fn load_with_lease(&self, server: &Server, lease_ms: u64) -> Loaded {
        let mut connection = server.connection();
        let is_in_session = self.take.command.contains("{session}");
        let session = self.owner.rsplit_once('/').map(|(session, _)| session);
        let session = session.filter(|_| is_in_session);
        let (lease, now) = (lease_ms.to_string(), now_ms().to_string());
        let [mut take, mut give] = [&self.take, &self.give].map(|step| {
            let command = step.command.replace("{lease}", &lease);
            let command = command.replace("{session}", session.unwrap_or_default());
            command.replace("{now}", &now)
        });
        for (name, script) in SCRIPTS {
            if take.contains(name) || give.contains(name) {
                let sha1: String = connection.ask_command(command("SCRIPT LOAD").arg(script));
                take = take.replace(name, &sha1);
                give = give.replace(name, &sha1);
            }
        }
        Loaded {
            owner: self.owner,
            take,
            give,
            session,
            taken: self.take.reply.clone(),
            given: self.give.reply.clone(),
        }
    }
}

impl Loaded {
    /// Returns the bytes that take the lock `key`.
    pub fn take(&self, key: &str) -> Vec<u8> {
        self.take_as(key, self.owner)
    }

    /// Returns the bytes that release the lock `key`.
    pub fn give(&self, key: &str) -> Give {
        match self.give.strip_suffix(TOKEN) {
            Some(line) => Give::naming_token(&filled(line, key, self.owner)),
            None => Give {
                bytes: fill(&self.give, key, self.owner),
                names_token: false,
            },
        }
    }

    /// Returns the bytes that take the lock for another owner.
    pub fn take_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.take, key, owner)
    }

    /// Returns the bytes that release the lock for another owner, in a way that names no token.
    pub fn give_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.give, key, owner)
    }
}

const TOKEN: &str = "{token}";

impl Give {
    /// Returns the bytes of a release whose last word is the token.
    pub fn naming_token(line: &str) -> Give {
        let mut bytes = command(&format!("{line} {TOKEN}")).get_packed_command();
        bytes.truncate(bytes.len() - word(TOKEN).len());
        Give {
            bytes,
            names_token: true,
        }
    }

    /// Appends the bytes that release the lock after the grant of this token.
    pub fn write(&self, token: u64, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.bytes);
        if self.names_token {
            to.extend_from_slice(word(&token.to_string()).as_bytes());
        }
    }

    /// Returns the bytes if they name no token.
    pub fn without_token(&self) -> Option<&[u8]> {
        (!self.names_token).then_some(&*self.bytes)
    }
}

/// Returns a word of a command, as it goes over the wire.
fn word(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn now_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_millis())
}

fn filled(template: &str, key: &str, owner: &str) -> String {
    template.replace("{key}", key).replace("{owner}", owner)
}

fn fill(template: &str, key: &str, owner: &str) -> Vec<u8> {
    let lines = filled(template, key, owner);
    let bytes_of = |line| command(line).get_packed_command();
    lines.lines().flat_map(bytes_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_as_long_as_said() {
        let lengths = [OWNER, OWNER_27, OWNER_60].map(str::len);
        assert_eq!(lengths, [39, 27, 60]);
        for (name, owner) in [(DLOCK, OWNER), (CLIENT_27, OWNER_27), (CLIENT_60, OWNER_60)] {
            assert_eq!(exclusive(name).expect("a way").owner, owner);
        }
    }

    #[test]
    fn a_release_names_the_token_of_its_grant() {
        let give = |command: &str| {
            let loaded = Loaded {
                owner: "o/1",
                take: String::new(),
                give: command.to_owned(),
                session: None,
                taken: Pattern::new("\r\n"),
                given: Pattern::new("\r\n"),
            };
            let (give, mut bytes) = (loaded.give("k"), Vec::new());
            give.write(17, &mut bytes);
            let bytes = String::from_utf8(bytes).expect("text");
            assert_eq!(give.without_token().is_none(), give.names_token);
            (give.names_token, bytes)
        };
        let named = "*3\r\n$1\r\nR\r\n$3\r\no/1\r\n$2\r\n17\r\n".to_owned();
        assert_eq!(give("R {owner} {token}"), (true, named));
        let plain = "*2\r\n$1\r\nR\r\n$1\r\nk\r\n".to_owned();
        assert_eq!(give("R {key}"), (false, plain));
    }
}
