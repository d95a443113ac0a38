//! The command table: the one definition from which registration, `COMMAND DOCS`, `COMMAND GETKEYS`, ACL categories and
//! `DLOCK.HELP` are made, and against which the README's reference is checked.

use super::args;
use std::ops::Range;

/// Which command.
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
    /// `DLOCK.GRAPH`
    Graph,
    /// `DLOCK.TOP`
    Top,
    /// `DLOCK.HELP`
    Help,
    /// `DLOCK.APPLY`
    Apply,
}

/// What a command does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It decides: runs on the primary only, and may change locks.
    Write,
    /// It looks.
    Read,
    /// It looks, and runs another command, which may write.
    Guard,
    /// It takes over what a primary decided.
    Follow,
    /// It has no key.
    None,
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The lock's key.
    Key,
    /// The keys of locks, as many as the number before says.
    Keys,
    /// Bytes.
    Text,
    /// Any number of words.
    Words,
    /// A decimal integer.
    Integer,
    /// A word that stands for itself: its token.
    Flag,
    /// One of these.
    OneOf(&'static [Arg]),
}

/// One argument of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The word that goes before it.
    pub token: Option<&'static str>,
    /// Whether it may be left out.
    pub optional: bool,
}

/// One command.
#[derive(Debug)]
pub struct Spec {
    /// Which one.
    pub verb: Verb,
    /// Its name, in lower case as the server keeps it.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// How its cost grows.
    pub complexity: &'static str,
    /// What it does to its key.
    pub access: Access,
    /// The server's flags for it, beside `write` or `readonly`.
    pub flags: &'static str,
    /// The ACL categories, where the server has them for modules.
    pub categories: &'static str,
    /// What it takes.
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

const fn maybe(name: &'static str, kind: Kind) -> Arg {
    Arg {
        name,
        kind,
        token: None,
        optional: true,
    }
}

/// An option with a number.
const fn option(token: &'static str, name: &'static str) -> Arg {
    Arg {
        name,
        kind: Kind::Integer,
        token: Some(token),
        optional: true,
    }
}

const fn flag(token: &'static str, name: &'static str) -> Arg {
    Arg {
        name,
        kind: Kind::Flag,
        token: Some(token),
        optional: true,
    }
}

const LIMITS: &[Arg] = &[
    Arg {
        name: "shared",
        kind: Kind::Flag,
        token: Some("SHARED"),
        optional: false,
    },
    Arg {
        name: "limit",
        kind: Kind::Integer,
        token: Some("LIMIT"),
        optional: false,
    },
];

/// How many may hold at once.
const fn sharing(optional: bool) -> Arg {
    Arg {
        name: "sharing",
        kind: Kind::OneOf(LIMITS),
        token: None,
        optional,
    }
}

/// An option with bytes.
const fn text_option(token: &'static str, name: &'static str) -> Arg {
    Arg {
        kind: Kind::Text,
        ..option(token, name)
    }
}

const NOTIFY: Arg = text_option("NOTIFY", "channel");
const SESSION: Arg = flag("SESSION", "session");
const KEY: Arg = arg("key", Kind::Key);
const NUMKEYS: Arg = arg("numkeys", Kind::Integer);
const KEYS: Arg = arg("key", Kind::Keys);
const OWNER: Arg = arg("owner", Kind::Text);
const LEASE: Arg = maybe("lease-ms", Kind::Integer);
const BLOCK: Arg = option("BLOCK", "block-ms");
const HOLDS: Arg = option("HOLDS", "holds");
const TOKEN: Arg = option("TOKEN", "token");

/// Every command of the module.
pub static COMMANDS: &[Spec] = &[
    Spec {
        verb: Verb::Acquire,
        name: "dlock.acquire",
        summary: "Takes a lock, at once or after waiting for it; a holder enters it once more",
        complexity: "O(1) uncontended; O(log N) with N places in the queue",
        access: Access::Write,
        flags: "deny-oom blocking",
        categories: "write blocking",
        args: &[
            KEY,
            OWNER,
            LEASE,
            BLOCK,
            NOTIFY,
            HOLDS,
            sharing(true),
            SESSION,
        ],
    },
    Spec {
        verb: Verb::FairAcquire,
        name: "dlock.fairacquire",
        summary: "Takes a lock, or a durable place in its queue that survives disconnection, restart and failover",
        complexity: "O(1) uncontended; O(log N) with N places in the queue",
        access: Access::Write,
        flags: "deny-oom blocking",
        categories: "write blocking",
        args: &[
            KEY,
            OWNER,
            LEASE,
            BLOCK,
            NOTIFY,
            HOLDS,
            sharing(true),
            SESSION,
            option("CLAIM", "claim-ms"),
        ],
    },
    Spec {
        verb: Verb::AcquireMany,
        name: "dlock.macquire",
        summary: "Takes many locks or none of them, at once or after waiting for all",
        complexity: "O(N log M) with N keys and M places in their queues",
        access: Access::Write,
        flags: "deny-oom blocking",
        categories: "write blocking",
        args: &[
            NUMKEYS,
            KEYS,
            OWNER,
            LEASE,
            BLOCK,
            HOLDS,
            sharing(true),
            SESSION,
        ],
    },
    Spec {
        verb: Verb::RenewMany,
        name: "dlock.mrenew",
        summary: "Makes the leases of many holds end that long from now, or of none if one is not held",
        complexity: "O(N log M) with N keys and M holders",
        access: Access::Write,
        flags: "",
        categories: "write",
        args: &[NUMKEYS, KEYS, OWNER, LEASE],
    },
    Spec {
        verb: Verb::ReleaseMany,
        name: "dlock.mrelease",
        summary: "Gives back one hold of each of many locks that is held",
        complexity: "O(N log M) with N keys and M holders or places in their queues",
        access: Access::Write,
        flags: "",
        categories: "write",
        args: &[NUMKEYS, KEYS, OWNER],
    },
    Spec {
        verb: Verb::Downgrade,
        name: "dlock.downgrade",
        summary: "Weakens a hold's limit, keeping its token and count, and lets in who may now share",
        complexity: "O(log N) with N holders or places in the queue",
        access: Access::Write,
        flags: "fast",
        categories: "write fast",
        args: &[KEY, OWNER, sharing(false)],
    },
    Spec {
        verb: Verb::Renew,
        name: "dlock.renew",
        summary: "Makes the lease of a hold end that long from now",
        complexity: "O(log N) with N holders",
        access: Access::Write,
        flags: "fast",
        categories: "write fast",
        args: &[KEY, OWNER, LEASE, TOKEN],
    },
    Spec {
        verb: Verb::Release,
        name: "dlock.release",
        summary: "Gives a hold back; the last one hands the lock to the next in the queue in the same step",
        complexity: "O(log N) with N holders or places in the queue",
        access: Access::Write,
        flags: "fast",
        categories: "write fast",
        args: &[KEY, OWNER, HOLDS, TOKEN],
    },
    Spec {
        verb: Verb::ForceRelease,
        name: "dlock.forcerelease",
        summary: "Ends all holds of a lock, or one owner's, whoever has them",
        complexity: "O(N) with N holders that are ended",
        access: Access::Write,
        flags: "",
        categories: "write admin dangerous",
        args: &[KEY, maybe("owner", Kind::Text)],
    },
    Spec {
        verb: Verb::Cancel,
        name: "dlock.cancel",
        summary: "Removes an owner's place from the queue and answers whoever waits on it",
        complexity: "O(log N) with N places in the queue",
        access: Access::Write,
        flags: "fast",
        categories: "write fast",
        args: &[KEY, OWNER],
    },
    Spec {
        verb: Verb::Position,
        name: "dlock.position",
        summary: "Tells how many places stand before an owner's",
        complexity: "O(log N) with N places in the queue; O(N) on a replica",
        access: Access::Read,
        flags: "fast",
        categories: "read fast",
        args: &[KEY, OWNER],
    },
    Spec {
        verb: Verb::Held,
        name: "dlock.held",
        summary: "Tells an owner's token, hold count and lease left",
        complexity: "O(log N) with N holders",
        access: Access::Read,
        flags: "fast",
        categories: "read fast",
        args: &[KEY, OWNER],
    },
    Spec {
        verb: Verb::Check,
        name: "dlock.check",
        summary: "Answers OK if the lock is held now under this fencing token",
        complexity: "O(N) with N holders",
        access: Access::Read,
        flags: "fast",
        categories: "read fast",
        args: &[KEY, arg("token", Kind::Integer)],
    },
    Spec {
        verb: Verb::Guard,
        name: "dlock.guard",
        summary: "Runs a command if, and only if, the lock is held now under this fencing token",
        complexity: "O(N) with N holders, and the command's own",
        access: Access::Guard,
        flags: "getkeys-api",
        categories: "write",
        args: &[
            KEY,
            arg("token", Kind::Integer),
            arg("command", Kind::Text),
            maybe("arg", Kind::Words),
        ],
    },
    Spec {
        verb: Verb::Info,
        name: "dlock.info",
        summary: "Shows who holds a lock and who waits for it, in order",
        complexity: "O(N log N) with N holders, O(M) with M places shown",
        access: Access::Read,
        flags: "",
        categories: "read",
        args: &[KEY, option("COUNT", "count")],
    },
    Spec {
        verb: Verb::List,
        name: "dlock.list",
        summary: "Lists the locks of the database page by page, with who holds them and how many wait",
        complexity: "O(N) with N keys looked at, which COUNT says",
        access: Access::None,
        flags: "readonly",
        categories: "read",
        args: &[
            maybe("cursor", Kind::Integer),
            text_option("MATCH", "pattern"),
            option("COUNT", "count"),
            text_option("OWNER", "owner"),
            flag("CONTENDED", "contended"),
        ],
    },
    Spec {
        verb: Verb::Graph,
        name: "dlock.graph",
        summary: "Shows who waits for whom",
        complexity: "O(N) with N pairs that are shown; at most 100,000 contended locks are looked at",
        access: Access::None,
        flags: "readonly",
        categories: "read",
        args: &[flag("DOT", "dot"), option("COUNT", "count")],
    },
    Spec {
        verb: Verb::Top,
        name: "dlock.top",
        summary: "Shows the locks that were waited for most",
        complexity: "O(1), as at most 1,000 locks are counted",
        access: Access::None,
        flags: "readonly",
        categories: "read",
        args: &[option("COUNT", "count")],
    },
    Spec {
        verb: Verb::Stats,
        name: "dlock.stats",
        summary: "Shows what was counted and timed since the start or the last reset",
        complexity: "O(1)",
        access: Access::None,
        flags: "readonly allow-loading allow-stale",
        categories: "read",
        args: &[flag("RESET", "reset")],
    },
    Spec {
        verb: Verb::Help,
        name: "dlock.help",
        summary: "Lists the commands and what they take",
        complexity: "O(1)",
        access: Access::None,
        flags: "fast allow-loading allow-stale",
        categories: "read fast",
        args: &[],
    },
    Spec {
        verb: Verb::Apply,
        name: "dlock.apply",
        summary: "Internal: carries a primary's decision to replicas and the AOF; refused from clients",
        complexity: "O(N log M) with N changes and M holders",
        access: Access::Follow,
        flags: "",
        categories: "write admin dangerous",
        args: &[KEY, maybe("effect", Kind::Text)],
    },
];

impl Spec {
    /// Whether the command is not for clients.
    pub fn internal(&self) -> bool {
        self.access == Access::Follow
    }

