//! Ways to take a lock and give it back, as commands.

use dlock_integration::{command, Ask, Server};

use crate::replies::Pattern;

/// A name for `uuid:thread`, as clients make them: 39 bytes.
pub const OWNER: &str = "6f9619ff-8b86-d011-b42d-00cf4fc964ff:17";

/// Longer than any sample.
const LEASE_MS: u64 = 30_000;

/// A way to take a lock and give it back when nobody else wants it. In the commands `{key}`, `{owner}`,
/// `{lease}` and `{script0}` (its SHA-1) stand for what differs.
pub struct Locking {
    /// What the tables call it.
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

/// Deletes a plain key if it is still ours.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// A lock that its owner can take again, as scripts over a hash of owner and count: nil when it is ours, else
/// the milliseconds that its lease lasts.
const COUNTED_TAKE: &str = "\
    if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
      redis.call('HINCRBY', KEYS[1], ARGV[2], 1); \
      redis.call('PEXPIRE', KEYS[1], ARGV[1]); \
      return nil; \
    end; \
    return redis.call('PTTL', KEYS[1]);";

/// The counterpart: nil when it was not ours, 0 when holds remain, 1 when it is free and those who wait were
/// told on the channel.
const COUNTED_GIVE: &str = "\
    if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return nil; end; \
    if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]); \
      return 0; \
    end; \
    redis.call('DEL', KEYS[1]); \
    redis.call('PUBLISH', KEYS[2], ARGV[1]); \
    return 1;";

/// This module.
pub const DLOCK: &str = "dlock";
/// A plain key, deleted blindly.
pub const SET_DEL: &str = "SET NX PX + DEL";
/// A plain key, deleted by a script that looks first.
pub const SET_SCRIPT: &str = "SET NX PX + script";
/// Two scripts over a hash.
pub const COUNTED_HASH: &str = "counted-hash scripts";
/// Two commands that do nothing.
pub const PING: &str = "PING + PING";

const SET: Step = Step {
    command: "SET {key} {owner} NX PX {lease}",
    reply: "+OK\r\n",
};

const PONG: Step = Step {
    command: "PING",
    reply: "+PONG\r\n",
};

/// All of them.
pub const LOCKINGS: [Locking; 5] = [
    Locking {
        name: DLOCK,
        scripts: &[],
        take: Step {
            command: "DLOCK.ACQUIRE {key} {owner} {lease}",
            reply: "*2\r\n:#\r\n:1\r\n",
        },
        give: Step {
            command: "DLOCK.RELEASE {key} {owner}",
            reply: ":0\r\n",
        },
    },
    Locking {
        name: SET_DEL,
        scripts: &[],
        take: SET,
        give: Step {
            command: "DEL {key}",
            reply: ":1\r\n",
        },
    },
    Locking {
        name: SET_SCRIPT,
        scripts: &[COMPARE_AND_DELETE],
        take: SET,
        give: Step {
            command: "EVALSHA {script0} 1 {key} {owner}",
            reply: ":1\r\n",
        },
    },
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

/// A way that a server is ready for.
pub struct Loaded {
    take: String,
    give: String,
    /// The reply to [`take`](Loaded::take).
    pub taken: Pattern,
    /// The reply to [`give`](Loaded::give).
    pub given: Pattern,
}

impl Locking {
    /// Loads the scripts.
    pub fn load(&self, server: &Server) -> Loaded {
        self.load_with_lease(server, LEASE_MS)
    }

    /// The same, with another lease.
    pub fn load_with_lease(&self, server: &Server, lease_ms: u64) -> Loaded {
        let mut connection = server.connection();
        let lease = lease_ms.to_string();
        let mut take = self.take.command.replace("{lease}", &lease);
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
    /// The bytes that take the lock `key`.
    pub fn take(&self, key: &str) -> Vec<u8> {
        self.take_as(key, OWNER)
    }

    /// The bytes that give it back.
    pub fn give(&self, key: &str) -> Vec<u8> {
        self.give_as(key, OWNER)
    }

    /// The same for another owner.
    pub fn take_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.take, key, owner)
    }

    /// The same for another owner.
    pub fn give_as(&self, key: &str, owner: &str) -> Vec<u8> {
        fill(&self.give, key, owner)
    }

    /// The replies to one after the other.
    pub fn pair(&self) -> Pattern {
        self.taken.clone().then(&self.given)
    }
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
