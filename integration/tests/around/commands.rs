//! What the server itself knows of the commands: COMMAND, arity, ACL, and the module's section of INFO. What is
//! expected is written down here from the reference, `docs/commands.md`.

use std::collections::{BTreeMap, BTreeSet};

use dlock_integration::redis::{from_redis_value, Connection, Value};
use dlock_integration::{command, held, kept, AclRules, Ask, Blocked, Grant, Server};

const REFERENCE: &str = include_str!("../../../docs/commands.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// What a user needs to be allowed on the lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    ReadWrite,
    Read,
    Nothing,
}

use Needs::{Nothing, Read, ReadWrite};

/// What is expected of a command.
struct Expected {
    /// As in the reference, but that `=` and its type follow each argument's name.
    syntax: &'static str,
    arity: i64,
    needs: Needs,
    flags: &'static str,
    categories: &'static str,
    /// Succeeds when `k` is held by alice; `<token>` stands for hers. In this order one does not spoil the next.
    example: &'static str,
}

const COMMANDS: &[Expected] = &[
    Expected {
        syntax: "DLOCK.ACQUIRE key=key owner=string [lease-ms=integer] [BLOCK block-ms=integer] \
            [NOTIFY channel=string] [HOLDS holds=integer] [SHARED | LIMIT limit=integer] [SESSION] [AUTO auto-ms=integer]",
        arity: -3,
        needs: ReadWrite,
        flags: "write denyoom blocking",
        categories: "@write @blocking",
        example: "DLOCK.ACQUIRE k alice 600000",
    },
    Expected {
        syntax:
            "DLOCK.FAIRACQUIRE key=key owner=string [lease-ms=integer] [BLOCK block-ms=integer] \
            [NOTIFY channel=string] [HOLDS holds=integer] [SHARED | LIMIT limit=integer] [SESSION] [AUTO auto-ms=integer] \
            [CLAIM claim-ms=integer]",
        arity: -3,
        needs: ReadWrite,
        flags: "write denyoom blocking",
        categories: "@write @blocking",
        example: "DLOCK.FAIRACQUIRE k alice 600000",
    },
    Expected {
        syntax: "DLOCK.MACQUIRE numkeys=integer key=key [key=key ...] owner=string [lease-ms=integer] \
            [BLOCK block-ms=integer] [HOLDS holds=integer] [SHARED | LIMIT limit=integer] [SESSION] [AUTO auto-ms=integer]",
        arity: -4,
        needs: ReadWrite,
        flags: "write denyoom movablekeys blocking",
        categories: "@write @blocking",
        example: "DLOCK.MACQUIRE 1 k alice 600000",
    },
    Expected {
        syntax: "DLOCK.MRENEW numkeys=integer key=key [key=key ...] owner=string [lease-ms=integer] [SESSION] [AUTO auto-ms=integer]",
        arity: -4,
        needs: ReadWrite,
        flags: "write movablekeys",
        categories: "@write",
        example: "DLOCK.MRENEW 1 k alice 600000",
    },
    Expected {
        syntax: "DLOCK.MRELEASE numkeys=integer key=key [key=key ...] owner=string",
        arity: -4,
        needs: ReadWrite,
        flags: "write movablekeys",
        categories: "@write",
        example: "DLOCK.MRELEASE 1 k nobody",
    },
    Expected {
        syntax: "DLOCK.DOWNGRADE key=key owner=string SHARED | LIMIT limit=integer",
        arity: -4,
        needs: ReadWrite,
        flags: "write fast",
        categories: "@write @fast",
        example: "DLOCK.DOWNGRADE k alice LIMIT 1",
    },
    Expected {
        syntax: "DLOCK.RENEW key=key owner=string [lease-ms=integer] [TOKEN token=integer] [SESSION] [AUTO auto-ms=integer]",
        arity: -3,
        needs: ReadWrite,
        flags: "write fast",
        categories: "@write @fast",
        example: "DLOCK.RENEW k alice 600000",
    },
    Expected {
        syntax: "DLOCK.KEEP ms=integer",
        arity: 2,
        needs: Nothing,
        flags: "write fast",
        categories: "@write @fast",
        example: "DLOCK.KEEP 1000",
    },
    Expected {
        syntax: "DLOCK.RELEASE key=key owner=string [HOLDS holds=integer] [TOKEN token=integer]",
        arity: -3,
        needs: ReadWrite,
        flags: "write fast",
        categories: "@write @fast",
        example: "DLOCK.RELEASE k alice HOLDS 1",
    },
    Expected {
        syntax: "DLOCK.FORCERELEASE key=key [owner=string]",
        arity: -2,
        needs: ReadWrite,
        flags: "write",
        categories: "@write @admin @dangerous",
        example: "DLOCK.FORCERELEASE k nobody",
    },
    Expected {
        syntax: "DLOCK.CANCEL key=key owner=string",
        arity: 3,
        needs: ReadWrite,
        flags: "write fast",
        categories: "@write @fast",
        example: "DLOCK.CANCEL k nobody",
    },
    Expected {
        syntax: "DLOCK.POSITION key=key owner=string",
        arity: 3,
        needs: Read,
        flags: "readonly fast",
        categories: "@read @fast",
        example: "DLOCK.POSITION k nobody",
    },
    Expected {
        syntax: "DLOCK.HELD key=key [owner=string]",
        arity: -2,
        needs: Read,
        flags: "readonly fast",
        categories: "@read @fast",
        example: "DLOCK.HELD k alice",
    },
    Expected {
        syntax: "DLOCK.CHECK key=key token=integer",
        arity: 3,
        needs: Read,
        flags: "readonly fast",
        categories: "@read @fast",
        example: "DLOCK.CHECK k <token>",
    },
    // It only looks at the lock; what its inner command needs is asked of that one's keys.
    Expected {
        syntax: "DLOCK.GUARD key=key token=integer command=string [arg=string ...]",
        arity: -4,
        needs: Read,
        flags: "write movablekeys",
        categories: "@write",
        example: "DLOCK.GUARD k <token> DBSIZE",
    },
    Expected {
        syntax: "DLOCK.INFO key=key [COUNT count=integer]",
        arity: -2,
        needs: Read,
        flags: "readonly",
        categories: "@read",
        example: "DLOCK.INFO k",
    },
    Expected {
        syntax: "DLOCK.LIST [cursor=integer] [MATCH pattern=string] [COUNT count=integer] [OWNER owner=string] [CONTENDED]",
        arity: -1,
        needs: Nothing,
        flags: "readonly",
        categories: "@read",
        example: "DLOCK.LIST",
    },
    Expected {
        syntax: "DLOCK.GRAPH [DOT] [COUNT count=integer]",
        arity: -1,
        needs: Nothing,
        flags: "readonly",
        categories: "@read",
        example: "DLOCK.GRAPH",
    },
    Expected {
        syntax: "DLOCK.TOP [COUNT count=integer]",
        arity: -1,
        needs: Nothing,
        flags: "readonly",
        categories: "@read",
        example: "DLOCK.TOP",
    },
    Expected {
        syntax: "DLOCK.STATS [RESET]",
        arity: -1,
        needs: Nothing,
        flags: "readonly loading stale",
        categories: "@read",
        example: "DLOCK.STATS",
    },
    Expected {
        syntax: "DLOCK.HELP",
        arity: 1,
        needs: Nothing,
        flags: "loading stale fast",
        categories: "@read @fast",
        example: "DLOCK.HELP",
    },
];

