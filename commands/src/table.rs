//! The command table: the one definition of each command. Its words are read by it (see [`args`](crate::words::args));
//! registration, `COMMAND DOCS`, `COMMAND GETKEYS`, ACL categories and `DLOCK.HELP` are made from it; and a test checks the
//! reference in `docs/` against it.
//!
//! A new option is a field of [`Args`], a constant that says its word, what it may be and that field, and the constant's name
//! in the list of each command that takes it.

use crate::number;
use dlock_engine::{Limit, Millis, Policy, Token, MAX_LIMIT, MAX_OWNER};

/// A command's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `DLOCK.ACQUIRE`
    Acquire,
    /// `DLOCK.FAIRACQUIRE`
    FairAcquire,
    /// `DLOCK.DOWNGRADE`
    Downgrade,
    /// `DLOCK.RENEW`
    Renew,
    /// `DLOCK.RELEASE`
    Release,
    /// `DLOCK.SESSION`
    Session,
    /// `DLOCK.FORCERELEASE`
    ForceRelease,
    /// `DLOCK.MACQUIRE`
    AcquireMany,
    /// `DLOCK.MRENEW`
    RenewMany,
    /// `DLOCK.MRELEASE`
    ReleaseMany,
    /// `DLOCK.CANCEL`
    Cancel,
    /// `DLOCK.POSITION`
    Position,
    /// `DLOCK.HELD`
    Held,
    /// `DLOCK.CHECK`
    Check,
    /// `DLOCK.GUARD`
    Guard,
    /// `DLOCK.INFO`
    Info,
    /// `DLOCK.LIST`
    List,
    /// `DLOCK.STATS`
    Stats,
    /// `DLOCK.LOG`
    Log,
    /// `DLOCK.GRAPH`
    Graph,
    /// `DLOCK.TOP`
    Top,
    /// `DLOCK.HELP`
    Help,
    /// `DLOCK.APPLY`
    Apply,
    /// `DLOCK.HEED`
    FullSyncNotice,
    /// `DLOCK.SYNC`
    Sync,
}

/// The access of a command to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may change locks, and runs on the primary only.
    Write,
    /// It reads.
    Read,
    /// It reads, and runs another command, which may write.
    Guard,
    /// It applies a primary's effect.
    Follow,
    /// It has no key, and is accepted from the primary only.
    Replica,
    /// It concerns a session, on the primary only. Its key says where. It runs also where a write would be refused.
    Session,
    /// It has no key.
    None,
}

/// The arguments of one call: a value for each argument of the table that is given. The others are none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Args<'a> {
    /// The key, or the keys of a command that takes many.
    pub keys: &'a [&'a [u8]],
    /// How many keys.
    pub numkeys: Option<u64>,
    /// An owner.
    pub owner: Option<&'a [u8]>,
    /// A lease.
    pub lease: Option<Millis>,
    /// How long to wait.
    pub block: Option<Millis>,
    /// A hold count.
    pub holds: Option<u64>,
    /// `SHARED`
    pub shared: bool,
    /// The largest number of permits that may be held at once.
    pub limit: Option<u64>,
    /// How many permits are asked for.
    pub permits: Option<u64>,
    /// Whether the hold is tied to the connection.
    pub ephemeral: bool,
    /// A session.
    pub session: Option<&'a [u8]>,
    /// The id of the session whose rows were seen.
    pub seen_id: Option<u64>,
    /// The last row that was seen.
    pub seen: Option<u64>,
    /// How long the server renews a hold by itself.
    pub auto: Option<Millis>,
    /// How long a session is kept.
    pub keep: Option<Millis>,
    /// How long to keep a place while no connection waits on it.
    pub claim: Option<Millis>,
    /// A fencing token.
    pub token: Option<u64>,
    /// How many to show or to read.
    pub count: Option<u64>,
    /// The cursor of a list.
    pub cursor: Option<u64>,
    /// The pattern that keys must match.
    pub pattern: Option<&'a [u8]>,
    /// Whether only contended locks are listed.
    pub contended: bool,
    /// Whether the reply is a drawing.
    pub dot: bool,
    /// Whether counts, or what was logged, are reset.
    pub reset: bool,
    /// The key that is asked about, of a command that has no key of its own.
    pub of_key: Option<&'a [u8]>,
    /// The name of a command.
    pub command: Option<&'a [u8]>,
    /// A primary's effect.
    pub effect: Option<&'a [u8]>,
}

