//! Ways to take a lock and release it, as commands.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_integration::{command, Ask, Server};
use redis::Value;

use crate::failure::Failure;
use crate::tools::replies::Pattern;
use dlock_integration::rivals::{
    COMPARE_AND_DELETE, COMPARE_AND_DELETE_ALL, COUNTED_GIVE, COUNTED_TAKE, READ_GIVE, READ_TAKE,
    SET_ALL, SLOT_TAKE,
};

/// A name for `uuid:thread`, as many libraries make them: 39 bytes.
pub const OWNER: &str = "6f9619ff-8b86-d011-b42d-00cf4fc964ff:17";

/// Owners as our clients make them: the session's name, which is `host/pid/` and random letters, and a number. About the shortest
/// one, and one from a host with a long name.
pub const OWNER_27: &str = "pod/1/q3VdPxYbT0kR2mW8s/107";
pub const OWNER_60: &str = "checkout-7d9c8b6f5d-x2x4q/31415/q3VdPxYbT0kR2mW8s4Nz1A/00107";

/// Longer than any sample.
const LEASE_MS: u64 = 30_000;

/// A way to take a lock and release it without contention. In the commands `{key}`, `{owner}`, `{session}` (the owner without its
/// number), `{lease}`, `{now}` (unix ms), `{script0}` (its SHA-1) and, at the end of a release, `{token}` are placeholders.
pub struct Locking {
    /// Its name in the tables.
    pub name: &'static str,
    /// Its owner.
    pub owner: &'static str,
    scripts: &'static [&'static str],
    take: Step,
    give: Step,
}

/// A command, or several, a line each, and the replies. `@` in the reply to a request is the token.
struct Step {
    command: &'static str,
    reply: &'static str,
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
/// A plain key, deleted by a command of its server that checks the owner: Redis has one from 8.4 on, Valkey from 9.0 on.
pub const SET_COMPARED: &str = "SET NX PX + DELEX or DELIFEQ";
/// Two scripts over a hash.
pub const COUNTED_HASH: &str = "counted-hash scripts";
/// Two commands that do nothing.
pub const PING: &str = "PING + PING";

const GRANTED: &str = "*2\r\n:#\r\n:1\r\n";

const RELEASE: Step = Step {
    command: "DLOCK.RELEASE {key} {owner}",
    reply: ":0\r\n",
};

const SET: Step = Step {
    command: "SET {key} {owner} NX PX {lease}",
    reply: "+OK\r\n",
};

const PONG: Step = Step {
    command: "PING",
    reply: "+PONG\r\n",
};

const fn client(name: &'static str, owner: &'static str) -> Locking {
    Locking {
        name,
        owner,
        scripts: &[],
        take: Step {
            command: "DLOCK.FAIRACQUIRE {key} {owner} {lease} IN {session} BLOCK 10000",
            reply: "*2\r\n:@\r\n:#\r\n",
        },
        give: Step {
            command: "DLOCK.RELEASE {key} {owner} TOKEN {token}",
            reply: ":0\r\n",
        },
    }
}

const fn set_compared(give: &'static str) -> Locking {
    Locking {
        name: SET_COMPARED,
        owner: OWNER,
        scripts: &[],
        take: SET,
        give: Step {
            command: give,
            reply: ":1\r\n",
        },
    }
}

const PLAIN: Locking = Locking {
    name: DLOCK,
    owner: OWNER,
    scripts: &[],
    take: Step {
        command: "DLOCK.ACQUIRE {key} {owner} {lease}",
        reply: GRANTED,
    },
    give: RELEASE,
};

const SET_AND_SCRIPT: Locking = Locking {
    name: SET_SCRIPT,
    owner: OWNER,
    scripts: &[COMPARE_AND_DELETE],
    take: SET,
    give: Step {
        command: "EVALSHA {script0} 1 {key} {owner}",
        reply: ":1\r\n",
    },
};

/// Ways to take an exclusive lock.
pub const LOCKINGS: [Locking; 9] = [
    client(CLIENT_27, OWNER_27),
    client(CLIENT_60, OWNER_60),
    PLAIN,
    Locking {
        name: SET_DEL,
        owner: OWNER,
        scripts: &[],
        take: SET,
        give: Step {
            command: "DEL {key}",
            reply: ":1\r\n",
        },
    },
    SET_AND_SCRIPT,
    set_compared("DELEX {key} IFEQ {owner}"),
    set_compared("DELIFEQ {key} {owner}"),
    Locking {
        name: COUNTED_HASH,
        owner: OWNER,
        scripts: &[COUNTED_TAKE, COUNTED_GIVE],
        take: Step {
            command: "EVALSHA {script0} 1 {key} {lease} {owner}",
            reply: "$-1\r\n",
        },
        give: Step {
            command: "EVALSHA {script1} 2 {key} unlocked:{key} 0 {lease} {owner}",
            reply: ":1\r\n",
        },
    },
    Locking {
        name: PING,
        owner: OWNER,
        scripts: &[],
        take: PONG,
        give: PONG,
    },
];

/// Returns the exclusive way of this name.
///
/// # Errors
/// If there is none.
pub fn exclusive(name: &str) -> Result<&'static Locking, Failure> {
    let locking = LOCKINGS.iter().find(|locking| locking.name == name);
    Ok(locking.ok_or("no such way to lock")?)
}