/// Not for clients, so not in the reference.
const APPLY: Expected = Expected {
    syntax: "DLOCK.APPLY key=key [effect=string]",
    arity: -2,
    needs: ReadWrite,
    flags: "write",
    categories: "@write @admin @dangerous",
    example: "DLOCK.APPLY k x",
};

/// The other internal one.
const HEED: Expected = Expected {
    syntax: "DLOCK.HEED",
    arity: 1,
    needs: Nothing,
    example: "DLOCK.HEED",
    ..APPLY
};

const INTERNAL: [&Expected; 2] = [&APPLY, &HEED];

fn everything() -> impl Iterator<Item = &'static Expected> {
    COMMANDS.iter().chain(INTERNAL)
}

impl Expected {
    /// `dlock.acquire`: as the server writes it.
    fn name(&self) -> String {
        self.example
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_lowercase()
    }

    /// As in the reference.
    fn plain_syntax(&self) -> String {
        ["key", "string", "integer"]
            .iter()
            .fold(self.syntax.to_owned(), |syntax, kind| {
                syntax.replace(&format!("={kind}"), "")
            })
    }

    fn line(&self, token: u64) -> String {
        self.example.replace("<token>", &token.to_string())
    }

    fn has_key(&self) -> bool {
        self.needs != Nothing
    }