/// The field that keeps a number.
type NumberOf = for<'g, 'a> fn(&'g mut Args<'a>) -> &'g mut Option<u64>;

/// The field that keeps bytes.
type TextOf = for<'g, 'a> fn(&'g mut Args<'a>) -> &'g mut Option<&'a [u8]>;

/// The field that keeps whether a word is given.
type FlagOf = for<'g, 'a> fn(&'g mut Args<'a>) -> &'g mut bool;

/// The type of an argument, and the field that keeps its value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// The lock's key.
    Key,
    /// The keys of locks, as many as the number before says.
    Keys,
    /// Bytes.
    Text(Length, TextOf),
    /// A word of another command, which is not read here.
    Word,
    /// Any number of such words.
    Words,
    /// A decimal integer.
    Integer(Range, NumberOf),
    /// A word that stands for itself: its token.
    Flag(FlagOf),
    /// One of these.
    OneOf(&'static [Arg]),
    /// All of these, in order, behind a word.
    All(&'static [Arg]),
    /// The first of these, and the others only with it. Each may stand anywhere after the positional arguments.
    With(&'static [Arg]),
}

/// The range of an integer.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The smallest.
    pub least: u64,
    /// The largest.
    pub most: Most,
}

/// The largest that an integer may be, which can depend on what is configured.
type Most = fn(&Policy) -> u64;

/// The allowed number of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Their name in errors that say more than the number of bytes.
    pub called: Option<&'static str>,
    /// The fewest.
    pub least: usize,
    /// The most.
    pub most: usize,
}

/// One argument of a command.
#[derive(Debug, Clone, Copy)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The word before it: then it is an option, and may stand anywhere after the positional arguments.
    pub token: Option<&'static str>,
    /// Whether it may be left out.
    pub optional: bool,
}

/// One command.
#[derive(Debug)]
pub struct Spec {
    /// Its identity.
    pub verb: Verb,
    /// Its name, in lower case as the server keeps it.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// How its cost grows.
    pub complexity: &'static str,
    /// Its access to its key.
    pub access: Access,
    /// The server's flags for it, in addition to `write` or `readonly`.
    pub flags: &'static str,
    /// Its arguments: the positional ones first, then the options.
    pub args: &'static [Arg],
}

const fn arg(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        token: None,
        optional: false,
    }
}

const fn maybe(arg: Arg) -> Arg {
    Arg {
        optional: true,
        ..arg
    }
}

const fn option(token: &'static str, name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        token: Some(token),
        optional: true,
    }
}

const fn needed(arg: Arg) -> Arg {
    Arg {
        optional: false,
        ..arg
    }
}

const fn text(called: Option<&'static str>, least: usize, most: usize, field: TextOf) -> Kind {
    let length = Length {
        called,
        least,
        most,
    };
    Kind::Text(length, field)
}

const fn integer(least: u64, most: Most, field: NumberOf) -> Kind {
    Kind::Integer(Range { least, most }, field)
}

/// Makes an option with an integer: its token and name, what it may be, and the field of [`Args`] that keeps it.
macro_rules! number {
    ($token:literal $name:literal in $least:expr, $most:expr => $field:ident) => {
        option(
            $token,
            $name,
            integer($least, |_| $most, |given| &mut given.$field),
        )
    };
}

/// Makes an option that is one word: its token, and the field of [`Args`] that keeps it, whose name is the option's.
macro_rules! flag {
    ($token:literal => $field:ident) => {
        option(
            $token,
            stringify!($field),
            Kind::Flag(|given| &mut given.$field),
        )
    };
}

