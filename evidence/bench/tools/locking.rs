//! Ways to take a lock and release it, as commands.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_integration::{command, Ask, Server};

use crate::failure::Failure;
use crate::tools::replies::Pattern;
use dlock_integration::rivals::{
    COMPARE_AND_DELETE, COMPARE_AND_DELETE_ALL, COUNTED_GIVE, COUNTED_TAKE, READ_GIVE, READ_TAKE,
    SET_ALL, SLOT_TAKE,
};

/// A name for `uuid:thread`, as clients make them: 39 bytes.
pub const OWNER: &str = "6f9619ff-8b86-d011-b42d-00cf4fc964ff:17";

/// Longer than any sample.
const LEASE_MS: u64 = 30_000;

/// A way to take a lock and release it without contention. In the commands `{key}`, `{owner}`, `{lease}`, `{now}` (unix ms) and
/// `{script0}` (its SHA-1) are placeholders.
pub struct Locking {
    /// Its name in the tables.
    pub name: &'static str,
    scripts: &'static [&'static str],
    take: Step,
    give: Step,
}

/// A command and its reply.
struct Step {
    command: &'static str,
    reply: &'static str,
}

/// This module.
pub const DLOCK: &str = "dlock";
/// A plain key, deleted without a check.
pub const SET_DEL: &str = "SET NX PX + DEL";
/// A plain key, deleted by a script that checks the owner.
pub const SET_SCRIPT: &str = "SET NX PX + script";
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

const PLAIN: Locking = Locking {
    name: DLOCK,
    scripts: &[],
    take: Step {
        command: "DLOCK.ACQUIRE {key} {owner} {lease}",
        reply: GRANTED,
    },
    give: RELEASE,
};

const SET_AND_SCRIPT: Locking = Locking {
    name: SET_SCRIPT,
    scripts: &[COMPARE_AND_DELETE],
    take: SET,
    give: Step {
        command: "EVALSHA {script0} 1 {key} {owner}",
        reply: ":1\r\n",
    },
};

/// Ways to take an exclusive lock.
pub const LOCKINGS: [Locking; 5] = [
    PLAIN,
    Locking {
        name: SET_DEL,
        scripts: &[],
        take: SET,
        give: Step {
            command: "DEL {key}",
            reply: ":1\r\n",
        },
    },
    SET_AND_SCRIPT,
    Locking {
        name: COUNTED_HASH,
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
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease} SHARED",
            reply: GRANTED,
        },
        give: RELEASE,
    },
    Locking {
        name: "read-write-hash scripts",
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
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease} LIMIT 10",
            reply: GRANTED,
        },
        give: RELEASE,
    },
    Locking {
        name: "sorted-set script + ZREM",
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

/// Ways to take three locks at once, or none.
pub const MANY: [Locking; 2] = [
    Locking {
        name: "dlock, 3 locks",
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
        name: "3 keys, scripts",
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
    take: String,
    give: String,
    /// The reply to [`take`](Loaded::take).
    pub taken: Pattern,
    /// The reply to [`give`](Loaded::give).
    pub given: Pattern,
}

impl Locking {
    /// Loads the scripts into a server.
    pub fn load(&self, server: &Server) -> Loaded {
        self.load_with_lease(server, LEASE_MS)
    }

    /// Loads the scripts into a server, for another lease.
    pub fn load_with_lease(&self, server: &Server, lease_ms: u64) -> Loaded {
        let mut connection = server.connection();
        let lease = lease_ms.to_string();
        let take = self.take.command.replace("{lease}", &lease);
        let mut take = take.replace("{now}", &now_ms().to_string());
        let mut give = self.give.command.replace("{lease}", &lease);
        for (number, script) in self.scripts.iter().enumerate() {
            let sha1: String = connection.ask_command(command("SCRIPT LOAD").arg(script));
            let name = format!("{{script{number}}}");
            take = take.replace(&name, &sha1);
            give = give.replace(&name, &sha1);
        }
        Loaded {
            take,
            give,
            taken: Pattern::new(self.take.reply),
            given: Pattern::new(self.give.reply),
        }
    }
}

impl Loaded {
    /// Returns the bytes that take the lock `key`.
    pub fn take(&self, key: &str) -> Vec<u8> {
        self.take_as(key, OWNER)
    }

    /// Returns the bytes that release the lock `key`.
    pub fn give(&self, key: &str) -> Vec<u8> {
        self.give_as(key, OWNER)
    }

    /// Returns the bytes that take the lock for another owner.
    pub fn take_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.take, key, owner)
    }

    /// Returns the bytes that release the lock for another owner.
    pub fn give_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.give, key, owner)
    }

    /// Returns the replies to both, one after the other.
    pub fn pair(&self) -> Pattern {
        self.taken.clone().then(&self.given)
    }
}

fn now_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_millis())
}

fn fill(template: &str, key: &str, owner: &str) -> Vec<u8> {
    let line = template.replace("{key}", key).replace("{owner}", owner);
    command(&line).get_packed_command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_as_long_as_said() {
        assert_eq!(OWNER.len(), 39);
    }
}