    /// Whether a number tells how many keys there are.
    fn many_keys(&self) -> bool {
        self.syntax.contains("numkeys")
    }

    /// The flags of its key, as the server writes them.
    fn key_flags(&self) -> BTreeSet<String> {
        match self.needs {
            ReadWrite => words("RW access update"),
            // There may be more keys, which only the module can tell.
            Read if self.flags.contains("movablekeys") => words("RO access incomplete"),
            Read => words("RO access"),
            Nothing => BTreeSet::new(),
        }
    }
}

fn words(line: &str) -> BTreeSet<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

type Fields = BTreeMap<String, Value>;

#[track_caller]
fn read<T: dlock_integration::redis::FromRedisValue>(value: &Value) -> T {
    from_redis_value(value).unwrap_or_else(|error| panic!("{value:?}: {error}"))
}

fn names() -> BTreeSet<String> {
    everything().map(Expected::name).collect()
}

/// The connection of a user whom these rules make.
fn user(server: &Server, rules: &str) -> Connection {
    let mut admin = server.connection();
    admin.run(&format!("ACL SETUSER worker reset on >secret {rules}"));
    server.connection_as("worker", "secret")
}

#[track_caller]
fn assert_denied(c: &mut Connection, line: &str, why: &str) {
    let error = c.refusal(line);
    assert!(error.starts_with("NOPERM "), "{why}: {line}: {error}");
}

/// Runs the example if it is `allowed`, and else finds it refused by the ACL.
#[track_caller]
fn assert_allowed(c: &mut Connection, line: &str, allowed: bool, why: &str) {
    if !allowed {
        assert_denied(c, line, why);
    } else if let Some(internal) = INTERNAL.iter().find(|internal| line == internal.example) {
        let name = internal.name().to_uppercase();
        let refused = format!("ERR {name} is for replication and the AOF only");
        assert_eq!(c.refusal(line), refused, "{why}");
    } else if let Err(error) = c.try_ask(line) {
        panic!("{why}: {line}: {error}");
    }
}

#[test]
fn the_table_is_the_reference() {
    for expected in COMMANDS {
        let syntax = format!("```\n{}\n```", expected.plain_syntax());
        assert!(
            REFERENCE.contains(&syntax),
            "docs/commands.md does not have {syntax}"
        );
    }
    let headings: BTreeSet<String> = REFERENCE
        .lines()
        .filter_map(|line| line.strip_prefix("### DLOCK."))
        .map(|name| format!("dlock.{}", name.to_lowercase()))
        .collect();
    let named: BTreeSet<String> = COMMANDS.iter().map(Expected::name).collect();
    assert_eq!(headings, named);
}

#[test]
fn the_server_lists_them_all() {
    let server = Server::start();
    let mut c = server.connection();
    let mut list = |filter: &str| -> BTreeSet<String> {
        let listed: Vec<String> = c.ask(&format!("COMMAND LIST FILTERBY {filter}"));
        let set: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(set.len(), listed.len(), "{listed:?}");
        set
    };
    assert_eq!(list("MODULE dlock"), names());
    assert_eq!(list("PATTERN dlock*"), names());
    if !server.version().has_redis_api(7, 2) {
        return;
    }
    for category in [
        "read",
        "write",
        "fast",
        "slow",
        "blocking",
        "admin",
        "dangerous",
    ] {
        let mut listed = list(&format!("ACLCAT {category}"));
        listed.retain(|name| name.starts_with("dlock"));
        let own: BTreeSet<String> = everything()
            .filter(|e| words(e.categories).contains(&format!("@{category}")))
            .map(Expected::name)
            .collect();
        assert_eq!(listed, own, "{category}");
    }
}