const fn count(least: u64, most: Most) -> Arg {
    let kind = integer(least, most, |given| &mut given.count);
    option("COUNT", "count", kind)
}

/// The longest wait that may be asked for: a century. Beyond, sums with the clock would have to be watched.
pub(crate) const MAX_BLOCK_MS: Millis = 3_155_760_000_000;

/// The largest hold count.
const MAX_HOLDS: u64 = u32::MAX as u64;

/// The most keys that one command may name.
pub const MAX_KEYS: u64 = 1024;

/// The most holders and places of a lock, or pairs of a graph, that one reply shows. A row takes 4 µs: this many delay others by
/// some tens of milliseconds at most.
pub const MAX_ROWS: u64 = 5_000;

/// The largest integer of the server's protocol.
const MAX_INTEGER: u64 = i64::MAX as u64;

// Positional arguments.
const KEY: Arg = arg("key", Kind::Key);
const NUMKEYS: Arg = arg(
    "numkeys",
    integer(1, |_| MAX_KEYS, |given| &mut given.numkeys),
);
const KEYS: Arg = arg("key", Kind::Keys);
const OWNER: Arg = arg("owner", text(None, 1, MAX_OWNER, |given| &mut given.owner));
const LEASE: Arg = maybe(arg(
    "lease-ms",
    integer(1, |policy| policy.max_lease_ms, |given| &mut given.lease),
));
const HELD_TOKEN: Arg = arg(
    "token",
    integer(0, |_| Token::END.0 - 1, |given| &mut given.token),
);
/// The longest name of a session, in bytes.
pub(crate) const MAX_SESSION: usize = 128;

/// The longest that a SESSION command waits for a row.
const MAX_SESSION_BLOCK_MS: Millis = 60_000;

/// The largest id of a session, and the largest number of a row.
const MAX_SESSION_NUMBER: u64 = (1 << 52) - 1;

const SESSION_NAME: Arg = arg(
    "session",
    text(None, 1, MAX_SESSION, |given| &mut given.session),
);
const KEEP_SESSION_FOR: Arg = arg(
    "ms",
    integer(0, |policy| policy.max_claim_ms, |given| &mut given.keep),
);
const CURSOR: Arg = maybe(arg(
    "cursor",
    integer(0, |_| MAX_INTEGER, |given| &mut given.cursor),
));
/// The command that HELP shows. `inspect::help` checks that there is one of this name.
const COMMAND: Arg = maybe(arg(
    "command",
    text(
        Some("a command that DLOCK.HELP lists"),
        0,
        usize::MAX,
        |given| &mut given.command,
    ),
));
const EFFECT: Arg = maybe(arg(
    "effect",
    text(Some("an effect"), 0, usize::MAX, |given| &mut given.effect),
));

// Options.
pub(crate) const BLOCK: Arg = number!("BLOCK" "block-ms" in 0, MAX_BLOCK_MS => block);
const HOLDS: Arg = number!("HOLDS" "holds" in 1, MAX_HOLDS => holds);
const HOLDS_LEFT: Arg = number!("HOLDS" "holds" in 0, MAX_HOLDS => holds);
/// `RENAMED` has its former word.
const EPHEMERAL: Arg = flag!("EPHEMERAL" => ephemeral);
/// `RENAMED` has the word of what it replaces.
pub(crate) const IN: Arg = option("IN", "session", SESSION_NAME.kind);
const SEEN: Arg = option("SEEN", "seen", Kind::All(&[SEEN_ID, SEEN_ROW]));
const SEEN_ID: Arg = arg(
    "id",
    integer(0, |_| MAX_SESSION_NUMBER, |given| &mut given.seen_id),
);
const SEEN_ROW: Arg = arg(
    "n",
    integer(0, |_| MAX_SESSION_NUMBER, |given| &mut given.seen),
);
const SESSION_BLOCK: Arg = number!("BLOCK" "block-ms" in 1, MAX_SESSION_BLOCK_MS => block);
const AUTO: Arg = number!("AUTO" "auto-ms" in 0, MAX_BLOCK_MS => auto);
/// A waiting request keeps it in 32 bits: up to some weeks.
const AUTO_FROM_GRANT: Arg = number!("AUTO" "auto-ms" in 1, u32::MAX as u64 => auto);
const CLAIM: Arg = option(
    "CLAIM",
    "claim-ms",
    integer(1, |policy| policy.max_claim_ms, |given| &mut given.claim),
);
pub(crate) const TOKEN: Arg = number!("TOKEN" "token" in 1, Token::END.0 - 1 => token);
const MATCH: Arg = option(
    "MATCH",
    "pattern",
    text(Some("a pattern"), 0, usize::MAX, |given| &mut given.pattern),
);
const OF_OWNER: Arg = option("OWNER", "owner", OWNER.kind);
const OF_KEY: Arg = option(
    "KEY",
    "key",
    text(Some("a key"), 0, usize::MAX, |given| &mut given.of_key),
);
const CONTENDED: Arg = flag!("CONTENDED" => contended);
const DOT: Arg = flag!("DOT" => dot);
const RESET: Arg = flag!("RESET" => reset);