/// Ways to take a lock that readers share, for one of them.
pub const READING: [Locking; 2] = [
    Locking {
        name: "dlock, SHARED",
        owner: OWNER,
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease} SHARED",
            reply: GRANTED,
        },
        give: RELEASE,
    },
    Locking {
        name: "read-write-hash scripts",
        owner: OWNER,
        scripts: &[READ_TAKE, READ_GIVE],
        take: Step {
            command: "EVALSHA {script0} 2 {key} timeout:{key}:{owner} {lease} {owner} {owner}:write",
            reply: "$-1\r\n",
        },
        give: Step {
            command: "EVALSHA {script1} 4 {key} timeout:{key}:{owner} timeout:{key} unlocked:{key} {owner} 0",
            reply: ":1\r\n",
        },
    },
];

/// Ways to take a semaphore of ten.
pub const COUNTING: [Locking; 2] = [
    Locking {
        name: "dlock, LIMIT 10",
        owner: OWNER,
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease} LIMIT 10",
            reply: GRANTED,
        },
        give: RELEASE,
    },
    Locking {
        name: "sorted-set script + ZREM",
        owner: OWNER,
        scripts: &[SLOT_TAKE],
        take: Step {
            command: "EVALSHA {script0} 1 {key} 10 {owner} {lease} {now}",
            reply: ":1\r\n",
        },
        give: Step {
            command: "ZREM {key} {owner}",
            reply: ":1\r\n",
        },
    },
];

/// Ways to take three locks: at once, or none; and one after the other.
pub const MANY: [Locking; 3] = [
    Locking {
        name: "dlock, 3 locks",
        owner: OWNER,
        scripts: &[],
        take: Step {
            command: "DLOCK.MACQUIRE 3 {key}:a {key}:b {key}:c {owner} {lease}",
            reply: "*3\r\n:#\r\n:#\r\n:#\r\n",
        },
        give: Step {
            command: "DLOCK.MRELEASE 3 {key}:a {key}:b {key}:c {owner}",
            reply: "*3\r\n:0\r\n:0\r\n:0\r\n",
        },
    },
    Locking {
        name: "dlock, 3 pairs",
        owner: OWNER,
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key}:a {owner} {lease}\nDLOCK.ACQUIRE {key}:b {owner} {lease}\nDLOCK.ACQUIRE {key}:c {owner} {lease}",
            reply: "*2\r\n:#\r\n:1\r\n*2\r\n:#\r\n:1\r\n*2\r\n:#\r\n:1\r\n",
        },
        give: Step {
            command: "DLOCK.RELEASE {key}:a {owner}\nDLOCK.RELEASE {key}:b {owner}\nDLOCK.RELEASE {key}:c {owner}",
            reply: ":0\r\n:0\r\n:0\r\n",
        },
    },
    Locking {
        name: "3 keys, scripts",
        owner: OWNER,
        scripts: &[SET_ALL, COMPARE_AND_DELETE_ALL],
        take: Step {
            command: "EVALSHA {script0} 3 {key}:a {key}:b {key}:c {owner} {lease}",
            reply: ":1\r\n",
        },
        give: Step {
            command: "EVALSHA {script1} 3 {key}:a {key}:b {key}:c {owner}",
            reply: ":3\r\n",
        },
    },
];

const AUTO: Locking = Locking {
    name: "dlock, AUTO",
    owner: OWNER,
    scripts: &[],
    take: Step {
        command: "DLOCK.ACQUIRE {key} {owner} {lease} AUTO 60000",
        reply: GRANTED,
    },
    give: RELEASE,
};

/// Ways to take a hold that ends with the connection, or is renewed as long as it is open.
pub const TIED: [Locking; 4] = [
    Locking {
        name: "dlock, EPHEMERAL",
        owner: OWNER,
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease} EPHEMERAL",
            reply: GRANTED,
        },
        give: RELEASE,
    },
    AUTO,
    PLAIN,
    SET_AND_SCRIPT,
];

/// A hold that the server renews, and one that it does not.
pub const RENEWED: [Locking; 2] = [AUTO, PLAIN];

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
        let lease = lease_ms.to_string();
        let take = self.take.command.replace("{lease}", &lease);
        let take = take.replace("{session}", session.unwrap_or_default());
        let mut take = take.replace("{now}", &now_ms().to_string());
        let mut give = self.give.command.replace("{lease}", &lease);
        for (number, script) in self.scripts.iter().enumerate() {
            let sha1: String = connection.ask_command(command("SCRIPT LOAD").arg(script));
            let name = format!("{{script{number}}}");
            take = take.replace(&name, &sha1);
            give = give.replace(&name, &sha1);
        }
        Loaded {
            owner: self.owner,
            take,
            give,
            session,
            taken: Pattern::new(self.take.reply),
            given: Pattern::new(self.give.reply),
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