#[test]
fn command_info_is_right() {
    let server = Server::start();
    let categories = server.version().has_redis_api(7, 2);
    for mut c in [server.connection(), server.connection_resp3()] {
        for expected in everything() {
            let name = expected.name();
            // In whatever case it is asked for.
            let answer: Vec<Vec<Value>> = c.ask(&format!("COMMAND INFO {}", name.to_uppercase()));
            let info = &answer[0];
            assert_eq!(read::<String>(&info[0]), name);
            assert_eq!(read::<i64>(&info[1]), expected.arity, "{name}");
            let mut flags = words(expected.flags);
            flags.insert("module".into());
            assert_eq!(read::<BTreeSet<String>>(&info[2]), flags, "{name}");
            let positions: Vec<i64> = info[3..6].iter().map(read).collect();
            // Keys that a number tells of have no place of their own.
            let placed = expected.has_key() && !expected.many_keys();
            let own = if placed { [1; 3] } else { [0; 3] };
            assert_eq!(positions, own, "{name}");
            let own = if categories {
                words(expected.categories)
            } else {
                BTreeSet::new()
            };
            assert_eq!(read::<BTreeSet<String>>(&info[6]), own, "{name}");
            let tips = match name.as_str() {
                "dlock.list" => {
                    "nondeterministic_output request_policy:special response_policy:special"
                }
                "dlock.keep" => "request_policy:all_shards response_policy:special",
                "dlock.graph" => "nondeterministic_output request_policy:all_shards",
                "dlock.top" | "dlock.stats" => {
                    "nondeterministic_output request_policy:all_shards response_policy:special"
                }
                _ => "",
            };
            assert_eq!(read::<BTreeSet<String>>(&info[7]), words(tips), "{name}");
            let keys: Vec<Fields> = read(&info[8]);
            assert_eq!(keys.len(), usize::from(expected.has_key()), "{name}");
            if let Some(key) = keys.first() {
                assert_first_word(key, expected);
            }
            // There are no subcommands.
            assert_eq!(read::<Vec<Value>>(&info[9]), [], "{name}");
        }
    }
}

/// The key is the first word, and only that; or the first word tells how many follow it.
#[track_caller]
fn assert_first_word(key: &Fields, expected: &Expected) {
    let name = expected.name();
    let flags: BTreeSet<String> = read(&key["flags"]);
    assert_eq!(flags, expected.key_flags(), "{name}");
    let begin: Fields = read(&key["begin_search"]);
    assert_eq!(read::<String>(&begin["type"]), "index", "{name}");
    let spec: BTreeMap<String, i64> = read(&begin["spec"]);
    assert_eq!(spec, BTreeMap::from([("index".into(), 1)]), "{name}");
    let find: Fields = read(&key["find_keys"]);
    let (kind, only) = match expected.many_keys() {
        true => (
            "keynum",
            [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)],
        ),
        false => ("range", [("lastkey", 0), ("keystep", 1), ("limit", 0)]),
    };
    assert_eq!(read::<String>(&find["type"]), kind, "{name}");
    let spec: BTreeMap<String, i64> = read(&find["spec"]);
    let only = only.map(|(field, value)| (field.to_owned(), value));
    assert_eq!(spec, BTreeMap::from(only), "{name}");
}