/// An option that had another word in earlier versions.
#[derive(Debug)]
pub(crate) struct Renamed {
    /// The former word.
    pub before: &'static str,
    /// The present one.
    pub now: &'static str,
    /// The version that renamed it.
    pub since: &'static str,
}

/// The options whose former words are refused by an error that names the present ones.
pub(crate) static RENAMED: [Renamed; 2] = [
    Renamed {
        before: "SESSION",
        now: "EPHEMERAL",
        since: "0.5.0",
    },
    Renamed {
        before: "NOTIFY",
        now: "IN",
        since: "0.5.0",
    },
];

/// How many may hold at once.
const SHARING: Arg = arg("sharing", Kind::OneOf(&[SHARED, LIMIT]));
/// How many may hold at once, and how much of that is taken.
const SHARE: Arg = maybe(arg("sharing", Kind::OneOf(&[SHARED, LIMITED])));
const LIMITED: Arg = arg("limited", Kind::With(&[LIMIT, PERMITS]));
const SHARED: Arg = needed(flag!("SHARED" => shared));
const LIMIT: Arg = needed(number!("LIMIT" "limit" in 1, MAX_LIMIT => limit));
/// How many of the permits of `LIMIT` are taken. `acquire::ask` checks it against that.
const PERMITS: Arg = number!("PERMITS" "permits" in 1, MAX_LIMIT => permits);