    /// Whether the command names any number of keys. Asked for each command, so not of its arguments.
    pub fn many_keys(&self) -> bool {
        matches!(
            self.verb,
            Verb::AcquireMany | Verb::RenewMany | Verb::ReleaseMany
        )
    }

    /// Where the keys of locks stand among a command's words; nowhere if the words are not what they should be.
    pub fn keys(&self, words: &[&[u8]]) -> Range<usize> {
        let keys = match words.first() {
            Some(_) if self.access == Access::None => 0..0,
            Some(count) if self.many_keys() => 1..args::count(count).saturating_add(1),
            Some(_) => 0..1,
            None => 0..0,
        };
        if keys.end <= words.len() {
            keys
        } else {
            0..0
        }
    }

    /// The arity as the server counts it: the command's name included, negative for "at least".
    pub fn arity(&self) -> i32 {
        let needed = self.args.iter().filter(|arg| !arg.optional).count();
        // One of several may take more words than another.
        let varies = |arg: &Arg| arg.optional || matches!(arg.kind, Kind::OneOf(_) | Kind::Keys);
        let sign = if self.args.iter().any(varies) { -1 } else { 1 };
        sign * (1 + needed as i32)
    }

    /// The command and its arguments as the reference writes them.
    pub fn syntax(&self) -> String {
        let word = |arg: &Arg| {
            if arg.optional {
                format!(" [{}]", arg.plain())
            } else {
                format!(" {}", arg.plain())
            }
        };
        self.name.to_uppercase() + &self.args.iter().map(word).collect::<String>()
    }
}

impl Arg {
    /// The argument as the reference writes it, without the brackets of an optional one.
    fn plain(&self) -> String {
        match (self.kind, self.token) {
            (Kind::OneOf(args), _) => args.iter().map(Arg::plain).collect::<Vec<_>>().join(" | "),
            (Kind::Flag, Some(token)) => token.to_string(),
            (Kind::Words, _) => format!("{} ...", self.name),
            (Kind::Keys, _) => format!("{0} [{0} ...]", self.name),
            (_, Some(token)) => format!("{token} {}", self.name),
            (_, None) => self.name.to_string(),
        }
    }
}