/// An argument of COMMAND DOCS, written as in the table.
fn written(arg: &Value) -> String {
    let arg: Fields = read(arg);
    let text = |field: &str| arg.get(field).map(read::<String>);
    let (name, kind) = (read::<String>(&arg["name"]), read::<String>(&arg["type"]));
    let flags: BTreeSet<String> = arg.get("flags").map(read).unwrap_or_default();
    let token = text("token");
    let mut written = match (kind.as_str(), token) {
        ("oneof", None) => {
            let choices: Vec<Value> = read(&arg["arguments"]);
            choices.iter().map(written).collect::<Vec<_>>().join(" | ")
        }
        ("pure-token", Some(token)) => token,
        (_, Some(token)) => format!("{token} {name}={kind}"),
        (_, None) => format!("{name}={kind}"),
    };
    if flags.contains("multiple") && kind == "key" {
        written = format!("{written} [{written} ...]");
    } else if flags.contains("multiple") {
        written += " ...";
    }
    // Which of the key's positions it stands for.
    let key = arg.get("key_spec_index").map(read::<i64>);
    assert_eq!(key, (kind == "key").then_some(0), "{name}");
    if flags.contains("optional") {
        format!("[{written}]")
    } else {
        written
    }
}

#[test]
fn command_docs_are_right() {
    let server = Server::start();
    for mut c in [server.connection(), server.connection_resp3()] {
        let help: Vec<String> = c.ask("DLOCK.HELP");
        let help: BTreeMap<&str, &str> = help
            .chunks(2)
            .map(|pair| (pair[0].as_str(), pair[1].trim()))
            .collect();
        assert_eq!(help.len(), COMMANDS.len());
        for expected in everything() {
            let name = expected.name();
            let answer: BTreeMap<String, Fields> = c.ask(&format!("COMMAND DOCS {name}"));
            let docs = &answer[&name];
            let text = |field: &str| read::<String>(&docs[field]);
            assert_eq!(text("group"), "module", "{name}");
            assert_eq!(text("module"), "dlock", "{name}");
            assert_eq!(text("since"), "0.1.0", "{name}");
            assert!(text("complexity").starts_with("O("), "{name}");
            assert!(!text("summary").is_empty(), "{name}");
            let args: Vec<Value> = docs.get("arguments").map(read).unwrap_or_default();
            let line = args
                .iter()
                .fold(name.to_uppercase(), |line, arg| line + " " + &written(arg));
            assert_eq!(line, expected.syntax);
            // The same is in the server's own help; what is internal is not.
            let helped = help.get(expected.plain_syntax().as_str());
            let summary = text("summary");
            let own = INTERNAL.iter().all(|internal| name != internal.name());
            let own = own.then_some(summary.as_str());
            assert_eq!(helped.copied(), own, "{name}");
        }
    }
}

#[test]
fn command_getkeys_finds_the_lock() {
    let server = Server::start();
    let mut c = server.connection();
    for expected in everything().filter(|e| e.has_key()) {
        let line = expected.line(1);
        let keys: Vec<String> = c.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(keys, ["k"], "{line}");
        let keys: Vec<(String, BTreeSet<String>)> =
            c.ask(&format!("COMMAND GETKEYSANDFLAGS {line}"));
        let mut flags = expected.key_flags();
        flags.remove("incomplete");
        assert_eq!(keys, [("k".to_owned(), flags)], "{line}");
    }
    // Whatever stands where options do, and whatever the key looks like.
    for line in [
        "DLOCK.ACQUIRE owner k 1000 BLOCK 5 HOLDS 1 LIMIT 3",
        "dlock.fairacquire owner owner CLAIM 7 SHARED",
        "DLOCK.RELEASE owner k HOLDS 0 TOKEN 9",
        "DLOCK.INFO owner COUNT 2",
    ] {
        let keys: Vec<String> = c.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(keys, ["owner"], "{line}");
    }
    for line in ["DLOCK.HELP", "DLOCK.POSITION k", "DLOCK.CANCEL k a b"] {
        let error = c.refusal(&format!("COMMAND GETKEYS {line}"));
        assert!(error.starts_with("ERR "), "{line}: {error}");
    }
}