/// Every command of the module.
pub static COMMANDS: &[Spec] = &[
    Spec {
        verb: Verb::Acquire,
        name: "dlock.acquire",
        summary: "Takes a lock, or waits for it; the lock is re-entrant for its holder",
        complexity: "O(1) uncontended; O(log N) with N places in the queue",
        access: Access::Write,
        flags: "deny-oom blocking",
        args: &[
            KEY,
            OWNER,
            LEASE,
            BLOCK,
            HOLDS,
            SHARE,
            EPHEMERAL,
            AUTO_FROM_GRANT,
            IN,
        ],
    },
    Spec {
        verb: Verb::FairAcquire,
        name: "dlock.fairacquire",
        summary: "Takes a lock, or a ticket: a place in its queue that survives disconnection, restart and failover",
        complexity: "O(1) uncontended; O(log N) with N places in the queue",
        access: Access::Write,
        flags: "deny-oom blocking",
        args: &[
            KEY,
            OWNER,
            LEASE,
            BLOCK,
            HOLDS,
            SHARE,
            EPHEMERAL,
            AUTO_FROM_GRANT,
            CLAIM,
            IN,
        ],
    },
    Spec {
        verb: Verb::AcquireMany,
        name: "dlock.macquire",
        summary: "Takes many locks, all or none, or waits for all of them",
        complexity: "O(N log M) with N keys and M places in their queues",
        access: Access::Write,
        flags: "deny-oom blocking",
        args: &[
            NUMKEYS,
            KEYS,
            OWNER,
            LEASE,
            BLOCK,
            HOLDS,
            SHARE,
            EPHEMERAL,
            AUTO_FROM_GRANT,
            IN,
        ],
    },
    Spec {
        verb: Verb::RenewMany,
        name: "dlock.mrenew",
        summary: "Renews the leases of many holds, all or none; can tie them to the connection",
        complexity: "O(N log M) with N keys and M holders",
        access: Access::Write,
        flags: "",
        args: &[NUMKEYS, KEYS, OWNER, LEASE, EPHEMERAL, AUTO, IN],
    },
    Spec {
        verb: Verb::ReleaseMany,
        name: "dlock.mrelease",
        summary: "Releases one hold of each of many locks",
        complexity: "O(N log M) with N keys and M holders or places in their queues",
        access: Access::Write,
        flags: "",
        args: &[NUMKEYS, KEYS, OWNER],
    },
    Spec {
        verb: Verb::Downgrade,
        name: "dlock.downgrade",
        summary: "Weakens the limit of a hold, so that others can share; token, count and lease stay",
        complexity: "O(log N) with N holders or places in the queue",
        access: Access::Write,
        flags: "fast",
        args: &[KEY, OWNER, SHARING, TOKEN],
    },
    Spec {
        verb: Verb::Renew,
        name: "dlock.renew",
        summary: "Renews the lease of a hold; can tie the hold to the connection, or let the server renew it",
        complexity: "O(log N) with N holders",
        access: Access::Write,
        flags: "fast",
        args: &[KEY, OWNER, LEASE, TOKEN, EPHEMERAL, AUTO, IN],
    },
    Spec {
        verb: Verb::Session,
        name: "dlock.session",
        summary: "Keeps a session, whose holds the server renews; reports what has happened to its holds and waits",
        complexity: "O(N) with N rows that were not seen before",
        access: Access::Session,
        flags: "blocking may-replicate",
        args: &[KEY, SESSION_NAME, KEEP_SESSION_FOR, SEEN, SESSION_BLOCK],
    },
    Spec {
        verb: Verb::Release,
        name: "dlock.release",
        summary: "Releases a hold; with the last one the next in the queue gets the lock, in the same step",
        complexity: "O(log N) with N holders or places in the queue",
        access: Access::Write,
        flags: "fast",
        args: &[KEY, OWNER, HOLDS_LEFT, TOKEN],
    },
    Spec {
        verb: Verb::ForceRelease,
        name: "dlock.forcerelease",
        summary: "For operators: ends all holds of a lock, or those of one owner",
        complexity: "O(N) with N holders that are ended",
        access: Access::Write,
        flags: "",
        args: &[KEY, maybe(OWNER)],
    },
    Spec {
        verb: Verb::Cancel,
        name: "dlock.cancel",
        summary: "Removes an owner's place from the queue; a client that waits there gets null",
        complexity: "O(log N) with N places in the queue",
        access: Access::Write,
        flags: "fast",
        args: &[KEY, OWNER],
    },
    Spec {
        verb: Verb::Position,
        name: "dlock.position",
        summary: "Shows how many places are before an owner's in the queue",
        complexity: "O(log N) with N places in the queue; O(N) on a replica",
        access: Access::Read,
        flags: "fast",
        args: &[KEY, OWNER],
    },
    Spec {
        verb: Verb::Held,
        name: "dlock.held",
        summary: "Shows an owner's hold, or the hold that ends last: token, count, lease left",
        complexity: "O(log N) with N holders",
        access: Access::Read,
        flags: "fast",
        args: &[KEY, maybe(OWNER)],
    },
    Spec {
        verb: Verb::Check,
        name: "dlock.check",
        summary: "Answers OK if the lock is held under this fencing token now, else an error",
        complexity: "O(N) with N holders",
        access: Access::Read,
        flags: "fast",
        args: &[KEY, HELD_TOKEN],
    },
    Spec {
        verb: Verb::Guard,
        name: "dlock.guard",
        summary: "Runs a command only if the lock is held under this fencing token now",
        complexity: "O(N) with N holders, and the command's own",
        access: Access::Guard,
        flags: "getkeys-api",
        args: &[
            KEY,
            HELD_TOKEN,
            arg("command", Kind::Word),
            maybe(arg("arg", Kind::Words)),
        ],
    },
    Spec {
        verb: Verb::Info,
        name: "dlock.info",
        summary: "Shows who holds a lock and who waits for it, in order",
        complexity: "O(N log N) with N holders, O(M) with M places shown",
        access: Access::Read,
        flags: "",
        args: &[KEY, count(0, |_| MAX_ROWS)],
    },
    Spec {
        verb: Verb::List,
        name: "dlock.list",
        summary: "Lists the locks of the database page by page, with their holders and queue lengths",
        complexity: "O(N) with N keys looked at, which COUNT says; with IN also their holders and places",
        access: Access::None,
        flags: "readonly",
        args: &[
            CURSOR,
            MATCH,
            count(1, |_| MAX_INTEGER),
            OF_OWNER,
            IN,
            CONTENDED,
        ],
    },
    Spec {
        verb: Verb::Graph,
        name: "dlock.graph",
        summary: "Shows who waits for whom",
        complexity: "O(N) with N pairs that are shown; at most 100,000 contended locks are looked at",
        access: Access::None,
        flags: "readonly",
        args: &[DOT, count(1, |_| MAX_ROWS)],
    },
    Spec {
        verb: Verb::Top,
        name: "dlock.top",
        summary: "Shows the most contended locks",
        complexity: "O(1), as at most 1,000 locks are counted",
        access: Access::None,
        flags: "readonly",
        args: &[count(1, |_| MAX_INTEGER)],
    },
    Spec {
        verb: Verb::Log,
        name: "dlock.log",
        summary: "Shows what was not ordinary: holds that others ended, waits without the lock, long ones, refusals",
        complexity: "O(N) with N entries in the log",
        access: Access::None,
        flags: "readonly",
        args: &[count(1, |_| MAX_INTEGER), OF_KEY, RESET],
    },
    Spec {
        verb: Verb::Stats,
        name: "dlock.stats",
        summary: "Shows counters and times since the start or the last reset",
        complexity: "O(1)",
        access: Access::None,
        flags: "readonly allow-loading allow-stale",
        args: &[RESET],
    },
    Spec {
        verb: Verb::Help,
        name: "dlock.help",
        summary: "Lists the commands and their arguments",
        complexity: "O(1)",
        access: Access::None,
        flags: "fast allow-loading allow-stale",
        args: &[COMMAND],
    },
    Spec {
        verb: Verb::Apply,
        name: "dlock.apply",
        summary: "Internal: carries a primary's decision to replicas and the AOF; refused from clients",
        complexity: "O(N log M) with N changes and M holders",
        access: Access::Follow,
        flags: "",
        args: &[KEY, EFFECT],
    },
    Spec {
        verb: Verb::FullSyncNotice,
        name: "dlock.heed",
        summary: "Internal: announces to replicas whose confirmation counts; refused from clients",
        complexity: "O(1)",
        access: Access::Replica,
        flags: "",
        args: &[],
    },
    Spec {
        verb: Verb::Sync,
        name: "dlock.sync",
        summary: "Internal: answers PSYNC and SYNC on a replica with dlock.replicas",
        complexity: "O(1)",
        access: Access::None,
        // A server that may ask for PSYNC gets this answer: by another error it would forget that it may join partially.
        flags: "no-auth fast allow-loading allow-stale",
        args: &[maybe(arg("arg", Kind::Words))],
    },
];

impl Spec {
    /// Returns the version that had it first.
    pub fn since(&self) -> &'static str {
        match self.verb {
            Verb::FullSyncNotice => "0.3.0",
            Verb::Sync => "0.3.1",
            Verb::Session | Verb::Log => "0.5.0",
            _ => "0.1.0",
        }
    }

    /// Returns how a client of a cluster asks all nodes, in the server's words: these commands speak for one node only.
    pub fn tips(&self) -> Option<&'static str> {
        match self.verb {
            // As SCAN: each node has cursors of its own.
            Verb::List => {
                Some("nondeterministic_output request_policy:special response_policy:special")
            }
            // Without a policy for the answers they are put together, node after node.
            Verb::Graph | Verb::Log => Some("nondeterministic_output request_policy:all_shards"),
            Verb::Top | Verb::Stats => {
                Some("nondeterministic_output request_policy:all_shards response_policy:special")
            }
            _ => None,
        }
    }

    /// Returns the ACL categories, where the server has them for modules.
    pub fn categories(&self) -> String {
        let access = match (self.verb, self.access) {
            (Verb::Sync, _) => "connection",
            (Verb::ForceRelease | Verb::Apply | Verb::FullSyncNotice, _) => "write admin dangerous",
            (_, Access::Read | Access::None) => "read",
            _ => "write",
        };
        self.flags
            .split(' ')
            .filter(|flag| ["blocking", "fast"].contains(flag))
            .fold(access.to_string(), |all, flag| all + " " + flag)
    }

    /// Returns true if the command is not for clients.
    pub fn internal(&self) -> bool {
        matches!(self.access, Access::Follow | Access::Replica) || self.verb == Verb::Sync
    }

    /// Returns true if the command names no key.
    pub fn keyless(&self) -> bool {
        matches!(self.access, Access::None | Access::Replica)
    }

    /// Returns true if the command names any number of keys. It is called for each command, and so does not search the arguments.
    pub fn many_keys(&self) -> bool {
        matches!(
            self.verb,
            Verb::AcquireMany | Verb::RenewMany | Verb::ReleaseMany
        )
    }

    /// Returns the positions of keys among a command's words; an empty range if the words are wrong.
    pub fn keys(&self, words: &[&[u8]]) -> std::ops::Range<usize> {
        let keys = match words.first() {
            _ if self.keyless() => 0..0,
            Some(count) if self.many_keys() => 1..key_count(count).saturating_add(1),
            _ => 0..1,
        };
        if keys.end <= words.len() {
            keys
        } else {
            0..0
        }
    }

    /// Returns the arity as the server counts it: the command's name included, negative for "at least".
    pub fn arity(&self) -> i32 {
        let needed = self.args.iter().filter(|arg| !arg.optional).count();
        // One of several may take more words than another.
        let varies = |arg: &Arg| arg.optional || matches!(arg.kind, Kind::OneOf(_) | Kind::Keys);
        let sign = if self.args.iter().any(varies) { -1 } else { 1 };
        sign * (1 + needed as i32)
    }

    /// Returns the command and its arguments as the reference writes them.
    pub fn syntax(&self) -> String {
        let word = |arg: &Arg| " ".to_string() + &arg.written();
        self.name.to_uppercase() + &self.args.iter().map(word).collect::<String>()
    }
}