/// The server knows it before the module is asked: a transaction is refused while it is put together.
#[test]
fn a_wrong_number_of_words_is_the_server_s_to_refuse() {
    let (_server, mut c, _) = held();
    for expected in everything() {
        let name = expected.name();
        let least = expected.arity.unsigned_abs() as usize;
        // With the name itself.
        let mut wrong: Vec<usize> = (1..least).collect();
        if expected.arity > 0 {
            wrong.push(least + 1);
        }
        for count in wrong {
            let line = name.to_uppercase() + &" k".repeat(count - 1);
            let text = format!("ERR wrong number of arguments for '{name}' command");
            assert_eq!(c.refusal(&line), text, "{line}");
            c.run("MULTI");
            assert_eq!(c.refusal(&line), text, "{line}");
            let error = c.refusal("EXEC");
            assert!(error.starts_with("EXECABORT "), "{line}: {error}");
        }
    }
    // What there is not.
    let error = c.refusal("DLOCK.MFORCE k");
    assert!(
        error.starts_with("ERR unknown command") && error.contains("MFORCE"),
        "{error}"
    );
}

#[test]
fn key_patterns_are_enforced() {
    let (server, mut admin, token) = held();
    let before = kept(&mut admin, "k");
    for (rules, read, read_write) in [
        ("%R~k", true, false),
        // Whoever could only write could still learn of a lock by what is answered.
        ("%W~k", false, false),
        ("%R~k %W~other", true, false),
        ("~other", false, false),
        ("~kk ~?k", false, false),
        ("resetkeys", false, false),
        // These may, and go last.
        ("%RW~k", true, true),
        ("%R~k %W~k", true, true),
        ("~k", true, true),
        ("~*", true, true),
    ] {
        let mut c = user(&server, &format!("+@all {rules}"));
        for expected in everything() {
            let allowed = match expected.needs {
                ReadWrite => read_write,
                Read => read,
                Nothing => true,
            };
            assert_allowed(&mut c, &expected.line(token), allowed, rules);
        }
        if !read_write {
            assert_eq!(kept(&mut admin, "k"), before, "{rules}");
        }
    }
    // Who was denied has neither taken nor left a place, nor in scripts and transactions.
    let mut c = user(&server, "+@all %R~k ~mine");
    let now = kept(&mut admin, "k");
    for line in [
        "DLOCK.FAIRACQUIRE k bob 1000 CLAIM 60000",
        "DLOCK.ACQUIRE other bob BLOCK 0",
        "DLOCK.FORCERELEASE k",
    ] {
        assert_denied(&mut c, line, "a stranger");
        let mut eval = command("EVAL");
        eval.arg("return redis.call(unpack(ARGV))").arg(0);
        for word in line.split(' ') {
            eval.arg(word);
        }
        let error = c.answer(&eval).expect_err("in a script, too");
        assert!(error.contains(" access "), "{error}");
        c.run("MULTI");
        assert_denied(&mut c, line, "a stranger's transaction");
        assert!(c.refusal("EXEC").starts_with("EXECABORT "));
    }
    assert_eq!(kept(&mut admin, "k"), now);
    assert_eq!(admin.ask::<u64>("EXISTS k other mine"), 1);
    assert_eq!(c.ask::<Grant>("DLOCK.ACQUIRE mine bob").1, 1);
}

#[test]
fn commands_can_be_denied_one_by_one() {
    let (server, _admin, token) = held();
    for one in everything() {
        let name = one.name();
        let mut c = user(&server, &format!("~* +@all -{name}"));
        for expected in everything() {
            let others = expected.name() != name;
            assert_allowed(&mut c, &expected.line(token), others, &format!("-{name}"));
        }
        let mut c = user(&server, &format!("~* -@all +{name}"));
        for expected in everything() {
            // What GUARD runs, its caller has to be allowed as well.
            let line = expected.line(token);
            let allowed = expected.name() == name && name != "dlock.guard";
            assert_allowed(&mut c, &line, allowed, &format!("+{name}"));
        }
    }
    let mut c = user(&server, "~* -@all +dlock.guard +dbsize");
    c.run(&format!("DLOCK.GUARD k {token} DBSIZE"));
}

/// Of the users of the reference, each may send its commands and no others.
#[test]
fn the_users_of_the_reference_can_do_what_they_are_for() {
    let app_may =
        "acquire fairacquire macquire mrenew mrelease downgrade renew keep release cancel position \
        held check info help";
    let ops_may = "info list graph top stats held position check cancel forcerelease help";
    let rules = AclRules::of_the_page();
    let server = Server::start();
    let mut admin = server.connection();
    let (token, _): Grant = admin.ask("DLOCK.ACQUIRE stock alice 600000");
    admin.run("DLOCK.ACQUIRE k alice 600000");
    for (name, rules, may) in [
        ("app", rules.plain, app_may),
        ("ops", rules.operator, ops_may),
    ] {
        admin.run(rules);
        let mut c = server.connection_as(name, AclRules::PASSWORD);
        for expected in everything() {
            let line = expected.line(token);
            let command = expected.name();
            let allowed = words(may).contains(&command["dlock.".len()..]);
            assert_allowed(&mut c, &line.replace(" k", " stock"), allowed, may);
            if !allowed || name == "app" && expected.has_key() {
                assert_denied(&mut c, &line, "another's lock, or another's command");
            }
        }
        for line in ["DEL stock", "SET stock x", "PEXPIRE stock 1", "FLUSHALL"] {
            assert_denied(&mut c, line, may);
        }
        assert_eq!(c.ask::<String>("PING"), "PONG");
    }
    assert_eq!(admin.ask::<u64>("EXISTS stock k"), 2);
}

#[test]
fn categories_allow_and_deny() {
    let (server, _admin, token) = held();
    let known = server.version().has_redis_api(7, 2);
    for category in [
        "@write",
        "@read",
        "@dangerous",
        "@admin",
        "@blocking",
        "@fast",
    ] {
        let (only, but) = (format!("-@all +{category}"), format!("+@all -{category}"));
        let mut may = user(&server, &format!("~* +dbsize {only} +dbsize"));
        server.connection().run(&format!(
            "ACL SETUSER other reset on >secret ~* {but} +dbsize"
        ));
        let mut may_not = server.connection_as("other", "secret");
        for expected in everything() {
            // Redis 7.0 puts commands of modules in no category.
            let within = known && words(expected.categories).contains(category);
            let line = expected.line(token);
            assert_allowed(&mut may, &line, within, &only);
            assert_allowed(&mut may_not, &line, !within, &but);
        }
    }
    // The reference's rule.
    let rules = "~* -@all +@read +@write +@blocking -@dangerous";
    let mut c = user(&server, rules);
    for expected in everything() {
        let allowed = known && !expected.categories.contains("@dangerous");
        assert_allowed(&mut c, &expected.line(token), allowed, rules);
    }
}

/// The `addr` and `name` of the first place in the queue of `k`, as far as they are shown.
fn shown(info: Value) -> (Option<String>, Option<String>) {
    let info: Fields = read(&info);
    let queue: Vec<Fields> = read(&info["queue"]);
    let text = |field: &str| queue[0].get(field).map(read::<String>);
    assert_eq!(text("owner"), Some("bob".into()));
    // Which connection it is, everybody may know.
    assert_ne!(text("client"), Some("0".into()));
    (text("addr"), text("name"))
}