impl Arg {
    /// Returns true if it may stand anywhere after the positional arguments.
    pub fn is_option(&self) -> bool {
        self.token.is_some() || matches!(self.kind, Kind::OneOf(_))
    }

    /// Returns true if this word, in any case, begins it.
    pub fn is_named(&self, word: &[u8]) -> bool {
        self.token.is_some_and(|token| {
            let token = token.as_bytes();
            // Most clients send it as it is written here.
            token == word || token.eq_ignore_ascii_case(word)
        })
    }

    /// Returns its name in errors.
    pub fn called(&self) -> &'static str {
        match (self.kind, self.token) {
            (Kind::With([first, ..]), _) => first.called(),
            (_, token) => token.unwrap_or(self.name),
        }
    }

    /// Returns true if it is a fencing token. A client that has made a floating-point number of it has lost digits.
    pub(crate) fn is_token(&self) -> bool {
        self.name == TOKEN.name
    }

    /// Returns what it must be, as errors say it; none if it may be anything.
    pub fn must(&self, policy: &Policy) -> Option<String> {
        match self.kind {
            Kind::Text(length, _) => Some(length.text()),
            Kind::Integer(range, _) => {
                let (least, most) = range.bounds(policy);
                Some(format!("an integer from {least} to {most}"))
            }
            Kind::Keys => Some("named only once".to_string()),
            Kind::Key | Kind::Word | Kind::Words | Kind::Flag(_) => None,
            Kind::OneOf(_) | Kind::All(_) | Kind::With(_) => None,
        }
    }

    /// Returns true if its value has been read.
    pub fn is_given(&self, given: &mut Args) -> bool {
        match self.kind {
            Kind::Key | Kind::Keys => !given.keys.is_empty(),
            Kind::Text(_, field) => field(given).is_some(),
            Kind::Integer(_, field) => field(given).is_some(),
            Kind::Flag(field) => *field(given),
            Kind::OneOf(choices) => choices.iter().any(|choice| choice.is_given(given)),
            Kind::All(args) | Kind::With(args) => {
                args.first().is_some_and(|arg| arg.is_given(given))
            }
            Kind::Word | Kind::Words => false,
        }
    }

    /// Returns the argument as the reference writes it.
    fn written(&self) -> String {
        if self.optional {
            format!("[{}]", self.plain())
        } else {
            self.plain()
        }
    }

    /// Returns the argument as the reference writes it, without the brackets of an optional one.
    fn plain(&self) -> String {
        let joined = |args: &[Arg], by| {
            let args: Vec<String> = args.iter().map(Arg::written).collect();
            args.join(by)
        };
        match (self.kind, self.token) {
            (Kind::OneOf(args), _) => joined(args, " | "),
            (Kind::All(args), Some(token)) => format!("{token} {}", joined(args, " ")),
            (Kind::With(args) | Kind::All(args), _) => joined(args, " "),
            (Kind::Flag(_), Some(token)) => token.to_string(),
            (Kind::Words, _) => format!("{} ...", self.name),
            (Kind::Keys, _) => format!("{0} [{0} ...]", self.name),
            (_, Some(token)) => format!("{token} {}", self.name),
            (_, None) => self.name.to_string(),
        }
    }
}

impl Range {
    /// Returns the smallest and the largest integer.
    pub fn bounds(self, policy: &Policy) -> (u64, u64) {
        (self.least, (self.most)(policy))
    }
}

impl Length {
    /// Returns true if these bytes are neither too few nor too many.
    pub fn fits(self, bytes: &[u8]) -> bool {
        (self.least..=self.most).contains(&bytes.len())
    }

    fn text(self) -> String {
        match (self.called, self.most) {
            (None, most) => format!("{} to {most} bytes long", self.least),
            (Some(called), usize::MAX) => called.to_string(),
            (Some(called), most) => format!("{called} of {} to {most} bytes", self.least),
        }
    }
}

impl<'a> Args<'a> {
    /// Returns the key of a command that names one.
    pub fn key(&self) -> &'a [u8] {
        self.keys.first().copied().unwrap_or_default()
    }

    /// Returns the owner of a command that must name one.
    pub fn owner(&self) -> &'a [u8] {
        self.owner.unwrap_or_default()
    }

    /// Returns how many to show, `usual` without `COUNT`.
    pub fn count(&self, usual: u64) -> usize {
        usize::try_from(self.count.unwrap_or(usual)).unwrap_or(usize::MAX)
    }

    /// Returns the limit, if one is given.
    pub fn sharing(&self) -> Option<Limit> {
        match self.limit {
            _ if self.shared => Some(Limit::SHARED),
            Some(limit) => Limit::from_wire(limit as u32),
            None => None,
        }
    }
}

/// Reads the number of keys that stands before them; 0 if it is wrong.
fn key_count(word: &[u8]) -> usize {
    number::integer(word)
        .filter(|count| *count <= MAX_KEYS)
        .unwrap_or(0) as usize
}