#[test]
fn who_may_not_list_clients_is_not_shown_them() {
    let (server, mut admin, _) = held();
    let mut wire = server.wire();
    wire.ask::<()>("CLIENT SETNAME bobs-machine");
    let line = "DLOCK.ACQUIRE k bob 600000 BLOCK 0";
    let mut bob = Blocked::send_on(wire, &command(line), line);
    bob.await_blocked(&server);
    let listed: String = admin.ask(&format!("CLIENT LIST ID {}", bob.client_id()));
    let addr = listed
        .split(' ')
        .find_map(|word| word.strip_prefix("addr="))
        .expect("an address");
    let all = (Some(addr.to_owned()), Some("bobs-machine".to_owned()));

    assert_eq!(shown(admin.ask("DLOCK.INFO k")), all);
    for (rules, may) in [
        ("+@all", true),
        ("+@all -client|list", false),
        ("+@all -client", false),
        ("+@all -@dangerous", false),
        ("+@all -@admin -@dangerous +client|list", true),
        ("-@all +dlock.info", false),
        ("-@all +dlock.info +client|list", true),
        ("-@all +dlock.info +client|info +client|getname", false),
        ("-@all +dlock.info +client", true),
    ] {
        let expected = if may { all.clone() } else { (None, None) };
        let rules = format!("%R~k +hello +eval +multi +exec {rules} +hello +eval +multi +exec");
        let mut c = user(&server, &rules);
        assert_eq!(shown(c.ask("DLOCK.INFO k")), expected, "{rules}");
        // Nor by a detour.
        let eval = "EVAL return{redis.call('DLOCK.INFO','k')} 0";
        let mut answer: Vec<Value> = c.ask(eval);
        assert_eq!(shown(answer.remove(0)), expected, "{rules}");
        c.run("MULTI");
        c.run("DLOCK.INFO k");
        let mut answer: Vec<Value> = c.ask("EXEC");
        assert_eq!(shown(answer.remove(0)), expected, "{rules}");
        c.run("HELLO 3");
        assert_eq!(shown(c.ask("DLOCK.INFO k")), expected, "{rules}");
    }
    // It is asked each time.
    let mut c = user(&server, "%R~k +@all");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), all);
    admin.run("ACL SETUSER worker -client|list");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), (None, None));
    admin.run("ACL SETUSER worker +client|list");
    assert_eq!(shown(c.ask("DLOCK.INFO k")), all);
}

/// The module's fields in an answer of INFO.
fn info_fields(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter(|line| line.starts_with("dlock_"))
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(field, value)| {
            let number = value.parse();
            (
                field.to_owned(),
                number.unwrap_or_else(|_| panic!("{field}:{value}")),
            )
        })
        .collect()
}

#[test]
fn info_has_the_fields_of_the_reference() {
    // In the first column, in code, one or more a row.
    let documented: BTreeSet<String> = OPERATIONS
        .split("## INFO fields")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("docs/operations.md has the table")
        .lines()
        .filter_map(|line| line.strip_prefix("| `dlock_"))
        .filter_map(|line| line.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|field| {
            format!(
                "dlock_{}",
                field.trim_matches('`').trim_start_matches("dlock_")
            )
        })
        .collect();
    let (_server, mut c, _) = held();
    c.run("DLOCK.ACQUIRE k alice 600000");
    c.run("DLOCK.ACQUIRE k bob");
    c.run("DLOCK.FAIRACQUIRE k bob CLAIM 600000");
    let section: String = c.ask("INFO dlock");
    assert_eq!(section.lines().next(), Some("# dlock_locks"));
    let fields = info_fields(&section);
    assert_eq!(fields.keys().cloned().collect::<BTreeSet<_>>(), documented);
    for (field, value) in [
        ("dlock_locks", 1),
        ("dlock_places_queued", 1),
        ("dlock_grants_immediate_total", 1),
        ("dlock_reentries_total", 1),
        ("dlock_null_replies_total", 2),
        ("dlock_upgrades_total", 0),
        ("dlock_eviction_possible", 0),
    ] {
        assert_eq!(fields[field], value, "{field}");
    }
    for larger in ["INFO modules", "INFO everything"] {
        let text: String = c.ask(larger);
        assert_eq!(info_fields(&text), fields, "{larger}");
    }
    // A reader who has nobody beside it becomes a writer at once.
    c.run("DLOCK.ACQUIRE reader alice 600000 SHARED");
    c.run("DLOCK.ACQUIRE reader alice 600000");
    let fields = info_fields(&c.ask::<String>("INFO dlock"));
    assert_eq!(fields["dlock_upgrades_total"], 1);
    assert_eq!(fields["dlock_locks"], 2);
}
